"""A kernel of Jupyter's in a stack's image, for a Jupyter that runs outside it.

JupyterHub, Open OnDemand, VS Code and jupyter_client start a kernel by the command in its
kernel.json, which names a connection file: https://jupyter-client.readthedocs.io/en/stable/kernels.html
The command is `hpcstack kernel start`. On a node of a job, and without Slurm, the kernel runs on
the same machine, and is connected as the file says. Elsewhere it runs as a job of its own. There it
listens on sockets in a folder of its user's, and SSH forwards the ports of the file to them, as for
`hpcstack tunnel`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from hpcstack.core.dirs import find_data_home
from hpcstack.core.errors import HpcstackError, InputError, SlurmError
from hpcstack.core.files import read_text, write_text
from hpcstack.core.process import ReadFailed
from hpcstack.core.progress import Progress
from hpcstack.launch.exclusions import list_given
from hpcstack.launch.record import read_launch
from hpcstack.launch.request import Served
from hpcstack.launch.resources import Resources
from hpcstack.launch.stacks import RunningJob
from hpcstack.launch.tunnel import LOOK_S, make_ssh, wait_for_rank
from hpcstack.slurm.options import SlurmOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Say
    from hpcstack.launch.request import LaunchRequest
    from hpcstack.launch.run import PlannedLaunch

PACKAGE = "ipykernel"
COMMAND = ("python3", "-m", "ipykernel_launcher")
VARIABLE = "HPCSTACK_KERNEL_KEY"  # the connection file's text, key and all: never an argument
CHANNELS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
LARGEST = 1 << 16  # bytes of a connection file
TRIES = 20  # a second each: ports of a kernel that was restarted are free a moment later
HELD_S = 30  # a connection that held so long was one: after it, all tries are left again
WATCH_S = 2  # how often Jupyter, which has started this, is looked for
INTERRUPTED_SINCE = Version("6.2")  # of ipykernel: older ones know no interrupt by a message
OF_SITE = ("HPCSTACK_SITE", "HPCSTACK_RECIPES", "SLURM_CONF")
FILE = "{connection_file}"  # what Jupyter replaces in the words of a kernel.json


@dataclass(frozen=True)
class Connection:
    """How a kernel is talked to, as Jupyter's connection file says."""

    document: dict[str, Any]

    @property
    def is_by_files(self) -> bool:
        """Whether it is by Unix sockets instead of ports."""
        return self.document.get("transport") == "ipc"

    def list_ends(self) -> list[str]:
        """Return where Jupyter connects, one for each channel, as `ssh -L` writes it."""
        ip = str(self.document["ip"])
        if ":" in ip:
            ip = f"[{ip}]"
        separator = "-" if self.is_by_files else ":"
        return [f"{ip}{separator}{self.document[name]}" for name in CHANNELS]

    def with_sockets(self, folder: str) -> Connection:
        """Return the connection of the same kernel by sockets in FOLDER: kernel-1 and so on."""
        numbers = {name: number for number, name in enumerate(CHANNELS, 1)}
        return Connection(
            {**self.document, **numbers, "transport": "ipc", "ip": f"{folder}/kernel"}
        )


def read_connection(path: Path) -> Connection:
    """Return what the connection file PATH says. Raise InputError where it is none."""
    try:
        document = json.loads(read_text(path, LARGEST))
        Connection(document).list_ends()
        document["key"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is no connection file of Jupyter's: {error}",
            "Jupyter itself starts a kernel: hpcstack kernel install STACK",
            page="run-jupyter",
        ) from None
    return Connection(document)


# -- what Jupyter knows of the kernel


def find_kernels_folder(prefix: Path | None, environ: Mapping[str, str]) -> Path:
    """Return the folder in which Jupyter looks for kernels: below PREFIX, else the user's own."""
    if prefix:
        return prefix.absolute() / "share/jupyter/kernels"
    own = environ.get("JUPYTER_DATA_DIR")
    return (Path(own) if own else find_data_home(environ) / "jupyter") / "kernels"


