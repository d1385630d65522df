"""`hpcstack explain`."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from hpcstack.cli.session import Session, answer, json_option, say, show_progress

if TYPE_CHECKING:
    from hpcstack.core.progress import Progress
    from hpcstack.diagnose.explanation import Explained
    from hpcstack.diagnose.signatures import KnownFailure
    from hpcstack.diagnose.speakers import Clue


@click.command("explain")
@click.argument("what", metavar="[LOG|JOB|-]", default="")
@click.option(
    "--all", "every", is_flag=True, help="Also show what is only an echo of something else."
)
@json_option
@click.pass_obj
def command(session: Session, what: str, every: bool, as_json: bool) -> NoReturn:
    """Explain what went wrong in a log or a job, and say what to type next.

    First comes the state, in Slurm's word, with what ended the job or failed first; then the known
    failures that the log shows of it. Without an argument, it is the newest launch of this terminal,
    else the newest that failed. The tasks of a job array are explained one by one.

    Exit code 1: nothing is known of what happened. The lines that read like an error are shown then,
    with the program that says them and what it is for.
    """
    with show_progress("reading") as progress:
        found = explain_what(session, what, progress, every=every)
    document = {
        "state": str(found.state),
        "said": found.said,
        "rank": found.rank,
        "host": found.host,
        "tip": found.tip,
        "page": found.page,
        "findings": [_make_document(finding) for finding in found.shown],
        "clues": [_make_document_of_clue(clue) for clue in found.clues],
        "tasks": [asdict(task) for task in found.tasks],
    }
    answer(document, as_json, lambda: _format_text(found))
    raise click.exceptions.Exit(0 if found.known else 1)


def explain_what(session: Session, what: str, progress: Progress, *, every: bool) -> Explained:
    """Explain WHAT: a log file, a pipe, `-` for standard input, or a job's number.

    If it is empty, explain the launch that the user most likely asks about. Raise InputError for
    anything else.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.diagnose.explanation import (
        explain_job,
        explain_reading,
        explain_stream,
        read_files,
    )
    from hpcstack.launch.jobs import JobPart, parse_job_name

    if what == "-":
        return explain_stream(sys.stdin.buffer, "standard input", progress, every=every)
    path = Path(what)
    if path.is_file():
        return explain_reading(read_files([path], progress), JobPart(""), every=every)
    if path.is_fifo():  # as a shell makes one of <(zcat LOG)
        with path.open("rb") as file:
            return explain_stream(file, what, progress, every=every)
    if not what:
        return _explain_newest(session, progress, every=every)
    job = parse_job_name(what)
    if job:
        return explain_job(job, session.runner, progress, every=every)
    raise InputError(
        f"{what}: no such file, and not the number of a job",
        "hpcstack explain LOG, JOB or - (standard input)",
        page="why-was-my-job-killed",
    )


def _explain_newest(session: Session, progress: Progress, *, every: bool) -> Explained:
    """Explain the newest launch of this terminal, else the newest that failed."""
    from hpcstack.diagnose.explanation import explain_job, explain_launch
    from hpcstack.launch import stderr
    from hpcstack.launch.record import find_failed

    launch = find_failed()
    say(f"the launch of {launch.started}: {launch.stack}")

    # a launch that was waited for keeps its stderr; a job's log is asked of Slurm
    kept_stderr = launch.folder / stderr.NAME
    if kept_stderr.is_file():
        return explain_launch(launch, kept_stderr, session.runner, progress, every=every)
    job = launch.job_or_array or launch.folder.name
    return explain_job(job, session.runner, progress, every=every)


def _format_text(found: Explained) -> str:
    """Return what happened first, then what is known of the log's lines."""
    from hpcstack.core.errors import format_count

    said = found.said
    if found.state.is_known and said:
        state = replace(found.state, cancelled_by="")  # whom the sentence behind it names
        said = f"{state}: {said}"
    if said and found.tip:
        said += "\n" + found.tip if found.tip.startswith("  ") else f"\n  TIP: {found.tip}"
    if said and found.page:
        said += f"\n  READ: hpcstack help {found.page}"

    known = _format_failures(found.shown, found.hidden) if found.shown else ""
    clues = ""
    if found.clues:
        clues = _format_clues(found.clues, beside_known=bool(found.shown))
    elif not said and not known:
        known = NOTHING_KNOWN
    hidden = ""
    if found.hidden and not found.shown and not clues:
        hidden = f"{format_count(found.hidden, 'known message')} besides: --all"
    answers = (known, said) if found.known_first else (said, known)
    return "\n\n".join(filter(None, (*answers, clues, hidden)))


NOTHING_KNOWN = (
    "nothing in it is known here; the first error in the log is the best thing to search for"
)


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
