"""`hpcstack test`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpcstack.cli.reports import FORM_NAMES, JsonFile, add_form_options
from hpcstack.cli.resources import resource_options
from hpcstack.cli.session import Session, answer, complete_stacks, json_option, say
from hpcstack.cli.testing import show_report, test_one


@click.command("test", cls=JsonFile)
@click.argument(
    "names",
    metavar="STACK [STACK]",
    nargs=-1,
    shell_complete=lambda ctx, _param, start: complete_stacks(ctx, start),
)
@resource_options
@click.option(
    "--tier",
    type=click.Choice(["quick", "standard", "full", "burn"]),
    default=None,
    help="Under 2 minutes and one launch; under 15 minutes; all there is; minutes of load, each result "
    "compared bit for bit. quick by default, standard with --only.",
)
@click.option(
    "--only", default="", help="Checks, families or groups, by comma; the recipe's by default."
)
@click.option("--skip", default="", help="Checks, families or groups to leave out.")
@click.option("--list", "list_", is_flag=True, help="Only list the checks.")
@click.option("--strict", is_flag=True, help="A SKIP is a failure.")
@click.option(
    "--suite-from-host", is_flag=True, help="Mount this installation's suite over the image's own."
)
@click.option(
    "-o", "--output", default="", metavar="DIR", help="Where runs are kept; all nodes must see it."
)
@click.option(
    "--sweep",
    is_flag=True,
    help="Every node of a partition in pairs, as jobs: names the odd ones out.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 8),
    default=2,
    show_default=True,
    help="Partners of each node (--sweep).",
)
@click.option(
    "--bisect",
    is_flag=True,
    help="Groups of nodes, the slow ones halved: few rounds for many nodes (--sweep).",
)
@click.option(
    "--minutes",
    type=click.FloatRange(0.1),
    help="Of --tier burn (10); of a sweep, whose jobs are then given up (240).",
)
@click.option("--drain", is_flag=True, help="After --sweep: ask, then drain what was named.")
@add_form_options
@json_option
@click.pass_obj
def command(
    session: Session,
    /,
    names: tuple[str, ...],
    tier: str,
    only: str,
    skip: str,
    list_: bool,
    strict: bool,
    suite_from_host: bool,
    output: str,
    sweep: bool,
    rounds: int,
    bisect: bool,
    minutes: float | None,
    drain: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run the smoke suite in a stack's image, on every node, and report each check. Two stacks:
    compare them.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.publish.reports import share_report
    from hpcstack.suite import run
    from hpcstack.suite.run import check_names
    from hpcstack_smoke.select import MINUTES

    if list_:
        return _listed(as_json)
    if not names or len(names) > 2:
        raise InputError("name one stack, or two to compare", "hpcstack test STACK, hpcstack list")
    _refuse_what_does_nothing(names, options, sweep=sweep, drain=drain, bisect=bisect)
    wanted = run.Wanted(
        check_names(only),
        check_names(skip),
        tier or ("standard" if only else "quick"),
        options["runtime"],
        suite_from_host,
        Path(output).absolute() if output else None,
        minutes or MINUTES,
    )
    if sweep:
        from hpcstack.cli.sweeping import SweepOptions, sweep_partition

        how = SweepOptions(rounds, bisect, minutes or 240.0)
        sweep_partition(session, names[0], wanted, options, how, drain=drain, as_json=as_json)
    if len(names) == 2:
        from hpcstack.cli.comparing import compare_runs

        compare_runs(session, names, wanted, options, as_json=as_json)
    report, folder = test_one(session, names[0], wanted, options)
    if kept := share_report(report, session.store):
        say(f"the group has it in {kept}: hpcstack promote {report.stack}")
    show_report(session, report, folder, options, strict=strict, as_json=as_json)
    raise click.exceptions.Exit(0 if report.verdict(strict=strict) == "PASS" else 1)


def _refuse_what_does_nothing(
    names: tuple[str, ...], options: dict[str, Any], *, sweep: bool, drain: bool, bisect: bool
) -> None:
    """Options that would be left unheard."""
    from hpcstack.core.errors import InputError

    forms = [name for name in FORM_NAMES if options.get(name)]
    if drain and not sweep:
        raise InputError("--drain goes with --sweep", "hpcstack test STACK --sweep --drain")
    if bisect and not sweep:
        raise InputError("--bisect goes with --sweep", "hpcstack test STACK --sweep --bisect")
    if sweep and len(names) > 1:
        raise InputError("--sweep takes one stack", f"hpcstack test {names[0]} --sweep")
    if forms and (sweep or len(names) > 1):
        what = "a sweep" if sweep else "a comparison"
        raise InputError(
            f"{what} has text and --json, not {', '.join(forms)}",
            "hpcstack report FOLDER makes each run's",
        )


def _listed(as_json: bool) -> None:
    from hpcstack_smoke.select import CHECKS

    rows = [
        {"code": check.code, "tier": check.tier, "scope": check.scope, "about": check.about}
        for check in CHECKS
    ]
    lines = [f"{row['code']:<20} {row['tier']:<9} {row['about']}" for row in rows]
    answer({"checks": rows}, as_json, lambda: "\n".join(lines) + "\n")
