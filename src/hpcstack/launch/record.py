"""The record of launches: a folder for each, below the user's state folder.

It holds the script, the image, the lock's digest, every variable with its origin, and later how the
launch ended. Values that look like secrets are left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import uuid
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcstack import __version__
from hpcstack.core import data
from hpcstack.core.dirs import find_state_folder
from hpcstack.core.errors import InputError, format_count
from hpcstack.core.files import write_text
from hpcstack.core.names import ADDED, STARTED_IN_IMAGE
from hpcstack.launch.secrets import is_secret
from hpcstack.render.template import read_data_file
from hpcstack.slurm.job_id import parse_job_id
from hpcstack.slurm.state import MEANINGS, UNKNOWN, JobState, state_of_status
from hpcstack_smoke.hidden import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hpcstack.launch.plan import Plan
    from hpcstack.launch.variables import Variable
    from hpcstack.store.artifact import Artifact

KEPT = 1000  # launches; the oldest beyond them are removed
# The files of a launch's folder. Tasks of an array write BEGAN-TASK and ENDED-TASK.
FILE, SCRIPT, BEGAN, ENDED = "launch.json", "script.sh", "began", "ended"
OUTPUT = "output"  # where its job writes
BY_CTRL_C = "Ctrl-C"  # who has cancelled a launch that its user has interrupted


@dataclass(frozen=True)
class Launch:
    """One past launch, as its folder tells. What is not known yet is empty or None.

    `job` is NUMBER or, for a task of an array, NUMBER_TASK; `number` is the number of that job
    alone, which Slurm gives to each task of an array. `output` is where the job writes; for an
    array it is Slurm's pattern. `state` is how it ended, `tasks` are those of an array that was
    submitted as one, each with its end.
    """

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
    state: JobState = UNKNOWN
    number: str = ""
    document: dict[str, Any] = field(default_factory=dict)
    output: str = ""
    tasks: dict[str, JobState] = field(default_factory=dict)

    @property
    def is_array(self) -> bool:
        """Whether it was submitted as an array of jobs."""
        if "array" in self.document:
            return bool(self.document["array"])
        # An older hpcstack wrote no "array": look among the options, before the user's command.
        argv = self.document.get("argv", ())
        return any(word.startswith("--array=") for word in argv[: len(argv) - len(self.command)])

    @property
    def is_inside_a_job(self) -> bool:
        """Whether it is a step of a job that was there before, and may go on after it."""
        return bool(self.document.get("allocation"))

    @property
    def job_or_array(self) -> str:
        """Its job; the array's number where it was submitted as an array.

        `job` then names the task that began last.
        """
        if self.is_array:
            return self.job.partition("_")[0]
        return self.job

    @property
    def failed(self) -> bool:
        """Whether the launch or one of its tasks is known to have failed."""
        return self.state.has_failed or any(state.has_failed for state in self.tasks.values())


def begin_record(
    plan: Plan,
    artifact: Artifact,
    why: str,
    settings: list[Variable],
    environ: Mapping[str, str],
    added: tuple[str, ...] = (),
    top: Path | None = None,
    *,
    allocation: str = "",
) -> Path:
    """Make the folder of a new launch, before anything starts, and return it.

    It is made below TOP, by default the user's state folder, and appears there by one rename. WHY
    says why the image was chosen, ADDED are the packages of --with. SETTINGS are all variables that
    a rank starts with, ENVIRON is this program's environment. ALLOCATION is the job that it becomes a
    step of; empty where it is a job of its own. The oldest launches beyond KEPT are
    removed. Raise OSError where the folder cannot be written.
    """
    variables = []
    for one in settings:
        value = HIDDEN if is_secret(one.name, one.value) else one.value
        variables.append({**asdict(one), "value": value})

    document = {
        "hpcstack": __version__,
        "stack": artifact.stack,
        "chosen": why,
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
        "command": list(plan.request.command),
        "argv": list(plan.argv),
        "folder": str(Path.cwd()),
        "serves": plan.request.serves.kind if plan.request.serves else "",
        "allocation": allocation,
        "batch": plan.request.batch,
        "array": any(part.option == "--array" for part in plan.parts),
        "environment": variables,
    }

    return _make_folder(document, top or find_state_folder() / "launches")


def begin_again(launch: Launch, array: str) -> Path:
    """Make the folder of a launch that runs the script of LAUNCH once more, and return it.

    ARRAY is its option --array, which wins over the script's; empty for a single job.
    """
    document = {**launch.document, "again": launch.job_or_array, "array_option": array}
    text = (launch.folder / SCRIPT).read_text()
    return _make_folder(document, find_state_folder() / "launches", text)


def _make_folder(document: dict[str, Any], top: Path, script: str = "") -> Path:
    """Make a launch's folder below TOP, with DOCUMENT and its SCRIPT, and return it."""
    stamp = datetime.now(timezone.utc)
    terminal = find_this_terminal()
    folder = top / f"{stamp:%Y%m%dT%H%M%S.%f}Z-{digest_of_terminal(terminal)}{uuid.uuid4().hex[:4]}"
    part = top / f".{folder.name}"
    part.mkdir(parents=True, mode=0o700)
    started = {"started": stamp.isoformat(timespec="seconds"), "terminal": terminal}
    write_text(part / FILE, json.dumps({**document, **started}, indent=1) + "\n", 0o600)
    if script:
        write_script(part, script)
    part.rename(folder)
    _remove_oldest(top)
    return folder


