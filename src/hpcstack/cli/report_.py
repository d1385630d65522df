"""`hpcstack report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpcstack.cli.reports import JsonFile, add_form_options, on_stdout, write_forms
from hpcstack.cli.session import Session, answer, json_option
from hpcstack.core.errors import format_count


@click.command("report", cls=JsonFile)
@click.argument("path", metavar="FILE|FOLDER|STACK")
@click.option(
    "--history",
    "history_",
    is_flag=True,
    help="Of a STACK: every figure of its runs here, oldest first.",
)
@add_form_options
@json_option
@click.pass_obj
def command(session: Session, /, path: str, history_: bool, as_json: bool, **options: Any) -> None:
    """Show a report again: report.json, a run's folder, or a STACK's newest here. --history: its
    runs over time.
    """
    from hpcstack import report as reports

    pasts = read_past(path) if history_ else []
    if history_ and pasts:
        file = Path(pasts[-1].folder) / "report.json"
        rows = [
            {
                "started": one.started,
                "verdict": one.verdict,
                "nodes": list(one.nodes),
                "figures": one.drawn,
                "folder": one.folder,
                "key": one.key,
            }
            for one in pasts
        ]
        answer({"stack": path, "runs": rows}, as_json, lambda: format_pasts(pasts))
        if options["html"]:
            page = reports.render_html(load_report(file), pasts)
            from hpcstack.core.outputs import write_output

            with session.store.acting(f"{options['html']} was not written"):
                write_output(Path(options["html"]), page)
        return
    if not history_ and not Path(path).exists() and "/" not in path and not path.endswith(".json"):
        path = read_past(path)[-1].folder
    report = load_report(Path(path) / "report.json" if Path(path).is_dir() else Path(path))
    document = {**report.model_dump(mode="json"), "verdict": report.verdict()}
    if as_json or not on_stdout(options):
        answer(document, as_json, lambda: reports.render_text(report))
    write_forms(session, report, document, options)


def read_past(stack: str) -> list[Any]:
    """The runs of STACK that this user has made. InputError where there are none."""
    from hpcstack.core.dirs import state_folder
    from hpcstack.core.errors import InputError
    from hpcstack.suite import history

    found = history.load_history(state_folder() / "history" / f"{Path(stack).name}.jsonl")
    if not found:
        raise InputError(f"no run of {stack} is known here", f"hpcstack test {stack}")
    return found


def format_pasts(pasts: list[Any]) -> str:
    """A line a run, then each figure with its median and its last value."""
    import statistics

    lines = [
        f"{one.started}  {one.verdict:<5} {format_count(len(one.nodes), 'node')}  {one.folder}"
        for one in pasts
    ]
    last = pasts[-1]
    lines += ["", f"{'figure':<60} {'runs':>4} {'median':>12} {'last':>12}"]
    for name in sorted(last.drawn):
        values = [one.drawn[name] for one in pasts if one.key == last.key and name in one.drawn]
        lines.append(
            f"{name:<60} {len(values):>4} {statistics.median(values):>12g} {last.drawn[name]:>12g}"
        )
    return (
        "\n".join(
            [*lines, "", "figures are of runs with the last one's image, nodes, GPUs and NCCL"]
        )
        + "\n"
    )


def load_report(file: Path) -> Any:
    """The report in FILE. InputError where it is none."""
    from pydantic import ValidationError

    from hpcstack import report as reports
    from hpcstack.core.errors import InputError

    try:
        return reports.Report.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{file} cannot be read: {getattr(error, 'strerror', '') or error}"
        ) from None
    except ValidationError as error:
        raise InputError(f"{file}: not a report: {error.errors()[0]['msg']}") from None
