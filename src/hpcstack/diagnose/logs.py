"""What a log says went wrong: known messages, ranked, each with its cause, what to type next, and
where it was seen.

The messages are data (facts/signatures.yaml, signatures-system.yaml). A log may have millions of
lines: a signature none of whose words is in the log at all is left out; others are looked for by a
literal part of their pattern, in the whole text at once, and only lines that hold it are searched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from hpcstack.hardware.facts import read_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.launch.failure import Failure

LITERAL = 5  # a shorter literal is found nearly everywhere
LONGEST_LINE = 4096
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b\n]{0,4096}\x07")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Signature:
    """One known message.

    `rank` is how likely it is the root of the trouble where others are there, too (1 to 100).
    """

    id: str
    family: str
    rank: int
    pattern: re.Pattern[str]
    cause: str
    remedy: str
    source: str
    literals: tuple[str, ...]
    words: tuple[str, ...]


@dataclass(frozen=True)
class KnownFailure:
    """A message that is in a log: its first line with its number, how often it is there, all groups
    filled in.
    """

    signature: Signature
    line: str
    number: int
    count: int
    cause: str
    remedy: str


@cache
def read_signatures() -> tuple[Signature, ...]:
    """All known messages: of programs (signatures.yaml) and of the system below them
    (signatures-system.yaml).
    """
    return tuple(
        Signature(
            row["id"],
            row["family"],
            int(row["rank"]),
            re.compile(row["pattern"]),
            row["cause"],
            row["remedy"],
            row["source"],
            literals_of(row["pattern"]),
            words_of_pattern(row["pattern"]),
        )
        for name in ("signatures", "signatures-system")
        for row in read_facts(name)["signatures"]
    )


@cache
def read_harmless() -> tuple[re.Pattern[str], ...]:
    """Whole lines that are looked over."""
    return tuple(
        re.compile(f"^{row['pattern']}$", re.MULTILINE)
        for row in read_facts("signatures")["harmless"]
    )


def literals_of(pattern: str) -> tuple[str, ...]:
    """Texts, in small letters, of which every match of PATTERN holds one; none where that is not
    easily seen.
    """
    found = tuple(max(re.split("\0+", part), key=len).lower() for part in _ways(pattern))
    return found if all(len(one) >= LITERAL for one in found) else ()


def _ways(pattern: str) -> list[str]:
    """What PATTERN matches in one way or the other, as `_outside` has it."""
    inner = re.fullmatch(r"\(\?i?:((?:[^()\\]|\\.|\((?:[^()\\]|\\.)*\))*)\)", pattern)
    return _outside(inner[1] if inner else pattern.removeprefix("(?i)")).split("|")


def words_of_pattern(pattern: str) -> tuple[str, ...]:
    """Words, in small letters, of which every text that PATTERN matches has one; none where that is
    not easily seen.
    """
    out = []
    for part in _ways(pattern):
        found = max(re.findall(r"[A-Za-z]{3,}", part), key=len, default="")
        if not found:
            return ()
        out.append(found.lower())
    return tuple(out)


SMALL = {byte: byte + 32 for byte in range(ord("A"), ord("Z") + 1)}
LETTERS = bytes(byte if chr(byte).isalpha() and byte < 128 else 32 for byte in range(256))
CHUNK, OVERLAP = 1 << 20, 64


def words_of_text(text: str) -> str:
    """Every word of TEXT, once, in small letters, a line each: a log repeats itself, and most
    signatures are told to be absent by this alone.
    """
    data = text.encode("utf-8", "replace")
    found: set[bytes] = set()
    for at in range(0, len(data), CHUNK):
        found.update(data[max(0, at - OVERLAP) : at + CHUNK].translate(LETTERS).split())
    return b"\n".join(found).decode("ascii").lower()


def _outside(pattern: str) -> str:
    """PATTERN without groups, classes and what is repeated or special, each of which leaves a null
    character.
    """
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


def strip_escapes(text: str) -> str:
    """TEXT without what terminals take for commands."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return CONTROL.sub("", ESCAPES.sub("", text))


def explain_log(log: str) -> list[KnownFailure]:
    """What is known of the lines of LOG, the likeliest root first; of equals the earlier one."""
    text = without_harmless(strip_escapes(log))
    words = words_of_text(text)
    likely = [
        one
        for one in read_signatures()
        if not one.words or any(word in words for word in one.words)
    ]
    small = text.lower()
    if len(small) != len(text):  # a few letters of other scripts are two in small
        small = text.translate(SMALL)
    found = [finding for signature in likely if (finding := _find(signature, text, small))]
    return sorted(found, key=lambda finding: (-finding.signature.rank, finding.number))


