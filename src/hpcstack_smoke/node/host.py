"""Check the image, the NVIDIA driver, the GPUs and the shared memory of one node."""

from __future__ import annotations

import json
import os
from typing import Any

from hpcstack_smoke.node import machine, nvidia
from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip, judge_result

STACK_FILE = "/opt/hpcstack/stack.json"
DRIVER_FILE = "/proc/driver/nvidia/version"
SHM_BYTES = 1 << 30
GPU_REMEDY = (
    "check nvidia-smi and dmesg on the node, --gpus-per-node and, with Pyxis, "
    "NVIDIA_VISIBLE_DEVICES"
)


def check_node_image(request: Any) -> Result:
    """Check that the image says that it is the stack that was asked for."""
    try:
        with open(STACK_FILE) as file:
            stack = json.load(file)["stack"]
    except FileNotFoundError:
        raise Skip(f"no {STACK_FILE}: not an image of hpcstack") from None
    return judge_result(
        not request.stack or stack == request.stack, stack, request.stack, source="the launcher"
    )


def check_node_torch(request: Any) -> Result:
    """Check that torch is the base image's own build, not one that pip installed over it.

    The base image names its build in PYTORCH_VERSION.
    """
    wanted = os.environ.get("PYTORCH_VERSION", "")
    if not wanted:
        raise Skip("the image sets no PYTORCH_VERSION")
    from importlib import metadata

    source = "PYTORCH_VERSION of the image"
    try:
        found = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Result(FAIL, "no torch", wanted, source=source, remedy="build the image again")
    good = found.startswith(wanted)
    remedy = (
        "a pip requirement replaced torch: pin that package to a version that accepts the base's "
        "torch"
    )
    return judge_result(good, found, f"{wanted}...", source=source, remedy=remedy)


def check_node_driver(request: Any) -> Result:
    """Check that the NVIDIA kernel driver is there.

    Where the step asked for GPUs, a missing driver is a FAIL, never a SKIP.
    """
    line = machine.HERE.line(DRIVER_FILE)
    if not line:
        if request.gpus:
            expected = f"a driver: {request.gpus} GPU(s) were asked for"
            return Result(FAIL, "no NVIDIA driver", expected, remedy=GPU_REMEDY)
        raise Skip("no NVIDIA driver on this node")
    version = next((word for word in line.split() if word[0].isdigit() and "." in word), "")
    return Result(PASS, version, evidence=line.strip())


def check_node_gpus(request: Any) -> Result:
    """Check that the step has as many GPUs or MIG devices as it asked for.

    Those that this process may open are counted: a cgroup hides the others.
    """
    have = len(open_gpus())
    if not have and not request.gpus:
        raise Skip("no GPU on this node")

    measured = f"{have} GPU(s)"
    figures = {"gpus": float(have)}
    if have < request.gpus:
        parts = nvidia.parse_mig_devices(nvidia.run_nvidia_smi(["-L"]))
        if parts:
            measured = f"{len(parts)} MIG device(s) on {measured}"
            have = len(parts)
    return judge_result(
        have >= request.gpus,
        measured,
        f">= {request.gpus}",
        "what the step asked for",
        remedy=GPU_REMEDY,
        figures=figures,
    )


def open_gpus() -> list[str]:
    """Return the device files of the GPUs that this process may open."""
    return [path for path in machine.HERE.found("/dev/nvidia[0-9]*") if machine.HERE.opens(path)]


def check_node_shm(request: Any) -> Result:
    """Check that /dev/shm is writable and has at least 1 GiB, where Docker gives 64 MB."""
    stat = os.statvfs("/dev/shm")
    size = stat.f_blocks * stat.f_frsize
    if not os.access("/dev/shm", os.W_OK):
        return Result(FAIL, "/dev/shm is not writable", remedy="mount a tmpfs on /dev/shm")
    status = PASS if size >= SHM_BYTES else WARN
    source = "NCCL takes about 9.6 MB a segment; DataLoader workers more"
    figures = {"shm_GB": round(size / 1e9, 2)}
    return Result(status, f"{size / 1e9:.1f} GB", ">= 1 GB", source, figures=figures)
