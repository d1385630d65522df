"""One rank under torchrun: run the checks that need all ranks, and leave rank-N-ROUND.json.

    torchrun ... -m hpcstack_smoke.ranks FOLDER ROUND CODES-DONE

FOLDER is the run's, ROUND the number of this start, CODES-DONE the checks of earlier rounds,
separated by commas. Before each check a rank notes on its node which one that is; the agent brings
the note into FOLDER when its ranks have ended (`leftovers.bring_notes`). Thousands of ranks that each
wrote into one shared folder at each check would be most of its load.

Tested in tests/integration/test_smoke.py.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
from typing import Any, NoReturn

from hpcstack_smoke.agent import import_check, tell_row
from hpcstack_smoke.leftovers import is_being_ended
from hpcstack_smoke.processes import find_planted
from hpcstack_smoke.request import read_request
from hpcstack_smoke.result import ERROR, PASS, run_check, write_document

TIMEOUT_S = 90.0  # of a collective
GRACE_S = 8.0  # for the other ranks to say what they saw in a broken group
# variables that name folders into which frameworks write
CACHES = (
    "TORCH_EXTENSIONS_DIR",
    "TRITON_CACHE_DIR",
    "XDG_CACHE_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "MPLCONFIGDIR",
)


def keep_to_scratch() -> None:
    """Let frameworks write into the agent's scratch folder on the node.

    Homes and images may be read-only. The tf32 that NVIDIA's images allow is switched off here,
    too.
    """
    scratch = os.environ.get("HPCSTACK_SMOKE_SCRATCH", "")
    if not scratch:
        scratch = tempfile.mkdtemp(prefix="hpcstack-smoke-")

    # NVIDIA's images set this to allow tf32 where fp32 was asked for; here each check says itself
    # what it computes in
    os.environ["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"] = "0"
    for name in CACHES:
        os.environ[name] = os.path.join(scratch, name.lower())
    if not os.access(os.environ.get("HOME", "/"), os.W_OK):
        os.environ["HOME"] = scratch


def calm_cpu() -> None:
    """Without a GPU, tell DeepSpeed not to look for one, and give each rank a single CPU thread.

    Otherwise the ranks of a node would take the cores from each other.
    """
    import torch

    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
        torch.set_num_threads(1)


def nccl_log(output: str, number: str) -> None:
    """Let NCCL log how it connects ranks, into a file of OUTPUT for each process.

    A user who has set NCCL_DEBUG_FILE keeps his own settings.
    """
    if "NCCL_DEBUG_FILE" in os.environ:
        return
    os.environ["NCCL_DEBUG"] = "INFO"
    os.environ.setdefault("NCCL_DEBUG_SUBSYS", "INIT,ENV,NET,GRAPH")
    # NCCL itself puts the host for %h and the process for %p
    os.environ["NCCL_DEBUG_FILE"] = os.path.join(output, f"nccl-{number}.%h.%p")


def tell_stacks(number: str, rank: int) -> None:
    """At SIGUSR1, write the Python stacks of all threads into the agent's scratch folder.

    The agent sends it before it ends ranks in which nothing moves (`processes.ask_for_stacks`).
    """
    import faulthandler
    import signal

    folder = os.environ.get("HPCSTACK_SMOKE_SCRATCH", "")
    if not folder:
        return
    path = os.path.join(folder, f"stacks-{rank}-{number}.txt")
    file = open(path, "w")  # noqa: SIM115  # stays open: the handler only knows its descriptor
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)


def record_flights(folder: str) -> None:
    """Switch on torch's flight recorder: each rank's last collectives, if one takes too long.

    It writes them into FOLDER. What the user has set stays.
    """
    # torch 2.8 and newer read the first name, older ones the second
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        os.environ.setdefault(name, "2000")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", os.path.join(folder, "flights-"))


def main() -> NoReturn:
    """Join the process group, run the checks, and note each of them before and after."""
    folder, number, done = sys.argv[1:]
    request = read_request(folder)

    # all this before torch is imported, which reads these variables
    record_flights(folder)
    keep_to_scratch()
    nccl_log(folder, number)
    rank = int(os.environ.get("RANK", "0"))
    host = socket.gethostname()
    where = f"{host}:{rank}"
    tell_stacks(number, rank)

    # written before anything can fail, so that a rank that ended is told from one that never came
    name = f"rank-{rank}-{number}.json"
    document: dict[str, Any] = {"rank": rank, "host": host, "rows": [], "planted": find_planted()}
    write_document(folder, name, document)

    calm_cpu()
    import torch.distributed as dist

    from hpcstack_smoke.context import join_group

    timeout = float(os.environ.get("HPCSTACK_SMOKE_TIMEOUT", TIMEOUT_S))
    try:
        context = join_group(timeout, request)
    except Exception as error:
        # tell the agents, or the other ranks would wait for this one until their patience ends
        why = f"{type(error).__name__}: {error}"[:400]
        write_document(folder, f"broken-{number}", {"code": "join", "where": where, "why": why})
        raise

    if context.rank == 0:
        # from here on the agents take silence for a stall
        write_document(folder, f"joined-{number}", {"world": context.world})
    document |= {"world": context.world, "backend": context.backend}
    # the first rank's file shows all agents that something moves
    scratch = os.environ.get("HPCSTACK_SMOKE_SCRATCH", "")
    notes = folder if context.rank == 0 or not scratch else scratch
    for check in request.checks("ranks", done):
        write_document(notes, name, {**document, "running": check.code})
        row = run_check(check.code, lambda found=check: import_check(found)(context), where)  # type: ignore[misc]
        if row["status"] == ERROR and is_being_ended(folder, number):
            # An echo: the note says that this rank was in the middle of the check, which is right.
            os._exit(1)
        if context.rank == 0:
            document["rows"].append(row)
            tell_row(row)
        else:
            document["rows"].append(shorten_row(row))

        if row["status"] == ERROR:
            # an exception in one rank leaves the others in a collective: end all of them
            write_document(notes, name, document)
            write_document(folder, f"broken-{number}", {"code": check.code, "where": where})
            leave_group(check.code, context.world)
        if context.gpu:
            empty_cache()

    write_document(notes, name, document)
    dist.destroy_process_group()
    sys.stdout.flush()
    # everything is written; what frameworks do at Python's own shutdown would take seconds
    os._exit(0)


def shorten_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return ROW without its series if it is a PASS.

    Series are drawn for the first rank only: thousands of ranks would write the same curves.
    """
    if row["status"] != PASS:
        return row
    return {**row, "series": []}


def empty_cache() -> None:
    """Give back the GPU's memory that torch keeps, so that the next check has all of it."""
    import torch

    torch.cuda.empty_cache()


def leave_group(code: str, world: int) -> NoReturn:
    """End this rank without waiting in the broken process group.

    The other ranks get GRACE_S seconds to come here, too, so that each has said what it saw of
    the check CODE before torchrun ends them all.
    """
    import time

    import torch.distributed as dist

    # where the first rank is gone, its store is, too: then nothing is left to wait for
    with contextlib.suppress(Exception):
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
