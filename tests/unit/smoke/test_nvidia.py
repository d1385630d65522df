"""What nvidia-smi says, read.

Tables are in the form that its --help-query-gpu describes; no GPU of ours printed them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack_smoke.gpu import judge
from hpcstack_smoke.node import counters, gpu, host, machine, nvidia, nvlink
from hpcstack_smoke.request import Request
from hpcstack_smoke.result import FAIL, PASS, WARN, NotBuiltIn, Skip, run_check

HERE = Request(output=".")


def smi(monkeypatch: pytest.MonkeyPatch, answers: dict[str, str]) -> None:
    """An nvidia-smi that knows the fields of ANSWERS for one GPU each line; other commands by their
    whole.
    """

    def ask(argv: list[str], seconds: float = 60.0) -> str:
        arguments = argv[1:]
        if argv[0] != "nvidia-smi" or " ".join(arguments) in answers or "=" not in arguments[0]:
            return answers.get(" ".join(arguments if argv[0] == "nvidia-smi" else argv), "")
        fields = arguments[0].partition("=")[2].split(",")
        if any(field not in answers for field in fields):
            return ""  # a driver that lacks one field refuses the whole query
        columns = [answers[field].split("|") for field in fields]
        return "\n".join(", ".join(row) for row in zip(*columns, strict=True))

    monkeypatch.setattr(machine.HERE, "said", ask, raising=False)


def test_no_nvidia_smi_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    smi(monkeypatch, {})
    for check in (
        gpu.check_node_ecc,
        gpu.check_node_throttle,
        gpu.check_node_pcie,
        nvlink.check_node_nvlink,
        nvlink.check_node_nvlink_fabric,
        nvlink.check_node_imex,
        gpu.check_node_persistence,
    ):
        with pytest.raises(Skip):
            check(HERE)


def test_a_field_that_the_driver_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    smi(monkeypatch, {"index": "0|1", "name": "NVIDIA H100|NVIDIA H100"})
    assert nvidia.query_gpus(("index", "name", "compute_cap")) == [
        {"index": "0", "name": "NVIDIA H100"}, {"index": "1", "name": "NVIDIA H100"},
    ]  # fmt: skip


def test_a_gpu_that_does_not_answer_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    smi(monkeypatch, {"index": "0|1", "pci.bus_id": "0|[GPU requires reset]"})
    result = gpu.check_node_throttle(HERE)
    assert result.status == FAIL
    assert result.measured == "GPU 1: [GPU requires reset]"
    smi(monkeypatch, {})
    assert (
        gpu.check_node_ecc(Request(output=".", gpus=8)).status == FAIL
    )  # nvidia-smi says nothing, and eight were asked for


def test_uncorrectable_errors_and_rows_to_remap(monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"index": "0|1", "name": "NVIDIA H100 80GB HBM3|NVIDIA H100 80GB HBM3", "gpu_uuid": "a|b",
            "ecc.mode.current": "Enabled|Enabled", **dict.fromkeys(nvidia.UNCORRECTED_SRAM, "0|0"),
            **dict.fromkeys(nvidia.CORRECTED_SRAM, "3|0"), **dict.fromkeys(nvidia.DRAM, "700|19000000"),
            "ecc.errors.uncorrected.volatile.total": "0|2",
            "remapped_rows.pending": "0|0", "remapped_rows.failure": "0|0", "remapped_rows.uncorrectable": "0|0"}  # fmt: skip
    smi(monkeypatch, good)
    assert gpu.check_node_ecc(HERE).status == PASS
    smi(monkeypatch, {**good, nvidia.RECOVERY: "None|None", nvidia.PENDING_PAGES: "No|[N/A]"})
    assert gpu.check_node_ecc(HERE).status == PASS
    for change, said in (
        ({"ecc.errors.uncorrected.aggregate.sram": "0|5"}, "GPU 1: uncorrected.aggregate.sram 5"),
        ({"ecc.errors.uncorrected.volatile.sram": "0|1"}, "GPU 1: uncorrected.volatile.sram 1"),
        ({nvidia.EXCEEDED: "Yes|No"}, "GPU 0: SRAM's threshold is exceeded"),
        (
            {"ecc.errors.corrected.aggregate.sram": "10001|0"},
            "GPU 0: corrected.aggregate.sram 10001",
        ),
        (
            {"ecc.errors.corrected.aggregate.dram": "0|20000001"},
            "GPU 1: corrected.aggregate.dram 20000001",
        ),
        ({"ecc.mode.current": "Enabled|Disabled"}, "GPU 1: ECC is off"),
        ({nvidia.RECOVERY: "None|Reset"}, "GPU 1: the driver asks for Reset"),
        (
            {nvidia.PENDING_PAGES: "Yes|[N/A]"},
            "GPU 0: pages of its memory wait for a reboot to be retired",
        ),
        (
            dict(zip(nvidia.RETIRED_PAGES, ("[N/A]|40", "[N/A]|24"), strict=True)),
            "GPU 1: 64 pages of its memory are retired, and no more can be",
        ),
        ({"remapped_rows.uncorrectable": "513|0"}, "GPU 0: remapped_rows.uncorrectable 513"),
    ):
        smi(monkeypatch, {**good, **change})
        result = gpu.check_node_ecc(HERE)
        assert result.status == FAIL
        assert result.measured == said
    closed = dict.fromkeys(nvidia.ECC, "[Insufficient Permissions]|[Insufficient Permissions]")
    smi(
        monkeypatch, {"index": "0|1", "name": "a|b", **closed}
    )  # in a container with MIG: unknown is not zero
    with pytest.raises(Skip):
        gpu.check_node_ecc(HERE)
    older = {"index": "0", "name": "Tesla V100-SXM2-32GB", "ecc.mode.current": "Enabled"}
    smi(monkeypatch, {**older, nvidia.TOTALS[0]: "2"})
    assert gpu.check_node_ecc(HERE).status == FAIL
    smi(monkeypatch, {**good, "remapped_rows.pending": "1|0"})
    assert gpu.check_node_ecc(HERE).measured == "GPU 0: remapped_rows.pending 1"


def test_gpus_that_were_made_without_ecc_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """GeForce, and most RTX: nobody can make node.ecc pass there, so it must not shut a gate."""
    none = dict.fromkeys(nvidia.ECC, "[N/A]|[N/A]")
    smi(monkeypatch, {"index": "0|1", "name": "a|b", "gpu_name": "a|b", **none})
    with pytest.raises(NotBuiltIn, match="no ECC"):
        gpu.check_node_ecc(HERE)
    assert run_check("node.ecc", lambda: gpu.check_node_ecc(HERE), "n1")["not_built_in"]

    asks = {nvidia.RECOVERY: "None|Reboot"}
    smi(monkeypatch, {"index": "0|1", "name": "a|b", **none, **asks})
    found = gpu.check_node_ecc(HERE)
    assert found.status == FAIL, "a reset that is asked for counts without ECC, too"
    assert found.measured == "GPU 1: the driver asks for Reboot"

    hidden = dict.fromkeys(nvidia.ECC, "[Insufficient Permissions]|[N/A]")
    smi(monkeypatch, {"index": "0|1", "name": "a|b", **hidden})
    assert not run_check("node.ecc", lambda: gpu.check_node_ecc(HERE), "n1")["not_built_in"]


def test_throttle_tells_heat_from_a_power_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    for names in (nvidia.THROTTLE, nvidia.THROTTLE_BEFORE_535):
        calm = {"index": "0", "pci.bus_id": "1", **dict.fromkeys(names, "Not Active")}
        power = names[0].rpartition(".")[0] + ".sw_power_cap"
        for change, status in (({}, PASS), ({power: "Active"}, PASS), ({names[1]: "Active"}, FAIL)):
            smi(monkeypatch, {**calm, **change})
            assert gpu.check_node_throttle(HERE).status == status


def test_a_narrow_link_fails_and_a_resting_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    link = {"index": "0", "pcie.link.gen.current": "5", "pcie.link.gen.max": "5", "pcie.link.width.current": "16",
            "pcie.link.width.max": "16"}  # fmt: skip
    for change, status in (
        ({}, PASS),
        ({"pcie.link.gen.current": "1"}, PASS),
        ({"pcie.link.width.current": "8"}, WARN),  # the slot of a lone GPU may have no more
        (
            {"index": "0|1", "pcie.link.width.current": "8|16", "pcie.link.width.max": "16|16"},
            FAIL,
        ),
        (
            {"pcie.link.width.current": "8", "name": "NVIDIA GH200 480GB"},
            PASS,
        ),  # it reaches the CPU by C2C
    ):
        smi(monkeypatch, {**link, **change})
        assert gpu.check_node_pcie(HERE).status == status


def put_in_slot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lanes: str) -> None:
    """The GPU at 01:00.0 is in a slot of so many LANES; the kernel does not say where it is empty."""
    port = tmp_path / "sys/devices/pci0000:00/0000:00:01.0"
    (port / "0000:01:00.0").mkdir(parents=True)
    if lanes:
        (port / "max_link_width").write_text(f"{lanes}\n")
    bus = tmp_path / "sys/bus/pci/devices"
    bus.mkdir(parents=True)
    (bus / "0000:00:01.0").symlink_to(port)
    (bus / "0000:01:00.0").symlink_to(port / "0000:01:00.0")
    monkeypatch.setattr(machine.HERE, "root", str(tmp_path))


@pytest.mark.parametrize(("lanes", "status"), [("8", WARN), ("16", FAIL), ("", WARN)])
def test_a_link_that_fills_its_slot_is_not_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lanes: str, status: str
) -> None:
    """An L4 in a slot of x8 (thamada/nvidia-smi: `Max 16x Current 8x`) was to be reseated."""
    put_in_slot(monkeypatch, tmp_path, lanes)
    smi(monkeypatch, {
        "index": "0", "name": "NVIDIA L4", "pci.bus_id": "00000000:01:00.0", "pcie.link.gen.current": "4",
        "pcie.link.gen.max": "4", "pcie.link.width.current": "8", "pcie.link.width.max": "16",
    })  # fmt: skip
    result = gpu.check_node_pcie(HERE)
    assert result.status == status
    assert ("slot of x8" in result.measured) == result.not_built_in == (lanes == "8")


@pytest.mark.parametrize(("lanes", "status"), [("8", WARN), ("16", FAIL)])
def test_copies_over_a_link_that_fills_its_slot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lanes: str, status: str
) -> None:
    put_in_slot(monkeypatch, tmp_path, lanes)
    row = {
        "index": "0",
        "pci.bus_id": "00000000:01:00.0",
        "pcie.link.width.current": "8",
        "pcie.link.width.max": "16",
    }
    result = judge.judge_host(12.0, 12.0, [row], "L4")
    assert result.status == status
    assert result.figures == {"h2d_GB_s": 12.0, "d2h_GB_s": 12.0}


def nvlinks(count: int, rate: str = "26.562 GB/s", changed: str = "", gpus: int = 2) -> str:
    """`nvidia-smi nvlink -s` of GPUS, the last of whose links CHANGED is said of."""
    out = []
    for number in range(gpus):
        out.append(f"GPU {number}: NVIDIA (UUID: GPU-{number})")
        last = number == gpus - 1 and changed
        out += [
            f"\t Link {n}: {changed if last and n == count - 1 else rate}" for n in range(count)
        ]
    return "\n".join(out) + "\n"


H100 = {"index": "0|1", "name": "NVIDIA H100 80GB HBM3|NVIDIA H100 80GB HBM3", "uuid": "a|b"}
DOWN = "NVML: Unable to retrieve NVLink information as all links are inActive"


@pytest.mark.parametrize(("text", "said"), [
    (nvlinks(18), ""),
    (nvlinks(18, changed="<inactive>"), "GPU 1: link 17 is inactive"),
    (nvlinks(17), "GPU 0: 17 active link(s); GPU 1: 17 active link(s)"),  # this model has 18
    (nvlinks(18, changed="20 GB/s"), "GPU 1: link 17 at 20 GB/s"),
    (nvlinks(18, gpus=1) + f"GPU 1: NVIDIA (UUID: x)\n{DOWN}\n", "GPU 1: 0 active link(s)"),
    (DOWN, "nvidia-smi shows no link"),
])  # fmt: skip
def test_nvlinks_are_as_many_and_as_fast_as_the_model_has(
    monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    smi(monkeypatch, {**H100, "nvlink -s": text})
    result = nvlink.check_node_nvlink(HERE)
    assert result.status == (FAIL if said else PASS), result
    assert said in result.measured


def test_a_lone_gpu_of_a_board_has_no_other_to_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a virtual machine with NVreg_NvLinkDisable=1; but a site that promises NVLink has it."""
    alone = {"index": "0", "name": "NVIDIA H100 80GB HBM3", "uuid": "a", "nvlink -s": DOWN}
    smi(monkeypatch, alone)
    with pytest.raises(Skip, match="no other to reach"):
        nvlink.check_node_nvlink(HERE)
    promised = replace(HERE, nvlink=True)
    assert nvlink.check_node_nvlink(promised).status == FAIL


