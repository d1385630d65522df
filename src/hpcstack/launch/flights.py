"""Read torch's flight recorders: the last operations of each rank, and which were over.

When a collective takes too long, NCCL's watchdog has every rank write down its last operations
(TORCH_NCCL_DUMP_ON_TIMEOUT). Each writes to the file that TORCH_FR_DUMP_TEMP_FILE or
TORCH_NCCL_DEBUG_INFO_TEMP_FILE names, with the rank's number appended. The files are pickles of
plain dicts (version 2, torch/csrc/distributed/c10d/FlightRecorder.hpp); no class that they name is
ever loaded. What follows from them is said by wait_graph.py.
"""

from __future__ import annotations

import gc
import io
import json
import os
import pickle
import pickletools
import re
import resource
import stat
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NUMBER = re.compile(r"(\d+)$")  # of the rank, at the end of a file's name
# What a recorder calls a send and a receive: the numbers are those of the group's members
SEND, RECEIVE = re.compile(r"^send (\d+)->(\d+)$"), re.compile(r"^recv (\d+)<-(\d+)$")
MOST_BYTES = 64 << 20
# The newest operations of a rank that are looked at, and the files from which on processes share
# the work: each of some thousand files takes 5 to 50 ms
NEWEST, MANY_FILES = 256, 64
READER_S, READER_BYTES = 300, 8 << 30  # what one process may take to read its share of the files
# A pickle can name one list, or one text, any number of times: a few bytes each. What recorders
# write of all groups' members, in characters; of an operation's frames and its tensors' numbers.
MOST_MEMBERS, MOST_FRAMES, MOST_NUMBERS = 64 << 20, 1000, 100_000
PEEKED = 1 << 17  # bytes, as many as the unpickler asks for at once
# What a damaged file may raise while it is read
DAMAGE = (
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
)


# What tells a group from others
Key = tuple[str, "int | str"]


@dataclass(frozen=True)
class ProcessGroup:
    """A process group: its name, what it is for, and its members' ranks in their order.

    Gloo's recorder does not tell the members: then there are none here.
    """

    name: str
    purpose: str = ""
    members: tuple[int, ...] = ()

    @cached_property
    def key(self) -> Key:
        """What tells it from others: names can stand for several groups of one job.

        The members may be thousands, so they are hashed once.
        """
        return self.name, hash(self.members) if self.members else self.purpose

    def __str__(self) -> str:
        if self.purpose and self.purpose != "undefined":
            return f"group {self.name} ({self.purpose})"
        return f"group {self.name}"


@dataclass(frozen=True)
class Operation:
    """A collective of a rank, or a send or receive between it and its `peer` (a rank, or None).

    `number` counts the collectives of the group; of sends and receives it says nothing. `place` is
    where the program called it, FILE:LINE.
    """

    group: ProcessGroup
    number: int
    name: str
    sizes: str
    over: bool
    place: str = ""
    peer: int | None = None

    @property
    def is_between_two(self) -> bool:
        return self.name in ("send", "recv")

    def __str__(self) -> str:
        if self.is_between_two:
            preposition = "to" if self.name == "send" else "from"
            out = f"{self.name} {preposition} rank {'?' if self.peer is None else self.peer}"
        else:
            out = f"{self.name} {self.number} of {self.group}"
        if self.place:
            out += f", called at {self.place}"
        return out


@dataclass(frozen=True)
class Flight:
    """What the recorder of one rank holds: its groups, and its operations, the oldest first."""

    groups: tuple[ProcessGroup, ...]
    operations: tuple[Operation, ...]


