"""GPUDirect Storage: what is read from a file straight into the GPU's memory is what was written."""

from __future__ import annotations

import os
import re
import tempfile
import time
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context

STATS = "/proc/driver/nvidia-fs/stats"
READS = re.compile(r"^Reads\s*:.*?\b(?:ok|n)=(\d+)", re.MULTILINE)
SIZE, COUNT = 64 << 20, 4


def read(context: Context) -> Result:
    """A file of this node's folder of the run, by torch's cuFile (since torch 2.7), compared word by word."""
    import torch

    from hpcstack_smoke.gpu.single import needs_gpu

    needs_gpu(context)
    gds: Any = getattr(torch.cuda, "gds", None)
    if not os.path.exists(STATS):
        raise Skip("nvidia-fs is not loaded: reads would go through the host's memory")
    if gds is None or not hasattr(gds, "GdsFile"):
        raise Skip("this torch has no torch.cuda.gds")
    numbers = torch.arange(SIZE // 8, dtype=torch.int64) + context.rank * SIZE
    got = torch.zeros(SIZE // 8, dtype=torch.int64, device=context.device)
    before, wrong, best = _reads(), 0, float("inf")
    with tempfile.NamedTemporaryFile(dir=context.output or None, prefix=".gds-") as file:
        file.write(numbers.numpy().tobytes())
        file.flush()
        os.fsync(file.fileno())
        source = gds.GdsFile(file.name, os.O_RDONLY)
        for _ in range(COUNT):
            got.zero_()
            torch.cuda.synchronize()
            began = time.perf_counter()
            source.load_storage(got.untyped_storage(), 0)
            torch.cuda.synchronize()
            best = min(best, time.perf_counter() - began)
            wrong += int((got != numbers.to(context.device)).sum())
    return judge_read(wrong, before, _reads(), SIZE / best / 1e9)


def _reads() -> int | None:
    try:
        with open(STATS) as file:
            match = READS.search(file.read())
    except OSError:
        return None
    return int(match[1]) if match else None


def judge_read(wrong: int, before: int | None, after: int | None, rate: float) -> Result:
    """FAIL where a word is another; WARN where the kernel's part counted no read: cuFile took its other way."""
    direct = None if before is None or after is None else after > before
    how = {True: "", False: "; not direct", None: "; nobody counts"}[direct]
    said = f"{wrong} wrong words; {rate:.2f} GB/s{how}"
    status = FAIL if wrong else WARN if direct is False else PASS
    remedy = "" if status == PASS else "gdscheck -p on that node: is its filesystem one that nvidia-fs serves?"
    return Result(status, said, "each word as written, read directly", "compared; nvidia-fs counts reads",
                  remedy=remedy, figures={"gds_read_GB_s": round(rate, 3)})  # fmt: skip
