"""The processes that an agent starts: their environment, where they are when nothing moves, and
their end.
"""

from __future__ import annotations

import contextlib
import glob
import os
import runpy
import shutil
import signal
import subprocess
import time


def make_rank_environment(elastic: bool) -> dict[str, str]:
    """The ranks' own: where they may start again, each start has a store of its own (pytorch
    #135712).
    """
    return {**os.environ, **({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if elastic else {})}


def find_planted() -> str:
    """The file that plants a bug, run before anything: how the suite's own tests see that it is
    caught.
    """
    path = os.environ.get("HPCSTACK_SMOKE_PLANT", "")
    if path:
        runpy.run_path(path)
    return path


def ask_for_stacks(output: str) -> None:
    """Ask every rank of this agent where it is: it writes its threads' Python stacks (ranks.py),
    which come to OUTPUT.

    torchrun gives each rank a session of its own; they are known by the agent's folder in their
    environment.
    """
    scratch, ranks = os.environ.get("HPCSTACK_SMOKE_SCRATCH", ""), ranks_here()
    for rank in ranks:
        with contextlib.suppress(OSError):
            os.kill(rank, signal.SIGUSR1)
    if ranks:
        time.sleep(1.0)
        for path in glob.glob(os.path.join(glob.escape(scratch), "stacks-*.txt")):
            with contextlib.suppress(OSError):
                shutil.copy(path, output)


def ranks_here() -> list[int]:
    """The processes that are ranks of this agent."""
    scratch, out = os.environ.get("HPCSTACK_SMOKE_SCRATCH", ""), []
    for name in os.listdir("/proc") if scratch else ():
        with contextlib.suppress(OSError):
            if name.isdigit() and _is_rank(f"/proc/{name}", scratch):
                out.append(int(name))
    return out


def _is_rank(place: str, scratch: str) -> bool:
    """Whether the process at PLACE is `python -m hpcstack_smoke.ranks` of the agent whose folder
    SCRATCH is.
    """
    with open(f"{place}/cmdline", "rb") as file:
        words = file.read().split(b"\0")
    options = [word for word in words[1:3] if word.startswith(b"-")]
    if b"-m" not in options or words[words.index(b"-m") + 1] != b"hpcstack_smoke.ranks":
        return False
    with open(f"{place}/environ", "rb") as file:
        return f"HPCSTACK_SMOKE_SCRATCH={scratch}".encode() in file.read().split(b"\0")


def end_process(child: subprocess.Popen[bytes], patience: float = 10.0) -> None:
    """CHILD and all that it started, kindly, then, after PATIENCE seconds, not."""
    for how, wait in ((signal.SIGTERM, patience), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, how)
        try:
            child.wait(wait)
            return
        except subprocess.TimeoutExpired:
            continue
