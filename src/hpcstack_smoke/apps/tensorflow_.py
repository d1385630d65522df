"""TensorFlow over all tasks: a sum by MultiWorkerMirroredStrategy, which TF_CONFIG configures.

Tested in ci/soak.
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


def check_tensorflow_sum(task: Task) -> Result:
    """Add rank + 1 of every worker by TensorFlow; each worker must get the whole sum.

    Where there are GPUs, each worker has the one of its local rank.
    """
    if not importlib.util.find_spec("tensorflow"):
        if task.named:
            raise RuntimeError("no tensorflow in the image")
        raise Skip("the image has no tensorflow")

    # TensorFlow takes every GPU that it sees: show it one, before it is imported
    if open_gpus():
        given = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
        own = given[task.local] if len(given) > task.local else str(task.local)
        os.environ["CUDA_VISIBLE_DEVICES"] = own

    workers = task.all("worker", f"{find_address()}:{free_port()}")
    cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": task.rank}}
    os.environ["TF_CONFIG"] = json.dumps(cluster)
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
    # a worker that ends early would break the others' cluster
    task.wait("done")
    return result
