"""Read torch's flight recorders: which rank is behind the others, or in another collective.

When a collective takes too long, NCCL's watchdog has every rank write down its last collectives
(TORCH_NCCL_DUMP_ON_TIMEOUT). Each writes to the file that TORCH_FR_DUMP_TEMP_FILE or
TORCH_NCCL_DEBUG_INFO_TEMP_FILE names, with the rank's number appended. The files are pickles of
plain dicts (version 2, torch/csrc/distributed/c10d/FlightRecorder.hpp); no class that they name is
ever loaded.
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

NUMBER = re.compile(r"(\d+)$")  # of the rank, at the end of a file's name
MOST_BYTES, MOST_LINES = 64 << 20, 12
# Operations whose sizes are the same on every rank; those of others may differ
SIZES_AGREE = ("all_reduce", "allreduce", "broadcast", "reduce")


@dataclass(frozen=True)
class Collective:
    """One collective of a rank: its `number` in its group, and whether it is over.

    `place` is where the program called it, FILE:LINE.
    """

    group: str
    number: int
    name: str
    sizes: str
    over: bool
    place: str = ""

    def __str__(self) -> str:
        out = f"{self.name} {self.number} of {self.group}"
        if self.place:
            out += f", called at {self.place}"
        return out


Flight = dict[tuple[str, int], Collective]  # the collectives of one rank, by group and number


class _PlainUnpickler(pickle.Unpickler):
    """Reads pickles of plain data. A pickle that names a class could run any code when loaded."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no recorder does")


def read_flights(folder: Path, prefix: str = "", since: float = 0) -> dict[int, Flight]:
    """Return {rank: its collectives} from the recorders' files in FOLDER.

    These are the files whose names begin with PREFIX and end with a number. Files of other users,
    and those last written before SINCE (seconds of the epoch), are left alone. Raise InputError
    where no file is left, or one is not a recorder's.
    """
    out: dict[int, Flight] = {}
    try:
        paths = sorted(path for path in folder.iterdir() if path.name.startswith(prefix))
    except OSError as error:
        raise InputError(
            f"{folder}: {error.strerror}", "hpcstack hang --flights FOLDER", page="find-a-hang"
        ) from None

    for path in paths:
        rank = NUMBER.search(path.name)
        if not rank:
            continue
        content = _read_own_file(path, since)
        if content is None:
            continue
        try:
            out[int(rank[1])] = parse_flight(content)
        except ValueError as error:
            raise InputError(
                f"{path} is not a file of torch's flight recorder: {error}",
                f"look at what else is in {folder}",
                page="find-a-hang",
            ) from None
    if not out:
        why = f"{folder} has no files of torch's flight recorder"
        raise InputError(why, "TORCH_FR_DUMP_TEMP_FILE says where they are", page="find-a-hang")
    return out


