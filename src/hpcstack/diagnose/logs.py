"""Find known messages in a log and rank them, each with its cause and what to type next.

The messages are data, called signatures: facts/signatures*.yaml, each with the source of what it
says.

A log may have millions of lines, so not every pattern is tried on every line. A signature none of
whose words is anywhere in the log is left out. The others are looked for by a literal part of their
pattern, in the whole text at once; only lines that have it are searched by the pattern.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from hpcstack.hardware.facts import read_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.launch.failure import Failure

# The files of facts that hold them
FACTS = (
    "signatures",
    "signatures-system",
    "signatures-cluster",
    "signatures-network",
    "signatures-training",
    "signatures-machine",
)
LITERAL = 5  # letters; a shorter literal is found nearly everywhere
LONGEST_LINE = 4096  # of a longer line only the part around the literal is searched
# what terminals take for commands: CSI and OSC sequences, and all other control characters
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b\n]{0,4096}\x07")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Signature:
    """One known message."""

    id: str
    family: str
    rank: int  # 1 to 100: how likely it is the root, where other messages are there, too
    pattern: re.Pattern[str]
    cause: str
    remedy: str
    source: str
    page: str  # the how-to page about it; empty for none
    of_node: bool  # it is about a machine: the job may do better without the node
    literals: tuple[str, ...]  # of its pattern, see `list_literals`
    words: tuple[str, ...]  # of its pattern, see `list_words_of_pattern`


@dataclass(frozen=True)
class KnownFailure:
    """A known message that is in a log."""

    signature: Signature
    line: str  # the first line that has it
    number: int  # of that line, from 1
    count: int  # lines that have it
    cause: str  # the signature's, with what the line says filled in
    remedy: str  # likewise


@cache
def read_signatures() -> tuple[Signature, ...]:
    """Return all known messages."""
    rows = [row for name in FACTS for row in read_facts(name)["signatures"]]
    return tuple(_make_signature(row) for row in rows)


def _make_signature(row: dict[str, Any]) -> Signature:
    """Return the signature that is a ROW of facts."""
    pattern = row["pattern"]
    return Signature(
        id=row["id"],
        family=row["family"],
        rank=int(row["rank"]),
        pattern=re.compile(pattern),
        cause=row["cause"],
        remedy=row["remedy"],
        source=row["source"],
        page=row.get("page", ""),
        of_node=bool(row.get("of_node")),
        literals=list_literals(pattern),
        words=list_words_of_pattern(pattern),
    )


@cache
def read_harmless() -> tuple[re.Pattern[str], ...]:
    """Return patterns of whole lines that read like a failure and are none."""
    return tuple(
        re.compile(f"^{row['pattern']}$", re.MULTILINE)
        for row in read_facts("signatures")["harmless"]
    )


def list_literals(pattern: str) -> tuple[str, ...]:
    """Return texts, in small letters, of which every match of PATTERN has one.

    Empty where that is not easily seen, or where one of them is short.
    """
    found = tuple(max(re.split("\0+", part), key=len).lower() for part in _split_ways(pattern))
    return found if all(len(one) >= LITERAL for one in found) else ()


def _split_ways(pattern: str) -> list[str]:
    """Return the alternatives of PATTERN, each as `_keep_literals` leaves it."""
    # a group around the whole pattern
    inner = re.fullmatch(r"\(\?i?:((?:[^()\\]|\\.|\((?:[^()\\]|\\.)*\))*)\)", pattern)
    whole = inner[1] if inner else pattern.removeprefix("(?i)")
    return _keep_literals(whole).split("|")


def list_words_of_pattern(pattern: str) -> tuple[str, ...]:
    """Return words, in small letters, of which every text that PATTERN matches has one.

    Empty where that is not easily seen.
    """
    out = []
    for part in _split_ways(pattern):
        found = max(re.findall(r"[A-Za-z]{3,}", part), key=len, default="")
        if not found:
            return ()
        out.append(found.lower())
    return tuple(out)


SMALL = {byte: byte + 32 for byte in range(ord("A"), ord("Z") + 1)}
# each byte that is no ASCII letter becomes a space
LETTERS = bytes(byte if chr(byte).isalpha() and byte < 128 else 32 for byte in range(256))
CHUNK = 1 << 20
OVERLAP = 64  # so that a word at the end of a chunk is whole in the next one


def list_words_of_text(text: str) -> str:
    """Return every word of TEXT once, in small letters, one a line.

    A log repeats itself, so this is short, and most signatures are found to be absent by it alone.
    """
    data = text.encode("utf-8", "replace")
    found: set[bytes] = set()
    for at in range(0, len(data), CHUNK):
        chunk = data[max(0, at - OVERLAP) : at + CHUNK]
        found.update(chunk.translate(LETTERS).split())
    return b"\n".join(found).decode("ascii").lower()


def _keep_literals(pattern: str) -> str:
    """Return PATTERN with only what stands for itself, and its `|` outside of groups.

    Groups, classes, and what is repeated or special are null characters.
    """
    out: list[str] = []
    depth = at = 0
    while at < len(pattern):
        sign = pattern[at]
        width = 1
        piece = "\0"
        if sign == "\\":
            width = 2
            # \d and the like are classes, \. and the like stand for themselves
            if not pattern[at + 1].isalnum():
                piece = pattern[at + 1]
        elif sign == "[":
            width = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]").match(pattern, at).end() - at  # type: ignore[union-attr]
        elif sign == "(":
            depth += 1
        elif sign == ")":
            depth -= 1
        elif sign in "*?{":
            # what it repeats need not be there
            if depth == 0 and out:
                out[-1] = "\0"
            if sign == "{":
                width = pattern.index("}", at) - at + 1
        elif sign not in ".^$+":
            piece = sign
        out.append(piece if depth == 0 else "\0")
        at += width
    return "".join(out)


def strip_escapes(text: str) -> str:
    """Return TEXT without what terminals take for commands; carriage returns end lines."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return CONTROL.sub("", ESCAPES.sub("", text))


