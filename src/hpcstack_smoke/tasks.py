"""One task of a framework that does not meet by torchrun: `python3 -m hpcstack_smoke.tasks`, a
process a rank.

The agent starts as many on its node as the run has ranks there. They know RANK, WORLD_SIZE and the
run's folder, find each other by the store of their node's agent, and each check is a function of
that `Task`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.agent import A_NODE_S, import_check, tell_row
from hpcstack_smoke.processes import end_process, find_planted
from hpcstack_smoke.request import Request, read_request
from hpcstack_smoke.result import ERROR, run_check, write_document
from hpcstack_smoke.select import CHECKS, Check
from hpcstack_smoke.store import Client

if TYPE_CHECKING:
    from hpcstack_smoke.agent import Agent

MEET_S = 150.0
LONG = {"serve": 1800.0}  # families whose programs may take minutes to start
PORT, TOKEN = "HPCSTACK_SMOKE_STORE", "HPCSTACK_SMOKE_STORE_TOKEN"


@dataclass(frozen=True)
class Task:
    """One of WORLD tasks, LOCAL on its node; `named`: the check was asked for by name."""

    rank: int
    world: int
    local: int
    output: str
    code: str
    client: Client
    request: Request = field(default_factory=lambda: Request(""))

    @property
    def named(self) -> bool:
        return bool(self.request.tests)

    @property
    def nodes(self) -> int:
        return self.request.nodes

    def _key(self, name: str) -> str:
        return f"task {self.code} {name}"

    def _seconds(self, seconds: float) -> float:
        return seconds + A_NODE_S * self.nodes

    def post(self, name: str, value: Any) -> None:
        """VALUE for the others, under NAME."""
        self.client.put(self._key(name), self.rank, value)

    def read(self, name: str, rank: int, seconds: float = MEET_S) -> Any:
        """What RANK posted under NAME. TimeoutError says that it did not."""
        return self.client.get(self._key(name), rank, self._seconds(seconds))

    def wait(self, name: str, seconds: float = MEET_S) -> None:
        """Wait until every task has come to NAME. TimeoutError names who has not."""
        self.post(name, 1)
        self.client.wait(self._key(name), self.world, self._seconds(seconds))

    def all(self, name: str, value: Any, seconds: float = MEET_S) -> list[Any]:
        """VALUE of every task, in the order of ranks: as much for each as there are tasks.
        TimeoutError names who is missing.
        """
        self.post(name, value)
        return self.client.all(self._key(name), self.world, self._seconds(seconds))

    def of_nodes(self, name: str, value: Any, seconds: float = MEET_S) -> list[Any]:
        """VALUE of the first task of every node, on these; nothing on the others."""
        node, place = divmod(self.rank, self.world // self.nodes)
        if place:
            return []
        self.client.put(self._key(name), node, value)
        return self.client.all(self._key(name), self.nodes, self._seconds(seconds))

    def first_gets(self, name: str, value: Any, seconds: float = MEET_S) -> list[Any]:
        """VALUE of every task on the first one; nothing on the others."""
        self.post(name, value)
        return (
            self.client.all(self._key(name), self.world, self._seconds(seconds))
            if self.rank == 0
            else []
        )


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def start_tasks(agent: Agent) -> int:
    """All task checks of the run on this node, one after another; 0, as each leaves its own rows."""
    for check in agent.request.checks("tasks"):
        try:
            _one(agent, check)
        except (OSError, TimeoutError) as error:
            why = f"{agent.host} does not reach the first node's store: {error}"
            row = {
                "code": check.code,
                "where": agent.host,
                "status": ERROR,
                "seconds": 0.0,
                "evidence": why,
            }
            agent.add(row)
    return 0


def _one(agent: Agent, check: Check) -> None:
    request = agent.request
    first = agent.node * request.ranks
    children = []
    agent.store()
    port, token = agent.place
    patience = MEET_S + A_NODE_S * request.nodes + 30
    until = time.monotonic() + max(request.stall_s, patience, LONG.get(check.family, 0.0))
    try:
        for local in range(request.ranks):
            argv = [sys.executable, "-m", "hpcstack_smoke.tasks", request.output, check.code]
            env = {
                **os.environ,
                "RANK": str(first + local),
                "LOCAL_RANK": str(local),
                "WORLD_SIZE": str(request.ranks * request.nodes),
                PORT: str(port),
                TOKEN: token,
            }
            with open(
                os.path.join(request.output, f"task-{check.code}-{first + local}.log"), "wb"
            ) as log:
                children.append(
                    subprocess.Popen(
                        argv, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                    )
                )
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.1, until - time.monotonic()))
    finally:
        for child in children:
            if child.poll() is None:
                end_process(child)
    _told(agent, check, first)


def _told(agent: Agent, check: Check, first: int) -> None:
    """The first task's row, for whoever watches; an ERROR row for each task of this node that left
    none.
    """
    for rank in range(first, first + agent.request.ranks):
        path = os.path.join(agent.request.output, f"task-{check.code}-{rank}.json")
        if not os.path.exists(path):
            row = {
                "code": check.code,
                "where": f"{agent.host}:{rank}",
                "status": ERROR,
                "seconds": 0.0,
                "evidence": _last_line(path.removesuffix("json") + "log"),
            }
            write_document(
                agent.request.output,
                f"task-{check.code}-{rank}.json",
                {"rank": rank, "rows": [row]},
            )
        if rank == 0:
            with open(path) as file:
                tell_row(json.load(file)["rows"][0])
        log = path.removesuffix("json") + "log"
        if os.path.exists(log) and not os.path.getsize(log):
            os.unlink(log)


def _last_line(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return ([line.strip() for line in file if line.strip()] or ["the task left nothing"])[
                -1
            ][:400]
    except OSError:
        return "the task left nothing"


def main() -> None:
    folder, code = sys.argv[1:]
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    client = Client("127.0.0.1", int(os.environ.pop(PORT)), os.environ.pop(TOKEN))
    task = Task(
        rank, int(os.environ["WORLD_SIZE"]), local, folder, code, client, read_request(folder)
    )
    check = next(check for check in CHECKS if check.code == code)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what a check has started ends with it
    bug = find_planted()
    row = run_check(check.code, lambda: import_check(check)(task), f"{socket.gethostname()}:{rank}")
    write_document(
        folder,
        f"task-{code}-{rank}.json",
        {"rank": rank, "host": socket.gethostname(), "plant": bug, "rows": [row]},
    )
    sys.stdout.flush()
    os._exit(0)  # frameworks may wait in their own ends for tasks that are gone


if __name__ == "__main__":
    main()
