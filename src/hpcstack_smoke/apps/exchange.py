"""Checks that every stack can run: its tasks start, reach each other by TCP, and see one folder.

Tested in tests/integration/test_smoke.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from typing import TYPE_CHECKING, TextIO

from hpcstack_smoke.result import Result, judge_result
from hpcstack_smoke.store import find_address

if TYPE_CHECKING:
    from hpcstack_smoke.tasks import Task

TIMEOUT_S = 120.0
ALL_NODES = 16  # up to so many nodes, each node reads the files of all others


def check_tasks_exchange(task: Task) -> Result:
    """Send a sum once around a ring of TCP connections, to which each task adds its rank + 1.

    A task that comes into the ring sends the run's token first. Each task judges the sum that it
    received; rank 0 receives the whole one.
    """
    token = task.client.token
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen(1)
        server.settimeout(TIMEOUT_S)
        here = [find_address(), server.getsockname()[1], socket.gethostname()]
        places = task.first_gets("place", here)

        next_host, next_port, _ = task.read("place", (task.rank + 1) % task.world)
        with socket.create_connection((next_host, next_port), TIMEOUT_S) as forward:
            forward.sendall(f"{token}\n".encode())
            before, lines = _accept_neighbour(server, token)
            with before:
                if task.rank == 0:
                    forward.sendall(b"1\n")
                got = int(lines.readline())
                if task.rank:
                    forward.sendall(f"{got + task.rank + 1}\n".encode())

    # what all tasks before this one in the ring have added; rank 0 is the last, too
    added = task.world if task.rank == 0 else task.rank
    want = added * (added + 1) // 2
    measured = f"{task.world} tasks, sum {got}"
    if places:
        hosts = {host for _, _, host in places}
        measured = f"{task.world} tasks on {len(hosts)} host(s), sum {got}"
    return judge_result(
        got == want,
        measured,
        f"sum {want}",
        "1 + 2 + ... + n",
        remedy="nodes do not reach each other by TCP",
    )


def _accept_neighbour(server: socket.socket, token: str) -> tuple[socket.socket, TextIO]:
    """Accept the connection of the task before. Return (it, the lines that it sends).

    Whoever else connects to the port does not know TOKEN, and is cut off.
    """
    while True:
        line, _ = server.accept()
        line.settimeout(TIMEOUT_S)
        words = line.makefile()
        with contextlib.suppress(OSError, ValueError):
            if words.readline(256).strip() == token:
                return line, words
        line.close()


def check_io_shared(task: Task) -> Result:
    """Let the first task of each node write a file into the run's folder and read others' files.

    `read_by` says whose. Tasks that are not the first of their node only wait.
    """
    each = task.world // task.nodes
    node, local = divmod(task.rank, each)
    writes = local == 0
    path = os.path.join(task.output, f".shared-{node}")
    if writes:
        with open(path, "wb") as file:
            file.write(_make_content(node))
            file.flush()
            os.fsync(file.fileno())
    task.wait("written")

    others = read_by(node, task.nodes) if writes else []
    wrong = []
    for other in others:
        theirs = os.path.join(task.output, f".shared-{other}")
        if not _holds(theirs, _make_content(other)):
            wrong.append(other)
    task.wait("read")

    if writes:
        os.unlink(path)
    measured = f"{len(others)} files of other nodes read"
    if wrong:
        measured = f"another content of node {wrong}"
    return judge_result(
        not wrong,
        measured,
        "each as written",
        "sha256",
        remedy="the folder is not one filesystem on all nodes",
    )


def _make_content(node: int) -> bytes:
    """Return the 128 KiB that NODE writes; they differ from node to node."""
    return hashlib.sha256(str(node).encode()).digest() * 4096


def _holds(path: str, content: bytes) -> bool:
    """Whether the file at PATH is there and holds CONTENT."""
    try:
        with open(path, "rb") as file:
            return file.read() == content
    except OSError:
        return False


def read_by(node: int, nodes: int) -> list[int]:
    """Return the nodes whose files NODE of NODES reads.

    Up to ALL_NODES nodes these are all others. In a larger run they are those 1, 2, 4, ...
    further on: every node's file is read, and the file system is not flooded.
    """
    if nodes <= ALL_NODES:
        return [other for other in range(nodes) if other != node]
    return [(node + (1 << step)) % nodes for step in range((nodes - 1).bit_length())]
