"""TensorFlow over all tasks: MultiWorkerMirroredStrategy by TF_CONFIG, a sum, and a small model
that learns.
"""

from __future__ import annotations

import importlib.util
import json
import os
from typing import Any

from hpcstack_smoke.node.host import open_gpus
from hpcstack_smoke.result import Result, Skip, judge_result
from hpcstack_smoke.store import find_address
from hpcstack_smoke.tasks import Task, free_port


def total(task: Task) -> Result:
    """Each worker gives its rank + 1; all must get the whole sum."""
    if not importlib.util.find_spec("tensorflow"):
        if task.named:
            raise RuntimeError("no tensorflow in the image")
        raise Skip("the image has no tensorflow")
    if open_gpus():
        given = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
        os.environ["CUDA_VISIBLE_DEVICES"] = (
            given[task.local] if len(given) > task.local else str(task.local)
        )
    workers = task.all("worker", f"{find_address()}:{free_port()}")
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": task.rank}}
    )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    tf: Any = importlib.import_module("tensorflow")
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function  # type: ignore[untyped-decorator]
    def add() -> Any:
        def one() -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(float(task.rank + 1)))

        return strategy.run(one)

    value = float(strategy.experimental_local_results(add())[0])
    count = strategy.num_replicas_in_sync
    want = float(task.world * (task.world + 1) // 2)
    devices = len(tf.config.list_physical_devices("GPU"))
    good = value == want and count == task.world
    measured = f"sum {value:g} over {count} workers, {devices} GPU(s) each"
    result = judge_result(
        good,
        measured,
        f"sum {want:g}, {task.world} workers",
        "1 + 2 + ... + n",
        f"tensorflow {tf.__version__}",
    )
    task.wait("done")
    return result