def without_harmless(text: str) -> str:
    """TEXT with each line empty that reads like a failure and is none."""
    for pattern in read_harmless():
        text = pattern.sub("", text)
    return text


def _find(signature: Signature, text: str, small: str) -> KnownFailure | None:
    first: re.Match[str] | None = None
    number = count = 0
    for start, line in _lines(signature.literals, text, small):
        if match := signature.pattern.search(line):
            count += 1
            if first is None:
                first, number = match, text.count("\n", 0, start) + 1
    if first is None:
        return None
    groups = {name: value or "?" for name, value in first.groupdict().items()}
    cause, remedy = (_filled(said, groups) for said in (signature.cause, signature.remedy))
    return KnownFailure(signature, first.string.strip(), number, count, cause, remedy)


def _lines(literals: tuple[str, ...], text: str, small: str) -> Iterator[tuple[int, str]]:
    """(where it begins, the line) of every line that may match: those with one of LITERALS, or all
    without any.

    SMALL is TEXT in small letters, as the literals are.
    """
    nexts = dict.fromkeys(literals, -1)
    at = 0
    while at < len(text):
        for literal, place in nexts.items():
            if place < at:
                nexts[literal] = small.find(literal, at) if place != len(text) else place
                nexts[literal] = len(text) if nexts[literal] < 0 else nexts[literal]
        at = min(nexts.values(), default=at)
        if at >= len(text):
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


PIPS = re.compile(
    r"^\s*(Collecting \S|Building wheel|Preparing metadata|Getting requirements to build|error: subprocess)",
    re.M,
)
# How a log says that a step is being ended: slurmstepd, or srun's word of --kill-on-bad-exit, or
# the watchdog.
ENDS = re.compile(
    r" CANCELLED AT |^hpcstack: nothing was written for |^hpcstack: interrupted"
    r"|^.*srun: .*(?:Terminating (?:StepId=|job step )|Job step aborted: )",
    re.M,
)
OTHER_RANK = re.compile(r"(?: *\d+: )?\[rank(\d+)\]: ")
# What is said after the end, and is a cause all the same: Slurm looks for kills by memory when a
# step is over.
OUT_OF_MEMORY = ("slurm-oom-kill", "slurm-task-out-of-memory", "slurm-memory-limit-some-point")
# What srun says of tasks that were killed: they have no last words, and may be the cause until the
# step is ended.
OF_KILLED_TASKS = ("slurm-task-bus-error", "slurm-task-segfault", "slurm-task-killed")


def select_relevant(found: list[KnownFailure], failure: Failure, text: str) -> list[KnownFailure]:
    """FOUND without what the rest of the log rules out.

    Whatever is said after the first rank has failed, or after the step was ended, is what others
    made of it: a bus error where the image went away under a launcher, a connection that a peer
    closed. So is what another rank says. pip's isolated builds are no cause where pip did not run.
    """
    lines = strip_escapes(text).split("\n")
    step_ends = ended_at("\n".join(lines))
    rank_ends = next(
        (number for number, line in enumerate(lines, 1) if failure.line and failure.line in line),
        step_ends,
    )

    def is_cause(one: KnownFailure) -> bool:
        known = one.signature.id
        if known in OUT_OF_MEMORY:
            return True
        if known in OF_KILLED_TASKS:
            return one.number < step_ends
        if one.number == step_ends and not failure.line:
            return True  # why Slurm ended it stands in the very line that says so
        return one.number < rank_ends and _may_be_of(failure.rank, lines[one.number - 1])

    out = [one for one in found if is_cause(one)]
    if not PIPS.search(text):
        out = [one for one in out if one.signature.id != "pip-build-module-missing"]
    return out


def _may_be_of(rank: str, line: str) -> bool:
    """Whether LINE may be RANK's: torch puts its rank before the lines of a traceback."""
    other = OTHER_RANK.match(line)
    return not rank or not other or other[1] == rank


def ended_at(text: str) -> int:
    """The number of the line from which on a step was being ended; one more than there are where it
    was not.
    """
    match = ENDS.search(text)
    return text.count("\n", 0, match.start() + 1) + 1 if match else text.count("\n") + 2
