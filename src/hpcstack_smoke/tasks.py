"""One task of a framework that does not meet by torchrun: `python3 -m hpcstack_smoke.tasks`, a process a rank.

The agent starts as many on its node as the run has ranks there. They know RANK, WORLD_SIZE and the run's folder, find
each other by files in it, and each check is a function of that `Task`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.agent import end, function, tell
from hpcstack_smoke.request import read_request
from hpcstack_smoke.result import ERROR, run, write
from hpcstack_smoke.select import CHECKS, Check

if TYPE_CHECKING:
    from hpcstack_smoke.agent import Agent

MEET_S = 150.0


@dataclass(frozen=True)
class Task:
    """One of WORLD tasks, LOCAL on its node; `named`: the check was asked for by name."""

    rank: int
    world: int
    local: int
    output: str
    code: str
    named: bool = False

    def post(self, name: str, value: Any) -> None:
        """VALUE for the others, under NAME."""
        write(self.output, f".task-{self.code}-{name}-{self.rank}.json", {"value": value})

    def read(self, name: str, rank: int, seconds: float = MEET_S) -> Any:
        """What RANK posted under NAME. TimeoutError names who did not."""
        path = os.path.join(self.output, f".task-{self.code}-{name}-{rank}.json")
        began = looked = time.monotonic()
        while not os.path.exists(path):
            now = time.monotonic()
            if now - began > seconds:
                raise TimeoutError(f"task {rank} said nothing of {name} in {seconds:.0f} s")
            if now - looked > 2:  # NFS remembers that a name was not there until the folder changes here
                looked = now
                with contextlib.suppress(OSError):
                    tempfile.TemporaryFile(dir=self.output).close()
            time.sleep(0.05)
        with open(path) as file:
            return json.load(file)["value"]

    def all(self, name: str, value: Any, seconds: float = MEET_S) -> list[Any]:
        """VALUE of every task."""
        self.post(name, value)
        return [self.read(name, rank, seconds) for rank in range(self.world)]


def address() -> str:
    """This host's address, as the others reach it: Debian's /etc/hosts gives the host's own name a loopback address.

    A UDP socket is not used, only asked which address it would send from.
    """
    with contextlib.suppress(OSError):
        found = socket.gethostbyname(socket.gethostname())
        if not found.startswith("127."):
            return found
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect((os.environ.get("SLURM_LAUNCH_NODE_IPADDR") or "192.0.2.1", 9))
        return str(one.getsockname()[0])
    return "127.0.0.1"


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def start(agent: Agent) -> int:
    """All task checks of the run on this node, one after another; 0, as each leaves its own rows."""
    for check in agent.request.checks("tasks"):
        _one(agent, check)
    return 0


def _one(agent: Agent, check: Check) -> None:
    request = agent.request
    first = int(os.environ.get("SLURM_NODEID", "0")) * request.ranks
    children = []
    for local in range(request.ranks):
        argv = [sys.executable, "-m", "hpcstack_smoke.tasks", request.output, check.code]
        env = {**os.environ, "RANK": str(first + local), "LOCAL_RANK": str(local),
               "WORLD_SIZE": str(request.ranks * request.nodes)}  # fmt: skip
        with open(os.path.join(request.output, f"task-{check.code}-{first + local}.log"), "wb") as log:
            children.append(
                subprocess.Popen(argv, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            )
    until = time.monotonic() + request.stall_s
    try:
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.1, until - time.monotonic()))
    finally:
        for child in children:
            if child.poll() is None:
                end(child)
    _told(agent, check, first)


def _told(agent: Agent, check: Check, first: int) -> None:
    """The first task's row, for whoever watches; an ERROR row for each task of this node that left none."""
    for rank in range(first, first + agent.request.ranks):
        path = os.path.join(agent.request.output, f"task-{check.code}-{rank}.json")
        if not os.path.exists(path):
            row = {"code": check.code, "where": f"{agent.host}:{rank}", "status": ERROR, "seconds": 0.0,
                   "evidence": _last_line(path.removesuffix("json") + "log")}  # fmt: skip
            write(agent.request.output, f"task-{check.code}-{rank}.json", {"rank": rank, "rows": [row]})
        if rank == 0:
            with open(path) as file:
                tell(json.load(file)["rows"][0])
        log = path.removesuffix("json") + "log"
        if os.path.exists(log) and not os.path.getsize(log):
            os.unlink(log)


def _last_line(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return ([line.strip() for line in file if line.strip()] or ["the task left nothing"])[-1][:400]
    except OSError:
        return "the task left nothing"


def main() -> None:
    folder, code = sys.argv[1:]
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    task = Task(rank, int(os.environ["WORLD_SIZE"]), local, folder, code, bool(read_request(folder).tests))
    check = next(check for check in CHECKS if check.code == code)
    row = run(check.code, lambda: function(check)(task), f"{socket.gethostname()}:{rank}")
    write(folder, f"task-{code}-{rank}.json", {"rank": rank, "host": socket.gethostname(), "rows": [row]})
    sys.stdout.flush()
    os._exit(0)  # frameworks may wait in their own ends for tasks that are gone


if __name__ == "__main__":
    main()
