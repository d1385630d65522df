"""All ranks have the same: driver, GPU, torch, NCCL, kernel. One that differs is named."""

from __future__ import annotations

import hashlib
import platform
import socket
from collections import Counter
from typing import TYPE_CHECKING

import torch

from hpcstack_smoke.result import Result, judge

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context


def mine(context: Context) -> dict[str, str]:
    """What this rank runs on."""
    out = {"torch": torch.__version__, "python": platform.python_version(), "kernel": platform.release(),
           "image": _image(), "cuda": str(torch.version.cuda)}  # fmt: skip
    if context.gpu:
        out["gpu"] = torch.cuda.get_device_name(context.device)
        out["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        try:
            with open("/proc/driver/nvidia/version") as file:
                out["driver"] = file.readline().strip()
        except OSError:
            out["driver"] = "?"
    return out


def _image() -> str:
    try:
        with open("/opt/hpcstack/stack.json") as file:
            return hashlib.sha256(file.read().encode()).hexdigest()[:12]
    except OSError:
        return ""


def same(context: Context) -> Result:
    """The majority is right; who differs is named with what it has."""
    everyone = context.all((socket.gethostname(), mine(context)))
    odd = []
    for name in everyone[0][1]:
        values = Counter(found.get(name, "") for _, found in everyone)
        usual = values.most_common(1)[0][0]
        odd += [f"{host}: {name} {found.get(name, '')[:60]} (others: {usual[:60]})" for host, found in everyone
                if found.get(name, "") != usual]  # fmt: skip
    first = everyone[0][1]
    shown = ", ".join(
        f"{name} {value[:40]}" for name, value in first.items() if name in ("gpu", "torch", "nccl", "driver")
    )
    return judge(not odd, "; ".join(dict.fromkeys(odd)) or shown, "the same on all ranks", "the majority of ranks",
                 remedy="a node with another driver or image: drain it until it is as the others")  # fmt: skip
