"""Explain how a job stands or ended: its state first, then what its log says of that.

Slurm's state decides what may be said behind it. What a program wrote while it was being ended
explains nothing, and of what ended well nothing needs to be explained.

Tested in tests/unit/cli/test_explain.py and tests/integration/test_ends.py.
"""

from __future__ import annotations

import collections
import os
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.diagnose.examine_log import (
    OF_KILLED_TASKS,
    OUT_OF_MEMORY,
    LogReading,
    examine_log,
    join_readings,
)
from hpcstack.diagnose.speakers import find_clues
from hpcstack.launch.failure import EndedBy
from hpcstack.launch.hang import describe_ranks, parse_ranks
from hpcstack.launch.jobs import (
    JobPart,
    NotStarted,
    find_job_parts,
    find_state,
    find_states,
    list_logs,
    may_have_changed,
)
from hpcstack.launch.log_lines import open_log, read_log_blocks
from hpcstack.slurm.state import UNKNOWN, JobState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress
    from hpcstack.diagnose.signatures import KnownFailure
    from hpcstack.diagnose.speakers import Clue
    from hpcstack.launch.record import Launch

LEAST = 25  # the rank from which a known failure may be a cause; below, it is an echo of another
MOST_SHOWN = 5  # known failures that are shown
MOST_TASKS = 5  # failed tasks of an array that are named with their reason
MOST_UNKNOWN = 200  # logs of an array that are read of tasks whose end nobody knows
MOST_OF_A_TASK = 4 << 20  # bytes that are read of a task's log


PAGES_OF_STATES = {
    "TIMEOUT": "stop-before-the-time-limit",
    "NODE_FAIL": "start-despite-a-bad-node",
    "OUT_OF_MEMORY": "why-was-my-job-killed",
}


@dataclass(frozen=True)
class Explained:
    """What happened, and the known failures that explain it.

    STATE is the job's. HIDDEN known failures more were found, which are weaker. An array has its
    TASKS. KNOWN is False where nothing is known of what happened. CLUES are lines that read like an
    error, with who says them, where no known failure explains anything. PAGE is the how-to page about
    it, and TIP what to type next, if any. With KNOWN_FIRST, the known failures are why, and what is said
    is only how. RANK is the rank or the task that failed first, on the node HOST, where that is known.
    """

    said: str
    shown: list[KnownFailure]
    hidden: int = 0
    tasks: tuple[ExplainedTask, ...] = ()
    known: bool = True
    page: str = ""
    clues: tuple[Clue, ...] = ()
    state: JobState = UNKNOWN
    tip: str = ""
    known_first: bool = False
    rank: str = ""
    host: str = ""


@dataclass(frozen=True)
class ExplainedTask:
    """A task of an array: its state in Slurm's words, and what happened, where that is known."""

    task: str
    state: str
    said: str = ""


def read_files(paths: Sequence[Path], progress: Progress, most: int = 0) -> LogReading:
    """Return what the logs at PATHS say together: of each the last MOST bytes, or all where it is 0.

    Raise InputError where one cannot be read.
    """
    return join_readings([examine_log(_list_blocks(path, progress, most)) for path in paths])


def _list_blocks(path: Path, progress: Progress, most: int) -> Iterator[bytes]:
    try:
        with open_log(path) as file:
            size = os.fstat(file.fileno()).st_size
            if most:
                file.seek(max(0, size - most))
            for block in read_log_blocks(file):
                progress.amount(str(path), file.tell(), size)
                yield block
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def explain_stream(file: IO[bytes], name: str, progress: Progress, *, every: bool) -> Explained:
    """Explain FILE, a log called NAME of which nobody knows the job, nor how long it is.

    EVERY keeps what explains little.
    """

    def list_blocks() -> Iterator[bytes]:
        done = 0
        for block in read_log_blocks(file):
            done += len(block)
            progress.amount(name, done, 0)
            yield block

    return explain_reading(examine_log(list_blocks()), JobPart(""), every=every)


