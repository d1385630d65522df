"""The errors that users see.

Each has a message, a hint of what to type next, and the exit code of its kind.

Tested in tests/unit/site/test_load.py and tests/unit/recipe/test_model.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Control characters that may steer a terminal; tab and newline are harmless and left out.
COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def format_count(number: int, what: str) -> str:
    """Return NUMBER and WHAT, in the plural where it is not one: `1 node`, `2 nodes`."""
    if number == 1:
        return f"{number} {what}"
    return f"{number} {what}s"


class HpcstackError(Exception):
    """The base of every refusal. `exit_code` is a contract: scripts depend on it.

    `page` is the how-to page about it, as `hpcstack help` names it; empty for none.
    """

    exit_code = 1
    page = ""

    def __init__(self, message: str, hint: str = "", *, page: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if page:
            self.page = page


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
    page = "mirror-a-registry"


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
    """One thing wrong in a file, printed as `file:line:column: where: what`.

    Lines and columns count from 1.
    """

    file: str
    line: int
    column: int
    where: str
    what: str
    warning: bool = False

    def __str__(self) -> str:
        text = f"{self.file}:{self.line}:{self.column}:"
        if self.warning:
            text += " warning:"
        if self.where:
            text += f" {self.where}:"
        return f"{text} {self.what}"


class ProblemsError(InputError):
    """All problems of one or more files, raised together, sorted, each once.

    The files are recipes, unless `page` says otherwise.
    """

    page = "write-a-recipe"

    def __init__(self, problems: Iterable[Problem], hint: str = "", *, page: str = "") -> None:
        self.problems = sorted(set(problems))
        super().__init__("\n".join(map(str, self.problems)), hint, page=page)


def sanitize_for_terminal(text: str) -> str:
    """Return TEXT with control and bidirectional characters replaced.

    So output of a program, a base or a file cannot drive the terminal, or turn its lines around.
    """
    if text.isascii() and not COMMANDS.search(text):
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean X?)` with the one of KNOWN nearest to WORD; empty for none."""
    near = find_nearest(word, known)
    return f" (did you mean {near!r}?)" if near else ""


def find_nearest(word: str, known: Iterable[str]) -> str:
    """Return the one of KNOWN that WORD is most like; empty where it is like none."""
    import difflib  # only where something is wrong

    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return near[0] if near else ""
