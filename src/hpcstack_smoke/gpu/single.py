"""Checks of each rank's own GPU by torch: code for it, its memory, matrix rates.

What the figures are worth says gpu/judge.py; a GPU that lags behind the others of the run is named
by the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hpcstack_smoke.gpu import load
from hpcstack_smoke.gpu.clock import time_calls
from hpcstack_smoke.gpu.judge import judge_hbm, judge_matmul
from hpcstack_smoke.result import Result, Skip, judge_result

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack_smoke.context import Context

LOADED_S = 3.0


def needs_gpu(context: Context) -> None:
    if not context.gpu:
        raise Skip("no GPU")


def time_on_gpu(work: Callable[[], Any], repeat: int = 20) -> float:
    """Seconds of one call on the GPU, the best of three rounds after a warm-up."""
    for _ in range(3):
        work()
    return min(time_calls(work, repeat) for _ in range(3))


def arch(context: Context) -> Result:
    """torch was built for this GPU's compute capability, or for an older one with PTX or the same
    major number.
    """
    needs_gpu(context)
    major, minor = torch.cuda.get_device_capability(context.device)
    built = torch.cuda.get_arch_list()
    numbers = [
        (int(one.partition("_")[2].rstrip("af")[:-1]), int(one.rstrip("af")[-1]), one)
        for one in built
    ]
    direct = any(
        a == major and b <= minor and one.startswith("sm_") and one[-1].isdigit()
        for a, b, one in numbers
    )
    by_ptx = any((a, b) <= (major, minor) and one.startswith("compute_") for a, b, one in numbers)
    value = float(
        torch.ones(8, device=context.device).sum()
    )  # a kernel must start, whatever the list says
    how = "NOT in"
    if direct:
        how = "in"
    elif by_ptx:
        how = "by PTX of"
    measured = f"sm_{major}{minor} {how} {' '.join(built)}"
    return judge_result(
        (direct or by_ptx) and value == 8.0,
        measured,
        "code for this GPU",
        "torch.cuda.get_arch_list()",
        remedy="take a newer stack: hpcstack list --gpu",
    )


def memory(context: Context) -> Result:
    """A pattern over most of the free memory is read back; another pattern, bit by bit the
    opposite, too.
    """
    needs_gpu(context)
    free, whole = torch.cuda.mem_get_info(context.device)
    share = 0.8 if context.tier == "full" else 0.25
    piece, count = 1 << 28, max(1, int(free * share) // (1 << 28))
    parts = [
        torch.arange(piece // 8, device=context.device, dtype=torch.int64) for _ in range(count)
    ]
    wrong = 0
    for number, part in enumerate(parts):
        part += number * piece
    for flip in (False, True):
        for number, part in enumerate(parts):
            expected = (
                torch.arange(piece // 8, device=context.device, dtype=torch.int64) + number * piece
            )
            wrong += int((part != (~expected if flip else expected)).sum())
            if not flip:
                part.bitwise_not_()
    size = count * piece / 1e9
    return judge_result(
        wrong == 0,
        f"{wrong} wrong of {size:.0f} GB of {whole / 1e9:.0f}",
        "each word as written",
        "two patterns",
        remedy="drain the node: memtest of the GPU, then nvidia-smi -r",
    )


def hbm(context: Context) -> Result:
    """Bandwidth of a copy within the GPU: bytes read and written."""
    needs_gpu(context)
    data = torch.empty(1 << 28, device=context.device, dtype=torch.float32)
    other = torch.empty_like(data)
    rate = 2 * data.numel() * 4 / time_on_gpu(lambda: other.copy_(data)) / 1e12
    name = context.gpu_name()
    return judge_hbm(rate, name)


def matmul(context: Context) -> Result:
    """TFLOP/s of 8192^3 in bf16, fp16, tf32 and fp32; the values of a small product are compared."""
    needs_gpu(context)
    size, rates = 8192, {}
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
        rates[name] = round(2 * size**3 / time_on_gpu(lambda a=a, b=b: a @ b, 5) / 1e12, 1)  # type: ignore[misc]
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
