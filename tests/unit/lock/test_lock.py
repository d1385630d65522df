"""Locks: made from what a registry says, canonical, and stale when the recipe changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcstack.core.errors import InputError
from hpcstack.lock.check import Staleness, find_drift, find_open_items, find_staleness
from hpcstack.lock.model import TEMPLATE_VERSION, Lock, read_lock
from hpcstack.oci.client import Answer
from hpcstack.recipe.model import Base, Stack
from hpcstack.resolve.base import resolve_base

CONFIG: dict[str, Any] = {
    "config": {
        "Env": ["CUDA_VERSION=12.6.3.001", "EMPTY=", "EQUALS=a=b"],
        "Labels": {"org.hpcstack.stand-in": "Debian"},
        "Entrypoint": ["/entry.sh"],
        "WorkingDir": "/workspace",
    }
}


class Fixed:
    """A registry that always says the same."""

    def look_up(self, base: Base) -> Answer:
        names = base.platforms
        return Answer(
            "mirror:5000",
            f"sha256:{'1' * 64}",
            dict.fromkeys(names, f"sha256:{'2' * 64}"),
            dict.fromkeys(names, CONFIG),
            dict.fromkeys(names, 7),
        )


def test_a_lock_holds_what_the_registry_said(stack: Stack) -> None:
    lock = resolve_base(stack, Fixed())
    platform = lock.platform("linux/amd64")
    assert platform.environment == {"CUDA_VERSION": "12.6.3.001", "EMPTY": "", "EQUALS": "a=b"}
    assert (platform.entrypoint, platform.workdir) == (("/entry.sh",), "/workspace")
    assert (lock.base.answered_by, lock.stand_in()) == ("mirror:5000", "Debian")
    assert lock.facts("linux/amd64") == {"CUDA": "12.6.3.001"}
    assert lock.unresolved  # what is only settled in the build is said


def test_same_lock_same_bytes(stack: Stack, tmp_path: Path) -> None:
    lock = resolve_base(stack, Fixed())
    path = tmp_path / "x.lock.json"
    path.write_text(lock.text())
    assert read_lock(path).text() == lock.text() == resolve_base(stack, Fixed()).text()


def test_a_changed_recipe_makes_it_stale(stack: Stack) -> None:
    lock = resolve_base(stack, Fixed())
    assert find_staleness(stack, lock) == []
    changed = stack.model_copy(update={"summary": "other"})
    assert find_staleness(changed, lock) == ["the recipe has changed since it was locked"]
    moved = stack.model_copy(
        update={"base": Base(image="nvcr.io/nvidia/pytorch:26.01-py3", platforms=("linux/arm64",))}
    )
    assert len(find_staleness(moved, lock)) == 3


def test_a_platform_that_is_not_locked(lock: Lock) -> None:
    with pytest.raises(InputError, match="not for linux/arm64"):
        lock.platform("linux/arm64")


def test_a_file_that_is_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "x.lock.json"
    path.write_text('{"format": "hpcstack/lock/v1"}')
    with pytest.raises(InputError, match="not a lock"):
        read_lock(path)


def test_a_lock_of_other_templates_has_drifted(stack: Stack) -> None:
    lock = resolve_base(stack, Fixed())
    assert find_drift(lock) == []
    older = Lock.model_validate(
        {k: v for k, v in lock.model_dump().items() if k != "template_version"}
    )
    assert find_drift(older) == [f"hpcstack's templates were version 1 and are {TEMPLATE_VERSION}"]


def test_what_a_lock_leaves_open_by_platform(stack: Stack) -> None:
    lock = resolve_base(stack, Fixed())
    found = find_open_items(stack, lock)
    assert lock.unresolved == tuple(map(str, found)) == ("apt of linux/amd64", "pip of linux/amd64")
    verdict = Staleness((), found)
    assert verdict.refused("linux/arm64") == []
    assert verdict.refused("linux/amd64") == [
        "it leaves open: apt of linux/amd64, pip of linux/amd64"
    ]
