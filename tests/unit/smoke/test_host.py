"""Checks of what a node's image finds there: driver, GPUs, torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack_smoke.node import host
from hpcstack_smoke.request import Request
from hpcstack_smoke.result import FAIL, PASS, Skip

HERE = Request(output=".")
EIGHT = Request(output=".", gpus=8)


def test_a_missing_driver_is_a_skip_only_where_no_gpu_is_expected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(host, "DRIVER_FILE", str(tmp_path / "none"))
    assert host.check_node_driver(EIGHT).status == FAIL
    with pytest.raises(Skip):
        host.check_node_driver(HERE)


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
def test_missing_gpus_are_a_failure_where_they_were_asked_for() -> None:
    assert host.check_node_gpus(EIGHT).status == FAIL
    with pytest.raises(Skip):
        host.check_node_gpus(HERE)


def test_torch_that_pip_replaced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    monkeypatch.setenv("PYTORCH_VERSION", "2.6.0a0+df5bbc0")
    monkeypatch.setattr(metadata, "version", lambda _: "2.6.0a0+df5bbc09d1.nv24.11")
    assert host.check_node_torch(HERE).status == PASS
    monkeypatch.setattr(metadata, "version", lambda _: "2.9.1")
    assert host.check_node_torch(HERE).status == FAIL
