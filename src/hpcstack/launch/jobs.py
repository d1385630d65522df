"""Slurm's jobs: where they write, how they ended, task by task.

Slurm forgets a job some minutes after its end (MinJobAge), and not every site has accounting. So
three sources are put together: what Slurm says now, what was written down of our own launches, and
what accounting remembers of the script.
"""

from __future__ import annotations

import contextlib
import glob
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, SlurmError
from hpcstack.launch import stderr
from hpcstack.launch.record import Launch, read_launches
from hpcstack.slurm.options import OPTIONS, Value
from hpcstack.slurm.state import UNKNOWN, JobState, read_state, state_of_status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hpcstack.core.process import Completed, Runner

FIELD = re.compile(r"(?:^| )([A-Z][A-Za-z]+)=(\S*)")
JUST_STARTED = re.compile(
    r"00:00:\d\d"
)  # RunTime: the file is made by the node, and seen here later
# https://slurm.schedmd.com/sbatch.html, --output
DEFAULT_OUTPUT, DEFAULT_ARRAY_OUTPUT = "slurm-%j.out", "slurm-%A_%a.out"
MOST_OF_A_SCRIPT = 1 << 20
# sbatch's short options that take no value: https://slurm.schedmd.com/sbatch.html
SHORT_FLAGS = "HIOQVWhksv"


class NotStarted(InputError):
    """A job that waits in the queue, or has come out of it within the minute, has written nothing
    yet.
    """


@dataclass(frozen=True)
class JobPart:
    """A job, or one task of an array: 7 or 7_3.

    Its state and why it waits, if it does; the files that it writes to, and whether it has only
    just started. What nobody knows is empty.
    """

    job: str
    state: JobState = UNKNOWN
    reason: str = ""
    files: tuple[Path, ...] = ()
    just_started: bool = False

    @property
    def task(self) -> str:
        """The number of an array's task; empty for a job that is none."""
        return self.job.partition("_")[2]

    @property
    def count(self) -> int:
        """How many tasks it is: those that wait are one record, 7_5-99%2."""
        return count_tasks(self.task) if self.task else 1

    @property
    def logs(self) -> tuple[Path, ...]:
        """Those of its files that are there."""
        return tuple(path for path in self.files if path.is_file())


def parts_of(job: str, runner: Runner) -> list[JobPart]:
    """What is known of JOB: itself, or each task of the array that it is; none where nobody knows
    it.

    SlurmError where Slurm does not answer, and nothing was written down of it.
    """
    if not re.match(r"\d", job):
        return _in_order(_recorded(job, {}))
    remembered = query_accounting(job, runner)
    recorded = _recorded(job, remembered)
    found = _accounted(remembered)
    for source in (recorded, _slurm_now(job, runner, known=bool(recorded))):
        for part in source:
            found[part.job] = _joined(found.get(part.job), part)
    if "_" not in job and any(part.task for part in found.values()):
        found.pop(job, None)
    return _in_order(found.values())


