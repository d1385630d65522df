"""A run of the suite from the command line: run, judged, recorded and shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcstack.cli.reports import on_stdout, write_forms
from hpcstack.cli.resources import resources
from hpcstack.cli.session import Session, answer, say, show_progress

if TYPE_CHECKING:
    from pathlib import Path


def one(session: Session, name: str, wanted: Any, options: dict[str, Any]) -> tuple[Any, Path]:
    """One run, judged, with its report.json and its line in the history."""
    from hpcstack.core.dirs import state_folder
    from hpcstack.core.files import write_text
    from hpcstack.store.find import newest_image
    from hpcstack.suite import history, run
    from hpcstack.suite.judge import judged

    recipe = session.recipe(name)
    artifact = newest_image(recipe.stack.full_name, session.store)
    with show_progress(f"testing {recipe.stack.full_name}") as step:
        report, folder = run.test(
            recipe.stack, artifact, wanted, resources(options), session.site, session.runner, step
        )
    write_text(folder / "report.json", report.model_dump_json(indent=1) + "\n")  # before anything can go wrong
    path = state_folder() / "history" / f"{recipe.stack.full_name}.jsonl"
    report = judged(report, history.load(path))
    with session.store.acting("the report was not written"):
        write_text(folder / "report.json", report.model_dump_json(indent=1) + "\n")
        if not report.planted:
            history.append(path, report, str(folder))
    return report, folder


def shown(session: Session, report: Any, folder: Path, options: dict[str, Any], *, strict: bool, as_json: bool) -> None:
    """The report on stdout, and in each form that was asked for."""
    from hpcstack import report as reports

    say(f"all of it is in {folder}")
    document = {**report.model_dump(mode="json"), "verdict": report.verdict(strict=strict), "folder": str(folder)}
    if as_json or not on_stdout(options):
        answer(document, as_json, lambda: reports.text(report, strict=strict))
    write_forms(session, report, document, options)
