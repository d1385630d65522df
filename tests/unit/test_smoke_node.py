"""Checks of a node against trees in the kernel's form. The layout of sysfs is Documentation/ABI/stable/sysfs-class-infiniband."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack_smoke import node
from hpcstack_smoke.result import FAIL, PASS, Skip, run


@pytest.fixture
def hcas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(node, "HCAS", str(tmp_path))
    return tmp_path


def port(folder: Path, name: str, number: int, state: str) -> None:
    where = folder / name / "ports" / str(number)
    where.mkdir(parents=True)
    (where / "state").write_text(f"{state}\n")
    (where / "rate").write_text("400 Gb/sec (4X NDR)\n")


def test_no_hca_is_a_skip(hcas: Path) -> None:
    with pytest.raises(Skip):
        node.hcas()


def test_every_port_counts(hcas: Path) -> None:
    port(hcas, "mlx5_0", 1, "1: DOWN")
    port(hcas, "mlx5_0", 2, "4: ACTIVE")
    result = node.hcas()
    assert result.status == FAIL
    assert "mlx5_0:1" in result.remedy and "mlx5_0:2" not in result.remedy


def test_all_active(hcas: Path) -> None:
    port(hcas, "mlx5_0", 1, "4: ACTIVE")
    assert node.hcas().status == PASS


def test_a_missing_driver_is_a_skip_only_where_no_gpu_is_expected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(node, "DRIVER_FILE", str(tmp_path / "none"))
    assert node.driver(8).status == FAIL
    with pytest.raises(Skip):
        node.driver(0)


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
def test_missing_gpus_are_a_failure_where_they_were_asked_for() -> None:
    assert node.gpus(8).status == FAIL
    with pytest.raises(Skip):
        node.gpus(0)


def test_torch_that_pip_replaced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    monkeypatch.setenv("PYTORCH_VERSION", "2.6.0a0+df5bbc0")
    monkeypatch.setattr(metadata, "version", lambda _: "2.6.0a0+df5bbc09d1.nv24.11")
    assert node.torch_is_the_bases().status == PASS
    monkeypatch.setattr(metadata, "version", lambda _: "2.9.1")
    assert node.torch_is_the_bases().status == FAIL


def test_a_check_that_breaks_is_an_error_and_not_a_crash() -> None:
    row = run("x.y", lambda: 1 / 0, "n1")  # type: ignore[arg-type,return-value]
    assert row["status"] == "ERROR" and "ZeroDivisionError" in row["evidence"] and row["where"] == "n1"
