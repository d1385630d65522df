"""Checks of one node, by the standard library alone: image, driver, GPUs, shared memory, InfiniBand."""

from __future__ import annotations

import glob
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Callable

from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip, judge

STACK_FILE = "/opt/hpcstack/stack.json"
DRIVER_FILE = "/proc/driver/nvidia/version"
HCAS = "/sys/class/infiniband"
SHM_BYTES = 1 << 30
GPU_REMEDY = "look at nvidia-smi and dmesg on the node, at --gpus-per-node, and with Pyxis at NVIDIA_VISIBLE_DEVICES"


def image(expected_stack: str) -> Result:
    """The image says that it is the stack that was asked for."""
    try:
        with open(STACK_FILE) as file:
            stack = json.load(file)["stack"]
    except FileNotFoundError:
        raise Skip(f"no {STACK_FILE}: not an image of hpcstack") from None
    return judge(not expected_stack or stack == expected_stack, stack, expected_stack, source="the launcher")


def torch_is_the_bases() -> Result:
    """torch is the build that the base image says it brings, not one that pip put over it."""
    said = os.environ.get("PYTORCH_VERSION", "")
    if not said:
        raise Skip("the image names no PYTORCH_VERSION")
    from importlib import metadata

    try:
        found = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Result(FAIL, "no torch", said, source="PYTORCH_VERSION of the image", remedy="build the image again")
    return judge(
        found.startswith(said),
        found,
        f"{said}...",
        source="PYTORCH_VERSION of the image",
        remedy="a pip requirement replaced torch: pin it to a version that accepts the base's torch",
    )


def driver(expected: int) -> Result:
    """The NVIDIA kernel driver. Missing where GPUs are expected is a failure, never a SKIP."""
    try:
        with open(DRIVER_FILE) as file:
            line = file.readline()
    except FileNotFoundError:
        if expected:
            return Result(FAIL, "no NVIDIA driver", f"a driver: {expected} GPU(s) were asked for", remedy=GPU_REMEDY)
        raise Skip("no NVIDIA driver on this node") from None
    version = next((word for word in line.split() if word[0].isdigit() and "." in word), "")
    return Result(PASS, version, evidence=line.strip())


def gpus(expected: int) -> Result:
    """As many GPUs as the step was given, counted by opening their devices: a cgroup hides what it does not list."""
    have = sum(_opens(path) for path in glob.glob("/dev/nvidia[0-9]*"))
    if not have and not expected:
        raise Skip("no GPU on this node")
    source = "what the step asked for"
    return judge(have >= expected, f"{have} GPU(s)", f">= {expected}", source, remedy=GPU_REMEDY)


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError:
        return False
    return True


def shared_memory() -> Result:
    """/dev/shm is there, can be written, and is larger than the 64 MB that Docker gives."""
    stat = os.statvfs("/dev/shm")
    size = stat.f_blocks * stat.f_frsize
    if not os.access("/dev/shm", os.W_OK):
        return Result(FAIL, "/dev/shm is not writable", remedy="mount a tmpfs on /dev/shm")
    status = PASS if size >= SHM_BYTES else WARN
    return Result(
        status, f"{size / 1e9:.1f} GB", ">= 1 GB", "NCCL takes about 9.6 MB a segment; DataLoader workers more"
    )


def hcas() -> Result:
    """Every InfiniBand or RoCE port is active."""
    ports = sorted(glob.glob(f"{HCAS}/*/ports/*"))
    if not ports:
        raise Skip(f"no HCA on this node ({HCAS} is empty)")
    names = {port: f"{port.split('/')[-3]}:{port.split('/')[-1]}" for port in ports}
    states = {names[port]: _line(f"{port}/state") for port in ports}
    rates = ", ".join(f"{names[port]} {_line(f'{port}/rate')}" for port in ports)
    down = [name for name, state in states.items() if "ACTIVE" not in state]
    return judge(
        not down, rates, "every port ACTIVE", evidence=str(states), remedy=f"look at {', '.join(down)}: ibstat"
    )


def _line(path: str) -> str:
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError as error:
        return f"? ({error.strerror})"


def memlock() -> Result:
    """RDMA pins memory: the limit must be unlimited inside the step, inside the container."""
    if not glob.glob(f"{HCAS}/*"):
        raise Skip("no HCA on this node: nothing pins memory")
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    measured = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} bytes"
    remedy = "LimitMEMLOCK=infinity for slurmd, and PropagateResourceLimitsExcept=MEMLOCK in slurm.conf"
    return judge(soft == resource.RLIM_INFINITY, measured, "unlimited", "nccl-tests #206", remedy=remedy)


def ib_tools() -> Result:
    """The InfiniBand user tools that the stack promises are in the image and start."""
    path = shutil.which("ibstat") or shutil.which("ibstat", path="/usr/sbin:/sbin")
    if not path:
        return Result(
            FAIL, "no ibstat in the image", "ibstat", "the recipe", remedy="packages: {apt: [infiniband-diags]}"
        )
    done = subprocess.run([path, "-V"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20, check=False)
    said = done.stdout.decode(errors="replace").strip().splitlines()
    return judge(
        done.returncode == 0, said[0] if said else path, "ibstat -V ends with 0", evidence=f"rc {done.returncode}"
    )


def checks(expected_stack: str, expected_gpus: int) -> dict[str, Callable[[], Result]]:
    """{code: check} of this node."""
    return {
        "node.image": lambda: image(expected_stack),
        "node.torch": torch_is_the_bases,
        "node.driver": lambda: driver(expected_gpus),
        "node.gpus": lambda: gpus(expected_gpus),
        "node.shm": shared_memory,
        "fabric.hcas": hcas,
        "fabric.memlock": memlock,
        "fabric.tools": ib_tools,
    }
