"""Checks of a node's GPUs by nvidia-smi and the kernel's log."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcstack_smoke.node import machine, nvidia
from hpcstack_smoke.result import FAIL, PASS, WARN, NeedsRoot, Result, Skip, judge_result

if TYPE_CHECKING:
    from collections.abc import Callable

AZURE = "Azure/azurehpc-health-checks"
# Xids that take a GPU out of service, if seen within two hours, by what NVIDIA's catalogue says to
# do at once (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html): reset the GPU,
# or restart the machine ...
RESET_XIDS = (46, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143, 156, 158)
# ... follow NVIDIA's way for memory (48) and NVLink (74; 144 to 150 since Blackwell, which may call
# themselves Nonfatal; leptonai/gpud #1160), and do what 154 asks for, unless that is None ...
EXAMINED_XIDS = (48, 74, *range(144, 151), 154)
# ... and of Volta and older, which the catalogue leaves out, those of Azure's node health checks.
OLDER_XIDS = (56, 57, 58)
# Not among them, though Azure's checks name them: what a program of any user can bring about (68,
# 69, 80: restart the program), what needs nothing done (63, 92), and what no GPU since Ampere says
# (65, 73, 81). Nor 155, which is also said of a link that was put to sleep.
BAD_XIDS = tuple(sorted((*RESET_XIDS, *EXAMINED_XIDS, *OLDER_XIDS)))
HARMLESS = ("nonfatal", "(none)", "to 0x0 ")
XID_SECONDS = 2 * 3600
SRAM_MAX, DRAM_MAX, REMAPPED_MAX = 10_000, 20_000_000, 512  # check_gpu_ecc 20000000 10000
EVER_MAX = (
    4  # uncorrectable in SRAM since it was made: above, GPUs are sent back (stas00/ml-engineering)
)
RESET = "drain the node: look at dmesg for Xid, nvidia-smi -r"
# GPUs whose memory is HBM: ECC costs them nothing, and a figure of one without it proves little
BY_C2C = ("GH200", "GB200", "GB300", "GB10")
HBM = (
    "V100",
    "A100",
    "A30",
    "H100",
    "H200",
    "GH200",
    "B200",
    "GB200",
    "B300",
    "GB300",
    "H800",
    "H20",
    "A800",
)


class Lost(Exception):
    """A GPU that does not answer: the Result says which."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.measured)
        self.result = result


def read_rows(request: Any, fields: tuple[str, ...]) -> list[dict[str, str]]:
    """What nvidia-smi says of FIELDS, a row a GPU.

    Lost where one does not answer, or none of those asked for.
    """
    rows = nvidia.query_gpus(("index", "name", *fields))
    if not rows:
        if request.gpus:
            raise Lost(
                Result(
                    FAIL,
                    "nvidia-smi says nothing",
                    f"{request.gpus} GPU(s)",
                    "what was asked for",
                    remedy=RESET,
                )
            )
        raise Skip("nvidia-smi is not here or says nothing")
    lost = [
        f"GPU {row.get('index', '?')}: {value}"
        for row in rows
        for value in row.values()
        if value in nvidia.LOST
    ]
    if lost:
        raise Lost(
            Result(
                FAIL,
                "; ".join(dict.fromkeys(lost)),
                "every GPU answers",
                "nvidia-smi",
                remedy=RESET,
            )
        )
    if not any(field in row for row in rows for field in fields):
        raise Skip("this driver does not say it, or not to this process")
    return rows


def fail_without_answer(check: Callable[[Any], Result]) -> Callable[[Any], Result]:
    """CHECK, with its FAIL where a GPU does not answer."""

    @functools.wraps(check)
    def run(request: Any) -> Result:
        try:
            return check(request)
        except Lost as lost:
            return lost.result

    return run


def name_model(row: dict[str, str]) -> str:
    """The GPU's name as tables have it, without NVIDIA before it."""
    return row.get("name", "").removeprefix("NVIDIA ")


