"""What can go wrong, each with a message, a hint of what to type next, and the exit code of its
kind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def format_count(number: int, what: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class HpcstackError(Exception):
    """The base of every refusal. `exit_code` is a contract: scripts depend on it."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class AnswerIsNo(HpcstackError):
    """A question was answered with no: a check failed, a lock is stale."""

    exit_code = 1


class InputError(HpcstackError):
    """What the user wrote is wrong."""

    exit_code = 2


class MissingToolError(HpcstackError):
    """A program that is needed is not installed."""

    exit_code = 3


class BuildError(HpcstackError):
    """A build failed; the message holds the failing command and its last lines."""

    exit_code = 4


class RegistryError(HpcstackError):
    """A registry could not be reached, or refused."""

    exit_code = 5


class LoginRefused(RegistryError):
    """A registry does not let this login read that; it may be there for another one."""


class NotInRegistry(LoginRefused):
    """A registry has no such image, or hides it from this login."""


class SlurmError(HpcstackError):
    """Slurm refused or failed."""

    exit_code = 6


class StoreError(HpcstackError):
    """The store is full, read-only or damaged."""

    exit_code = 7


@dataclass(frozen=True, order=True)
class Problem:
    """One thing wrong in a file: `file:line:column: where: what`; lines and columns count from 1."""

    file: str
    line: int
    column: int
    where: str
    what: str
    warning: bool = False

    def __str__(self) -> str:
        where = f" {self.where}:" if self.where else ""
        return (
            f"{self.file}:{self.line}:{self.column}:{' warning:' if self.warning else ''}{where} "
            f"{self.what}"
        )


class ProblemsError(InputError):
    """All problems of one or more files, at once."""

    def __init__(self, problems: Iterable[Problem], hint: str = "") -> None:
        self.problems = sorted(set(problems))
        super().__init__("\n".join(map(str, self.problems)), hint)


def sanitize_for_terminal(text: str) -> str:
    """TEXT for a terminal: what a program, a base or a file says may command it, or turn its lines
    around.
    """
    if text.isascii() and not COMMANDS.search(text):
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' (did you mean X?)' for the nearest known word, or nothing."""
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""
