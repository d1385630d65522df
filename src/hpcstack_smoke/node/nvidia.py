"""What nvidia-smi says, read.

Fields are those of `nvidia-smi --help-query-gpu`; what a driver lacks is left out.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from hpcstack_smoke.node import machine

IDENTITY = ("index", "name", "uuid", "pci.bus_id", "driver_version", "memory.total", "compute_cap")
FIRMWARE = ("vbios_version", "inforom.image", "mig.mode.current")
TOTALS = (
    "ecc.errors.uncorrected.volatile.total",
)  # of GPUs older than Ampere, which do not tell SRAM from DRAM
UNCORRECTED_SRAM = ("ecc.errors.uncorrected.volatile.sram", "ecc.errors.uncorrected.aggregate.sram")
EXCEEDED = "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded"  # since driver 550
CORRECTED_SRAM = ("ecc.errors.corrected.volatile.sram", "ecc.errors.corrected.aggregate.sram")
DRAM = (
    "ecc.errors.uncorrected.volatile.dram", "ecc.errors.uncorrected.aggregate.dram",
    "ecc.errors.corrected.volatile.dram", "ecc.errors.corrected.aggregate.dram",
)  # fmt: skip
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
NOTHING = ("", "N/A", "Not Supported")
LOST = ("[Unknown Error]", "[GPU requires reset]", "[GPU is lost]")
XID = re.compile(r"NVRM: Xid \(([^)]*)\): (\d+)(?:, *(.*))?")
SXID = re.compile(r"nvswitch\d*: SXid \(([^)]*)\): (\d+), (Fatal|Non-fatal), *(.*)", re.IGNORECASE)
LINK_OWNER = re.compile(r"^GPU (\d+):(.*)")
LINK = re.compile(r"^\s*Link (\d+): (.+?)\s*$")
ALL_INACTIVE = "all links are inactive"
ATTACHED = re.compile(r"^GPU ([0-9A-Fa-f:.]+)\s*$")
SLICE = re.compile(r"^\s+MIG \S+\s+Device\s+\d+: \(UUID: (MIG-\S+?)\)")


class LinkState(NamedTuple):
    """One NVLink; `rate` in GB/s, 0 where it is inactive or the driver does not say."""

    active: bool
    rate: float = 0.0


def nvidia_smi(arguments: list[str]) -> str:
    """What `nvidia-smi ARGUMENTS` prints; empty where it is missing or refuses."""
    return machine.HERE.said(["nvidia-smi", *arguments])


def query_gpus(fields: tuple[str, ...], kind: str = "gpu") -> list[dict[str, str]]:
    """A {field: value} for each GPU.

    A driver that lacks one field refuses all: then each is asked for alone.
    """
    text = nvidia_smi([f"--query-{kind}={','.join(fields)}", "--format=csv,noheader,nounits"])
    rows = parse_csv(text, fields)
    if rows or len(fields) == 1:
        return rows
    columns = [query_gpus((field,), kind) for field in fields]
    count = max((len(column) for column in columns), default=0)
    return [
        {
            key: value
            for column in columns
            if len(column) == count
            for key, value in column[n].items()
        }
        for n in range(count)
    ]


def is_unknown(value: str) -> bool:
    """Whether VALUE says nothing: N/A, or a reason in brackets such as [Insufficient Permissions]."""
    return value in NOTHING or (value.startswith("[") and value.endswith("]") and value not in LOST)


def parse_csv(text: str, fields: tuple[str, ...]) -> list[dict[str, str]]:
    """The rows of nvidia-smi's CSV, without what it does not know."""
    out = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(fields):
            out.append(
                {field: value for field, value in zip(fields, values) if not is_unknown(value)}
            )
    return out


def parse_number(text: str) -> float | None:
    """TEXT as a number; None where it is none: nobody knows is not zero."""
    return float(text) if text.replace(".", "", 1).isdigit() else None


def parse_links(text: str) -> dict[int, dict[int, LinkState]]:
    """{GPU: {link: its state}} of `nvidia-smi nvlink -s`; a GPU all of whose links are inactive has
    an empty one.
    """
    out: dict[int, dict[int, LinkState]] = {}
    gpu = -1
    for line in text.splitlines():
        if match := LINK_OWNER.match(line):
            gpu = int(match[1])
            out[gpu] = {}
        elif (match := LINK.match(line)) and gpu >= 0:
            rate = re.match(r"[\d.]+(?= GB/s)", match[2])
            out[gpu][int(match[1])] = LinkState(
                "inactive" not in match[2].lower(), float(rate[0]) if rate else 0.0
            )
    return out


def parse_mig_devices(text: str) -> list[str]:
    """The UUIDs of the MIG devices that `nvidia-smi -L` lists."""
    return [match[1] for line in text.splitlines() if (match := SLICE.match(line))]


def parse_xids(lines: list[str]) -> list[tuple[str, int, str]]:
    """(PCI address, number, the rest) of each Xid in the kernel's log."""
    return [
        (match[1], int(match[2]), match[3] or "") for line in lines if (match := XID.search(line))
    ]


def fatal_sxids(lines: list[str]) -> list[tuple[str, int, str]]:
    """The same of NVSwitches' SXids that are fatal: a healthy node prints others while it boots."""
    found = [match for line in lines if (match := SXID.search(line))]
    return [(match[1], int(match[2]), match[4]) for match in found if match[3].lower() == "fatal"]


def parse_details(text: str) -> list[dict[str, str]]:
    """What `nvidia-smi -q` says of each GPU, as {Section/Name: value}: sections are told by their
    indentation.
    """
    out: list[dict[str, str]] = []
    path: list[tuple[int, str]] = []
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
