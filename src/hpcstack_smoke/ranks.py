"""One rank under torchrun: joins the process group, runs the checks that need all ranks, writes
rank-N-ROUND.json.

torchrun ... -m hpcstack_smoke.ranks FOLDER ROUND CODES-DONE
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
from typing import Any

from hpcstack_smoke.agent import import_check, tell_row
from hpcstack_smoke.processes import find_planted
from hpcstack_smoke.request import read_request
from hpcstack_smoke.result import ERROR, PASS, run_check, write_document

TIMEOUT_S = 90.0
GRACE_S = 8.0
CACHES = (
    "TORCH_EXTENSIONS_DIR",
    "TRITON_CACHE_DIR",
    "XDG_CACHE_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "MPLCONFIGDIR",
)


def keep_to_scratch() -> None:
    """What the frameworks write goes to the agent's folder on the node; read-only homes and images
    do no harm.
    """
    scratch = os.environ.get("HPCSTACK_SMOKE_SCRATCH", "") or tempfile.mkdtemp(
        prefix="hpcstack-smoke-"
    )
    # NVIDIA's images allow tf32 where fp32 was asked for; what a check computes in is the check's
    # to say
    os.environ["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"] = "0"
    for name in CACHES:
        os.environ[name] = os.path.join(scratch, name.lower())
    if not os.access(os.environ.get("HOME", "/"), os.W_OK):
        os.environ["HOME"] = scratch


def quiet_cpu() -> None:
    """Without a GPU: DeepSpeed must not look for one, and ranks do not take each other's cores."""
    import torch

    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
        torch.set_num_threads(1)


def nccl_log(output: str, number: str) -> None:
    """NCCL's own words on how it connects ranks, a file a process, unless the user wants them
    elsewhere.
    """
    if "NCCL_DEBUG_FILE" not in os.environ:
        os.environ["NCCL_DEBUG"] = "INFO"
        os.environ.setdefault("NCCL_DEBUG_SUBSYS", "INIT,ENV,NET,GRAPH")
        os.environ["NCCL_DEBUG_FILE"] = os.path.join(output, f"nccl-{number}.%h.%p")


def tell_stacks(number: str, rank: int) -> None:
    """On SIGUSR1 the Python stacks of all threads go into the agent's folder: it asks before it
    ends a stall.
    """
    import faulthandler
    import signal

    folder = os.environ.get("HPCSTACK_SMOKE_SCRATCH", "")
    if not folder:
        return
    path = os.path.join(folder, f"stacks-{rank}-{number}.txt")
    faulthandler.register(signal.SIGUSR1, file=open(path, "w"), all_threads=True)  # noqa: SIM115  # open to the end


def record_flights(folder: str) -> None:
    """torch's flight recorder: what each rank's last collectives were, written when one takes too
    long.
    """
    for name in (
        "TORCH_FR_BUFFER_SIZE",
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
    ):  # the first since torch 2.8
        os.environ.setdefault(name, "2000")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", os.path.join(folder, "flights-"))


def main() -> None:
    folder, number, done = sys.argv[1:]
    request = read_request(folder)
    record_flights(folder)
    keep_to_scratch()
    nccl_log(folder, number)
    rank = int(os.environ.get("RANK", "0"))
    name, where = f"rank-{rank}-{number}.json", f"{socket.gethostname()}:{rank}"
    tell_stacks(number, rank)
    document: dict[str, Any] = {
        "rank": rank,
        "host": socket.gethostname(),
        "rows": [],
        "planted": find_planted(),
    }
    write_document(folder, name, document)  # what has started is told from what never came
    quiet_cpu()
    import torch.distributed as dist

    from hpcstack_smoke.context import join_group

    timeout = float(os.environ.get("HPCSTACK_SMOKE_TIMEOUT", TIMEOUT_S))
    try:
        context = join_group(timeout, request)
    except Exception as error:  # the others would wait for this rank until their patience ends
        why = f"{type(error).__name__}: {error}"[:400]
        write_document(folder, f"broken-{number}", {"code": "join", "where": where, "why": why})
        raise
    if context.rank == 0:
        write_document(
            folder, f"joined-{number}", {"world": context.world}
        )  # from here on a silence is a stall
    document |= {"world": context.world, "backend": context.backend}
    for check in request.checks("ranks", done):
        write_document(folder, name, {**document, "running": check.code})
        row = run_check(check.code, lambda found=check: import_check(found)(context), where)  # type: ignore[misc]
        document["rows"].append(row if context.rank == 0 else shorten_row(row))
        if context.rank == 0:
            tell_row(row)
        if row["status"] == ERROR:
            write_document(folder, name, document)
            write_document(folder, f"broken-{number}", {"code": check.code, "where": where})
            leave_group(check.code, context.world)
        if context.gpu:
            empty_cache()
    write_document(folder, name, document)
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(
        0
    )  # what frameworks do when they are taken apart takes seconds, and everything is written


def shorten_row(row: dict[str, Any]) -> dict[str, Any]:
    """ROW without what the first rank draws: thousands of ranks would write the same picture."""
    return {**row, "series": []} if row["status"] == PASS else row


def empty_cache() -> None:
    """What a check has freed is the next one's."""
    import torch

    torch.cuda.empty_cache()


def leave_group(code: str, world: int) -> None:
    """End without waiting in a broken group, but not before the others have had time to say what
    they saw.
    """
    import time

    import torch.distributed as dist

    with contextlib.suppress(
        Exception
    ):  # the store went with the first rank: nothing is left to wait for
        store = dist.distributed_c10d._get_default_store()
        until = time.monotonic() + GRACE_S
        count = store.add(f"hpcstack/{code}", 1)
        while count < world and time.monotonic() < until:
            time.sleep(0.1)
            count = store.add(f"hpcstack/{code}", 0)
        if int(os.environ.get("RANK", "0")) == 0:
            time.sleep(0.5)  # the store is this rank's: the others may still ask
    os._exit(1)


if __name__ == "__main__":
    main()
