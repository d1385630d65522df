"""Checks of a node's GPUs by nvidia-smi and the kernel's log."""

from __future__ import annotations

import functools
import os
import time
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.node import nvidia
from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip, judge

if TYPE_CHECKING:
    from collections.abc import Callable

AZURE = "Azure/azurehpc-health-checks"
# Xids of Azure's node health checks that take a GPU out of service, if seen within two hours
BAD_XIDS = (48, 56, 57, 58, 62, 63, 64, 65, 68, 69, 73, 74, 79, 80, 81, 92, 119, 120)
XID_SECONDS = 2 * 3600
CORRECTED_MAX = 10_000
RESET = "drain the node: look at dmesg for Xid, nvidia-smi -r"
KMSG = "/dev/kmsg"


class Lost(Exception):
    """A GPU that does not answer: the Result says which."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.measured)
        self.result = result


def _rows(request: Any, fields: tuple[str, ...]) -> list[dict[str, str]]:
    """What nvidia-smi says of FIELDS, a row a GPU. Lost where one does not answer, or none of those asked for."""
    rows = nvidia.query(("index", *fields))
    if not rows:
        if request.gpus:
            raise Lost(
                Result(FAIL, "nvidia-smi says nothing", f"{request.gpus} GPU(s)", "what was asked for", remedy=RESET)
            )
        raise Skip("nvidia-smi is not here or says nothing")
    lost = [f"GPU {row.get('index', '?')}: {value}" for row in rows for value in row.values() if value in nvidia.LOST]
    if lost:
        raise Lost(Result(FAIL, "; ".join(dict.fromkeys(lost)), "every GPU answers", "nvidia-smi", remedy=RESET))
    if not all(any(field in row for field in fields) for row in rows):
        raise Skip("this driver does not say it")
    return rows


def answered(check: Callable[[Any], Result]) -> Callable[[Any], Result]:
    """CHECK, with its FAIL where a GPU does not answer."""

    @functools.wraps(check)
    def run(request: Any) -> Result:
        try:
            return check(request)
        except Lost as lost:
            return lost.result

    return run


@answered
def ecc(request: Any) -> Result:
    """No uncorrectable error since the driver was loaded, no row that waits to be remapped or could not be."""
    rows = _rows(request, nvidia.ECC)
    if not any(name.startswith("ecc.errors") for row in rows for name in row):
        raise Skip("these GPUs count no ECC errors")
    bad = []
    for row in rows:
        for name in nvidia.ECC[1:]:
            count, limit = _number(row.get(name, "")), CORRECTED_MAX if ".corrected." in name else 0
            if count > limit:
                bad.append(f"GPU {row['index']}: {name} {count:.0f}")
    for number, row in enumerate(nvidia.query(("gpu_uuid", *nvidia.REMAPPED), kind="remapped-rows")):
        bad += [
            f"GPU {number}: {name} {row[name]}" for name in nvidia.REMAPPED[:2] if row.get(name, "0") not in ("0", "No")
        ]
    measured = "; ".join(bad) or f"{len(rows)} GPU(s) within limits"
    return judge(
        not bad,
        measured,
        f"0 uncorrectable, <= {CORRECTED_MAX} corrected, no row pending or failed",
        AZURE,
        remedy="drain the node and reset the GPU (nvidia-smi -r); if it returns, replace it",
    )


def _number(text: str) -> float:
    return float(text) if text.replace(".", "", 1).isdigit() else 0.0


def xid(request: Any) -> Result:
    """No Xid in the kernel's log of the last two hours that takes a GPU out of service."""
    if not os.path.exists("/proc/driver/nvidia/version"):
        raise Skip("no NVIDIA driver on this node")
    found = [one for one in nvidia.xids(kernel_log()) if one[1] in BAD_XIDS]
    measured = "; ".join(f"Xid {number} on {where}" for where, number, _ in found[:8]) or "none of them"
    return judge(
        not found,
        measured,
        f"none of {', '.join(map(str, BAD_XIDS))} in 2 h",
        AZURE,
        evidence=found[0][2] if found else "",
        remedy="drain the node; NVIDIA's Xid catalogue names the cause",
    )


