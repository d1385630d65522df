"""Check a node's GPUs by nvidia-smi and the kernel's log.

Tested in tests/unit/smoke/test_nvidia.py and tests/unit/suite/test_clusters.py.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcstack_smoke.node import machine, nvidia, sysfs
from hpcstack_smoke.result import (
    FAIL,
    PASS,
    WARN,
    NeedsRoot,
    NotBuiltIn,
    Result,
    Skip,
    judge_result,
)

if TYPE_CHECKING:
    from collections.abc import Callable

AZURE = "Azure/azurehpc-health-checks"

# Xids that take a GPU out of service if seen within two hours, by the immediate action that
# NVIDIA's catalogue gives (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html).
# Reset the GPU, or restart the machine:
RESET_XIDS = (46, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143, 156, 158)
# Follow NVIDIA's workflow for memory (48) or NVLink (74; since Blackwell 144 to 150, which may call
# themselves Nonfatal: leptonai/gpud #1160), or do what 154 asks for, unless that is None:
EXAMINED_XIDS = (48, 74, *range(144, 151), 154)
# Of Volta and older, which the catalogue leaves out: those of Azure's node health checks.
OLDER_XIDS = (56, 57, 58)
# Azure's checks also name Xids that are left out here: 68, 69 and 80, which any user's program can
# cause (the action is to restart the program); 63 and 92, which need no action; and 65, 73 and 81,
# which no GPU since Ampere reports. 155 is left out as it is also reported of a link that was put
# to sleep.
BAD_XIDS = tuple(sorted((*RESET_XIDS, *EXAMINED_XIDS, *OLDER_XIDS)))
# Pieces of an Xid's text that ask for nothing
HARMLESS = ("nonfatal", "(none)", "to 0x0 ")
XID_SECONDS = 2 * 3600

# Errors that Azure's check_gpu_ecc allows (its arguments: 20000000 10000), and remapped rows
SRAM_MAX, DRAM_MAX, REMAPPED_MAX = 10_000, 20_000_000, 512
# Pages of memory that a GPU older than Ampere can retire in its life
# (https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/row-remapping.html)
RETIRED_MAX = 64
# Uncorrectable errors in SRAM over the GPU's life; with more of them GPUs are sent back to the
# vendor (stas00/ml-engineering)
EVER_MAX = 4
RESET = "drain the node: check dmesg for Xids, then reset the GPU (nvidia-smi -r)"

# GPUs whose link to the CPU is NVLink-C2C
BY_C2C = ("GH200", "GB200", "GB300", "GB10")
# GPUs whose memory is HBM: ECC costs them nothing, and figures of one without ECC prove little
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
    """Raised where a GPU does not answer; `result` is the FAIL that says which."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.measured)
        self.result = result


def read_rows(request: Any, fields: tuple[str, ...]) -> list[dict[str, str]]:
    """Return what nvidia-smi says of FIELDS, besides index and name: one {field: value} a GPU.

    Raise Lost where a GPU does not answer, or where GPUs were asked for and nvidia-smi lists none.
    Raise Skip where there is no nvidia-smi, or where the driver knows none of FIELDS.
    """
    rows = nvidia.query_gpus(("index", "name", *fields))
    if not rows:
        if not request.gpus:
            raise Skip("nvidia-smi is missing or lists no GPU")
        expected = f"{request.gpus} GPU(s)"
        measured = "nvidia-smi lists no GPU"
        raise Lost(Result(FAIL, measured, expected, "what was asked for", remedy=RESET))

    lost = [
        f"GPU {row.get('index', '?')}: {value}"
        for row in rows
        for value in row.values()
        if value in nvidia.LOST
    ]
    if lost:
        measured = "; ".join(dict.fromkeys(lost))
        raise Lost(Result(FAIL, measured, "every GPU answers", "nvidia-smi", remedy=RESET))
    if not any(field in row for row in rows for field in fields):
        raise Skip("this driver does not report it, or not to this process")
    return rows


def fail_without_answer(check: Callable[[Any], Result]) -> Callable[[Any], Result]:
    """Return CHECK, wrapped to return the FAIL that a Lost carries instead of raising it."""

    @functools.wraps(check)
    def run(request: Any) -> Result:
        try:
            return check(request)
        except Lost as lost:
            return lost.result

    return run


