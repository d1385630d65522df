"""Find out where Slurm's jobs write and how they ended, task by task.

Slurm forgets a job some minutes after its end (MinJobAge), and not every site has accounting. So
three sources are put together: accounting (sacct), the records of hpcstack's own launches, and what
Slurm says now (scontrol). Where they disagree, the later of them counts.
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
from hpcstack.launch.record import Launch, read_launches_of
from hpcstack.slurm.array import count_tasks
from hpcstack.slurm.client import Client
from hpcstack.slurm.job_id import parse_job_id, read_job_id
from hpcstack.slurm.options import OPTIONS, SHORT_FLAGS, Value
from hpcstack.slurm.state import UNKNOWN, JobState, read_state, settle_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hpcstack.core.process import Runner
    from hpcstack.slurm.job_record import JobRecord

# RunTime of a job in its first minute. Its node makes the output file, which is seen here later.
JUST_STARTED = re.compile(r"00:00:\d\d")
# https://slurm.schedmd.com/sbatch.html, --output
DEFAULT_OUTPUT, DEFAULT_ARRAY_OUTPUT = "slurm-%j.out", "slurm-%A_%a.out"
MOST_OF_A_SCRIPT = 1 << 20  # bytes that are read of a job script
NO_REASONS = ("", "None")
NO_NODES = ("", "None assigned", "(null)")  # of a job that has not started, as Slurm says it


class NotStarted(InputError):
    """A job has written nothing yet: it waits in the queue, or started less than a minute ago."""


@dataclass(frozen=True)
class JobPart:
    """A job, or one task of an array: `job` is 7 or 7_3.

    `reason` is why it is in its state, in Slurm's word. `files` are those that it writes to, whether
    they exist yet or not. `just_started` means within the last minute. `elapsed`, `limit` and `nodes`
    are as Slurm writes them. What nobody knows is empty.
    """

    job: str
    state: JobState = UNKNOWN
    reason: str = ""
    files: tuple[Path, ...] = ()
    just_started: bool = False
    elapsed: str = ""
    limit: str = ""
    nodes: str = ""
    starts_again: bool = False  # it was put back into the queue, and has started since or will

    @property
    def task(self) -> str:
        """The number of a task of an array; empty for any other job."""
        return self.job.partition("_")[2]

    @property
    def count(self) -> int:
        """How many tasks it stands for: Slurm keeps all that still wait in one record, 7_5-99%2."""
        if not self.task:
            return 1
        return count_tasks(self.task)

    @property
    def logs(self) -> tuple[Path, ...]:
        """Those of its files that exist."""
        return tuple(path for path in self.files if path.is_file())

    def describe(self) -> str:
        """Return its state in words, with what Slurm says besides; empty where it is not known."""
        said = self.state.meaning
        if self.state.waits:
            again = " to start again" if self.starts_again else ""
            reason = f" ({self.reason})" if self.reason not in NO_REASONS else ""
            return f"{said}{again}{reason}"
        if not self.state.is_from_outside:
            return said
        if self.state.word == "TIMEOUT" and self.limit:
            return f"{said}: {self.limit}"
        if self.state.word == "CANCELLED" and self.elapsed == "00:00:00" and self.nodes in NO_NODES:
            return f"{said} before it started"
        if self.state.word == "CANCELLED" and self.elapsed:
            return f"{said}, after {self.elapsed}"
        if self.state.word in ("NODE_FAIL", "BOOT_FAIL") and self.nodes:
            return f"{said}, of {self.nodes}"
        if self.state.word == "OUT_OF_MEMORY" and self.nodes:
            return f"{said}, on one of {self.nodes}"
        return said


def find_job_parts(job: str, runner: Runner) -> list[JobPart]:
    """Return what is known of JOB: the job itself, or each task of an array, or each part of a
    heterogeneous job; none where unknown.

    JOB may also be a step, which stands for its job, or the name of a launch's folder. Raise
    SlurmError where Slurm does not answer and no launch is recorded for JOB.
    """
    named = parse_job_id(job)
    if not named:
        return _sort_parts(_find_recorded(job, {}))

    job = named.without_step
    remembered = query_accounting(job, runner)
    recorded = _find_recorded(job, remembered)
    found = _parts_of_accounting(remembered)
    for part in _ask_slurmctld(job, runner, known=bool(recorded)):
        found[part.job] = _merge_parts(found.get(part.job), part)
    for part in recorded:
        found[part.job] = _add_record(part, found.get(part.job))
    # The record of an array itself says nothing that its tasks do not say.
    if "_" not in job and any(part.task for part in found.values()):
        found.pop(job, None)
    return _sort_parts(found.values())


def parse_job_name(text: str) -> str:
    """Return the job that TEXT names, or a step of which it names; empty where it names none."""
    found = parse_job_id(text)
    return found.without_step if found else ""


def _merge_parts(known: JobPart | None, newer: JobPart) -> JobPart:
    """Return NEWER, completed by what is KNOWN from another source.

    Files that exist count more than those that do not.
    """
    if not known:
        return newer
    state = newer.state
    if state.word == known.state.word:
        state = replace(state, exit=state.exit or known.state.exit)
        state = replace(state, cancelled_by=state.cancelled_by or known.state.cancelled_by)
    return JobPart(
        newer.job,
        state if state.is_known else known.state,
        newer.reason or known.reason,
        newer.logs or known.logs or newer.files or known.files,
        newer.just_started,
        newer.elapsed or known.elapsed,
        newer.limit or known.limit,
        newer.nodes or known.nodes,
        newer.starts_again or known.starts_again,
    )


def _add_record(recorded: JobPart, of_slurm: JobPart | None) -> JobPart:
    """Return what Slurm says of a job, completed by what its launch has RECORDED."""
    if of_slurm is None:
        return recorded
    state = settle_state(recorded.state, of_slurm.state)
    return replace(
        _merge_parts(recorded, of_slurm),
        state=state,
        files=of_slurm.logs or recorded.logs or of_slurm.files or recorded.files,
    )


def _sort_parts(parts: Iterable[JobPart]) -> list[JobPart]:
    """Return PARTS by the number of their task; those without a single number come first."""

    def key(part: JobPart) -> tuple[int, str]:
        if part.task.isdigit():
            return int(part.task), ""
        return -1, part.task

    return sorted(parts, key=key)


def is_known_to_have_ended(job: str, parts: Sequence[JobPart], runner: Runner) -> bool:
    """Return whether JOB, of which PARTS are known, has ended, or nobody will ever know.

    JOB may be the name of a launch's folder: of a step in a job that goes on, or without Slurm. Where
    Slurm does not answer, the answer is no: it may yet say.
    """
    if not parse_job_id(job):
        launch = next(read_launches_of(job), None)
        return launch is None or launch.state.is_known
    if parts and all(part.state.has_ended for part in parts):
        return True
    if any(part.state.is_known and not part.state.has_ended for part in parts):
        return False
    try:
        return Client(runner).query_records(parse_job_name(job)) is None
    except SlurmError:
        return False


def find_logs(job: str, runner: Runner) -> list[Path]:
    """Return the files that the output of JOB went to, each once. Raise as `list_logs`."""
    return list_logs(job, find_job_parts(job, runner))


def list_logs(job: str, parts: Sequence[JobPart]) -> list[Path]:
    """Return the files that the output of JOB went to, each once, by its PARTS.

    Raise NotStarted where the job has written nothing yet, InputError where nobody knows the job,
    or none of its files exists.
    """
    if not parts and not parse_job_id(job):
        raise InputError(f"{job!r} is not the number of a job", "hpcstack jobs lists yours")
    if not parts:
        raise InputError(
            f"Slurm no longer knows job {job}",
            "name the log itself: hpcstack explain FILE",
            page="why-was-my-job-killed",
        )
    logs = [path for part in parts for path in part.logs]
    if logs:
        return list(dict.fromkeys(logs))

    where = ", ".join(dict.fromkeys(str(path) for part in parts for path in part.files))
    waiting = next((part for part in parts if part.state.waits), None)
    if waiting:
        target = where or "a terminal"
        raise NotStarted(
            f"job {job} has not started yet ({waiting.reason}); it will write to {target}",
            f"squeue --jobs {job}",
        )
    if where and any(part.just_started for part in parts):
        raise NotStarted(
            f"job {job} has only just started and has written nothing yet; it will write to "
            f"{where}",
            f"hpcstack logs {job}, in a moment",
        )
    raise InputError(
        f"job {job} wrote to no file that exists: {where or 'it ran on a terminal'}",
        "name the log itself: hpcstack explain FILE",
        page="why-was-my-job-killed",
    )


# -- what Slurm says now


def _ask_slurmctld(job: str, runner: Runner, *, known: bool) -> list[JobPart]:
    """Return each record of JOB that slurmctld still has.

    Raise SlurmError where it does not answer, unless JOB is KNOWN from another source.
    """
    slurm = Client(runner)
    if not slurm.has("scontrol"):
        return []
    try:
        records = slurm.query_records(job)
    except SlurmError:
        if not known:
            raise
        return []
    return list(map(make_part, records or ()))


def make_part(record: JobRecord) -> JobPart:
    """Return the job, or the tasks, of a RECORD of slurmctld's."""
    fields = record.fields
    files = dict.fromkeys(
        Path(fields[name]) for name in ("StdOut", "StdErr") if fields.get(name, "").startswith("/")
    )
    is_new = bool(JUST_STARTED.fullmatch(fields.get("RunTime", "")))
    just_started = record.state.word == "RUNNING" and is_new
    return JobPart(
        record.name,
        record.state,
        fields.get("Reason", ""),
        tuple(files),
        just_started,
        fields.get("RunTime", ""),
        fields.get("TimeLimit", ""),
        fields.get("NodeList", ""),
        starts_again=fields.get("Restarts", "0") != "0",
    )


