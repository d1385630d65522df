"""All ranks have the same: driver, GPU, torch, NCCL, image. One that differs is named."""

from __future__ import annotations

import hashlib
import platform
import socket
from collections import Counter
from typing import TYPE_CHECKING

from hpcstack_smoke.result import WARN, Result, judge_result

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context


def describe_rank(context: Context) -> dict[str, str]:
    """What this rank runs on."""
    import torch

    out = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "image": _image(),
        "cuda": str(torch.version.cuda),
    }
    if context.gpu:
        out["gpu"] = context.gpu_name()
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
    return judge_same(context.all((socket.gethostname(), describe_rank(context))))


def judge_same(everyone: list[tuple[str, dict[str, str]]]) -> Result:
    """EVERYONE: (host, what it runs on) of each rank."""
    odd = []  # (host, what of it, its value, the others')
    for name in everyone[0][1]:
        values = Counter(found.get(name, "") for _, found in everyone)
        usual = values.most_common(1)[0][0]
        for host, found in everyone:
            value = found.get(name, "")
            if value != usual:
                odd.append((host, name, value, usual))

    first = everyone[0][1]
    is_only_of_gpus = bool(odd) and all(name == "gpu" for _, name, _, _ in odd)
    shown = ", ".join(
        f"{name} {value[:40]}"
        for name, value in first.items()
        if name in ("gpu", "torch", "nccl", "driver")
    )
    said = [
        f"{host}: {name} {value[:60]} (others: {usual[:60]})" for host, name, value, usual in odd
    ]
    measured = "; ".join(dict.fromkeys(said)) or shown
    expected, source = "the same on all ranks", "the majority of ranks"
    if is_only_of_gpus:
        remedy = "GPUs of several models: the slowest sets the pace; --constraint or -w picks one"
        return Result(WARN, measured, expected, source, remedy=remedy)
    return judge_result(
        not odd,
        measured,
        expected,
        source,
        remedy="a node with another driver or image: drain it until it is as the others",
    )
