"""Run the own checks of a site and a recipe, and keep what their commands print.

    python3 -m hpcstack_smoke.own FOLDER CODE     in every task of `srun --mpi=pmix`

Each process leaves own-CODE-WHERE.json in the run's FOLDER, with its exit status and its output.
hpcstack judges these when all is done (suite/own_checks.py), so that patterns and gates are in one
place, and a run can be judged again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from hpcstack_smoke.hidden import LOGIN
from hpcstack_smoke.processes import end_process
from hpcstack_smoke.request import read_request
from hpcstack_smoke.result import write_document

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

    from hpcstack_smoke.agent import Agent

KEPT_BYTES = 1 << 20  # of what a process prints: the first half and the last half of so much
LOGGED_BYTES = 64 << 20  # that go into its log; what comes then is dropped
LEAST_KEPT = 64 << 10  # of each of many ranks
LOOK_S = 0.2  # between two looks at a process
SHARED_LOOK_S = 3.0  # between two looks into the folder that all nodes share
# for the other ranks to end by themselves once one of them has failed
GRACE_S = 10.0
DRAIN_S = 5.0  # for the last output of a process that has ended
# Beginnings of variables by which an MPI library, or a trainer, takes itself for a rank of the step
OF_STEP = ("SLURM_", "PMI_", "PMI2_", "PMIX_", "OMPI_", "PRTE_", "MPI_LOCAL", "PALS_")
# The status of a process that stays although it was killed: it waits in the kernel
KILLED = 137
CANNOT_START = 127  # the exit status that shells give to a program that cannot be started
# How a process came to its end, in `ending` of its document
BY_ITSELF = ""
AT_TIME_LIMIT = "time-limit"
AFTER_ANOTHER = "after-another"  # another rank had failed
WITH_THE_RUN = "with-the-run"  # the run itself was ended
NOT_STARTED = "not-started"
NOT_MET = "not-met"  # its node did not reach the first node


@dataclass(frozen=True)
class OwnRun:
    """What the image must know to run one own check, as request.json has it."""

    code: str
    on: str  # nodes, ranks or mpi
    argv: tuple[str, ...]
    time_limit: float  # seconds
    needs: tuple[str, ...] = ()  # gpu, fabric
    min_nodes: int = 1


def parse_own_run(document: dict[str, Any]) -> OwnRun:
    """Return the OwnRun in DOCUMENT, which may have further keys."""
    return OwnRun(
        code=document["code"],
        on=document["on"],
        argv=tuple(document["argv"]),
        time_limit=float(document["time_limit"]),
        needs=tuple(document.get("needs", ())),
        min_nodes=int(document.get("min_nodes", 1)),
    )


def find_missing(run: OwnRun, nodes: int, inventory: dict[str, Any]) -> str:
    """Return what RUN needs and does not have, on NODES nodes of INVENTORY; empty if nothing."""
    if nodes < run.min_nodes:
        return f"it needs {run.min_nodes} nodes, and this run has {nodes}"
    if "gpu" in run.needs and not inventory.get("gpus"):
        return "it needs a GPU, and the node has none"
    # Slingshot's adapters are no ports of InfiniBand: they are among what nodes have alike
    ports = inventory.get("ports") or inventory.get("alike", {}).get("ports")
    if "fabric" in run.needs and not ports:
        return "it needs a fabric, and the node has no active port of one"
    return ""


class Kept:
    """The first and the last bytes of an output, MOST together; all of it goes into LOG."""

    def __init__(self, log: IO[bytes], most: int = KEPT_BYTES) -> None:
        self.log = log
        self.most = most
        self.head = bytearray()
        self.tail = bytearray()
        self.seen = 0

    def add(self, data: bytes) -> None:
        """Take DATA, the next bytes of the output."""
        if self.seen < LOGGED_BYTES:
            # a full disk must not end the check: its output is kept in memory, too
            with contextlib.suppress(OSError, ValueError):
                self.log.write(data)
                self.log.flush()
        self.seen += len(data)

        half = self.most // 2
        room = half - len(self.head)
        self.head += data[:room]
        self.tail += data[max(0, room) :]
        del self.tail[:-half]

    @property
    def cut(self) -> int:
        """How many bytes in the middle were dropped."""
        return self.seen - len(self.head) - len(self.tail)

    def text(self) -> str:
        """Return what is kept as text, without logins in URLs."""
        joint = f"\n[{self.cut} bytes are left out]\n".encode() if self.cut else b""
        text = (bytes(self.head) + joint + bytes(self.tail)).decode(errors="replace")
        return LOGIN.sub("://***@", text.replace("\r\n", "\n").replace("\r", "\n"))


@dataclass
class Ended:
    """How a command has ended."""

    status: int = 0  # its exit status; 128 + N where signal N ended it, as shells have it
    seconds: float = 0.0
    ending: str = BY_ITSELF
    detail: str = ""  # why it could not be started
    output: str = ""
    cut: int = 0  # bytes in the middle of the output that are not kept

    def document(self, run: OwnRun, where: str, rank: int) -> dict[str, Any]:
        """Return it as the document of RUN's process RANK at WHERE."""
        return {
            "own": run.code,
            "where": where,
            "rank": rank,
            "status": self.status,
            "ended": round(time.time(), 3),
            "seconds": round(self.seconds, 3),
            "ending": self.ending,
            "detail": self.detail,
            "output": self.output,
            "cut": self.cut,
            "failed": bool(self.status or self.ending),
        }


