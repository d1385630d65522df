"""ci/release refuses what is not ready, before it makes anything. The whole is `ci/release VERSION
--dry-run`, which takes bare machines and minutes.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="ci/release wants root: it mounts")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A checkout of one commit with what ci/release looks at first."""
    folder = tmp_path / "clone"
    (folder / "ci").mkdir(parents=True)
    (folder / "ci/release").write_bytes((REPO / "ci/release").read_bytes())
    (folder / "ci/release").chmod(0o755)
    (folder / ".gitignore").write_text("/build/\n")
    (folder / "CHANGELOG.md").write_text("# Changes\n\n## 0.1.0 (2026-12-01)\n\nThe first.\n")
    run_git(folder, "init", "--quiet")
    run_git(folder, "add", "--all")
    run_git(folder, "commit", "--quiet", "-m", "one")
    return folder


def run_git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def release(folder: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [folder / "ci/release", *words], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def pass_ci(folder: Path) -> None:
    (folder / "build").mkdir()
    commit = run_git(folder, "rev-parse", "HEAD")
    (folder / "build/ci-passed").write_text(f"{commit} in 900 s, on 2026-12-01 10:00 UTC\n")


@pytest.mark.parametrize("words", [(), ("0.1",), ("v0.1.0",), ("0.1.0; id",), ("0.1.0", "--dry")])
def test_wrong_words(clone: Path, words: tuple[str, ...]) -> None:
    status, said = release(clone, *words)
    assert status == 2
    assert "TIP: ci/release 0.1.0" in said


def test_a_tree_with_changes(clone: Path) -> None:
    pass_ci(clone)
    (clone / "new").touch()
    status, said = release(clone, "0.1.0")
    assert status == 1
    assert "changes that are in no commit" in said


def test_a_version_that_is_there(clone: Path) -> None:
    pass_ci(clone)
    run_git(clone, "tag", "v0.1.0")
    status, said = release(clone, "0.1.0")
    assert status == 1
    assert "there is a tag v0.1.0" in said


def test_a_commit_on_which_ci_has_not_passed(clone: Path) -> None:
    status, said = release(clone, "0.1.0")
    assert (status, ".ci/run has not passed on this commit" in said) == (1, True)
    pass_ci(clone)
    run_git(clone, "commit", "--quiet", "--allow-empty", "-m", "two")
    status, said = release(clone, "0.1.0")
    assert (status, ".ci/run has not passed on this commit" in said) == (1, True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("# Changes\n", "has no section '## 0.1.0'"),
        ("## 0.1.0 (unreleased)\n\nx\n", "says '## 0.1.0 (unreleased)'"),
        ("## 0.1.0.1\n\nx\n", "has no section '## 0.1.0'"),
        ("## 0x1.0\n\nx\n", "has no section '## 0.1.0'"),
    ],
)
def test_a_changelog_that_does_not_say_it(clone: Path, text: str, says: str) -> None:
    (clone / "CHANGELOG.md").write_text(text)
    run_git(clone, "commit", "--quiet", "--all", "-m", "two")
    pass_ci(clone)
    status, said = release(clone, "0.1.0")
    assert status == 1
    assert says in said
