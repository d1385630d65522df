"""The files of torch's flight recorder. tests/data/flights is of torch 2.13's own recorder, four
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
from hpcstack.launch.flights import MANY_FILES, NEWEST, parse_flight, read_flights

DATA = Path(__file__).parents[2] / "data/flights"


def test_operations_and_groups_of_a_recorder() -> None:
    """NCCL's recorder names the members of groups, and who sends to whom."""
    send = {"profiling_name": "nccl:send 0->1", "is_p2p": True, "process_group": ("7", "mesh_pp")}
    batch = {"profiling_name": "nccl:coalesced", "is_p2p": True}
    config = {"7": {"name": "7", "desc": "mesh_pp", "ranks": "[4, 12]"}}
    flight = parse_flight(_dump({}, send, batch, pg_config=config))
    whole, pipeline = flight.operations
    assert (str(whole), whole.over) == ("all_reduce 1 of group 0 (default_pg)", False)
    assert (pipeline.name, pipeline.peer, pipeline.group.members) == ("send", 12, (4, 12))
    assert [group.name for group in flight.groups] == ["7"]


def test_the_recorder_of_gloo_names_no_members() -> None:
    (flight,) = (flight for flight in read_flights(DATA, "sub-").values() if flight.operations[5:])
    assert flight.groups == ()
    assert flight.operations[-1].group.members == ()
    receive = {"profiling_name": "gloo:recv 1<-0", "process_group": ("0", "default_pg")}
    assert parse_flight(_dump(receive)).operations[0].peer == 0
    elsewhere = {**receive, "process_group": ("5", "undefined")}
    assert parse_flight(_dump(elsewhere)).operations[0].peer is None


def test_only_the_newest_are_looked_at() -> None:
    rows = [{"collective_seq_id": number} for number in range(2 * NEWEST)]
    numbers = [one.number for one in parse_flight(_dump(*rows)).operations]
    assert numbers == list(range(NEWEST, 2 * NEWEST))


def test_many_files_are_read_by_several_processes(tmp_path: Path) -> None:
    for rank in range(2 * MANY_FILES):
        (tmp_path / f"flight-{rank}").write_bytes(_dump({}))
    assert sorted(read_flights(tmp_path)) == list(range(2 * MANY_FILES))
    (tmp_path / "flight-3").write_bytes(b"nothing")
    with pytest.raises(InputError, match="flight-3 is not a file of torch's flight recorder"):
        read_flights(tmp_path)
    unread: list[str] = []
    assert len(read_flights(tmp_path, unread=unread)) == 2 * MANY_FILES - 1
    assert "flight-3" in unread[0]
    for path in tmp_path.glob("flight-*"):
        path.write_bytes(b"nothing")
    with pytest.raises(InputError):
        read_flights(tmp_path, unread=[])


def _dump(*rows: dict[str, Any], pg_config: dict[str, Any] | None = None) -> bytes:
    row = {"process_group": ("0", "default_pg"), "collective_seq_id": 1, "profiling_name": "nccl:all_reduce",
           "state": "started", "input_sizes": [[4]], "is_p2p": False, "retired": False}  # fmt: skip
    entries = [{**row, **more} for more in rows]
    document = {"version": "2.10", "entries": entries, "pg_config": pg_config or {}}
    return pickle.dumps(document, protocol=2)


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


@pytest.mark.parametrize(
    "bomb",
    [b"Nr\xff\xff\xff\x7fN.", b"\x80\x02Np268435456\nN.", b"(" * 600_000 + b"Nr\x00\x00\x00\x10."],
    ids=["long", "text", "after"],
)
def test_an_index_that_no_recorder_names_takes_no_memory(bomb: bytes) -> None:
    """Python's memo is a table as long as the largest index: 7 bytes took 64 GB."""
    with pytest.raises(ValueError, match=r"it names item \d+ of a memo after \d+ bytes"):
        parse_flight(bomb)


def test_a_long_file_names_many_items(tmp_path: Path) -> None:
    rows = [{"frames": [{"filename": f"/a/{number}", "line": number}]} for number in range(70_000)]
    newest = parse_flight(_dump(*rows)).operations[-1]
    assert newest.place == "/a/69999:69999"


def test_a_list_in_lists_is_no_text_without_end() -> None:
    laughs: list[Any] = [1]
    for _ in range(40):
        laughs = [laughs, laughs]
    for row in ({"input_sizes": laughs}, {"profiling_name": laughs}, {"process_group": (laughs, "")},
                {"frames": [{"filename": "/a", "line": laughs}]}):  # fmt: skip
        with pytest.raises(ValueError, match=r"."):
            parse_flight(_dump(row))


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
