"""Find out which rank of a hanging job is elsewhere than the others, by the ranks' stacks. Pure.

launchers/on-node/stacks.sh prints, on each node, the Python stack of every rank as py-spy sees it.
Where there is none, it prints what the kernel says of the rank's threads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcstack.core.errors import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

RANK = re.compile(
    r"hpcstack: rank (\d+) of (\d+) on (\S+) is process (\d+) of step (\S*), state (\S): (.*)"
)
# py-spy's dump, which stacks.sh indents
THREAD = re.compile(r"  Thread (\S+) ")
FRAME = re.compile(r"      (\S.*) \((.+):(\d+)\)")
# What stacks.sh reads from /proc where there is no stack: how many threads share a name, a state
# and a kernel function
THREADS = re.compile(r"  threads: (\d+) (.*)")
LABEL = re.compile(r" *(\d+): ?")  # of srun --label
LIBRARY = re.compile(r".*/(site|dist)-packages/|.*/lib/python3|<")
# Files whose functions are collective operations, and functions in them that only wrap others
COLLECTIVES = ("/torch/distributed/distributed_c10d.py", "/deepspeed/comm/", "/horovod/")
WRAPPERS = ("wrapper", "_exception_logger", "inner", "_wrapper")
STOPPED = ("T", "t")  # states in /proc: by SIGSTOP or SIGTSTP, or by a debugger


@dataclass(frozen=True)
class Frame:
    """A call on a Python stack."""

    function: str
    file: str
    line: int

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def is_a_librarys(self) -> bool:
        return LIBRARY.match(self.file) is not None

    @property
    def is_a_collective(self) -> bool:
        is_of_one = any(name in self.file for name in COLLECTIVES)
        return is_of_one and not any(word in self.function for word in WRAPPERS)

    def __str__(self) -> str:
        return f"{self.function} ({self.place})"


@dataclass(frozen=True)
class Whereabouts:
    """What a rank does. It is equal for ranks that do the same.

    `collective` is the operation that it is in, or empty; `place` is where its program is,
    FILE:LINE; `stopped` says whether a signal has stopped it. Without a Python stack, `threads` is
    what the kernel says of the first of its threads.
    """

    collective: str = ""
    place: str = ""
    stopped: bool = False
    threads: str = ""

    def __str__(self) -> str:
        """What stands behind `rank 3 is`."""
        if not self.place:
            return self.threads or "at an unknown place"
        where = f"at {self.place}"
        if self.collective:
            where = f"in {self.collective}, called at {self.place}"
        if self.stopped:
            where = f"stopped by a signal {where}"
        return where


@dataclass
class Rank:
    """One rank, as stacks.sh saw it.

    `stack` is that of its main thread, innermost call first. Where there is none, `threads` are
    pairs of (how many, what they do). `state` is a letter of /proc/PID/stat, `words` the command
    line.
    """

    number: int
    world: int
    host: str
    process: int
    step: str
    state: str
    words: str
    stack: list[Frame] = field(default_factory=list)
    threads: list[tuple[int, str]] = field(default_factory=list)

    @property
    def whereabouts(self) -> Whereabouts:
        """What it does: by its stack, else by the first of its threads, else unknown."""
        if self.stack:
            return Whereabouts(self._find_collective(), self._find_place(), self.state in STOPPED)
        if not self.threads:
            return Whereabouts()
        count, what = self.threads[0]
        return Whereabouts(threads=f"in {what}" if count == 1 else f"in {what} ({count} threads)")

    def _find_collective(self) -> str:
        """Return the outermost call of a collective operation; empty where the rank is in none."""
        names = [frame.function for frame in self.stack if frame.is_a_collective]
        return names[-1] if names else ""

    def _find_place(self) -> str:
        """Return the innermost place outside of libraries, else the innermost of all."""
        own = [frame for frame in self.stack if not frame.is_a_librarys]
        return (own or self.stack)[0].place


@dataclass(frozen=True)
class Standing:
    """What the ranks do, together.

    `groups` are pairs of (what, ranks that do it), the largest group first. `missing` are numbers
    of ranks that were not found. `odd` says in words who stands out and why, and `odd_hosts` has
    the nodes of those that were found.
    """

    groups: tuple[tuple[Whereabouts, tuple[Rank, ...]], ...]
    missing: tuple[int, ...]
    odd: tuple[str, ...]
    odd_hosts: tuple[str, ...] = ()


def parse_ranks(text: str) -> list[Rank]:
    """Return the ranks in TEXT, what stacks.sh printed on all nodes, by step and number.

    srun --label numbers the lines of each node. A rank that is named twice counts once.
    """
    streams: dict[str, list[str]] = {}
    for raw in text.splitlines():
        node = ""
        line = raw
        label = LABEL.match(raw)
        if label:
            node = label[1]
            line = raw[label.end() :]
        streams.setdefault(node, []).append(line)

    found: dict[tuple[str, int], Rank] = {}
    for lines in streams.values():
        for rank in _parse_node(lines):
            found.setdefault((rank.step, rank.number), rank)
    return [found[key] for key in sorted(found)]


def group_by_step(ranks: Sequence[Rank]) -> dict[str, list[Rank]]:
    """Return {a job's step: its ranks}. Each step is judged by itself."""
    out: dict[str, list[Rank]] = {}
    for rank in ranks:
        out.setdefault(rank.step, []).append(rank)
    return out


def _parse_node(lines: Sequence[str]) -> list[Rank]:
    """Return the ranks in the LINES of one node."""
    out: list[Rank] = []
    rank: Rank | None = None
    in_main_thread = False
    for line in lines:
        if begins := RANK.fullmatch(line):
            rank = Rank(
                int(begins[1]),
                int(begins[2]),
                begins[3],
                int(begins[4]),
                begins[5],
                begins[6],
                begins[7],
            )
            out.append(rank)
            in_main_thread = False
        elif line.strip() and not line.startswith("  "):  # what follows is no longer the rank's
            rank = None
        elif rank is None:
            continue
        elif threads := THREADS.fullmatch(line):
            rank.threads.append((int(threads[1]), threads[2]))
        elif thread := THREAD.match(line):
            # By its name where py-spy has one, else by its number, which is that of the process.
            in_main_thread = line.endswith('"MainThread"') or thread[1] == str(rank.process)
        elif in_main_thread and (frame := FRAME.fullmatch(line)):
            rank.stack.append(Frame(frame[1], frame[2], int(frame[3])))
    return out


def judge_ranks(ranks: Sequence[Rank]) -> Standing:
    """Group RANKS by what they do, and find those that stand out or are missing.

    The largest group is the usual one. A group that waits in a collective as well is odd only where
    it is half as large or less: the stages of a pipeline wait in as many places. Any other group
    is odd. How many ranks there should be is what the ranks themselves say.
    """
    groups: dict[Whereabouts, list[Rank]] = {}
    for rank in ranks:
        groups.setdefault(rank.whereabouts, []).append(rank)
    # Of groups of equal size, the one that waits in a collective is the usual one.
    ordered = sorted(
        groups.items(), key=lambda item: (-len(item[1]), not item[0].collective, item[1][0].number)
    )

    known = {rank.number for rank in ranks}
    world = max((rank.world for rank in ranks), default=0)
    missing = tuple(number for number in range(world) if number not in known)

    odd = []
    odd_hosts: set[str] = set()
    if missing:
        odd.append(f"{_name_ranks(missing)} {_is_or_are(missing)} not there")
    if ordered:
        usual, most = ordered[0]
        others = f"{format_count(len(most), 'rank')} {_is_or_are(most)} {usual}"
        for what, members in ordered[1:]:
            if _waits_as_a_part(what, members, usual, most):
                continue
            hosts = {one.host for one in members}
            odd_hosts |= hosts
            where = ", ".join(sorted(hosts))
            who = _name_ranks([one.number for one in members])
            odd.append(f"{who} on {where} {_is_or_are(members)} {what}, while {others}")
    found = tuple((what, tuple(members)) for what, members in ordered)
    return Standing(found, missing, tuple(odd), tuple(sorted(odd_hosts)))


def _waits_as_a_part(
    what: Whereabouts, members: Sequence[Rank], usual: Whereabouts, most: Sequence[Rank]
) -> bool:
    """Return whether MEMBERS, who do WHAT, wait as a part of the program of its own may.

    MOST, who do what is USUAL, are the largest group. What waits for what is wait_graph.py's.
    """
    both_wait = bool(what.collective and usual.collective)
    return both_wait and not what.stopped and len(members) * 2 > len(most)


def _is_or_are(several: Sequence[object]) -> str:
    return "is" if len(several) == 1 else "are"


def _name_ranks(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {format_ranges(numbers)}"


def format_ranges(numbers: Sequence[int]) -> str:
    """Return `0-2,5` for 0, 1, 2 and 5."""
    pairs: list[list[int]] = []
    for number in sorted(numbers):
        if pairs and pairs[-1][1] == number - 1:
            pairs[-1][1] = number
        else:
            pairs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in pairs)


def describe_ranks(ranks: Sequence[Rank]) -> tuple[list[str], bool]:
    """Return (lines for people about all RANKS, step by step; whether all is well).

    It is well where every rank was found and none stands out.
    """
    verdicts = {step: judge_ranks(own) for step, own in group_by_step(ranks).items()}
    if not verdicts:
        verdicts[""] = judge_ranks([])
    lines: list[str] = []
    for step, verdict in verdicts.items():
        if lines:
            lines.append("")
        if len(verdicts) > 1:
            lines.append(f"step {step}:")
        lines += describe_standing(verdict)
    return lines, all(verdict.groups and not verdict.odd for verdict in verdicts.values())


def describe_standing(verdict: Standing) -> list[str]:
    """Return VERDICT in lines for people: each group, then who stands out."""
    if not verdict.groups:
        return ["no rank was found: the job runs none, or its nodes do not answer"]

    lines = []
    for what, members in verdict.groups:
        numbers = format_ranges([one.number for one in members])
        who = f"rank {numbers}"
        if len(members) > 1:
            who = f"{len(members)} ranks ({numbers})"
        lines.append(f"{who}: {what}")

    lines.append("")
    if verdict.odd:
        lines += [f"ODD: {one}" for one in verdict.odd]
    elif len(verdict.groups) == 1 and verdict.groups[0][0].collective:
        lines.append(
            "all ranks are in the same collective: look at the network and at NCCL_DEBUG=INFO"
        )
    elif all(what.collective for what, _ in verdict.groups):
        lines.append(
            "all ranks wait, in several places: torch's flight recorder tells who waits for whom"
        )
    else:
        lines.append("no rank stands out")
    return lines
