"""`hpcstack report`."""

from __future__ import annotations

from pathlib import Path

import click

from hpcstack.cli.session import answer, json_option


@click.command("report")
@click.argument("path", metavar="FILE|FOLDER")
@click.option("--junit", is_flag=True, help="JUnit XML on stdout.")
@json_option
def command(path: str, junit: bool, as_json: bool) -> None:
    """Show a report again: report.json, or the folder of a run."""
    from pydantic import ValidationError

    from hpcstack import report as reports
    from hpcstack.errors import InputError

    file = Path(path) / "report.json" if Path(path).is_dir() else Path(path)
    try:
        report = reports.Report.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {getattr(error, 'strerror', '') or error}") from None
    except ValidationError as error:
        raise InputError(f"{file}: not a report: {error.errors()[0]['msg']}") from None
    answer(report.model_dump(mode="json"), as_json, lambda: reports.junit(report) if junit else reports.text(report))
