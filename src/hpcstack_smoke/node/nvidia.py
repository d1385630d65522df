"""Read what nvidia-smi prints.

Fields are those of `nvidia-smi --help-query-gpu`. A value that the driver does not know is left
out of a row.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from hpcstack_smoke.node import machine
from hpcstack_smoke.node.recorder import NotRecorded

IDENTITY = ("index", "name", "uuid", "pci.bus_id", "driver_version", "memory.total", "compute_cap")
FIRMWARE = ("vbios_version", "inforom.image", "mig.mode.current")
# GPUs older than Ampere count errors in SRAM and DRAM together
TOTALS = ("ecc.errors.uncorrected.volatile.total",)
UNCORRECTED_SRAM = ("ecc.errors.uncorrected.volatile.sram", "ecc.errors.uncorrected.aggregate.sram")
EXCEEDED = "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded"  # since driver 550
# What the driver asks for; NVML has none, reset, reboot, drain P2P, drain and reset
RECOVERY = "gpu_recovery_action"
PENDING_PAGES = "retired_pages.pending"
RETIRED_PAGES = ("retired_pages.single_bit_ecc.count", "retired_pages.double_bit.count")
CORRECTED_SRAM = ("ecc.errors.corrected.volatile.sram", "ecc.errors.corrected.aggregate.sram")
DRAM = (
    "ecc.errors.uncorrected.volatile.dram",
    "ecc.errors.uncorrected.aggregate.dram",
    "ecc.errors.corrected.volatile.dram",
    "ecc.errors.corrected.aggregate.dram",
)
ECC = ("ecc.mode.current", *UNCORRECTED_SRAM, *CORRECTED_SRAM, *DRAM, *TOTALS)
REASONS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
THROTTLE = tuple(f"clocks_event_reasons.{name}" for name in REASONS)
THROTTLE_BEFORE_535 = tuple(f"clocks_throttle_reasons.{name}" for name in REASONS)
PCIE = (
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
)
REMAPPED = ("remapped_rows.pending", "remapped_rows.failure", "remapped_rows.uncorrectable")
UNDER_LOAD = ("clocks.sm", "clocks.max.sm", "power.draw", "enforced.power.limit", "temperature.gpu")
# What nvidia-smi prints in place of a value that it does not know
NOTHING = ("", "N/A", "Not Supported")
# What it prints of a GPU that was made without what is asked for; older drivers the second
NOT_BUILT_IN = ("[N/A]", "[Not Supported]")
# What it prints in place of any value of a GPU that does not answer
LOST = ("[Unknown Error]", "[GPU requires reset]", "[GPU is lost]")
XID = re.compile(r"NVRM: Xid \(([^)]*)\): (\d+)(?:, *(.*))?")
SXID = re.compile(r"nvswitch\d*: SXid \(([^)]*)\): (\d+), (Fatal|Non-fatal), *(.*)", re.IGNORECASE)
# Lines of `nvidia-smi nvlink`: the GPU, and below it each of its links
LINK_OWNER = re.compile(r"^GPU (\d+):(.*)")
LINK = re.compile(r"^\s*Link (\d+): (.+?)\s*$")
# The line that begins a GPU in `nvidia-smi -q`: its PCI address
ATTACHED = re.compile(r"^GPU ([0-9A-Fa-f:.]+)\s*$")
SLICE = re.compile(r"^\s+MIG \S+\s+Device\s+\d+: \(UUID: (MIG-\S+?)\)")


class LinkState(NamedTuple):
    """One NVLink; `rate` is in GB/s, 0 where it is inactive or the driver does not report it."""

    active: bool
    rate: float = 0.0


def run_nvidia_smi(arguments: list[str]) -> str:
    """Return what `nvidia-smi ARGUMENTS` prints, empty where it is missing or fails."""
    return machine.HERE.said(["nvidia-smi", *arguments])


def query_gpus(fields: tuple[str, ...], kind: str = "gpu") -> list[dict[str, str]]:
    """Return a {field: value} for each GPU, by `nvidia-smi --query-KIND=FIELDS`.

    A driver that lacks one field refuses the whole query: then each field is queried alone.
    """
    text = run_nvidia_smi([f"--query-{kind}={','.join(fields)}", "--format=csv,noheader,nounits"])
    rows = parse_csv(text, fields)
    if rows or len(fields) == 1:
        return rows

    columns = [query_gpus((field,), kind) for field in fields]
    count = max((len(column) for column in columns), default=0)
    out: list[dict[str, str]] = []
    for place in range(count):
        row: dict[str, str] = {}
        for column in columns:
            # A shorter column does not say which GPUs its values are of
            if len(column) == count:
                row.update(column[place])
        out.append(row)
    return out


def query_newer(fields: tuple[str, ...]) -> list[dict[str, str]]:
    """Return the same for a question that the suite did not ask from the beginning.

    A machine that was recorded before has no answer to it, which says nothing: empty.
    """
    try:
        return query_gpus(fields)
    except NotRecorded:
        return []


def lacks_field(field: str) -> bool:
    """Return whether the driver says of every GPU that it has no such thing as FIELD.

    A driver that does not know FIELD, or does not answer, says nothing of the GPUs.
    """
    lines = run_nvidia_smi([f"--query-gpu={field}", "--format=csv,noheader"]).splitlines()
    return bool(lines) and all(line.strip() in NOT_BUILT_IN for line in lines)


def is_unknown(value: str) -> bool:
    """Return whether VALUE says nothing: N/A, or a reason such as [Insufficient Permissions].

    The values of LOST stand in brackets too, but say that the GPU does not answer.
    """
    if value in NOTHING:
        return True
    return value.startswith("[") and value.endswith("]") and value not in LOST


def parse_csv(text: str, fields: tuple[str, ...]) -> list[dict[str, str]]:
    """Return the rows of nvidia-smi's CSV, each {field: value} without unknown values."""
    out = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(fields):
            known = {field: one for field, one in zip(fields, values) if not is_unknown(one)}
            out.append(known)
    return out


