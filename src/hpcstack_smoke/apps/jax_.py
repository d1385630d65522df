"""JAX over all tasks: jax.distributed meets at rank 0's address, then sums over all processes.

Tested in ci/soak.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from hpcstack_smoke.result import Result, Skip, judge_result
from hpcstack_smoke.store import find_address
from hpcstack_smoke.tasks import Task, free_port


def check_jax_psum(task: Task) -> Result:
    """Gather rank + 1 of every task by JAX; each task must get the whole sum.

    Where there are GPUs, each task has the one of its local rank; else JAX runs on the CPU.
    """
    if not importlib.util.find_spec("jax"):
        if task.named:
            raise RuntimeError("no jax in the image")
        raise Skip("the image has no jax")

    if task.rank == 0:
        task.post("coordinator", f"{find_address()}:{free_port()}")
    coordinator = task.read("coordinator", 0)

    gpus = _count_gpus()
    if 0 < gpus <= task.local:
        # Tasks that share a GPU would each take most of its memory
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax: Any = importlib.import_module("jax")
    if jax.default_backend.__module__ and not gpus:
        jax.config.update("jax_platforms", "cpu")
        # older releases have no such setting
        if hasattr(jax.config, "jax_cpu_collectives_implementation"):
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Where tasks are more than GPUs (ci/gpu), they share them
    devices = [task.local % gpus] if gpus else None
    jax.distributed.initialize(coordinator, task.world, task.rank, devices)

    numpy: Any = importlib.import_module("jax.numpy")
    utils: Any = importlib.import_module("jax.experimental.multihost_utils")
    values = utils.process_allgather(numpy.full((4,), float(task.rank + 1)))
    total = float(values.reshape(task.world, 4).sum(0)[0])

    want = float(task.world * (task.world + 1) // 2)
    kind = jax.devices()[0].platform
    processes = jax.process_count()
    measured = f"sum {total:g} over {processes} processes, {jax.device_count()} {kind} device(s)"
    good = total == want and processes == task.world
    return judge_result(
        good,
        measured,
        f"sum {want:g}, {task.world} processes",
        "1 + 2 + ... + n",
        f"jax {jax.__version__}",
    )


def _count_gpus() -> int:
    """Return how many GPUs this process may open."""
    from hpcstack_smoke.node.host import open_gpus

    return len(open_gpus())
