"""Who is odd by torch's flight recorder. tests/data/flights is of torch 2.13's own recorder, four
ranks over gloo, with neutral paths; NCCL's was not to be had here.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.core.errors import InputError
from hpcstack.launch.flights import judge_flights, parse_flight, read_flights, summarise_flights

DATA = Path(__file__).parents[2] / "data/flights"
PLACE = "of group 0 (default_pg), called at /home/user/fr2.py"


@pytest.mark.parametrize(
    ("fault", "odd"),
    [
        ("sleeps", [(f"rank 3 has not come to all_reduce 4 {PLACE}:17, where 3 ranks wait; the last was " f"all_reduce 3, which is over")]),
        ("other", [f"rank 3 is in broadcast 4 {PLACE}:14, where 3 ranks had all_reduce"]),
        ("skips", [f"rank 3 is in barrier 5 {PLACE}:20, where 3 ranks had all_reduce"]),
        ("size", [
            (f"rank 3 has not come to all_reduce 5 {PLACE}:17, where 3 ranks wait; the last was " f"all_reduce 4, which is not over"),
            f"rank 3 is in all_reduce 4 {PLACE}:15, with sizes [[7]], 3 ranks with [[4]]",
        ]),
        ("sub", []),
    ],
)  # fmt: skip
def test_the_odd_rank(fault: str, odd: list[str]) -> None:
    flights = read_flights(DATA, f"{fault}-")
    assert sorted(flights) == [0, 1, 2, 3]
    assert judge_flights(flights)[0] == odd
    assert summarise_flights(flights)[1] == (not odd)


def test_a_rank_alone_in_a_group_is_a_note() -> None:
    (note,) = judge_flights(read_flights(DATA, "sub-"))[1]
    assert note.startswith("rank 0 waits alone in all_reduce 1 of group 1, called at")


def test_all_in_one_collective_points_to_the_network() -> None:
    rows = {rank: parse_flight(_dump({"retired": False})) for rank in range(4)}
    assert judge_flights(rows) == (
        [],
        ["4 ranks of group 0 (default_pg) wait in the same collective: look at the network"],
    )
    over = {rank: parse_flight(_dump({"retired": True})) for rank in range(4)}
    assert summarise_flights(over) == (
        ["flight recorder: 4 ranks (0-3)", "flight recorder: no collective was waiting"],
        True,
    )


def _dump(more: dict[str, Any]) -> bytes:
    row = {"process_group": ("0", "default_pg"), "collective_seq_id": 1, "profiling_name": "nccl:all_reduce",
           "state": "started", "input_sizes": [[4]], "is_p2p": False, **more}  # fmt: skip
    return pickle.dumps({"version": "2.10", "entries": [row]}, protocol=2)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/hpcstack-was-here",)


def test_no_code_in_a_file_is_run(tmp_path: Path) -> None:
    (tmp_path / "trace_0").write_bytes(pickle.dumps({"entries": [Evil()]}))
    with pytest.raises(InputError, match=r"it names (posix|nt)\.system"):
        read_flights(tmp_path)
    assert not Path("/tmp/hpcstack-was-here").exists()


def test_links_pipes_and_empty_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a_0").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "a_1")
    (tmp_path / "a_2").touch()
    with pytest.raises(InputError, match="has no files of torch's flight recorder"):
        read_flights(tmp_path)
    with pytest.raises(InputError):
        read_flights(tmp_path / "nowhere")


@given(st.binary(max_size=300))
def test_any_bytes_are_no_more_than_a_refusal(content: bytes) -> None:
    with contextlib.suppress(ValueError):
        parse_flight(content)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda one: (
            st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=12), one, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_any_document_is_no_more_than_a_refusal(document: Any) -> None:
    with contextlib.suppress(ValueError):
        parse_flight(pickle.dumps({"entries": document}))
