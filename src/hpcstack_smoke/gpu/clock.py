"""Time calls on the GPU's own clock.

Tested in ci/one_gpu.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def time_calls(work: Callable[[], Any], calls: int) -> float:
    """Return the mean seconds of a call of WORK, by CALLS calls queued between two CUDA events."""
    import torch

    start = torch.cuda.Event(enable_timing=True)
    stop = torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(calls):
        work()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / 1e3 / calls