def name_model(row: dict[str, str]) -> str:
    """Return the GPU's name as the tables here have it, without NVIDIA before it."""
    return row.get("name", "").removeprefix("NVIDIA ")


def _find_demands() -> list[str]:
    """Return what the driver asks for, GPU by GPU: a reset, a reboot that retires pages, a new GPU.

    A GPU of no use may have all its counters at 0 (sichek 121). V100 and older retire pages where
    newer GPUs remap rows; a page that waits can still be given to a program
    (`nvidia-smi --help-query-gpu`, which describes both fields).
    """
    out = []
    for row in nvidia.query_gpus(("index", nvidia.RECOVERY)):
        action = row.get(nvidia.RECOVERY, "None")
        if action != "None":
            out.append(f"GPU {row.get('index', '?')}: the driver asks for {action}")
    for row in nvidia.query_gpus(("index", nvidia.PENDING_PAGES)):
        if row.get(nvidia.PENDING_PAGES) == "Yes":
            number = row.get("index", "?")
            out.append(f"GPU {number}: pages of its memory wait for a reboot to be retired")
    for row in nvidia.query_newer(("index", *nvidia.RETIRED_PAGES)):
        retired = sum(nvidia.parse_number(row.get(one, "")) or 0 for one in nvidia.RETIRED_PAGES)
        if retired >= RETIRED_MAX:
            number = row.get("index", "?")
            out.append(
                f"GPU {number}: {retired:.0f} pages of its memory are retired, and no more can be"
            )
    return out


@fail_without_answer
def check_node_ecc(request: Any) -> Result:
    """Check that ECC is on, its error counts are within limits, and no row awaits remapping.

    An uncorrectable error in DRAM is repaired by remapping its row, at the next reset of the GPU.
    Until then the row is pending, which is a FAIL. An old uncorrectable error in SRAM is a WARN:
    nothing removes it from the aggregate count.
    """
    try:
        rows = read_rows(request, nvidia.ECC)
    except Skip:
        demands = _find_demands()
        if demands:
            return Result(FAIL, "; ".join(demands), "none", "nvidia-smi", remedy=RESET)
        if nvidia.lacks_field("ecc.mode.current"):
            raise NotBuiltIn("these GPUs have no ECC") from None
        raise
    bad = [fault for row in rows for fault in _find_ecc_faults(row)]
    bad += _find_remapping_faults()
    if not bad and not any(name.startswith("ecc.errors") for row in rows for name in row):
        raise Skip("these GPUs count no ECC errors, or do not report them to this process")

    for row in nvidia.query_gpus(("index", nvidia.EXCEEDED)):
        if row.get(nvidia.EXCEEDED) == "Yes":
            bad.append(f"GPU {row['index']}: SRAM's threshold is exceeded")
    bad += _find_demands()

    ever = []
    for row in rows:
        count = nvidia.parse_number(row.get(nvidia.UNCORRECTED_SRAM[1], "")) or 0
        if count:
            ever.append(f"GPU {row['index']}: {count:.0f} uncorrectable in SRAM since it was made")
    if ever and not bad:
        remedy = "note it; return the GPU if it happens again or the count exceeds four"
        return Result(WARN, "; ".join(ever), "none; Azure drains such a node", AZURE, remedy=remedy)

    expected = (
        f"ECC on; SRAM: none uncorrectable, <= {SRAM_MAX:,} corrected; DRAM: <= {DRAM_MAX:,}, no "
        "row pending"
    )
    return judge_result(
        not bad,
        "; ".join(bad) or f"{len(rows)} GPU(s) within limits",
        expected,
        AZURE,
        remedy="drain the node and reset the GPU (nvidia-smi -r); replace it if the errors return; "
        "if ECC is off, turn it on (nvidia-smi -e 1)",
    )


def _find_ecc_faults(row: dict[str, str]) -> list[str]:
    """Return what is wrong with one GPU's ECC: counts above their limits, or ECC that is off."""
    now, ever = nvidia.UNCORRECTED_SRAM
    limits = {
        now: 0,
        ever: EVER_MAX,
        **dict.fromkeys(nvidia.CORRECTED_SRAM, SRAM_MAX),
        **dict.fromkeys(nvidia.DRAM, DRAM_MAX),
    }
    if not any(name in row for name in limits):
        # A GPU older than Ampere counts SRAM and DRAM together
        limits = dict.fromkeys(nvidia.TOTALS, 0)

    bad = []
    for name, limit in limits.items():
        count = nvidia.parse_number(row.get(name, ""))
        if count is not None and count > limit:
            bad.append(f"GPU {row['index']}: {name.removeprefix('ecc.errors.')} {count:.0f}")
    if row.get("ecc.mode.current") == "Disabled" and name_model(row).startswith(HBM):
        bad.append(f"GPU {row['index']}: ECC is off")
    return bad