def explain_launch(
    launch: Launch, log: Path, runner: Runner, progress: Progress, *, every: bool
) -> Explained:
    """Explain LAUNCH, which was waited for and has kept its stderr in LOG."""
    asked = [launch.job] if may_have_changed(launch) else []
    part = JobPart(launch.job, find_state(launch, find_states(asked, runner)))
    if asked and not launch.is_inside_a_job and part.state.is_from_outside:
        parts = find_job_parts(launch.job, runner)
        part = next((one for one in parts if one.job == launch.job), part)
    return explain_reading(read_files([log], progress), part, every=every)


def explain_job(job: str, runner: Runner, progress: Progress, *, every: bool) -> Explained:
    """Explain JOB of Slurm's by its logs, or a job array task by task."""
    parts = find_job_parts(job, runner)
    if len(parts) > 1 and all(part.task for part in parts):
        return explain_array(parts, progress, every=every)

    part = _choose_part(parts)
    paths: list[Path] = []
    try:
        paths = list_logs(job, parts)
    except NotStarted:
        pass
    except InputError:
        if not part.state.is_known:
            raise
    if paths:
        progress(f"job {job}: {', '.join(map(str, paths))}")
    return explain_reading(read_files(paths, progress), part, every=every)


def _choose_part(parts: Sequence[JobPart]) -> JobPart:
    """Return the one of PARTS that tells how all of them stand: of several, what has failed."""
    failed = (part for part in parts if part.state.has_failed)
    return next(failed, None) or next(iter(parts), JobPart(""))


def explain_array(parts: list[JobPart], progress: Progress, *, every: bool) -> Explained:
    """Explain a job array by its PARTS.

    Say how many tasks are in which state, name the first few that failed with their reasons, and
    show the known failures of the first one's log.
    """
    tasks: list[ExplainedTask] = []
    worth_naming: list[ExplainedTask] = []
    first: LogReading | None = None
    counts: collections.Counter[str] = collections.Counter()
    read = 0
    for part in parts:
        failed = part.state.has_failed
        said = ""
        reading = None

        # An array may have thousands of tasks: few logs are read, those that are worth it.
        is_one_of_the_first = failed and len(worth_naming) < MOST_TASKS
        is_unknown = not part.state.is_known and read < MOST_UNKNOWN
        if is_one_of_the_first or is_unknown:
            read += 1
            reading = read_files(part.logs, progress, MOST_OF_A_TASK)
            said = reading.failure.first
            # A host is named where a rank reported its own failure. A traceback alone may do no
            # harm.
            failed = failed or bool(reading.failure.host)

        state = str(part.state)
        if not part.state.is_known:
            state = "FAILED, by its log" if failed else "ended, nobody knows how"
        task = ExplainedTask(part.job, state, said if failed else "")
        tasks.append(task)
        counts[state] += part.count
        if failed:
            worth_naming.append(task)
            first = first or reading

    states = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    lines = [f"{counts.total()} tasks: {states}"]
    lines += [f"{task.task}: {task.said or task.state}" for task in worth_naming[:MOST_TASKS]]
    left = len(worth_naming) - MOST_TASKS
    if left > 0:
        array = parts[0].job.partition("_")[0]
        lines.append(f"{left} more: hpcstack explain {array}_TASK, --json")

    found = Explained("", [])
    if first:
        found = explain_reading(first, JobPart(""), every=every)
    return Explained("\n".join(lines), found.shown, found.hidden, tuple(tasks), clues=found.clues)


def explain_reading(reading: LogReading, part: JobPart, *, every: bool) -> Explained:
    """Explain what became of PART, whose log says READING; its state may be unknown."""
    failure = reading.failure
    state = part.state
    if not state.is_known and failure.ended_by:
        state = replace(failure.read_state(1), exit=0)
    part = replace(part, state=state)

    if state.is_known and not state.has_ended:
        return _explain_open(reading, part, every=every)
    if state.word == "COMPLETED":
        shown = list(reading.found) if every else []
        return Explained(state.meaning, shown, len(reading.found) - len(shown), state=state)
    if state.is_from_outside:
        return _explain_end_from_outside(reading, part, every=every)
    return _explain_failure(reading, part, every=every)