def count_tasks(said: str) -> int:
    """How many tasks Slurm means by 5, 1-9:2 or 1-3,7%2. https://slurm.schedmd.com/sbatch.html,
    --array.
    """
    count = 0
    for piece in said.strip("[]").partition("%")[0].split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", piece)
        if found:
            first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
            count += max(0, (last - first) // max(step, 1) + 1)
    return max(count, 1)


def _joined(known: JobPart | None, newer: JobPart) -> JobPart:
    """What two sources say of one part; what NEWER says counts."""
    if not known:
        return newer
    files = newer.logs or known.logs or newer.files or known.files
    state = newer.state if newer.state.is_known else known.state
    return replace(newer, state=state, files=files)


def _in_order(parts: Iterable[JobPart]) -> list[JobPart]:
    def number(part: JobPart) -> tuple[int, str]:
        return (int(part.task), "") if part.task.isdigit() else (-1, part.task)

    return sorted(parts, key=number)


def logs_of(job: str, runner: Runner) -> list[Path]:
    """The files that JOB's output went to.

    InputError where nobody knows the job, or it has none.
    """
    parts = parts_of(job, runner)
    if not parts and not re.match(r"\d", job):
        raise InputError(f"{job!r} is not the number of a job", "hpcstack jobs lists yours")
    if not parts:
        raise InputError(
            f"Slurm no longer knows job {job}", "name the log itself: hpcstack explain FILE"
        )
    if logs := [path for part in parts for path in part.logs]:
        return list(dict.fromkeys(logs))
    where = ", ".join(dict.fromkeys(str(path) for part in parts for path in part.files))
    if waits := next((part for part in parts if part.state.waits), None):
        said = (
            f"job {job} has not started yet ({waits.reason}); it will write to "
            f"{where or 'a terminal'}"
        )
        raise NotStarted(said, f"squeue --jobs {job}")
    if where and any(part.just_started for part in parts):
        said = (
            f"job {job} has only just started and has written nothing yet; it will write to {where}"
        )
        raise NotStarted(said, f"hpcstack logs {job}, in a moment")
    raise InputError(
        f"job {job} wrote to no file that exists: {where or 'it ran on a terminal'}",
        "name the log itself: hpcstack explain FILE",
    )


# -- what Slurm says now


def _slurm_now(job: str, runner: Runner, *, known: bool) -> list[JobPart]:
    """Each record of JOB that slurmctld still has.

    SlurmError where it does not answer, and JOB is not KNOWN otherwise.
    """
    if not runner.has("scontrol"):
        return []
    done = runner.output(["scontrol", "--oneliner", "show", "job", job])
    if done.status and "Invalid job id" not in " ".join(done.tail) and not known:
        raise SlurmError(f"scontrol does not answer: {' '.join(done.tail[-1:])}", "try again")
    return [
        part
        for line in done.stdout.splitlines()
        if not done.status and (part := parse_job_record(line))
    ]


def parse_job_record(line: str) -> JobPart | None:
    """A line of `scontrol --oneliner show job`; None for what is none.

    Tasks of an array that still wait are one record: ArrayTaskId=5-20%2.
    """
    fields = dict(
        reversed(FIELD.findall(line))
    )  # the first of each name: a job's comment may hold others
    if not (number := fields.get("JobId")):
        return None
    if task := fields.get("ArrayTaskId", ""):
        number = f"{fields.get('ArrayJobId', number)}_{task}"
    word = fields.get("JobState", "")
    state = read_state(word, fields.get("ExitCode", "") if word == "FAILED" else "")
    files = dict.fromkeys(
        Path(fields[name]) for name in ("StdOut", "StdErr") if fields.get(name, "").startswith("/")
    )
    just_started = word == "RUNNING" and bool(JUST_STARTED.fullmatch(fields.get("RunTime", "")))
    return JobPart(number, state, fields.get("Reason", ""), tuple(files), just_started)


# -- what was written down


def _recorded(job: str, remembered: Mapping[str, Accounted]) -> list[JobPart]:
    """What our own launches say of JOB, which may be the name of a launch's folder."""
    found: dict[str, JobPart] = {}
    array, _, wanted = job.partition("_")
    for launch in read_launches():
        of_array = launch.job.partition("_")[0] == array and (launch.is_array or not wanted)
        if not (job in (launch.job, launch.folder.name) or of_array):
            continue
        for part in _of_launch(launch, job, remembered):
            if wanted in ("", part.task):
                found[part.job] = _joined(part, found[part.job]) if part.job in found else part
    return list(found.values())


def _of_launch(launch: Launch, job: str, remembered: Mapping[str, Accounted]) -> list[JobPart]:
    """A part for each task of an array that was submitted as one, else one."""
    own = launch.folder / stderr.NAME
    written = (own,) if own.is_file() else ()
    if not launch.is_array:
        state = state_of_launch(launch)
        files = tuple(find_output(launch.output, launch.job)) if launch.output else ()
        there = any(path.is_file() for path in files)
        return [JobPart(launch.job or job, state, files=files if there else (*written, *files))]
    array = launch.job.partition("_")[0]
    tasks = {task.partition("_")[2] for task in remembered if task.startswith(f"{array}_")} | set(
        launch.tasks
    )
    return [
        JobPart(
            f"{array}_{task}",
            state_of_status(status) if (status := launch.tasks.get(task)) is not None else UNKNOWN,
            files=tuple(find_output(launch.output, array, task)) if launch.output else (),
        )
        for task in sorted(tasks)
        if task.isdigit()
    ]


def state_of_launch(launch: Launch) -> JobState:
    """How LAUNCH has ended; UNKNOWN while nobody has written that down."""
    if launch.interrupted:
        return JobState("CANCELLED", cancelled_by="Ctrl-C")
    return state_of_status(launch.status) if launch.status is not None else UNKNOWN


# -- what accounting remembers


@dataclass(frozen=True)
class Accounted:
    """A job or a task as sacct has it: state, where it was submitted, by which line; name, user,
    its own number.
    """

    state: JobState
    folder: str = ""
    line: str = ""
    name: str = ""
    user: str = ""
    number: str = ""


ACCOUNTED = ("JobID", "State", "ExitCode", "WorkDir", "JobName", "User", "JobIDRaw", "SubmitLine")


def query_accounting(job: str, runner: Runner) -> dict[str, Accounted]:
    """{job or job_task: what accounting says}; empty where there is none, or it does not answer."""
    if not runner.has("sacct"):
        return {}

    def ask(fields: tuple[str, ...]) -> Completed:
        argv = ["sacct", "-nPX", "--delimiter=\x1f", f"--format={','.join(fields)}", "--jobs", job]
        return runner.output(argv, timeout=20)

    done = ask(ACCOUNTED)
    if done.status:  # Slurm before 21.08 keeps no SubmitLine, and refuses the whole question
        done = ask(ACCOUNTED[:3])
    found = {}
    for line in done.stdout.splitlines() if not done.status else ():
        values = [*line.split("\x1f"), *[""] * len(ACCOUNTED)][: len(ACCOUNTED)]
        number, state, code, folder, name, user, own_number, submitted = values
        found[number] = Accounted(
            read_state(state, code), folder, submitted, name, user, own_number
        )
    return found


def _accounted(remembered: Mapping[str, Accounted]) -> dict[str, JobPart]:
    """What accounting remembers, with the files that the job's script, or sbatch's line, says."""
    return {
        job: JobPart(job, known.state, files=tuple(_files_of_script(job, known)))
        for job, known in remembered.items()
        if re.fullmatch(r"\d+(_\d+)?", job)
    }


def _files_of_script(job: str, known: Accounted) -> list[Path]:
    """Where a script that sbatch was given writes; nothing for what was no script, or has a pattern
    of its own.
    """
    try:
        words = shlex.split(known.line)
    except ValueError:
        return []
    if not words or Path(words[0]).name != "sbatch" or not known.folder.startswith("/"):
        return []
    folder, (array, _, task) = Path(known.folder), job.partition("_")
    options, script = _split_sbatch(words[1:], folder)
    pattern = _output_of(options) or (_output_of_script(script) if script else "")
    pattern = pattern or (DEFAULT_ARRAY_OUTPUT if task else DEFAULT_OUTPUT)
    values = {"x": known.name, "u": known.user, "j": known.number, "J": known.number}
    return find_output(str(folder / pattern), array, task, values)


def _split_sbatch(words: list[str], folder: Path) -> tuple[list[str], Path | None]:
    """(sbatch's own options, its script): what follows the script is the program's."""
    is_a_value = False
    for at, word in enumerate(words):
        if is_a_value:
            is_a_value = False
        elif word == "--wrap" or word.startswith("--wrap="):
            return words, None
        elif word.startswith("--"):
            known = OPTIONS.get(word)  # none where a value follows in the word itself
            is_a_value = "=" not in word and (known is None or known.value is Value.NEEDED)
        elif word.startswith("-"):
            is_a_value = len(word) == 2 and word[1] not in SHORT_FLAGS
        else:
            script = folder / word
            return words[:at], script if script.is_file() else None
    return words, None


def _output_of(words: list[str]) -> str:
    """What -o or --output says among sbatch's options; the last one counts."""
    said = ""
    for at, word in enumerate(words):
        if word.startswith("--output="):
            said = word.partition("=")[2]
        elif word in ("-o", "--output") and at + 1 < len(words):
            said = words[at + 1]
        elif re.match(r"-o[^-]", word):
            said = word[2:].removeprefix("=")
    return said


def _output_of_script(script: Path) -> str:
    """What SCRIPT's directives say today; one that was changed since may say another place."""
    with script.open(encoding="utf-8", errors="replace") as file:
        lines = file.read(MOST_OF_A_SCRIPT).splitlines()
    words: list[str] = []
    for line in lines:
        if line.startswith("#SBATCH "):
            with contextlib.suppress(ValueError):
                words += shlex.split(line.removeprefix("#SBATCH "), comments=True)
    return _output_of(words)


def find_output(
    pattern: str, job: str, task: str = "", values: Mapping[str, str] | None = None
) -> list[Path]:
    """The files that Slurm's PATTERN means for JOB, or TASK of it. VALUES are what is known of %x,
    %u, %j and %J.

    What a node fills in (%N, %n, %t) is looked for, as long as something of the pattern is the
    job's own: else it would be other jobs' files. https://slurm.schedmd.com/sbatch.html, filename
    pattern.
    """
    known = {"A": job, "a": task, "j": "" if task else job, "J": "" if task else job}
    known |= {sign: value for sign, value in (values or {}).items() if value}
    looked_for, is_the_jobs_own = False, False
    plain = shown = ""
    for text, width, sign in re.findall(r"([^%]+)|%(\d*)(.)", pattern):
        if text or sign == "%":
            value = text or "%"
        elif value := known.get(sign, ""):
            value = value.zfill(int(width or 0)) if value.isdigit() else value
            is_the_jobs_own = is_the_jobs_own or sign in "AajJ"
        else:
            looked_for = True
            shown += "*"
            continue
        plain += value
        shown += glob.escape(value)
    if not looked_for:
        return [Path(plain)]
    if not is_the_jobs_own or not shown.startswith("/"):
        return []
    return [Path(found) for found in sorted(glob.glob(shown))]  # noqa: PTH207


BY_CTRL_C = "it was interrupted by Ctrl-C"


def ended_how(job: str, runner: Runner) -> str:
    """How JOB ended, where that was not the program's own doing: as Slurm says, or as its newest
    launch was told.

    Empty where nobody knows.
    """
    argv = ["sacct", "-nPX", "--format=State,Reason,Elapsed,Timelimit,NodeList", "--jobs", job]
    done = runner.output(argv, timeout=20) if runner.has("sacct") else None
    said = (
        [[*line.split("|"), "", "", "", ""] for line in done.stdout.splitlines()]
        if done and not done.status
        else []
    )
    ends = [
        (read_state(state), reason, elapsed, limit, nodes)
        for state, reason, elapsed, limit, nodes, *_ in said
    ]
    if not ends:
        ends = [
            (part.state, part.reason, "", "", "")
            for part in parts_of(job, runner)
            if part.job == job
        ]
    newest = next((launch for launch in read_launches() if launch.job == job), None)
    interrupted = bool(newest and newest.interrupted)
    for state, reason, elapsed, limit, nodes in ends:
        word = state.word
        if word == "CANCELLED" and not interrupted:
            who = f" by {state.cancelled_by}" if state.cancelled_by else ""
            return f"it was cancelled{who}" + (f", after {elapsed}" if elapsed else "")
        if word == "TIMEOUT":
            return "the time limit was reached" + (f": {limit}" if limit else "")
        if word == "NODE_FAIL":
            return "a node failed" + (f", of {nodes}" if nodes else "")
        if word == "OUT_OF_MEMORY":
            return "the job's memory limit was reached" + (f", on one of {nodes}" if nodes else "")
        if word in ("PREEMPTED", "BOOT_FAIL", "DEADLINE"):
            return f"Slurm ended it: {word}{f', {reason}' if reason not in ('', 'None') else ''}"
    return BY_CTRL_C if interrupted else ""


def find_states(jobs: list[str], runner: Runner) -> dict[str, JobState]:
    """{job: its state} of those of JOBS that Slurm still knows, and of the tasks of arrays among
    them.
    """
    if not jobs or not runner.has("squeue"):
        return {}
    out: dict[str, JobState] = {}
    for job, known in query_accounting(",".join(jobs), runner).items():
        if "[" in job:
            continue  # tasks that wait: squeue names each
        out[job] = known.state
        out.setdefault(job.partition("_")[0], known.state)
    done = runner.output(
        ["squeue", "--noheader", "--array", "--format", "%i|%T", "--jobs", ",".join(jobs)],
        timeout=20,
    )
    for line in done.stdout.splitlines() if not done.status else ():
        job, _, state = line.partition("|")
        out[job] = out[job.partition("_")[0]] = read_state(state)
    return out
