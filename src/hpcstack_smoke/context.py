"""What a rank knows of itself."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from typing import Any

from hpcstack_smoke.agent import A_NODE_S, start_s
from hpcstack_smoke.request import Request
from hpcstack_smoke.result import Skip


@dataclass(frozen=True)
class Context:
    """One rank of the process group; `gpu`: `device` is one; `named`: checks were asked for by
    name.

    `output` is the run's folder, which every node sees; `cores`: how many CPUs the ranks of this
    node have together.
    """

    rank: int
    world: int
    local_rank: int
    nodes: int
    backend: str
    gpu: bool
    device: Any
    named: bool = False
    output: str = ""
    tier: str = "quick"
    cores: int = 1
    step_nodes: int = 0
    request: Request = field(default_factory=lambda: Request(""))

    @property
    def per_node(self) -> int:
        return max(1, self.world // self.nodes)

    def crowded(self) -> bool:
        """Whether times say nothing: no GPU, or more ranks than cores."""
        return not self.gpu or self.per_node > self.cores

    def note(self) -> str:
        """What must stand beside a figure of this run; empty on GPUs with cores enough."""
        if self.crowded():
            kind = "GPU" if self.gpu else "CPU"
            return (
                f"informational ({kind}{', oversubscribed' if self.per_node > self.cores else ''})"
            )
        return ""

    def gpu_name(self) -> str:
        """The name of this rank's GPU, with NVIDIA before it; empty without one."""
        import torch

        return str(torch.cuda.get_device_name(self.device)) if self.device.type == "cuda" else ""

    def all(self, value: Any) -> list[Any]:
        """VALUE of every rank, in the order of ranks."""
        import torch.distributed as dist

        out: list[Any] = [None] * self.world
        dist.all_gather_object(out, value)
        return out

    def alive(self) -> None:
        """A sign of life in the run's folder, between the parts of a long check."""
        if self.rank == 0 and self.output:
            from hpcstack_smoke.result import write_document

            write_document(self.output, "alive", {})

    def skip_together(self, reason: str) -> None:
        """SKIP on all ranks if any has a REASON: one that went on alone would wait for the others."""
        reasons = [one for one in self.all(reason) if one]
        if reasons:
            raise Skip(reasons[0])


def join_group(timeout_s: float, request: Request) -> Context:
    """Join the process group that torchrun has prepared: NCCL where every rank has a GPU of its
    own, else gloo.

    Where GPUs are expected on each node, fewer are an error, not a reason to fall back; MIG devices
    are, which NCCL does not join: then the ranks meet on the CPU. With HPCSTACK_SMOKE_SHARE_GPU
    ranks share GPUs, and meet by gloo: what can be proven of training on a machine with one
    (ci/gpu).
    """
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    local = int(os.environ.get("LOCAL_RANK", "0"))
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    parts = request.gpus and seen < ranks_here and bool(mig_devices())
    shared = seen > 0 and bool(os.environ.get("HPCSTACK_SMOKE_SHARE_GPU"))
    if request.gpus and seen < ranks_here and not parts and not shared:
        raise RuntimeError(
            f"torch sees {seen} GPU(s) on {socket.gethostname()}, and {ranks_here} ranks want "
            f"one each"
        )
    gpu = seen >= ranks_here or shared
    device = torch.device("cuda", local % seen) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    backend = "nccl" if gpu and not shared else "gloo"
    meet_s = start_s(request.nodes)
    store, rank, world = next(dist.rendezvous("env://", timeout=timedelta(seconds=meet_s)))
    wait_for_all(store, world, meet_s)
    patience = timedelta(seconds=timeout_s + A_NODE_S * request.nodes)
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("hpcstack", store),
        rank=rank,
        world_size=world,
        timeout=patience,
    )
    if backend == "nccl":
        dist.barrier()  # NCCL connects here
    counted = max(1, world // ranks_here)
    cores = len(os.sched_getaffinity(0))
    return Context(
        rank,
        world,
        local,
        counted,
        backend,
        gpu,
        device,
        bool(request.tests),
        request.output,
        request.tier,
        cores,
        request.nodes,
        request,
    )


def wait_for_all(store: Any, world: int, seconds: float) -> None:
    """Wait until all ranks have imported what they need: on a cold filesystem that takes minutes,
    and no collective's patience should have to cover it.
    """
    from datetime import timedelta

    if store.add("hpcstack/arrived", 1) == world:
        store.set("hpcstack/all", "1")
    store.wait(["hpcstack/all"], timedelta(seconds=seconds))


def mig_devices() -> list[str]:
    """The MIG devices that this node's step was given."""
    from hpcstack_smoke.node import nvidia

    return nvidia.parse_mig_devices(nvidia.nvidia_smi(["-L"]))
