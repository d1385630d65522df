"""Reach the page that a job serves: `hpcstack tunnel`.

The page is on a Unix socket in a container on a compute node (launch/page.py). SSH goes there
through a step of the job, as `hpcstack enter --ssh` does, and forwards a socket of this machine's
to it: one that nobody but its user can open. An `ssh -L` from the user's own machine ends there. So
nothing listens on a network, and no key leaves the cluster.
"""

from __future__ import annotations

import getpass
import hashlib
import math
import os
import re
import select
import shlex
import socket as socket_module
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from hpcstack.core.dirs import find_state_folder
from hpcstack.core.errors import BuildError, InputError, SlurmError
from hpcstack.core.files import make_private_folder, write_text
from hpcstack.core.process import ReadFailed
from hpcstack.launch.enter import list_ranks, make_ssh_keys, render_ssh_config
from hpcstack.launch.page import PAGES
from hpcstack.launch.record import read_launches
from hpcstack.launch.stacks import RunningJob, name_account, parse_job
from hpcstack.slurm.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress, Say
    from hpcstack.launch.enter import EnterableRank
    from hpcstack.slurm.client import QueuedJob

LOOK_S, SELDOM_S = 2, 30  # between two looks at a job that has not started: at first, and later
KEPT_S = 30 * 86400  # a script for ssh is kept so long
COMPLETES_S = 20  # then a job that still completes is taken for one that goes on
SLOW_S = 60  # after so long without a page, its log is pointed at
LONGEST_LINE = 1000  # bytes of what names a page
LONGEST_SOCKET = 107  # bytes of a Unix socket's path (unix(7))
PAGE = re.compile(r"(jupyter|tensorboard) (/[A-Za-z0-9/?=]*)")
# What a session has set that a command of ssh's has not, as that reads no login files
OF_SESSION = (
    "PATH", "LD_LIBRARY_PATH", "SLURM_CONF", "HPCSTACK_SITE", "HPCSTACK_RECIPES", "XDG_STATE_HOME",
    "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME",
)  # fmt: skip
# In the container: waits for the page, prints what the browser has to ask for, and stays until its
# standard input ends.
READ = """\
folder={folder}
until [ -S "$folder/socket" ] && [ -f "$folder/page" ]; do sleep 0.3; done
cat "$folder/page"
exec cat >/dev/null"""


class _NobodyReadsError(Exception):
    """Nobody reads our standard output any more."""


@dataclass(frozen=True)
class OpenPage:
    """A page that can be reached now: what it is, and its address in a browser.

    The address begins at PORT of localhost, which is where the tunnel ends.
    """

    name: str
    port: int
    address: str


def find_socket(job: str) -> Path:
    """Return where the tunnel to JOB ends on this machine: a socket in a folder of the user's own.

    Raise InputError where its path is too long for a socket.
    """
    folder = make_private_folder(find_state_folder() / "tunnel", "set XDG_STATE_HOME to another")
    path = folder / job
    if len(os.fsencode(path)) > LONGEST_SOCKET:
        raise InputError(
            f"{path} is longer than the path of a socket may be ({LONGEST_SOCKET} bytes)",
            "set XDG_STATE_HOME to a folder with a shorter name",
            page="run-jupyter",
        )
    return path


def make_tunnel_line(
    job: str, port: int, command: Sequence[str], environ: Mapping[str, str]
) -> str:
    """Return what the user types on a machine of their own, to reach PORT there.

    COMMAND is `hpcstack tunnel JOB`, as this machine starts it. It is written into a script, with
    those variables of ENVIRON that a command of ssh's would lack.
    """
    socket = find_socket(job)
    script = socket.with_name(f"{job}.sh")
    kept = [f"export {name}={shlex.quote(environ[name])}" for name in OF_SESSION if name in environ]
    write_text(script, "\n".join([*kept, f"exec {shlex.join(command)}", ""]), 0o600)
    for old in socket.parent.glob("*.sh"):
        if time.time() - old.stat().st_mtime > KEPT_S:
            old.unlink(missing_ok=True)
    where = f"{getpass.getuser()}@{os.uname().nodename}"
    return shlex.join(["ssh", "-L", f"{port}:{socket}", where, "sh", str(script)])


