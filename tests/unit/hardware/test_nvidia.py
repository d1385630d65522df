"""What nvidia-smi says, read. Tables are in the form that its --help-query-gpu describes; no GPU of ours printed them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack_smoke.node import gpu, nvidia
from hpcstack_smoke.request import Request
from hpcstack_smoke.result import FAIL, PASS, WARN, Skip

HERE = Request(output=".")


def smi(monkeypatch: pytest.MonkeyPatch, answers: dict[str, str]) -> None:
    """An nvidia-smi that knows the fields of ANSWERS for one GPU each line."""

    def ask(arguments: list[str]) -> str:
        if arguments == ["nvlink", "-s"]:
            return answers.get("nvlink", "")
        fields = arguments[0].partition("=")[2].split(",")
        if any(field not in answers for field in fields):
            return ""  # a driver that lacks one field refuses the whole query
        columns = [answers[field].split("|") for field in fields]
        return "\n".join(", ".join(row) for row in zip(*columns, strict=True))

    monkeypatch.setattr(nvidia, "nvidia_smi", ask)
    monkeypatch.setattr(nvidia.query, "__defaults__", (ask, "gpu"))


def test_no_nvidia_smi_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    smi(monkeypatch, {})
    for check in (gpu.ecc, gpu.throttle, gpu.pcie, gpu.nvlink, gpu.persistence):
        with pytest.raises(Skip):
            check(HERE)


def test_a_field_that_the_driver_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    smi(monkeypatch, {"index": "0|1", "name": "NVIDIA H100|NVIDIA H100"})
    assert nvidia.query(("index", "name", "compute_cap"), nvidia.nvidia_smi) == [
        {"index": "0", "name": "NVIDIA H100"}, {"index": "1", "name": "NVIDIA H100"},
    ]  # fmt: skip


def test_a_gpu_that_does_not_answer_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    smi(monkeypatch, {"index": "0|1", **dict.fromkeys(nvidia.THROTTLE, "Not Active|[GPU requires reset]")})
    result = gpu.throttle(HERE)
    assert result.status == FAIL and result.measured == "GPU 1: [GPU requires reset]"
    smi(monkeypatch, {})
    assert gpu.ecc(Request(output=".", gpus=8)).status == FAIL  # nvidia-smi says nothing, and eight were asked for


def test_uncorrectable_errors_and_rows_to_remap(monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"index": "0|1", "gpu_uuid": "a|b", "ecc.mode.current": "Enabled|Enabled",
            "ecc.errors.uncorrected.volatile.total": "0|0", "ecc.errors.corrected.volatile.total": "3|0",
            "remapped_rows.pending": "0|0", "remapped_rows.failure": "0|0", "remapped_rows.uncorrectable": "0|0"}  # fmt: skip
    smi(monkeypatch, good)
    assert gpu.ecc(HERE).status == PASS
    smi(monkeypatch, {**good, "ecc.errors.uncorrected.volatile.total": "0|2"})
    result = gpu.ecc(HERE)
    assert result.status == FAIL and result.measured.startswith("GPU 1: ecc.errors.uncorrected")
    smi(monkeypatch, {**good, "remapped_rows.pending": "1|0"})
    assert gpu.ecc(HERE).measured == "GPU 0: remapped_rows.pending 1"


def test_throttle_tells_heat_from_a_power_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    calm = {"index": "0", **dict.fromkeys(nvidia.THROTTLE, "Not Active")}
    smi(monkeypatch, calm)
    assert gpu.throttle(HERE).status == PASS
    smi(monkeypatch, {**calm, nvidia.THROTTLE[4]: "Active"})
    assert gpu.throttle(HERE).status == WARN
    smi(monkeypatch, {**calm, nvidia.THROTTLE[1]: "Active"})
    assert gpu.throttle(HERE).status == FAIL


def test_a_narrow_link_fails_and_a_resting_one_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    link = {"index": "0", "pcie.link.gen.current": "5", "pcie.link.gen.max": "5", "pcie.link.width.current": "16",
            "pcie.link.width.max": "16"}  # fmt: skip
    for change, status in (
        ({}, PASS),
        ({"pcie.link.gen.current": "1"}, WARN),
        ({"pcie.link.width.current": "8"}, FAIL),
    ):
        smi(monkeypatch, {**link, **change})
        assert gpu.pcie(HERE).status == status


def test_inactive_nvlinks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "GPU 0: NVIDIA H100 (UUID: x)\n\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n"
    smi(monkeypatch, {"nvlink": text})
    assert gpu.nvlink(HERE).status == PASS
    smi(monkeypatch, {"nvlink": text.replace("Link 1: 26.562 GB/s", "Link 1: <inactive>")})
    assert gpu.nvlink(HERE).measured == "inactive: GPU 0: link 1"


@pytest.mark.parametrize(("line", "number"), [
    ("NVRM: Xid (PCI:0000:65:00): 79, pid=1234, name=python, GPU has fallen off the bus.", 79),
    ("NVRM: Xid (PCI:0000:65:00): 48, An uncorrectable double bit error (DBE) has been detected", 48),
    ("[ 12.3] NVRM: Xid (PCI:0000:65:00 GPU-I:03): 94, pid='<unknown>', name=<unknown>, Contained", 94),
])  # fmt: skip
def test_xids_are_read(line: str, number: int) -> None:
    assert [one[1] for one in nvidia.xids(["other", line])] == [number]


@given(st.text())
def test_no_text_breaks_the_readers(text: str) -> None:
    nvidia.table(text, nvidia.IDENTITY)
    nvidia.links(text)
    nvidia.xids(text.splitlines())
