"""Checks of each rank's own GPU by torch: code for it, its memory, matrix rates, copies, its peers.

Expected figures are what others have measured or NVIDIA specifies (RATES, MEMORY); below 80 % of them is a WARN, as no
gate is sourced. A GPU that lags behind the others of the run is named by the host's judgement.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from hpcstack_smoke.gpu.clock import elapsed
from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip, judge

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack_smoke.context import Context

# bf16 TFLOP/s that stas00/ml-engineering (mamf-finder) measured, by the GPU's name without NVIDIA before it
RATES = {"A100 80GB PCIe": 253.0, "A100-SXM4-80GB": 271.0, "H100 80GB HBM3": 794.0, "H200": 794.0, "B200": 1745.0}
# TB/s of NVIDIA's data sheets. A GPU with another memory has another name, and is held against nothing
MEMORY = {"A100 80GB PCIe": 1.94, "A100-SXM4-80GB": 2.0, "H100 PCIe": 2.0, "H100 80GB HBM3": 3.35, "H200": 4.8,
          "B200": 8.0, "L40S": 0.86}  # fmt: skip
SHARE = 0.8
MAMF, DATASHEET = "stas00/ml-engineering, measured", "NVIDIA's data sheet"


def _needs(context: Context) -> None:
    if not context.gpu:
        raise Skip("no GPU")


def known(table: dict[str, float], name: str) -> float:
    """The figure of the GPU NAME; 0 where none is known: neither GH200 nor H200 NVL is an H200."""
    return table.get(name.removeprefix("NVIDIA "), 0.0)


def _timed(work: Callable[[], Any], repeat: int = 20) -> float:
    """Seconds of one call on the GPU, the best of three rounds after a warm-up."""
    for _ in range(3):
        work()
    return min(elapsed(work, repeat) for _ in range(3))


def arch(context: Context) -> Result:
    """torch was built for this GPU's compute capability, or for an older one with PTX or the same major number."""
    _needs(context)
    major, minor = torch.cuda.get_device_capability(context.device)
    built = torch.cuda.get_arch_list()
    numbers = [(int(one.partition("_")[2].rstrip("af")[:-1]), int(one.rstrip("af")[-1]), one) for one in built]
    direct = any(a == major and b <= minor and one.startswith("sm_") and one[-1].isdigit() for a, b, one in numbers)
    by_ptx = any((a, b) <= (major, minor) and one.startswith("compute_") for a, b, one in numbers)
    value = float(torch.ones(8, device=context.device).sum())  # a kernel must start, whatever the list says
    measured = f"sm_{major}{minor} {'in' if direct else 'by PTX of' if by_ptx else 'NOT in'} {' '.join(built)}"
    return judge(
        (direct or by_ptx) and value == 8.0,
        measured,
        "code for this GPU",
        "torch.cuda.get_arch_list()",
        remedy="take a newer stack: hpcstack list --gpu",
    )