def find_page_job(job: str) -> RunningJob:
    """Return the job that JOB means: by default the newest launch that serves a page.

    Its step is that which the launch has recorded; empty where it has not begun. Raise InputError
    where JOB is none, or is a launch that serves no page.
    """
    launches = read_launches()
    if job:
        asked = parse_job(job)
        named = (asked.job, f"{asked.job}.{asked.step}")
        known = [one for one in launches if one.job in named or one.number in named]
        if not known:
            return asked  # of another state folder, or of another machine's
        launches = iter(known)
    newest = next((one for one in launches if one.document.get("serves") in PAGES), None)
    if not newest:
        what = f"job {job} serves no page" if job else "no launch here serves a page"
        raise InputError(what, "hpcstack jupyter STACK", page="run-jupyter")
    return RunningJob(newest.number or newest.job, newest.step, f"{newest.stack}, {newest.started}")


def wait_for_rank(
    asked: RunningJob, runner: Runner, progress: Progress, *, for_reader: bool = False
) -> EnterableRank:
    """Return the first rank of the job that is ASKED for, once it has started.

    Raise SlurmError where the job has ended, or cannot be entered; InputError where it is another
    user's. FOR_READER ends this program, as Ctrl-C does, when nobody reads what it prints.
    """
    said = ""
    pause: float = LOOK_S
    since = time.monotonic()
    while True:
        queued = _look_at(asked.job, runner)
        if queued.state.word == "RUNNING":
            now = f"job {asked.job} starts"
            try:
                found = list_ranks(asked, runner)
            except SlurmError:  # its nodes may not be ready for a step yet
                if time.monotonic() - since > SLOW_S:
                    raise
                found = []
            if found:
                return min(found, key=lambda one: int(one.number))
        else:
            since = time.monotonic()
            why = "" if queued.reason in ("", "None") else f": {queued.reason}"
            now = f"job {asked.job} waits{why}"
        if now != said:
            progress(now)
            said, pause = now, LOOK_S
        if for_reader and _nobody_reads():
            raise KeyboardInterrupt
        time.sleep(pause)
        pause = min(pause * 1.2, SELDOM_S)


def _look_at(job: str, runner: Runner) -> QueuedJob:
    """Return JOB as it waits or runs.

    Raise SlurmError where it does neither, InputError where it is another user's.
    """
    queued = Client(runner).query_queue([job])
    if queued is None:
        raise SlurmError("squeue does not answer", "hpcstack doctor", page="run-jupyter")
    alive = [one for one in queued if not one.state.has_ended]
    if not alive:
        raise SlurmError(
            f"job {job} does not run any more",
            f"hpcstack logs {job}",
            page="run-jupyter",
        )
    if alive[0].user and alive[0].user != name_account(os.geteuid()):
        raise InputError(
            f"job {job} is {alive[0].user}'s", "squeue --me lists yours", page="run-jupyter"
        )
    return alive[0]


def hold_tunnel(
    asked: RunningJob,
    rank: EnterableRank,
    proxy: Sequence[str],
    port: int,
    runner: Runner,
    say: Say,
    on_open: Callable[[OpenPage], None],
) -> bool:
    """Keep a tunnel open to the page of the job that is ASKED for, which runs as RANK.

    It ends at the user's socket (`find_socket`), and at PORT of this machine's loopback address
    where that is not 0. ON_OPEN is called when the page answers. PROXY is the command that speaks
    SSH with the container.

    The tunnel ends with the job, and when nobody reads standard output any more: that is how an
    SSH session ends for a program that has no terminal. Return whether the job still runs, or may.
    Raise SlurmError where there is no way to the page, InputError where PORT is taken.
    """
    if port:
        _refuse_taken(port)
    socket = find_socket(asked.job)
    # sshd runs on the node, and the socket is in the container: that is reached by the root of a
    # process there, whatever namespaces it has.
    if not rank.served:
        raise SlurmError(
            f"rank {rank.number} of job {asked.job} serves no page",
            "hpcstack jobs",
            page="run-jupyter",
        )
    there = f"/proc/{rank.process}/root{rank.served}/socket"
    ends = {str(socket): there}
    if port:
        ends[f"127.0.0.1:{port}"] = there
    argv = [*make_ssh(asked, proxy, ends, runner), READ.format(folder=rank.served)]
    is_open = False
    before = _identify(socket)
    own = None  # the socket that is ours: another tunnel may have taken its place
    try:
        with runner.read(argv, held=True) as stream:
            found = _wait_for_page(stream, asked.job, port, say)
            if found:
                is_open, own = True, _identify(socket)
                on_open(found)
                while _read(stream, 1):
                    pass
    except _NobodyReadsError:
        return True
    except BuildError as error:
        lines = error.said if isinstance(error, ReadFailed) else (error.message,)
        why = "\n".join(f"  < {line}" for line in lines)
        if not is_open:
            raise SlurmError(
                f"there is no way to the page of job {asked.job}\n{why}",
                f"hpcstack logs {asked.job}",
                page="run-jupyter",
            ) from None
        say(f"the tunnel has ended\n{why}")
    finally:
        now = _identify(socket)
        # Before the page answered, ssh may have made its socket, or not.
        if now and now == (own or now) and now != before:
            socket.unlink(missing_ok=True)
    return _goes_on(asked.job, runner)


