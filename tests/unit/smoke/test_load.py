"""What nvidia-smi says of a GPU that works, and what is made of it. No GPU of ours printed it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hpcstack_smoke.gpu import load
from hpcstack_smoke.node import machine, nvidia

CALM = dict.fromkeys(nvidia.THROTTLE, "Not Active")


def test_slowdowns_by_hardware_are_told_from_those_for_heat() -> None:
    hot = "clocks_event_reasons.sw_thermal_slowdown"
    brake = "clocks_event_reasons.hw_power_brake_slowdown"
    rows = [CALM, {**CALM, hot: "Active"}, {**CALM, brake: "Active"}]
    assert load.judge_slowdown(rows) == (["hw_power_brake_slowdown"], ["sw_thermal_slowdown"])


def test_a_power_cap_is_no_slowdown() -> None:
    capped = {**CALM, "clocks_event_reasons.sw_power_cap": "Active"}
    assert load.judge_slowdown([capped]) == ([], [])


def test_the_worst_of_all_samples_counts() -> None:
    rows = [
        {"clocks.sm": "1980", "power.draw": "310.5", "temperature.gpu": "41"},
        {"clocks.sm": "1410", "power.draw": "698.2", "temperature.gpu": "67"},
    ]
    worst = {"sm_MHz": 1410.0, "power_W": 698.2, "temperature_C": 67.0}
    assert load.summarise_samples(rows) == worst


def test_a_figure_that_no_sample_has_is_left_out() -> None:
    assert load.summarise_samples([{"clocks.sm": "1980"}, {"power.draw": "?"}]) == {
        "sm_MHz": 1980.0
    }


def test_slowdowns_of_a_driver_before_535_get_their_new_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def said(argv: list[str], seconds: float = 60.0) -> str:
        fields = argv[1].partition("=")[2].split(",")
        values = {
            "index": "0",
            **dict.fromkeys(nvidia.THROTTLE_BEFORE_535, "Not Active"),
            "clocks_throttle_reasons.hw_slowdown": "Active",
        }
        known = all(field in values for field in fields)
        return ", ".join(values[field] for field in fields) if known else ""

    monkeypatch.setattr(machine.HERE, "said", said, raising=False)
    assert load.judge_slowdown(load.query_rows()) == (["hw_slowdown"], [])


def test_nvidia_smi_is_asked_while_the_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(load, "query_rows", lambda: [{"index": str(len(calls))}])
    samples = load.sample_load(lambda: calls.append(1), 0.05)
    assert samples
    assert int(samples[0][0]["index"]) > 0


@pytest.mark.parametrize(
    ("listed", "cores"),
    [
        ("0-2,8", {0, 1, 2, 8}),
        ("5", {5}),
        ("", set()),
        ("? (No such file or directory)", set()),
    ],
)
def test_the_kernels_lists_of_cores(listed: str, cores: set[int]) -> None:
    assert load._parse_cores(listed) == cores


def test_an_address_as_sys_writes_it() -> None:
    known = SimpleNamespace(pci_bus_id=0x18, pci_domain_id=0, pci_device_id=0)
    assert load.read_address(known) == "0000:18:00.0"
    assert load.read_address(SimpleNamespace()) == ""  # a torch that does not know it
