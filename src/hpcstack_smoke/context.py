"""What a rank knows of itself and its process group, and how it joins the group.

Tested in tests/integration/test_smoke.py.
"""

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
    """One rank of the process group."""

    rank: int
    world: int
    local_rank: int
    nodes: int  # hosts that the ranks are on
    backend: str  # of torch.distributed: nccl or gloo
    gpu: bool  # whether `device` is a GPU
    device: Any  # a torch.device
    named: bool = False  # whether checks were asked for by name, by the recipe or the user
    output: str = ""  # the run's folder, which all nodes see
    tier: str = "quick"
    cores: int = 1  # CPUs that the ranks of this node have together
    step_nodes: int = 0  # nodes that the run was asked for
    request: Request = field(default_factory=lambda: Request(""))

    @property
    def per_node(self) -> int:
        """How many ranks each node has."""
        return max(1, self.world // self.nodes)

    def crowded(self) -> bool:
        """Whether measured times mean nothing: there is no GPU, or more ranks than cores."""
        return not self.gpu or self.per_node > self.cores

    def note(self) -> str:
        """Return what a figure of this run must be marked with; empty if it needs no mark."""
        if not self.crowded():
            return ""
        kind = "GPU" if self.gpu else "CPU"
        if self.per_node > self.cores:
            kind += ", oversubscribed"
        return f"informational ({kind})"

    def gpu_name(self) -> str:
        """Return the name of this rank's GPU, which begins with NVIDIA; empty without a GPU."""
        import torch

        if self.device.type != "cuda":
            return ""
        return str(torch.cuda.get_device_name(self.device))

    def all(self, value: Any) -> list[Any]:
        """Return VALUE of every rank, in the order of ranks."""
        import torch.distributed as dist

        out: list[Any] = [None] * self.world
        dist.all_gather_object(out, value)
        return out

    def alive(self) -> None:
        """Change the run's folder, so that the agents do not take a long check for a stall."""
        if self.rank == 0 and self.output:
            from hpcstack_smoke.result import write_document

            write_document(self.output, "alive", {})

    def skip_together(self, reason: str) -> None:
        """Raise Skip on all ranks if any of them has a REASON.

        A rank that went on alone would wait for the others.
        """
        reasons = [one for one in self.all(reason) if one]
        if reasons:
            raise Skip(reasons[0])


def join_group(timeout_s: float, request: Request) -> Context:
    """Join the process group that torchrun has prepared.

    The backend is NCCL where every rank has a GPU of its own, else gloo on the CPU. Where the run
    was given GPUs, fewer than ranks are an error (RuntimeError) and no reason to fall back to the
    CPU. MIG devices are one: NCCL does not join them. With HPCSTACK_SMOKE_SHARE_GPU ranks share
    GPUs, so that a machine with one GPU can test them (ci/gpu): they meet by gloo, or by NCCL where
    it is `nccl` or `nccl-nodes`. NCCL does that since 2.30, with NCCL_MULTI_RANK_GPU_ENABLE=1; with
    `nccl-nodes` each rank counts as a node of its own.

    TIMEOUT_S is that of each collective; large runs get more.
    """
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    local = int(os.environ.get("LOCAL_RANK", "0"))
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    sharing = os.environ.get("HPCSTACK_SMOKE_SHARE_GPU", "")
    shared = seen > 0 and bool(sharing)
    too_few = request.gpus and seen < ranks_here
    if too_few and not list_mig_devices() and not shared:
        host = socket.gethostname()
        raise RuntimeError(
            f"torch sees {seen} GPU(s) on {host}, and {ranks_here} ranks want one each"
        )

    gpu = seen >= ranks_here or shared
    device = torch.device("cuda", local % seen) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    # fp32 must mean fp32: what a check computes is compared with a reference
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False

    backend = "nccl" if gpu and (not shared or sharing.startswith("nccl")) else "gloo"
    if shared and sharing == "nccl-nodes":
        os.environ["NCCL_HOSTID"] = f"{socket.gethostname()}-{local}"
    meet_s = start_s(request.nodes)
    store, rank, world = next(dist.rendezvous("env://", timeout=timedelta(seconds=meet_s)))
    wait_for_all(store, world, meet_s, "arrived")
    patience = timedelta(seconds=timeout_s + A_NODE_S * request.nodes)
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("hpcstack", store),
        rank=rank,
        world_size=world,
        timeout=patience,
    )
    if backend == "nccl":
        dist.barrier()  # NCCL connects at the first collective: let it fail here
    else:
        # Gloo has connected this rank; others may still be at it. A rank that has little to do
        # would end meanwhile, and theirs would fail: torch since 2.1 does not wait for them.
        wait_for_all(store, world, patience.total_seconds(), "joined")

    return Context(
        rank=rank,
        world=world,
        local_rank=local,
        nodes=max(1, world // ranks_here),
        backend=backend,
        gpu=gpu,
        device=device,
        named=bool(request.tests),
        output=request.output,
        tier=request.tier,
        cores=len(os.sched_getaffinity(0)),
        step_nodes=request.nodes,
        request=request,
    )


def wait_for_all(store: Any, world: int, seconds: float, place: str) -> None:
    """Wait until all ranks have come to PLACE, a name that is used once.

    On a cold filesystem that takes minutes, which the timeout of collectives should not have to
    cover.
    """
    from datetime import timedelta

    if store.add(f"hpcstack/{place}", 1) == world:
        store.set(f"hpcstack/all-{place}", "1")
    store.wait([f"hpcstack/all-{place}"], timedelta(seconds=seconds))


def list_mig_devices() -> list[str]:
    """Return the MIG devices that this node's step was given."""
    from hpcstack_smoke.node import nvidia

    return nvidia.parse_mig_devices(nvidia.run_nvidia_smi(["-L"]))
