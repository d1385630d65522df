"""What was launched: a folder a launch, with the script, the image, the lock, every variable and
where it came from.

It lies below the user's own state folder and holds no value that looks like a secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcstack import __version__
from hpcstack.core import data
from hpcstack.core.dirs import state_folder
from hpcstack.core.errors import InputError, format_count
from hpcstack.core.files import write_text
from hpcstack.core.names import STARTED_IN_IMAGE
from hpcstack.render.template import read_data_file
from hpcstack_smoke.hidden import HIDDEN, LOGIN, SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpcstack.launch.plan import Plan
    from hpcstack.launch.variables import Variable
    from hpcstack.store.artifact import Artifact

KEPT = 1000  # launches; older ones go
FILE, SCRIPT, BEGAN, ENDED = "launch.json", "script.sh", "began", "ended"
OUTPUT = "output"
INTERRUPTED = "interrupted"  # the second line of ENDED


@dataclass(frozen=True)
class Launch:
    """One past launch."""

    folder: Path
    stack: str
    started: str
    command: tuple[str, ...]
    runtime: str
    mode: str
    image_sha256: str
    job: str = ""
    step: str = ""
    nodes: str = ""
    status: int | None = None
    number: str = ""  # the job's own, which for a task of an array is another than NUMBER_TASK
    document: dict[str, Any] = field(default_factory=dict)
    output: str = ""  # where its job writes, as Slurm's pattern where it is an array
    tasks: dict[str, int | None] = field(
        default_factory=dict
    )  # of an array submitted as one: how each ended so far
    interrupted: bool = False  # its user has pressed Ctrl-C

    @property
    def is_array(self) -> bool:
        """Whether it was submitted as an array of jobs."""
        if "array" in self.document:
            return bool(self.document["array"])
        argv = self.document.get("argv", ())  # of an older hpcstack
        return any(word.startswith("--array=") for word in argv[: len(argv) - len(self.command)])

    @property
    def job_or_array(self) -> str:
        """Its job; of an array that was submitted as one the array, whichever task has begun last."""
        return self.job.partition("_")[0] if self.is_array else self.job

    @property
    def failed(self) -> bool:
        """Whether it is known to have failed: itself, or a task of it."""
        return bool(self.status) or any(self.tasks.values())


def begin_record(
    plan: Plan,
    artifact: Artifact,
    why: str,
    command: tuple[str, ...],
    settings: list[Variable],
    environ: Mapping[str, str],
    added: tuple[str, ...] = (),
    top: Path | None = None,
) -> Path:
    """A new folder for a launch, written whole before anything starts: below TOP, the user's own
    state by default.

    OSError where that cannot be written.
    """
    top = top or state_folder() / "launches"
    stamp = datetime.now(timezone.utc)
    folder = top / f"{stamp:%Y%m%dT%H%M%S.%f}Z-{uuid.uuid4().hex[:4]}"
    part = top / f".{folder.name}"
    part.mkdir(parents=True, mode=0o700)
    document = {
        "hpcstack": __version__,
        "stack": artifact.stack,
        "chosen": why,
        "started": stamp.isoformat(timespec="seconds"),
        "image": str(artifact.image),
        "image_sha256": artifact.sha256,
        "lock_sha256": artifact.lock_sha256,
        "base": artifact.base,
        "stand_in": artifact.stand_in,
        "adopted": artifact.adopted,
        "facts": artifact.facts,
        "pip": artifact.pip,
        "module": environ.get("HPCSTACK_RELEASE", ""),
        "runtime": plan.runtime,
        "runtime_reason": plan.reason,
        "mode": plan.mode,
        "ranks": plan.ranks,
        "with": list(added),
        "staged": plan.staged.how if plan.staged else "none",
        "command": list(command),
        "argv": list(plan.argv),
        "folder": str(Path.cwd()),
        "terminal": this_terminal(),
        "array": any(part.option == "--array" for part in plan.parts),
        "environment": [
            {**asdict(one), "value": HIDDEN if is_secret(one.name, one.value) else one.value}
            for one in settings
        ],
    }
    write_text(part / FILE, json.dumps(document, indent=1) + "\n", 0o600)
    part.rename(folder)
    _forget(top)
    return folder


def keep_prolog() -> str:
    """Where srun finds launchers/on-node/began.sh, which writes down which job a launch became: a
    copy in the user's own state folder. A job may begin after hpcstack was upgraded, when the
    folder it was launched from is no more.

    The installation's own file where the copy cannot be kept or run.
    """
    text = read_data_file("launchers", "on-node/began.sh")
    digest = hashlib.sha256(text.encode()).hexdigest()
    copy = state_folder() / "prologs" / f"began-{digest[:12]}.sh"
    if not copy.exists():
        with contextlib.suppress(OSError):
            write_text(copy, text, 0o700)
    installed = data.find_data_folder("launchers") / "on-node/began.sh"
    return next((str(path) for path in (copy, installed) if os.access(path, os.X_OK)), "")


def this_terminal() -> str:
    """The session that this program is in, a shell and its children, as no other of this machine
    ever is called.
    """
    session = os.getsid(0)
    try:
        since = (
            Path(f"/proc/{session}/stat").read_text().rpartition(")")[2].split()[19]
        )  # proc(5), starttime
    except (OSError, IndexError):
        since = ""
    return f"{os.uname().nodename}:{session}:{since}"


@contextlib.contextmanager
def write_scratch_script(text: str) -> Iterator[Path]:
    """A script as a file that goes again: what sbatch is asked about, and what is not launched, is
    not kept.
    """
    with tempfile.TemporaryDirectory(prefix="hpcstack-launch-") as folder:
        path = Path(folder) / SCRIPT
        write_text(path, text, 0o700)
        yield path


def is_secret(name: str, value: str) -> bool:
    """Whether a variable's value had better not be written down."""
    return bool(SECRET.search(name) or LOGIN.search(value))