def parse_number(text: str) -> float | None:
    """Return TEXT as a number, or None where it is none: an unknown count is not a count of 0."""
    return float(text) if text.replace(".", "", 1).isdigit() else None


def parse_links(text: str) -> dict[int, dict[int, LinkState]]:
    """Return {GPU: {link: its state}} of what `nvidia-smi nvlink -s` prints.

    A GPU for which it lists no link, as all are inactive, has an empty dictionary.
    """
    out: dict[int, dict[int, LinkState]] = {}
    gpu = -1
    for line in text.splitlines():
        if match := LINK_OWNER.match(line):
            gpu = int(match[1])
            out[gpu] = {}
        elif (match := LINK.match(line)) and gpu >= 0:
            state = match[2]
            rate = re.match(r"[\d.]+(?= GB/s)", state)
            active = "inactive" not in state.lower()
            out[gpu][int(match[1])] = LinkState(active, float(rate[0]) if rate else 0.0)
    return out


def parse_mig_devices(text: str) -> list[str]:
    """Return the UUIDs of the MIG devices that `nvidia-smi -L` lists."""
    return [match[1] for line in text.splitlines() if (match := SLICE.match(line))]


def parse_xids(lines: list[str]) -> list[tuple[str, int, str]]:
    """Return (PCI address, number, the text after it) of each Xid in LINES of the kernel's log."""
    return [
        (match[1], int(match[2]), match[3] or "") for line in lines if (match := XID.search(line))
    ]


def find_fatal_sxids(lines: list[str]) -> list[tuple[str, int, str]]:
    """Return (PCI address, number, the text after it) of each fatal SXid of an NVSwitch in LINES.

    Non-fatal ones are left out: a healthy node prints some while it boots.
    """
    found = [match for line in lines if (match := SXID.search(line))]
    return [(match[1], int(match[2]), match[4]) for match in found if match[3].lower() == "fatal"]


def parse_details(text: str) -> list[dict[str, str]]:
    """Return what `nvidia-smi -q` says of each GPU, as {Section/Subsection/Name: value}.

    A line's indentation tells which section it is in.
    """
    out: list[dict[str, str]] = []
    path: list[tuple[int, str]] = []  # the sections around this line: (indentation, name)
    for line in text.splitlines():
        if ATTACHED.match(line):
            out.append({})
            path = []
            continue
        if not out or not line.strip():
            continue

        depth = len(line) - len(line.lstrip())
        name, colon, value = (word.strip() for word in line.partition(" : "))
        while path and path[-1][0] >= depth:
            path.pop()
        if colon and value and not is_unknown(value):
            out[-1]["/".join([*(one for _, one in path), name])] = value
        path.append((depth, name))
    return out
