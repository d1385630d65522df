"""`hpcstack test A B`: run two stacks one after the other in one allocation, and compare them.

Tested in tests/integration/test_smoke.py.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from hpcstack.cli.session import Session, answer, say
from hpcstack.core.names import WITHOUT_SLURM

if TYPE_CHECKING:
    from hpcstack.report import Report
    from hpcstack.suite.run import SuiteRequest


def compare_runs(
    session: Session,
    names: tuple[str, ...],
    request: SuiteRequest,
    options: dict[str, Any],
    *,
    as_json: bool,
) -> NoReturn:
    """Run the suite in both stacks on the same nodes, show both, and end: with 1 if one failed.

    Outside an allocation, `salloc` gets one and this verb runs again inside it.
    """
    from hpcstack.cli.resources import is_in_allocation
    from hpcstack.cli.testing import test_one
    from hpcstack.suite.compare import compare_reports

    if options["runtime"] != WITHOUT_SLURM and not is_in_allocation():
        _run_again_in_allocation(session, options)

    found = [test_one(session, name, request, options) for name in names]
    reports = [report for report, _ in found]
    rows = compare_reports(*reports)
    document = {
        "names": list(names),
        "stacks": [report.stack for report in reports],
        "verdicts": [report.verdict() for report in reports],
        "figures": rows,
        "folders": [str(folder) for _, folder in found],
    }
    answer(document, as_json, lambda: format_comparison(names, reports, rows))
    passed = all(report.verdict() == "PASS" for report in reports)
    raise click.exceptions.Exit(0 if passed else 1)


OF_TASKS = ("--ntasks", "--ntasks-per-node")


def _run_again_in_allocation(session: Session, options: dict[str, Any]) -> NoReturn:
    """Replace this process by `salloc` with this very command line. It does not return."""
    from hpcstack.cli.resources import parse_resources

    # The number of tasks is the steps' own, and is asked for again inside the allocation.
    parts = parse_resources(options).parts()
    asked = [part.words[0] for part in parts if part.option not in OF_TASKS]
    again = [sys.executable, "-m", "hpcstack", *sys.argv[1:]]
    say("getting one allocation for both stacks: salloc")
    os.execvp(session.runner.which("salloc"), ["salloc", "--quiet", *asked, *again])


def format_comparison(
    names: tuple[str, ...], reports: list[Report], rows: list[dict[str, Any]]
) -> str:
    """Return each check and figure of two reports, in a column each, with the figures' ratio.

    NAMES head the columns: two releases are of one stack.
    """
    a, b = names
    lines = [f"NOTE {caveat}" for caveat in reports[0].caveats()]
    lines += [f"{'':<44} {a:>18} {b:>18} {'ratio':>8}"]
    for row in rows:
        mark = "" if row["statuses"][0] == row["statuses"][1] else "  <-- differ"
        lines.append(f"{row['code']:<44} {row['statuses'][0]:>18} {row['statuses'][1]:>18}{mark}")
        for name, (one, other, ratio) in row["figures"].items():
            note = " informational" if row["informational"] else ""
            shown_ratio = "" if ratio is None else ratio
            lines.append(f"  {name[:42]:<42} {one:>18.5g} {other:>18.5g} {shown_ratio:>8}{note}")
    return "\n".join(lines) + "\n"
