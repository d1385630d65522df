"""What torch's flight recorder has left of each rank: which of them is behind, or in another
collective. Pure to read.

NCCL's watchdog has every rank write its last collectives when one takes too long
(TORCH_NCCL_DUMP_ON_TIMEOUT), into TORCH_FR_DUMP_TEMP_FILE or TORCH_NCCL_DEBUG_INFO_TEMP_FILE with
the rank's number behind it. The files are pickles of plain dicts (version 2,
torch/csrc/distributed/c10d/FlightRecorder.hpp); no class in them is ever loaded.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import stat
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import InputError, format_count
from hpcstack.launch.hang import format_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

NUMBER = re.compile(r"(\d+)$")
MOST_BYTES, MOST_LINES = 64 << 20, 12
SIZES_AGREE = (
    "all_reduce",
    "allreduce",
    "broadcast",
    "reduce",
)  # others may differ from rank to rank


@dataclass(frozen=True)
class Collective:
    """One of a rank's collectives: the `number` in its group, whether it is over."""

    group: str
    number: int
    name: str
    sizes: str
    over: bool
    place: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.number} of {self.group}" + (
            f", called at {self.place}" if self.place else ""
        )


Flight = dict[tuple[str, int], Collective]  # of one rank, by group and number


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no recorder does")


def read_flights(folder: Path, prefix: str = "", since: float = 0) -> dict[int, Flight]:
    """{rank: its collectives} of the files in FOLDER whose names begin with PREFIX and end with a
    number.

    InputError where there is none, or one is no recorder's; files of other users, and those last
    written before SINCE (seconds of the epoch), are left alone.
    """
    out: dict[int, Flight] = {}
    try:
        paths = sorted(
            path
            for path in folder.iterdir()
            if path.name.startswith(prefix) and NUMBER.search(path.name)
        )
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}", "hpcstack hang --flights FOLDER") from None
    for path in paths:
        if (content := _own_content(path, since)) is not None:
            match = NUMBER.search(path.name)
            assert match
            try:
                out[int(match[1])] = parse_flight(content)
            except ValueError as error:
                raise InputError(
                    f"{path} is not torch's flight recorder's: {error}", "look at its folder"
                ) from None
    if not out:
        why = f"{folder} has no files of torch's flight recorder"
        raise InputError(why, "TORCH_FR_DUMP_TEMP_FILE says where they are")
    return out


def _own_content(path: Path, since: float) -> bytes | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(file.fileno())
        own = (
            stat.S_ISREG(about.st_mode) and about.st_uid == os.getuid() and about.st_mtime >= since
        )
        if not own or not 0 < about.st_size <= MOST_BYTES:
            return None
        return file.read(MOST_BYTES)


def parse_flight(content: bytes) -> Flight:
    """One rank's file. ValueError says why it is none."""
    try:
        document = _PlainUnpickler(io.BytesIO(content)).load()
        rows = [_collective(row) for row in document["entries"] if not row.get("is_p2p")]
    except (
        pickle.UnpicklingError,
        EOFError,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        MemoryError,
        RecursionError,
        OverflowError,
        UnicodeDecodeError,
    ) as error:
        raise ValueError(" ".join(str(error).split())[:200] or type(error).__name__) from None
    return {(row.group, row.number): row for row in rows}


def _collective(row: Mapping[str, Any]) -> Collective:
    group, about = (str(word) for word in row["process_group"])
    own = [frame for frame in row.get("frames") or () if not _library(str(frame["filename"]))]
    place = f"{own[0]['filename']}:{own[0]['line']}" if own else ""
    over = bool(row.get("retired")) or row.get("state") == "completed"
    name = str(row["profiling_name"]).rpartition(":")[2]
    shown = f"group {group}" + (f" ({about})" if about and about != "undefined" else "")
    return Collective(
        shown, int(row["collective_seq_id"]), name, str(row.get("input_sizes")), over, place
    )


def _library(name: str) -> bool:
    return any(
        part in name for part in ("/site-packages/", "/dist-packages/", "/lib/python3")
    ) or name.startswith("<")