# -- what launches recorded


def _find_recorded(job: str, remembered: Mapping[str, Accounted]) -> list[JobPart]:
    """Return what the records of launches say of JOB, which may be the name of a launch's folder.

    REMEMBERED is what accounting says; it names tasks of an array that have recorded nothing.
    """
    found: dict[str, JobPart] = {}
    named = parse_job_id(job)
    array, wanted_task = (named.job, named.task) if named else (job, "")
    for launch in read_launches_of(job):
        is_of_the_array = launch.job.partition("_")[0] == array and (
            launch.is_array or not wanted_task
        )
        if job not in (launch.job, launch.folder.name) and not is_of_the_array:
            continue
        for part in _parts_of_launch(launch, job, remembered):
            if wanted_task not in ("", part.task):
                continue
            # Launches come newest first: an older one only completes what is known.
            newer = found.get(part.job)
            found[part.job] = _merge_parts(part, newer) if newer else part
    return list(found.values())


def _parts_of_launch(
    launch: Launch, job: str, remembered: Mapping[str, Accounted]
) -> list[JobPart]:
    """Return a part for each task of an array that was submitted as one; else one for LAUNCH."""
    if launch.is_array:
        return _tasks_of_launch(launch, remembered)

    files: tuple[Path, ...] = ()
    if launch.output:
        files = tuple(find_output(launch.output, launch.job))
    own = launch.folder / stderr.NAME
    # Where the job's file does not exist, the kept stderr is the next best.
    if own.is_file() and not any(path.is_file() for path in files):
        files = (own, *files)
    # How a step has ended is not how its job has: that may go on.
    state = UNKNOWN if launch.is_inside_a_job else launch.state
    return [JobPart(launch.job or job, state, files=files)]


