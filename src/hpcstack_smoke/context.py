"""What a rank knows of itself."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Context:
    """One rank of the process group; `gpu`: `device` is one; `named`: checks were asked for by name."""

    rank: int
    world: int
    local_rank: int
    nodes: int
    backend: str
    gpu: bool
    device: Any
    named: bool = False


def join(timeout_s: float, *, gpus: int, named: bool = False) -> Context:
    """Join the process group that torchrun has prepared: NCCL where every rank has a GPU of its own, else gloo.

    Where GPUS are expected on each node, fewer are an error, not a reason to fall back.
    """
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    local = int(os.environ.get("LOCAL_RANK", "0"))
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if gpus and seen < ranks_here:
        raise RuntimeError(f"torch sees {seen} GPU(s) on {socket.gethostname()}, and {ranks_here} ranks want one each")
    gpu = seen >= ranks_here
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = False
    backend = "nccl" if gpu else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    world, rank = dist.get_world_size(), dist.get_rank()
    nodes = max(1, world // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return Context(rank, world, local, nodes, backend, gpu, device, named)
