"""Time on the GPU's own clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def time_calls(work: Callable[[], Any], calls: int) -> float:
    """Seconds of one of CALLS calls of WORK, queued between two events."""
    import torch

    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(calls):
        work()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / 1e3 / calls
