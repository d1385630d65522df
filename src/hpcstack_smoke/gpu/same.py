"""Check that all ranks have the same driver, GPU, torch, NCCL and image; name those that differ.

Tested in tests/unit/suite/test_clusters.py and tests/integration/test_chain.py.
"""

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
    """Return {what: version or name} of what this rank runs on."""
    import torch

    out = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "image": _digest_image(),
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


def _digest_image() -> str:
    """Return the beginning of the sha256 of the image's description, empty where it has none."""
    try:
        with open("/opt/hpcstack/stack.json") as file:
            return hashlib.sha256(file.read().encode()).hexdigest()[:12]
    except OSError:
        return ""


def check_node_same(context: Context) -> Result:
    """Check that all ranks have the same hardware and software.

    The majority counts as right, and each rank that differs is named.
    """
    return judge_same(context.all((socket.gethostname(), describe_rank(context))))


def judge_same(everyone: list[tuple[str, dict[str, str]]]) -> Result:
    """Judge what EVERYONE runs on: (host, what `describe_rank` returned) of each rank.

    Several models of GPU alone are a WARN, any other difference is a FAIL.
    """
    first = everyone[0][1]
    odd = []  # (host, what of it, its value, the others')
    for name in first:
        values = Counter(found.get(name, "") for _, found in everyone)
        usual = values.most_common(1)[0][0]
        for host, found in everyone:
            value = found.get(name, "")
            if value != usual:
                odd.append((host, name, value, usual))

    shown = ", ".join(
        f"{name} {value[:40]}"
        for name, value in first.items()
        if name in ("gpu", "torch", "nccl", "driver")
    )
    differences = [
        f"{host}: {name} {value[:60]} (others: {usual[:60]})" for host, name, value, usual in odd
    ]
    measured = "; ".join(dict.fromkeys(differences)) or shown
    expected, source = "the same on all ranks", "the majority of ranks"
    is_only_of_gpus = bool(odd) and all(name == "gpu" for _, name, _, _ in odd)
    if is_only_of_gpus:
        remedy = (
            "several models of GPU: the slowest sets the pace; select one by --constraint or -w"
        )
        return Result(WARN, measured, expected, source, remedy=remedy)
    return judge_result(
        not odd,
        measured,
        expected,
        source,
        remedy="drain a node whose driver or image differs until it matches the others",
    )