def judge_flights(flights: Mapping[int, Flight]) -> tuple[list[str], list[str]]:
    """(who is odd, what else there is to say) of the ranks' flights: who is behind in a group, or
    not where it is.
    """
    odd: list[str] = []
    notes: list[str] = []
    for group in sorted({key[0] for flight in flights.values() for key in flight}):
        last = {
            rank: max(number for name, number in flight if name == group)
            for rank, flight in flights.items()
            if any(name == group for name, _ in flight)
        }
        waiting = {
            rank: flights[rank][group, last[rank]]
            for rank in last
            if not flights[rank][group, last[rank]].over
        }
        if not waiting:
            continue
        odd += _behind(group, last, waiting, flights)
        odd += _elsewhere(waiting, flights)
        if len(last) == 1 and len(flights) > 1:
            rank, one = next(iter(waiting.items()))
            notes.append(
                f"rank {rank} waits alone in {one}: no other rank here has come to that group"
            )
        elif len(waiting) == len(last) and not odd:
            notes.append(
                f"{format_count(len(waiting), 'rank')} of {group} wait in the same collective: "
                f"look at the network"
            )
    return list(dict.fromkeys(odd))[:MOST_LINES], notes[:MOST_LINES]


def _behind(
    group: str,
    last: Mapping[int, int],
    waiting: Mapping[int, Collective],
    flights: Mapping[int, Flight],
) -> list[str]:
    """Ranks that have not come to the collective that others of their group wait in."""
    furthest = max(one.number for one in waiting.values())
    there = [rank for rank, one in waiting.items() if one.number == furthest]
    late: dict[int, list[int]] = {}
    for rank, number in last.items():
        if number < furthest:
            late.setdefault(number, []).append(rank)
    out = []
    for number, ranks in late.items():
        done = flights[ranks[0]][group, number]
        last_one = f"the last was {done.name} {number}, " + (
            "which is over" if done.over else "which is not over"
        )
        out.append(
            f"{_who(ranks)} not come to {waiting[there[0]]}, where {_count(there)}; {last_one}"
        )
    return out


def _elsewhere(waiting: Mapping[int, Collective], flights: Mapping[int, Flight]) -> list[str]:
    """Ranks that wait in another operation, or with other sizes, than the others had at the same
    number.
    """
    out = []
    for rank, one in waiting.items():
        others = [
            flight[one.group, one.number]
            for number, flight in flights.items()
            if number != rank and (one.group, one.number) in flight
        ]
        names = Counter(other.name for other in others)
        if not names:
            continue
        usual, many = names.most_common(1)[0]
        if one.name != usual and many > names[one.name]:
            out.append(f"rank {rank} is in {one}, where {format_count(many, 'rank')} had {usual}")
        elif one.name == usual and usual.removeprefix("_") in SIZES_AGREE:
            sizes, agreed = Counter(
                other.sizes for other in others if other.name == usual
            ).most_common(1)[0]
            if one.sizes != sizes and agreed > 1:
                out.append(
                    f"rank {rank} is in {one}, with sizes {one.sizes}, "
                    f"{format_count(agreed, 'rank')} with {sizes}"
                )
    return out


def _who(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {format_ranges(ranks)} have"


def _count(ranks: Sequence[int]) -> str:
    return f"{format_count(len(ranks), 'rank')} {'waits' if len(ranks) == 1 else 'wait'}"


def summarise_flights(flights: Mapping[int, Flight]) -> tuple[list[str], bool]:
    """(lines for people, whether nobody stands out)."""
    odd, notes = judge_flights(flights)
    lines = [
        f"flight recorder: {format_count(len(flights), 'rank')} ({format_ranges(list(flights))})"
    ]
    lines += [f"ODD, by torch's flight recorder: {one}" for one in odd]
    lines += [f"flight recorder: {one}" for one in notes]
    if not odd and not notes:
        lines.append("flight recorder: no collective was waiting")
    return lines, not odd
