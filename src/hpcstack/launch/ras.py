"""Read what NCCL's RAS says of a job: which ranks do not answer, and which are behind. Pure.

RAS is NCCL's own service for reliability, availability and serviceability. It listens on each node
(localhost:28028, or NCCL_RAS_ADDR) and knows of all ranks, so launchers/on-node/stacks.sh asks it
on one node. It answers in JSON since NCCL 2.28.7, in text since 2.24
(docs/userguide/source/troubleshooting/ras.rst of NVIDIA/nccl).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

LINE = re.compile(r"^(?: *\d+: ?)?hpcstack-ras: (.*)$")  # of stacks.sh, with the label of srun
# Lines of the text form
MISSING = re.compile(r"^\s*The missing ranks?: (.+)$")
PROCESS = re.compile(r"^\s*(Process \d+ on node \S+ managing GPUs? \S+)")
LAUNCHED = re.compile(r"^\s*(\d+) ranks? (?:has|have) (launched up to operation \d+|status \S+)")
NAMED = re.compile(r"^\s*Rank (\d+) -- GPU \d+ managed by process (\d+) on node (\S+)")
CONNECTING = 7  # the init_state of a rank that is still connecting
MOST = 12  # lines of each kind


@dataclass(frozen=True)
class RasAnswer:
    """What RAS said, in sentences.

    `odd` are ranks that are dead, do not answer or report an error. `notes` are ranks that are
    behind, which may only be slow. `roots` are the processes that others wait for, over all
    communicators, and that wait for nobody. `text` is the whole answer. It is not `whole` where it
    was cut: then nothing is known of the ranks that it would have named.
    """

    odd: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    text: str = ""
    whole: bool = True
    roots: tuple[RasRoot, ...] = ()


@dataclass(frozen=True)
class RasRoot:
    """A process that `waiters` others wait for, directly or not: WHO it is, and WHAT it lacks."""

    who: str
    what: str
    waiters: int

    def __str__(self) -> str:
        count = format_count(self.waiters, "rank")
        verb = "waits" if self.waiters == 1 else "wait"
        return f"{self.who} {self.what}; {count} {verb} for it, directly or not"


# A process by what RAS calls it in every communicator: its host's address and its number there. (Its
# rank differs from one communicator to another.)
Process = tuple[str, int]


@dataclass
class RasGraph:
    """Who waits for whom, as far as the counts of launched collectives tell.

    In a communicator, ranks that have launched the most of a collective wait for those that have
    launched fewer, and all wait for ranks that are missing. `awaited` are such pairs: the processes
    that wait, and those that they wait for.
    """

    awaited: list[tuple[frozenset[Process], frozenset[Process]]] = field(default_factory=list)
    named: dict[Process, str] = field(default_factory=dict)
    # {process: (how many are behind with it, what it lacks)}: the fewer, the more that tells
    lacks: dict[Process, tuple[int, str]] = field(default_factory=dict)

    def add_communicator(self, one: dict[str, Any], name: str) -> None:
        """Add what the ranks of ONE, a communicator called NAME, wait for."""
        ranks = [rank for rank in one.get("ranks", []) if "rank" in rank]
        processes = [self._name(rank) for rank in ranks]
        missing = [self._name(rank) for rank in one.get("missing_ranks", [])]
        for process, rank in zip(missing, one.get("missing_ranks", []), strict=True):
            dead = rank.get("status", {}).get("considered_dead")
            self.lacks[process] = 0, f"{'is dead' if dead else 'does not answer NCCL'}; {name}"
        self._add(processes, missing)

        for collective in dict.fromkeys(key for rank in ranks for key in _counts(rank)):
            counts = [_counts(rank).get(collective, 0) for rank in ranks]
            most = max(counts)
            pairs = list(zip(processes, counts, strict=True))
            behind = [process for process, count in pairs if count < most]
            for process, count in pairs:
                if count < most:
                    what = f"has launched {count} {collective}, others {most}; {name}"
                    lack = (len(behind), what)
                    self.lacks[process] = min(lack, self.lacks.get(process, lack))
            self._add([process for process, count in pairs if count == most], behind)

    def _add(self, waiting: Sequence[Process], others: Sequence[Process]) -> None:
        if waiting and others:
            self.awaited.append((frozenset(waiting), frozenset(others)))

    def find_roots(self) -> list[RasRoot]:
        """Return those whom others wait for and who wait for nobody, the most awaited first.

        At most MOST of them.
        """
        waits = {process for waiting, _ in self.awaited for process in waiting}
        others = {process for _, lacking in self.awaited for process in lacking}
        roots = sorted(others - waits)[:MOST]
        found = [
            RasRoot(self.named[one], self.lacks[one][1], self._count_waiters(one)) for one in roots
        ]
        return sorted(found, key=lambda one: (-one.waiters, one.who))

    def _count_waiters(self, root: Process) -> int:
        """Return how many processes wait for ROOT, directly or through others."""
        reached = {root}
        left = list(self.awaited)
        while True:
            next_ones = [waiting for waiting, others in left if others & reached]
            left = [pair for pair in left if not pair[1] & reached]
            if not next_ones:
                return len(reached) - 1
            reached = reached.union(*next_ones)

    def _name(self, rank: dict[str, Any]) -> Process:
        process = (str(rank.get("host", "?")), int(rank.get("pid", -1)))
        self.named.setdefault(process, _name_rank(rank))
        return process


def _counts(rank: dict[str, Any]) -> dict[str, int]:
    """Return {collective: how often RANK has launched it}."""
    found: dict[str, int] = rank.get("collective_counts", {})
    return found


def parse_ras(text: str) -> RasAnswer | None:
    """Return the answer in TEXT, what stacks.sh printed on all nodes; None where there is none."""
    found = map(LINE.match, text.splitlines())
    said = [match[1] for match in found if match]
    # RAS answers each command of stacks.sh; `OK` and `ERROR: ...` are answers to those before.
    said = [line for line in said if line != "OK" and not line.startswith("ERROR: ")]
    if not any(line.strip() for line in said):
        return None

    whole = "\n".join(said)
    if whole.lstrip().startswith("{"):
        begin, end = whole.find("{"), whole.rfind("}")
        try:
            return parse_ras_json(json.loads(whole[begin : end + 1]), whole)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            # stacks.sh reads so many bytes and no more: what is missing may be the rank that hangs
            return RasAnswer(text=whole, whole=False)
    return from_text(said)


def parse_ras_json(document: dict[str, Any], text: str) -> RasAnswer:
    """Return the answer in DOCUMENT, which RAS sends after `SET FORMAT json`.

    It holds what each rank says of each communicator. TEXT is the document as it came.
    """
    odd: list[str] = []
    notes: list[str] = []
    graph = RasGraph()
    for one in document.get("communicators", []):
        size = format_count(int(one.get("size", 0)), "rank")
        name = f"communicator {one.get('hash', '?')} of {size}"
        for rank in one.get("missing_ranks", []):
            state = rank.get("status", {})
            why = "is dead" if state.get("considered_dead") else "does not answer NCCL"
            odd.append(f"{_name_rank(rank)} {why}; {name}")
        for rank in one.get("ranks", []):
            state = rank.get("status", {})
            error = state.get("async_error")
            if error:
                odd.append(f"{_name_rank(rank)} has NCCL's error {error}; {name}")
            elif state.get("init_state") == CONNECTING:
                notes.append(f"{_name_rank(rank)} is still connecting; {name}")
        notes += [f"{said}; {name}" for said in _find_behind(one.get("ranks", []))]
        graph.add_communicator(one, name)
    roots = tuple(graph.find_roots())
    return RasAnswer(tuple(odd[:MOST]), tuple(notes[:MOST]), text, roots=roots)


def _name_rank(rank: dict[str, Any]) -> str:
    return f"rank {rank['rank']} (process {rank.get('pid', '?')} on {rank.get('host', '?')})"


def _find_behind(ranks: Sequence[dict[str, Any]]) -> list[str]:
    """Return, in words, ranks that have launched a collective more or less often than most."""
    out = []
    names = dict.fromkeys(name for rank in ranks for name in rank.get("collective_counts", {}))
    for name in names:
        counts = Counter(rank.get("collective_counts", {}).get(name, 0) for rank in ranks)
        usual, many = counts.most_common(1)[0]
        for rank in ranks:
            value = rank.get("collective_counts", {}).get(name, 0)
            if value != usual:
                others = format_count(many, "rank")
                out.append(f"{_name_rank(rank)} has launched {value} {name}, {others} {usual}")
    return out


def from_text(lines: Sequence[str]) -> RasAnswer:
    """Return the answer in LINES, which RAS sends after `VERBOSE STATUS`.

    Their form differs from release to release, so only lines that name ranks or processes are read.
    """
    odd: list[str] = []
    notes: list[str] = []
    section = kind = ""
    for line in lines:
        if line.strip() in ("Errors", "Warnings"):
            section = line.strip()
        elif launched := LAUNCHED.match(line):
            kind = launched[2]
        elif missing := MISSING.match(line):
            odd.append(f"missing from NCCL: rank {missing[1].strip()}")
        elif section == "Errors" and (process := PROCESS.match(line)):
            odd.append(f"{process[1]} does not answer NCCL")
        elif named := NAMED.match(line):
            notes.append(
                f"rank {named[1]} (process {named[2]} on {named[3]}) has {kind or 'something else'}"
            )
    return RasAnswer(tuple(dict.fromkeys(odd))[:MOST], tuple(notes[:MOST]), "\n".join(lines))


def summarise_ras(answer: RasAnswer) -> list[str]:
    """Return ANSWER in lines for people."""
    if not answer.whole:
        return [
            "NCCL's RAS: UNKNOWN: its answer was cut, or has a form that is not known here; "
            "`ncclras -v` on a node of the job shows all of it"
        ]
    if not answer.odd and not answer.notes:
        return [
            "NCCL's RAS: every rank answers, and all have launched the same number of collectives"
        ]
    out = [f"ROOT, by NCCL's RAS: {one}" for one in answer.roots[:1]]
    out += [f"ODD, by NCCL's RAS: {one}" for one in answer.odd]
    out += [f"NCCL's RAS: {one}" for one in answer.notes]
    if answer.notes:
        out.append("(a rank that is behind may only be slow: ask again)")
    return out
