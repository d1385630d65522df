"""One rank under torchrun: joins the process group, runs the checks that need all ranks, writes rank-N.json.

torchrun ... -m hpcstack_smoke.ranks --output DIR --tests nccl,ddp
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
from collections.abc import Callable
from typing import Any

from hpcstack_smoke.result import ERROR, Result, run, write
from hpcstack_smoke.select import CODES, selected

TIMEOUT_S = 120.0


def checks(context: Any) -> dict[str, Callable[[], Result]]:
    """{code: check} over all ranks. torch is imported here, DeepSpeed in its own checks."""
    from hpcstack_smoke import collective, training

    return {
        "nccl.exact": lambda: collective.nccl_exact(context),
        "nccl.bandwidth": lambda: collective.nccl_bandwidth(context),
        "nccl.gloo": lambda: collective.gloo(context),
        "ddp.placement": lambda: collective.placement(context),
        "ddp.fp32": lambda: training.ddp(context),
        "deepspeed.zero1": lambda: training.zero(context, 1),
        "deepspeed.zero2": lambda: training.zero(context, 2),
        "deepspeed.zero3": lambda: training.zero(context, 3),
    }


def settle() -> None:
    """What the frameworks write goes to a private folder on the node; read-only homes and images do no harm."""
    scratch = tempfile.mkdtemp(prefix="hpcstack-smoke-")
    for name in (
        "TORCH_EXTENSIONS_DIR",
        "TRITON_CACHE_DIR",
        "XDG_CACHE_HOME",
        "TORCHINDUCTOR_CACHE_DIR",
        "MPLCONFIGDIR",
    ):
        os.environ[name] = os.path.join(scratch, name.lower())
    if not os.access(os.environ.get("HOME", "/"), os.W_OK):
        os.environ["HOME"] = scratch


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m hpcstack_smoke.ranks")
    parser.add_argument("--output", required=True)
    parser.add_argument("--tests", default="")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs that each node must show")
    options = parser.parse_args()
    settle()
    import torch

    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
        torch.set_num_threads(1)
    import torch.distributed as dist

    from hpcstack_smoke.context import join

    context = join(TIMEOUT_S, gpus=options.gpus, named=bool(options.tests))
    where = f"{socket.gethostname()}:{context.rank}"
    document: dict[str, Any] = {"rank": context.rank, "world": context.world, "backend": context.backend, "rows": []}
    table = checks(context)
    broken = ""
    for code in selected(options.tests, CODES["ranks"]):
        if broken:
            row = {
                "code": code,
                "where": where,
                "status": ERROR,
                "evidence": f"not run: {broken} broke the process group",
            }
        else:
            row = run(code, table[code], where)
            broken = code if row["status"] == ERROR else ""
        document["rows"].append(row)
        write(options.output, f"rank-{context.rank}.json", document)
    if broken:
        os._exit(1)  # other ranks may wait in a collective: do not wait for them
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
