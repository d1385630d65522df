"""Checks of a node's fabric against trees in the kernel's form.

The layout of sysfs is Documentation/ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack_smoke.node import fabric, machine, sysfs
from hpcstack_smoke.request import Request
from hpcstack_smoke.result import FAIL, PASS, WARN, Skip

HERE = Request(output=".")


@pytest.fixture
def hcas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine.HERE, "root", str(tmp_path), raising=False)
    return tmp_path / "sys/class/infiniband"


def port(
    folder: Path,
    name: str,
    number: int,
    state: str,
    rate: str = "400 Gb/sec (4X NDR)",
    layer: str = "InfiniBand",
) -> Path:
    where = folder / name / "ports" / str(number)
    (where / "counters").mkdir(parents=True)
    for file, text in (
        ("state", state),
        ("rate", rate),
        ("link_layer", layer),
        ("counters/symbol_error", "0"),
    ):
        (where / file).write_text(f"{text}\n")
    return where


@pytest.mark.parametrize(
    ("path", "counter"),
    [
        ("cxi/cxi0/device/telemetry/pct_sct_timeouts", "cxi0/pct_sct_timeouts"),
        (
            "infiniband/rdmap79s0/ports/1/hw_counters/retrans_timeout_events",
            "rdmap79s0:1/retrans_timeout_events",
        ),
    ],
)
def test_what_slingshot_and_efa_count_themselves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str, counter: str
) -> None:
    monkeypatch.setattr(machine.HERE, "root", str(tmp_path))
    file = tmp_path / "sys/class" / path
    file.parent.mkdir(parents=True)
    file.write_text("7@1732600000.123456789\n" if "cxi" in path else "7\n")
    before = sysfs.read_error_counters()
    assert before == {counter: 7}
    assert fabric.judge_port_gains(before, before).status == PASS
    result = fabric.judge_port_gains(before, {counter: 8})
    assert result.status == WARN
    assert result.measured == f"{counter} +1"


def test_no_hca_is_a_skip(hcas: Path) -> None:
    for check in (
        fabric.check_fabric_hcas,
        fabric.check_fabric_rate,
        fabric.check_fabric_gid,
        fabric.check_fabric_memlock,
    ):
        with pytest.raises(Skip):
            check(HERE)


def test_every_port_counts(hcas: Path) -> None:
    port(hcas, "mlx5_0", 1, "1: DOWN")
    port(hcas, "mlx5_0", 2, "4: ACTIVE")
    result = fabric.check_fabric_hcas(HERE)
    assert result.status == FAIL
    assert "mlx5_0:1" in result.remedy
    assert "mlx5_0:2" not in result.remedy


def test_all_active(hcas: Path) -> None:
    port(hcas, "mlx5_0", 1, "4: ACTIVE")
    result = fabric.check_fabric_hcas(HERE)
    assert result.status == PASS
    assert result.figures == {"ports": 1.0, "active_ports": 1.0}


def test_a_port_without_a_cable_is_a_warning_and_none_at_all_a_failure(hcas: Path) -> None:
    (port(hcas, "mlx5_1", 1, "1: DOWN") / "phys_state").write_text("2: Polling\n")
    assert fabric.check_fabric_hcas(HERE).status == FAIL
    port(hcas, "mlx5_0", 1, "4: ACTIVE")
    result = fabric.check_fabric_hcas(HERE)
    assert result.status == WARN
    assert result.evidence == "no link: mlx5_1:1"


def test_what_nccl_leaves_out_is_not_looked_at(hcas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port(hcas, "mlx5_0", 1, "4: ACTIVE")
    port(hcas, "mlx5_bond_0", 1, "1: DOWN", "25 Gb/sec (1X EDR)")
    assert fabric.check_fabric_hcas(HERE).status == FAIL
    for said in ("^mlx5_bond", "=mlx5_0:1", "mlx5_0", "^=mlx5_bond_0:1"):
        monkeypatch.setenv("NCCL_IB_HCA", said)
        assert fabric.check_fabric_hcas(HERE).status == PASS, said


def test_what_the_site_promises_must_be_there_and_up(hcas: Path) -> None:
    both = Request(output=".", fabric="infiniband", hcas=("mlx5_0", "mlx5_1"), fabric_rate=400.0)
    assert fabric.check_fabric_hcas(both).status == FAIL  # no device at all
    port(hcas, "mlx5_0", 1, "4: ACTIVE")
    assert fabric.check_fabric_hcas(both).measured == "missing: mlx5_1"
    (port(hcas, "mlx5_1", 1, "1: DOWN") / "phys_state").write_text("2: Polling\n")
    result = fabric.check_fabric_hcas(both)
    assert result.status == FAIL
    assert "mlx5_1:1" in result.measured
    assert result.source == "site.yaml"
    port(hcas, "mlx5_2", 1, "1: DOWN", layer="Ethernet")  # a network card
    (hcas / "mlx5_1/ports/1/state").write_text("4: ACTIVE\n")
    assert fabric.check_fabric_hcas(both).status == PASS
    (hcas / "mlx5_1/ports/1/rate").write_text("200 Gb/sec (4X HDR)\n")
    assert fabric.check_fabric_rate(both).status == FAIL


def test_an_adapter_without_its_driver_is_found(hcas: Path) -> None:
    folder = hcas.parents[2] / "sys/bus/pci/devices/0000:18:00.0"
    folder.mkdir(parents=True)
    for name, text in (("vendor", "0x15b3"), ("class", "0x020700"), ("device", "0x1021")):
        (folder / name).write_text(f"{text}\n")
    result = fabric.check_fabric_hcas(HERE)
    assert result.status == FAIL
    assert "0000:18:00.0" in result.measured
    assert "mlx5_ib" in result.remedy
    (folder / "class").write_text("0x020000\n")  # the same as a network card
    with pytest.raises(Skip):
        fabric.check_fabric_hcas(HERE)


def test_an_ethernet_port_of_an_infiniband_node_wants_no_gid(hcas: Path) -> None:
    port(hcas, "mlx5_0", 1, "4: ACTIVE")
    port(hcas, "mlx5_1", 1, "4: ACTIVE", layer="Ethernet")
    for request in (HERE, Request(output=".", fabric="infiniband")):
        with pytest.raises(Skip):
            fabric.check_fabric_gid(request)
    assert (
        fabric.check_fabric_gid(Request(output=".", fabric="roce", hcas=("mlx5_1",))).status == FAIL
    )


def test_a_slow_port_is_a_warning_and_all_below_the_sites_word_a_failure(hcas: Path) -> None:
    port(hcas, "mlx5_1", 1, "4: ACTIVE", "200 Gb/sec (4X HDR)")
    result = fabric.check_fabric_rate(Request(output=".", fabric_rate=400.0))
    assert result.status == FAIL
    assert "mlx5_1:1 200" in result.measured
    port(hcas, "mlx5_0", 1, "4: ACTIVE")
    assert fabric.check_fabric_rate(HERE).status == WARN
    assert (
        fabric.check_fabric_rate(Request(output=".", fabric_rate=400.0)).status == WARN
    )  # a management port is slower, and healthy


def test_roce_wants_a_routable_gid(hcas: Path) -> None:
    where = port(hcas, "mlx5_0", 1, "4: ACTIVE", layer="Ethernet")
    for index, (gid, kind) in enumerate(
        [("fe80::1", "RoCE v2"), ("::ffff:10.0.0.1", "IB/RoCE v1")]
    ):
        for path, text in ((f"gids/{index}", gid), (f"gid_attrs/types/{index}", kind)):
            (where / path).parent.mkdir(parents=True, exist_ok=True)
            (where / path).write_text(f"{text}\n")
    assert fabric.check_fabric_gid(HERE).status == WARN  # nobody says that this is a fabric
    assert fabric.check_fabric_gid(Request(output=".", fabric="roce")).status == FAIL
    (where / "gids/3").write_text("0000:0000:0000:0000:0000:ffff:0a00:0001\n")
    (where / "gid_attrs/types/3").write_text("RoCE v2\n")
    result = fabric.check_fabric_gid(HERE)
    assert result.status == PASS
    assert "GID 3" in result.measured


def test_counters_that_move_during_the_run_are_found(hcas: Path) -> None:
    where = port(hcas, "mlx5_0", 1, "4: ACTIVE")
    before = sysfs.read_error_counters()
    assert fabric.judge_port_gains(before, sysfs.read_error_counters()).status == PASS
    (where / "counters/symbol_error").write_text("7\n")
    result = fabric.judge_port_gains(before, sysfs.read_error_counters())
    assert result.status == PASS
    assert result.evidence == "mlx5_0:1/symbol_error +7"
    (where / "counters/symbol_error").write_text("700\n")
    assert fabric.judge_port_gains(before, sysfs.read_error_counters()).status == WARN
    (where / "counters/link_downed").write_text("1\n")
    assert (
        fabric.judge_port_gains(
            {**before, "mlx5_0:1/link_downed": 0}, sysfs.read_error_counters()
        ).status
        == FAIL
    )
    with pytest.raises(Skip):
        fabric.judge_port_gains({}, sysfs.read_error_counters())