def write_kernel(
    folder: Path, display_name: str, command: Sequence[str], environ: Mapping[str, str]
) -> Path:
    """Write FOLDER/kernel.json of a kernel that COMMAND starts, and return the file.

    Those variables of ENVIRON that name the site and its Slurm go with it: a hub's service has
    others. Raise InputError where a kernel of that name is there that hpcstack did not write.
    """
    path = folder / "kernel.json"
    if path.exists() and not _is_own(path):
        raise InputError(
            f"{path} is there, and not of hpcstack's", "--name ANOTHER", page="run-jupyter"
        )
    document = {
        "argv": [*command, "-f", FILE],
        "display_name": display_name,
        "language": "python",
        "env": {name: environ[name] for name in OF_SITE if name in environ},
        # By a message it reaches the kernel wherever that runs.
        "interrupt_mode": "message",
        "metadata": {"hpcstack": True},
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(document, indent=1) + "\n")
    return path


def _is_own(path: Path) -> bool:
    try:
        return bool(json.loads(read_text(path, LARGEST))["metadata"]["hpcstack"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


OF_NO_KERNEL = (
    "--grace",
    "--watchdog",
    "--spare",
    "--requeue-without",
    "--elastic",
    "--restarts",
)


def list_request_words(request: LaunchRequest) -> list[str]:
    """Return REQUEST as options of `hpcstack launch` that mean the same in any folder.

    Raise InputError for options that mean nothing for a kernel.
    """
    given = list_given(request)
    wrong = [option for option in OF_NO_KERNEL if option in given]
    if wrong:
        raise InputError(
            f"{', '.join(wrong)}: a kernel has no use for it", "leave it out", page="run-jupyter"
        )
    words = [word for part in request.resources.parts() for word in part.words]
    values = {
        "--runtime": [request.runtime] if request.runtime != "auto" else [],
        "--mount": request.mounts,
        "--with": [make_absolute(one) for one in request.packages],
        "--project": [str(request.project.absolute())] if request.project else [],
        "--stage": [request.stage] if request.stage else [],
        "--stage-in": [_make_source_absolute(one) for one in request.stage_in],
    }
    for option, several in values.items():
        for value in several:
            words += [option, value]
    flags = {"home": request.home, "slurm": request.slurm, "bind": None if request.bind else False}
    words += [f"--{name}" if on else f"--no-{name}" for name, on in flags.items() if on is not None]
    return words


def make_absolute(said: str) -> str:
    """Return SAID, a name or a file, so that the file is found from any folder."""
    path = Path(said)
    return str(path.absolute()) if path.is_file() else said


def _make_source_absolute(said: str) -> str:
    source, colon, target = said.partition(":")
    return f"{Path(source).absolute()}{colon}{target}" if source else said


def describe_old_ipykernel(packages: Mapping[str, str]) -> str:
    """Return what does not work with the ipykernel among an image's PACKAGES; empty for nothing."""
    version = packages.get(PACKAGE, "")
    try:
        if not version or Version(version) >= INTERRUPTED_SINCE:
            return ""
    except InvalidVersion:
        return f"whether a notebook's Interrupt works with ipykernel {version} is not known"
    return (
        f"the image's ipykernel {version} cannot be interrupted by a message: "
        f"Interrupt in a notebook needs {INTERRUPTED_SINCE} or newer"
    )


# -- its start


@dataclass(frozen=True)
class Place:
    """Where a kernel runs, seen from the Jupyter that asks for it.

    Without Slurm (not `by_slurm`) it is this machine. In a job it is this node, whose name is
    `node`; a shell that has an allocation and is on no node of it is elsewhere.
    """

    by_slurm: bool
    in_job: bool
    node: str

    @property
    def is_here(self) -> bool:
        return not self.by_slurm or bool(self.node)


def find_place(environ: Mapping[str, str], *, by_slurm: bool) -> Place:
    """Return where a kernel runs that is started with the variables ENVIRON."""
    job = environ.get("SLURM_JOB_ID", "")
    return Place(by_slurm, bool(job), environ.get("SLURMD_NODENAME", "") if job else "")


def with_kernel(
    request: LaunchRequest, connection: Connection, place: Place, environ: Mapping[str, str]
) -> tuple[LaunchRequest, Connection]:
    """Return (REQUEST for the kernel at PLACE, how it is connected inside).

    In a job it gets what the job has there, beside other kernels and programs.
    """
    # Both ends must know the folder before there is a job.
    served = Served("kernel", f"/tmp/hpcstack-kernel-{uuid.uuid4().hex[:12]}")
    request = replace(request, command=COMMAND, mode="plain", needs=(PACKAGE,), serves=served)
    if place.by_slurm and place.in_job:
        resources = Resources(
            nodes=1,
            ntasks=1,
            cpus_per_task=_count_job_cpus(environ) if place.node else 0,
            nodelist=place.node,
            extra=SlurmOptions.parse(["--overlap"]),
        )
        request = replace(request, resources=resources)

    if not place.is_here:
        return request, connection.with_sockets(served.folder)
    if connection.is_by_files:
        folder = str(Path(connection.document["ip"]).parent)
        request = replace(request, mounts=(*request.mounts, f"{folder}:{folder}"))
    return request, connection


def _count_job_cpus(environ: Mapping[str, str]) -> int:
    """Return the CPUs that the job with the variables ENVIRON has on each node; 0 where unknown.

    In a step, SLURM_CPUS_ON_NODE is that of the step. Where nodes differ, it is all that is known.
    """
    of_the_job = re.fullmatch(r"(\d+)(\(x\d+\))?", environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    here = environ.get("SLURM_CPUS_ON_NODE", "")
    if of_the_job:
        return int(of_the_job[1])
    return int(here) if here.isdigit() else 0


def run_kernel(
    launch: PlannedLaunch,
    outside: Connection,
    inside: Connection,
    proxy: Callable[[str], Sequence[str]],
    say: Say,
) -> tuple[int, str]:
    """Run the kernel of LAUNCH until it ends; return what `PlannedLaunch.run` does.

    OUTSIDE is how Jupyter talks to it, INSIDE how it is connected there. PROXY returns the command
    that speaks SSH with the container of a job. The kernel ends when the Jupyter that has started
    this program is gone, and when there is no way to it.
    """
    os.environ[VARIABLE] = json.dumps(inside.document)  # srun hands it on, as all that a user sets
    if not launch.runtime.uses_slurm:
        os.environ["HPCSTACK_KERNEL_OF"] = str(os.getpid())
    threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()

    def forward(folder: Path) -> None:
        arguments = (launch, folder, outside, inside, proxy, say)
        threading.Thread(target=_forward, args=arguments, daemon=True).start()

    # Jupyter kills a whole process group. What starts the kernel is in another one, and is told to
    # end when this program is gone: killed itself, srun would leave its job behind.
    return launch.run(None if inside is outside else forward, apart=True)


def _watch_parent(parent: int) -> None:
    """End this program when it has another parent than PARENT."""
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os.kill(os.getpid(), signal.SIGTERM)


def _forward(
    launch: PlannedLaunch,
    folder: Path,
    outside: Connection,
    inside: Connection,
    proxy: Callable[[str], Sequence[str]],
    say: Say,
) -> None:
    """Forward the ends of OUTSIDE to those of INSIDE, once the launch of FOLDER has its job.

    It goes on until the kernel has ended: then this program ends, and with it this thread. Where
    there is no way to the kernel, this program is ended.
    """
    try:
        begun = read_launch(folder)
        while not begun.step:
            time.sleep(LOOK_S)
            begun = read_launch(folder)
        asked = RunningJob(begun.number, begun.step, "the kernel")
        rank = wait_for_rank(asked, launch.runner, Progress())
        ends = {
            end: f"/proc/{rank.process}/root{there}"
            for end, there in zip(outside.list_ends(), inside.list_ends(), strict=True)
        }
        argv = make_ssh(asked, proxy(f"{asked.job}.{asked.step}"), ends, launch.runner)
        # Nothing runs in the container for it: that would hold up the container's end.
        argv.insert(-1, "-N")
        _keep_connected(argv, launch.runner)
    except (HpcstackError, OSError, ValueError, KeyError) as error:
        why = error.message if isinstance(error, HpcstackError) else str(error)
        say(f"the kernel cannot be reached: {why}")
    os.kill(os.getpid(), signal.SIGTERM)


def _keep_connected(argv: Sequence[str], runner: Runner) -> None:
    """Run ARGV, an ssh, again and again. Raise SlurmError when it has failed TRIES times at once."""
    tries = TRIES
    while True:
        began = time.monotonic()
        said: tuple[str, ...] = ()
        try:
            with runner.read(argv, held=True) as stream:
                stream.read(1)  # comes when the connection ends
        except ReadFailed as error:
            said = error.said
        tries = TRIES if time.monotonic() - began > HELD_S else tries - 1
        if not tries:
            raise SlurmError(" ".join(said) or "the connection ends at once", page="run-jupyter")
        time.sleep(1)
