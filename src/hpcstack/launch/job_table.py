"""One table of a job's parts, such as the tasks of a sweep: how each stands, and what its log says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, format_count
from hpcstack.launch.log_lines import Labels, open_log, read_log_blocks
from hpcstack.launch.log_tail import read_last_lines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpcstack.core.progress import Progress
    from hpcstack.launch.jobs import JobPart

TAIL = 20  # lines of a log in which its last words are looked for
# What hpcstack's and Slurm's programs write behind a program's own last words
NOT_ITS_OWN = re.compile(r"hpcstack: |\* |srun: |slurmstepd[^ ]*: ")


@dataclass(frozen=True)
class PartRow:
    """How a part of a job stands: its state, elapsed time and nodes as Slurm writes them.

    `said` is the last line that its program wrote, `found` what was looked for in its log: of the last
    line that matches, the groups, or the whole match where there are none.
    """

    job: str
    state: str
    elapsed: str
    nodes: str
    log: str
    said: str
    found: tuple[str, ...] = ()


def compile_pattern(text: str) -> re.Pattern[str] | None:
    """Return the regular expression TEXT; None for an empty one. Raise InputError for a wrong one."""
    try:
        return re.compile(text) if text else None
    except re.error as error:
        raise InputError(f"--match {text!r}: {error}", r"--match 'loss=(\S+)'") from None


def make_part_rows(
    parts: Sequence[JobPart], pattern: re.Pattern[str] | None, progress: Progress
) -> list[PartRow]:
    """Return a row for each of PARTS, in whose logs PATTERN is looked for."""
    progress(f"reading the logs of {format_count(len(parts), 'part')}")
    rows = []
    for part in parts:
        said = ""
        found: tuple[str, ...] = ()
        for path in part.logs:
            try:
                said = said or _find_last_words(path)
                found = found or _find_last_match(path, pattern)
            except (OSError, InputError) as error:  # gone by now, or another user's
                said = said or f"{path} cannot be read: {error}"
        log = ", ".join(map(str, part.logs))
        state = str(part.state) or "?"
        rows.append(PartRow(part.job, state, part.elapsed, part.nodes, log, said, found))
    return rows


def _find_last_words(log: Path) -> str:
    """Return the last line that the program of LOG wrote itself; empty where it wrote none."""
    labels = Labels()
    for line in reversed(read_last_lines(log, TAIL)):
        said = labels.split(line)[1].strip()
        if said and not NOT_ITS_OWN.match(said):
            return said
    return ""


def _find_last_match(log: Path, pattern: re.Pattern[str] | None) -> tuple[str, ...]:
    """Return what the last line of LOG that has PATTERN says for it."""
    if not pattern:
        return ()
    last: tuple[str, ...] = ()
    with open_log(log) as file:
        for block in read_log_blocks(file):
            for line in block.decode("utf-8", "replace").splitlines():
                match = pattern.search(line)
                if match:
                    last = tuple(group or "" for group in match.groups()) or (match[0],)
    return last
