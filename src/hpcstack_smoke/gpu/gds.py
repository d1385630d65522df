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
EXPECTED = "each word as written, read directly"
REMEDY = "gdscheck -p on that node: is its filesystem one that nvidia-fs serves?"


def read(context: Context) -> Result:
    """A file of this node's folder of the run, by torch's cuFile (since torch 2.7), compared word
    by word.
    """
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
        try:
            source = gds.GdsFile(file.name, os.O_RDONLY)
            for _ in range(COUNT):
                got.zero_()
                torch.cuda.synchronize()
                began = time.perf_counter()
                source.load_storage(got.untyped_storage(), 0)
                torch.cuda.synchronize()
                best = min(best, time.perf_counter() - began)
                wrong += int((got != numbers.to(context.device)).sum())
        except (RuntimeError, OSError) as error:
            return explain_unsupported(str(error))
    return judge_read(wrong, before, _reads(), SIZE / best / 1e9)


def _reads() -> int | None:
    try:
        with open(STATS) as file:
            match = READS.search(file.read())
    except OSError:
        return None
    return int(match[1]) if match else None


def explain_unsupported(why: str) -> Result:
    """What it means that torch or the filesystem does not take such a file.

    Skip: torch is built without cuFile.
    """
    if "not supported on this platform" in why:
        raise Skip("this torch is built without cuFile")
    return Result(WARN, f"not read directly: {why[:200]}", EXPECTED, remedy=REMEDY)


def judge_read(wrong: int, before: int | None, after: int | None, rate: float) -> Result:
    """FAIL where a word is another; WARN where the kernel's part counted no read: cuFile took its
    other way.
    """
    direct = None if before is None or after is None else after > before
    how = {True: "", False: "; not direct", None: "; nobody counts"}[direct]
    said = f"{wrong} wrong words; {rate:.2f} GB/s{how}"
    status = PASS
    if wrong:
        status = FAIL
    elif direct is False:
        status = WARN
    return Result(
        status,
        said,
        EXPECTED,
        "compared; nvidia-fs counts reads",
        remedy="" if status == PASS else REMEDY,
        figures={"gds_read_GB_s": round(rate, 3)},
    )
