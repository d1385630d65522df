"""Steps that only install packages: what they install, so that a lock can pin it.

Whatever is not understood as such stays a step.

Tested in tests/unit/draft/test_from_dockerfile.py.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.recipe.fields import check_apt, check_dnf, check_requirement
from hpcstack.recipe.packages import normalize_project
from hpcstack.requirements.pip_file import ARCHIVES, read_pip_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Find = Callable[[str], Path | None]  # the file of the context that a path in the image is

# Words that install nothing and leave nothing behind in an image of hpcstack's.
WITHOUT_EFFECT = re.compile(
    r"set( [-+][eux]+| -o pipefail)+"
    r"|(export )?DEBIAN_FRONTEND=noninteractive"
    r"|(sudo )?apt(-get)?( -y| -q+| --yes)* (update|clean|autoclean)( -y| -q+)*"
    r"|(sudo )?(dnf|yum)( -y| -q)* (clean all|makecache)( -y| -q)*"
    r"|rm -r?f?r? (/var/lib/apt/lists(/\*)?|/var/cache/(apt|dnf|yum)\S*|/root/\.cache/pip)"
    r"|(pip3?|python3? -m pip) cache purge|true|:"
)
# Settings of pip's and apt's that do not say what is installed.
HARMLESS = frozenset(
    [
        *("DEBIAN_FRONTEND", "TZ", "PIP_BREAK_SYSTEM_PACKAGES", "PIP_DISABLE_PIP_VERSION_CHECK"),
        *("PIP_NO_CACHE_DIR", "PIP_ROOT_USER_ACTION", "PIP_DEFAULT_TIMEOUT", "PIP_NO_INPUT"),
        *("PIP_PROGRESS_BAR", "PIP_RETRIES", "UV_SYSTEM_PYTHON", "UV_NO_CACHE", "UV_LINK_MODE"),
    ]
)
OF_INSTALLERS = re.compile(r"PIP_|UV_|APT_|CONDA_|(?i:https?_proxy|all_proxy|no_proxy)$")
APT_OPTIONS = re.compile(
    r"-y|-q+|-qy|-yq+|--yes|--assume-yes|--quiet|--no-install-recommends|--fix-missing"
    r"|--no-install-suggests|--allow-change-held-packages"
)
WITHOUT_RECOMMENDED = "--no-install-recommends"
WITHOUT_WEAK = re.compile(r"--setopt=install_weak_deps=(?:0|[Ff]alse)")
DNF_OPTIONS = re.compile(rf"-y|-q|--assumeyes|--quiet|--nodocs|{WITHOUT_WEAK.pattern}")
PIP_OPTIONS = re.compile(
    r"-q+|--quiet|--no-cache-dir|--no-cache|--disable-pip-version-check|--no-input|--system"
    r"|--break-system-packages|--no-warn-script-location|--prefer-binary|-v+|--verbose"
)
# Those that have a value: behind `=`, or in the next word.
PIP_SETTINGS = (
    "--root-user-action",
    "--progress-bar",
    "--timeout",
    "--default-timeout",
    "--retries",
)
PIPS = (
    ("pip",),
    ("pip3",),
    ("python", "-m", "pip"),
    ("python3", "-m", "pip"),
    ("uv", "pip"),
)


@dataclass
class Installs:
    """What a step installs, and nothing else."""

    apt: list[str] = field(default_factory=list)
    dnf: list[str] = field(default_factory=list)
    pip: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    no_build_isolation: list[str] = field(default_factory=list)
    has_recommended: bool = False  # recommended packages would be installed, too


class _Other(Exception):
    """It does something else."""


def read_installs(text: str, find: Find) -> Installs | None:
    """Return what the shell's TEXT installs; None where it does anything else, or may.

    FIND gives the file that `pip install -r` reads.
    """
    out = Installs()
    try:
        for command in _split_commands(text):
            _read_command(command, find, out)
    except (_Other, ValueError, InputError):
        return None
    return out


def _split_commands(text: str) -> list[list[str]]:
    """Return the words of each command of TEXT. Raise _Other for anything but plain commands."""
    joined = re.sub(r"\\\n", " ", text)
    if re.search(r"[$`|(){}\\]", joined):
        raise _Other
    commands: list[list[str]] = [[]]
    lines = [line for line in joined.split("\n") if not line.lstrip().startswith("#")]
    lexer = shlex.shlex("\n".join(lines), posix=True, punctuation_chars=";&<>\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    for word in lexer:
        if word.strip() in ("&&", ";", ""):
            commands.append([])
        elif set(word) <= set(";&<>\n"):
            raise _Other
        else:
            commands[-1].append(word)
    return [command for command in commands if command]


def _read_command(words: list[str], find: Find, out: Installs) -> None:
    if WITHOUT_EFFECT.fullmatch(" ".join(words)):
        return
    while words and words[0].partition("=")[0] in HARMLESS and "=" in words[0]:
        words = words[1:]
    if words[:1] == ["sudo"]:
        words = words[1:]
    if words[:1] in (["apt"], ["apt-get"]):
        _read_apt(words[1:], out)
        return
    if words[:1] in (["dnf"], ["yum"]):
        _read_dnf(words[1:], out)
        return
    for pip in PIPS:
        if tuple(words[: len(pip) + 1]) == (*pip, "install"):
            _read_pip(words[len(pip) + 1 :], find, out)
            return
    raise _Other


def _read_apt(words: list[str], out: Installs) -> None:
    named = [word for word in words if not APT_OPTIONS.fullmatch(word)]
    if named[:1] != ["install"]:
        raise _Other
    out.apt += [check_apt(name) for name in named[1:]]
    out.has_recommended |= WITHOUT_RECOMMENDED not in words


def _read_dnf(words: list[str], out: Installs) -> None:
    named = [word for word in words if not DNF_OPTIONS.fullmatch(word)]
    if named[:1] != ["install"]:
        raise _Other
    out.dnf += [check_dnf(name) for name in named[1:]]
    out.has_recommended |= not any(WITHOUT_WEAK.fullmatch(word) for word in words)


def _read_pip(words: list[str], find: Find, out: Installs) -> None:
    """Add what `pip install WORDS` installs to OUT."""
    named: list[str] = []
    is_upgrade = is_with_base = False
    rest = iter(words)
    for word in rest:
        name, sign, _ = word.partition("=")
        if PIP_OPTIONS.fullmatch(word):
            continue
        if name in PIP_SETTINGS:
            if not sign:
                next(rest, "")
        elif word in ("-r", "--requirement"):
            named += _read_listed(next(rest, ""), find, out)
        elif word in ("-U", "--upgrade"):
            is_upgrade = True
        elif word == "--no-build-isolation":
            is_with_base = True
        elif word.startswith("-") or word.lower().endswith(ARCHIVES) or "/" in word:
            raise _Other
        else:
            named.append(check_requirement(word))
    # Without a version, `--upgrade` may replace what the base has; a lock takes what the base has.
    if is_upgrade and not all("==" in one for one in named):
        raise _Other
    out.pip += named
    if is_with_base:
        out.no_build_isolation += [normalize_project(one) for one in named]


def _read_listed(path: str, find: Find, out: Installs) -> list[str]:
    """Return what the requirements file PATH of the image lists; its constraints are added to OUT."""
    file = find(path)
    if file is None:
        raise _Other
    found = read_pip_file(file, file.parent)
    if found.options or found.remote:
        raise _Other
    named: list[str] = []
    for line in found.lines:
        if line.folder or line.is_editable or line.url or not line.requirement:
            raise _Other
        text = check_requirement(line.text)
        (out.constraints if line.is_constraint else named).append(text)
    return named