def digest_of_terminal(terminal: str) -> str:
    """Return what names of launches have of their TERMINAL, so that its own are found by a listing."""
    return hashlib.sha256(terminal.encode()).hexdigest()[:4]


def keep_prolog() -> str:
    """Return a path of launchers/on-node/began.sh that srun can run; empty where there is none.

    The script records which job a launch became. It is copied into the user's state folder: a job
    may begin after hpcstack was upgraded, when the folder that it was launched from is gone. Where
    the copy cannot be kept or run, the path is that of the installed file.
    """
    text = read_data_file("launchers", "on-node/began.sh")
    digest = hashlib.sha256(text.encode()).hexdigest()
    copy = find_state_folder() / "prologs" / f"began-{digest[:12]}.sh"
    if not copy.exists():
        with contextlib.suppress(OSError):
            write_text(copy, text, 0o700)

    installed = data.find_data_folder("launchers") / "on-node/began.sh"
    for path in (copy, installed):
        if os.access(path, os.X_OK):
            return str(path)
    return ""


def find_this_terminal() -> str:
    """Return a name for the session that this program is in: HOST:SESSION:START.

    A session is a shell and its children. START, the clock tick at which its leader started, tells
    it from an earlier session of the same number.
    """
    session = os.getsid(0)
    try:
        stat = Path(f"/proc/{session}/stat").read_text()
        # proc(5): starttime is field 22. The second field, the name in brackets, may hold spaces.
        since = stat.rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        since = ""
    return f"{os.uname().nodename}:{session}:{since}"


@contextlib.contextmanager
def write_scratch_script(text: str) -> Iterator[Path]:
    """Write TEXT to a temporary script, and remove it at the end of the block.

    It is for a question to sbatch: what is not launched is not recorded.
    """
    with tempfile.TemporaryDirectory(prefix="hpcstack-launch-") as folder:
        path = Path(folder) / SCRIPT
        write_text(path, text, 0o700)
        yield path


def write_script(folder: Path, text: str) -> None:
    """Write TEXT as the script of the launch in FOLDER."""
    write_text(folder / SCRIPT, text, 0o700)


