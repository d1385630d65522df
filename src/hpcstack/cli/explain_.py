"""`hpcstack explain`."""

from __future__ import annotations

import collections
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from hpcstack.cli.logfiles import MOST, end_of
from hpcstack.cli.session import Session, answer, json_option, say

if TYPE_CHECKING:
    from hpcstack.diagnose.logs import KnownFailure
    from hpcstack.diagnose.speakers import Clue
    from hpcstack.launch.jobs import JobPart

LEAST = 25  # the rank from which a known failure may be a cause; below, it is an echo of another
MOST_SHOWN = 5  # known failures that are shown
MOST_TASKS = 5  # failed tasks of an array that are named with their reason
MOST_UNKNOWN = 200  # logs of an array that are read of tasks whose end nobody knows
MOST_OF_A_TASK = 4 << 20  # bytes that are read of a task's log


@dataclass(frozen=True)
class Explained:
    """What happened, and the known failures that explain it.

    HIDDEN known failures more were found, which are weaker. An array has its TASKS. KNOWN is False
    where nothing is known of what happened. CLUES are lines that read like an error, with who says
    them, where no known failure explains anything. PAGE is the how-to page about it, if any.
    """

    said: str
    shown: list[KnownFailure]
    hidden: int = 0
    tasks: tuple[ExplainedTask, ...] = ()
    known: bool = True
    page: str = ""
    clues: tuple[Clue, ...] = ()


@dataclass(frozen=True)
class ExplainedTask:
    """A task of an array: its state in Slurm's words, and what happened, where that is known."""

    task: str
    state: str
    said: str = ""


@click.command("explain")
@click.argument("what", metavar="[LOG|JOB|-]", default="")
@click.option(
    "--all", "every", is_flag=True, help="Also show what is only an echo of something else."
)
@json_option
@click.pass_obj
def command(session: Session, what: str, every: bool, as_json: bool) -> NoReturn:
    """Explain what went wrong in a log or a job, and say what to type next.

    First comes what failed first, then the known failures that the log shows. Without an argument,
    it is the newest launch of this terminal, else the newest that failed. The tasks of a job array
    are explained one by one.

    Exit code 1: nothing is known of what happened. The lines that read like an error are shown then,
    with the program that says them and what it is for.
    """
    found = explain_what(session, what, every=every)
    document = {
        "said": found.said,
        "page": found.page,
        "findings": [_make_document(finding) for finding in found.shown],
        "clues": [_make_document_of_clue(clue) for clue in found.clues],
        "tasks": [asdict(task) for task in found.tasks],
    }
    answer(document, as_json, lambda: _format_text(found))
    raise click.exceptions.Exit(0 if found.known else 1)


def explain_what(session: Session, what: str, *, every: bool) -> Explained:
    """Explain WHAT: a log file, `-` for standard input, or a job's number.

    If it is empty, explain the launch that the user most likely asks about. Raise InputError for
    anything else.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.launch.jobs import parse_job_name
    from hpcstack.launch.log_lines import decode_log

    if what == "-":
        text = decode_log(sys.stdin.buffer.read(MOST))
        return _explain_text(session, text, "", every=every)
    if Path(what).is_file():
        return _explain_text(session, end_of(Path(what)), "", every=every)
    if not what:
        return _explain_newest(session, every=every)
    job = parse_job_name(what)
    if job:
        return _explain_job(session, job, every=every)
    raise InputError(
        f"{what}: no such file, and not the number of a job",
        "hpcstack explain LOG, JOB or - (standard input)",
        page="why-was-my-job-killed",
    )


def _explain_newest(session: Session, *, every: bool) -> Explained:
    """Explain the newest launch of this terminal, else the newest that failed."""
    from hpcstack.launch import stderr
    from hpcstack.launch.jobs import BY_CTRL_C
    from hpcstack.launch.record import find_failed

    launch = find_failed()
    say(f"the launch of {launch.started}: {launch.stack}")

    # a launch that was waited for keeps its stderr; a job's log is asked of Slurm
    kept_stderr = launch.folder / stderr.NAME
    if kept_stderr.is_file():
        return _explain_text(
            session,
            end_of(kept_stderr),
            "",
            every=every,
            ended_well=launch.status == 0,
            ended_because=BY_CTRL_C if launch.interrupted else "",
        )
    if launch.status == 0:
        return Explained("it ended with 0", [])
    return _explain_job(session, launch.job_or_array or launch.folder.name, every=every)


def _explain_job(session: Session, job: str, *, every: bool) -> Explained:
    """Explain a job of Slurm's by its logs, or a job array task by task."""
    from hpcstack.launch.jobs import find_job_parts, find_logs

    parts = find_job_parts(job, session.runner)
    if len(parts) > 1 and all(part.task for part in parts):
        return _explain_array(session, parts, every=every)

    paths = find_logs(job, session.runner)
    say(f"job {job}: {', '.join(map(str, paths))}")
    text = "\n".join(end_of(path) for path in paths)
    ended_well = any(part.state.word == "COMPLETED" for part in parts)
    return _explain_text(session, text, job, every=every, ended_well=ended_well)


