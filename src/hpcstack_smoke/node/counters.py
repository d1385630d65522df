"""Judge what the GPUs' own counters gained while the suite ran.

They count NVLink, PCIe and ECC errors, and the time spent slowed down.

Tested in tests/unit/smoke/test_nvidia.py and tests/unit/suite/test_clusters.py.
"""

from __future__ import annotations

import re
from typing import Any

from hpcstack_smoke.node import nvidia
from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip

# The counters before the run; the node's agent fills it in
BEFORE: dict[str, int] = {}
# The counters of `nvidia-smi -q`: {the end of its name: whether one more is a FAIL}
COUNTED = {
    "Replays Since Reset": False,
    "Volatile/SRAM Correctable": False,
    "Volatile/SRAM Uncorrectable": True,
    "Volatile/DRAM Correctable": False,
    "Volatile/DRAM Uncorrectable": True,
    "Volatile/SRAM Uncorrectable Parity": True,
    "Volatile/SRAM Uncorrectable SEC-DED": True,
    "Remapped Rows/Uncorrectable Error": True,
    "Counters/HW Thermal Slowdown": True,
    "Counters/SW Thermal Slowdown": False,
    "Counters/HW Power Braking": True,
    "Counters/HW Power Brake Slowdown": True,
}
# So many corrected errors, or a tenth of a second of slowdown, are healthy
SOFT_MAX = 100
SLOWED_MAX_US = 100_000
NVLINK_ERROR = re.compile(r"^\s*Link (\d+): (.+?)(?: Errors?| events)?: *(\d+)\s*$", re.IGNORECASE)
# How the counters of `nvidia-smi nvlink -e` begin, up to Hopper (Replay, Recovery, CRC) and since
# Blackwell. FEC bins are left out.
NVLINK_HARD = ("recovery", "link recovery failed")
NVLINK_SOFT = (
    "replay",
    "crc",
    "ecc",
    "link recovery successful",
    "local link integrity",
    "rx",
    "symbol",
    "effective",
)


def read_counters() -> dict[str, int]:
    """Return {GPU n/counter: value} of this node's GPUs and their NVLinks."""
    out: dict[str, int] = {}
    for place, gpu in enumerate(nvidia.parse_details(nvidia.run_nvidia_smi(["-q"]))):
        for name, value in gpu.items():
            end = next((one for one in COUNTED if name.endswith(one)), "")
            count = re.match(r"\d+", value)
            if end and count:
                out[f"GPU {place}/{_shorten_name(end)}"] = int(count[0])

    gpu_number = -1
    for line in nvidia.run_nvidia_smi(["nvlink", "-e"]).splitlines():
        if owner := nvidia.LINK_OWNER.match(line):
            gpu_number = int(owner[1])
        elif match := NVLINK_ERROR.match(line):
            counter = match[2].lower()
            kind = next(
                (one for one in (*NVLINK_HARD, *NVLINK_SOFT) if counter.startswith(one)), ""
            )
            if kind:
                name = f"GPU {gpu_number}/NVLink {match[1]} {kind}"
                out[name] = out.get(name, 0) + int(match[3])
    return out


def _shorten_name(end: str) -> str:
    """Return END, a key of COUNTED, without its section.

    Counters of time keep theirs: `_counts_time` tells them by it.
    """
    return end if "Counters" in end else end.rpartition("/")[2]


def check_node_counters(request: Any) -> Result:
    """Judge what the GPUs' counters gained while the suite ran."""
    return judge_counter_gains(BEFORE, read_counters())


def judge_counter_gains(before: dict[str, int], after: dict[str, int]) -> Result:
    """Judge the counters, as `read_counters` returns them, BEFORE and AFTER the run.

    An uncorrectable error, a recovery of a link or a slowdown by hardware is a FAIL. More of the
    others than healthy GPUs count is a WARN.
    """
    if not after:
        raise Skip("nvidia-smi is missing or reports no counters")
    if not before:
        raise Skip("the counters were not read before the run")

    up = {
        name: after[name] - before[name]
        for name in sorted(after)
        if name in before and after[name] > before[name]
    }
    hard = []
    soft = []
    for name, count in up.items():
        gain = f"{name} +{count}"
        if _counts_time(name):
            if count < SLOWED_MAX_US:
                continue
            gain += " us"
        if _is_hard(name):
            hard.append(gain)
        elif count > SOFT_MAX:
            soft.append(gain)

    measured = "; ".join([*hard, *soft])
    if not measured:
        measured = f"{len(after)} counters, none of which rose much"
    expected = "no uncorrectable error, no recovery of a link, no slowdown by hardware"
    source = "nvidia-smi, before and after"
    evidence = ", ".join(f"{name} +{count}" for name, count in up.items())[:300]
    remedy = (
        "drain the node; check that GPU's cooling, power, NVLink and PCIe slot: nvidia-smi -q, "
        "nvidia-smi nvlink -e"
    )
    if hard:
        return Result(FAIL, measured, expected, source, evidence, remedy)
    if soft:
        return Result(WARN, measured, expected, source, evidence, remedy)
    return Result(PASS, measured, expected, source, evidence)


def _counts_time(name: str) -> bool:
    """Return whether the counter NAME counts microseconds of slowdown rather than errors."""
    return "/Counters/" in name


def _is_hard(name: str) -> bool:
    """Return whether one more of the counter NAME is a FAIL."""
    end = name.partition("/")[2]
    for one, hard in COUNTED.items():
        if hard and end in (one, one.rpartition("/")[2]):
            return True
    return "NVLink" in name and name.endswith(tuple(f" {one}" for one in NVLINK_HARD))