class _PlainUnpickler(pickle.Unpickler):
    """Reads pickles of plain data. A pickle that names a class could run any code when loaded."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no recorder does")


# -- how large a pickle may make its memo

# The memo is a table in C, as long as twice the largest index that a file names: 7 bytes can ask for
# 64 GB. No recorder names an index that its own bytes could not have filled one by one.
SMALL_INDEX = rb"r[\s\S]{2}[\x00-\x0f]\x00"  # LONG_BINPUT of an index below 2^20: 16 MB at most
MEMO_PUTS = {"PUT", "LONG_BINPUT"}
OPCODES = {opcode.code.encode("latin-1"): opcode for opcode in pickletools.opcodes}


@cache
def _compile_fixed() -> re.Pattern[bytes]:
    """Match opcodes whose arguments have a fixed length, up to some thousand at once.

    Without the bound, a long file would take as much memory to match as a memo that is too large.
    """
    by_length: dict[int, list[bytes]] = {}
    for code, opcode in OPCODES.items():
        length = 0 if opcode.arg is None else opcode.arg.n
        if length >= 0 and opcode.name not in MEMO_PUTS:
            by_length.setdefault(length, []).append(re.escape(code))
    kinds = [b"[%s][\\s\\S]{%d}" % (b"".join(codes), length) for length, codes in by_length.items()]
    return re.compile(b"(?:%s){1,4096}" % b"|".join([*kinds, SMALL_INDEX]))


def _check_memo(content: bytes) -> None:
    """Raise ValueError where the pickle CONTENT names an index that its bytes cannot have filled."""
    fixed = _compile_fixed()
    place = 0
    while place < len(content):
        found = fixed.match(content, place)
        if found:
            place = found.end()
            continue

        opcode = OPCODES.get(content[place : place + 1])
        if opcode is None:
            return  # the unpickler says so, and gets no further either
        rest = io.BytesIO(content)
        rest.seek(place + 1)
        argument = opcode.arg.reader(rest) if opcode.arg else None
        is_far = isinstance(argument, int) and argument > place // 2
        if opcode.name in MEMO_PUTS and is_far:  # an item and its index: 3 bytes
            raise ValueError(f"it names item {argument} of a memo after {place} bytes")
        place = rest.tell()


def read_flights(
    folder: Path, prefix: str = "", since: float = 0, *, unread: list[str] | None = None
) -> dict[int, Flight]:
    """Return {rank: its flight} from the recorders' files in FOLDER.

    These are the files whose names begin with PREFIX and end with a number. Files of other users,
    and those last written before SINCE (seconds of the epoch), are left alone. What is no whole file
    of a recorder's, since its rank was killed as it wrote it, say, is put into UNREAD in words.
    Raise InputError for it without UNREAD, and where no file is left.
    """
    try:
        names = sorted(path.name for path in folder.iterdir() if path.name.startswith(prefix))
    except OSError as error:
        raise InputError(
            f"{folder}: {error.strerror}", "hpcstack hang --flights FOLDER", page="find-a-hang"
        ) from None

    files = {folder / name: int(found[1]) for name in names if (found := NUMBER.search(name))}
    out: dict[int, Flight] = {}
    wrong: list[str] = []
    for path, flight in _read_files(list(files), since):
        if isinstance(flight, str):
            wrong.append(f"{path} is not a file of torch's flight recorder: {flight}")
        elif flight is not None:
            out[files[path]] = flight
    if wrong and (unread is None or not out):
        raise InputError(wrong[0], f"look at what else is in {folder}", page="find-a-hang")
    if unread is not None:
        unread += wrong
    if not out:
        why = f"{folder} has no files of torch's flight recorder"
        raise InputError(why, "TORCH_FR_DUMP_TEMP_FILE says where they are", page="find-a-hang")
    return out


def _read_files(paths: list[Path], since: float) -> list[tuple[Path, Flight | str | None]]:
    """Return (path, what `_read_file` makes of it) of each of PATHS, in their order.

    Processes of their own read them, since nothing else ends the unpickler: keys of one dict can be
    chosen so that it takes hours. Raise InputError where the files take more than the limits.
    """
    workers = 1 if len(paths) < MANY_FILES else os.cpu_count()
    # Nothing of a file's content refers to itself, so that collecting garbage only costs time
    known: dict[ProcessGroup, ProcessGroup] = {}
    was_on = gc.isenabled()
    gc.disable()
    try:
        with ProcessPoolExecutor(workers, initializer=_limit_reader) as pool:
            found = pool.map(_read_file, paths, [since] * len(paths), chunksize=16)
            return [
                (path, _share_groups(one, known)) for path, one in zip(paths, found, strict=True)
            ]
    except BrokenExecutor:
        raise InputError(
            f"{paths[0].parent} has a file that takes more than {READER_S} s of processor time, or "
            "ends its reader: no recorder wrote it",
            f"look at the largest: ls -lS {paths[0].parent}",
            page="find-a-hang",
        ) from None
    finally:
        if was_on:
            gc.enable()


def _limit_reader() -> None:
    """Bound what this process, which reads files of others, may take."""
    gc.disable()
    for limit, most in ((resource.RLIMIT_CPU, READER_S), (resource.RLIMIT_AS, READER_BYTES)):
        hard = resource.getrlimit(limit)[1]
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (allowed, allowed))


def _share_groups(
    flight: Flight | str | None, known: dict[ProcessGroup, ProcessGroup]
) -> Flight | str | None:
    """Return FLIGHT with the groups of KNOWN that equal its own, which are added to KNOWN.

    Each of some thousand ranks names all members of the group of all: once is enough.
    """
    if not isinstance(flight, Flight):
        return flight
    groups = tuple(known.setdefault(group, group) for group in flight.groups)
    shared = {group.name: group for group in groups}
    operations = tuple(
        replace(one, group=shared[one.group.name]) if one.group.name in shared else one
        for one in flight.operations
    )
    return Flight(groups, operations)


def _read_file(path: Path, since: float) -> Flight | str | None:
    """Return the flight in PATH; None where it is to be left alone; a text where it is damaged."""
    content = _read_own_file(path, since)
    if content is None:
        return None
    try:
        return parse_flight(content)
    except ValueError as error:
        return str(error)


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
    """Return the flight in CONTENT, the file of one rank.

    Raise ValueError, which says why, where it is not a recorder's.
    """
    try:
        _check_memo(content)
        # A reader that can peek spares the unpickler a call for each item
        reader = io.BufferedReader(io.BytesIO(content), PEEKED)
        document = _PlainUnpickler(reader).load()
        groups = _parse_groups(document.get("pg_config") or {})
        rows = list(document["entries"])[-NEWEST:]
        operations = [_parse_operation(row, groups) for row in rows]
    except DAMAGE as error:  # whatever bytes that are no recorder's may lead to
        raise ValueError(" ".join(str(error).split())[:200] or type(error).__name__) from None
    # A batch of sends and receives is entered once more as a whole, which says nothing more
    kept = [one for one in operations if one.name != "coalesced"]
    return Flight(tuple(groups.values()), tuple(kept))


def _parse_groups(config: Mapping[str, Any]) -> dict[str, ProcessGroup]:
    """Return {name: the group} of CONFIG, a recorder's `pg_config`.

    `ranks` is a list in a text. Gloo's recorder leaves names and members out (torch 2.13).
    """
    out = {}
    left = MOST_MEMBERS
    for name, about in config.items():
        ranks = _read_text(about["ranks"])
        left -= len(ranks)
        if left < 0:
            raise ValueError("its groups have more members than any job")
        members = tuple(int(rank) for rank in json.loads(ranks))
        if name and members:
            out[_read_text(name)] = ProcessGroup(
                _read_text(name), _read_text(about["desc"]), members
            )
    return out


def _parse_operation(row: Mapping[str, Any], groups: Mapping[str, ProcessGroup]) -> Operation:
    """Return the operation of ROW, an entry of a recorder that knows GROUPS."""
    name, purpose = (_read_text(word) for word in row["process_group"])
    group = groups.get(name) or ProcessGroup(name, purpose)
    frames = list(row.get("frames") or ())[:MOST_FRAMES]
    own = [frame for frame in frames if not _is_library(_read_text(frame["filename"]))]
    place = ""
    if own:
        place = f"{own[0]['filename']}:{_read_text(own[0]['line'])}"

    called = _read_text(row["profiling_name"]).rpartition(":")[2]
    peer = None
    for kind in (SEND, RECEIVE):
        between = kind.match(called)
        if between:
            called = called.partition(" ")[0]
            peer = _find_member(group, int(between[2]))
    return Operation(
        group=group,
        number=int(row["collective_seq_id"]),
        name=called,
        sizes=_read_sizes(row.get("input_sizes")),
        over=bool(row.get("retired")) or row.get("state") == "completed",
        place=place,
        peer=peer,
    )


def _read_text(word: Any) -> str:
    """Return WORD, a text or a number of a recorder.

    Never a list: a list in a list, again and again the same one, is a few bytes and a text without
    end.
    """
    if isinstance(word, str | int):
        return str(word)
    raise ValueError(f"a text is a {type(word).__name__}")


def _read_sizes(tensors: Any) -> str:
    """Return the sizes of TENSORS, a list of numbers for each; None where a recorder has none."""
    if tensors is None:
        return "None"
    if sum(len(tensor) for tensor in tensors) > MOST_NUMBERS:
        raise ValueError("an operation has more tensors than any")
    sizes = [[int(length) for length in tensor] for tensor in tensors]
    return str(sizes)


def _find_member(group: ProcessGroup, number: int) -> int | None:
    """Return the rank of member NUMBER of GROUP; None where the members are not known."""
    if number < len(group.members):
        return group.members[number]
    is_whole = group.purpose == "default_pg"
    return number if is_whole and not group.members else None


@cache
def _is_library(name: str) -> bool:
    """Whether NAME, the file of a frame, is a library's; <string> and the like are Python's own."""
    if name.startswith("<"):
        return True
    return any(part in name for part in ("/site-packages/", "/dist-packages/", "/lib/python3"))