def _tasks_of_launch(launch: Launch, remembered: Mapping[str, Accounted]) -> list[JobPart]:
    """Return a part for each task of the array that LAUNCH was submitted as."""
    array = launch.job.partition("_")[0]
    tasks = set(launch.tasks)
    tasks |= {job.partition("_")[2] for job in remembered if job.startswith(f"{array}_")}
    out = []
    for task in sorted(tasks):
        if not task.isdigit():  # several that still wait: [5-20%2]
            continue
        state = launch.tasks.get(task, UNKNOWN)
        files: tuple[Path, ...] = ()
        if launch.output:
            files = tuple(find_output(launch.output, array, task))
        out.append(JobPart(f"{array}_{task}", state, files=files))
    return out


# -- what accounting remembers


@dataclass(frozen=True)
class Accounted:
    """A job or a task of an array as sacct has it.

    `folder` is where it was submitted, `line` the command line that submitted it, `number` its own
    job number, which for a task of an array is another than the array's.
    """

    state: JobState
    folder: str = ""
    line: str = ""
    name: str = ""
    user: str = ""
    number: str = ""
    reason: str = ""
    elapsed: str = ""
    limit: str = ""
    nodes: str = ""


ACCOUNTED = (
    "JobID",
    "State",
    "ExitCode",
    "WorkDir",
    "JobName",
    "User",
    "JobIDRaw",
    "SubmitLine",
    "Reason",
    "Elapsed",
    "Timelimit",
    "NodeList",
)
# Slurm before 21.08 keeps no SubmitLine, and refuses the whole question.
BEFORE_21_08 = tuple(name for name in ACCOUNTED if name != "SubmitLine")