def _remove_oldest(top: Path) -> None:
    """Remove the launches in TOP but for the newest KEPT; their names sort by time."""
    for old in sorted(top.glob("2*"))[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def write_submitted(folder: Path, job: str) -> None:
    """Record that the launch in FOLDER is in the queue as JOB.

    A job that has begun already has recorded itself, with its step and nodes; that record stays.
    """
    if not (folder / BEGAN).exists():
        with contextlib.suppress(OSError), (folder / BEGAN).open("x") as file:
            file.write(f"{job}\n\n\n")


def write_output_path(folder: Path, path: str) -> None:
    """Record the PATH that the job of FOLDER writes to; a full disk is no failure here."""
    with contextlib.suppress(OSError):
        write_text(folder / OUTPUT, f"{path}\n", 0o600)


def name_output(pattern: str, name: str, job: str, *, is_array: bool) -> str:
    """Return the file that JOB, called NAME, writes to, with PATTERN filled in as Slurm does.

    %x, %A and %j are filled in (https://slurm.schedmd.com/sbatch.html, filename pattern); other signs
    stay. Of an array, %j is the task's own job, which is not known yet.
    """
    values = {"%x": name, "%A": job}
    if not is_array:
        values["%j"] = job
    for sign, value in values.items():
        pattern = pattern.replace(sign, value)
    return pattern


def write_end(folder: Path, state: JobState) -> None:
    """Record that the launch in FOLDER ended in STATE; a full disk is no failure here."""
    text = f"{state.exit}\n{state.word}\n{state.cancelled_by}\n"
    with contextlib.suppress(OSError):
        write_text(folder / ENDED, text, 0o600)


MASTER = (
    "the first node's IPv4 address",
    "launchers/in-image/rendezvous.sh: neither you nor the image has set it",
)
MADE = {  # variables that the launchers set inside the container: (the value in words, who sets it)
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
    """Return what the launchers set VARIABLE to inside the container, where nobody else has set it.

    None for a variable that they do not set, and for a mode that starts no ranks in the image.
    """
    if launch.mode not in STARTED_IN_IMAGE:
        return None
    found = MADE.get(variable)
    if variable == "MASTER_ADDR" and launch.nodes:
        found = f"the IPv4 address of the first node of {launch.nodes}", MASTER[1]
    elif variable == "MASTER_PORT":
        found = _explain_port(launch)
    elif variable == "OMP_NUM_THREADS":
        found = _explain_threads(launch)
    if not found:
        return None
    value, why = found
    return {"name": variable, "value": value, "origin": "hpcstack, on the nodes", "why": why}


# Where packages are added (project/added.py), these variables get a folder: one is put before what is
# there, the other behind it, as Python does for a virtual environment
OF_THE_ADDED = {"PATH": f"{ADDED}/bin", "PYTHONPATH": f"{ADDED}/lib/python3*/site-packages"}


def explain_added(
    variable: str, launch: Launch, row: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Return what LAUNCH has set VARIABLE to inside the container, by ROW as recorded and by what is
    added to the image; ROW itself where nothing is.
    """
    if variable not in OF_THE_ADDED or not launch.document.get("with"):
        return row
    folders = [row["value"] if row else "the image's"]
    whose = row["origin"] if row else "the image"
    where = "before"
    if variable == "PYTHONPATH":
        where = "behind"
    folders.insert(0 if where == "before" else 1, OF_THE_ADDED[variable])
    return {
        "name": variable,
        "value": ":".join(folders),
        "origin": "hpcstack, on the nodes",
        "why": f"--with and --project put what they add {where} what {whose} says",
    }


def _explain_port(launch: Launch) -> tuple[str, str]:
    """Return (MASTER_PORT of LAUNCH, why), as launchers/in-image/rendezvous.sh computes it."""
    port = "made of both"
    if launch.number.isdigit() and launch.step.isdigit():
        port = str(10000 + (int(launch.number) * 31 + int(launch.step)) % 20000)
    return port, "10000 + (job * 31 + step) % 20000, so that two steps of a job do not meet"


def _explain_threads(launch: Launch) -> tuple[str, str]:
    """Return (OMP_NUM_THREADS of a rank of LAUNCH, why): its part of the task's CPUs."""
    option = "--cpus-per-task="
    given = [word for word in launch.document["argv"] if word.startswith(option)]
    cpus = given[0].removeprefix(option) if given else ""
    ranks = 1
    if launch.mode != "task-per-gpu":
        ranks = int(launch.document.get("ranks", 1))
    threads = max(int(cpus) // ranks, 1) if cpus.isdigit() else 1
    why = f"the task's CPUs ({cpus or 'not said'}) over its {format_count(ranks, 'rank')}"
    return str(threads), why


def read_launches() -> Iterator[Launch]:
    """Yield the launches that are kept, the newest first, without folders that cannot be read.

    Each is read when it is asked for: a home may be slow, and hold a thousand.
    """
    return _read_folders(_list_folders())


def read_launches_of(what: str) -> Iterator[Launch]:
    """Yield the launches of the job, the array or the folder that WHAT names, the newest first.

    Of WHAT, which may also name a step or a task, the job's number counts. Of other launches only
    their job is read.
    """
    named = parse_job_id(what)
    job = named.job if named else what
    return _read_folders(
        folder
        for folder in _list_folders()
        if what == folder.name or job == re.split("[_+]", _read_began(folder)[0])[0]
    )


def _list_folders() -> list[Path]:
    """Return the folders of all launches, the newest first: their names sort by time."""
    return sorted((find_state_folder() / "launches").glob("2*"), reverse=True)


def _read_folders(folders: Iterable[Path]) -> Iterator[Launch]:
    """Yield the launches that FOLDERS record, without those that cannot be read."""
    for folder in folders:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            yield read_launch(folder)


def read_launch(folder: Path) -> Launch:
    """Return the launch that FOLDER records.

    Raise OSError, ValueError, KeyError or TypeError where the folder is not a launch's, or is torn.
    """
    document = json.loads((folder / FILE).read_text())
    job, step, nodes, number = _read_began(folder)
    state = _read_end(folder / ENDED)
    output = _read_lines(folder / OUTPUT)

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
        state,
        number or job,
        document,
        output[0] if output else "",
        _read_tasks(folder),
    )


def _read_began(folder: Path) -> tuple[str, str, str, str]:
    """Return (job, step, nodes, number of the job alone) of the launch in FOLDER.

    They are empty for one that has not begun.
    """
    job, step, nodes, number = [*_read_lines(folder / BEGAN), "", "", "", ""][:4]
    return job, step, nodes, number


def _read_tasks(folder: Path) -> dict[str, JobState]:
    """Return {task of an array: how it ended, UNKNOWN until then}, as each has recorded it."""
    began = {path.name.partition("-")[2]: UNKNOWN for path in folder.glob(f"{BEGAN}-*")}
    ended = {path.name.partition("-")[2]: _read_end(path) for path in folder.glob(f"{ENDED}-*")}
    return {**began, **ended}


def _read_end(path: Path) -> JobState:
    """Return the end that PATH records; UNKNOWN where it records none.

    Its lines are the exit status, the state in Slurm's word, and who has cancelled it. A launch that
    did not start has the status alone.
    """
    status, word, by = [*_read_lines(path), "", "", ""][:3]
    if not status.isdigit():
        return UNKNOWN
    if word not in MEANINGS:
        return state_of_status(int(status))
    return JobState(word, int(status), by)


def find_failed() -> Launch:
    """Return the launch that a user who names none most likely asks about.

    That is the newest of this terminal, else the newest that failed, else the newest of all; inside
    a launch it is that one. Raise InputError where there is none.
    """
    if os.environ.get("HPCSTACK_RUN"):
        return find_launch("")
    failed = (launch for launch in read_launches() if launch.failed)
    return _find_of_this_terminal() or next(failed, None) or find_launch("")


def find_launch(what: str) -> Launch:
    """Return the newest launch that WHAT means.

    WHAT is the number of a job, NUMBER_TASK, NUMBER.STEP or the name of a launch's folder. An empty
    WHAT means the launch that this program runs in, else the newest of this terminal, else the newest
    of all. Raise InputError where there is none.
    """
    own = os.environ.get("HPCSTACK_RUN", "")
    if not what and own and (Path(own) / FILE).is_file():
        return read_launch(Path(own))
    found: Launch | None
    if what:
        found = next(filter(partial(_is_meant, what), read_launches_of(what)), None)
    else:
        found = _find_of_this_terminal() or next(read_launches(), None)
    if found:
        return found
    raise InputError(
        f"no launch {what or 'is kept'} in {find_state_folder() / 'launches'}",
        "hpcstack jobs lists them",
        page="see-what-a-launch-did",
    )


def _is_meant(what: str, launch: Launch) -> bool:
    """Whether WHAT means LAUNCH: as its job, its array, its step or its folder."""
    array = launch.job.partition("_")[0]
    return what in (launch.job, array, launch.folder.name, f"{launch.job}.{launch.step}")


def _find_of_this_terminal() -> Launch | None:
    """Return the newest launch that was made in this terminal; None where none was."""
    here = find_this_terminal()
    digest = digest_of_terminal(here)
    folders = (one for one in _list_folders() if one.name.rpartition("-")[2].startswith(digest))
    launches = _read_folders(folders)
    return next((one for one in launches if one.document.get("terminal") == here), None)


def _read_lines(path: Path) -> list[str]:
    """Return the lines of PATH; none where it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
