"""The known messages, each with its cause and what to type next.

They are data, called signatures: facts/signatures*.yaml, each with the source of what it says.
A log may have millions of lines, so `examine_log` tries a pattern only on lines that have a literal part
of it: `literals`, of which each signature has some.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from hpcstack.core.data import read_facts

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
    )


@cache
def read_harmless() -> tuple[re.Pattern[str], ...]:
    """Return patterns of whole lines that read like a failure and are none."""
    return tuple(re.compile(row["pattern"]) for row in read_facts("signatures")["harmless"])


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


def make_known_failure(signature: Signature, match: re.Match[str], number: int) -> KnownFailure:
    """Return SIGNATURE as its MATCH in the NUMBERth line of a log has it, found once."""
    groups = {name: value or "?" for name, value in match.groupdict().items()}
    cause = _fill_in(signature.cause, groups)
    remedy = _fill_in(signature.remedy, groups)
    return KnownFailure(signature, match.string.strip(), number, 1, cause, remedy)


def _fill_in(said: str, groups: dict[str, str]) -> str:
    """Return SAID with each {NAME} replaced by what the line has in its place."""
    return re.sub(r"\{(\w+)\}", lambda match: groups.get(match[1], match[0]), said)
