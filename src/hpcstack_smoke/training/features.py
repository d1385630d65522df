"""What training uses besides: gradient checkpointing, torch.compile, attention's back ends, the
profiler.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

import torch

from hpcstack_smoke.result import FAIL, PASS, Result, Skip, judge_result
from hpcstack_smoke.training import task
from hpcstack_smoke.training.ddp import wrap_network

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context


def checkpointing(context: Context) -> Result:
    """Activations are not kept but made again in backward; how often forward ran is the proof."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.checkpoint import checkpoint

    class Again(torch.nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner, self.runs = inner, 0

        def forward(self, x: Any) -> Any:
            self.runs += 1
            return self.inner(x)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = task.make_network(task.SEED + context.rank, context.device)
            self.first, self.rest = layers[0], Again(layers[1:])

        def forward(self, x: Any) -> Any:
            return checkpoint(self.rest, self.first(x), use_reentrant=False)

    network = Network()
    around = DistributedDataParallel(network, device_ids=[context.device] if context.gpu else None)
    optimizer = torch.optim.SGD(around.parameters(), lr=task.RATE)
    losses = task.data_parallel(context, around, optimizer)
    proof = (
        ""
        if network.rest.runs == 2 * task.STEPS
        else f"forward ran {network.rest.runs} times: nothing was made again"
    )
    return task.judge_training(
        context,
        losses,
        task.flatten_parameters(network.parameters()),
        f"forward ran {network.rest.runs} times",
        proof=proof,
    )


def compiled(context: Context) -> Result:
    """torch.compile gives the same steps; how many graphs were made is the proof."""
    import sys

    reason = ""
    if sys.platform != "linux" or not (
        context.gpu or shutil.which("g++") or shutil.which("clang++")
    ):
        reason = "no C++ compiler in the image: torch.compile makes its kernels with one"
    context.skip_together(reason)
    from torch._dynamo.utils import counters
    from torch.nn.parallel import DistributedDataParallel

    counters.clear()
    network = task.make_network(task.SEED + context.rank, context.device)
    ids = [context.device] if context.gpu else None
    # The network is compiled, then wrapped: of a compiled DDP, torch 2.13 leaves nothing to compile
    around = DistributedDataParallel(torch.compile(network), device_ids=ids)
    optimizer = torch.optim.SGD(around.parameters(), lr=task.RATE)
    losses = task.data_parallel(context, around, optimizer)
    graphs = int(counters["stats"].get("unique_graphs", 0))
    proof = "" if graphs else "no graph was compiled"
    return task.judge_training(
        context,
        losses,
        task.flatten_parameters(network.parameters()),
        f"{graphs} graph(s)",
        proof=proof,
    )


def attention(context: Context) -> Result:
    """Each back end of scaled dot product attention against the plain formula, forward and
    backward.
    """
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        raise Skip(f"torch {torch.__version__} has no torch.nn.attention (2.3 and newer)") from None
    half = (
        torch.bfloat16
        if context.gpu and torch.cuda.get_device_capability(context.device)[0] >= 8
        else torch.float16
    )
    dtype = half if context.gpu else torch.float32
    torch.manual_seed(7)
    base = [torch.randn(2, 4, 128, 64, device=context.device, dtype=dtype) for _ in range(3)]
    expected = _plain(*base)
    used, errors = [], {}
    for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"):
        backend = getattr(SDPBackend, name, None)
        if backend is None:
            continue
        try:
            with sdpa_kernel(backend):
                errors[name] = _distance(expected, _attended(*base))
            used.append(name)
        except RuntimeError:  # this back end does not do this here
            continue
    limit = 3e-2 if context.gpu else 1e-4
    worst = max(errors.values(), default=float("inf"))
    measured = (
        f"{', '.join(name.lower() for name in used) or 'none'}; off the formula by {worst:.1e}"
    )
    if context.gpu and not any(name != "MATH" for name in used):
        return Result(
            FAIL,
            measured,
            "a fused back end",
            remedy="only the plain formula works: torch is not built for this GPU",
        )
    return judge_result(
        bool(used) and worst <= limit,
        measured,
        f"off by <= {limit:g}",
        "softmax(QK'/sqrt(d))V in fp32",
    )


def _plain(q: Any, k: Any, v: Any) -> list[Any]:
    q, k, v = (one.detach().float().requires_grad_() for one in (q, k, v))
    out = torch.softmax(q @ k.transpose(-2, -1) / 8.0, -1) @ v
    out.pow(2).mean().backward()
    return [out, q.grad, k.grad, v.grad]


def _attended(q: Any, k: Any, v: Any) -> list[Any]:
    q, k, v = (one.detach().clone().requires_grad_() for one in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    out.float().pow(2).mean().backward()
    return [out, q.grad, k.grad, v.grad]


def _distance(expected: list[Any], found: list[Any]) -> float:
    """How far the output and the three gradients are off at most, each relative to its own largest
    value.
    """
    pairs = [(a.detach(), b.detach().float()) for a, b in zip(expected, found)]
    return max(float((a - b).abs().max() / a.abs().max().clamp_min(1e-12)) for a, b in pairs)


def profiled(context: Context) -> Result:
    """torch.profiler writes a trace that can be read and has the steps and their kernels in it."""
    from torch.profiler import ProfilerActivity, profile, record_function

    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if context.gpu else [])]
    _, around, optimizer = wrap_network(context)
    folder = tempfile.mkdtemp(prefix="hpcstack-profile-")
    try:
        with profile(activities=kinds) as profiler:
            for step in range(3):
                with record_function(f"hpcstack-step-{step}"):
                    loss = task.loss_of(around, *task.take_own_rows(context, step))
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        profiler.export_chrome_trace(os.path.join(folder, "trace.json"))
        with open(glob.glob(os.path.join(folder, "*.json"))[0]) as file:
            events = json.load(file)["traceEvents"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    steps = {
        event["name"] for event in events if str(event.get("name", "")).startswith("hpcstack-step-")
    }
    kernels = sum(event.get("cat") == "kernel" for event in events)
    measured = f"{len(events)} events, {len(steps)} steps, {kernels} kernels"
    good = len(steps) == 3 and (kernels > 0 or not context.gpu)
    remedy = (
        "no kernels in it: no CUPTI in the image, or only root may profile "
        "(NVreg_RestrictProfilingToAdminUsers)"
    )
    return Result(
        PASS if good else FAIL,
        measured,
        "3 steps, and kernels on GPUs",
        remedy="" if good else remedy,
    )
