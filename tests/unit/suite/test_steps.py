"""How the suite in an image is asked: by request.json, an older one by options."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hpcstack.suite.steps import old_words, reads_requests
from hpcstack_smoke.request import FILE, Request, read_request, write_request
from support.modules import Place


@pytest.mark.parametrize(
    ("version", "reads"),
    [("0.1.0", False), ("0.2.0", True), ("0.10.1", True), ("1.0", True), ("", False)],
)
def test_which_suites_read_requests(tmp_path: Path, version: str, reads: bool) -> None:
    place = Place(tmp_path)
    artifact = replace(place.artifact(place.stack()), suite=version)
    assert reads_requests(artifact) is reads


def test_an_older_suite_gets_the_same_as_options() -> None:
    words = old_words(
        Request("/r", "ddp", "full", "io", "pytorch-24.11", 8, 8, 2, 1.0, 60.0, 400.0)
    )
    said = dict(zip(words[::2], words[1::2], strict=True))
    assert said["--tests"] == "ddp"
    assert said["--gpus"] == "8"
    assert said["--fabric-rate"] == "400.0"


def test_a_request_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Also where a newer host wrote more, and wherever the folder is mounted."""
    request = Request(str(tmp_path), "nccl,ddp", "standard", nodes=2, fabric_rate=400.0)
    write_request(request)
    assert read_request(str(tmp_path)) == request
    document = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(
        json.dumps({**document, "of_a_newer_host": 1, "output": "/elsewhere"})
    )
    assert read_request(str(tmp_path)) == request
    assert [check.code for check in request.checks("node")] == []
    assert {check.family for check in request.checks("ranks")} == {"nccl", "ddp"}
