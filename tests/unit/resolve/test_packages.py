"""Packages without an engine: git's refs by the real git, and what another machine has resolved
already.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from conftest import make_site
from hpcstack.build.workbench import Workbench
from hpcstack.core.errors import InputError
from hpcstack.core.process import Runner
from hpcstack.core.progress import Progress
from hpcstack.lock.model import Lock, LockedPip
from hpcstack.oci.client import Registry
from hpcstack.recipe.catalog import Catalog
from hpcstack.recipe.packages import Source
from hpcstack.resolve.packages import _find_commit, resolve_packages
from support.locks import base_lock


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A repository with refs that end alike, and {ref: commit}."""
    work = tmp_path / "tool"
    work.mkdir()
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
    env |= {
        f"GIT_{who}_{what}": "x@y.z"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }

    def git(*argv: str) -> str:
        return subprocess.run(
            ["git", *argv], cwd=work, env=env, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q", "-b", "main")
    out = {}
    for ref, tag in (
        ("v1", ["tag", "v1"]),
        ("release/v1", ["tag", "-a", "release/v1", "-m", "x"]),
        ("v2", ["tag", "-a", "v2", "-m", "x"]),
    ):
        git("commit", "-q", "--allow-empty", "-m", ref)
        git(*tag)
        out[ref] = git("rev-parse", "HEAD")
    git("update-ref", "refs/pull/1/head", "HEAD")
    git("commit", "-q", "--allow-empty", "-m", "last")
    out["main"] = git("rev-parse", "HEAD")
    return work, out


def test_a_ref_is_that_ref_and_no_other_that_ends_alike(
    repository: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    work, commits = repository
    for ref, commit in commits.items():
        source = Source(name="tool", git=f"file://{work}", ref=ref, build="make")
        assert _find_commit(source, make_site(tmp_path), Runner()) == commit, ref


@pytest.mark.parametrize("ref", ["head", "1", "nothing", "v"])
def test_a_ref_that_is_not_there(
    repository: tuple[Path, dict[str, str]], tmp_path: Path, ref: str
) -> None:
    source = Source(name="tool", git=f"file://{repository[0]}", ref=ref, build="make")
    with pytest.raises(InputError, match=f"has no '{ref}'"):
        _find_commit(source, make_site(tmp_path), Runner())


def test_a_mirror_of_git_is_asked(repository: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    work, commits = repository
    site = make_site(
        tmp_path, build={"git": {"mirrors": {"https://git.example.org/": f"file://{work.parent}/"}}}
    )
    source = Source(name="tool", git="https://git.example.org/tool", ref="v2", build="make")
    assert _find_commit(source, site, Runner()) == commits["v2"]


def test_what_another_architecture_has_resolved_is_kept(tmp_path: Path) -> None:
    import platform as machine

    here = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}[machine.machine()]
    other = ({"linux/amd64", "linux/arm64"} - {here}).pop()
    (tmp_path / "demo-1.yaml").write_text(
        'apiVersion: hpcstack/v1\nname: demo\nversion: "1"\nsummary: s\npackages: {pip: [a]}\n'
        f'base: {{image: "x.y/z:1", platforms: [{other}]}}\n'
    )
    stack = Catalog([tmp_path]).find("demo-1").stack
    fresh = base_lock(stack)
    pip = (LockedPip(name="a", version="1", hashes=("sha256:00",), file="a-1-py3-none-any.whl"),)
    platforms = {other: fresh.platform(other).model_copy(update={"pip": pip})}
    before = fresh.model_copy(
        update={"base": fresh.base.model_copy(update={"platforms": platforms})}
    )

    def again(old: Lock | None) -> Lock:
        site = make_site(tmp_path)
        return resolve_packages(
            stack, fresh, Workbench(site, Registry(site), Runner(), Progress()), old
        )

    assert again(before).platform(other).pip == pip
    assert again(before).unresolved == ()
    assert again(None).unresolved == (f"pip of {other}",)
    assert again(before.model_copy(update={"spec_sha256": "0"})).platform(other).pip is None
    moved = {other: platforms[other].model_copy(update={"digest": f"sha256:{'9' * 64}"})}
    elsewhere = before.model_copy(
        update={"base": before.base.model_copy(update={"platforms": moved})}
    )
    assert again(elsewhere).platform(other).pip is None
