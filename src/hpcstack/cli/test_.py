"""`hpcstack test`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_smoke.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.reports import FORM_NAMES, JsonFile, add_form_options
from hpcstack.cli.resources import resource_options
from hpcstack.cli.session import (
    Session,
    answer,
    choose_stacks,
    complete_stacks,
    is_pattern,
    json_option,
    say,
)
from hpcstack.cli.several import answer_each, choose_built_stacks
from hpcstack.cli.testing import show_report, test_one

if TYPE_CHECKING:
    from hpcstack.suite.run import SuiteRequest


@click.command("test", cls=JsonFile)
@click.argument(
    "names",
    metavar="STACK...",
    nargs=-1,
    shell_complete=lambda ctx, _param, start: complete_stacks(ctx, start),
)
@resource_options
@click.option(
    "--tier",
    type=click.Choice(["quick", "standard", "full", "burn"]),
    default=None,
    show_default="quick; standard with --only",
    help="quick: one launch of under 2 minutes. standard: under 15 minutes. full: every check but "
    "burn's. burn: minutes of load, each result compared bit for bit.",
)
@click.option(
    "--only",
    default="",
    metavar="CHECKS",
    show_default="the recipe's",
    help="Run only these checks, families or groups, separated by commas.",
)
@click.option(
    "--skip",
    default="",
    metavar="CHECKS",
    help="Leave out these checks, families or groups, separated by commas.",
)
@click.option("--list", "list_", is_flag=True, help="Only list the checks.")
@click.option("--strict", is_flag=True, help="Treat a check that is skipped as a failure.")
@click.option(
    "--suite-from-host", is_flag=True, help="Mount this installation's suite over the image's own."
)
@click.option(
    "-o",
    "--output",
    default="",
    metavar="DIR",
    help="Keep runs in this folder, which all nodes must see.",
)
@click.option(
    "--sweep",
    is_flag=True,
    help="Test all nodes of a partition in pairs, as batch jobs, and name those that stand out.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 8),
    default=2,
    show_default=True,
    metavar="NUMBER",
    help="Pair each node with this many others (--sweep).",
)
@click.option(
    "--bisect",
    is_flag=True,
    help="Test groups of nodes and halve the slow ones: few rounds for many nodes (--sweep).",
)
@click.option(
    "--minutes",
    type=click.FloatRange(0.1),
    metavar="NUMBER",
    show_default="10; 240 with --sweep",
    help="Load the GPUs for this long (--tier burn), or give up on jobs after it (--sweep).",
)
@click.option("--drain", is_flag=True, help="Ask, then drain the nodes that stand out (--sweep).")
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
    """Run the smoke suite in a stack's image, and report each check.

    It runs on all nodes that are asked for. Two stacks are run one after the other on the same
    nodes, and compared. More than two, or those of a pattern that are built, such as 'mine-*', are
    tested one after another.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.publish.reports import share_report
    from hpcstack.suite.run import SuiteRequest, check_names
    from hpcstack_smoke.select import MINUTES

    if list_:
        return _list_checks(session, tuple(choose_stacks(session, names)), as_json)
    if not names:
        raise InputError(
            "name one stack, or two to compare",
            "hpcstack test STACK, hpcstack list",
            page="compare-runs",
        )
    is_comparison = len(names) == 2 and not any(map(is_pattern, names))
    is_of_pattern = any(map(is_pattern, names))
    if not is_comparison:
        names = tuple(choose_built_stacks(session, names))
    _refuse_useless_options(names, options, sweep=sweep, drain=drain, bisect=bisect)

    own = session.list_own_checks(names)
    request = SuiteRequest(
        tests=check_names(only, own),
        skip=check_names(skip, own),
        tier=tier or ("standard" if only else "quick"),
        suite_from_host=suite_from_host,
        parent=Path(output).absolute() if output else None,
        minutes=minutes or MINUTES,
    )

    # a sweep and a comparison do not come back: they end with an exit code of their own
    if sweep:
        from hpcstack.cli.sweeping import SweepOptions, sweep_partition

        how = SweepOptions(rounds, bisect, minutes or 240.0)
        sweep_partition(session, names[0], request, options, how, drain=drain, as_json=as_json)
    if is_comparison:
        from hpcstack.cli.comparing import compare_runs

        compare_runs(session, names, request, options, as_json=as_json)
    if len(names) > 1 or is_of_pattern:
        return _test_each(session, names, request, options, strict=strict, as_json=as_json)

    report, folder = test_one(session, names[0], request, options)
    shared = share_report(report, session.store)
    if shared:
        say(f"the report is in {shared}, for your group: hpcstack promote {report.stack}")
    show_report(session, report, folder, options, strict=strict, as_json=as_json)
    raise click.exceptions.Exit(0 if report.verdict(strict=strict) == "PASS" else 1)


def _test_each(
    session: Session,
    names: tuple[str, ...],
    request: SuiteRequest,
    options: dict[str, Any],
    *,
    strict: bool,
    as_json: bool,
) -> None:
    """Run the suite in one stack after another. A stack that does not pass ends it with 1."""
    from hpcstack.core.errors import AnswerIsNo
    from hpcstack.publish.reports import share_report

    def test(name: str) -> dict[str, Any]:
        report, folder = test_one(session, name, request, options)
        share_report(report, session.store)
        verdict = report.verdict(strict=strict)
        said = f"{verdict}: all files of the run are in {folder}"
        if verdict != "PASS":
            raise AnswerIsNo(said, f"hpcstack report {folder}")
        return {"said": said, "verdict": verdict, "folder": str(folder)}

    answer_each("stack", names, test, as_json=as_json)


def _refuse_useless_options(
    names: tuple[str, ...], options: dict[str, Any], *, sweep: bool, drain: bool, bisect: bool
) -> None:
    """Raise InputError for options that would do nothing beside the others."""
    from hpcstack.core.errors import InputError

    forms = [name for name in FORM_NAMES if options.get(name)]
    if drain and not sweep:
        raise InputError(
            "--drain goes with --sweep",
            "hpcstack test STACK --sweep --drain",
            page="name-the-slow-node",
        )
    if bisect and not sweep:
        raise InputError(
            "--bisect goes with --sweep",
            "hpcstack test STACK --sweep --bisect",
            page="name-the-slow-node",
        )
    if sweep and len(names) > 1:
        raise InputError(
            "--sweep takes one stack",
            f"hpcstack test {names[0]} --sweep",
            page="name-the-slow-node",
        )
    if forms and (sweep or len(names) > 1):
        what = "a sweep" if sweep else "a test of several stacks"
        raise InputError(
            f"{what} is shown as text or --json, not as {', '.join(forms)}",
            "hpcstack report FOLDER writes these for each run",
            page="test-a-stack",
        )


def _list_checks(session: Session, names: tuple[str, ...], as_json: bool) -> None:
    """Show every check with its tier and what it checks: the suite's, and own checks of NAMES."""
    from hpcstack_smoke.select import CHECKS

    rows = [
        {"code": check.code, "tier": check.tier, "scope": check.scope, "about": check.about}
        for check in CHECKS
    ]
    rows += [
        {"code": code, "tier": own.tier, "scope": own.on, "about": own.about}
        for code, own in session.list_own_checks(names).items()
    ]
    lines = [f"{row['code']:<20} {row['tier']:<9} {row['about']}" for row in rows]
    answer({"checks": rows}, as_json, lambda: "\n".join(lines) + "\n")
