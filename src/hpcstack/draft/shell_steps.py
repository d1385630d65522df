"""What a shell runs in somebody's file, as a step of a recipe, which bash runs.

A step of a recipe ends at the first command that fails, in a pipe and for variables without a value,
too. A Dockerfile's and a definition's shell does not, and is `sh`, whose echo is another.

Tested in tests/unit/draft/test_from_dockerfile.py and tests/unit/draft/test_from_definition.py.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.characters import VARIABLE
from hpcstack.core.quote import quote_words
from hpcstack.draft.words import OF_BASE, NotUnderstood, quote_value

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# Variables that bash keeps for itself: an assignment fails, or does nothing.
OF_BASH = frozenset(
    [
        "BASHOPTS",
        "BASH_VERSINFO",
        "DIRSTACK",
        "EUID",
        "FUNCNAME",
        "GROUPS",
        "PPID",
        "SHELLOPTS",
        "UID",
    ]
)
# Distributions whose sh is bash.
SH_IS_BASH = re.compile(r"rocky|rhel|/ubi|centos|fedora|alma|oracle|suse|amazonlinux")
OPTION = re.compile(r"-[cexu]+|-o|pipefail|-[ceux]*o")
HEAD_ENDS = "# what the file itself runs:"


@dataclass(frozen=True)
class Shell:
    """What runs a step: bash or sh, in words, and whether a pipe fails with any of its parts."""

    argv: tuple[str, ...] = ("/bin/sh", "-c")
    is_bash: bool = False

    @property
    def is_pipefail(self) -> bool:
        """Whether a pipe fails as soon as one of its commands does."""
        return "pipefail" in self.argv


def read_shell(argv: tuple[str, ...]) -> Shell:
    """Return the shell ARGV of a Dockerfile's SHELL. NotUnderstood for one but sh and bash."""
    name = posixpath.basename(argv[0]) if argv else ""
    others = [word for word in argv[1:] if not OPTION.fullmatch(word)]
    if name not in ("sh", "bash", "dash") or others or not argv[-1].endswith("c"):
        raise NotUnderstood("steps of a recipe are lines of bash without further options")
    return Shell(argv, name == "bash")


def make_command(
    text: str,
    shell: Shell,
    variables: Mapping[str, str],
    workdir: str,
    first: Collection[str] = (),
) -> str:
    """Return TEXT, which SHELL runs in WORKDIR with VARIABLES, as lines for bash.

    FIRST are lines that come before them.
    """
    lines = list(first)
    if "$" in text or any(OF_BASE.search(value) for value in variables.values()):
        lines.append("set +u")
    if "|" in text and not shell.is_pipefail:
        lines.append("set +o pipefail")
    if not shell.is_bash and "{" in text:
        lines.append("set +B # as sh: braces are text")
    if not shell.is_bash and "echo" in text and re.search(r"\\[^\n]", text):
        lines.append("shopt -s xpg_echo # as sh's own echo")
    pairs = [f"{name}={quote_value(value)}" for name, value in variables.items()]
    if pairs:
        lines.append(f"export {' '.join(pairs)}")
    if workdir:
        folder = quote_words([workdir])
        lines.append(f"mkdir -p {folder} && cd {folder}")
    return "".join(f"{line}\n" for line in (*lines, HEAD_ENDS)) + text if lines else text


def can_export(name: str) -> bool:
    """Return whether bash lets a step have the variable NAME."""
    return VARIABLE.fullmatch(name) is not None and name not in OF_BASH


def find_named(text: str, names: Collection[str]) -> str:
    """Return the first variable of NAMES that TEXT takes; empty where it takes none."""
    for match in re.finditer(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)", text):
        if match[1] in names:
            return match[1]
    return ""


def write_file_by_shell(path: str, content: str, mode: str) -> str:
    """Return lines of bash that write CONTENT to PATH, as `COPY` does between two steps."""
    place = quote_words([path])
    end = "END_OF_FILE"
    while end in content:
        end += "_"
    if content.endswith("\n"):
        return f"install -D -m {mode} /dev/stdin {place} <<'{end}'\n{content}{end}\n"
    return f"printf %s {quote_words([content])} | install -D -m {mode} /dev/stdin {place}\n"