@fail_without_answer
def ecc(request: Any) -> Result:
    """ECC is on, no uncorrectable error in SRAM, few corrected ones, no row that waits to be
    remapped or could not be.

    DRAM's uncorrectable errors are remapped: until the reset that does so, a row is pending, which
    is a FAIL. One in SRAM of long ago, which nothing takes back, is a WARN.
    """
    rows = read_rows(request, nvidia.ECC)
    bad = [said for row in rows for said in _ecc_of(row)]
    for place, row in enumerate(
        nvidia.query_gpus(("gpu_uuid", *nvidia.REMAPPED), kind="remapped-rows")
    ):
        bad += [
            f"GPU {place}: {name} {row[name]}"
            for name in nvidia.REMAPPED[:2]
            if row.get(name, "0") not in ("0", "No")
        ]
        if (nvidia.parse_number(row.get(nvidia.REMAPPED[2], "")) or 0) > REMAPPED_MAX:
            bad.append(f"GPU {place}: {nvidia.REMAPPED[2]} {row[nvidia.REMAPPED[2]]}")
    if not bad and not any(name.startswith("ecc.errors") for row in rows for name in row):
        raise Skip("these GPUs count no ECC errors, or do not say so to this process")
    exceeded = nvidia.query_gpus(("index", nvidia.EXCEEDED))
    bad += [
        f"GPU {row['index']}: SRAM's threshold is exceeded"
        for row in exceeded
        if row.get(nvidia.EXCEEDED) == "Yes"
    ]
    ever = [
        f"GPU {row['index']}: {count:.0f} uncorrectable in SRAM since it was made"
        for row in rows
        if (count := nvidia.parse_number(row.get(nvidia.UNCORRECTED_SRAM[1], "")) or 0)
    ]
    if ever and not bad:
        remedy = "note it; another one, or more than four in all: send the GPU back"
        return Result(WARN, "; ".join(ever), "none; Azure drains such a node", AZURE, remedy=remedy)
    return judge_result(
        not bad,
        "; ".join(bad) or f"{len(rows)} GPU(s) within limits",
        (
            f"ECC on; in SRAM none uncorrectable and <= {SRAM_MAX:,} corrected, <= {DRAM_MAX:,} in "
            f"DRAM, no row pending"
        ),
        AZURE,
        remedy="drain the node and reset the GPU (nvidia-smi -r); if it returns, replace it. ECC: "
        "nvidia-smi -e 1",
    )


def _ecc_of(row: dict[str, str]) -> list[str]:
    """What is wrong with the ECC of one GPU."""
    now, ever = nvidia.UNCORRECTED_SRAM
    limits = {
        now: 0,
        ever: EVER_MAX,
        **dict.fromkeys(nvidia.CORRECTED_SRAM, SRAM_MAX),
        **dict.fromkeys(nvidia.DRAM, DRAM_MAX),
    }
    if not any(name in row for name in limits):
        limits = dict.fromkeys(nvidia.TOTALS, 0)
    bad = []
    for name, limit in limits.items():
        count = nvidia.parse_number(row.get(name, ""))
        if count is not None and count > limit:
            bad.append(f"GPU {row['index']}: {name.removeprefix('ecc.errors.')} {count:.0f}")
    if row.get("ecc.mode.current") == "Disabled" and name_model(row).startswith(HBM):
        bad.append(f"GPU {row['index']}: ECC is off")
    return bad


def xid(request: Any) -> Result:
    """No Xid or fatal SXid in the kernel's log of the last two hours that takes a GPU out of
    service.
    """
    if not machine.HERE.exists("/proc/driver/nvidia/version"):
        raise Skip("no NVIDIA driver on this node")
    try:
        log = machine.HERE.kernel_log(XID_SECONDS)
    except OSError as error:
        raise NeedsRoot(f"kernel log not readable ({error.strerror})") from None
    found = [
        ("Xid", *one)
        for one in nvidia.parse_xids(log)
        if one[1] in BAD_XIDS and not _harmless(one[2])
    ]
    found += [("SXid", *one) for one in nvidia.fatal_sxids(log)]
    measured = (
        "; ".join(f"{kind} {number} on {where}" for kind, where, number, _ in found[:8])
        or "none of them"
    )
    return judge_result(
        not found,
        measured,
        f"none of {', '.join(map(str, BAD_XIDS))} in 2 h, no fatal SXid",
        f"{AZURE}; NVIDIA's Xid catalogue",
        evidence=found[0][3] if found else "",
        remedy="drain the node; NVIDIA's Xid catalogue names the cause",
    )


def _harmless(text: str) -> bool:
    """Whether an Xid of several kinds is of the kind that asks for nothing."""
    said = text.lower().rpartition(" to ")[2] if " to 0x" in text.lower() else text.lower()
    return any(word in said or word in f"to {said} " for word in HARMLESS)


