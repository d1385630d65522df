"""`hpcstack site health`.

Tested in tests/integration/test_site_health.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcstack.cli.session import Session, answer, give_script, json_option

# A click before 8.4 has a ParamType that takes no type.
if TYPE_CHECKING:
    PairType = click.ParamType[tuple[float, float]]
else:
    PairType = click.ParamType


class TogetherType(PairType):
    """MINUTES:A_DAY, as 10:0.5: how long something lasts, and how often a day it happens."""

    name = "minutes:a day"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, float]:
        minutes, _, a_day = str(value).partition(":")
        try:
            found = float(minutes), float(a_day or "1")
        except ValueError:
            found = (-1.0, 0.0)  # refused below

        if not (0 < found[0] <= 1440 and 0 <= found[1] <= 1440):
            self.fail(f"{value!r} is not MINUTES:A_DAY, as 10:0.5", param, ctx)
        return found


@click.command("health")
@click.option(
    "-o",
    "--output",
    default="",
    metavar="FILE",
    help="Write it to this file.",
    show_default="stdout",
)
@click.option(
    "--simulate",
    is_flag=True,
    help="Estimate how many healthy nodes the script would drain a day, and check that by a trial.",
)
@click.option(
    "--nodes",
    default=10_000,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    metavar="NUMBER",
    help="Number of nodes (--simulate).",
)
@click.option(
    "--interval",
    default=300.0,
    show_default=True,
    type=click.FloatRange(1, 86400),
    metavar="SECONDS",
    help="HealthCheckInterval of slurm.conf (--simulate).",
)
@click.option(
    "--latencies",
    default="",
    metavar="FILE",
    help="Read measured answer times of healthy nodes from this file, in seconds, one a line "
    "(--simulate).",
)
@click.option(
    "--busy",
    multiple=True,
    type=TogetherType(),
    metavar="MINUTES:A_DAY",
    default=("10:1",),
    show_default=True,
    help="How long, and how often a day, a node is too busy to answer (--simulate).",
)
@click.option(
    "--stall",
    multiple=True,
    type=TogetherType(),
    metavar="MINUTES:A_DAY",
    default=("10:0.14",),
    show_default=True,
    help="How long, and how often a day, a file server answers no node (--simulate).",
)
@click.option(
    "--budget",
    default=0.1,
    show_default=True,
    metavar="NUMBER",
    help="Number of healthy nodes that may be drained a day (--simulate).",
)
@json_option
@click.pass_obj
def health(
    session: Session,
    output: str,
    simulate: bool,
    nodes: int,
    interval: float,
    latencies: str,
    busy: tuple[tuple[float, float], ...],
    stall: tuple[tuple[float, float], ...],
    budget: float,
    as_json: bool,
) -> None:
    """Write a health check script for the nodes.

    The script checks that a node has what site.yaml says, and ends in time whatever hangs. It
    drains a node that is not fit, with the reason, and prints JSON. In slurm.conf:
    HealthCheckProgram=FILE and HealthCheckInterval=300, or Prolog=FILE. `sh FILE` runs it by hand.
    With --simulate, no script is written: the cost of the site's limits is estimated.
    """
    from hpcstack.render.launchers import render_health

    if not simulate:
        where = "in slurm.conf on every node: HealthCheckInterval=300 and HealthCheckProgram="
        give_script(render_health(session.site), output, where)
        return

    from hpcstack.core.errors import AnswerIsNo
    from hpcstack.diagnose.false_drains import (
        Misses,
        Together,
        false_drains,
        looked_at,
        read_latencies,
        share_of_late,
        try_decision,
    )

    looked = looked_at(session.site, nodes, interval)
    seconds = read_latencies(Path(latencies)) if latencies else []
    alone = share_of_late(seconds, looked.limit_s) if latencies else Misses().alone
    misses = Misses(
        alone, tuple(Together(*one) for one in busy), tuple(Together(*one) for one in stall)
    )

    found = false_drains(misses, looked)  # {reason: healthy nodes that are drained a day}
    total = sum(found.values())
    trials = try_decision(misses, looked, session.runner)

    document = {
        "nodes": nodes,
        "checks": looked.checks,
        "misses": looked.misses,
        "interval_s": interval,
        "limit_s": looked.limit_s,
        "late": alone,
        "false_drains_a_day": {**found, "all": total},
        "budget": budget,
        "trials": [{**vars(one), "agrees": one.agrees} for one in trials],
    }

    def text() -> str:
        assumed = "" if latencies else ", which is assumed: --latencies FILE gives your own"
        lines = [
            f"{nodes} nodes, {looked.checks} checks each, every {interval:g} s; "
            f"{looked.misses} misses in a row drain",
            f"  a healthy answer is late (over {looked.limit_s:g} s) with a chance of "
            f"{alone:.2g}{assumed}",
        ]
        for reason, number in found.items():
            lines.append(f"  {reason:<7} {number:.3g} healthy nodes a day")
        lines.append(f"  all     {total:.3g} a day; the budget is {budget:g}")
        for one in trials:
            judged = "agrees" if one.agrees else "DISAGREES"
            lines.append(
                f"  tried, {one.what}: {one.drains} drains, {one.expected:.1f} expected: {judged} "
                f"({one.lines} lines through the decision in {one.seconds:.1f} s)"
            )
        return "\n".join(lines)

    answer(document, as_json, text)
    if not all(one.agrees for one in trials):
        raise AnswerIsNo(
            "the health check's decision drains at another rate than estimated",
            "this is a bug in hpcstack: please report it with the lines above",
        )
    if total > budget:
        raise AnswerIsNo(
            f"{total:.3g} healthy nodes a day would be drained, more than {budget:g}",
            "raise health.misses in site.yaml, or HealthCheckInterval",
            page="health-checks-for-nodes",
        )
