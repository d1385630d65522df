"""Estimate how many healthy nodes a day `site health` would drain, and test the estimate.

A probe misses if its answer takes longer than its limit. The probes of a healthy node do that for
three reasons: now and then by themselves, independently of one another (ALONE); together, on one
node that is BUSY for some time; and on all nodes at once, while a file server STALLS. A node is
drained for a probe that has missed as often in a row as `health.misses` says; but for one and the
same missed answer no more than two nodes an hour are drained (the brake).

The estimate assumes rounds at equal distances, and busy times and stalls that begin at any moment,
each after a pause of any length. It knows that such times follow one another, and that a probe
which misses by itself makes a run longer. The trial draws the same reasons, more often, and puts
each line of them through launchers/on-node/health.awk, which decides on the nodes.
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
TRIAL_LINES = 1_000_000
TRIAL_ROUNDS = 500  # of each node
RATE = 100.0  # times: how much more often misses are in a trial
MOST_BYTES = 64 << 20  # of a file of latencies
PHASES = 60  # equal parts of the interval between two rounds
START = 1_800_000_000  # of a trial, in seconds since 1970


@dataclass(frozen=True)
class Together:
    """Misses that come together."""

    minutes: float  # how long
    a_day: float  # how often, on each node, or on all at once


@dataclass(frozen=True)
class Misses:
    """How the probes of healthy nodes miss."""

    alone: float = 1e-4  # share of answers that take longer than the limit
    busy: tuple[Together, ...] = (Together(10, 1.0),)
    stalls: tuple[Together, ...] = (Together(10, 1 / 7),)


@dataclass(frozen=True)
class Looked:
    """How `site health` looks at nodes."""

    nodes: int
    checks: int  # of each node
    folders: int  # checks of folders on file servers, among them
    interval_s: float  # between two rounds
    limit_s: float  # of an answer
    misses: int  # in a row, for which a node is drained


@dataclass(frozen=True)
class Trial:
    """What the decision did in a trial."""

    what: str  # which misses were drawn, in words
    lines: int  # that the decision was given
    drains: int  # that it made
    expected: float  # that were estimated
    seconds: float  # that it took this machine

    @property
    def agrees(self) -> bool:
        """Whether the drains are within four standard deviations of what was expected."""
        return abs(self.drains - self.expected) <= 4 * math.sqrt(max(self.expected, 1.0))


def looked_at(site: Site, nodes: int, interval_s: float) -> Looked:
    """Return how `site health` looks at NODES of SITE, of the kind that has the most checks."""
    checks, folders = list_health_checks(site)
    return Looked(nodes, checks, folders, interval_s, HEALTH_LIMIT, site.health.misses)


def read_latencies(path: Path) -> list[float]:
    """Return the numbers of the file PATH, which are seconds, one a line.

    InputError where it cannot be read or has anything else.
    """
    try:
        found = [float(line) for line in files.read_text(path, MOST_BYTES).split()]
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: {error}", "seconds, one a line: 0.42", page="health-checks-for-nodes"
        ) from None
    if not all(0 <= one < math.inf for one in found):
        raise InputError(
            f"{path}: a number is no latency",
            "seconds, one a line: 0.42",
            page="health-checks-for-nodes",
        )
    return found


def share_of_late(seconds: Sequence[float], limit_s: float) -> float:
    """Return the share of latencies in SECONDS that are beyond LIMIT_S.

    Where none is, return that of a Pareto tail fitted to the slowest tenth (Hill's estimator): what
    was not seen in a thousand answers may be seen in a million. InputError for fewer than 100.
    """
    if len(seconds) < 100:
        raise InputError(
            f"{len(seconds)} latencies say nothing of a tail",
            "measure at least 100, better 10,000",
            page="health-checks-for-nodes",
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
    if mean <= 0:
        return 0.0
    share: float = len(tail) / len(ordered) * (least / limit_s) ** (1 / mean)
    return share


def false_drains(misses: Misses, looked: Looked) -> dict[str, float]:
    """Return {reason: how many healthy nodes are drained a day}."""
    rounds = DAY_S / looked.interval_s
    # a run of misses begins behind an answer in time
    begins = max(1 - misses.alone, 1 / rounds)
    alone = looked.nodes * looked.checks * rounds * misses.alone**looked.misses * begins

    busy_chances = _list_chances(misses.busy, misses.alone, looked)
    busy = looked.nodes * sum(one.a_day * chance for one, chance in busy_chances)

    # a stall is seen by all nodes at once, and the brake lets only a few be drained
    few = min(MOST_MISSED, looked.nodes) if looked.folders else 0
    on_servers = replace(looked, checks=looked.folders)
    stall_chances = _list_chances(misses.stalls, misses.alone, on_servers)
    stalls = few * sum(
        one.a_day * chance * _count_hours(one, looked) for one, chance in stall_chances
    )
    return {"alone": alone, "busy": busy, "stalls": stalls}


def _count_hours(stall: Together, looked: Looked) -> int:
    """Return in how many hours of STALL the brake lets nodes be drained, a few in each."""
    return 1 + int(max(0.0, stall.minutes - looked.misses * looked.interval_s / 60) / 60)


def _list_chances(
    kinds: Sequence[Together], alone: float, looked: Looked
) -> list[tuple[Together, float]]:
    """Return [(one of KINDS, the chance that such a time drains a node)].

    It counts in that the next such time may follow before a round has seen the node well, and that
    a probe may miss by itself (ALONE) just before or just after.

    It is computed backwards: `drains[i][a][phase]` is the chance for a time of kind i that begins
    PHASE before a round, when a rounds were missed already. Phases are the middles of PHASES equal
    parts of the interval.
    """
    kinds = [one for one in kinds if one.a_day]
    step = looked.interval_s / PHASES
    phases = [(number + 0.5) * step for number in range(PHASES)]
    each_s = [one.a_day / DAY_S for one in kinds]
    drains = [[[0.0] * PHASES for _ in range(looked.misses)] for _ in kinds]

    def find_chance(number: int, already: int, phase: float) -> float:
        """Return drains[number][already][phase], from rows that are already known."""
        # what is asked in the last seconds of the time is answered within the limit
        silent = max(0.0, kinds[number].minutes * 60 - looked.limit_s)
        missed = already + max(0, math.ceil((silent - phase) / looked.interval_s))
        if missed >= looked.misses:
            return 1.0

        # how long before the next round it ends, if that is above zero
        rounds = missed - already
        ends = phase + rounds * looked.interval_s - silent - looked.limit_s
        follows = 0.0  # the chance that another time begins before the next round
        chance = 0.0
        for pause in phases:
            if pause >= ends:
                break
            for other, rate in enumerate(each_s):
                likely = rate * step
                follows += likely
                next_phase = min(PHASES - 1, int((ends - pause) / step))
                chance += likely * drains[other][missed][next_phase]
        by_itself = _find_chance_alone(looked.misses - missed, alone, looked.checks)
        return chance + (1 - min(1.0, follows)) * by_itself

    for already in reversed(range(looked.misses)):
        # twice: a time that no round has seen leaves the count as it is, so that its own row is
        # looked up
        for _ in range(2):
            for number in range(len(kinds)):
                drains[number][already] = [find_chance(number, already, phase) for phase in phases]
    return [(one, sum(drains[number][0]) / PHASES) for number, one in enumerate(kinds)]


def _find_chance_alone(lacking: int, alone: float, checks: int) -> float:
    """Return the chance that one of CHECKS misses by itself at least LACKING times in a row.

    The rounds are those just before and just after, in any split of them.
    """
    one = alone**lacking * (1 + lacking * (1 - alone))
    return 1 - (1 - min(1.0, one)) ** checks


def try_decision(
    misses: Misses, looked: Looked, runner: Runner, *, lines: int = TRIAL_LINES, seed: int = 1
) -> list[Trial]:
    """Put two trials, of LINES lines together, through the decision that nodes run.

    In the first there are MISSES, RATE times as often; in the second so many misses that drains
    can be counted. Stalls are left out: the brake, which asks Slurm, judges them, and no node
    alone.
    """
    most_busy = 0.05 * 1440  # minutes a day
    busy = tuple(
        replace(one, a_day=min(one.a_day * RATE, most_busy / one.minutes)) for one in misses.busy
    )
    often = Misses(alone=min(0.02, misses.alone * RATE), busy=busy, stalls=())
    half_drain = (looked.misses - 0.5) * looked.interval_s / 60 + looked.limit_s / 60
    thick = Misses(alone=0.02, busy=(Together(half_drain, most_busy / half_drain),), stalls=())

    thinned = f"{RATE:.0f} times as often (busy for a twentieth of the time at most)"
    counted = "2 % late, and busy times of which every second one drains"
    return [
        _run_trial(thinned, often, looked, lines // 2, seed, runner),
        _run_trial(counted, thick, looked, lines // 2, seed, runner),
    ]


def _run_trial(
    what: str, misses: Misses, looked: Looked, lines: int, seed: int, runner: Runner
) -> Trial:
    """Put about LINES lines, with MISSES drawn by SEED, through the decision that nodes run."""
    small = replace(looked, nodes=max(1, lines // (TRIAL_ROUNDS * (looked.checks + 1))))
    days = TRIAL_ROUNDS * looked.interval_s / DAY_S
    # busy times follow one another with a pause between them, so that there are fewer of them than
    # their rate says
    paused = tuple(
        replace(one, a_day=1 / (1 / one.a_day + one.minutes / 1440))
        for one in misses.busy
        if one.a_day
    )
    expected = sum(false_drains(replace(misses, busy=paused), small).values()) * days

    program = find_data_folder("launchers") / "on-node/health.awk"
    # undrained at the first good round, and as often as need be: a word for each round of a node
    limits = {"misses": looked.misses, "clean": 1, "undrains": 1 << 30}
    argv = ["awk", *(f"-v{name}={value}" for name, value in limits.items()), "-f", str(program)]
    text = "".join(_make_lines(misses, small, random.Random(seed)))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hpcstack-") as name:
        lines_said = Path(name) / "lines"
        lines_said.write_text(text)
        done = runner.output(argv, stdin=lines_said, timeout=600)
    if done.status:
        raise InputError(f"awk failed: {' '.join(done.tail[-1:])}", "any awk of POSIX will do")
    drains = _count_drains(done.stdout)
    return Trial(what, text.count("\n"), drains, expected, time.monotonic() - began)


def _make_lines(misses: Misses, looked: Looked, chance: random.Random) -> Iterator[str]:
    """Yield what each probe says in each round, and the round's end, one node after the other."""
    for number in range(looked.nodes):
        busy = _draw_busy_rounds(misses, looked, chance)
        for turn in range(TRIAL_ROUNDS):
            at = int(START + turn * looked.interval_s)
            for check in range(looked.checks):
                late = turn in busy or chance.random() < misses.alone
                yield f"n{number} c{check} {'miss' if late else 'ok'} {at} late\n"
            yield f"n{number} - end {at} -\n"


def _draw_busy_rounds(misses: Misses, looked: Looked, chance: random.Random) -> set[int]:
    """Draw when one node is busy, from any moment on. Return the rounds that miss therefore."""
    span = TRIAL_ROUNDS * looked.interval_s
    found: set[int] = set()
    for one in misses.busy:
        at = chance.expovariate(one.a_day / DAY_S) if one.a_day else math.inf
        while at < span:
            end = at + one.minutes * 60
            first = math.ceil(at / looked.interval_s)
            behind = math.ceil((end - looked.limit_s) / looked.interval_s)
            found |= set(range(first, behind))
            at = end + chance.expovariate(one.a_day / DAY_S)
    return found


def _count_drains(decisions: str) -> int:
    """Return how often a node that was not drained became so.

    DECISIONS has a line for each round of a node: while a fault lasts, each says `drain`.
    """
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