def read_slowdowns() -> tuple[list[dict[str, str]], dict[str, list[str]]]:
    """(all rows, {GPU: what slows it down now}): by heat or by its power supply; a power cap is as
    it should be.
    """
    rows = nvidia.query_gpus(("index", *nvidia.THROTTLE))
    names = nvidia.THROTTLE
    if not any(name in row for row in rows for name in names):
        names = nvidia.THROTTLE_BEFORE_535
        rows = nvidia.query_gpus(("index", *names))
    hard = {
        row.get("index", "?"): [
            name.rpartition(".")[2] for name in names if row.get(name) == "Active"
        ]
        for row in rows
    }
    return rows, {gpu: reasons for gpu, reasons in hard.items() if reasons}


@fail_without_answer
def throttle(request: Any) -> Result:
    """No GPU is held back by heat or by its power supply."""
    read_rows(request, ("pci.bus_id",))  # whether all answer
    rows, hard = read_slowdowns()
    if not any(
        name in row for row in rows for name in (*nvidia.THROTTLE, *nvidia.THROTTLE_BEFORE_535)
    ):
        raise Skip("this driver does not say it")
    said = "; ".join(f"GPU {gpu}: {', '.join(reasons)}" for gpu, reasons in hard.items())
    return judge_result(
        not hard,
        said or f"{len(rows)} GPU(s) without slowdown",
        "no slowdown by hardware or heat",
        "nvidia-smi, clocks_event_reasons",
        remedy="look at the node's cooling and power supply; drain it",
    )


class NarrowLink(NamedTuple):
    """A GPU's PCIe link with fewer lanes than it could have."""

    gpu: str
    now: str
    most: str

    def __str__(self) -> str:
        return f"GPU {self.gpu}: x{self.now} of x{self.most}"


def narrow_links(rows: list[dict[str, str]]) -> tuple[list[NarrowLink], list[str]]:
    """(GPUs whose link has not its full width, those that rest at or trained to a lower
    generation).

    GPUs that reach the CPU by NVLink-C2C say nothing true of PCIe.
    """
    narrow: list[NarrowLink] = []
    slow: list[str] = []
    for row in rows:
        if name_model(row).startswith(BY_C2C):
            continue
        now, most = row.get("pcie.link.width.current"), row.get("pcie.link.width.max")
        if now and most and now != most:
            narrow.append(NarrowLink(row["index"], now, most))
        now, most = row.get("pcie.link.gen.current"), row.get("pcie.link.gen.max")
        if now and most and now != most:
            slow.append(f"GPU {row['index']}: generation {now} of {most}")
    return narrow, slow


PCIE_REMEDY = (
    "reseat the GPU or its riser; a link that trained low stays so until the node is rebooted"
)
FULL_LINK = "the width and generation that GPU and slot can"


@fail_without_answer
def pcie(request: Any) -> Result:
    """Each link has its full width.

    An idle GPU may rest at a lower generation: node.copies looks under load.
    """
    rows = read_rows(request, nvidia.PCIE)
    narrow, slow = narrow_links(rows)
    if narrow:
        alike = len(narrow) == len(rows) > 1 and len({(one.now, one.most) for one in narrow}) == 1
        status = (
            WARN if alike else FAIL
        )  # all of a kind: so the board is wired, or so many went wrong alike
        return Result(
            status,
            "; ".join([*map(str, narrow), *slow]),
            FULL_LINK,
            "nvidia-smi",
            remedy=PCIE_REMEDY,
        )
    first = rows[0]
    generation, width = (first.get(f"pcie.link.{name}.max", "?") for name in ("gen", "width"))
    said = f"generation {generation} x{width} on {len(rows)} GPU(s)"
    evidence = f"at rest now: {'; '.join(slow)}" if slow else ""
    return Result(PASS, said, FULL_LINK, "nvidia-smi", evidence)


@fail_without_answer
def persistence(request: Any) -> Result:
    """Persistence mode: without it each first use of a GPU waits for the driver to load."""
    rows = read_rows(request, ("persistence_mode",))
    off = [row["index"] for row in rows if row.get("persistence_mode") == "Disabled"]
    if off:
        return Result(
            WARN, f"off on GPU {', '.join(off)}", "on", remedy="run nvidia-persistenced on the node"
        )
    return Result(PASS, f"on for {len(rows)} GPU(s)", "on")
