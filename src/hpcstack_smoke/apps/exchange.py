"""What every stack can prove: its tasks are started, reach each other over the network, and see one
folder.
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

TIMEOUT_S, ALL_NODES = 120.0, 16


def exchange(task: Task) -> Result:
    """A sum goes once around a ring of TCP connections, and comes back as it must be."""
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen(1)
        server.settimeout(TIMEOUT_S)
        places = task.first_gets(
            "place", [find_address(), server.getsockname()[1], socket.gethostname()]
        )
        after = task.read("place", (task.rank + 1) % task.world)
        with socket.create_connection((after[0], after[1]), TIMEOUT_S) as forward:
            forward.sendall(f"{task.client.token}\n".encode())
            before, lines = _neighbour(server, task.client.token)
            with before:
                if task.rank == 0:
                    forward.sendall(b"1\n")
                got = int(lines.readline())
                if task.rank:
                    forward.sendall(f"{got + task.rank + 1}\n".encode())
    want = (
        task.world * (task.world + 1) // 2 if task.rank == 0 else task.rank * (task.rank + 1) // 2
    )
    hosts = f" on {len({place[2] for place in places})} host(s)" if places else ""
    measured = f"{task.world} tasks{hosts}, sum {got}"
    return judge_result(
        got == want,
        measured,
        f"sum {want}",
        "1 + 2 + ... + n",
        remedy="nodes do not reach each other by TCP",
    )


def _neighbour(server: socket.socket, token: str) -> tuple[socket.socket, TextIO]:
    """The connection of the task before, and what it says: others that come to the port do not know
    TOKEN.
    """
    while True:
        line, _ = server.accept()
        line.settimeout(TIMEOUT_S)
        words = line.makefile()
        with contextlib.suppress(OSError, ValueError):
            if words.readline(256).strip() == token:
                return line, words
        line.close()


def shared(task: Task) -> Result:
    """What the first task of a node wrote into the run's folder, those of other nodes read, whole:
    of all nodes up to ALL_NODES, else of those 1, 2, 4, ... further on, so that every node is read
    and the folder is not flooded.
    """
    each = task.world // task.nodes
    node, first = divmod(task.rank, each)
    path = os.path.join(task.output, f".shared-{node}")
    if not first:
        with open(path, "wb") as file:
            file.write(_content(node))
            file.flush()
            os.fsync(file.fileno())
    task.wait("written")
    others = [] if first else read_by(node, task.nodes)
    wrong = [
        other
        for other in others
        if not _reads(os.path.join(task.output, f".shared-{other}"), _content(other))
    ]
    task.wait("read")
    if not first:
        os.unlink(path)
    measured = (
        f"another content of node {wrong}" if wrong else f"{len(others)} files of other nodes read"
    )
    return judge_result(
        not wrong,
        measured,
        "each as written",
        "sha256",
        remedy="the folder is not one filesystem on all nodes",
    )


def _content(node: int) -> bytes:
    return hashlib.sha256(str(node).encode()).digest() * 4096


def _reads(path: str, content: bytes) -> bool:
    """Whether the file at PATH holds CONTENT. A file that is not there is as bad as another one."""
    try:
        with open(path, "rb") as file:
            return file.read() == content
    except OSError:
        return False


def read_by(node: int, nodes: int) -> list[int]:
    """The nodes whose files NODE of NODES reads."""
    if nodes <= ALL_NODES:
        return [other for other in range(nodes) if other != node]
    return [(node + (1 << step)) % nodes for step in range((nodes - 1).bit_length())]
