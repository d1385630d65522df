"""What every stack can prove: its tasks are started, reach each other over the network, and see one folder."""

from __future__ import annotations

import hashlib
import os
import socket

from hpcstack_smoke.result import Result, judge
from hpcstack_smoke.tasks import Task, address

TIMEOUT_S = 120.0


def exchange(task: Task) -> Result:
    """A sum goes once around a ring of TCP connections, and comes back as it must be."""
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen(1)
        server.settimeout(TIMEOUT_S)
        places = task.all("place", [address(), server.getsockname()[1], socket.gethostname()])
        after = places[(task.rank + 1) % task.world]
        with socket.create_connection((after[0], after[1]), TIMEOUT_S) as forward:
            before, _ = server.accept()
            with before:
                before.settimeout(TIMEOUT_S)
                if task.rank == 0:
                    forward.sendall(b"1\n")
                got = int(before.makefile().readline())
                if task.rank:
                    forward.sendall(f"{got + task.rank + 1}\n".encode())
    want = task.world * (task.world + 1) // 2 if task.rank == 0 else task.rank * (task.rank + 1) // 2
    hosts = sorted({place[2] for place in places})
    measured = f"{task.world} tasks on {len(hosts)} host(s), sum {got}"
    return judge(got == want, measured, f"sum {want}", "1 + 2 + ... + n", remedy="nodes do not reach each other by TCP")


def shared(task: Task) -> Result:
    """What one task wrote into the run's folder, every other reads, whole."""
    data = hashlib.sha256(str(task.rank).encode()).digest() * 4096
    path = os.path.join(task.output, f".shared-{task.rank}")
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    hosts = task.all("written", socket.gethostname())
    wrong = []
    for rank in range(task.world):
        with open(os.path.join(task.output, f".shared-{rank}"), "rb") as file:
            if file.read() != hashlib.sha256(str(rank).encode()).digest() * 4096:
                wrong.append(rank)
    task.all("read", 1)
    os.unlink(path)
    measured = f"another content of {wrong}" if wrong else f"{task.world} files of {len(set(hosts))} host(s) read"
    return judge(
        not wrong, measured, "each as written", "sha256", remedy="the folder is not one filesystem on all nodes"
    )
