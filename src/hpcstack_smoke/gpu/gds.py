"""Check GPUDirect Storage: a file read straight into the GPU's memory holds what was written."""

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
# The count of reads in it
READS = re.compile(r"^Reads\s*:.*?\b(?:ok|n)=(\d+)", re.MULTILINE)
# Bytes of the file, and how often it is read
SIZE, COUNT = 64 << 20, 4
EXPECTED = "each word as written, read directly"
REMEDY = "run gdscheck -p on that node: does nvidia-fs support its filesystem?"


def check_io_gds(context: Context) -> Result:
    """Read a file in the run's folder by torch's cuFile (since torch 2.7) and compare each word."""
    import torch

    from hpcstack_smoke.gpu.single import needs_gpu

    needs_gpu(context)
    gds: Any = getattr(torch.cuda, "gds", None)
    if not os.path.exists(STATS):
        raise Skip("nvidia-fs is not loaded: reads would go through host memory")
    if gds is None or not hasattr(gds, "GdsFile"):
        raise Skip("this torch has no torch.cuda.gds")

    numbers = torch.arange(SIZE // 8, dtype=torch.int64) + context.rank * SIZE
    got = torch.zeros(SIZE // 8, dtype=torch.int64, device=context.device)
    before = _count_reads()
    wrong = 0
    best = float("inf")
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
    return judge_read(wrong, before, _count_reads(), SIZE / best / 1e9)


def _count_reads() -> int | None:
    """Return how many reads nvidia-fs has counted on this node, None where it does not say."""
    try:
        with open(STATS) as file:
            match = READS.search(file.read())
    except OSError:
        return None
    return int(match[1]) if match else None


def explain_unsupported(why: str) -> Result:
    """Return the WARN of a file that torch or the filesystem refuses to read directly; WHY they do.

    Raise Skip where torch is built without cuFile.
    """
    if "not supported on this platform" in why:
        raise Skip("this torch is built without cuFile")
    return Result(WARN, f"not read directly: {why[:200]}", EXPECTED, remedy=REMEDY)


def judge_read(wrong: int, before: int | None, after: int | None, rate: float) -> Result:
    """Judge a read at RATE (GB/s): a WRONG word is a FAIL, a read that was not direct a WARN.

    BEFORE and AFTER are nvidia-fs's counts of reads. Where they are the same, cuFile read in its
    compatibility mode, through host memory.
    """
    measured = f"{wrong} wrong words; {rate:.2f} GB/s"
    status = PASS
    if before is None or after is None:
        measured += "; reads are not counted here"
    elif after <= before:
        measured += "; not direct"
        status = WARN
    if wrong:
        status = FAIL
    return Result(
        status,
        measured,
        EXPECTED,
        "compared; nvidia-fs counts reads",
        remedy="" if status == PASS else REMEDY,
        figures={"gds_read_GB_s": round(rate, 3)},
    )
