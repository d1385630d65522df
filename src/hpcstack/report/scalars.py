"""Figures as TensorBoard scalars or an MLflow run, by those tools' own libraries where they are
installed.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import InputError, MissingToolError
from hpcstack.site.logins import HIDDEN, IN_URL

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.report.model import Report


def _library(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise MissingToolError(
            f"{package} is not installed beside hpcstack", f"pip install {package}"
        ) from None


def write_tensorboard(report: Report, folder: Path) -> None:
    """An event file in FOLDER: each figure, and each line that was drawn, step by step."""
    writer_module = _library("tensorboard.summary", "tensorboard")
    writer = writer_module.Writer(str(folder))
    for one in report.outcomes:
        for name, value in one.figures.items():
            writer.add_scalar(f"{one.code}/{name}", value, 0)
        for line in one.series:
            for x, y in zip(line.get("x", ()), line.get("y", ()), strict=False):
                writer.add_scalar(f"{one.code}/{line['name']}", float(y), int(x))
    writer.close()


def log_to_mlflow(report: Report, uri: str) -> None:
    """One run in MLflow at URI, experiment hpcstack: figures as metrics, what was tested as tags.

    InputError says in MLflow's own words why it does not take it: a server that does not answer, a
    kind of URI that its installation has no library for.
    """
    for name, value in (
        ("MAX_RETRIES", "2"),
        ("TIMEOUT", "20"),
    ):  # its own patience is many minutes
        os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{name}", value)
    library = _library("mlflow", "mlflow")
    try:
        _log(library, report, uri)
    except library.exceptions.MlflowException as error:
        said = IN_URL.sub(
            f"{HIDDEN}@",
            f"MLflow does not take the report at {uri}: {' '.join(str(error).split())[:300]}",
        )
        raise InputError(said, "give the URI of a server of MLflow's, http://HOST:PORT") from None


def _log(library: Any, report: Report, uri: str) -> None:
    library.set_tracking_uri(uri)
    library.set_experiment("hpcstack")
    with library.start_run(run_name=report.stack):
        library.set_tags(
            {
                "stack": report.stack,
                "image": report.image_sha256,
                "runtime": report.runtime,
                "verdict": report.verdict(),
                "nodes": ",".join(report.nodes),
            }
        )
        library.log_metrics(
            {
                f"{one.code}/{name}": value
                for one in report.outcomes
                for name, value in one.figures.items()
            }
        )
