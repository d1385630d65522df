"""What nvidia-smi says, read. Fields are those of `nvidia-smi --help-query-gpu`; what a driver lacks is left out."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable

Ask = Callable[[list[str]], str]

IDENTITY = ("index", "name", "uuid", "pci.bus_id", "driver_version", "memory.total", "compute_cap")
ECC = ("ecc.mode.current", "ecc.errors.uncorrected.volatile.total", "ecc.errors.corrected.volatile.total")
THROTTLE = tuple(
    f"clocks_throttle_reasons.{name}"
    for name in ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown", "sw_power_cap")
)
PCIE = ("pcie.link.gen.current", "pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max")
REMAPPED = ("remapped_rows.pending", "remapped_rows.failure", "remapped_rows.uncorrectable")
NOTHING = ("", "[N/A]", "N/A", "[Not Supported]")
LOST = ("[Unknown Error]", "[GPU requires reset]", "[GPU is lost]")
XID = re.compile(r"NVRM: Xid \(([^)]*)\): (\d+)(?:, *(.*))?")
LINK_OWNER = re.compile(r"^GPU (\d+):")
LINK = re.compile(r"^\s*Link (\d+): (.+?)\s*$")


def nvidia_smi(arguments: list[str]) -> str:
    """What `nvidia-smi ARGUMENTS` prints; empty where it is missing or refuses."""
    if not shutil.which("nvidia-smi"):
        return ""
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def query(fields: tuple[str, ...], ask: Ask = nvidia_smi, kind: str = "gpu") -> list[dict[str, str]]:
    """A {field: value} for each GPU. A driver that lacks one field refuses all: then each is asked for alone."""
    text = ask([f"--query-{kind}={','.join(fields)}", "--format=csv,noheader,nounits"])
    rows = table(text, fields)
    if rows or len(fields) == 1:
        return rows
    columns = [query((field,), ask, kind) for field in fields]
    count = max((len(column) for column in columns), default=0)
    return [
        {key: value for column in columns if len(column) == count for key, value in column[n].items()}
        for n in range(count)
    ]


def table(text: str, fields: tuple[str, ...]) -> list[dict[str, str]]:
    """The rows of nvidia-smi's CSV, without what it does not know."""
    out = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(fields):
            out.append({field: value for field, value in zip(fields, values) if value not in NOTHING})  # noqa: B905
    return out


def links(text: str) -> dict[int, dict[int, str]]:
    """{GPU: {link: what is said of it}} of `nvidia-smi nvlink -s`: a rate, or <inactive>."""
    out: dict[int, dict[int, str]] = {}
    gpu = -1
    for line in text.splitlines():
        if match := LINK_OWNER.match(line):
            gpu = int(match[1])
            out[gpu] = {}
        elif (match := LINK.match(line)) and gpu >= 0:
            out[gpu][int(match[1])] = match[2]
    return out


def xids(lines: list[str]) -> list[tuple[str, int, str]]:
    """(PCI address, number, the rest) of each Xid in the kernel's log."""
    return [(match[1], int(match[2]), match[3] or "") for line in lines if (match := XID.search(line))]