def memory(context: Context) -> Result:
    """A pattern over most of the free memory is read back; another pattern, bit by bit the opposite, too."""
    _needs(context)
    free, whole = torch.cuda.mem_get_info(context.device)
    share = 0.8 if context.tier == "full" else 0.25
    piece, count = 1 << 28, max(1, int(free * share) // (1 << 28))
    parts = [torch.arange(piece // 8, device=context.device, dtype=torch.int64) for _ in range(count)]
    wrong = 0
    for number, part in enumerate(parts):
        part += number * piece
    for flip in (False, True):
        for number, part in enumerate(parts):
            expected = torch.arange(piece // 8, device=context.device, dtype=torch.int64) + number * piece
            wrong += int((part != (~expected if flip else expected)).sum())
            if not flip:
                part.bitwise_not_()
    size = count * piece / 1e9
    return judge(
        wrong == 0,
        f"{wrong} wrong of {size:.0f} GB of {whole / 1e9:.0f}",
        "each word as written",
        "two patterns",
        remedy="drain the node: memtest of the GPU, then nvidia-smi -r",
    )


def hbm(context: Context) -> Result:
    """Bandwidth of a copy within the GPU: bytes read and written."""
    _needs(context)
    data = torch.empty(1 << 28, device=context.device, dtype=torch.float32)
    other = torch.empty_like(data)
    rate = 2 * data.numel() * 4 / _timed(lambda: other.copy_(data)) / 1e12
    name = torch.cuda.get_device_name(context.device)
    return _against(rate, known(MEMORY, name), "TB/s", "hbm_TB_s", DATASHEET, name)


def _against(value: float, want: float, unit: str, figure: str, source: str, name: str, evidence: str = "") -> Result:
    figures = {figure: round(value, 4)}
    if not want:
        return Result(PASS, f"{value:.3g} {unit}", f"nothing is known of {name}", evidence=evidence, figures=figures)
    status = PASS if value >= SHARE * want else WARN
    remedy = "" if status == PASS else "look at clocks, power limit and temperature: nvidia-smi -q -d PERFORMANCE"
    return Result(
        status, f"{value:.3g} {unit}", f">= {SHARE:.0%} of {want:g} {unit}", source, evidence, remedy, figures
    )


def matmul(context: Context) -> Result:
    """TFLOP/s of 8192^3 in bf16, fp16, tf32 and fp32; the values of a small product are compared."""
    _needs(context)
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
        rates[name] = round(2 * size**3 / _timed(lambda a=a, b=b: a @ b, 5) / 1e12, 1)  # type: ignore[misc]
        torch.backends.cuda.matmul.allow_tf32 = False
    ones = torch.ones(512, 512, device=context.device)
    if not bool(((ones @ ones) == 512).all()):
        return Result(FAIL, "a product of ones is not 512", "512", remedy="drain the node: the GPU computes wrongly")
    name = torch.cuda.get_device_name(context.device)
    said = ", ".join(f"{kind} {rate:g}" for kind, rate in rates.items())
    result = _against(rates.get("bf16", 0.0), known(RATES, name), "TFLOP/s in bf16", "bf16_TFLOP_s", MAMF, name, said)
    figures = {f"{kind}_TFLOP_s": rate for kind, rate in rates.items()}
    return Result(result.status, f"{said} TFLOP/s", result.expected, result.source, "", result.remedy, figures)


def copies(context: Context) -> Result:
    """Pinned host memory to the GPU and back."""
    _needs(context)
    host = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(1 << 28, dtype=torch.uint8, device=context.device)
    there = host.numel() / _timed(lambda: device.copy_(host, non_blocking=True), 5) / 1e9
    back = host.numel() / _timed(lambda: host.copy_(device, non_blocking=True), 5) / 1e9
    figures = {"h2d_GB_s": round(there, 2), "d2h_GB_s": round(back, 2)}
    return Result(
        PASS,
        f"to the GPU {there:.1f} GB/s, back {back:.1f} GB/s",
        "no gate; PCIe 4 x16 gives 31, 5 x16 63 at most",
        "the PCIe specification",
        figures=figures,
    )


def p2p(context: Context) -> Result:
    """Each two GPUs of the node, one after another, by the first local rank: the values, and a matrix of GB/s."""
    _needs(context)
    count = torch.cuda.device_count()
    mine: Any = None
    if context.local_rank == 0 and count > 1:
        mine = _copies(count)
    torch.cuda.set_device(context.device)
    everyone = context.all(mine)
    if not any(everyone):
        raise Skip("one GPU")
    table, wrong, busy = everyone[context.rank - context.local_rank] or ([[0.0]], [], "")
    if busy:
        raise Skip(f"GPUs that are another process's alone: {busy}")
    values = [value for row in table for value in row if value] or [0.0]
    labels = [str(n) for n in range(len(table))]
    heat = [{"kind": "matrix", "name": "GPU to GPU", "labels": labels, "values": table, "y_unit": "GB/s"}]
    measured = f"wrong: {', '.join(wrong)}" if wrong else f"{min(values):.0f} to {max(values):.0f} GB/s"
    remedy = "look at nvidia-smi topo -p2p r, ACS and the IOMMU"
    return judge(not wrong, measured, "each copy right", remedy=remedy, series=heat,
                 figures={"slowest_GB_s": round(min(values), 1)})  # fmt: skip


def _copies(count: int) -> tuple[list[list[float]], list[str], str]:
    """(GB/s of each pair, which copies were wrong, why it could not be done)."""
    table, wrong = [[0.0] * count for _ in range(count)], []
    try:
        for a in range(count):
            for b in range(count):
                if a != b:
                    table[a][b], right = _copied(a, b)
                    wrong += [] if right else [f"{a}->{b}"]
    except RuntimeError as error:  # in the compute mode EXCLUSIVE_PROCESS each GPU is one rank's alone
        if "busy" not in str(error):
            raise
        return table, wrong, str(error).splitlines()[0]
    return table, wrong, ""


def _copied(a: int, b: int) -> tuple[float, bool]:
    source = torch.arange(1 << 25, device=f"cuda:{a}", dtype=torch.float32)
    target = torch.zeros_like(source, device=f"cuda:{b}")
    target.copy_(source)
    torch.cuda.synchronize(a)
    began = time.perf_counter()
    for _ in range(5):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize(a)
    torch.cuda.synchronize(b)
    took = (time.perf_counter() - began) / 5
    return round(source.numel() * 4 / took / 1e9, 1), bool((target.cpu() == source.cpu()).all())
