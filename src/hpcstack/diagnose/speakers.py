"""Say of an unknown message what can be said: who writes it, and what its last words mean.

Where no signature knows a line, its form still tells which program or part of one it is of, and the
system's own words in it ("Connection refused") mean the same whoever repeats them. Both are data:
facts/speakers.yaml. This is no explanation, and nothing decides by it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from hpcstack.core.data import read_facts

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_CLUES = 3  # lines that are shown
MOST_LOOKED_AT = 1000  # lines that read like an error
# how a line reads that tells of a failure; the weaker ones count where there is no stronger one
STRONG = re.compile(
    r"(?i)\b(?:error|fatal|fail(?:ed|s|ure)?|cannot|can't|could ?n[o']t|unable|denied|refused|killed"
    r"|abort(?:ed|ing)?|panic|corrupt(?:ed|ion)?|crash(?:ed)?|segfault|exception|critical|emerg"
    r"|assertion|lockup|xid|unreachable|mismatch(?:ed)?|expired|rejected)\b|\w(?:Error|Exception)\b"
)
WEAK = re.compile(
    r"(?i)\bwarn(?:ing)?\b|\bnot (?:found|supported|permitted|available|responding|valid|allowed)\b"
    r"|\binvalid\b|\bexceed(?:ed|s)?\b|\btime[d-]?[ -]?out\b|\bno such\b|\bmissing\b|\blost\b"
    r"|\bbad\b|\bunsupported\b|\bblocked\b|\bunknown\b|\bno \w+ (?:found|available|left)\b"
)


@dataclass(frozen=True)
class Suspect:
    """A LINE of a log that reads like an error, or IS_STRONG False, like a warning."""

    line: str
    number: int  # of the line, from 1
    is_strong: bool = True


@dataclass(frozen=True)
class Speaker:
    """A program, or a part of one, that writes lines of a form that can be told."""

    id: str
    who: str
    pattern: re.Pattern[str]
    about: str  # what it does, as in "NCCL's bootstrap lets the ranks find one another"
    next: str  # what to type, or whom to ask
    source: str


@dataclass(frozen=True)
class Reason:
    """Words of the system or of a library, and what they mean."""

    words: re.Pattern[str]
    means: str


@dataclass(frozen=True)
class Clue:
    """A line that reads like an error; its speaker, and what its words mean, if those are known."""

    line: str
    number: int  # of the line, from 1
    speaker: Speaker | None
    words: str  # those that have a meaning, as the line has them
    means: str


@cache
def read_speakers() -> tuple[Speaker, ...]:
    """Return all known speakers, a part before the whole."""
    return tuple(
        Speaker(
            id=row["id"],
            who=row["who"],
            pattern=re.compile(row["pattern"]),
            about=row["about"],
            next=row["next"],
            source=row["source"],
        )
        for row in read_facts("speakers")["speakers"]
    )


@cache
def read_reasons() -> tuple[Reason, ...]:
    """Return all words whose meaning is known."""
    rows = read_facts("speakers")["reasons"]
    return tuple(Reason(re.compile(f"(?i){row['words']}"), row["means"]) for row in rows)


def find_clues(suspects: Iterable[Suspect]) -> list[Clue]:
    """Return the first of SUSPECTS, one of a speaker and meaning: the strong, where there are some."""
    suspects = list(suspects)
    strong = [one for one in suspects if one.is_strong]
    out: list[Clue] = []
    seen: set[tuple[str, str]] = set()
    for suspect in sorted(strong or suspects, key=lambda one: one.number):
        clue = make_clue(suspect.line, suspect.number)
        key = (clue.speaker.id if clue.speaker else "", clue.means)
        if key == ("", "") or key in seen:
            continue
        seen.add(key)
        out.append(clue)
        if len(out) == MOST_CLUES:
            break
    return out


def make_clue(line: str, number: int) -> Clue:
    """Return what is known of LINE, the NUMBERth of its log."""
    speaker = next((one for one in read_speakers() if one.pattern.search(line)), None)
    for reason in read_reasons():
        match = reason.words.search(line)
        if match:
            return Clue(line, number, speaker, match[0], reason.means)
    return Clue(line, number, speaker, "", "")
