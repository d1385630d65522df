"""JAX over all tasks: jax.distributed meets at the first task's address, then a sum over all
devices.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from hpcstack_smoke.result import Result, Skip, judge_result
from hpcstack_smoke.store import find_address
from hpcstack_smoke.tasks import Task, free_port


def psum(task: Task) -> Result:
    """Each task gives its rank + 1; all must get the whole sum.

    A task per GPU where there are GPUs.
    """
    if not importlib.util.find_spec("jax"):
        if task.named:
            raise RuntimeError("no jax in the image")
        raise Skip("the image has no jax")
    place = f"{find_address()}:{free_port()}" if task.rank == 0 else ""
    if task.rank == 0:
        task.post("coordinator", place)
    place = task.read("coordinator", 0)
    jax: Any = importlib.import_module("jax")
    if jax.default_backend.__module__ and not _gpus():
        jax.config.update("jax_platforms", "cpu")
        if hasattr(jax.config, "jax_cpu_collectives_implementation"):
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(place, task.world, task.rank, [task.local] if _gpus() else None)
    numpy: Any = importlib.import_module("jax.numpy")
    utils: Any = importlib.import_module("jax.experimental.multihost_utils")
    values = utils.process_allgather(numpy.full((4,), float(task.rank + 1)))
    total = float(values.reshape(task.world, 4).sum(0)[0])
    want = float(task.world * (task.world + 1) // 2)
    kind = jax.devices()[0].platform
    measured = (
        f"sum {total:g} over {jax.process_count()} processes, {jax.device_count()} {kind} device(s)"
    )
    good = total == want and jax.process_count() == task.world
    return judge_result(
        good,
        measured,
        f"sum {want:g}, {task.world} processes",
        "1 + 2 + ... + n",
        f"jax {jax.__version__}",
    )


def _gpus() -> bool:
    from hpcstack_smoke.node.host import open_gpus

    return bool(open_gpus())