def _goes_on(job: str, runner: Runner) -> bool:
    """Whether JOB runs, waits, or nobody knows. While it completes, what follows is waited for."""
    until = time.monotonic() + COMPLETES_S
    while True:
        queued = Client(runner).query_queue([job])
        alive = [one for one in queued or () if not one.state.has_ended]
        if queued is not None and not alive:
            return False
        completes = any(one.state.word == "COMPLETING" for one in alive)
        if not completes or time.monotonic() > until:
            return True
        time.sleep(0.5)


def _identify(socket: Path) -> tuple[int, int] | None:
    """Return what tells SOCKET from another one of its name; None where there is none."""
    try:
        about = socket.lstat()
    except OSError:
        return None
    return about.st_ino, about.st_ctime_ns


def _refuse_taken(port: int) -> None:
    """Raise InputError where something listens on PORT of this machine's loopback address."""
    with socket_module.socket() as probe:
        probe.setsockopt(socket_module.SOL_SOCKET, socket_module.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InputError(
                f"--port {port}: {error.strerror}", "take another number", page="run-jupyter"
            ) from None


def make_ssh(
    asked: RunningJob, proxy: Sequence[str], ends: Mapping[str, str], runner: Runner
) -> list[str]:
    """Return the ssh that forwards ENDS into the job that is ASKED for; a command may follow.

    ENDS are {end here: end there}, each a socket's path or HOST:PORT. PROXY is the command that
    speaks SSH with the container.
    """
    keys = make_ssh_keys(asked.job, runner)
    # Several tunnels of one job may go to several steps of it.
    digest = hashlib.sha256(shlex.join(proxy).encode()).hexdigest()[:8]
    config = keys.folder / f"config-{digest}"
    write_text(config, render_ssh_config(asked.job, keys, proxy) + "\n", 0o600)
    options = {
        "BatchMode": "yes",
        "ExitOnForwardFailure": "yes",
        "LogLevel": "ERROR",
        "ServerAliveInterval": "30",
        "StreamLocalBindMask": "0177",
        "StreamLocalBindUnlink": "yes",
    }
    words = ["ssh", "-F", str(config)]
    words += [f"-o{name}={value}" for name, value in options.items()]
    for here, there in ends.items():
        words += ["-L", f"{here}:{there}"]
    return [*words, f"hpcstack-{asked.job}"]


def _wait_for_page(stream: IO[bytes], job: str, port: int, say: Say) -> OpenPage | None:
    """Return the page that the container names on STREAM; None where it ends without a word."""
    slow = f"it has not answered yet; what it says: hpcstack logs {job}"
    line = b""
    began = time.monotonic()
    while not line.endswith(b"\n") and len(line) < LONGEST_LINE:
        piece = _read(stream, 1, began + SLOW_S, lambda: say(slow))
        if not piece:
            return None
        line += piece

    found = PAGE.fullmatch(line.decode("ascii", "replace").strip())
    if not found or not line.endswith(b"\n"):
        raise BuildError("what it says is no page")
    about = PAGES[found[1]]
    at = port or about.port
    return OpenPage(about.name, at, f"http://localhost:{at}{found[2]}")


def _read(
    stream: IO[bytes],
    size: int,
    late: float = math.inf,
    when_late: Callable[[], None] = lambda: None,
) -> bytes:
    """Return at most SIZE bytes of STREAM once there are some; none at its end.

    WHEN_LATE is called once if there are none at the moment LATE. Raise _NobodyReadsError when our
    standard output is not read any more.
    """
    while True:
        ready, _, _ = select.select([stream], [], [], LOOK_S)
        if ready:
            return stream.read(size)
        if _nobody_reads():
            raise _NobodyReadsError
        if time.monotonic() > late:
            when_late()
            late = math.inf


def _nobody_reads() -> bool:
    """Whether nobody reads our standard output any more."""
    poll = select.poll()
    poll.register(1, 0)
    gone = select.POLLERR | select.POLLHUP | select.POLLNVAL
    return any(event & gone for _, event in poll.poll(0))