def _explain_array(session: Session, parts: list[JobPart], *, every: bool) -> Explained:
    """Explain a job array by its PARTS.

    Say how many tasks are in which state, name the first few that failed with their reasons, and
    show the known failures of the first one's log.
    """
    from hpcstack.launch.failure import find_failure

    tasks: list[ExplainedTask] = []
    worth_naming: list[ExplainedTask] = []
    first = ""
    counts: collections.Counter[str] = collections.Counter()
    read = 0
    for part in parts:
        failed = part.state.has_failed
        said = text = ""

        # An array may have thousands of tasks: few logs are read, those that are worth it.
        is_one_of_the_first = failed and len(worth_naming) < MOST_TASKS
        is_unknown = not part.state.is_known and read < MOST_UNKNOWN
        if is_one_of_the_first or is_unknown:
            read += 1
            text = "\n".join(end_of(path, MOST_OF_A_TASK) for path in part.logs)
            failure = find_failure(text)
            said = failure.first
            # A host is named where a rank reported its own failure. A traceback alone may do no
            # harm.
            failed = failed or bool(failure.host)

        state = str(part.state)
        if not part.state.is_known:
            state = "FAILED, by its log" if failed else "ended, nobody knows how"
        task = ExplainedTask(part.job, state, said if failed else "")
        tasks.append(task)
        counts[state] += part.count
        if failed:
            worth_naming.append(task)
            first = first or text

    states = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    lines = [f"{counts.total()} tasks: {states}"]
    lines += [f"{task.task}: {task.said or task.state}" for task in worth_naming[:MOST_TASKS]]
    left = len(worth_naming) - MOST_TASKS
    if left > 0:
        array = parts[0].job.partition("_")[0]
        lines.append(f"{left} more: hpcstack explain {array}_TASK, --json")

    found = _explain_text(session, first, "", every=every) if first else Explained("", [])
    return Explained("\n".join(lines), found.shown, found.hidden, tuple(tasks), clues=found.clues)


def _explain_text(
    session: Session,
    text: str,
    job: str,
    *,
    every: bool,
    ended_well: bool = False,
    ended_because: str = "",
) -> Explained:
    """Explain a log by its TEXT, which is JOB's where that is known.

    EVERY keeps echoes and whatever else explains little. ENDED_WELL says that it is known to have
    succeeded, ENDED_BECAUSE why it was ended from outside, where that is known.
    """
    from hpcstack.diagnose.logs import explain_log, find_end, select_relevant
    from hpcstack.diagnose.speakers import find_clues
    from hpcstack.launch.failure import MEMORY_LIMIT, EndedBy, find_failure
    from hpcstack.launch.hang import describe_ranks, parse_ranks
    from hpcstack.launch.jobs import describe_job_end

    failure = find_failure(text)
    found = explain_log(text)
    if not every:
        found = select_relevant(found, failure, text)

    # who or what ended it from outside: Ctrl-C, Slurm, or the watchdog
    ended_by = ended_because
    if not ended_by and job:
        ended_by = describe_job_end(job, session.runner)
    said = ended_by or failure.first or ("it ended with 0" if ended_well else "")
    if not ended_by and failure.ended_by is EndedBy.WATCHDOG:
        ended_by = said = "\n".join([said, *describe_ranks(parse_ranks(text))[0]])

    cause_is_said = failure.has_a_reason or (ended_well and not failure.first)
    shown = found if every else _select_causes(found, cause_is_said=cause_is_said)
    if ended_by and not every:
        # what a program writes while it is being ended explains nothing
        end = find_end(text)
        shown = [one for one in shown if one.number < end and one.signature.rank >= LEAST]
        if failure.host:
            said = f"{said}; before that {failure.first}"

    # where nothing says why, it still helps to know who complains
    only_echoes = all(one.signature.rank < LEAST for one in shown)
    is_unexplained = only_echoes and not (ended_by or ended_well or cause_is_said)
    clues = tuple(find_clues(text)) if is_unexplained else ()

    page = ""
    if failure.ended_by is EndedBy.WATCHDOG:
        page = "find-a-hang"
    elif EndedBy.TIME_LIMIT.value in said:
        page = "stop-before-the-time-limit"
    elif EndedBy.NODE_FAILURE.value in said:
        page = "start-despite-a-bad-node"
    elif MEMORY_LIMIT in said:
        page = "why-was-my-job-killed"
    # what ended well needs no explanation: what programs say at their end is no matter then
    is_well = ended_well and not (shown or failure.first or ended_by)
    hidden = 0 if is_well else len(found) - len(shown)
    return Explained(said, shown, hidden, known=bool(found or said), page=page, clues=clues)


