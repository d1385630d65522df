"""`hpcstack explain`."""

from __future__ import annotations

import collections
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.logfiles import MOST, end_of
from hpcstack.cli.session import Session, answer, json_option, say

if TYPE_CHECKING:
    from hpcstack.diagnose.logs import KnownFailure
    from hpcstack.launch.jobs import JobPart

LEAST = 25  # the rank of what may be a cause; less is an echo
JOB = re.compile(r"[0-9]+(_[0-9]+)?")
MOST_SHOWN = 5  # known failures
MOST_TASKS = 5  # of an array: how many that failed are named with their reason
MOST_UNKNOWN = 200  # of an array: how many logs are read of tasks whose end nobody knows
MOST_OF_A_TASK = 4 << 20  # bytes of a task's log


@dataclass(frozen=True)
class Explained:
    """What happened, the known messages that explain it, and how many others there are; of an array
    its tasks.
    """

    said: str
    shown: list[KnownFailure]
    hidden: int = 0
    tasks: tuple[ExplainedTask, ...] = ()
    known: bool = True


@dataclass(frozen=True)
class ExplainedTask:
    """A task of an array: its state in Slurm's words, and what happened as far as that is known."""

    task: str
    state: str
    said: str = ""


@click.command("explain")
@click.argument("what", metavar="[LOG|JOB|-]", default="")
@click.option("--all", "every", is_flag=True, help="Also what is only an echo of something else.")
@json_option
@click.pass_obj
def command(session: Session, what: str, every: bool, as_json: bool) -> None:
    """Say what failed first, what known failures a log shows, and what to do.

    For nothing: the newest launch of this terminal, else the newest that failed. Of an array: each
    task.

    Exit 1: nothing that is known.
    """
    found = explain_what(session, what, every=every)
    document = {
        "said": found.said,
        "findings": [_document(finding) for finding in found.shown],
        "tasks": [asdict(task) for task in found.tasks],
    }
    answer(document, as_json, lambda: _whole(found.said, found.shown, found.hidden))
    raise click.exceptions.Exit(0 if found.known else 1)


def explain_what(session: Session, what: str, *, every: bool) -> Explained:
    """What WHAT means, explained: a file, standard input, a job, or the launch that one most likely
    asks about.
    """
    from hpcstack.core.errors import InputError

    if what == "-":
        return _explain_text(
            session, sys.stdin.buffer.read(MOST).decode(errors="replace"), "", every=every
        )
    if Path(what).is_file():
        return _explain_text(session, end_of(Path(what)), "", every=every)
    if not what:
        return _explain_newest(session, every=every)
    if JOB.fullmatch(what):
        return _explain_job(session, what, every=every)
    raise InputError(
        f"{what}: no such file, and no number of a job",
        "hpcstack explain LOG, JOB or - (standard input)",
    )


def _explain_newest(session: Session, *, every: bool) -> Explained:
    """The newest launch of this terminal, else the newest that failed."""
    from hpcstack.launch import stderr
    from hpcstack.launch.jobs import BY_CTRL_C
    from hpcstack.launch.record import find_failed

    launch = find_failed()
    say(f"the launch of {launch.started}: {launch.stack}")
    own = launch.folder / stderr.NAME
    if own.is_file():
        why = BY_CTRL_C if launch.interrupted else ""
        return _explain_text(
            session, end_of(own), "", every=every, ended_well=launch.status == 0, ended_because=why
        )
    if launch.status == 0:
        return Explained("it ended with 0", [])
    return _explain_job(session, launch.job_or_array or launch.folder.name, every=every)


def _explain_job(session: Session, job: str, *, every: bool) -> Explained:
    """A job of Slurm's, or an array task by task."""
    from hpcstack.launch.jobs import logs_of, parts_of

    parts = parts_of(job, session.runner)
    if len(parts) > 1 and all(part.task for part in parts):
        return _explain_array(session, parts, every=every)
    paths = logs_of(job, session.runner)
    say(f"job {job}: {', '.join(map(str, paths))}")
    text = "\n".join(end_of(path) for path in paths)
    return _explain_text(
        session,
        text,
        job,
        every=every,
        ended_well=any(one.state.word == "COMPLETED" for one in parts),
    )