def explain_log(log: str) -> list[KnownFailure]:
    """Return what is known of LOG, the likeliest root first; of equals the earlier one first."""
    text = without_harmless(strip_escapes(log))
    small = text.lower()
    if len(small) != len(text):  # a few letters of other scripts become two
        small = text.translate(SMALL)

    words = list_words_of_text(text)
    found = []
    for signature in read_signatures():
        if signature.words and not any(word in words for word in signature.words):
            continue
        failure = _find_signature(signature, text, small)
        if failure:
            found.append(failure)
    return sorted(found, key=lambda one: (-one.signature.rank, one.number))


def without_harmless(text: str) -> str:
    """Return TEXT with each line emptied that reads like a failure and is none."""
    for pattern in read_harmless():
        text = pattern.sub("", text)
    return text


def _find_signature(signature: Signature, text: str, small: str) -> KnownFailure | None:
    """Return SIGNATURE as it is found in TEXT; None where it is not. SMALL: see `_list_lines`."""
    first: re.Match[str] | None = None
    number = count = 0
    for start, line in _list_lines(signature.literals, text, small):
        match = signature.pattern.search(line)
        if not match:
            continue
        count += 1
        if first is None:
            first = match
            number = text.count("\n", 0, start) + 1
    if first is None:
        return None

    groups = {name: value or "?" for name, value in first.groupdict().items()}
    cause = _fill_in(signature.cause, groups)
    remedy = _fill_in(signature.remedy, groups)
    return KnownFailure(signature, first.string.strip(), number, count, cause, remedy)


def _list_lines(literals: tuple[str, ...], text: str, small: str) -> Iterator[tuple[int, str]]:
    """Yield (where it begins, the line) of each line of TEXT that has one of LITERALS.

    Without LITERALS that is every line. SMALL is TEXT in small letters, as the literals are. Of a
    very long line only the part around the literal is given.
    """
    end_of_text = len(text)
    nexts = dict.fromkeys(literals, -1)  # where each literal comes next; the end where it does not
    at = 0
    while at < end_of_text:
        for literal, place in nexts.items():
            if place < at:
                found = small.find(literal, at)
                nexts[literal] = end_of_text if found < 0 else found
        at = min(nexts.values(), default=at)
        if at >= end_of_text:
            return

        start = text.rfind("\n", 0, at) + 1
        end = text.find("\n", at)
        if end < 0:
            end = end_of_text
        near = start
        if end - start > LONGEST_LINE:
            near = max(start, at - LONGEST_LINE // 2)
        yield start, text[near : min(end, near + LONGEST_LINE)]
        at = end + 1


def _fill_in(said: str, groups: dict[str, str]) -> str:
    """Return SAID with each {NAME} replaced by what the line has in its place."""
    return re.sub(r"\{(\w+)\}", lambda match: groups.get(match[1], match[0]), said)


# lines that pip prints when it builds something
PIPS = re.compile(
    r"^\s*(Collecting \S|Building wheel|Preparing metadata|Getting requirements to build"
    r"|error: subprocess)",
    re.M,
)
# how a log says that a step is being ended: by slurmstepd, by srun with --kill-on-bad-exit, or by
# the watchdog
ENDS = re.compile(
    r" CANCELLED AT |^hpcstack: nothing was written for |^hpcstack: interrupted"
    r"|^.{0,400}srun: .{0,400}(?:Terminating (?:StepId=|job step )|Job step aborted: )",
    re.M,
)
OTHER_RANK = re.compile(r"^(?: *\d{1,9}: )?\[rank(\d+)\]: ")
# signatures that are a cause although they are said after the end: Slurm looks for kills by memory
# when a step is over
OUT_OF_MEMORY = ("slurm-oom-kill", "slurm-task-out-of-memory", "slurm-memory-limit-some-point")
# signatures of what srun says of tasks that were killed: these have no last words of their own, so
# they may be the cause until the step is ended
OF_KILLED_TASKS = ("slurm-task-bus-error", "slurm-task-segfault", "slurm-task-killed")


def select_relevant(found: list[KnownFailure], failure: Failure, text: str) -> list[KnownFailure]:
    """Return FOUND without what the rest of the log, TEXT, rules out as the cause of FAILURE.

    What is said after the first rank has failed, or after the step was ended, follows from that: a
    bus error where the image went away under a launcher, a connection that a peer closed. So does
    what another rank says. pip's isolated builds are no cause where pip did not run.
    """
    lines = strip_escapes(text).split("\n")
    step_ends = find_end("\n".join(lines))
    rank_ends = step_ends
    if failure.line:
        numbers = (number for number, line in enumerate(lines, 1) if failure.line in line)
        rank_ends = next(numbers, step_ends)

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
    """Whether LINE may be of RANK. torch puts the rank before the lines of a traceback."""
    other = OTHER_RANK.match(line)
    return not rank or not other or other[1] == rank


def find_end(text: str) -> int:
    """Return the number of the line of TEXT, from 1, from which on the step was being ended.

    Where it was not, that is one more than TEXT has lines.
    """
    match = ENDS.search(text)
    if not match:
        return text.count("\n") + 2
    return text.count("\n", 0, match.start() + 1) + 1
