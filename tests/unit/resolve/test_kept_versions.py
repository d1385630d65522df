"""A lock that is made anew for some packages alone: what stays, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from hpcstack.core.errors import InputError
from hpcstack.lock.model import Lock, LockedApt, LockedConda, LockedPip
from hpcstack.recipe.model import Stack
from hpcstack.resolve.kept_versions import (
    KeptVersions,
    keep_all_but,
    keep_entries,
    list_added,
    refuse_gone,
    refuse_other_commit,
)
from support.locks import base_lock

PLATFORM = "linux/amd64"
HASH = (f"sha256:{'0' * 64}",)
APT = (LockedApt(name="libfoo1", version="1.2-3"), LockedApt(name="foo-tools", version="2:4"))
PIP = (
    LockedPip(name="urllib3", version="2.6.0", hashes=HASH, file="urllib3.whl"),
    LockedPip(name="Six_Pack", version="1.0", hashes=HASH, file="six_pack.tar.gz"),
)
CONDA = (
    LockedConda(
        name="xz", version="5.8.1", build="h1_0", subdir="linux-64",
        url="https://conda.anaconda.org/conda-forge/linux-64/xz.conda", sha256="00",
    ),
)  # fmt: skip


def make_stack(**packages: Any) -> Stack:
    return Stack.model_validate({
        "apiVersion": "hpcstack/v1", "name": "demo", "version": "1", "summary": "S",
        "base": {"image": "nvcr.io/nvidia/pytorch:24.11-py3"}, "packages": packages,
    })  # fmt: skip


def make_lock(stack: Stack, **entries: Any) -> Lock:
    lock = base_lock(stack)
    found = {"apt": APT, "pip": PIP, "conda": CONDA, **entries}
    platform = lock.platform(PLATFORM).model_copy(update=found)
    base = lock.base.model_copy(update={"platforms": {PLATFORM: platform}})
    return lock.model_copy(update={"base": base, "sources": {"nccl-tests": "a" * 40}})


def test_all_but_what_is_named_stays() -> None:
    stack = make_stack(pip=["urllib3", "six-pack"])
    kept = keep_all_but(stack, make_lock(stack), ["URLLIB3"])
    assert kept.pip(PLATFORM) == ("Six_Pack==1.0",)
    assert kept.conda(PLATFORM) == ("xz=5.8.1=h1_0",)
    assert kept.apt_preferences(PLATFORM) == (
        "Package: libfoo1\nPin: version 1.2-3\nPin-Priority: 1001\n\n"
        "Package: foo-tools\nPin: version 2:4\nPin-Priority: 1001\n"
    )
    assert kept.moves("urllib3")
    assert not kept.moves("nccl-tests")

    kept = keep_all_but(stack, make_lock(stack), ["libfoo1", "six.pack", "nccl-tests"])
    assert kept.pip(PLATFORM) == ("urllib3==2.6.0",)
    assert "libfoo1" not in kept.apt_preferences(PLATFORM)
    assert kept.moves("nccl-tests")


@pytest.mark.parametrize("name", ["deepspeed", "curl", "hdf5", "mine"])
def test_what_the_recipe_asks_for_anew_may_be_named(name: str) -> None:
    source = {"name": "mine", "git": "https://example.org/m.git", "ref": "v1", "build": "make"}
    stack = make_stack(
        pip=["deepspeed>=0.1; python_version>'3'"], apt=["curl"], source=[source],
        conda={"packages": ["hdf5>=1.14"]},
    )  # fmt: skip
    assert keep_all_but(stack, make_lock(stack), [name]).moves(name)


def test_what_the_stack_does_not_add_is_refused() -> None:
    stack = make_stack()
    with pytest.raises(InputError, match="demo-1 adds no torch to its base"):
        keep_all_but(stack, make_lock(stack), ["torch"])
    assert list_added(make_lock(stack)) == {
        "urllib3", "six-pack", "libfoo1", "foo-tools", "xz", "nccl-tests",
    }  # fmt: skip


def test_another_base_is_refused() -> None:
    lock = make_lock(make_stack())
    moved = make_stack().model_copy(
        update={"base": make_stack().base.model_copy(update={"image": "nvcr.io/nvidia/pytorch:25.10-py3"})}
    )  # fmt: skip
    more = make_stack().model_copy(
        update={"base": make_stack().base.model_copy(update={"platforms": (PLATFORM, "linux/arm64")})}
    )  # fmt: skip
    for stack in (moved, more):
        with pytest.raises(InputError, match="is of another base"):
            keep_all_but(stack, lock, ["urllib3"])


def test_a_version_that_the_recipe_no_longer_takes_must_be_named() -> None:
    stack = make_stack(pip=["urllib3>=2.8", "six-pack"])
    with pytest.raises(InputError, match=r"asks for urllib3>=2\.8, and 2\.6\.0 is locked") as error:
        keep_all_but(stack, make_lock(stack), ["six-pack"])
    assert "--only urllib3" in error.value.hint
    keep_all_but(stack, make_lock(stack), ["urllib3"])


def test_what_apt_no_longer_has_is_told() -> None:
    """apt ignores a pin of a version that the archive has dropped."""
    stack = make_stack(apt=["foo-tools"])
    lock = make_lock(stack)
    kept = KeptVersions(lock, frozenset({"foo-tools"}))
    now = lock.platform(PLATFORM).model_copy(
        update={"apt": (LockedApt(name="libfoo1", version="1.2-4"), LockedApt(name="foo-tools", version="5"))}
    )  # fmt: skip
    with pytest.raises(InputError, match=r"libfoo1 1\.2-3 is not in the archive") as error:
        refuse_gone(kept, PLATFORM, now)
    assert "--only libfoo1" in error.value.hint
    refuse_gone(KeptVersions(lock, frozenset({"foo-tools", "libfoo1"})), PLATFORM, now)


def test_what_builds_a_source_distribution_stays_with_it() -> None:
    lock = make_lock(make_stack(), pip_build=PIP[:1])
    kept = KeptVersions(lock, frozenset({"urllib3"}))
    now = lock.platform(PLATFORM).model_copy(update={"pip_build": PIP})
    assert keep_entries(kept, PLATFORM, now).pip_build == PIP[:1]

    newer = PIP[1].model_copy(update={"version": "2.0"})
    moved = now.model_copy(update={"pip": (PIP[0], newer)})
    assert keep_entries(kept, PLATFORM, moved).pip_build == PIP


def test_what_stays_keeps_its_hashes() -> None:
    """An index that serves another file under a locked version must not move the lock unseen."""
    lock = make_lock(make_stack())
    kept = KeptVersions(lock, frozenset({"urllib3"}))
    other = (f"sha256:{'1' * 64}",)
    swapped = tuple(one.model_copy(update={"hashes": other}) for one in PIP)
    now = lock.platform(PLATFORM).model_copy(update={"pip": swapped})
    found = keep_entries(kept, PLATFORM, now).pip or ()
    assert {one.name: one.hashes for one in found} == {"urllib3": other, "Six_Pack": HASH}


def test_a_source_whose_ref_names_another_commit_is_told() -> None:
    kept = KeptVersions(make_lock(make_stack()), frozenset({"urllib3"}))
    refuse_other_commit(kept, "nccl-tests", "v1", "a" * 40)
    refuse_other_commit(kept, "new", "v1", "b" * 40)
    with pytest.raises(InputError, match="is locked to aaaaaaaaaaaa, and v2 is bbbbbbbbbbbb now"):
        refuse_other_commit(kept, "nccl-tests", "v2", "b" * 40)


@pytest.mark.parametrize("text", ["curl", "curl=8.5.0-2ubuntu10", "curl/jammy"])
def test_an_apt_package_is_known_by_its_name(text: str) -> None:
    stack = make_stack(apt=[text]) if "/" not in text else make_stack(apt=["curl"])
    assert keep_all_but(stack, make_lock(stack), ["curl"]).moves("curl")


def test_a_digest_that_the_recipe_names_is_the_locks() -> None:
    stack = make_stack()
    digest = f"sha256:{'9' * 64}"
    image = f"nvcr.io/nvidia/pytorch:24.11-py3@{digest}"
    pinned = stack.model_copy(update={"base": stack.base.model_copy(update={"image": image})})
    with pytest.raises(InputError, match="is of another base"):
        keep_all_but(pinned, make_lock(stack), ["urllib3"])