def _explain_array(session: Session, parts: list[JobPart], *, every: bool) -> Explained:
    """How many tasks are in which state; the first few that failed, and why; what the first one's
    log shows.
    """
    from hpcstack.launch.failure import failure_in

    tasks: list[ExplainedTask] = []
    worth_naming: list[ExplainedTask] = []
    first = ""
    counts: collections.Counter[str] = collections.Counter()
    read = 0
    for part in parts:
        failed, said, text = part.state.has_failed, "", ""
        is_one_of_the_first = failed and len(worth_naming) < MOST_TASKS
        is_unknown = not part.state.is_known and read < MOST_UNKNOWN
        if is_one_of_the_first or is_unknown:
            read += 1
            text = "\n".join(end_of(path, MOST_OF_A_TASK) for path in part.logs)
            failure = failure_in(text)
            said = failure.first
            failed = failed or bool(
                failure.host
            )  # a rank has said that it ended so; a traceback alone may be of no harm
        state = str(part.state)
        if not part.state.is_known:
            state = "FAILED, by its log" if failed else "ended, nobody knows how"
        task = ExplainedTask(part.job, state, said if failed else "")
        tasks.append(task)
        counts[state] += part.count
        if failed:
            worth_naming.append(task)
            first = first or text

    lines = [
        (
            f"{counts.total()} tasks: "
            f"{', '.join(f'{count} {state}' for state, count in counts.most_common())}"
        )
    ]
    lines += [f"{task.task}: {task.said or task.state}" for task in worth_naming[:MOST_TASKS]]
    left = len(worth_naming) - MOST_TASKS
    if left > 0:
        lines.append(f"{left} more: hpcstack explain {parts[0].job.partition('_')[0]}_TASK, --json")
    found = _explain_text(session, first, "", every=every) if first else Explained("", [])
    return Explained("\n".join(lines), found.shown, found.hidden, tuple(tasks))


def _explain_text(
    session: Session,
    text: str,
    job: str,
    *,
    every: bool,
    ended_well: bool = False,
    ended_because: str = "",
) -> Explained:
    """A log, which is JOB's where that is known.

    ENDED_BECAUSE: why it was ended from outside, where that is known.
    """
    from hpcstack.diagnose.logs import ended_at, explain_log, select_relevant
    from hpcstack.launch.failure import EndedBy, failure_in
    from hpcstack.launch.hang import describe_ranks, parse_ranks
    from hpcstack.launch.jobs import ended_how

    failure = failure_in(text)
    found = explain_log(text) if every else select_relevant(explain_log(text), failure, text)
    slurm = ended_because or (ended_how(job, session.runner) if job else "")
    said = slurm or failure.first or ("it ended with 0" if ended_well else "")
    if not slurm and failure.ended_by is EndedBy.WATCHDOG:
        slurm = said = "\n".join([said, *describe_ranks(parse_ranks(text))[0]])

    cause_is_said = failure.has_a_reason or (ended_well and not failure.first)
    shown = found if every else _select_causes(found, cause_is_said=cause_is_said)
    if slurm and not every:  # what a program says while it is ended explains nothing
        shown = [
            one for one in shown if one.number < ended_at(text) and one.signature.rank >= LEAST
        ]
        said = f"{said}; before that {failure.first}" if failure.host else said
    return Explained(said, shown, len(found) - len(shown), known=bool(found or said))


def _whole(said: str, shown: list[KnownFailure], hidden: int) -> str:
    """What happened first, then what is known of the log's lines."""
    from hpcstack.core.errors import format_count

    if said and not shown:
        return (
            f"{said}\n\n{format_count(hidden, 'known message')} besides: --all" if hidden else said
        )
    return f"{said}\n\n{_shown(shown, hidden)}" if said else _shown(shown, hidden)


def _select_causes(found: list[KnownFailure], *, cause_is_said: bool) -> list[KnownFailure]:
    """Return the few of FOUND that count: echoes only where nothing stronger is there, and nothing
    else is said.
    """
    strong = [finding for finding in found if finding.signature.rank >= LEAST]
    if strong:
        return strong[:MOST_SHOWN]
    return [] if cause_is_said else found[:MOST_SHOWN]


def _document(finding: KnownFailure) -> dict[str, Any]:
    known = finding.signature
    return {
        "id": known.id,
        "family": known.family,
        "rank": known.rank,
        "cause": finding.cause,
        "remedy": finding.remedy,
        "line": finding.line,
        "number": finding.number,
        "count": finding.count,
        "source": known.source,
    }


def _shown(shown: list[KnownFailure], hidden: int) -> str:
    if not shown:
        return (
            "nothing in it that is known here; the first error in the log is the best thing to "
            "search for"
        )
    out = []
    for finding in shown:
        times = f" ({finding.count} times)" if finding.count > 1 else ""
        out += [
            f"{finding.cause}",
            f"  line {finding.number}{times}: {finding.line[:300]}",
            f"  -> {finding.remedy}",
            f"     {finding.signature.id}, seen in {finding.signature.source}",
            "",
        ]
    return "\n".join([*out, *([f"{hidden} more, weaker ones: --all"] if hidden else [])])
