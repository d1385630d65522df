"""What the steps of a test run share: whose suite they run, and what is told of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.store.artifact import Artifact
from hpcstack.suite.steps import EVERY_S, SUITE, python_path, watch_steps


def artifact(**environment: str) -> Artifact:
    return Artifact(
        stack="s-1", key="k", sha256="0" * 64, size=1, platform="linux/amd64", engine="apptainer",
        lock_sha256="1" * 64, base="b:1", stand_in="", suite="0", facts={}, apt={}, pip={},
        environment=environment,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("suite", "environment", "path"),
    [
        (None, {}, SUITE),
        (None, {"PYTHONPATH": "/opt/own"}, f"{SUITE}:/opt/own"),
        (Path("/run/suite"), {"PYTHONPATH": "/opt/own"}, "/run/suite:/opt/own"),
    ],
)
def test_the_suite_comes_before_what_the_image_has(
    suite: Path | None, environment: dict[str, str], path: str
) -> None:
    assert python_path(artifact(**environment), suite) == path


def test_what_is_wrong_is_told_at_once() -> None:
    told: list[str] = []
    take = watch_steps(told.append, lambda: 0.0)
    for line in (":: PASS node.image", ":: FAIL node.shm too small", ":: SKIP node.ecc no GPU"):
        take(line)
    assert told == ["FAIL node.shm too small"]


def test_what_is_well_is_counted_now_and_then() -> None:
    told: list[str] = []
    now = [0.0]
    take = watch_steps(told.append, lambda: now[0])
    for now[0] in (1.0, 2.0, EVERY_S, EVERY_S + 1):
        take(":: PASS ddp.fp32 0.1 s")
    assert told == ["3 checks done, the last ddp.fp32"]


@pytest.mark.parametrize("line", ["", "FAIL of a library's own", ":: nonsense", "::FAIL node.shm"])
def test_lines_of_others_are_not_ours(line: str) -> None:
    told: list[str] = []
    watch_steps(told.append, lambda: 0.0)(line)
    assert told == []
