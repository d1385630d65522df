"""What the GPUs' own counters gained while the suite ran: NVLink, PCIe, ECC, and time spent slowed
down.
"""

from __future__ import annotations

import re
from typing import Any

from hpcstack_smoke.node import nvidia
from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip

BEFORE: dict[str, int] = {}
# What of `nvidia-smi -q` counts: {the end of its name: whether one more is a FAIL}
COUNTED = {
    "Replays Since Reset": False,
    "Volatile/SRAM Correctable": False, "Volatile/SRAM Uncorrectable": True, "Volatile/DRAM Correctable": False,
    "Volatile/DRAM Uncorrectable": True, "Volatile/SRAM Uncorrectable Parity": True,
    "Volatile/SRAM Uncorrectable SEC-DED": True, "Remapped Rows/Uncorrectable Error": True,
    "Counters/HW Thermal Slowdown": True, "Counters/SW Thermal Slowdown": False,
    "Counters/HW Power Braking": True, "Counters/HW Power Brake Slowdown": True,
}  # fmt: skip
SOFT_MAX, SLOWED_MAX_US = (
    100,
    100_000,
)  # so many corrected errors, or a tenth of a second of slowdown, are healthy
NVLINK_ERROR = re.compile(r"^\s*Link (\d+): (.+?)(?: Errors?| events)?: *(\d+)\s*$", re.IGNORECASE)
# What `nvidia-smi nvlink -e` counts, to Hopper (Replay, Recovery, CRC) and since Blackwell; FEC
# bins are left out
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
    """{GPU n/counter: value} of this node."""
    out: dict[str, int] = {}
    for place, gpu in enumerate(nvidia.parse_details(nvidia.nvidia_smi(["-q"]))):
        for name, value in gpu.items():
            end = next((one for one in COUNTED if name.endswith(one)), "")
            if end and (count := re.match(r"\d+", value)):
                out[f"GPU {place}/{end.rpartition('/')[2] if 'Counters' not in end else end}"] = (
                    int(count[0])
                )
    gpu_number = -1
    for line in nvidia.nvidia_smi(["nvlink", "-e"]).splitlines():
        if owner := nvidia.LINK_OWNER.match(line):
            gpu_number = int(owner[1])
        elif match := NVLINK_ERROR.match(line):
            kind = next(
                (one for one in (*NVLINK_HARD, *NVLINK_SOFT) if match[2].lower().startswith(one)),
                "",
            )
            if kind:
                name = f"GPU {gpu_number}/NVLink {match[1]} {kind}"
                out[name] = out.get(name, 0) + int(match[3])
    return out


def gained(request: Any) -> Result:
    """What was counted while the suite ran."""
    return judge_counter_gains(BEFORE, read_counters())


def judge_counter_gains(before: dict[str, int], after: dict[str, int]) -> Result:
    """FAIL: an uncorrectable error, a link that recovered, hardware that slowed a GPU; WARN: more
    than healthy ones.
    """
    if not after:
        raise Skip("nvidia-smi is not here or counts nothing")
    if not before:
        raise Skip("the counters were not read before the run")
    up = {
        name: after[name] - before[name]
        for name in sorted(after)
        if name in before and after[name] > before[name]
    }
    hard, soft = [], []
    for name, count in up.items():
        if _slowed(name) and count < SLOWED_MAX_US:
            continue
        said = f"{name} +{count}{' us' if _slowed(name) else ''}"
        if _is_hard(name):
            hard.append(said)
        elif count > SOFT_MAX:
            soft.append(said)
    measured = "; ".join([*hard, *soft]) or f"{len(after)} counters, none of which moved much"
    evidence = ", ".join(f"{name} +{count}" for name, count in up.items())[:300]
    expected = "no uncorrectable error, no recovery of a link, no slowdown by hardware"
    remedy = (
        "that GPU's cooling, power, NVLink and PCIe slot: nvidia-smi -q, nvidia-smi nvlink -e; "
        "drain the node"
    )
    status = PASS
    if hard:
        status = FAIL
    elif soft:
        status = WARN
    return Result(
        status,
        measured,
        expected,
        "nvidia-smi, before and after",
        evidence,
        remedy="" if status == PASS else remedy,
    )


def _slowed(name: str) -> bool:
    return "/Counters/" in name


def _is_hard(name: str) -> bool:
    end = name.partition("/")[2]
    return any(
        end == one.rpartition("/")[2] or end == one for one, hard in COUNTED.items() if hard
    ) or ("NVLink" in name and name.endswith(tuple(f" {one}" for one in NVLINK_HARD)))
