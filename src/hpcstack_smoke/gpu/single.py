"""Check each rank's own GPU by torch: code for it, its memory, matrix rates.

gpu/judge.py judges the figures. A GPU that lags behind the others of the run is named by the host.

Tested in ci/one_gpu.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hpcstack_smoke.gpu import load
from hpcstack_smoke.gpu.clock import time_calls
from hpcstack_smoke.gpu.judge import judge_hbm, judge_matmul, runs_on
from hpcstack_smoke.result import Result, Skip, judge_result

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack_smoke.context import Context

# Seconds of matrix products while nvidia-smi is asked about the GPU
LOADED_S = 3.0


def needs_gpu(context: Context) -> None:
    """Raise Skip where this rank has no GPU."""
    if not context.gpu:
        raise Skip("no GPU")


def time_on_gpu(work: Callable[[], Any], repeat: int = 20) -> float:
    """Return the seconds of one call of WORK on the GPU, the best of three rounds after a warm-up.

    A round is REPEAT calls.
    """
    for _ in range(3):
        work()
    return min(time_calls(work, repeat) for _ in range(3))


def check_node_arch(context: Context) -> Result:
    """Check that torch has code for this GPU's compute capability, and that a kernel starts.

    Code for the same major and a lower or equal minor number runs, and so does PTX of an older
    capability. What ends in `a` is for that capability alone, what ends in `f` for its family:
    https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html
    """
    needs_gpu(context)
    major, minor = torch.cuda.get_device_capability(context.device)
    built = torch.cuda.get_arch_list()
    direct = False
    by_ptx = False
    for one in built:
        if not runs_on(one, major, minor):
            continue
        if one.startswith("compute_"):
            by_ptx = True
        else:
            direct = True

    # A kernel must start, whatever the list says
    value = float(torch.ones(8, device=context.device).sum())
    how = "NOT in"
    if direct:
        how = "in"
    elif by_ptx:
        how = "by PTX of"
    return judge_result(
        (direct or by_ptx) and value == 8.0,
        f"sm_{major}{minor} {how} {' '.join(built)}",
        "code for this GPU",
        "torch.cuda.get_arch_list()",
        remedy="choose a newer stack: hpcstack list --gpu",
    )


def check_node_memory(context: Context) -> Result:
    """Write a pattern to much of the GPU's free memory and read it back, then its inverse.

    That is a quarter of the free memory, 80 % in the full tier.
    """
    needs_gpu(context)
    free, whole = torch.cuda.mem_get_info(context.device)
    share = 0.8 if context.tier == "full" else 0.25
    piece = 1 << 28
    count = max(1, int(free * share) // piece)

    # Each word holds its number, which is different in every part
    parts = [
        torch.arange(piece // 8, device=context.device, dtype=torch.int64) for _ in range(count)
    ]
    for number, part in enumerate(parts):
        part += number * piece

    wrong = 0
    for flip in (False, True):
        for number, part in enumerate(parts):
            expected = torch.arange(piece // 8, device=context.device, dtype=torch.int64)
            expected = expected + number * piece
            if flip:
                expected = ~expected
            wrong += int((part != expected).sum())
            if not flip:
                part.bitwise_not_()

    size = count * piece / 1e9
    return judge_result(
        wrong == 0,
        f"{wrong} wrong of {size:.0f} GB of {whole / 1e9:.0f}",
        "each word as written",
        "two patterns",
        remedy="drain the node; test the GPU's memory, then reset it (nvidia-smi -r)",
    )


def check_node_hbm(context: Context) -> Result:
    """Measure the bandwidth of a copy within the GPU: bytes read and written."""
    needs_gpu(context)
    data = torch.empty(1 << 28, device=context.device, dtype=torch.float32)
    other = torch.empty_like(data)
    moved = 2 * data.numel() * 4
    rate = moved / time_on_gpu(lambda: other.copy_(data)) / 1e12
    return judge_hbm(rate, context.gpu_name())


def check_node_matmul(context: Context) -> Result:
    """Measure TFLOP/s of 8192^3 products in bf16, fp16, tf32 and fp32, and compare a small one.

    nvidia-smi is asked for slowdowns while fp16 products run.
    """
    needs_gpu(context)
    size = 8192
    rates = {}
    kinds = {
        "bf16": (torch.bfloat16, False),
        "fp16": (torch.float16, False),
        "tf32": (torch.float32, True),
        "fp32": (torch.float32, False),
    }
    for name, (dtype, tf32) in kinds.items():
        if dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported():
            continue
        a = torch.randn(size, size, device=context.device, dtype=dtype)
        b = torch.randn(size, size, device=context.device, dtype=dtype)
        torch.backends.cuda.matmul.allow_tf32 = tf32
        seconds = time_on_gpu(lambda a=a, b=b: a @ b, 5)  # type: ignore[misc]
        rates[name] = round(2 * size**3 / seconds / 1e12, 1)
        torch.backends.cuda.matmul.allow_tf32 = False

    ones = torch.ones(512, 512, device=context.device)
    right = bool(((ones @ ones) == 512).all())
    a = torch.randn(size, size, device=context.device, dtype=torch.float16)

    def work() -> None:
        for _ in range(20):
            a @ a
        torch.cuda.synchronize()

    samples = [load.find_own_row(context, rows) for rows in load.sample_load(work, LOADED_S)]
    name = context.gpu_name()
    return judge_matmul(rates, [row for row in samples if row], name, right=right)
