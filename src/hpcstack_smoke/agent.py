"""The agent of one node: its own checks, then the ranks in as many rounds as it takes, watched.

A check that breaks the process group ends the ranks; the next round begins behind it, so that one
broken check hides no other. All nodes decide the same: they read what the ranks of all nodes left
in the run's folder.
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
from hpcstack_smoke.leftovers import find_last_change, has_failed, list_attempted
from hpcstack_smoke.processes import ask_for_stacks, end_process, make_rank_environment, ranks_here
from hpcstack_smoke.result import ERROR, SKIP, Result, run_check, write_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack_smoke.request import Request
    from hpcstack_smoke.select import Check
    from hpcstack_smoke.store import Client, Store

ROUNDS = 6
OF_EVERY_STACK = ("node", "fabric", "io")  # families of checks, whatever the image is for
BROKEN_S, LOOK_S = 20.0, 3.0
MEET_S, A_NODE_S = 240.0, 0.25  # to meet: so long, and so much longer for each node
HEARD_S = 30.0
STORE = "store.json"  # where the first node's store listens
START_S, START_A_NODE_S = (
    180.0,
    1.0,
)  # for imports from a filesystem that all nodes read at once, and to connect


def import_check(check: Check) -> Callable[[Any], Result]:
    """What CHECK runs, imported here: its module may need a framework."""
    module, _, name = check.where.partition(":")
    found: Callable[[Any], Result] = getattr(
        importlib.import_module(f"hpcstack_smoke.{module}"), name
    )
    return found


def _run(check: Check, request: Any) -> Result:
    """Import CHECK and run it: an import that fails is this check's own error."""
    return import_check(check)(request)


def tell_row(row: dict[str, Any]) -> None:
    """One line on stdout, for whoever watches. (Only the first node's is shown.)"""
    said = (row.get("measured") or row.get("evidence", "")).replace("\n", " ")[:160]
    print(f":: {row['status']} {row['code']} {row.get('seconds', 0):.1f} {said}", flush=True)


