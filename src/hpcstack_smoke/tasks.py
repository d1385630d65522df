"""Checks of frameworks that are not started by torchrun: plain tasks, a process for each rank.

The agent starts them on its node, as many as the run has ranks there: `python3 -m
hpcstack_smoke.tasks FOLDER CODE`. A task is told its rank by RANK and WORLD_SIZE, and exchanges
values with the others through the store of its node's agent. A check is a function of its `Task`.

Tested in tests/integration/test_smoke.py.
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
from typing import TYPE_CHECKING, Any, NoReturn

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
# variables by which a task finds the store of its node's agent
PORT = "HPCSTACK_SMOKE_STORE"
TOKEN = "HPCSTACK_SMOKE_STORE_TOKEN"


@dataclass(frozen=True)
class Task:
    """One of `world` tasks that run the check `code` together.

    `rank` is its number among all tasks, `local` that among the tasks of its node. All waits last
    longer the more nodes there are: `seconds` is what the caller allows, and each node adds to it.
    """

    rank: int
    world: int
    local: int
    output: str
    code: str
    client: Client
    request: Request = field(default_factory=lambda: Request(""))

    @property
    def named(self) -> bool:
        """Whether checks were asked for by name, by the recipe or the user."""
        return bool(self.request.tests)

    @property
    def nodes(self) -> int:
        return self.request.nodes

    def _key(self, name: str) -> str:
        return f"task {self.code} {name}"

    def _seconds(self, seconds: float) -> float:
        return seconds + A_NODE_S * self.nodes

    def post(self, name: str, value: Any) -> None:
        """Leave VALUE under NAME for the other tasks."""
        self.client.put(self._key(name), self.rank, value)

    def read(self, name: str, rank: int, seconds: float = MEET_S) -> Any:
        """Return what RANK posted under NAME. TimeoutError where it posts nothing in time."""
        return self.client.get(self._key(name), rank, self._seconds(seconds))

    def wait(self, name: str, seconds: float = MEET_S) -> None:
        """Wait until every task has come to the point NAME. TimeoutError names who has not."""
        self.post(name, 1)
        self.client.wait(self._key(name), self.world, self._seconds(seconds))

    def all(self, name: str, value: Any, seconds: float = MEET_S) -> list[Any]:
        """Post VALUE and return every task's, in the order of ranks.

        Each task receives as many values as there are tasks: for a large run prefer `of_nodes` or
        `first_gets`. TimeoutError names who is missing.
        """
        self.post(name, value)
        return self.client.all(self._key(name), self.world, self._seconds(seconds))

    def of_nodes(self, name: str, value: Any, seconds: float = MEET_S) -> list[Any]:
        """On the first task of each node, return VALUE of all of these; on others an empty list."""
        node, local = divmod(self.rank, self.world // self.nodes)
        if local:
            return []
        self.client.put(self._key(name), node, value)
        return self.client.all(self._key(name), self.nodes, self._seconds(seconds))

    def first_gets(self, name: str, value: Any, seconds: float = MEET_S) -> list[Any]:
        """On rank 0, return VALUE of every task, in the order of ranks; on others an empty list."""
        self.post(name, value)
        if self.rank != 0:
            return []
        return self.client.all(self._key(name), self.world, self._seconds(seconds))


def free_port() -> int:
    """Return a TCP port that nobody listens on now."""
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def start_tasks(agent: Agent) -> int:
    """Run this node's tasks of all task checks, one check after another.

    Return 0 always: what went wrong is in the rows that the tasks leave.
    """
    for check in agent.request.checks("tasks"):
        try:
            _run_tasks(agent, check)
        except (OSError, TimeoutError) as error:
            why = f"{agent.host} cannot reach the first node's store: {error}"
            row = {
                "code": check.code,
                "where": agent.host,
                "status": ERROR,
                "seconds": 0.0,
                "evidence": why,
            }
            agent.add(row)
    return 0


def _run_tasks(agent: Agent, check: Check) -> None:
    """Start this node's tasks of CHECK, wait for them, and end those that take too long."""
    request = agent.request
    first = agent.node * request.ranks
    agent.store()
    port, token = agent.place

    # longer than the tasks wait for each other, so that they can say who was missing
    patience = MEET_S + A_NODE_S * request.nodes + 30
    until = time.monotonic() + max(request.stall_s, patience, LONG.get(check.family, 0.0))

    argv = [sys.executable, "-m", "hpcstack_smoke.tasks", request.output, check.code]
    children: list[subprocess.Popen[bytes]] = []
    try:
        for local in range(request.ranks):
            rank = first + local
            env = {
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(local),
                "WORLD_SIZE": str(request.ranks * request.nodes),
                PORT: str(port),
                TOKEN: token,
            }
            with open(os.path.join(request.output, f"task-{check.code}-{rank}.log"), "wb") as log:
                child = subprocess.Popen(
                    argv, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
                children.append(child)
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.1, until - time.monotonic()))
    finally:
        for child in children:
            if child.poll() is None:
                end_process(child)
    _complete_rows(agent, check, first)


def _complete_rows(agent: Agent, check: Check, first: int) -> None:
    """Write an ERROR row for each task of this node that left none, and remove empty logs.

    FIRST is the rank of the node's first task. The row of rank 0 is printed for whoever watches.
    """
    output = agent.request.output
    for rank in range(first, first + agent.request.ranks):
        name = f"task-{check.code}-{rank}.json"
        path = os.path.join(output, name)
        log = path.removesuffix("json") + "log"
        if not os.path.exists(path):
            row = {
                "code": check.code,
                "where": f"{agent.host}:{rank}",
                "status": ERROR,
                "seconds": 0.0,
                "evidence": _find_last_line(log),
            }
            write_document(output, name, {"rank": rank, "rows": [row]})

        if rank == 0:
            with open(path) as file:
                tell_row(json.load(file)["rows"][0])
        if os.path.exists(log) and not os.path.getsize(log):
            os.unlink(log)


def _find_last_line(log: str) -> str:
    """Return the last line of the file LOG that is not blank, or a text that there is none."""
    lines = []
    with contextlib.suppress(OSError), open(log, errors="replace") as file:
        lines = [line.strip() for line in file if line.strip()]
    if not lines:
        return "the task left nothing"
    return lines[-1][:400]


def main() -> NoReturn:
    """Run one check as one task, and leave its row as task-CODE-RANK.json in the run's folder."""
    folder, code = sys.argv[1:]
    rank = int(os.environ["RANK"])
    local = int(os.environ["LOCAL_RANK"])
    world = int(os.environ["WORLD_SIZE"])

    # taken out of the environment: no program that a check starts needs the token
    client = Client("127.0.0.1", int(os.environ.pop(PORT)), os.environ.pop(TOKEN))
    task = Task(rank, world, local, folder, code, client, read_request(folder))
    check = next(check for check in CHECKS if check.code == code)

    # SIGTERM raises SystemExit, so that what the check has started ends with it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    planted = find_planted()
    host = socket.gethostname()
    row = run_check(check.code, lambda: import_check(check)(task), f"{host}:{rank}")
    document = {"rank": rank, "host": host, "plant": planted, "rows": [row]}
    write_document(folder, f"task-{code}-{rank}.json", document)

    sys.stdout.flush()
    # without Python's own shutdown: some frameworks wait there for tasks that are gone
    os._exit(0)


if __name__ == "__main__":
    main()
