"""The processes that an agent starts: their environment, their stacks, and how they are ended."""

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
    """Return the environment for the ranks. ELASTIC: torchrun may start them again.

    Then each start must have a TCP store of its own: with the one that torchrun shares by
    default, the ranks of the next start would meet in what the last one left (pytorch #135712).
    """
    environment = dict(os.environ)
    if elastic:
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    return environment


def find_planted() -> str:
    """Run the Python file that HPCSTACK_SMOKE_PLANT names. Return its path; empty without one.

    The suite's own tests plant bugs by it, to see that the checks find them.
    """
    path = os.environ.get("HPCSTACK_SMOKE_PLANT", "")
    if path:
        runpy.run_path(path)
    return path


def ask_for_stacks(output: str) -> None:
    """Let every rank of this agent write the Python stacks of its threads; copy them to OUTPUT.

    The ranks write them at SIGUSR1 (`ranks.tell_stacks`).
    """
    scratch = os.environ.get("HPCSTACK_SMOKE_SCRATCH", "")
    ranks = ranks_here()
    for rank in ranks:
        with contextlib.suppress(OSError):
            os.kill(rank, signal.SIGUSR1)
    if not ranks:
        return

    time.sleep(1.0)  # for the ranks to write
    for path in glob.glob(os.path.join(glob.escape(scratch), "stacks-*.txt")):
        with contextlib.suppress(OSError):
            shutil.copy(path, output)


def ranks_here() -> list[int]:
    """Return the ids of the processes that are ranks of this agent.

    torchrun puts each rank into a session of its own, so that neither process groups nor sessions
    tell whose it is. The agent's scratch folder in its environment does.
    """
    scratch = os.environ.get("HPCSTACK_SMOKE_SCRATCH", "")
    if not scratch:
        return []

    out = []
    for name in os.listdir("/proc"):
        # a process may have ended, or be another user's
        with contextlib.suppress(OSError):
            if name.isdigit() and _is_rank(f"/proc/{name}", scratch):
                out.append(int(name))
    return out


def _is_rank(proc: str, scratch: str) -> bool:
    """Whether PROC, /proc/ID of a process, is a rank of the agent with the folder SCRATCH.

    OSError where the process has ended or may not be looked at.
    """
    with open(f"{proc}/cmdline", "rb") as file:
        words = file.read().split(b"\0")
    # python [-u] -m hpcstack_smoke.ranks
    options = [word for word in words[1:3] if word.startswith(b"-")]
    if b"-m" not in options or words[words.index(b"-m") + 1] != b"hpcstack_smoke.ranks":
        return False

    with open(f"{proc}/environ", "rb") as file:
        variables = file.read().split(b"\0")
    return f"HPCSTACK_SMOKE_SCRATCH={scratch}".encode() in variables


def end_process(child: subprocess.Popen[bytes], patience: float = 10.0) -> None:
    """End the process group of CHILD: SIGTERM, and SIGKILL if CHILD lives after PATIENCE seconds.

    CHILD must have been started in a session of its own.
    """
    for signal_, wait in ((signal.SIGTERM, patience), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal_)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(wait)
            return