class Agent:
    """One node's part of a run."""

    def __init__(self, request: Request, launcher: tuple[str, ...] = ()) -> None:
        """LAUNCHER starts ranks: it takes RANKS MIN:MAX RESTARTS COMMAND...; without one torchrun
        does, here alone.
        """
        self.request, self.output = request, request.output
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
        """This node's place in the run: of one node the first, whatever step it is in."""
        return int(os.environ.get("SLURM_NODEID", "0")) if self.request.nodes > 1 else 0

    @property
    def meet_s(self) -> float:
        """Seconds that nodes wait for each other."""
        return MEET_S + A_NODE_S * self.request.nodes

    def store(self) -> Client:
        """This node's store, connected to the first one's, which says in the run's folder where it
        is.

        OSError or TimeoutError where that cannot be found or reached.
        """
        if self.client is None:
            from hpcstack_smoke.store import Client, Store, find_address

            if self.first:
                token = secrets.token_hex(16)
                mine = Store(token)
                write_document(
                    self.output,
                    STORE,
                    {"address": find_address(), "port": mine.port, "token": token},
                    0o600,
                )
            else:
                mine, token = self._joined()
            mine.start()
            self.place = (mine.port, token)
            self.client = Client("127.0.0.1", mine.port, token)
        return self.client

    def _joined(self) -> tuple[Store, str]:
        """(this node's part of the store, its token).

        An older store of that folder refuses: then once more.
        """
        from hpcstack_smoke.store import Store

        until = time.monotonic() + self.meet_s
        while True:
            place = self._found(STORE)
            try:
                return Store(place["token"], (place["address"], place["port"])), place["token"]
            except OSError as error:
                if time.monotonic() > until:
                    where = f"{place['address']}:{place['port']}"
                    raise TimeoutError(
                        f"no TCP from {self.host} to the first node, {where}: {error}"
                    ) from None
                time.sleep(2.0)

    def _found(self, name: str) -> dict[str, Any]:
        """The document NAME of the run's folder, once it is there."""
        path, until = os.path.join(self.output, name), time.monotonic() + self.meet_s
        while time.monotonic() < until:
            with contextlib.suppress(OSError, ValueError), open(path) as file:
                document: dict[str, Any] = json.load(file)
                return document
            with contextlib.suppress(
                OSError
            ):  # NFS remembers that a name was not there until the folder changes
                tempfile.TemporaryFile(dir=self.output).close()
            time.sleep(0.5)
        raise TimeoutError(f"the first node said nothing in {name} for {self.meet_s:.0f} s")

    def add(self, row: dict[str, Any]) -> None:
        """ROW into node-HOST.json, and told."""
        self.rows.append(row)
        if self.first:
            tell_row(row)
        self.save()

    def save(self) -> None:
        from hpcstack_smoke.node.inventory import make_inventory

        self.inventory = self.inventory or make_inventory(self.request)
        document = {
            "host": self.host,
            "suite": __version__,
            "inventory": self.inventory,
            "rows": self.rows,
        }
        write_document(self.output, f"node-{self.host}.json", document)

    def node_checks(self) -> None:
        from hpcstack_smoke.node import counters, fabric, sysfs

        request = self.request
        fabric.BEFORE.update(sysfs.read_error_counters())
        counters.BEFORE.update(counters.read_counters())
        self.save()
        for check in request.checks("node"):
            self.add(run_check(check.code, partial(_run, check, request), self.host))

    def after(self) -> None:
        """What only shows once the node was used: error counters that went up during the run."""
        request = self.request
        for check in request.checks("after"):
            self.add(run_check(check.code, partial(_run, check, request), self.host))
        if self.run_failed():
            from hpcstack_smoke.bundle import write_bundle as bundle

            folder = bundle(self.output, self.host)
            if self.first:
                print(
                    f"hpcstack: what helps to find out why is in {os.path.dirname(folder)}",
                    flush=True,
                )

    def run_failed(self) -> bool:
        """Whether anything of the run failed: the first node looks and tells the others, who take
        silence for a yes.
        """
        try:
            if self.first:
                bad = has_failed(self.output)
                if self.request.nodes > 1:
                    self.store().put("failed", 0, bad)
                    self.store().put("heard", 0, 1)
                    self.store().wait(
                        "heard", self.request.nodes, HEARD_S
                    )  # the store ends with this process
                return bad
            bad = bool(self.store().get("failed", 0, self.meet_s))
            self.store().put("heard", self.node, 1)
            return bad
        except TimeoutError:
            return True
        except OSError:
            return False

    def rank_checks(self) -> int:
        """The torchrun rounds; the status of the last."""
        done: list[str] = []
        status = 0
        for number in range(1, ROUNDS + 1):
            left = self.request.checks("ranks", ",".join(done))
            if not left:
                break
            if missing := self._without("torch", left):
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
            if not tried:
                break
            done += tried
        return status

    def agreed(self, number: int) -> list[str]:
        """What was attempted in round NUMBER: the first node looks and says, so that all go on with
        the same.
        """
        name = f"attempted-{number}"
        if self.first:
            self.store().put(name, 0, list_attempted(self.output, number))
        codes: list[str] = self.store().get(name, 0, self.meet_s)
        return codes

    def _without(self, module: str, checks: list[Check]) -> int:
        """Rows for CHECKS where MODULE is not in the image: ERROR if the recipe or the user named
        them, else SKIP.

        `node`, `fabric` and `io` are every stack's families: that those of their checks which need
        torch are missing is no error.
        """
        import importlib.util

        if importlib.util.find_spec(module):
            return 0
        named = False
        for check in checks:
            named_itself = check.code in self.request.tests.split(",")
            wanted = bool(self.request.tests) and (
                check.family not in OF_EVERY_STACK or named_itself
            )
            named = named or wanted
            row = {
                "code": check.code,
                "where": self.host,
                "status": ERROR if wanted else SKIP,
                "seconds": 0.0,
            }
            self.add({**row, "evidence": f"the image has no {module}"})
        return 1 if named else 2

    def launch(self, command: list[str], log: str, *, elastic: bool = False) -> int:
        """Start the ranks with COMMAND, their output in LOG; the launcher's status, 124 where it
        had to be ended.

        ELASTIC: a launch of its own, which torchrun may restart; what broke in a round before is
        not its concern.
        """
        request = self.request
        self.round = 0 if elastic else self.round
        if self.launcher:
            range_ = f"{request.nodes}:{request.nodes}" if elastic else ""
            argv = [*self.launcher, str(request.ranks), range_, "3" if elastic else "0", *command]
        else:
            restarts = ["--max-restarts", "3"] if elastic else []
            argv = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                str(request.ranks),
                *restarts,
                *command,
            ]
        with open(os.path.join(request.output, log), "wb") as file:
            child = subprocess.Popen(
                argv,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=make_rank_environment(elastic),
            )
            try:
                return self.watch(child, file)
            finally:
                # interrupted, or told to end: the ranks are in sessions of their own and would go
                # on
                if child.poll() is None:
                    end_process(child)
                for rank in ranks_here():
                    with contextlib.suppress(OSError):
                        os.kill(rank, signal.SIGKILL)

    def watch(self, child: subprocess.Popen[bytes], file: Any) -> int:
        """Pass on what CHILD says, and end it where nothing has moved for too long."""
        import threading

        threading.Thread(target=self._relay, args=(child, file), daemon=True).start()
        newest, since, looked, broken = 0.0, time.monotonic(), 0.0, 0.0
        while True:
            try:
                return child.wait(0.3)
            except subprocess.TimeoutExpired:
                now = time.monotonic()
                if now - looked < LOOK_S:
                    continue
                looked = now
                if (
                    last := find_last_change(self.output)
                ) != newest:  # the file server's clock, compared with itself alone
                    newest, since = last, now
                if not broken and os.path.exists(os.path.join(self.output, f"broken-{self.round}")):
                    broken = now
                if why := self._over(now, since, broken):
                    ask_for_stacks(self.output)
                    print(f"hpcstack: {why}: the ranks are ended", flush=True)
                    write_document(
                        self.output,
                        f"ended-{self.host}-{self.round}.json",
                        {"host": self.host, "why": why},
                    )
                    end_process(child)
                    return 124

    def _over(self, now: float, since: float, broken: float) -> str:
        """Why the ranks must be ended; empty where they may go on."""
        request = self.request
        if broken and now - broken > BROKEN_S:
            return "a rank elsewhere broke the process group"
        if request.deadline_s and now - self.began > request.deadline_s:
            return "the run's time is up"
        limit = float(os.environ.get("HPCSTACK_SMOKE_STALL") or request.stall_s)
        if self.round and not os.path.exists(os.path.join(self.output, f"joined-{self.round}")):
            limit = max(limit, start_s(request.nodes))
        return f"nothing has moved for {now - since:.0f} s" if now - since > limit else ""

    def _relay(self, child: subprocess.Popen[bytes], file: Any) -> None:
        for line in child.stdout or ():
            if line.startswith(b":: "):
                if self.first:
                    print(line.decode(errors="replace").rstrip(), flush=True)
            else:
                with contextlib.suppress(ValueError):  # the launcher has ended, its file is closed
                    file.write(line)
                    file.flush()

    def meet(self, name: str) -> None:
        """Wait for the agents of all nodes to come to NAME.

        TimeoutError, for all of them, where one does not come.
        """
        self.store().put(name, self.node, self.host)
        self.store().wait(name, self.request.nodes, self.meet_s)


def start_s(nodes: int) -> float:
    """Seconds that ranks of NODES may take until all have joined; HPCSTACK_SMOKE_START says
    otherwise.
    """
    said = os.environ.get("HPCSTACK_SMOKE_START", "")
    return float(said) if said else START_S + START_A_NODE_S * nodes
