"""Names of hosts, folded as Slurm does."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from hpcstack.core.hosts import fold_hosts, shorten_hosts


def unfold(folded: str) -> list[str]:
    match = re.fullmatch(r"(.*)\[([0-9,-]+)\]", folded, re.DOTALL)
    if not match:
        return [folded]
    out = []
    for part in match[2].split(","):
        first, _, last = part.partition("-")
        width = len(first)
        out += [
            f"{match[1]}{number:0{width}}" for number in range(int(first), int(last or first) + 1)
        ]
    return out


def test_ranges_and_padding() -> None:
    assert fold_hosts([f"node{n}" for n in (1, 10, 2, 3, 5)]) == ["node[1-3,5,10]"]
    assert fold_hosts(["gpu-001", "gpu-002", "gpu-010", "login", "a9"]) == [
        "login",
        "a9",
        "gpu-[001-002,010]",
    ]
    assert fold_hosts(["n9", "n10"]) == ["n[9-10]"]
    assert fold_hosts(["n09", "n10"]) == ["n10", "n09"]


def test_a_few_are_shown_one_by_one() -> None:
    assert shorten_hosts(["b2", "a1"]) == "b2, a1"
    assert shorten_hosts(f"n{k}" for k in range(64)) == "n[0-63]"


NAMES = st.lists(st.from_regex(r"[a-z-]{1,4}[0-9]{0,4}", fullmatch=True), max_size=30)


@given(NAMES)
def test_what_is_unfolded_is_what_was_folded(names: list[str]) -> None:
    assert sorted(name for one in fold_hosts(names) for name in unfold(one)) == sorted(set(names))
