"""The agent of one node: runs the node's own checks, then starts the ranks and watches them.

A check that breaks the process group ends all ranks. The agent then starts them again for the
checks that are left, so that one broken check hides no other; each such start is a round. The
nodes must agree on what the next round runs: the first node reads the run's folder and tells the
others.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from hpcstack_smoke import __version__
from hpcstack_smoke.leftovers import (
    bring_notes,
    find_last_change,
    has_failed,
    is_being_ended,
    list_attempted,
)
from hpcstack_smoke.processes import ask_for_stacks, end_process, make_rank_environment, ranks_here
from hpcstack_smoke.result import ERROR, SKIP, Result, run_check, write_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack_smoke.request import Request
    from hpcstack_smoke.select import Check
    from hpcstack_smoke.store import Client, Store

ROUNDS = 6
# families of checks that are run on every image, whatever it is for
OF_EVERY_STACK = ("node", "fabric", "io")

# how long ranks may take to end by themselves once one of them broke the process group
BROKEN_S = 20.0
# how often the run's folder is looked at for progress
LOOK_S = 3.0
# how long nodes wait for each other, and how much longer for each node of the run
MEET_S = 240.0
A_NODE_S = 0.25
# how long the first node waits for the others to have read its last word
HEARD_S = 30.0
# how long ranks may take to import torch, from a filesystem that all nodes read at once, and to
# connect; and how much longer for each node of the run
START_S = 180.0
START_A_NODE_S = 1.0

STORE = "store.json"  # where the first node's store listens


def import_check(check: Check) -> Callable[[Any], Result]:
    """Import CHECK's module and return the function that runs it.

    The import is made here, and not with the table of checks, since the module may need a
    framework that the image does not have.
    """
    module_name, _, function_name = check.where.partition(":")
    module = importlib.import_module(f"hpcstack_smoke.{module_name}")
    function: Callable[[Any], Result] = getattr(module, function_name)
    return function


def _import_and_run(check: Check, request: Any) -> Result:
    """Import CHECK and run it, so that an import that fails is an error of this check."""
    return import_check(check)(request)


def tell_row(row: dict[str, Any]) -> None:
    """Print ROW as one line, for whoever watches the run. (Only the first node's are shown.)"""
    said = row.get("measured") or row.get("evidence", "")
    said = said.replace("\n", " ")[:160]
    print(f":: {row['status']} {row['code']} {row.get('seconds', 0):.1f} {said}", flush=True)


class Agent:
    """One node's part of a run."""

    def __init__(self, request: Request, launcher: tuple[str, ...] = ()) -> None:
        """LAUNCHER starts the ranks; it is called with RANKS MIN:MAX RESTARTS COMMAND...

        Without one, torchrun starts them, on this machine alone.
        """
        self.request = request
        self.output = request.output
        self.launcher = launcher
        self.host = socket.gethostname()
        self.first = self.node == 0
        self.rows: list[dict[str, Any]] = []
        self.inventory: dict[str, Any] = {}
        self.began = time.monotonic()
        self.round = 0
        self.client: Client | None = None
        self.place: tuple[int, str] = (0, "")

    @property
    def node(self) -> int:
        """This node's number in the run, from 0.

        A run of one node is node 0, whatever the Slurm step that it happens to be in says.
        """
        if self.request.nodes <= 1:
            return 0
        return int(os.environ.get("SLURM_NODEID", "0"))

    @property
    def meet_s(self) -> float:
        """How many seconds nodes wait for each other."""
        return MEET_S + A_NODE_S * self.request.nodes

    def store(self) -> Client:
        """Return a client of this node's store, which is started at the first call.

        The first node's store writes its address into the run's folder; those of the other nodes
        connect to it. OSError or TimeoutError where it cannot be found or reached.
        """
        if self.client is not None:
            return self.client

        from hpcstack_smoke.store import Client, Store, find_address

        if self.first:
            token = secrets.token_hex(16)
            mine = Store(token)
            place = {"address": find_address(), "port": mine.port, "token": token}
            write_document(self.output, STORE, place, 0o600)  # only this user may read the token
        else:
            mine, token = self._join_store()

        mine.start()
        self.place = (mine.port, token)
        self.client = Client("127.0.0.1", mine.port, token)
        return self.client

    def _join_store(self) -> tuple[Store, str]:
        """Connect to the first node's store. Return (this node's part of it, its token).

        The folder may hold the address of an earlier store, which does not answer any more. So
        the file is read again until a store answers, or TimeoutError is raised.
        """
        from hpcstack_smoke.store import Store

        until = time.monotonic() + self.meet_s
        while True:
            place = self._wait_for_document(STORE)
            upstream = (place["address"], place["port"])
            try:
                return Store(place["token"], upstream), place["token"]
            except OSError as error:
                if time.monotonic() > until:
                    where = f"{place['address']}:{place['port']}"
                    raise TimeoutError(
                        f"no TCP connection from {self.host} to the first node at {where}: {error}"
                    ) from None
                time.sleep(2.0)

    def _wait_for_document(self, name: str) -> dict[str, Any]:
        """Return the document NAME of the run's folder, once it is there. TimeoutError if never."""
        path = os.path.join(self.output, name)
        until = time.monotonic() + self.meet_s
        while time.monotonic() < until:
            with contextlib.suppress(OSError, ValueError), open(path) as file:
                document: dict[str, Any] = json.load(file)
                return document
            # NFS remembers that a name was not there until the folder changes: change it
            with contextlib.suppress(OSError):
                tempfile.TemporaryFile(dir=self.output).close()
            time.sleep(0.5)
        raise TimeoutError(f"the first node did not write {name} within {self.meet_s:.0f} s")

    def add(self, row: dict[str, Any]) -> None:
        """Add ROW to this node's rows, save them all, and print ROW on the first node."""
        self.rows.append(row)
        if self.first:
            tell_row(row)
        self.save()

    def save(self) -> None:
        """Write this node's rows and its inventory, which is made once, as node-HOST.json."""
        from hpcstack_smoke.node.inventory import make_inventory

        self.inventory = self.inventory or make_inventory(self.request)
        document = {
            "host": self.host,
            "suite": __version__,
            "runs_own_checks": True,  # suites before 0.4.0 do not
            "inventory": self.inventory,
            "rows": self.rows,
        }
        write_document(self.output, f"node-{self.host}.json", document)

    def node_checks(self) -> None:
        """Note the error counters as they are before the run, then run this node's own checks.

        What the machine answers to them is kept as machine-HOST.json, for the run's capsule.
        """
        from hpcstack_smoke.node import counters, fabric, machine, sysfs
        from hpcstack_smoke.node.recorder import Recorder

        fabric.BEFORE.update(sysfs.read_error_counters())
        counters.BEFORE.update(counters.read_counters())

        recorder = Recorder(machine.HERE)
        machine.HERE = recorder
        try:
            # written before the first check, so that a node which dies in it is seen to have
            # started
            self.save()
            self._run_checks("node")
        finally:
            machine.HERE = recorder.behind
        document = {"host": self.host, "answers": recorder.answers}
        write_document(self.output, f"machine-{self.host}.json", document)

    def _run_checks(self, scope: str) -> None:
        """Run the checks of SCOPE in this process, one after another."""
        for check in self.request.checks(scope):
            run = partial(_import_and_run, check, self.request)
            self.add(run_check(check.code, run, self.host))

    def after(self) -> None:
        """Run the checks that need a node which was used, and write a bundle if the run failed.

        Such a check finds error counters that went up during the run.
        """
        self._run_checks("after")
        if not self.run_failed():
            return

        from hpcstack_smoke.bundle import write_bundle

        folder = write_bundle(self.output, self.host)
        if self.first:
            bundles = os.path.dirname(folder)
            print(f"hpcstack: logs and reports that help to find out why: {bundles}", flush=True)

    def run_failed(self) -> bool:
        """Whether any check of any node or rank failed.

        The first node looks and tells the others. Where a node is not answered in time, it takes
        that for a yes. Where it cannot reach the first node at all, it takes that for a no.
        """
        nodes = self.request.nodes
        try:
            if not self.first:
                bad = bool(self.store().get("failed", 0, self.meet_s))
                self.store().put("heard", self.node, 1)
                return bad

            bad = has_failed(self.output)
            if nodes > 1:
                self.store().put("failed", 0, bad)
                self.store().put("heard", 0, 1)
                # the store ends with this process: stay until the others have read it
                self.store().wait("heard", nodes, HEARD_S)
            return bad
        except TimeoutError:
            return True
        except OSError:
            return False

    def rank_checks(self) -> int:
        """Run the checks of the ranks, in rounds. Return the launcher's status of the last round.

        Without torch in the image the status is 1 if the recipe or the user named such a check.
        """
        done: list[str] = []
        status = 0
        for number in range(1, ROUNDS + 1):
            left = self.request.checks("ranks", ",".join(done))
            if not left:
                break
            missing = self._without("torch", left)
            if missing:
                return missing % 2

            command = ["-m", "hpcstack_smoke.ranks", self.output, str(number), ",".join(done)]
            self.round = number
            status = self.launch(command, f"launcher-{self.host}-{number}.log")
            if status == 0:
                break

            try:
                self.meet(f"round-{number}")
                tried = self.agreed(number)
            except (OSError, TimeoutError) as error:
                print(f"hpcstack: {self.host} ends after round {number}: {error}", flush=True)
                break
            # no rank began a check: another round would get no further
            if not tried:
                break
            done += tried
        return status

    def agreed(self, number: int) -> list[str]:
        """Return the codes of the checks that ranks began in round NUMBER, the same on all nodes.

        The first node reads them from the run's folder and tells the others.
        """
        name = f"attempted-{number}"
        if self.first:
            self.store().put(name, 0, list_attempted(self.output, number))
        codes: list[str] = self.store().get(name, 0, self.meet_s)
        return codes

    def _without(self, module: str, checks: list[Check]) -> int:
        """Add a row for each of CHECKS if MODULE is not in the image.

        Return 0 where MODULE is there, 1 where an ERROR was added, 2 where all rows are SKIP. A
        check is an ERROR if the recipe or the user named it. `node`, `fabric` and `io` are in
        every recipe's tests, so naming these families does not count: a check of theirs that
        needs torch is an ERROR only if it is named by its own code.
        """
        import importlib.util

        if importlib.util.find_spec(module):
            return 0

        some_wanted = False
        for check in checks:
            named_itself = check.code in self.request.tests.split(",")
            named = check.family not in OF_EVERY_STACK or named_itself
            wanted = bool(self.request.tests) and named
            some_wanted = some_wanted or wanted
            row = {
                "code": check.code,
                "where": self.host,
                "status": ERROR if wanted else SKIP,
                "seconds": 0.0,
                "for_all_ranks": True,
            }
            self.add({**row, "evidence": f"the image has no {module}"})
        return 1 if some_wanted else 2

    def launch(self, command: list[str], log: str, *, elastic: bool = False) -> int:
        """Start the ranks with COMMAND, write their output into LOG, and wait for them.

        Return the launcher's status; 124 where it had to be ended. ELASTIC: torchrun may start
        the ranks up to three times again. Such a launch belongs to no round, so that what broke
        in an earlier round does not end it.
        """
        if elastic:
            self.round = 0

        with open(os.path.join(self.output, log), "wb") as file:
            child = subprocess.Popen(
                self._make_launch_line(command, elastic),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=make_rank_environment(elastic),
            )
            try:
                return self.watch(child, file)
            finally:
                # where the agent was interrupted or told to end, the ranks, which are in sessions
                # of their own, would go on
                if child.poll() is None:
                    end_process(child)
                for rank in ranks_here():
                    with contextlib.suppress(OSError):
                        os.kill(rank, signal.SIGKILL)
                scratch = os.environ.get("HPCSTACK_SMOKE_SCRATCH", "")
                if scratch:
                    bring_notes(scratch, self.output)

    def _make_launch_line(self, command: list[str], elastic: bool) -> list[str]:
        """Return the command line that starts the ranks with COMMAND."""
        request = self.request
        ranks = str(request.ranks)
        if self.launcher:
            node_range = f"{request.nodes}:{request.nodes}" if elastic else ""
            restarts = "3" if elastic else "0"
            return [*self.launcher, ranks, node_range, restarts, *command]

        argv = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        argv += ["--nproc-per-node", ranks]
        if elastic:
            argv += ["--max-restarts", "3"]
        return [*argv, *command]

    def watch(self, child: subprocess.Popen[bytes], file: Any) -> int:
        """Pass on the output of CHILD and wait for it. Return its status.

        A launch in which nothing moves for too long is ended: the ranks write their stacks, the
        reason is written as ended-HOST-ROUND.json, and the status is 124.
        """
        import threading

        threading.Thread(target=self._relay, args=(child, file), daemon=True).start()
        newest = 0.0  # when the run's folder last changed, as the file server says
        since = time.monotonic()  # when that change was seen here
        looked = 0.0
        broken = 0.0  # when it was seen that a rank broke the process group
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(0.3)

            now = time.monotonic()
            if now - looked < LOOK_S:
                continue
            looked = now

            # the file server's clock may differ from ours: it is compared with itself alone
            last = find_last_change(self.output)
            if last != newest:
                newest = last
                since = now
            if not broken and os.path.exists(os.path.join(self.output, f"broken-{self.round}")):
                broken = now

            why = self._find_reason_to_end(now, since, broken)
            if why:
                ask_for_stacks(self.output)
                print(f"hpcstack: {why}: the ranks are ended", flush=True)
                name = f"ended-{self.host}-{self.round}.json"
                write_document(self.output, name, {"host": self.host, "why": why})
                end_process(child)
                return 124

    def _find_reason_to_end(self, now: float, since: float, broken: float) -> str:
        """Return why the ranks must be ended at the time NOW; empty where they may go on.

        SINCE is when something last moved. BROKEN is when the process group was seen to be
        broken; 0 where it is not.
        """
        request = self.request
        if self.round and is_being_ended(self.output, self.round):
            return "the ranks of another node were ended"
        if broken and now - broken > BROKEN_S:
            return "a rank elsewhere broke the process group"
        if request.deadline_s and now - self.began > request.deadline_s:
            return "the run's time is up"

        limit = float(os.environ.get("HPCSTACK_SMOKE_STALL") or request.stall_s)
        # ranks that have not all joined write nothing: they get at least the time to start
        if self.round and not os.path.exists(os.path.join(self.output, f"joined-{self.round}")):
            limit = max(limit, start_s(request.nodes))
        if now - since > limit:
            return f"nothing has moved for {now - since:.0f} s"
        return ""

    def _relay(self, child: subprocess.Popen[bytes], file: Any) -> None:
        """Print the rows among the output of CHILD, on the first node; write all else to FILE."""
        for line in child.stdout or ():
            if line.startswith(b":: "):
                if self.first:
                    print(line.decode(errors="replace").rstrip(), flush=True)
                continue
            # ranks may still write after the launcher has ended and FILE was closed
            with contextlib.suppress(ValueError):
                file.write(line)
                file.flush()

    def meet(self, name: str) -> None:
        """Wait until the agents of all nodes have come to the point NAME.

        TimeoutError on all of them where one does not come.
        """
        self.store().put(name, self.node, self.host)
        self.store().wait(name, self.request.nodes, self.meet_s)


def start_s(nodes: int) -> float:
    """Return how many seconds the ranks of NODES may take until all have joined.

    HPCSTACK_SMOKE_START in the environment takes the place of that.
    """
    said = os.environ.get("HPCSTACK_SMOKE_START", "")
    if said:
        return float(said)
    return START_S + START_A_NODE_S * nodes
