"""A small pipeline with tensor and data parallelism over gloo, one of whose ranks goes wrong.

    python3 hang_program.py PP DP TP FAULT DIMENSION FOLDER

PP x DP x TP ranks are forked after torch is imported. In the third step one rank does FAULT in place
of the operation of DIMENSION (pp, dp, tp). When nothing moves any more, each rank writes
FOLDER/flight-RANK, and the parent FOLDER/case.json: who was at fault, who is stopped and who is gone.

The collectives in the files are torch's own recorder's. Gloo's recorder (torch 2.13) leaves out the
members of groups, and sends and receives: both are added here in the form that NCCL's writes
(torch/csrc/distributed/c10d/FlightRecorder.hpp, ProcessGroupNCCL.cpp).
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import pickle
import signal
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh

STEPS, WRONG_STEP = 4, 2
QUIET_S = 3.0


class Rank:
    def __init__(self, number: int, shape: tuple[int, ...], case: tuple[str, str], folder: str):
        self.number, self.shape, self.folder = number, shape, folder
        self.fault, self.dimension = case
        self.own: list[dict[str, Any]] = []
        self.failed = ""  # the group whose operation broke, as a peer died
        self.is_odd = False

    def join(self) -> None:
        world = self.shape[0] * self.shape[1] * self.shape[2]
        dist.init_process_group(
            "gloo", init_method=f"file://{self.folder}/store", rank=self.number, world_size=world
        )
        mesh = init_device_mesh("cpu", self.shape, mesh_dim_names=("pp", "dp", "tp"))
        self.groups = {name: mesh.get_group(name) for name in ("pp", "dp", "tp")}
        self.stages = dist.get_process_group_ranks(self.groups["pp"])
        self.stage = self.stages.index(self.number)

    def run(self, progress: mmap.mmap) -> None:
        value = torch.ones(1024)
        for step in range(STEPS):
            odd_now = self.is_odd and step == WRONG_STEP
            struct.pack_into("i", progress, 4 * self.number, step + 1)
            if self.stage:
                self.between("recv", self.stage - 1, value, odd_now and self.stage > 0)
            self.collect("tp", value, odd_now)
            if self.stage < len(self.stages) - 1:
                self.between("send", self.stage + 1, value, odd_now and not self.stage)
                self.between("recv", self.stage + 1, value, False)
            self.collect("tp", value, False)
            if self.stage:
                self.between("send", self.stage - 1, value, False)
            self.collect("dp", value, odd_now)
            struct.pack_into("i", progress, 4 * self.number, 100 + step)

    def collect(self, dimension: str, value: Any, odd: bool) -> None:
        group = self.groups[dimension]
        if odd and dimension == self.dimension and self.go_wrong(value, group):
            return
        try:
            dist.all_reduce(value, group=group)
        except RuntimeError:
            self.failed = group.group_name
            raise

    def between(self, kind: str, stage: int, value: Any, odd: bool) -> None:
        if odd and self.dimension == "pp" and self.go_wrong(value, self.groups["pp"]):
            return
        row = self.note(kind, stage, self.groups["pp"], self.stage)
        peer = self.stages[stage]
        if kind == "send":
            dist.send(value, peer, group=self.groups["pp"])
        else:
            dist.recv(value, peer, group=self.groups["pp"])
        row.update(state="completed", retired=True)

    def go_wrong(self, value: Any, group: Any) -> bool:
        """Do the fault; whether the operation is left out."""
        ranks = dist.get_process_group_ranks(group)
        place = ranks.index(self.number)
        if self.fault == "sleeps":
            time.sleep(1000)
        elif self.fault == "dies":
            os._exit(7)
        elif self.fault == "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.fault == "other":
            dist.broadcast(value, ranks[0], group=group)
        elif self.fault == "size":
            dist.all_reduce(torch.ones(7), group=group)
        elif self.fault == "nobody":
            # As over NCCL: a send ends when the other one receives
            self.note("send", (place + 1) % len(ranks), group, place)
            time.sleep(1000)
        return self.fault in ("skips", "other", "size")

    def note(self, kind: str, to: int, group: Any, place: int) -> dict[str, Any]:
        """Add a send or receive to the record; it is not over yet."""
        arrow = "->" if kind == "send" else "<-"
        row = {
            "record_id": 0, "pg_id": 0, "process_group": (group.group_name, group.group_desc),
            "collective_seq_id": 0, "p2p_seq_id": len(self.own) + 1, "op_id": len(self.own) + 1,
            "profiling_name": f"nccl:{kind} {place}{arrow}{to}", "time_created_ns": time.time_ns(),
            "input_sizes": [[1024]], "input_dtypes": ["Float"], "output_sizes": [[1024]],
            "output_dtypes": ["Float"], "state": "scheduled", "retired": False, "is_p2p": True,
            "timeout_ms": 600000, "frames": [],
        }  # fmt: skip
        self.own.append(row)
        return row

    def dump(self) -> None:
        document = pickle.loads(_dump_fr_trace())
        document["pg_config"] = {}
        for group, name in distributed_c10d._world.pg_names.items():
            ranks = dist.get_process_group_ranks(group)
            if self.number in ranks:
                about = {"name": name, "desc": group.group_desc, "ranks": json.dumps(ranks)}
                document["pg_config"][name] = about
        if self.failed:
            mine = [row for row in document["entries"] if row["process_group"][0] == self.failed]
            mine[-1].update(retired=False, state="started")
        rows = [*document["entries"], *self.own]
        document["entries"] = sorted(rows, key=lambda row: row["time_created_ns"])
        part = Path(self.folder, f"part-{self.number}")
        part.write_bytes(pickle.dumps(document, protocol=2))
        part.replace(Path(self.folder, f"flight-{self.number}"))


def work(rank: Rank, progress: mmap.mmap) -> None:
    """Run RANK until it is told to write; it never returns."""

    def write_when_told() -> None:
        while not Path(rank.folder, "write").exists():
            time.sleep(0.1)
        rank.dump()
        os._exit(0)

    threading.Thread(target=write_when_told, daemon=True).start()
    with contextlib.suppress(RuntimeError):
        rank.join()
        rank.run(progress)
    time.sleep(1000)


def main() -> None:
    shape = tuple(map(int, sys.argv[1:4]))
    fault, dimension, folder = sys.argv[4:7]
    world = shape[0] * shape[1] * shape[2]
    odd = world // 2 + 1  # in the middle of each dimension
    progress = mmap.mmap(-1, 4 * world)
    children: dict[int, int] = {}
    for number in range(world):
        child = os.fork()
        if not child:
            rank = Rank(number, shape, (fault, dimension), folder)
            rank.is_odd = number == odd
            work(rank, progress)
        children[number] = child

    # Until nothing moves any more
    before, since = b"", time.monotonic()
    while time.monotonic() - since < QUIET_S or b"\0\0\0\0" * world == before:
        time.sleep(0.2)
        if progress[:] != before:
            before, since = progress[:], time.monotonic()

    absent, stopped = [], []
    for number, child in children.items():
        state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "Z":
            absent.append(number)
        elif state == "T":
            stopped.append(number)
    case = {"odd": odd, "world": world, "absent": absent, "stopped": stopped}
    Path(folder, "write").touch()
    for number, child in children.items():
        if number not in stopped:
            os.waitpid(child, 0)
    for number in stopped:
        os.kill(children[number], signal.SIGKILL)
    Path(folder, "case.json").write_text(json.dumps(case))


main()