def make_skip(run: OwnRun, where: str, rank: int, reason: str) -> dict[str, Any]:
    """Return the document of a process of RUN that was not started, for REASON."""
    return {"own": run.code, "where": where, "rank": rank, "skip": reason, "failed": False}


def run_command(
    argv: tuple[str, ...],
    log: str,
    time_limit: float,
    environment: dict[str, str],
    find_ending: Callable[[], str] = lambda: BY_ITSELF,
    *,
    pass_files: bool = False,
    kept_bytes: int = KEPT_BYTES,
) -> Ended:
    """Run ARGV in an empty folder of its own, and write what it prints into the file LOG.

    It is ended with all that it started after TIME_LIMIT seconds, or once FIND_ENDING returns how.
    PASS_FILES hands on the open files that this process was given: PMI's is one.
    """
    began = time.monotonic()
    folder = tempfile.mkdtemp(prefix="own-", dir=os.environ.get("HPCSTACK_SMOKE_SCRATCH") or None)
    try:
        with open(log, "wb") as file:
            kept = Kept(file, kept_bytes)
            try:
                child = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    env=environment,
                    start_new_session=True,
                    close_fds=not pass_files,
                )
            except OSError as error:
                detail = f"{argv[0]}: {error.strerror or error}"
                return Ended(CANNOT_START, time.monotonic() - began, NOT_STARTED, detail)

            ending = _watch(child, kept, began + time_limit, find_ending)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    status = KILLED if child.returncode is None else child.returncode
    if status < 0:
        status = 128 - status
    seconds = time.monotonic() - began
    return Ended(status, seconds, ending, output=kept.text(), cut=kept.cut)


def _watch(
    child: subprocess.Popen[bytes],
    kept: Kept,
    until: float,
    find_ending: Callable[[], str],
) -> str:
    """Wait for CHILD, whose output goes into KEPT, at most UNTIL. Return how it came to its end."""
    reader = threading.Thread(target=_read_all, args=(child, kept), daemon=True)
    reader.start()
    ending = BY_ITSELF
    try:
        while child.poll() is None and not ending:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(LOOK_S)
                break
            ending = AT_TIME_LIMIT if time.monotonic() > until else find_ending()
    finally:
        if child.poll() is None:
            end_process(child)
        # what it has left running would keep its output open, and the node busy
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        reader.join(DRAIN_S)
    return ending


def _read_all(child: subprocess.Popen[bytes], kept: Kept) -> None:
    """Read all that CHILD prints into KEPT."""
    assert child.stdout is not None
    descriptor = child.stdout.fileno()
    with contextlib.suppress(OSError, ValueError):
        while True:
            data = os.read(descriptor, 65536)
            if not data:
                return
            kept.add(data)


