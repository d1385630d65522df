"""The version: a tag, or how far past it and at which commit; and never less than an older one's."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from packaging.version import Version

import hpcstack
from support.trees import trust_archive

REPO = Path(__file__).parents[2]
DECIDES = ("pyproject.toml", ".git_archival.txt", ".gitattributes", ".gitignore", "README.md")
FIRST = Version("0.1.0")


def run_git(checkout: Path, *words: str) -> str:
    """What git prints of CHECKOUT, under no settings but its own."""
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    command = ["git", *identity, *words]
    return subprocess.run(
        command, cwd=checkout, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of two commits with what of ours decides the version."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in DECIDES:
        shutil.copy(REPO / name, folder)
    run_git(folder, "init", "--quiet")
    run_git(folder, "add", "--all")
    run_git(folder, "commit", "--quiet", "-m", "one")
    run_git(folder, "commit", "--quiet", "--allow-empty", "-m", "two")
    return folder


def built_version(folder: Path) -> Version:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "version"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return Version(done.stdout.strip())


def test_a_clone_without_tags_counts_its_commits_and_names_the_last(checkout: Path) -> None:
    before = built_version(checkout)
    run_git(checkout, "commit", "--quiet", "--allow-empty", "-m", "three")
    after = built_version(checkout)
    assert str(after) == f"0.1.0.post3+g{run_git(checkout, 'rev-parse', 'HEAD')[:9]}"
    assert FIRST < before < after


def test_a_tag_is_a_version_and_what_follows_counts_from_it(checkout: Path) -> None:
    untagged = built_version(checkout)
    run_git(checkout, "tag", "v0.2.0")
    assert str(built_version(checkout)) == "0.2.0"
    run_git(checkout, "commit", "--quiet", "--allow-empty", "-m", "three")
    after = built_version(checkout)
    assert str(after).startswith("0.2.0.post1+g")
    assert untagged < Version("0.2.0") < after


def test_files_that_no_commit_has_are_told(checkout: Path) -> None:
    (checkout / "pyproject.toml").open("a").write("\n# of nobody's commit\n")
    assert ".d20" in str(built_version(checkout))


@pytest.mark.parametrize(("tag", "version"), [("v0.2.0", "0.2.0"), ("", "0.1.0")])
def test_an_archive_without_git_knows_its_tag_else_the_first_version(
    checkout: Path, tag: str, version: str
) -> None:
    if tag:
        run_git(checkout, "tag", tag)
    archive, unpacked = checkout.parent / "archive.tar", checkout.parent / "unpacked"
    run_git(checkout, "archive", "--output", str(archive), "HEAD")
    with tarfile.open(archive) as members:
        trust_archive(members)
        members.extractall(unpacked)
    assert str(built_version(unpacked)) == version


def test_what_was_installed_says_which_it_is() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hpcstack", "--version"], check=True, capture_output=True, text=True
    )
    assert done.stdout == f"hpcstack, version {hpcstack.__version__}\n"
    assert Version(hpcstack.__version__) > FIRST
