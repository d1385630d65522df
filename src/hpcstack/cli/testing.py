"""What `test` and its comparisons share: run the suite once, and show its report.

Tested in tests/integration/test_smoke.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcstack.cli.reports import on_stdout, write_forms
from hpcstack.cli.resources import parse_resources
from hpcstack.cli.session import Session, answer, say, show_progress

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.report import Report
    from hpcstack.suite.run import SuiteRequest


def test_one(
    session: Session, name: str, request: SuiteRequest, options: dict[str, Any]
) -> tuple[Report, Path]:
    """Run the suite in the image that NAME means, and judge it. Return the report, and the run's folder.

    The folder has the report as report.json, and the run is added to the stack's history.
    """
    from hpcstack.suite.judged_run import choose_image_to_test, run_and_judge

    resources = parse_resources(options)
    stack, chosen, around = choose_image_to_test(
        name,
        options["runtime"],
        resources,
        session.site,
        lambda: session.catalog,
        session.runner,
    )
    if chosen.note:
        say(f"NOTE: {chosen.note}")
    with show_progress(f"testing {stack.full_name}") as progress:
        progress(f"image {chosen.artifact.key[:12]}: {chosen.why}")
        return run_and_judge(stack, chosen.artifact, request, resources, around, progress)


def show_report(
    session: Session,
    report: Report,
    folder: Path,
    options: dict[str, Any],
    *,
    strict: bool,
    as_json: bool,
) -> None:
    """Print the report on stdout, and write it in each format that was asked for."""
    from hpcstack import report as reports

    say(f"all files of the run are in {folder}")
    document = {
        **report.model_dump(mode="json"),
        "verdict": report.verdict(strict=strict),
        "folder": str(folder),
    }
    if as_json or not on_stdout(options):
        answer(document, as_json, lambda: reports.render_text(report, strict=strict))
    write_forms(session, report, document, options)