def _explain_open(reading: LogReading, part: JobPart, *, every: bool) -> Explained:
    """Explain PART, which waits or runs."""
    said = part.describe()
    tip = f"squeue --jobs {part.job}"
    shown: list[KnownFailure] = []
    if part.state.word == "RUNNING":
        tip = f"hpcstack hang {part.job} shows what its ranks do, hpcstack logs {part.job} --follow"
        if reading.failure.host:
            said = f"{said}; so far, {reading.failure.first}"
            shown = _select_strong(reading.list_causes())
    if every:
        shown = list(reading.found)
    hidden = len(reading.found) - len(shown)
    return Explained(said, shown, hidden, state=part.state, tip=tip)


def _explain_end_from_outside(reading: LogReading, part: JobPart, *, every: bool) -> Explained:
    """Explain PART, which was ended by somebody, by Slurm, or by a fault of a node."""
    failure = reading.failure
    said = part.describe()
    if failure.host and reading.rank_ends < reading.step_ends:
        said = f"{said}; before that {failure.first}"
    elif failure.task and not part.job:
        said = failure.first
    elif failure.uncaught:
        said = f"{said}; before that {failure.uncaught}"
    elif failure.failed_again:
        said = f"{said}; after that {failure.failed_again}"
    # What a program writes while it is being ended explains nothing.
    causes = reading.list_causes()
    shown = [
        one
        for one in _select_strong(causes)
        if one.number < reading.step_ends or one.signature.id in OUT_OF_MEMORY
    ]
    if not part.job:  # nobody else says why: it may stand in the very line that ends the step
        shown += [one for one in causes if one.number == reading.step_ends and one not in shown]
    if every:
        shown = list(reading.found)
    return Explained(
        said,
        shown,
        len(reading.found) - len(shown),
        page=PAGES_OF_STATES.get(part.state.word, ""),
        state=part.state,
    )


def _explain_failure(reading: LogReading, part: JobPart, *, every: bool) -> Explained:
    """Explain PART, which has failed by itself, or of which nobody knows how it ended."""
    failure = reading.failure
    said = failure.first
    rank, host = failure.failed_first
    if said and rank and not failure.host and not failure.task:
        said = f"rank {rank}: {said}"
    if failure.is_caught:
        said = f"{said}; its program wrote more after it"
    page = PAGES_OF_STATES.get(failure.read_state(1).word, "")
    is_hang = failure.ended_by is EndedBy.WATCHDOG
    if is_hang:
        said = "\n".join([said, *describe_ranks(parse_ranks(reading.ranks))[0]])
        page = "find-a-hang"
    tip = ""
    if not said and reading.refusal:
        said, _, tip = reading.refusal.partition("\n")

    cause_is_said = failure.has_a_reason or is_hang or bool(tip)
    causes = reading.list_causes()
    shown = _select_strong(causes)
    if not shown and not cause_is_said:
        shown = causes[:MOST_SHOWN]
    if is_hang:
        shown = [one for one in shown if one.number < reading.step_ends]
    if every:
        shown = list(reading.found)
    # Where nothing says why, it still helps to know who complains.
    only_echoes = all(one.signature.rank < LEAST for one in shown)
    clues = find_clues(reading.suspects) if only_echoes and not cause_is_said else []
    named = {one.number for one in shown}
    if not said and part.state.has_failed:
        said = part.describe()
    # Not what only says of the signal in other words.
    tells_why = bool(shown) and not only_echoes and shown[0].signature.family != "system"
    tells_why = tells_why and shown[0].signature.id not in OF_KILLED_TASKS
    return Explained(
        said,
        shown,
        len(reading.found) - len(shown),
        known=bool(reading.found or said),
        page=page,
        clues=tuple(clue for clue in clues if clue.number not in named or clue.speaker),
        state=part.state,
        tip=tip,
        known_first=tells_why and failure.is_bare_signal,
        rank=rank,
        host=host,
    )


def _select_strong(found: list[KnownFailure]) -> list[KnownFailure]:
    """Return the few of FOUND that may be a cause, and are no echo of another."""
    return [one for one in found if one.signature.rank >= LEAST][:MOST_SHOWN]
