"""diff and outdated: rows that say what changed, and which tags are newer."""

from __future__ import annotations

import re

import pytest

from hpcstack.core import data
from hpcstack.lock import diff
from hpcstack.lock.diff import Difference, find_newer_tags, format_changes
from hpcstack.lock.model import Lock, LockedPip
from hpcstack.recipe.catalog import Catalog
from support.locks import base_lock


def of(name: str) -> Lock:
    return base_lock(Catalog([data.find_data_folder("recipes")]).find(name).stack)


def with_pip(lock: Lock, **versions: str) -> Lock:
    pip = tuple(
        LockedPip(name=name, version=version, hashes=("sha256:0",))
        for name, version in versions.items()
    )
    platforms = {n: p.model_copy(update={"pip": pip}) for n, p in lock.base.platforms.items()}
    return lock.model_copy(update={"base": lock.base.model_copy(update={"platforms": platforms})})


def test_two_months() -> None:
    rows = {
        (c.section, c.name): (c.before, c.after)
        for c in diff.diff_locks(of("pytorch-25.10"), of("pytorch-26.08"))
    }
    assert rows["base", "image"] == (
        "nvcr.io/nvidia/pytorch:25.10-py3",
        "nvcr.io/nvidia/pytorch:26.08-py3",
    )
    assert rows["holds", "CUDA"] == ("13.0.2.006", "13.4.1.012")
    assert rows["holds", "NCCL"] == ("2.27.7", "2.30.7+cuda13.3")


def test_packages_that_came_went_and_changed() -> None:
    before, after = (
        with_pip(of("pytorch-25.10"), a="1", b="1"),
        with_pip(of("pytorch-25.10"), b="2", c="1"),
    )
    assert diff.diff_locks(before, after) == [
        Difference("pip", "a", "1", ""), Difference("pip", "b", "1", "2"), Difference("pip", "c", "", "1"),
    ]  # fmt: skip
    assert diff.diff_locks(before, before) == []


def test_markdown_is_a_table_that_no_text_breaks() -> None:
    text = format_changes([Difference("spec", "run", "a | b", "<x>\nline")], "old", "new")
    assert text.splitlines()[2] == "| spec | `run` | `a \\| b` | `&lt;x>\\nline` |".replace(
        "\\n", " "
    )
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 5 for line in text.splitlines())


@pytest.mark.parametrize(
    ("tag", "tags", "expected"),
    [
        ("24.11-py3", ["24.01-py3", "24.11-py3", "25.10-py3", "25.02-py3", "25.10-py3-igpu", "latest"], ["25.02-py3", "25.10-py3"]),
        ("25.06-cuda12.9-devel-ubuntu24.04", ["26.08-cuda13.4-devel-ubuntu24.04", "26.08-cuda13.4-runtime-ubuntu24.04"],
         ["26.08-cuda13.4-devel-ubuntu24.04"]),
        ("25.9-devel-cuda_multi-ubuntu24.04", ["25.11-devel-cuda_multi-ubuntu24.04", "25.7-devel-cuda_multi-ubuntu24.04"],
         ["25.11-devel-cuda_multi-ubuntu24.04"]),  # months are numbers, not text
        ("1.2.1", ["1.3.0rc13", "1.2.1", "1.10.0"], ["1.10.0"]),
        ("dev", ["dev", "26.02"], []),
    ],
)  # fmt: skip
def test_newer_tags_of_the_same_shape(tag: str, tags: list[str], expected: list[str]) -> None:
    assert find_newer_tags(tag, tags) == expected