def write_script(folder: Path, text: str) -> None:
    """The script of the launch of FOLDER."""
    write_text(folder / SCRIPT, text, 0o700)


def _forget(top: Path) -> None:
    for old in sorted(top.glob("2*"))[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def write_began(folder: Path, job: str, step: str = "", nodes: str = "") -> None:
    """Which job the launch of FOLDER became."""
    write_text(folder / BEGAN, f"{job}\n{step}\n{nodes}\n", 0o600)


def write_submitted(folder: Path, job: str) -> None:
    """The launch of FOLDER is in the queue as JOB.

    It may have begun already, and knows more then.
    """
    if not (folder / BEGAN).exists():
        with contextlib.suppress(OSError), (folder / BEGAN).open("x") as file:
            file.write(f"{job}\n\n\n")


def write_output_path(folder: Path, path: str) -> None:
    """Where the job of FOLDER writes."""
    with contextlib.suppress(OSError):
        write_text(folder / OUTPUT, f"{path}\n", 0o600)


def write_end(folder: Path, status: int, *, interrupted: bool = False) -> None:
    """How the launch of FOLDER ended; INTERRUPTED: because its user has pressed Ctrl-C."""
    with contextlib.suppress(OSError):
        write_text(folder / ENDED, f"{status}\n{INTERRUPTED if interrupted else ''}\n", 0o600)


MASTER = (
    "the first node's IPv4 address",
    "launchers/in-image/rendezvous.sh: neither you nor the image has set it",
)
MADE = {  # what is made on the nodes, by mode: (its value, why)
    "MASTER_ADDR": MASTER,
    "RANK": ("the rank's number", "torchrun's, DeepSpeed's, or SLURM_PROCID in mode task-per-gpu"),
    "LOCAL_RANK": (
        "its number on its node",
        "torchrun's, DeepSpeed's, or SLURM_LOCALID in mode task-per-gpu",
    ),
    "WORLD_SIZE": (
        "the number of ranks",
        "torchrun's, DeepSpeed's, or SLURM_STEP_NUM_TASKS in mode task-per-gpu",
    ),
    "LOCAL_WORLD_SIZE": (
        "ranks of a node",
        "torchrun's, DeepSpeed's, or made by launchers/in-image/task-per-gpu.sh",
    ),
}


def explain_made(variable: str, launch: Launch) -> dict[str, Any] | None:
    """What the launchers make of VARIABLE inside the container, where nobody else has set it; None
    for others.
    """
    if launch.mode not in STARTED_IN_IMAGE:
        return None
    found = MADE.get(variable)
    if variable == "MASTER_ADDR" and launch.nodes:
        found = f"the IPv4 address of the first node of {launch.nodes}", MASTER[1]
    elif variable == "MASTER_PORT":
        number, step = launch.number, launch.step
        port = (
            str(10000 + (int(number) * 31 + int(step)) % 20000)
            if number.isdigit() and step.isdigit()
            else "made of both"
        )
        found = port, "10000 + (job * 31 + step) % 20000, so that two steps of a job do not meet"
    elif variable == "OMP_NUM_THREADS":
        cpus = next(
            (
                word.partition("=")[2]
                for word in launch.document["argv"]
                if word.startswith("--cpus-per-task=")
            ),
            "",
        )
        ranks = int(launch.document.get("ranks", 1)) if launch.mode != "task-per-gpu" else 1
        threads = str(max(int(cpus) // ranks, 1)) if cpus.isdigit() else "1"
        found = (
            threads,
            f"the task's CPUs ({cpus or 'not said'}) over its {format_count(ranks, 'rank')}",
        )
    return (
        {"name": variable, "value": found[0], "origin": "hpcstack, on the nodes", "why": found[1]}
        if found
        else None
    )


def read_launches() -> list[Launch]:
    """All that are kept, the newest first; a folder that cannot be read is passed over."""
    top = state_folder() / "launches"
    found = []
    for folder in sorted(top.glob("2*"), reverse=True) if top.is_dir() else ():
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found.append(read_launch(folder))
    return found


def read_launch(folder: Path) -> Launch:
    document = json.loads((folder / FILE).read_text())
    job, step, nodes, number = [*_lines(folder / BEGAN), "", "", "", ""][:4]
    status = _status(folder / ENDED)
    output = _lines(folder / OUTPUT)
    return Launch(
        folder,
        document["stack"],
        document["started"],
        tuple(document["command"]),
        document["runtime"],
        document["mode"],
        document["image_sha256"],
        job,
        step,
        nodes,
        status,
        number or job,
        document,
        output[0] if output else "",
        _tasks(folder),
        interrupted=_lines(folder / ENDED)[1:2] == [INTERRUPTED],
    )


def _tasks(folder: Path) -> dict[str, int | None]:
    """{task of an array: the status that it ended with, or None}, as each has written it down."""
    began = {path.name.partition("-")[2]: None for path in folder.glob(f"{BEGAN}-*")}
    ended = {path.name.partition("-")[2]: _status(path) for path in folder.glob(f"{ENDED}-*")}
    return {**began, **ended}


def _status(path: Path) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def find_failed() -> Launch:
    """The launch that one most likely asks about: this terminal's newest, else the newest that
    failed, else the newest.

    InputError where there is none.
    """
    if os.environ.get("HPCSTACK_RUN"):
        return find_launch("")  # somebody asks from inside of one
    launches, here = read_launches(), this_terminal()
    of_this_terminal = (launch for launch in launches if launch.document.get("terminal") == here)
    failed = (launch for launch in launches if launch.failed)
    return next(of_this_terminal, None) or next(failed, None) or find_launch("")


def find_launch(what: str) -> Launch:
    """The launch that a job's number or a folder's name means; for nothing the newest.

    InputError for none.
    """
    own = os.environ.get("HPCSTACK_RUN", "")
    if not what and own and (Path(own) / FILE).is_file():
        return read_launch(Path(own))
    for launch in read_launches():
        array = launch.job.partition("_")[0]
        if what in ("", launch.job, array, launch.folder.name, f"{launch.job}.{launch.step}"):
            return launch
    raise InputError(
        f"no launch {what or 'is kept'} in {state_folder() / 'launches'}",
        "hpcstack jobs lists them",
    )


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