def share_kept(ranks: int) -> int:
    """Return how many bytes are kept of what each of so many RANKS prints."""
    return max(LEAST_KEPT, KEPT_BYTES // ranks)


def name_file(code: str, where: str | int, ending: str) -> str:
    """Return the name of a file of the check CODE in a run's folder."""
    return f"own-{code}-{where}.{ending}"


def leave_step(environment: dict[str, str]) -> dict[str, str]:
    """Return ENVIRONMENT without what Slurm and its PMI tell the tasks of a step.

    The agent is such a task. A program that it starts is none: an MPI library that believes so
    waits for ranks that nobody starts, or ends.
    """
    return {name: one for name, one in environment.items() if not name.startswith(OF_STEP)}


@dataclass
class OwnChecks:
    """The own checks of one node's agent."""

    agent: Agent
    stop: threading.Event = field(default_factory=threading.Event)
    looked: float = 0.0  # when the shared folder was last looked at
    broken: float = 0.0  # when it was seen that a rank of this check had failed
    patience: float = 0.0  # seconds by which nodes may be apart, since a check may take so long

    def run_all(self) -> None:
        """Run all that start on nodes or ranks, one after another, and leave their documents."""
        for document in self.agent.request.own:
            run = parse_own_run(document)
            if run.on == "mpi":
                continue  # in a step of its own
            self.patience += run.time_limit
            try:
                self._run_one(run)
            except OSError as error:  # no room for its files: the other checks may have some
                if run.on == "ranks":
                    with contextlib.suppress(OSError):
                        self._tell_broken(run, self.agent.host)
                print(f"hpcstack: {run.code} on {self.agent.host}: {error}", flush=True)
        # whoever is done early must not leave: the step would end the others' checks with it
        if self.patience and self.agent.request.nodes > 1:
            with contextlib.suppress(OSError, TimeoutError):
                self._meet("own checks")

    def _run_one(self, run: OwnRun) -> None:
        """Run RUN on this node: once, or once for each of its ranks."""
        agent = self.agent
        began = time.monotonic()
        missing = find_missing(run, agent.request.nodes, agent.inventory)
        if run.on == "nodes":
            if missing:
                self._write(make_skip(run, agent.host, agent.node, missing))
            else:
                self._run_process(run, agent.host, agent.node, leave_step(dict(os.environ)))
        else:
            self._run_ranks(run, missing)
        if agent.first:
            print(f":: DONE {run.code} {time.monotonic() - began:.1f}", flush=True)

    def _run_ranks(self, run: OwnRun, missing: str) -> None:
        """Run RUN's ranks on this node, unless something is MISSING on the first node."""
        agent = self.agent
        request = agent.request
        first = agent.node * request.ranks
        self.looked = self.broken = 0.0
        try:
            meeting = self._agree(run, missing)
        except (OSError, TimeoutError) as error:
            self._tell_broken(run, agent.host)
            for rank in range(first, first + request.ranks):
                ended = Ended(CANNOT_START, ending=NOT_MET, detail=str(error))
                self._write(ended.document(run, f"{agent.host}:{rank}", rank))
            return
        if meeting["missing"]:
            for rank in range(first, first + request.ranks):
                self._write(make_skip(run, f"{agent.host}:{rank}", rank, meeting["missing"]))
            return

        cores = len(os.sched_getaffinity(0))
        shared = {
            "WORLD_SIZE": str(request.ranks * request.nodes),
            "LOCAL_WORLD_SIZE": str(request.ranks),
            "MASTER_ADDR": str(meeting["address"]),
            "MASTER_PORT": str(meeting["port"]),
        }
        threads = {"OMP_NUM_THREADS": str(max(1, cores // request.ranks))}
        pool = ThreadPoolExecutor(request.ranks)
        try:
            futures = []
            for local in range(request.ranks):
                rank = first + local
                own = {"RANK": str(rank), "LOCAL_RANK": str(local)}
                environment = {**threads, **leave_step(dict(os.environ)), **shared, **own}
                where = f"{agent.host}:{rank}"
                futures.append(pool.submit(self._run_process, run, where, rank, environment))
            for future in futures:
                future.result()
        finally:
            # where the agent is told to end, its ranks must end as well
            self.stop.set()
            pool.shutdown()
            self.stop.clear()

    def _agree(self, run: OwnRun, missing: str) -> dict[str, Any]:
        """Return where the ranks of RUN meet, or what is missing, as the first node says.

        OSError or TimeoutError where that cannot be had.
        """
        from hpcstack_smoke.store import find_address
        from hpcstack_smoke.tasks import free_port

        if self.agent.request.nodes > 1:
            self._meet(f"own {run.code} begins")
        mine = {"missing": missing, "address": find_address(), "port": free_port()}
        if self.agent.request.nodes == 1:
            return mine
        name = f"own {run.code}"
        if self.agent.first:
            self.agent.store().put(name, 0, mine)
        agreed: dict[str, Any] = self.agent.store().get(name, 0, self.agent.meet_s)
        return agreed

    def _meet(self, name: str) -> None:
        """Wait until the agents of all nodes have come to the point NAME.

        They may be apart by as long as the checks so far may take. OSError or TimeoutError where one
        does not come.
        """
        store = self.agent.store()
        store.put(name, self.agent.node, self.agent.host)
        store.wait(name, self.agent.request.nodes, self.agent.meet_s + self.patience)

    def _tell_broken(self, run: OwnRun, where: str) -> None:
        """Tell all nodes that a rank of RUN has failed at WHERE."""
        name = name_file(run.code, "broken", "json")
        write_document(self.agent.request.output, name, {"where": where})

    def _is_broken(self, run: OwnRun) -> bool:
        """Whether a rank of RUN, on any node, failed so long ago that the others must be ended."""
        now = time.monotonic()
        if not self.broken and now - self.looked > SHARED_LOOK_S:
            self.looked = now
            name = name_file(run.code, "broken", "json")
            if os.path.exists(os.path.join(self.agent.request.output, name)):
                self.broken = now
        return bool(self.broken) and now - self.broken > GRACE_S

    def _run_process(self, run: OwnRun, where: str, rank: int, environment: dict[str, str]) -> None:
        """Run one process of RUN and write its document. RANK: its number in the run."""
        output = self.agent.request.output

        def find_ending() -> str:
            if self.stop.is_set():
                return WITH_THE_RUN
            if run.on == "ranks" and self._is_broken(run):
                return AFTER_ANOTHER
            return BY_ITSELF

        log = os.path.join(output, name_file(run.code, rank, "log"))
        environment = {**environment, "HPCSTACK_CHECK": run.code}
        kept = KEPT_BYTES
        if run.on == "ranks":
            kept = share_kept(self.agent.request.ranks * self.agent.request.nodes)
        ended = run_command(
            run.argv, log, run.time_limit, environment, find_ending, kept_bytes=kept
        )
        if not os.path.getsize(log):
            os.unlink(log)
        if run.on == "ranks" and (ended.status or ended.ending):
            self._tell_broken(run, where)
        self._write(ended.document(run, where, rank))

    def _write(self, document: dict[str, Any]) -> None:
        """Write DOCUMENT, of one process, into the run's folder."""
        name = name_file(document["own"], document["rank"], "json")
        write_document(self.agent.request.output, name, document)


def run_mpi_rank() -> NoReturn:
    """Run one rank of a check of MPI's, and end with its exit status."""
    folder, code = sys.argv[1:]
    request = read_request(folder)
    run = next(one for one in map(parse_own_run, request.own) if one.code == code)
    # each PMI names ranks by a variable of its own; Slurm's is there with all of them
    rank = int(os.environ.get("SLURM_PROCID", "0"))

    # SIGTERM raises SystemExit, so that what was started is ended on the way out
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    log = os.path.join(folder, name_file(code, rank, "log"))
    environment = {**os.environ, "HPCSTACK_CHECK": code}
    kept = share_kept(request.ranks * request.nodes)
    ended = run_command(
        run.argv, log, run.time_limit, environment, pass_files=True, kept_bytes=kept
    )
    if not os.path.getsize(log):
        os.unlink(log)
    document = ended.document(run, f"{socket.gethostname()}:{rank}", rank)
    write_document(folder, name_file(code, rank, "json"), document)
    sys.exit(ended.status)


if __name__ == "__main__":
    run_mpi_rank()
