"""`hpcstack explain`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcstack.cli.logfiles import MOST, end_of
from hpcstack.cli.session import Session, answer, json_option, say

if TYPE_CHECKING:
    from hpcstack.diagnose.logs import KnownFailure

LEAST = 25  # the rank of what may be a cause; less is an echo
JOB = re.compile(r"[0-9]+(_[0-9]+)?")


@click.command("explain")
@click.argument("what", metavar="[LOG|JOB|-]", default="")
@click.option("--all", "every", is_flag=True, help="Also what is only an echo of something else.")
@json_option
@click.pass_obj
def command(session: Session, what: str, every: bool, as_json: bool) -> None:
    """Say what failed first, what known failures a log shows, and what to do. For nothing: the newest launch.

    Exit 1: nothing that is known.
    """
    from hpcstack.diagnose.logs import ended_at, explain, select_relevant
    from hpcstack.launch.failure import failure_in
    from hpcstack.launch.hang import parse, told

    text = _text(session, what)
    failure = failure_in(text)
    found = explain(text) if every else select_relevant(explain(text), failure, text)
    slurm = _slurm_says(session, what)
    said = slurm or failure.first or ("it ended with 0" if _ended_well(session, what) else "")
    if said.startswith("nothing was written"):
        slurm = said = "\n".join([said, *told(parse(text))[0]])
    shown = found if every else _told(found, said)
    if slurm and not every:  # what a program says while it is ended explains nothing
        shown = [one for one in shown if one.number < ended_at(text) and one.signature.rank >= LEAST]
        said = f"{said}; before that {failure.first}" if failure.host else said
    document = {"said": said, "findings": [_document(finding) for finding in shown]}
    answer(document, as_json, lambda: _whole(said, shown, len(found) - len(shown)))
    raise click.exceptions.Exit(0 if found or said or not (what or text) else 1)


def _slurm_says(session: Session, what: str) -> str:
    """How a job ended, where Slurm itself ended it."""
    from hpcstack.launch.jobs import ended_how

    return ended_how(what, session.runner) if JOB.fullmatch(what) else ""


def _ended_well(session: Session, what: str) -> bool:
    """Whether the job or launch that is meant is known to have ended with 0."""
    from hpcstack.core.errors import InputError
    from hpcstack.launch.jobs import states
    from hpcstack.launch.record import find

    if JOB.fullmatch(what):
        return states([what], session.runner).get(what, "") == "COMPLETED"
    try:
        return not what and find("").status == 0
    except InputError:
        return False


def _whole(said: str, shown: list[KnownFailure], hidden: int) -> str:
    """What happened first, then what is known of the log's lines."""
    from hpcstack.core.errors import counted

    if said and not shown:
        return f"{said}\n\n{counted(hidden, 'known message')} besides: --all" if hidden else said
    return f"{said}\n\n{_shown(shown, hidden)}" if said else _shown(shown, hidden)


def _told(found: list[KnownFailure], said: str, least: int = LEAST, most: int = 5) -> list[KnownFailure]:
    """The few that count: echoes are left out where something stronger is there, or the cause itself is SAID."""
    strong = [finding for finding in found if finding.signature.rank >= least]
    return (strong or ([] if ": " in said or said == "it ended with 0" else found))[:most]


def _document(finding: KnownFailure) -> dict[str, Any]:
    known = finding.signature
    return {
        "id": known.id, "family": known.family, "rank": known.rank, "cause": finding.cause, "remedy": finding.remedy,
        "line": finding.line, "number": finding.number, "count": finding.count, "source": known.source,
    }  # fmt: skip


def _shown(shown: list[KnownFailure], hidden: int) -> str:
    if not shown:
        return "nothing in it that is known here; the first error in the log is the best thing to search for"
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


def _text(session: Session, what: str) -> str:
    """The log that WHAT means: a file, standard input, or what a job of Slurm has written."""
    from hpcstack.core.errors import InputError

    if what == "-":
        return sys.stdin.buffer.read(MOST).decode(errors="replace")
    if Path(what).is_file():
        return end_of(Path(what))
    if not what:
        from hpcstack.launch import stderr
        from hpcstack.launch.record import find

        newest = find("")
        own = newest.folder / stderr.NAME
        say(f"the newest launch: {newest.stack}, {newest.started}")
        if newest.status == 0 and not own.is_file():
            return ""
        return end_of(own) if own.is_file() else _text(session, newest.job or "nothing")
    if JOB.fullmatch(what):
        from hpcstack.launch.jobs import logs_of

        paths = logs_of(what, session.runner)
        say(f"job {what}: {', '.join(map(str, paths))}")
        return "\n".join(end_of(path) for path in paths)
    raise InputError(f"{what}: no such file, and no number of a job", "hpcstack explain LOG, JOB or - (standard input)")