def query_accounting(job: str, runner: Runner) -> dict[str, Accounted]:
    """Return {job or job_task: what accounting says}.

    Empty where the site has no accounting, or sacct does not answer within 20 s.
    """
    slurm = Client(runner)
    fields: tuple[str, ...] = ACCOUNTED
    rows = slurm.query_accounting([job], fields)
    if rows is None:
        fields = BEFORE_21_08
        rows = slurm.query_accounting([job], fields)

    found = {}
    for row in rows or ():
        values = {**dict.fromkeys(ACCOUNTED, ""), **dict(zip(fields, row, strict=False))}
        found[values["JobID"]] = Accounted(
            state=read_state(values["State"], values["ExitCode"]),
            folder=values["WorkDir"],
            line=values["SubmitLine"],
            name=values["JobName"],
            user=values["User"],
            number=values["JobIDRaw"],
            reason=values["Reason"],
            elapsed=values["Elapsed"],
            limit=values["Timelimit"],
            nodes=values["NodeList"],
        )
    return found


def _parts_of_accounting(remembered: Mapping[str, Accounted]) -> dict[str, JobPart]:
    """Return what accounting REMEMBERED by job, with the files that sbatch was told to write to."""
    return {
        job: JobPart(
            job,
            known.state,
            known.reason,
            tuple(_find_sbatch_output(job, known)),
            elapsed=known.elapsed,
            limit=known.limit,
            nodes=known.nodes,
        )
        for job, known in remembered.items()
        if parse_job_id(job)
    }


def _find_sbatch_output(job: str, known: Accounted) -> list[Path]:
    """Return the files that JOB writes to, by the sbatch line that submitted it.

    --output on that line counts first, then the script's directives as they are today, then Slurm's
    default. None for a job that sbatch did not submit, or whose line nobody knows.
    """
    try:
        words = shlex.split(known.line)
    except ValueError:
        return []
    if not words or Path(words[0]).name != "sbatch" or not known.folder.startswith("/"):
        return []

    folder = Path(known.folder)
    named = read_job_id(job)
    options, script = _split_sbatch(words[1:], folder)
    pattern = _read_output_option(options)
    if not pattern and script:
        # The script as it is today: if it was changed since, the answer may be wrong.
        pattern = _read_output_option(_read_directives(script))
    if not pattern:
        pattern = DEFAULT_ARRAY_OUTPUT if named.task else DEFAULT_OUTPUT
    values = {"x": known.name, "u": known.user, "j": known.number, "J": known.number}
    return find_output(str(folder / pattern), named.job, named.task, values)


def _split_sbatch(words: list[str], folder: Path) -> tuple[list[str], Path | None]:
    """Return (sbatch's own options, its script) of the WORDS behind `sbatch`.

    The script is looked up in FOLDER; it is None with --wrap, and where it is no longer there. What
    follows the script belongs to the program.
    """
    is_a_value = False
    for at, word in enumerate(words):
        if is_a_value:
            is_a_value = False
        elif word == "--wrap" or word.startswith("--wrap="):
            return words, None
        elif word.startswith("--"):
            known = OPTIONS.get(word)  # None for --name=value and for an option that is not listed
            is_a_value = "=" not in word and (known is None or known.value is Value.NEEDED)
        elif word.startswith("-"):
            is_a_value = len(word) == 2 and word not in SHORT_FLAGS
        else:
            script = folder / word
            return words[:at], script if script.is_file() else None
    return words, None


def _read_output_option(words: list[str]) -> str:
    """Return the value of -o or --output among sbatch's options; the last one counts."""
    pattern = ""
    for at, word in enumerate(words):
        if word.startswith("--output="):
            pattern = word.partition("=")[2]
        elif word in ("-o", "--output") and at + 1 < len(words):
            pattern = words[at + 1]
        elif re.match(r"-o[^-]", word):
            pattern = word[2:].removeprefix("=")
    return pattern


def read_directive(script: Path, option: str) -> str:
    """Return the value of OPTION in the #SBATCH lines of SCRIPT, which hpcstack has written.

    The last one counts. Empty where there is none.
    """
    values = [
        word.removeprefix(f"{option}=")
        for word in _read_directives(script)
        if word.startswith(f"{option}=")
    ]
    return values[-1] if values else ""


