"""What MLflow is given, and what its refusals become.

MLflow itself took a report once, by hand: docs/evidence.md.
"""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hpcstack.core.errors import InputError, MissingToolError
from hpcstack.report import Outcome, Report, scalars

if TYPE_CHECKING:
    from collections.abc import Iterator


class MlflowException(Exception):
    pass


def library(calls: dict[str, Any], trouble: str = "") -> SimpleNamespace:
    @contextlib.contextmanager
    def start_run(run_name: str) -> Iterator[None]:
        calls["run"] = run_name
        yield

    def set_experiment(name: str) -> None:
        if trouble:
            raise MlflowException(trouble)
        calls["experiment"] = name

    return SimpleNamespace(
        exceptions=SimpleNamespace(MlflowException=MlflowException),
        set_tracking_uri=lambda uri: calls.update(uri=uri),
        set_experiment=set_experiment,
        start_run=start_run,
        set_tags=lambda tags: calls.update(tags=tags),
        log_metrics=lambda metrics: calls.update(metrics=metrics),
    )


def report() -> Report:
    row = Outcome(code="nccl.bandwidth", status="PASS", measured="1", figures={"busbw_GB_s": 480.5})
    return Report(
        stack="demo", image="/i", image_sha256="0" * 64, suite="1", runtime="pyxis", nodes=("n1",), world_size=1,
        started="2026-01-01T00:00:00+00:00", seconds=1.0, outcomes=(row,),
    )  # fmt: skip


def test_a_run_has_figures_and_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, Any] = {}
    monkeypatch.setitem(sys.modules, "mlflow", library(calls))
    scalars.log_to_mlflow(report(), "http://m:5000")
    assert calls["metrics"] == {"nccl.bandwidth/busbw_GB_s": 480.5}
    assert calls["experiment"] == "hpcstack"
    assert calls["tags"]["verdict"] == "PASS"
    assert calls["uri"] == "http://m:5000"


def test_mlflows_refusal_is_no_bug_of_ours_and_shows_no_login(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trouble = "no answer of http://me:secret@m:5000"
    monkeypatch.setitem(sys.modules, "mlflow", library({}, trouble))
    with pytest.raises(InputError) as refused:
        scalars.log_to_mlflow(report(), "http://me:secret@m:5000")
    assert "MLflow does not take the report" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_without_mlflow_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingToolError):
        scalars.log_to_mlflow(report(), "x")
