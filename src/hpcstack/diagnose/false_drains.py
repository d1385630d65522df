"""How many healthy nodes a day `site health` would drain: reckoned from how its probes miss, and
tried on its decision.

A probe misses where its answer takes longer than its limit. A healthy node's probes do that for
three reasons: by themselves now and then (ALONE, independent of one another); together on one node
that is BUSY for some time; and on all nodes at once while a file server STALLS. A node is drained
for a probe that has missed so often in a row as `health.misses` says, and for one and the same
missed answer no more than two nodes an hour are.

The reckoning takes rounds at equal distances and times that begin at any moment, each after a pause
of any length. It knows that such times follow one another, and that a probe which misses by itself
makes a run longer. The trial draws the same reasons, more often, and puts each line of them through
launchers/on-node/health.awk, which is the decision that nodes run.
"""

from __future__ import annotations

import math
import random
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core import files
from hpcstack.core.data import find_data_folder
from hpcstack.core.errors import InputError
from hpcstack.render.launchers import HEALTH_LIMIT, MOST_MISSED, list_health_checks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcstack.core.process import Runner
    from hpcstack.site.load import Site

DAY_S = 86400.0
TRIAL_LINES, TRIAL_ROUNDS, RATE = 1_000_000, 500, 100.0
MOST_BYTES = 64 << 20
PHASES = 60
START = 1_800_000_000  # of a trial, in seconds since 1970


@dataclass(frozen=True)
class Together:
    """Misses that come together: for MINUTES, so often A_DAY (on each node, or on all at once)."""

    minutes: float
    a_day: float


@dataclass(frozen=True)
class Misses:
    """How healthy probes miss. ALONE is the share of answers that take longer than the limit."""

    alone: float = 1e-4
    busy: tuple[Together, ...] = (Together(10, 1.0),)
    stalls: tuple[Together, ...] = (Together(10, 1 / 7),)


@dataclass(frozen=True)
class Looked:
    """NODES with so many CHECKS each, looked at every INTERVAL_S seconds; of the checks FOLDERS are
    on file servers.
    """

    nodes: int
    checks: int
    folders: int
    interval_s: float
    limit_s: float
    misses: int


@dataclass(frozen=True)
class Trial:
    """What came of LINES through the decision: DRAINS where EXPECTED were reckoned, in SECONDS of
    this machine's.
    """

    what: str
    lines: int
    drains: int
    expected: float
    seconds: float

    @property
    def agrees(self) -> bool:
        """Whether so many drains are likely where EXPECTED are the mean: within four of their
        deviations.
        """
        return abs(self.drains - self.expected) <= 4 * math.sqrt(max(self.expected, 1.0))


def looked_at(site: Site, nodes: int, interval_s: float) -> Looked:
    """How `site health` looks at NODES of SITE, of the kind that has the most checks."""
    checks, folders = list_health_checks(site)
    return Looked(nodes, checks, folders, interval_s, HEALTH_LIMIT, site.health.misses)


def read_latencies(path: Path) -> list[float]:
    """The numbers of the file PATH, one a line, in seconds.

    InputError where there is another thing.
    """
    try:
        found = [float(line) for line in files.read_text(path, MOST_BYTES).split()]
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}", "seconds, one a line: 0.42") from None
    if not all(0 <= one < math.inf for one in found):
        raise InputError(f"{path}: a number is no latency", "seconds, one a line: 0.42")
    return found