def kernel_log() -> list[str]:
    """The kernel's messages of the last two hours. Skip where they may not be read."""
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
    try:
        handle = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise Skip(f"kernel log not readable ({error.strerror})") from None
    lines: list[str] = []
    try:
        while True:
            try:
                record = os.read(handle, 8192).decode(errors="replace")
            except BlockingIOError:
                return lines
            except BrokenPipeError:  # overwritten while it was read: go on with the next
                continue
            head, _, text = record.partition(";")
            stamp = head.split(",")[2] if head.count(",") >= 2 else "0"
            if uptime - int(stamp) / 1e6 <= XID_SECONDS:
                lines.append(text.splitlines()[0] if text else "")
    except OSError as error:
        raise Skip(f"kernel log not readable ({error.strerror})") from None
    finally:
        os.close(handle)


@answered
def throttle(request: Any) -> Result:
    """No GPU is held back by heat or by its power supply; a power cap under load is as it should be."""
    rows = _rows(request, nvidia.THROTTLE)
    hard = [
        f"GPU {row['index']}: {name.rpartition('.')[2]}"
        for row in rows
        for name in nvidia.THROTTLE[:4]
        if row.get(name) == "Active"
    ]
    soft = [f"GPU {row['index']}: sw_power_cap" for row in rows if row.get(nvidia.THROTTLE[4]) == "Active"]
    expected = "no slowdown by hardware or heat"
    if hard:
        return Result(
            FAIL,
            "; ".join(hard),
            expected,
            "nvidia-smi, clocks_event_reasons",
            remedy="look at the node's cooling and power supply; drain it",
        )
    if soft:
        return Result(
            WARN,
            "; ".join(soft),
            expected,
            remedy="a power limit holds the clocks while the node is idle: nvidia-smi -q -d POWER",
        )
    return Result(PASS, f"{len(rows)} GPU(s) without slowdown", expected)


@answered
def pcie(request: Any) -> Result:
    """Each link has its full width. An idle GPU may rest at a lower generation: that alone is a WARN."""
    rows = _rows(request, nvidia.PCIE)
    narrow, slow = [], []
    for row in rows:
        now, most = row.get("pcie.link.width.current"), row.get("pcie.link.width.max")
        if now and most and now != most:
            narrow.append(f"GPU {row['index']}: x{now} of x{most}")
        now, most = row.get("pcie.link.gen.current"), row.get("pcie.link.gen.max")
        if now and most and now != most:
            slow.append(f"GPU {row['index']}: generation {now} of {most}")
    remedy = "reseat the GPU or its riser; a link that trained low stays so until the node is rebooted"
    expected = "the width and generation that GPU and slot can"
    if narrow:
        return Result(FAIL, "; ".join([*narrow, *slow]), expected, "nvidia-smi", remedy=remedy)
    if slow:
        return Result(
            WARN, "; ".join(slow), expected, "nvidia-smi", "read while idle: links rest at a lower generation"
        )
    first = rows[0]
    generation, width = (first.get(f"pcie.link.{name}.max", "?") for name in ("gen", "width"))
    said = f"generation {generation} x{width} on {len(rows)} GPU(s)"
    return Result(PASS, said, expected, "nvidia-smi")


def nvlink(request: Any) -> Result:
    """No link is inactive on a GPU that has an active one, and all GPUs have as many."""
    found = nvidia.links(nvidia.nvidia_smi(["nvlink", "-s"]))
    active = {gpu: [n for n, said in links.items() if "inactive" not in said] for gpu, links in found.items()}
    if not any(active.values()):
        raise Skip("no NVLink on this node")
    dead = [f"GPU {gpu}: link {n}" for gpu, links in found.items() for n, said in links.items() if "inactive" in said]
    counts = sorted({len(links) for links in active.values()})
    measured = f"inactive: {', '.join(dead)}" if dead else f"{counts[-1]} links on each of {len(found)} GPU(s)"
    return judge(
        not dead and len(counts) == 1,
        measured,
        "every link active, as many on each GPU",
        "nvidia-smi nvlink -s",
        remedy="drain the node: reset the GPUs and the fabric manager; look at the NVLink bridge",
    )


@answered
def persistence(request: Any) -> Result:
    """Persistence mode: without it each first use of a GPU waits for the driver to load."""
    rows = _rows(request, ("persistence_mode",))
    off = [row["index"] for row in rows if row.get("persistence_mode") == "Disabled"]
    if off:
        return Result(WARN, f"off on GPU {', '.join(off)}", "on", remedy="run nvidia-persistenced on the node")
    return Result(PASS, f"on for {len(rows)} GPU(s)", "on")
