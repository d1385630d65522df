"""Checks of DistributedDataParallel: plain, with small buckets, with autocast, with GradScaler.

Tested in tests/integration/test_smoke.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from hpcstack_smoke.result import Result, Skip
from hpcstack_smoke.training import task

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context


def wrap_network(context: Context, **options: Any) -> tuple[Any, Any, Any]:
    """Return (the task's network, DDP around it with OPTIONS, its optimizer).

    Each rank begins with weights of its own: DDP must give all of them rank 0's.
    """
    network = task.make_network(task.SEED + context.rank, context.device)
    device_ids = [context.device] if context.gpu else None
    around = DistributedDataParallel(network, device_ids=device_ids, **options)
    return network, around, torch.optim.SGD(around.parameters(), lr=task.RATE)


def check_ddp_fp32(context: Context) -> Result:
    """Test DDP as most users run it."""
    network, around, optimizer = wrap_network(context)
    losses = task.train_data_parallel(context, around, optimizer)
    return task.judge_training(
        context,
        losses,
        task.flatten_parameters(network.parameters()),
        f"{context.world} ranks, {context.backend}",
    )


def check_ddp_buckets(context: Context) -> Result:
    """Test DDP with buckets so small that each gradient has its own.

    The small network would fit into one bucket; the gradients of large models fill many.
    """
    network, around, optimizer = wrap_network(
        context, bucket_cap_mb=0.001, gradient_as_bucket_view=True
    )
    losses = task.train_data_parallel(context, around, optimizer)
    return task.judge_training(
        context,
        losses,
        task.flatten_parameters(network.parameters()),
        "bucket_cap_mb 0.001, gradients as bucket views",
    )


def check_ddp_autocast(context: Context) -> Result:
    """Test DDP with autocast to bf16. The dtype of a layer's output proves that it was used."""
    if context.gpu:
        major, _ = torch.cuda.get_device_capability(context.device)
        context.skip_together("" if major >= 8 else "a GPU without bf16 of its own")

    network, around, optimizer = wrap_network(context)
    seen: set[Any] = set()
    network[1].register_forward_hook(lambda layer, given, out: seen.add(out.dtype))
    forward = task.in_autocast(context.device, torch.bfloat16)
    losses = task.train_data_parallel(context, around, optimizer, forward)

    proof = "" if seen == {torch.bfloat16} else f"computed in {seen}"
    expected = task.train_reference(context.world, context.device, torch.bfloat16)
    return task.judge_training(
        context,
        losses,
        task.flatten_parameters(network.parameters()),
        "autocast, bf16",
        against=expected,
        tolerance=task.LOOSE,
        proof=proof,
    )


def check_ddp_scaler(context: Context) -> Result:
    """Test DDP with autocast to fp16 and GradScaler, which must skip no step.

    It scales losses up before backward and gradients down after it. A step whose gradients
    overflow is skipped, and the scale lowered.
    """
    if not context.gpu:
        raise Skip("GradScaler is for GPUs")

    network, around, optimizer = wrap_network(context)
    grad_scaler = torch.cuda.amp.GradScaler(init_scale=1024.0)
    forward = task.in_autocast(context.device, torch.float16)
    losses = []
    for step in range(task.STEPS):
        loss = forward(around, *task.take_own_rows(context, step))
        optimizer.zero_grad()
        grad_scaler.scale(loss).backward()
        grad_scaler.step(optimizer)
        grad_scaler.update()
        losses.append(task.average_over_ranks(loss))

    scale = grad_scaler.get_scale()
    expected = task.train_reference(context.world, context.device, torch.float16)
    return task.judge_training(
        context,
        losses,
        task.flatten_parameters(network.parameters()),
        f"GradScaler at {scale:g}",
        against=expected,
        tolerance=task.LOOSE,
        proof="" if scale >= 1024 else "steps were skipped",
    )