def _find_remapping_faults() -> list[str]:
    """Return which GPUs have rows that wait to be remapped, could not be, or are too many."""
    pending, failure, uncorrectable = nvidia.REMAPPED
    bad = []
    rows = nvidia.query_gpus(("gpu_uuid", *nvidia.REMAPPED), kind="remapped-rows")
    for place, row in enumerate(rows):
        for name in (pending, failure):
            if row.get(name, "0") not in ("0", "No"):
                bad.append(f"GPU {place}: {name} {row[name]}")
        if (nvidia.parse_number(row.get(uncorrectable, "")) or 0) > REMAPPED_MAX:
            bad.append(f"GPU {place}: {uncorrectable} {row[uncorrectable]}")
    return bad


def check_node_xid(request: Any) -> Result:
    """Check that the kernel's log of the last two hours has no Xid that takes a GPU out of service.

    A fatal SXid, which NVSwitch reports, is a FAIL too. Raise NeedsRoot where the log cannot be
    read.
    """
    if not machine.HERE.exists("/proc/driver/nvidia/version"):
        raise Skip("no NVIDIA driver on this node")
    try:
        log = machine.HERE.kernel_log(XID_SECONDS)
    except OSError as error:
        raise NeedsRoot(f"kernel log not readable ({error.strerror})") from None

    found = [
        ("Xid", where, number, text)
        for where, number, text in nvidia.parse_xids(log)
        if number in BAD_XIDS and not _is_harmless(text)
    ]
    found += [("SXid", *one) for one in nvidia.find_fatal_sxids(log)]

    listed = "; ".join(f"{kind} {number} on {where}" for kind, where, number, _ in found[:8])
    return judge_result(
        not found,
        listed or "none of them",
        f"none of {', '.join(map(str, BAD_XIDS))} in 2 h, no fatal SXid",
        f"{AZURE}; NVIDIA's Xid catalogue",
        evidence=found[0][3] if found else "",
        remedy="drain the node; NVIDIA's Xid catalogue gives the cause and the action",
    )


def _is_harmless(text: str) -> bool:
    """Return whether TEXT of an Xid says that it is of a kind that asks for nothing.

    Xid 154 names the action before and after, `... from 0x1 (...) to 0x0 (None)`: what counts
    stands after the last `to`.
    """
    action = text.lower()
    if " to 0x" in action:
        action = action.rpartition(" to ")[2]
    return any(word in action or word in f"to {action} " for word in HARMLESS)


def read_slowdowns() -> tuple[list[dict[str, str]], dict[str, list[str]]]:
    """Return (a row of slowdown reasons for each GPU, {GPU: what slows it down now}).

    The reasons are heat and the power supply. A power cap is none of them: a GPU at its limit works
    as it should.
    """
    names = nvidia.THROTTLE
    rows = nvidia.query_gpus(("index", *names))
    if not any(name in row for row in rows for name in names):
        names = nvidia.THROTTLE_BEFORE_535
        rows = nvidia.query_gpus(("index", *names))

    slowed = {}
    for row in rows:
        reasons = [name.rpartition(".")[2] for name in names if row.get(name) == "Active"]
        if reasons:
            slowed[row.get("index", "?")] = reasons
    return rows, slowed


@fail_without_answer
def check_node_throttle(request: Any) -> Result:
    """Check that no GPU is slowed down by heat or by its power supply."""
    read_rows(request, ("pci.bus_id",))  # raises where a GPU does not answer
    rows, slowed = read_slowdowns()
    names = (*nvidia.THROTTLE, *nvidia.THROTTLE_BEFORE_535)
    if not any(name in row for row in rows for name in names):
        raise Skip("this driver does not report slowdowns")

    listed = "; ".join(f"GPU {gpu}: {', '.join(reasons)}" for gpu, reasons in slowed.items())
    return judge_result(
        not slowed,
        listed or f"{len(rows)} GPU(s) without slowdown",
        "no slowdown by hardware or heat",
        "nvidia-smi, clocks_event_reasons",
        remedy="drain the node; check its cooling and power supply",
    )


