"""Figures of a report as TensorBoard's scalars or as a run in MLflow.

They are written by those tools' own libraries, which must be installed beside hpcstack.
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


def _import_library(name: str, package: str) -> Any:
    """Return the module NAME. MissingToolError, which names PACKAGE, where it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise MissingToolError(
            f"{package} is not installed beside hpcstack",
            f"pip install {package}",
            page="test-a-stack",
        ) from None


def write_tensorboard(report: Report, folder: Path) -> None:
    """Write an event file into FOLDER, with each figure, and each series step by step."""
    writer_module = _import_library("tensorboard.summary", "tensorboard")
    writer = writer_module.Writer(str(folder))
    for one in report.outcomes:
        for name, value in one.figures.items():
            writer.add_scalar(f"{one.code}/{name}", value, 0)
        for line in one.series:
            for x, y in zip(line.get("x", ()), line.get("y", ()), strict=False):
                writer.add_scalar(f"{one.code}/{line['name']}", float(y), int(x))
    writer.close()


def log_to_mlflow(report: Report, uri: str) -> None:
    """Log REPORT as a run in MLflow at URI, in the experiment hpcstack.

    Figures are metrics; what was tested is in tags. Where MLflow does not take it, InputError says
    why in MLflow's own words: a server may not answer, or MLflow have no library for the URI.
    """
    # MLflow's own patience is many minutes
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")

    library = _import_library("mlflow", "mlflow")
    try:
        _log_run(library, report, uri)
    except library.exceptions.MlflowException as error:
        why = " ".join(str(error).split())[:300]
        said = f"MLflow does not take the report at {uri}: {why}"
        said = IN_URL.sub(f"{HIDDEN}@", said)  # a URI may have a login in it
        raise InputError(
            said, "give the URI of a server of MLflow's, http://HOST:PORT", page="test-a-stack"
        ) from None


def _log_run(library: Any, report: Report, uri: str) -> None:
    """Log REPORT by MLflow's own LIBRARY."""
    metrics = {}
    for one in report.outcomes:
        for name, value in one.figures.items():
            metrics[f"{one.code}/{name}"] = value
    tags = {
        "stack": report.stack,
        "image": report.image_sha256,
        "runtime": report.runtime,
        "verdict": report.verdict(),
        "nodes": ",".join(report.nodes),
    }
    library.set_tracking_uri(uri)
    library.set_experiment("hpcstack")
    with library.start_run(run_name=report.stack):
        library.set_tags(tags)
        library.log_metrics(metrics)
