"""`hpcstack site health`."""

from __future__ import annotations

from pathlib import Path

import click

from hpcstack.cli.session import Session, answer, give_script, json_option


class TogetherType(click.ParamType[tuple[float, float]]):
    """MINUTES:A_DAY."""

    name = "minutes:a day"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, float]:
        minutes, _, a_day = str(value).partition(":")
        try:
            found = float(minutes), float(a_day or "1")
        except ValueError:
            found = (-1.0, 0.0)
        if not (0 < found[0] <= 1440 and 0 <= found[1] <= 1440):
            self.fail(f"{value!r} is not MINUTES:A_DAY, as 10:0.5", param, ctx)
        return found


@click.command("health")
@click.option(
    "-o", "--output", default="", metavar="FILE", help="Write it there instead of printing it."
)
@click.option(
    "--simulate",
    is_flag=True,
    help="Reckon how many healthy nodes it would drain a day, and try that.",
)
@click.option(
    "--nodes",
    default=10_000,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    help="Of the looked.",
)
@click.option(
    "--interval",
    default=300.0,
    show_default=True,
    type=click.FloatRange(1, 86400),
    help="HealthCheckInterval, in s.",
)
@click.option(
    "--latencies",
    default="",
    metavar="FILE",
    help="Seconds that answers of healthy nodes took, one a line.",
)
@click.option(
    "--busy",
    multiple=True,
    type=TogetherType(),
    metavar="MINUTES:A_DAY",
    default=("10:1",),
    show_default=True,
    help="How long, and how often a day, a node answers nothing because it is busy.",
)
@click.option(
    "--stall",
    multiple=True,
    type=TogetherType(),
    metavar="MINUTES:A_DAY",
    default=("10:0.14",),
    show_default=True,
    help="The same of a file server, for all nodes.",
)
@click.option("--budget", default=0.1, show_default=True, help="False drains a day that may be.")
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
    """Write a script that says whether a node has what site.yaml says, whatever hangs.

    In slurm.conf: HealthCheckProgram=FILE, HealthCheckInterval=300; or Prolog=FILE. It drains a
    node that is not fit, with the reason, and prints JSON. `sh FILE` tries it by hand. With
    --simulate: what the site's limits cost.
    """
    from hpcstack.render.launchers import render_health as script

    if not simulate:
        where = "in slurm.conf on every node: HealthCheckInterval=300 and HealthCheckProgram="
        give_script(script(session.site), output, where)
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
    found = false_drains(misses, looked)
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

    def told() -> str:
        lines = [
            (
                f"{nodes} nodes, {looked.checks} checks each, every {interval:g} s; "
                f"{looked.misses} misses in a row drain"
            ),
            f"  a healthy answer is late (over {looked.limit_s:g} s) with a chance of {alone:.2g}"
            + ("" if latencies else ", which is assumed: --latencies FILE has yours"),
            *(
                f"  {reason:<7} {number:.3g} healthy nodes a day"
                for reason, number in found.items()
            ),
            f"  all     {total:.3g} a day; the budget is {budget:g}",
        ]
        for one in trials:
            judged = "agrees" if one.agrees else "DISAGREES"
            lines.append(
                f"  tried, {one.what}: {one.drains} drains, {one.expected:.1f} reckoned: {judged} "
                f"({one.lines} lines through the decision in {one.seconds:.1f} s)"
            )
        return "\n".join(lines)

    answer(document, as_json, told)
    if not all(one.agrees for one in trials):
        raise AnswerIsNo(
            "the decision drains at another rate than is reckoned", "this is a bug: tell us"
        )
    if total > budget:
        raise AnswerIsNo(
            f"{total:.3g} healthy nodes a day would be drained, more than {budget:g}",
            "raise health.misses in site.yaml, or HealthCheckInterval",
        )
