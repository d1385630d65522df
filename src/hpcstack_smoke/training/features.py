"""Checks of what training also uses: checkpointing, torch.compile, attention, the profiler.

Tested in tests/integration/test_smoke.py and tests/integration/test_chain.py.
"""

from __future__ import annotations

import contextlib
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


def check_train_checkpointing(context: Context) -> Result:
    """Test gradient checkpointing: activations are not kept but computed again in backward.

    As proof, forward must have run twice in each step.
    """
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.checkpoint import checkpoint

    class Counted(torch.nn.Module):
        """Layers that count how often they run."""

        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner
            self.runs = 0

        def forward(self, x: Any) -> Any:
            self.runs += 1
            return self.inner(x)

    class Network(torch.nn.Module):
        """The task's network; all but its first layer is checkpointed."""

        def __init__(self) -> None:
            super().__init__()
            layers = task.make_network(task.SEED + context.rank, context.device)
            self.first = layers[0]
            self.rest = Counted(layers[1:])

        def forward(self, x: Any) -> Any:
            return checkpoint(self.rest, self.first(x), use_reentrant=False)

    network = Network()
    around = DistributedDataParallel(network, device_ids=[context.device] if context.gpu else None)
    optimizer = torch.optim.SGD(around.parameters(), lr=task.RATE)
    losses = task.train_data_parallel(context, around, optimizer)

    evidence = f"forward ran {network.rest.runs} times"
    proof = ""
    if network.rest.runs != 2 * task.STEPS:
        proof = f"{evidence}: nothing was made again"
    return task.judge_training(
        context,
        losses,
        task.flatten_parameters(network.parameters()),
        evidence,
        proof=proof,
    )


def check_train_compile(context: Context) -> Result:
    """Test that torch.compile gives the same steps. As proof, a graph must have been compiled."""
    import sys

    # on GPUs Triton makes the kernels
    has_compiler = context.gpu or shutil.which("g++") or shutil.which("clang++")
    reason = ""
    if sys.platform != "linux" or not has_compiler:
        reason = "no C++ compiler in the image: torch.compile makes its kernels with one"
    context.skip_together(reason)
    from torch._dynamo.utils import counters
    from torch.nn.parallel import DistributedDataParallel

    counters.clear()
    network = task.make_network(task.SEED + context.rank, context.device)
    ids = [context.device] if context.gpu else None
    # compiled first and then wrapped: of a compiled DDP, torch 2.13 leaves nothing to compile
    around = DistributedDataParallel(torch.compile(network), device_ids=ids)
    optimizer = torch.optim.SGD(around.parameters(), lr=task.RATE)
    losses = task.train_data_parallel(context, around, optimizer)

    graphs = int(counters["stats"].get("unique_graphs", 0))
    proof = "" if graphs else "no graph was compiled"
    return task.judge_training(
        context,
        losses,
        task.flatten_parameters(network.parameters()),
        f"{graphs} graph(s)",
        proof=proof,
    )


def check_train_attention(context: Context) -> Result:
    """Compare each back end of scaled dot product attention with the plain formula.

    Forward and backward are compared. A back end that does not work here is left out; on a GPU
    one that is not the plain formula must work.
    """
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        raise Skip(f"torch {torch.__version__} has no torch.nn.attention (2.3 and newer)") from None

    torch.manual_seed(7)
    dtype = _choose_dtype(context)
    base = [torch.randn(2, 4, 128, 64, device=context.device, dtype=dtype) for _ in range(3)]
    expected = _attend_plainly(*base)

    errors = {}  # by back end, of those that work
    for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"):
        backend = getattr(SDPBackend, name, None)
        if backend is None:
            continue
        # RuntimeError: this back end cannot do this here
        with contextlib.suppress(RuntimeError), sdpa_kernel(backend):
            errors[name] = _measure_distance(expected, _attend(*base))

    limit = 3e-2 if context.gpu else 1e-4
    worst = max(errors.values(), default=float("inf"))
    used = ", ".join(name.lower() for name in errors) or "none"
    measured = f"{used}; off the formula by {worst:.1e}"
    if context.gpu and not any(name != "MATH" for name in errors):
        return Result(
            FAIL,
            measured,
            "a fused back end",
            remedy="only the plain formula works: torch is not built for this GPU",
        )
    return judge_result(
        bool(errors) and worst <= limit,
        measured,
        f"off by <= {limit:g}",
        "softmax(QK'/sqrt(d))V in fp32",
    )


def _choose_dtype(context: Context) -> Any:
    """Return the dtype for attention: bf16 where the GPU has it, else fp16; fp32 on CPUs."""
    if not context.gpu:
        return torch.float32
    if torch.cuda.get_device_capability(context.device)[0] >= 8:
        return torch.bfloat16
    return torch.float16


def _attend_plainly(q: Any, k: Any, v: Any) -> list[Any]:
    """Return attention by the formula, in fp32, and the gradients of Q, K and V."""
    q, k, v = (one.detach().float().requires_grad_() for one in (q, k, v))
    out = torch.softmax(q @ k.transpose(-2, -1) / 8.0, -1) @ v  # 8: the root of 64, a head's size
    out.pow(2).mean().backward()
    return [out, q.grad, k.grad, v.grad]


def _attend(q: Any, k: Any, v: Any) -> list[Any]:
    """Return attention by torch's own function, and the gradients of Q, K and V."""
    q, k, v = (one.detach().clone().requires_grad_() for one in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    out.float().pow(2).mean().backward()
    return [out, q.grad, k.grad, v.grad]


def _measure_distance(expected: list[Any], found: list[Any]) -> float:
    """Return how far FOUND tensors are off at most, each relative to the largest value EXPECTED."""
    worst = []
    for want, got in zip(expected, found):
        a = want.detach()
        b = got.detach().float()
        worst.append(float((a - b).abs().max() / a.abs().max().clamp_min(1e-12)))
    return max(worst)


def check_train_profiler(context: Context) -> Result:
    """Test that torch.profiler writes a trace with the steps, and on GPUs their kernels, in it."""
    from torch.profiler import ProfilerActivity, profile, record_function

    kinds = [ProfilerActivity.CPU]
    if context.gpu:
        kinds.append(ProfilerActivity.CUDA)
    _, around, optimizer = wrap_network(context)
    folder = tempfile.mkdtemp(prefix="hpcstack-profile-")
    try:
        with profile(activities=kinds) as profiler:
            for step in range(3):
                with record_function(f"hpcstack-step-{step}"):
                    loss = task.compute_loss(around, *task.take_own_rows(context, step))
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        profiler.export_chrome_trace(os.path.join(folder, "trace.json"))
        with open(glob.glob(os.path.join(folder, "*.json"))[0]) as file:
            events = json.load(file)["traceEvents"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    names = {str(event.get("name", "")) for event in events}
    steps = {name for name in names if name.startswith("hpcstack-step-")}
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
