"""What a log says went wrong: known messages, ranked, each with its cause, what to type next, and where it was seen.

The messages are data (facts/signatures.yaml). A log may have millions of lines: each signature is looked for by a
literal part of its pattern first, in the whole text at once; only lines that hold it are searched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from hpcstack.hardware.facts import table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.launch.failure import Failure

LITERAL = 5  # a shorter literal is found nearly everywhere
LONGEST_LINE = 4096
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b\n]{0,4096}\x07")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Signature:
    """One known message. `rank` is how likely it is the root of the trouble where others are there, too (1 to 100)."""

    id: str
    family: str
    rank: int
    pattern: re.Pattern[str]
    cause: str
    remedy: str
    source: str
    literal: str


@dataclass(frozen=True)
class KnownFailure:
    """A message that is in a log: its first line with its number, how often it is there, all groups filled in."""

    signature: Signature
    line: str
    number: int
    count: int
    cause: str
    remedy: str


@cache
def signatures() -> tuple[Signature, ...]:
    """All known messages."""
    return tuple(
        Signature(row["id"], row["family"], int(row["rank"]), re.compile(row["pattern"]), row["cause"], row["remedy"],
                  row["source"], literal_of(row["pattern"]))
        for row in table("signatures")["signatures"]
    )  # fmt: skip


def literal_of(pattern: str) -> str:
    """The longest text that every match of PATTERN holds, as far as it is easily seen; empty where none is."""
    if pattern.startswith("(?i") or "|" in _outside(pattern):
        return ""
    return max(re.split("\0+", _outside(pattern)), key=len)


def _outside(pattern: str) -> str:
    """PATTERN without groups, classes and what is repeated or special, each of which leaves a null character."""
    out: list[str] = []
    depth = at = 0
    while at < len(pattern):
        sign, width = pattern[at], 1
        piece = "\0"
        if sign == "\\":
            width = 2
            piece = pattern[at + 1] if not pattern[at + 1].isalnum() else "\0"
        elif sign == "[":
            width = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]").match(pattern, at).end() - at  # type: ignore[union-attr]
        elif sign == "(":
            depth += 1
        elif sign == ")":
            depth -= 1
        elif sign in "*?{":
            if depth == 0 and out:
                out[-1] = "\0"
            width = pattern.index("}", at) - at + 1 if sign == "{" else 1
        elif sign == "|":
            piece = "|" if depth == 0 else "\0"
        elif sign not in ".^$+":
            piece = sign
        out.append(piece if depth == 0 else "\0")
        at += width
    return "".join(out)


def plain(text: str) -> str:
    """TEXT without what terminals take for commands."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return CONTROL.sub("", ESCAPES.sub("", text))


def explain(log: str) -> list[KnownFailure]:
    """What is known of the lines of LOG, the likeliest root first; of equals the earlier one."""
    text = plain(log)
    found = [finding for signature in signatures() if (finding := _find(signature, text))]
    return sorted(found, key=lambda finding: (-finding.signature.rank, finding.number))


def _find(signature: Signature, text: str) -> KnownFailure | None:
    first: re.Match[str] | None = None
    number = count = 0
    for start, line in _lines(signature.literal, text):
        if match := signature.pattern.search(line):
            count += 1
            if first is None:
                first, number = match, text.count("\n", 0, start) + 1
    if first is None:
        return None
    groups = {name: value or "?" for name, value in first.groupdict().items()}
    cause, remedy = (_filled(said, groups) for said in (signature.cause, signature.remedy))
    return KnownFailure(signature, first.string.strip(), number, count, cause, remedy)


def _lines(literal: str, text: str) -> Iterator[tuple[int, str]]:
    """(where it begins, the line) of every line that may match: those with LITERAL, or all where it says too little."""
    at = 0
    while at < len(text):
        if len(literal) >= LITERAL:
            at = text.find(literal, at)
            if at < 0:
                return
        start = text.rfind("\n", 0, at) + 1
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        near = max(start, at - LONGEST_LINE // 2) if end - start > LONGEST_LINE else start
        yield start, text[near : min(end, near + LONGEST_LINE)]
        at = end + 1


def _filled(said: str, groups: dict[str, str]) -> str:
    """SAID with {NAME} replaced by what the line has in its place."""
    return re.sub(r"\{(\w+)\}", lambda match: groups.get(match[1], match[0]), said)


# What srun says of tasks. After the step was cancelled it only says how the others were ended.
OF_TASKS = ("slurm-task-bus-error", "slurm-task-segfault", "slurm-task-killed", "slurm-task-terminated",
            "slurm-task-exit-code")  # fmt: skip
PIPS = re.compile(
    r"^\s*(Collecting \S|Building wheel|Preparing metadata|Getting requirements to build|error: subprocess)", re.M
)
ENDS = re.compile(r" CANCELLED AT |^hpcstack: nothing was written for ", re.M)


def select_relevant(found: list[KnownFailure], failure: Failure, text: str) -> list[KnownFailure]:
    """FOUND without what the rest of the log rules out: what became of other tasks once the first failure is known, and
    pip's isolated builds where pip did not run."""
    out, end = found, ended_at(text)
    if failure.host:
        out = [one for one in out if one.signature.id not in OF_TASKS or one.number < end]
    if not PIPS.search(text):
        out = [one for one in out if one.signature.id != "pip-build-module-missing"]
    return out


def ended_at(text: str) -> int:
    """The number of the line from which on a step was being ended; one more than there are where it was not."""
    match = ENDS.search(text)
    return text.count("\n", 0, match.start() + 1) + 1 if match else text.count("\n") + 2