def test_nvlinks_of_another_model_are_held_against_each_other_and_the_site(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a30 = {"index": "0|1", "name": "NVIDIA A30|NVIDIA A30", "uuid": "a|b"}
    smi(monkeypatch, {**a30, "nvlink -s": nvlinks(4)})
    assert nvlink.check_node_nvlink(HERE).status == PASS
    smi(monkeypatch, a30)
    with pytest.raises(Skip):
        nvlink.check_node_nvlink(HERE)
    assert nvlink.check_node_nvlink(Request(output=".", nvlink=True)).status == FAIL
    smi(monkeypatch, {**H100, "mig.mode.current": "Enabled|Enabled", "nvlink -s": DOWN})
    with pytest.raises(Skip):
        nvlink.check_node_nvlink(HERE)


def fabric(
    state: str = "Completed", status: str = "Success", uuid: str = "", health: str = "Healthy"
) -> str:
    """The part of `nvidia-smi -q` about NVLink's fabric, in the form of k8s-test-infra #677 and
    dra-driver #626.
    """
    return f"""
GPU 00000000:18:00.0
    Product Name                          : NVIDIA GB200
    Fabric
        State                             : {state}
        Status                            : {status}
        CliqueId                          : 2
        ClusterUUID                       : {uuid or "dc6e40c4-d722-4357-9ba6-5291dd461278"}
        Health
            Summary                       : {health}
            Bandwidth                     : Full
    Processes                             : None
"""


@pytest.mark.parametrize(("text", "said"), [
    (fabric(), ""),
    (fabric(health="Not Supported"), ""),
    (fabric(state="In Progress"), "GPU 0: state In Progress"),
    (fabric(status="Insufficient Resources"), "GPU 0: status Insufficient Resources"),
    (fabric(uuid=nvlink.NO_CLUSTER), "GPU 0: no cluster UUID"),
    (fabric(health="Unhealthy"), "GPU 0: health Unhealthy"),
])  # fmt: skip
def test_a_gpu_outside_the_fabric_is_named(
    monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    smi(monkeypatch, {"-q": text})
    result = nvlink.check_node_nvlink_fabric(HERE)
    assert (result.status, said in result.measured) == (FAIL if said else PASS, True)


def test_a_gb200_without_a_fabric_is_judged_by_what_the_site_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    smi(monkeypatch, {"-q": fabric(state="N/A"), "index": "0", "name": "NVIDIA GB200"})
    assert nvlink.check_node_nvlink_fabric(HERE).status == WARN
    assert nvlink.check_node_nvlink_fabric(Request(output=".", domain_nodes=18)).status == FAIL
    for check in (nvlink.check_node_nvlink_fabric, nvlink.check_node_imex):
        with pytest.raises(Skip):
            check(Request(output=".", domain_nodes=1, nodes=2))  # NVL4


def test_links_that_a_bridge_leaves_free_are_none_that_are_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H100 NVL, and `Inactive` with a capital as azurehpc-health-checks #162 has it."""
    free = "".join(
        f"GPU {n}: NVIDIA H100 NVL (UUID: x)\n\t Link 0: 26.562 GB/s\n\t Link 4: Inactive\n"
        for n in (0, 1)
    )
    nvl = {"index": "0|1", "name": "NVIDIA H100 NVL|NVIDIA H100 NVL", "uuid": "a|b"}
    smi(monkeypatch, {**nvl, "nvlink -s": free})
    assert nvlink.check_node_nvlink(HERE).status == PASS
    smi(
        monkeypatch,
        {**nvl, "nvlink -s": free.replace("Link 4: Inactive", "Link 4: 26.562 GB/s", 1)},
    )
    assert nvlink.check_node_nvlink(HERE).status == FAIL


def test_mig_devices_are_counted_where_gpus_are_too_few(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pytest.TempPathFactory
) -> None:
    monkeypatch.setattr(host, "open_gpus", lambda: ["/dev/nvidia0"])
    text = "GPU 0: NVIDIA A100 (UUID: GPU-1)\n" + "".join(
        f"  MIG 1g.10gb     Device  {n}: (UUID: MIG-{n})\n" for n in range(7)
    )
    smi(monkeypatch, {"-L": text})
    result = host.check_node_gpus(Request(output=".", gpus=7))
    assert result.status == PASS
    assert result.measured == "7 MIG device(s) on 1 GPU(s)"
    smi(monkeypatch, {"-L": "GPU 0: NVIDIA A100 (UUID: GPU-1)\n"})
    assert host.check_node_gpus(Request(output=".", gpus=7)).status == FAIL


COUNTING = """
GPU 00000000:18:00.0
    PCI
        Replays Since Reset               : {replays}
    Clocks Event Reasons Counters
        SW Power Capping                  : 900000 us
        HW Thermal Slowdown               : {hot} us
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            DRAM Uncorrectable            : {dram}
"""


def test_what_gpus_count_during_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(
        replays: int = 3, hot: int = 5, dram: int = 0, crc: int = 0, recovery: int = 0
    ) -> dict[str, int]:
        links = (
            f"GPU 0: NVIDIA (UUID: x)\n\t Link 0: Replay Errors: {crc}\n\t Link 0: Recovery "
            f"Errors: {recovery}\n"
        )
        smi(
            monkeypatch,
            {"-q": COUNTING.format(replays=replays, hot=hot, dram=dram), "nvlink -e": links},
        )
        return counters.read_counters()

    before = read()
    for after, status in (
        (read(), PASS), (read(replays=50), PASS), (read(replays=500), WARN), (read(hot=2_000_000), FAIL),
        (read(hot=50_000), PASS), (read(dram=1), FAIL), (read(recovery=1), FAIL), (read(crc=7), PASS),
    ):  # fmt: skip
        assert counters.judge_counter_gains(before, after).status == status, after
    with pytest.raises(Skip):
        counters.judge_counter_gains({}, before)


@pytest.mark.parametrize(("line", "number"), [
    ("NVRM: Xid (PCI:0000:65:00): 79, pid=1234, name=python, GPU has fallen off the bus.", 79),
    (("NVRM: Xid (PCI:0000:65:00): 48, An uncorrectable double bit error (DBE) has been " "detected"), 48),
    (("[ 12.3] NVRM: Xid (PCI:0000:65:00 GPU-I:03): 94, pid='<unknown>', name=<unknown>, " "Contained"), 94),
])  # fmt: skip
def test_xids_are_read(line: str, number: int) -> None:
    assert [one[1] for one in nvidia.parse_xids(["other", line])] == [number]


def log(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(machine.HERE, "exists", lambda name: True, raising=False)
    monkeypatch.setattr(machine.HERE, "kernel_log", lambda seconds: list(lines), raising=False)


@pytest.mark.parametrize(("line", "status"), [
    # a program's own fault
    ("NVRM: Xid (PCI:0000:65:00): 31, pid=1, name=python, MMU Fault", PASS),
    ("NVRM: Xid (PCI:0000:65:00): 79, pid=1, GPU has fallen off the bus.", FAIL),
    ("NVRM: Xid (PCI:0000:65:00): 46, pid=1, GPU stopped processing", FAIL),
    (("NVRM: Xid (PCI:0000:00:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 " "0x00000000)"), FAIL),
    ("NVRM: Xid (PCI:0000:65:00): 95, pid=1, Uncontained memory error", FAIL),
    (("NVRM: Xid (PCI:0000:65:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU " "Reset Required)"), FAIL),
    (("NVRM: Xid (PCI:0000:65:00): 154, GPU recovery action changed from 0x1 (GPU Reset " "Required) to 0x0 (None)"), PASS),
    (("NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 " "0x00000008)"), PASS),
    (("nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ " "interrupt"), PASS),
    ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", FAIL),
])  # fmt: skip
def test_xids_that_take_a_gpu_out_of_service(
    monkeypatch: pytest.MonkeyPatch, line: str, status: str
) -> None:
    log(monkeypatch, "other", line)
    assert gpu.check_node_xid(HERE).status == status


@given(st.text())
def test_no_text_breaks_the_readers(text: str) -> None:
    nvidia.parse_csv(text, nvidia.IDENTITY)
    nvidia.parse_links(text)
    nvidia.parse_xids(text.splitlines())
    nvidia.find_fatal_sxids(text.splitlines())
    nvidia.parse_details(text)
    nvidia.parse_mig_devices(text)