class NarrowLink(NamedTuple):
    """A GPU's PCIe link that has fewer lanes than the GPU could use.

    `slot` is how many lanes the slot has; empty where the kernel does not say.
    """

    gpu: str
    now: str
    most: str
    slot: str = ""

    @property
    def fills_slot(self) -> bool:
        """Whether the link has all lanes that the slot has: then nothing is broken."""
        return self.slot == self.now

    def __str__(self) -> str:
        text = f"GPU {self.gpu}: x{self.now} of x{self.most}"
        if self.fills_slot:
            text += f", in a slot of x{self.slot}"
        return text


def narrow_links(rows: list[dict[str, str]]) -> tuple[list[NarrowLink], list[str]]:
    """Return (links below their full width, texts on links below their full generation).

    An idle GPU may rest at a lower generation; one that stays there under load has trained low.
    GPUs that reach the CPU by NVLink-C2C are left out: what they report about PCIe is not true.
    """
    narrow: list[NarrowLink] = []
    slow: list[str] = []
    for row in rows:
        if name_model(row).startswith(BY_C2C):
            continue
        now = row.get("pcie.link.width.current")
        most = row.get("pcie.link.width.max")
        if now and most and now != most:
            slot = sysfs.read_slot_width(row.get("pci.bus_id", ""))
            narrow.append(NarrowLink(row["index"], now, most, slot))
        now = row.get("pcie.link.gen.current")
        most = row.get("pcie.link.gen.max")
        if now and most and now != most:
            slow.append(f"GPU {row['index']}: generation {now} of {most}")
    return narrow, slow


PCIE_REMEDY = (
    "reseat the GPU or its riser; a link that trained low stays so until the node is rebooted"
)
SLOT_REMEDY = "a wider slot, if copies between host and GPU matter; nothing is broken"
FULL_LINK = "the full width and generation of GPU and slot"


@fail_without_answer
def check_node_pcie(request: Any) -> Result:
    """Check that each GPU's PCIe link has its full width.

    An idle GPU may rest at a lower generation: node.copies looks at it under load.
    """
    rows = read_rows(request, nvidia.PCIE)
    addresses = {row.get("index"): row for row in nvidia.query_newer(("index", "pci.bus_id"))}
    narrow, slow = narrow_links([{**addresses.get(row.get("index"), {}), **row} for row in rows])
    if narrow:
        measured = "; ".join([*map(str, narrow), *slow])
        widths = {(one.now, one.most) for one in narrow}
        if all(one.fills_slot for one in narrow):
            return Result(
                WARN,
                measured,
                FULL_LINK,
                "nvidia-smi, sysfs",
                remedy=SLOT_REMEDY,
                not_built_in=True,
            )
        status = FAIL
        if len(narrow) == len(rows) > 1 and len(widths) == 1:
            # All alike: the board may be wired that way, and all its links need not be broken
            status = WARN
        if len(rows) == 1 and not narrow[0].slot:
            # Neither another GPU nor the kernel says whether the slot has more
            status = WARN
        return Result(status, measured, FULL_LINK, "nvidia-smi", remedy=PCIE_REMEDY)

    generation = rows[0].get("pcie.link.gen.max", "?")
    width = rows[0].get("pcie.link.width.max", "?")
    measured = f"generation {generation} x{width} on {len(rows)} GPU(s)"
    evidence = f"at rest now: {'; '.join(slow)}" if slow else ""
    return Result(PASS, measured, FULL_LINK, "nvidia-smi", evidence)


@fail_without_answer
def check_node_persistence(request: Any) -> Result:
    """Check that persistence mode is on.

    Without it, each first use of a GPU waits for the driver to load.
    """
    rows = read_rows(request, ("persistence_mode",))
    off = [row["index"] for row in rows if row.get("persistence_mode") == "Disabled"]
    if off:
        remedy = "run nvidia-persistenced on the node"
        return Result(WARN, f"off on GPU {', '.join(off)}", "on", remedy=remedy)
    return Result(PASS, f"on for {len(rows)} GPU(s)", "on")
