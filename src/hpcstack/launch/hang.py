"""What the ranks of a job that hangs are doing, and which of them is elsewhere than the others. Pure but for `look`.

launchers/on-node/stacks.sh asks each node, by an overlapping step: every rank's Python stack, by py-spy, else its
threads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcstack.core.errors import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

RANK = re.compile(r"hpcstack: rank (\d+) of (\d+) on (\S+) is process (\d+) of step (\S*), state (\S): (.*)")
THREAD = re.compile(r"  Thread (\S+) ")
FRAME = re.compile(r"      (\S.*) \((.+:\d+)\)")
LABEL = re.compile(r" *(\d+): ?")
LIBRARY = re.compile(r" \((.*/(site|dist)-packages/|.*/lib/python3|<)")
COLLECTIVES = ("/torch/distributed/distributed_c10d.py", "/deepspeed/comm/", "/horovod/")
STOPPED = ("T", "t")  # by SIGSTOP, SIGTSTP or a debugger
WRAPPERS = ("wrapper", "_exception_logger", "inner", "_wrapper")


@dataclass
class Rank:
    """One rank: its stack is the main thread's, innermost first; what else was said of it are `lines`."""

    number: int
    world: int
    host: str
    process: int
    step: str
    state: str
    words: str
    stack: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def collective(self) -> str:
        """The collective operation that it is in; empty where it is in none."""
        found = [frame for frame in self.stack if any(name in frame for name in COLLECTIVES)]
        names = [frame.partition(" (")[0] for frame in found]
        return next((name for name in reversed(names) if not any(word in name for word in WRAPPERS)), "")

    @property
    def place(self) -> str:
        """Its innermost line that is no library's, FILE:LINE; else the innermost at all."""
        own = [frame for frame in self.stack if not LIBRARY.search(frame)]
        return (own or self.stack or [""])[0].rpartition(" (")[2].rstrip(")")

    @property
    def doing(self) -> str:
        """In a few words, alike for ranks that do the same."""
        if self.stack:
            where = self.place
            said = f"in {self.collective}, called at {where}" if self.collective else f"at {where}"
            return f"stopped by a signal {said}" if self.state in STOPPED else said
        said = next((line for line in self.lines if line.startswith("  threads: ")), "")
        return said.replace("  threads: 1 ", "in ") or "at an unknown place"


@dataclass(frozen=True)
class Standing:
    """Who does what: (what, ranks) with the most ranks first; who is odd, and why."""

    groups: tuple[tuple[str, tuple[Rank, ...]], ...]
    missing: tuple[int, ...]
    odd: tuple[str, ...]


def parse(text: str) -> list[Rank]:
    """The ranks of what launchers/on-node/stacks.sh wrote on all nodes (srun --label), each once, by number."""
    streams: dict[str, list[str]] = {}
    for raw in text.splitlines():
        label = LABEL.match(raw)
        streams.setdefault(label[1] if label else "", []).append(raw[label.end() :] if label else raw)
    found: dict[tuple[str, int], Rank] = {}
    for lines in streams.values():
        for rank in _ranks(lines):
            found.setdefault((rank.step, rank.number), rank)
    return [found[key] for key in sorted(found)]


def steps(ranks: Sequence[Rank]) -> dict[str, list[Rank]]:
    """{a job's step: its ranks}: each is a training of its own."""
    out: dict[str, list[Rank]] = {}
    for rank in ranks:
        out.setdefault(rank.step, []).append(rank)
    return out


def _ranks(lines: Sequence[str]) -> list[Rank]:
    """The ranks of one node."""
    out: list[Rank] = []
    rank: Rank | None = None
    main = False
    for line in lines:
        if begins := RANK.fullmatch(line):
            rank = Rank(int(begins[1]), int(begins[2]), begins[3], int(begins[4]), begins[5], begins[6], begins[7])
            out.append(rank)
            main = False
        elif line.strip() and not line.startswith("  "):
            rank = None
        elif rank:
            rank.lines.append(line)
            if thread := THREAD.match(line):
                main = line.endswith('"MainThread"') or thread[1] == str(rank.process)
            if main and (frame := FRAME.fullmatch(line)):
                rank.stack.append(f"{frame[1]} ({frame[2]})")
    return out


def judge(ranks: Sequence[Rank]) -> Standing:
    """Who does what, and who is elsewhere or not there."""
    groups: dict[str, list[Rank]] = {}
    for rank in ranks:
        groups.setdefault(rank.doing, []).append(rank)
    known = {rank.number for rank in ranks}
    world = max((rank.world for rank in ranks), default=0)
    missing = tuple(number for number in range(world) if number not in known)
    # Of groups as large as another, the one that waits in a collective is the usual one.
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), not item[1][0].collective, item[1][0].number))
    odd = [f"rank {named(missing)} is not there" if len(missing) == 1 else f"ranks {named(missing)} are not there"]
    odd = odd if missing else []
    usual = ordered[0] if ordered else None
    for what, members in ordered[1:]:
        assert usual
        where = ", ".join(sorted({one.host for one in members}))
        who = (
            f"rank {members[0].number} on {where} is"
            if len(members) == 1
            else f"ranks {numbers(members)} on {where} are"
        )
        odd.append(
            f"{who} {what}, while {counted(len(usual[1]), 'rank')} {'is' if len(usual[1]) == 1 else 'are'} {usual[0]}"
        )
    return Standing(tuple((what, tuple(members)) for what, members in ordered), missing, tuple(odd))


def numbers(ranks: Sequence[Rank]) -> str:
    return named([rank.number for rank in ranks])


def named(found: Sequence[int]) -> str:
    """0-2,5 for 0, 1, 2 and 5."""
    pairs: list[list[int]] = []
    for number in sorted(found):
        if pairs and pairs[-1][1] == number - 1:
            pairs[-1][1] = number
        else:
            pairs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in pairs)


def told(ranks: Sequence[Rank]) -> tuple[list[str], bool]:
    """(what people read of all RANKS, step by step; whether each was found and none stands out)."""
    lines: list[str] = []
    verdicts = {step: judge(own) for step, own in steps(ranks).items()} or {"": judge([])}
    for step, verdict in verdicts.items():
        lines += [*([""] if lines else []), *([f"step {step}:"] if len(verdicts) > 1 else []), *summary(verdict)]
    return lines, all(verdict.groups and not verdict.odd for verdict in verdicts.values())


def summary(verdict: Standing) -> list[str]:
    """Lines for people: each group, then who is odd."""
    lines = []
    for what, members in verdict.groups:
        who = f"rank {numbers(members)}" if len(members) == 1 else f"{len(members)} ranks ({numbers(members)})"
        lines.append(f"{who}: {what}")
    if not verdict.groups:
        return ["no rank was found: the job runs none, or its nodes do not answer"]
    if verdict.odd:
        return [*lines, "", *(f"ODD: {one}" for one in verdict.odd)]
    if len(verdict.groups) == 1 and verdict.groups[0][1][0].collective:
        return [*lines, "", "all ranks are in the same collective: look at the network and at NCCL_DEBUG=INFO"]
    return [*lines, "", "no rank stands out"]