def _read_directives(script: Path) -> list[str]:
    """Return the words of the #SBATCH lines of SCRIPT."""
    with script.open(encoding="utf-8", errors="replace") as file:
        lines = file.read(MOST_OF_A_SCRIPT).splitlines()
    words: list[str] = []
    for line in lines:
        if line.startswith("#SBATCH "):
            with contextlib.suppress(ValueError):
                words += shlex.split(line.removeprefix("#SBATCH "), comments=True)
    return words


def find_output(
    pattern: str, job: str, task: str = "", values: Mapping[str, str] | None = None
) -> list[Path]:
    """Return the files that Slurm's PATTERN means for JOB, or for TASK of it.

    VALUES are what is known of %x, %u, %j and %J. Where all signs are known, the one file is
    returned, whether it exists or not. Other signs (%N, %n, %t: each node fills them in) stand for
    anything, and the files that match are returned. This needs a sign of the job's own in PATTERN;
    without one, other jobs' files would match. https://slurm.schedmd.com/sbatch.html, filename
    pattern.
    """
    number = "" if task else job  # a task has a job number of its own, which is not the array's
    known = {"A": job, "a": task, "j": number, "J": number}
    known |= {sign: value for sign, value in (values or {}).items() if value}

    has_unknown_signs = False
    is_the_jobs_own = False
    path = wildcard = ""
    for text, width, sign in re.findall(r"([^%]+)|%(\d*)(.)", pattern):
        value = known.get(sign, "")
        if text or sign == "%":
            value = text or "%"
        elif not value:
            has_unknown_signs = True
            wildcard += "*"
            continue
        else:
            is_the_jobs_own = is_the_jobs_own or sign in "AajJ"
            if value.isdigit():
                value = value.zfill(int(width or 0))  # %4j: with leading zeros
        path += value
        wildcard += glob.escape(value)

    if not has_unknown_signs:
        return [Path(path)]
    if not is_the_jobs_own or not wildcard.startswith("/"):
        return []
    return [Path(found) for found in sorted(glob.glob(wildcard))]  # noqa: PTH207


def find_states(jobs: list[str], runner: Runner) -> dict[str, JobState]:
    """Return {job: its state} for those of JOBS that Slurm still knows.

    The tasks of arrays among them are there, too, and the parts of heterogeneous jobs: {job_task or
    job+part: its state}; the job itself has the state of one of them. Empty where there is no squeue.
    """
    slurm = Client(runner)
    if not jobs or not slurm.has("squeue"):
        return {}
    out: dict[str, JobState] = {}
    for job, known in query_accounting(",".join(jobs), runner).items():
        if "[" in job:
            continue  # tasks that wait: squeue names each
        out[job] = known.state
        out.setdefault(re.split("[_+]", job)[0], known.state)

    for queued in slurm.query_queue(jobs, ended=True) or ():
        array = re.split("[_+]", queued.name)[0]
        state = queued.state
        remembered = out.get(queued.name, UNKNOWN)
        if remembered.word == state.word:  # accounting knows more of it
            state = remembered
        out[queued.name] = out[array] = state
    return out


def find_state(launch: Launch, known: Mapping[str, JobState]) -> JobState:
    """Return the state of LAUNCH, which is no array. KNOWN is what Slurm says (`find_states`)."""
    of_slurm = known.get(launch.job, UNKNOWN)
    if launch.is_inside_a_job:
        return launch.state if launch.state.is_known else of_slurm
    return settle_state(launch.state, of_slurm)


def may_have_changed(launch: Launch) -> bool:
    """Whether Slurm may know more of LAUNCH than its record: it goes on, or who or what ended it."""
    if not launch.job:
        return False
    if launch.is_array or not launch.state.is_known:
        return True
    return launch.state.has_failed and not launch.state.cancelled_by


def list_task_states(launch: Launch, known: Mapping[str, JobState]) -> dict[str, JobState]:
    """Return {task of an array: its state}; none where LAUNCH is no array.

    KNOWN is what Slurm says (`find_states`). It forgets the tasks of an array one by one; for those
    that it has forgotten, what each has recorded at its end counts.
    """
    head = f"{launch.job_or_array}_"
    of_slurm = {job.removeprefix(head): one for job, one in known.items() if job.startswith(head)}
    recorded = {task: state for task, state in launch.tasks.items() if state.is_known}
    return {
        task: settle_state(recorded.get(task, UNKNOWN), of_slurm.get(task, UNKNOWN))
        for task in {**recorded, **of_slurm}
    }
