"""The options that write a report in other formats.

Where FILE is `-`, the format is printed on stdout, in place of the text.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_smoke.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpcstack.cli.session import Session, echo

if TYPE_CHECKING:
    from hpcstack.report import Report

F = TypeVar("F", bound=Callable[..., Any])

OPTIONS = (
    click.option("--junit", default="", metavar="FILE", help="Also write JUnit XML."),
    click.option(
        "--html", default="", metavar="FILE", help="Also write one self-contained HTML page."
    ),
    click.option("--markdown", default="", metavar="FILE", help="Also write Markdown."),
    click.option(
        "--prometheus",
        default="",
        metavar="FILE",
        help="Also write a Prometheus textfile (*.prom).",
    ),
    click.option(
        "--tensorboard",
        default="",
        metavar="DIR",
        help="Also write TensorBoard scalars (needs tensorboard).",
    ),
    click.option(
        "--mlflow", default="", metavar="URI", help="Also log an MLflow run (needs mlflow)."
    ),
    click.option("--json-file", default="", metavar="FILE", hidden=True),
)


FORM_NAMES = ("junit", "html", "markdown", "prometheus", "tensorboard", "mlflow", "json_file")


def add_form_options(function: F) -> F:
    """Add all options of OPTIONS to a command."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function


class JsonFile(click.Command):
    """A verb with `--json`, which prints on stdout, and `--json FILE.json`, which writes a file.

    The second is what the options of other formats do. It is handed on as the hidden option
    `--json-file FILE.json`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        out = []
        words = list(args)
        while words:
            word = words.pop(0)
            value = words[0] if words else ""
            if word == "--json" and value.endswith(".json") and not value.startswith("-"):
                out += ["--json-file", words.pop(0)]
            else:
                out.append(word)
        return super().parse_args(ctx, out)


def on_stdout(options: dict[str, Any]) -> bool:
    """Return whether one of the formats takes the place of the text on stdout."""
    return "-" in [options.get(name) for name in ("junit", "html", "markdown", "prometheus")]


def write_forms(
    session: Session, report: Report, document: dict[str, Any], options: dict[str, Any]
) -> None:
    """Write every format that OPTIONS name. Each file is written whole or not at all."""
    import json

    from hpcstack import report as reports
    from hpcstack.core.outputs import write_output
    from hpcstack.report import scalars

    makers: dict[str, Callable[[], str]] = {
        "junit": lambda: reports.render_junit(report),
        "html": lambda: reports.render_html(report),
        "markdown": lambda: reports.render_markdown(report),
        "prometheus": lambda: reports.render_prometheus(report),
        "json_file": lambda: json.dumps(document, indent=1) + "\n",
    }
    for name, make in makers.items():
        path = options.get(name, "")
        if path == "-":
            echo(make().rstrip("\n"))
        elif path:
            with session.store.acting(f"{path} was not written"):
                write_output(Path(path), make())

    if options.get("tensorboard"):
        scalars.write_tensorboard(report, Path(options["tensorboard"]))
    if options.get("mlflow"):
        scalars.log_to_mlflow(report, options["mlflow"])
