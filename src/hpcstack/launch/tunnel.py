"""Reach the page that a job serves: `hpcstack tunnel`.

The page is on a Unix socket in a container on a compute node (launch/page.py). SSH goes there
through a step of the job, as `hpcstack enter --ssh` does, and forwards a socket of this machine's
to it: one that nobody but its user can open. An `ssh -L` from the user's own machine ends there. So
nothing listens on a network, and no key leaves the cluster.
"""

from __future__ import annotations

import contextlib
import getpass
import math
import os
import re
import select
import shlex
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from hpcstack.core.dirs import find_state_folder
from hpcstack.core.errors import BuildError, InputError, SlurmError
from hpcstack.core.files import make_private_folder, write_text
from hpcstack.launch.enter import list_ranks, make_ssh_keys, render_ssh_config
from hpcstack.launch.page import PAGES
from hpcstack.launch.request import Served
from hpcstack.slurm.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress, Say
    from hpcstack.launch.enter import EnterableRank
    from hpcstack.launch.stacks import RunningJob
    from hpcstack.slurm.client import QueuedJob

LOOK_S = 2  # between two looks at a job that has not started yet
SLOW_S = 60  # after so long without a page, its log is pointed at
LONGEST_LINE = 1000  # bytes of what names a page
LONGEST_SOCKET = 107  # bytes of a Unix socket's path (unix(7))
PAGE = re.compile(r"(jupyter|tensorboard) (/[A-Za-z0-9/?=]*)")
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


def make_tunnel_line(job: str, port: int, command: Sequence[str]) -> str:
    """Return what the user types on a machine of their own, to reach PORT there.

    COMMAND is `hpcstack tunnel JOB`, as this machine starts it.
    """
    where = f"{getpass.getuser()}@{os.uname().nodename}"
    words = ["ssh", "-L", f"{port}:{find_socket(job)}", where, shlex.join(command)]
    if not any(re.search(r"[^A-Za-z0-9_@%+=:,./-]", word) for word in command):
        words[-1:] = command  # the same to ssh, and easier to read
    return shlex.join(words)


def wait_for_ranks(asked: RunningJob, runner: Runner, progress: Progress) -> EnterableRank:
    """Return the first rank of the job that is ASKED for, once it has started.

    Raise SlurmError where the job has ended.
    """
    said = ""
    while True:
        queued = _look_at(asked.job, runner)
        if queued.state.word == "RUNNING":
            now = f"job {asked.job} starts"
            with contextlib.suppress(SlurmError):  # its nodes may not be ready for a step yet
                found = list_ranks(asked, runner)
                if found:
                    return min(found, key=lambda one: int(one.number))
        else:
            why = "" if queued.reason in ("", "None") else f": {queued.reason}"
            now = f"job {asked.job} waits{why}"
        if now != said:
            progress(now)
            said = now
        time.sleep(LOOK_S)


def _look_at(job: str, runner: Runner) -> QueuedJob:
    """Return JOB as it waits or runs. Raise SlurmError where it does neither."""
    queued = Client(runner).query_queue([job])
    if queued is None:
        raise SlurmError("squeue does not answer", "hpcstack doctor", page="run-jupyter")
    alive = [one for one in queued if one.state.word in ("PENDING", "CONFIGURING", "RUNNING")]
    if not alive:
        raise SlurmError(
            f"job {job} does not run any more",
            f"hpcstack logs {job}",
            page="run-jupyter",
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
    SSH session ends for a program that has no terminal. Return whether the job still runs. Raise
    SlurmError where there is no way to the page.
    """
    socket = find_socket(asked.job)
    folder = Served("").folder.replace("JOB", asked.job)
    # sshd runs on the node, and the socket is in the container: that is reached by the root of a
    # process there, whatever namespaces it has.
    there = f"/proc/{rank.process}/root{folder}/socket"
    ends = {str(socket): there}
    if port:
        ends[f"127.0.0.1:{port}"] = there
    argv = [*make_ssh(asked, proxy, ends, runner), READ.format(folder=folder)]
    is_open = False
    try:
        with runner.read(argv, held=True) as stream:
            found = _wait_for_page(stream, asked.job, port, say)
            if found:
                is_open = True
                on_open(found)
                while _read(stream, 1):
                    pass
    except _NobodyReadsError:
        return True
    except BuildError as error:
        if not is_open:
            raise SlurmError(
                f"there is no way to the page of job {asked.job}: {_last_line(error.message)}",
                f"hpcstack logs {asked.job}; if a port is in use, take another --port",
                page="run-jupyter",
            ) from None
    finally:
        socket.unlink(missing_ok=True)
    queued = Client(runner).query_queue([asked.job])
    return any(one.state.word == "RUNNING" for one in queued or ())


def make_ssh(
    asked: RunningJob, proxy: Sequence[str], ends: Mapping[str, str], runner: Runner
) -> list[str]:
    """Return the ssh that forwards ENDS into the job that is ASKED for; a command may follow.

    ENDS are {end here: end there}, each a socket's path or HOST:PORT. PROXY is the command that
    speaks SSH with the container.
    """
    keys = make_ssh_keys(asked.job, runner)
    config = keys.folder / "config"
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
        if _is_left():
            raise _NobodyReadsError
        if time.monotonic() > late:
            when_late()
            late = math.inf


def _is_left() -> bool:
    """Whether nobody reads our standard output any more."""
    poll = select.poll()
    poll.register(1, 0)
    gone = select.POLLERR | select.POLLHUP | select.POLLNVAL
    return any(event & gone for _, event in poll.poll(0))


def _last_line(message: str) -> str:
    return next((line for line in reversed(message.splitlines()) if line.strip()), "")
