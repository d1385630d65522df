"""A kernel of Jupyter's in a stack's image, for a Jupyter that runs outside it.

JupyterHub, Open OnDemand, VS Code and jupyter_client start a kernel by the command in its
kernel.json, which names a connection file: https://jupyter-client.readthedocs.io/en/stable/kernels.html
The command is `hpcstack kernel start`. On a node of a job, and without Slurm, the kernel runs on
the same machine, and is connected as the file says. Elsewhere it runs as a job of its own. There it
listens on sockets in a folder of its user's, and SSH forwards the ports of the file to them, as for
`hpcstack tunnel`.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import BuildError, HpcstackError, InputError
from hpcstack.core.files import read_text, write_text
from hpcstack.core.progress import Progress
from hpcstack.launch.record import read_launch
from hpcstack.launch.request import Served
from hpcstack.launch.resources import Resources
from hpcstack.launch.stacks import RunningJob
from hpcstack.launch.tunnel import LOOK_S, make_ssh, wait_for_ranks
from hpcstack.slurm.options import SlurmOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hpcstack.core.progress import Say
    from hpcstack.launch.request import LaunchRequest
    from hpcstack.launch.run import PlannedLaunch

PACKAGE = "ipykernel"
COMMAND = ("python3", "-m", "ipykernel_launcher")
VARIABLE = "HPCSTACK_KERNEL_KEY"  # the connection file's text, key and all: never an argument
CHANNELS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
LARGEST = 1 << 16  # bytes of a connection file
TRIES = 20  # a second each: ports of a kernel that was restarted are free a moment later
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
    return (Path(own) if own else Path.home() / ".local/share/jupyter") / "kernels"


def write_kernel(folder: Path, display_name: str, command: Sequence[str]) -> Path:
    """Write FOLDER/kernel.json of a kernel that COMMAND starts, and return the file.

    Raise InputError where a kernel of that name is there that hpcstack did not write.
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


def list_request_words(request: LaunchRequest) -> list[str]:
    """Return REQUEST as options of `hpcstack launch` that mean the same in any folder."""
    words = [word for part in request.resources.parts() for word in part.words]
    values = {
        "--runtime": [request.runtime] if request.runtime != "auto" else [],
        "--mount": request.mounts,
        "--with": [_make_absolute(one) for one in request.packages],
        "--project": [str(request.project.absolute())] if request.project else [],
        "--stage": [request.stage] if request.stage else [],
        "--stage-in": request.stage_in,
    }
    for option, several in values.items():
        for value in several:
            words += [option, value]
    flags = {"home": request.home, "slurm": request.slurm, "bind": None if request.bind else False}
    words += [f"--{name}" if on else f"--no-{name}" for name, on in flags.items() if on is not None]
    return words


def _make_absolute(package: str) -> str:
    """Return PACKAGE, a value of --with, so that a file of requirements is found from anywhere."""
    path = Path(package)
    return str(path.absolute()) if path.is_file() else package


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
    served = Served("kernel", f"/tmp/hpcstack-kernel-{uuid.uuid4().hex[:12]}")
    request = replace(request, command=COMMAND, mode="plain", needs=(PACKAGE,), serves=served)
    if place.by_slurm and place.in_job:
        cpus = environ.get("SLURM_CPUS_ON_NODE", "")
        resources = Resources(
            nodes=1,
            ntasks=1,
            cpus_per_task=int(cpus) if cpus.isdigit() and place.node else 0,
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


def run_kernel(
    launch: PlannedLaunch,
    outside: Connection,
    inside: Connection,
    proxy: Callable[[str], Sequence[str]],
    say: Say,
) -> tuple[int, str]:
    """Run the kernel of LAUNCH until it ends; return what `PlannedLaunch.run` does.

    OUTSIDE is how Jupyter talks to it, INSIDE how it is connected there. PROXY returns the command
    that speaks SSH with the container of a job.
    """
    os.environ[VARIABLE] = json.dumps(inside.document)  # srun hands it on, as all that a user sets
    if inside is outside:
        return launch.run()

    def forward(folder: Path) -> None:
        arguments = (launch, folder, outside, inside, proxy, say)
        threading.Thread(target=_forward, args=arguments, daemon=True).start()

    return launch.run(forward)


def _forward(
    launch: PlannedLaunch,
    folder: Path,
    outside: Connection,
    inside: Connection,
    proxy: Callable[[str], Sequence[str]],
    say: Say,
) -> None:
    """Forward the ends of OUTSIDE to those of INSIDE, once the launch of FOLDER has its job.

    It goes on until the kernel has ended: then this program ends, and with it this thread.
    """
    runner = launch.runner
    begun = read_launch(folder)
    while not begun.step:
        time.sleep(LOOK_S)
        begun = read_launch(folder)

    asked = RunningJob(begun.number, begun.step, "the kernel")
    try:
        rank = wait_for_ranks(asked, runner, Progress())
        ends = {
            end: f"/proc/{rank.process}/root{there}"
            for end, there in zip(outside.list_ends(), inside.list_ends(), strict=True)
        }
        argv = make_ssh(asked, proxy(f"{asked.job}.{asked.step}"), ends, runner)
        # Nothing runs in the container for it: that would hold up the container's end.
        argv.insert(-1, "-N")
        for _ in range(TRIES):
            with contextlib.suppress(BuildError), runner.read(argv, held=True) as stream:
                stream.read(1)  # comes when the connection ends
            time.sleep(1)
    except HpcstackError as error:
        say(f"the kernel cannot be reached: {error.message}")