def _format_text(found: Explained) -> str:
    """Return what happened first, then what is known of the log's lines."""
    from hpcstack.core.errors import format_count

    if found.clues:
        known = _format_failures(found.shown, found.hidden) if found.shown else ""
        return "\n\n".join(
            part
            for part in (
                found.said,
                known,
                _format_clues(found.clues, beside_known=bool(found.shown)),
            )
            if part
        )
    if not found.said:
        return _format_failures(found.shown, found.hidden)
    said = found.said
    if found.page:
        said += f"\n  READ: hpcstack help {found.page}"
    if found.shown:
        return f"{said}\n\n{_format_failures(found.shown, found.hidden)}"
    if found.hidden:
        return f"{said}\n\n{format_count(found.hidden, 'known message')} besides: --all"
    return said


def _select_causes(found: list[KnownFailure], *, cause_is_said: bool) -> list[KnownFailure]:
    """Return the few of FOUND that count.

    Echoes count only where nothing stronger was found, and CAUSE_IS_SAID is False: nothing else
    says why.
    """
    strong = [finding for finding in found if finding.signature.rank >= LEAST]
    if strong:
        return strong[:MOST_SHOWN]
    if cause_is_said:
        return []
    return found[:MOST_SHOWN]


def _make_document(finding: KnownFailure) -> dict[str, Any]:
    known = finding.signature
    return {
        "id": known.id,
        "family": known.family,
        "rank": known.rank,
        "cause": finding.cause,
        "remedy": finding.remedy,
        "page": known.page,
        "line": finding.line,
        "number": finding.number,
        "count": finding.count,
        "source": known.source,
    }


def _make_document_of_clue(clue: Clue) -> dict[str, Any]:
    speaker = clue.speaker
    return {
        "line": clue.line,
        "number": clue.number,
        "speaker": speaker.id if speaker else "",
        "who": speaker.who if speaker else "",
        "about": speaker.about if speaker else "",
        "next": speaker.next if speaker else "",
        "source": speaker.source if speaker else "",
        "words": clue.words,
        "means": clue.means,
    }


def _format_clues(clues: tuple[Clue, ...], *, beside_known: bool) -> str:
    """Return each line that reads like an error, who says it, and what its words mean.

    BESIDE_KNOWN says that a known message is shown above.
    """
    head = "no known message explains it; what reads like an error, and who says it:"
    if beside_known:
        head = "besides, what reads like an error, and who says it:"
    out = [head, ""]
    for clue in clues:
        out.append(f"line {clue.number}: {clue.line[:300]}")
        if clue.speaker:
            out.append(f"  said by {clue.speaker.who}, which {clue.speaker.about}")
        if clue.means:
            out.append(f'  "{clue.words}" means that {clue.means}')
        if clue.speaker:
            out.append(f"  -> {clue.speaker.next}")
            out.append(f"     {clue.speaker.source}")
        out.append("")
    return "\n".join(out)


def _format_failures(shown: list[KnownFailure], hidden: int) -> str:
    """Return each known failure with its line, its remedy and where it was seen."""
    if not shown:
        return (
            "nothing in it is known here; the first error in the log is the best thing to search "
            "for"
        )

    out = []
    for finding in shown:
        times = f" ({finding.count} times)" if finding.count > 1 else ""
        out += [
            f"{finding.cause}",
            f"  line {finding.number}{times}: {finding.line[:300]}",
            f"  -> {finding.remedy}",
            f"     {finding.signature.id}, seen in {finding.signature.source}",
        ]
        if finding.signature.page:
            out.append(f"  READ: hpcstack help {finding.signature.page}")
        out.append("")
    if hidden:
        out.append(f"{hidden} more, weaker ones: --all")
    return "\n".join(out)