def _read_own_file(path: Path, since: float) -> bytes | None:
    """Return the content of PATH; None for what is not this user's file, written since SINCE.

    Neither links nor pipes are followed: the folder may be one that everybody can write to. An
    empty file and one above MOST_BYTES are left out, too.
    """
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
    """Return the collectives in CONTENT, the file of one rank, without sends and receives.

    Raise ValueError, which says why, where it is not a recorder's.
    """
    try:
        document = _PlainUnpickler(io.BytesIO(content)).load()
        rows = [_parse_collective(row) for row in document["entries"] if not row.get("is_p2p")]
    except (  # whatever bytes that are no recorder's may lead to
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


def _parse_collective(row: Mapping[str, Any]) -> Collective:
    """Return the collective of ROW, an entry of a recorder."""
    group, about = (str(word) for word in row["process_group"])
    shown_group = f"group {group}"
    if about and about != "undefined":
        shown_group += f" ({about})"
    own = [frame for frame in row.get("frames") or () if not _is_library(str(frame["filename"]))]
    place = ""
    if own:
        place = f"{own[0]['filename']}:{own[0]['line']}"
    return Collective(
        group=shown_group,
        number=int(row["collective_seq_id"]),
        name=str(row["profiling_name"]).rpartition(":")[2],
        sizes=str(row.get("input_sizes")),
        over=bool(row.get("retired")) or row.get("state") == "completed",
        place=place,
    )


def _is_library(name: str) -> bool:
    """Whether NAME, the file of a frame, is a library's; <string> and the like are Python's own."""
    if name.startswith("<"):
        return True
    return any(part in name for part in ("/site-packages/", "/dist-packages/", "/lib/python3"))


def judge_flights(flights: Mapping[int, Flight]) -> tuple[list[str], list[str]]:
    """Return (who is odd, what else there is to say) of the ranks' FLIGHTS.

    Odd is a rank that is behind the others of its group, or waits in another collective than they.
    Both lists end after MOST_LINES.
    """
    odd: list[str] = []
    notes: list[str] = []
    for group in sorted({key[0] for flight in flights.values() for key in flight}):
        last: dict[int, int] = {}  # the number of each rank's last collective in the group
        for rank, flight in flights.items():
            numbers = [number for name, number in flight if name == group]
            if numbers:
                last[rank] = max(numbers)
        newest = {rank: flights[rank][group, number] for rank, number in last.items()}
        waiting = {rank: one for rank, one in newest.items() if not one.over}
        if not waiting:
            continue

        odd += _find_behind(group, last, waiting, flights)
        odd += _find_elsewhere(waiting, flights)
        if len(last) == 1 and len(flights) > 1:
            rank, one = next(iter(waiting.items()))
            notes.append(
                f"rank {rank} waits alone in {one}: no other rank here has come to that group"
            )
        elif len(waiting) == len(last) and not odd:
            ranks = format_count(len(waiting), "rank")
            notes.append(f"{ranks} of {group} wait in the same collective: look at the network")
    return list(dict.fromkeys(odd))[:MOST_LINES], notes[:MOST_LINES]


def _find_behind(
    group: str,
    last: Mapping[int, int],
    waiting: Mapping[int, Collective],
    flights: Mapping[int, Flight],
) -> list[str]:
    """Return, in words, ranks that have not come to the collective that others of GROUP wait in.

    LAST is the number of each rank's last collective, WAITING those that are not over.
    """
    furthest = max(one.number for one in waiting.values())
    there = [rank for rank, one in waiting.items() if one.number == furthest]
    late: dict[int, list[int]] = {}
    for rank, number in last.items():
        if number < furthest:
            late.setdefault(number, []).append(rank)

    out = []
    goal = waiting[there[0]]
    for number, ranks in late.items():
        done = flights[ranks[0]][group, number]
        is_over = "is over" if done.over else "is not over"
        out.append(
            f"{_have(ranks)} not come to {goal}, where {_wait(there)}; "
            f"the last was {done.name} {number}, which {is_over}"
        )
    return out


def _find_elsewhere(waiting: Mapping[int, Collective], flights: Mapping[int, Flight]) -> list[str]:
    """Return, in words, ranks that wait in another collective than the others had.

    Collectives of the same number in a group are compared: a rank is elsewhere if more ranks had
    another operation, or several had the same one with other sizes.
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
            all_sizes = Counter(other.sizes for other in others if other.name == usual)
            sizes, agreed = all_sizes.most_common(1)[0]
            if one.sizes != sizes and agreed > 1:
                out.append(
                    f"rank {rank} is in {one}, with sizes {one.sizes}, "
                    f"{format_count(agreed, 'rank')} with {sizes}"
                )
    return out


def _have(ranks: Sequence[int]) -> str:
    """Return `rank 3 has` or `ranks 0-2 have`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} has"
    return f"ranks {format_ranges(ranks)} have"


def _wait(ranks: Sequence[int]) -> str:
    """Return `1 rank waits` or `3 ranks wait`."""
    if len(ranks) == 1:
        return "1 rank waits"
    return f"{len(ranks)} ranks wait"


def summarise_flights(flights: Mapping[int, Flight]) -> tuple[list[str], bool]:
    """Return (lines for people about FLIGHTS, whether nobody stands out)."""
    odd, notes = judge_flights(flights)
    ranks = format_count(len(flights), "rank")
    lines = [f"flight recorder: {ranks} ({format_ranges(list(flights))})"]
    lines += [f"ODD, by torch's flight recorder: {one}" for one in odd]
    lines += [f"flight recorder: {one}" for one in notes]
    if not odd and not notes:
        lines.append("flight recorder: no collective was waiting")
    return lines, not odd
