"""Checks of one node: image, driver, GPUs, shared memory."""

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
    "look at nvidia-smi and dmesg on the node, at --gpus-per-node, and with Pyxis at "
    "NVIDIA_VISIBLE_DEVICES"
)


def image(request: Any) -> Result:
    """The image says that it is the stack that was asked for."""
    try:
        with open(STACK_FILE) as file:
            stack = json.load(file)["stack"]
    except FileNotFoundError:
        raise Skip(f"no {STACK_FILE}: not an image of hpcstack") from None
    return judge_result(
        not request.stack or stack == request.stack, stack, request.stack, source="the launcher"
    )


def torch_is_the_bases(request: Any) -> Result:
    """torch is the build that the base image says it brings, not one that pip put over it."""
    said = os.environ.get("PYTORCH_VERSION", "")
    if not said:
        raise Skip("the image names no PYTORCH_VERSION")
    from importlib import metadata

    source = "PYTORCH_VERSION of the image"
    try:
        found = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Result(FAIL, "no torch", said, source=source, remedy="build the image again")
    remedy = "a pip requirement replaced torch: pin it to a version that accepts the base's torch"
    return judge_result(found.startswith(said), found, f"{said}...", source=source, remedy=remedy)


def driver(request: Any) -> Result:
    """The NVIDIA kernel driver. Missing where GPUs are expected is a failure, never a SKIP."""
    line = machine.HERE.line(DRIVER_FILE)
    if line.startswith("?"):
        if request.gpus:
            expected = f"a driver: {request.gpus} GPU(s) were asked for"
            return Result(FAIL, "no NVIDIA driver", expected, remedy=GPU_REMEDY)
        raise Skip("no NVIDIA driver on this node")
    version = next((word for word in line.split() if word[0].isdigit() and "." in word), "")
    return Result(PASS, version, evidence=line.strip())


def gpus(request: Any) -> Result:
    """As many GPUs or MIG devices as the step was given; a cgroup hides what it does not list."""
    have, source = len(open_gpus()), "what the step asked for"
    if not have and not request.gpus:
        raise Skip("no GPU on this node")
    said, figures = f"{have} GPU(s)", {"gpus": float(have)}
    if have < request.gpus and (parts := nvidia.parse_mig_devices(nvidia.nvidia_smi(["-L"]))):
        have, said = len(parts), f"{len(parts)} MIG device(s) on {said}"
    return judge_result(
        have >= request.gpus, said, f">= {request.gpus}", source, remedy=GPU_REMEDY, figures=figures
    )


def open_gpus() -> list[str]:
    """The devices of GPUs that this process may open."""
    return [path for path in machine.HERE.found("/dev/nvidia[0-9]*") if machine.HERE.opens(path)]


def shared_memory(request: Any) -> Result:
    """/dev/shm is there, can be written, and is larger than the 64 MB that Docker gives."""
    stat = os.statvfs("/dev/shm")
    size = stat.f_blocks * stat.f_frsize
    if not os.access("/dev/shm", os.W_OK):
        return Result(FAIL, "/dev/shm is not writable", remedy="mount a tmpfs on /dev/shm")
    status = PASS if size >= SHM_BYTES else WARN
    source = "NCCL takes about 9.6 MB a segment; DataLoader workers more"
    return Result(
        status, f"{size / 1e9:.1f} GB", ">= 1 GB", source, figures={"shm_GB": round(size / 1e9, 2)}
    )