def share_of_late(seconds: Sequence[float], limit_s: float) -> float:
    """The share of measured latencies beyond the limit. Where none is, that of the Pareto tail of
    their slowest tenth (Hill's estimator): what was not seen in a thousand answers may be seen in a
    million.
    """
    if len(seconds) < 100:
        raise InputError(
            f"{len(seconds)} latencies say nothing of a tail", "measure at least 100, better 10,000"
        )
    ordered = sorted(seconds)
    late = sum(one > limit_s for one in ordered)
    if late:
        return late / len(ordered)
    tail = [one for one in ordered[-max(10, len(ordered) // 10) :] if one > 0]
    if not tail:
        return 0.0
    least = tail[0]
    mean = sum(math.log(one / least) for one in tail) / len(tail)
    return len(tail) / len(ordered) * (least / limit_s) ** (1 / mean) if mean > 0 else 0.0


def false_drains(misses: Misses, looked: Looked) -> dict[str, float]:
    """{reason: healthy nodes that are drained a day}."""
    rounds = DAY_S / looked.interval_s
    alone = (
        looked.nodes
        * looked.checks
        * rounds
        * misses.alone**looked.misses
        * max(1 - misses.alone, 1 / rounds)
    )
    busy = looked.nodes * sum(
        one.a_day * chance for one, chance in _chances(misses.busy, misses.alone, looked)
    )
    few = min(MOST_MISSED, looked.nodes) if looked.folders else 0
    on_servers = replace(looked, checks=looked.folders)
    stalls = few * sum(
        one.a_day * chance * _hours(one, looked)
        for one, chance in _chances(misses.stalls, misses.alone, on_servers)
    )
    return {"alone": alone, "busy": busy, "stalls": stalls}


def _hours(stall: Together, looked: Looked) -> int:
    """In how many hours of a STALL the brake lets nodes be drained: that many times two."""
    return 1 + int(max(0.0, stall.minutes - looked.misses * looked.interval_s / 60) / 60)


def _chances(
    kinds: Sequence[Together], alone: float, looked: Looked
) -> list[tuple[Together, float]]:
    """(one of KINDS, the chance that such a time drains a node), also where the next one follows
    before a round has seen the node well, or where one probe misses by itself just before or after.

    Reckoned backwards: `drains[i][a][phase]` is the chance for a time of kind i that begins PHASE
    before a round, with a rounds missed already. Phases are taken in the middle of PHASES equal
    parts of the interval.
    """
    kinds = [one for one in kinds if one.a_day]
    step = looked.interval_s / PHASES
    phases = [(number + 0.5) * step for number in range(PHASES)]
    each_s = [one.a_day / DAY_S for one in kinds]
    drains = [[[0.0] * PHASES for _ in range(looked.misses)] for _ in kinds]

    def go_on(number: int, already: int, phase: float) -> float:
        silent = max(
            0.0, kinds[number].minutes * 60 - looked.limit_s
        )  # what is asked later is answered in time
        count = max(0, math.ceil((silent - phase) / looked.interval_s))
        if already + count >= looked.misses:
            return 1.0
        ends = (
            phase + count * looked.interval_s - silent - looked.limit_s
        )  # before the next round, if above zero
        follows = 0.0
        chance = 0.0
        for pause in phases:
            if pause >= ends:
                break
            for other, rate in enumerate(each_s):
                likely = rate * step
                follows += likely
                next_phase = min(PHASES - 1, int((ends - pause) / step))
                chance += (
                    likely * drains[other][min(already + count, looked.misses - 1)][next_phase]
                )
        return chance + (1 - min(1.0, follows)) * _extended(
            looked.misses - already - count, alone, looked.checks
        )

    for already in reversed(range(looked.misses)):
        for _ in range(
            2
        ):  # a time that no round has seen leaves the count as it is: its own row is looked up
            for number in range(len(kinds)):
                drains[number][already] = [go_on(number, already, phase) for phase in phases]
    return [(one, sum(drains[number][0]) / PHASES) for number, one in enumerate(kinds)]


def _extended(lacking: int, alone: float, checks: int) -> float:
    """The chance that one of CHECKS misses by itself at least LACKING times, in rounds just before
    and just after.
    """
    one = alone**lacking * (1 + lacking * (1 - alone))
    return 1 - (1 - min(1.0, one)) ** checks


def try_decision(
    misses: Misses, looked: Looked, runner: Runner, *, lines: int = TRIAL_LINES, seed: int = 1
) -> list[Trial]:
    """Two trials of so many LINES in sum: MISSES, RATE times as often; and misses so thick that
    drains can be counted.

    Stalls are left out: they are judged by the brake, which asks Slurm, and by no node alone.
    """
    often = Misses(
        alone=min(0.02, misses.alone * RATE),
        busy=tuple(
            replace(one, a_day=min(one.a_day * RATE, 0.05 * 1440 / one.minutes))
            for one in misses.busy
        ),
        stalls=(),
    )
    half_drain = (looked.misses - 0.5) * looked.interval_s / 60 + looked.limit_s / 60
    thick = Misses(alone=0.02, busy=(Together(half_drain, 0.05 * 1440 / half_drain),), stalls=())
    thinned = f"{RATE:.0f} times as often (busy for a twentieth of the time at most)"
    counted = "2 % late, and busy times of which every second one drains"
    return [
        _try(what, some, looked, lines // 2, seed, runner)
        for what, some in ((thinned, often), (counted, thick))
    ]


def _try(what: str, misses: Misses, looked: Looked, lines: int, seed: int, runner: Runner) -> Trial:
    small = replace(looked, nodes=max(1, lines // (TRIAL_ROUNDS * (looked.checks + 1))))
    days = TRIAL_ROUNDS * looked.interval_s / DAY_S
    # Busy times follow one another with a pause between them, so that there are fewer of them than
    # their rate says.
    paused = replace(
        misses,
        busy=tuple(
            replace(one, a_day=1 / (1 / one.a_day + one.minutes / 1440))
            for one in misses.busy
            if one.a_day
        ),
    )
    expected = sum(false_drains(paused, small).values()) * days
    program = find_data_folder("launchers") / "on-node/health.awk"
    limits = {
        "misses": looked.misses,
        "clean": 1,
        "undrains": 1 << 30,
    }  # a word for each round of each node
    argv = ["awk", *(f"-v{name}={value}" for name, value in limits.items()), "-f", str(program)]
    text = "".join(_told(misses, small, random.Random(seed)))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hpcstack-") as name:
        lines_said = Path(name) / "lines"
        lines_said.write_text(text)
        done = runner.output(argv, stdin=lines_said, timeout=600)
    if done.status:
        raise InputError(f"awk failed: {' '.join(done.tail[-1:])}", "any awk of POSIX will do")
    return Trial(
        what, text.count("\n"), _count_drains(done.stdout), expected, time.monotonic() - began
    )


def _told(misses: Misses, looked: Looked, chance: random.Random) -> Iterator[str]:
    """What each probe says in each round, and the round's end, one node after the other."""
    for number in range(looked.nodes):
        busy = _busy_rounds(misses, looked, chance)
        for turn in range(TRIAL_ROUNDS):
            at = int(START + turn * looked.interval_s)
            for check in range(looked.checks):
                late = turn in busy or chance.random() < misses.alone
                yield f"n{number} c{check} {'miss' if late else 'ok'} {at} late\n"
            yield f"n{number} - end {at} -\n"


def _busy_rounds(misses: Misses, looked: Looked, chance: random.Random) -> set[int]:
    """The rounds of one node that miss because it is busy: such times begin at any moment."""
    span = TRIAL_ROUNDS * looked.interval_s
    found: set[int] = set()
    for one in misses.busy:
        at = chance.expovariate(one.a_day / DAY_S) if one.a_day else math.inf
        while at < span:
            end = at + one.minutes * 60
            first, last = (
                math.ceil(at / looked.interval_s),
                math.ceil((end - looked.limit_s) / looked.interval_s),
            )
            found |= set(range(first, last))
            at = end + chance.expovariate(one.a_day / DAY_S)
    return found


def _count_drains(decisions: str) -> int:
    """How often a node became drained that was not: a fault that lasts is told in each round."""
    last: dict[str, str] = {}
    count = 0
    for line in decisions.splitlines():
        word, _, rest = line.partition(" ")
        name = rest.partition(" ")[0]
        if word == "drain":
            count += last.get(name) != "drain"
        if word in ("drain", "undrain", "unknown"):
            last[name] = word
    return count
