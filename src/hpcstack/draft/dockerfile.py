"""The instructions of a Dockerfile, each with its lines.

BuildKit's parser is a library of Go, and its Python package has no wheel for aarch64. So its rules are
written down here (frontend/dockerfile/parser/parser.go, docs.docker.com/reference/dockerfile), and
tests/unit/draft/test_dockerfile.py holds this reader against BuildKit's own.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.draft.words import split_words

if TYPE_CHECKING:
    from pathlib import Path

DIRECTIVE = re.compile(r"#\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*(\S.*)")
INSTRUCTION = re.compile(r"[ \t\v\f\r]+")
HEREDOC = re.compile(r"(\d*)<<(-?)([^<]*)")
WITH_HEREDOC = ("ADD", "COPY", "RUN")
WITH_JSON = ("ADD", "CMD", "COPY", "ENTRYPOINT", "RUN", "SHELL", "VOLUME")


@dataclass(frozen=True)
class Heredoc:
    """The lines below an instruction: up to one that is NAME alone."""

    name: str
    content: str
    is_expanded: bool  # the name has no quotes, so variables in the content are filled in


@dataclass(frozen=True)
class Instruction:
    """One instruction of a Dockerfile, from line NUMBER on.

    `flags` are its `--name=value`. `text` is what follows them, in one line, and `script` the same
    in its own lines, as a shell reads it. `argv` is that text where it is a JSON list, else None.
    """

    name: str  # in upper case
    flags: tuple[str, ...]
    text: str
    script: str
    number: int
    argv: tuple[str, ...] | None = None
    heredocs: tuple[Heredoc, ...] = ()

    def find_flag(self, name: str) -> str:
        """Return the value of the flag NAME; empty where it is not given."""
        for flag in self.flags:
            key, _, value = flag.partition("=")
            if key == f"--{name}":
                return value
        return ""


@dataclass(frozen=True)
class Dockerfile:
    """All INSTRUCTIONS of one. ESCAPE is its character of escape: a backslash or a backtick."""

    instructions: tuple[Instruction, ...]
    escape: str = "\\"


def parse_dockerfile(text: str, path: Path) -> Dockerfile:
    """Return the instructions of TEXT, the Dockerfile PATH. InputError where it is none."""
    lines = text.removeprefix("\ufeff").split("\n")
    escape = _find_escape(lines, path)
    out = []
    at = 0
    while at < len(lines):
        number = at + 1
        parts, at = _join_lines(lines, at, escape)
        if "".join(parts).strip():
            instruction = _parse_instruction(parts, number, escape, path)
            heredocs, at = _read_heredocs(instruction, lines, at, escape, path)
            out.append(replace(instruction, heredocs=tuple(heredocs)))
    if not out:
        raise InputError(
            f"{path} has no instruction",
            "a Dockerfile begins with FROM IMAGE",
            page="bring-what-you-have",
        )
    return Dockerfile(tuple(out), escape)


def _find_escape(lines: list[str], path: Path) -> str:
    """Return what the directive `# escape=` says. Directives end with the first other line."""
    for number, line in enumerate(lines, 1):
        match = DIRECTIVE.fullmatch(line.strip())
        if not match:
            return "\\"
        if match[1].lower() == "escape":
            if match[2] not in ("\\", "`"):
                raise InputError(
                    f"{path}:{number}: escape={match[2]} is neither \\ nor `",
                    "correct the line",
                    page="bring-what-you-have",
                )
            return match[2]
    return "\\"


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _join_lines(lines: list[str], at: int, escape: str) -> tuple[list[str], int]:
    """Return (the lines of the instruction that begins at line AT, the line after them).

    They are without what joins them, and empty for a comment.
    """
    goes_on = re.compile(rf"([^{re.escape(escape)}])?{re.escape(escape)}[ \t]*$")
    first = lines[at].rstrip("\r").lstrip()
    at += 1
    if _is_comment(first):
        return [], at

    parts = []
    part = first
    while True:
        match = goes_on.search(part)
        is_end = not match or (match[1] is None and match.start() > 0)
        if is_end:
            parts.append(part)
            break
        assert match
        parts.append(part[: match.start()] + (match[1] or ""))
        while at < len(lines) and (_is_comment(lines[at]) or not lines[at].strip()):
            at += 1
        if at >= len(lines):
            break
        part = lines[at].rstrip("\r")
        at += 1
    return parts, at


def _parse_instruction(parts: list[str], number: int, escape: str, path: Path) -> Instruction:
    said = "".join(parts).strip()
    name, *others = INSTRUCTION.split(said, maxsplit=1)
    rest = "".join(others)
    if not name.isalpha():
        raise InputError(
            f"{path}:{number}: {said[:60]!r} is no instruction of a Dockerfile",
            "correct the line",
            page="bring-what-you-have",
        )
    name = name.upper()
    flags, rest = _split_flags(rest.strip(), escape)
    argv = _read_argv(rest) if name in WITH_JSON else None
    script = _break_lines(rest, parts) if name == "RUN" else rest
    return Instruction(name, flags, rest, script, number, argv)


def _break_lines(text: str, parts: list[str]) -> str:
    """Return TEXT, the end of PARTS, with the breaks between these, as a shell reads it.

    What joins lines stands at a blank nearly always. Elsewhere, in quotes and behind a comment, more
    than the line would change: there TEXT stays one line.
    """
    whole = "".join(parts).rstrip()
    begin = len(whole) - len(text)
    lines = []
    at = 0
    for part in parts:
        said = whole[max(at, begin) : at + len(part)]
        at += len(part)
        if said:
            lines.append(said)
    if not all(map(_ends_at_blank, accumulate(lines), [*lines[1:], ""])):
        return text
    lines = [line for line in lines if line.strip()]
    if not lines:
        return ""
    margin = min((len(line) - len(line.lstrip()) for line in lines[1:]), default=0)
    indented = [f"    {line[margin:].rstrip()}" for line in lines[1:]]
    return " \\\n".join([lines[0].rstrip(), *indented])


def _ends_at_blank(before: str, after: str) -> bool:
    """Return whether a break between BEFORE and AFTER, lines of a shell, changes nothing."""
    if not after:
        return True
    quote = ""
    at = 0
    while at < len(before):
        char = before[at]
        if char == "\\" and quote != "'":
            at += 1
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"`":
            quote = char
        elif char == "#" and before[max(at - 1, 0)] in " \t;&|":
            return False
        at += 1
    return not quote and at == len(before) and (before[-1:] in " \t" or after[:1] in " \t")


def _split_flags(text: str, escape: str) -> tuple[tuple[str, ...], str]:
    """Return (the flags at the beginning of TEXT, the rest)."""
    flags = []
    while text.startswith("--"):
        flag = split_words(text, escape)[0]
        text = text[len(flag) :].lstrip()
        if flag == "--":
            break
        flags.append(flag)
    return tuple(flags), text


def _read_argv(text: str) -> tuple[str, ...] | None:
    """Return the words of TEXT where it is a JSON list of texts; else None: it is for a shell."""
    if not text.startswith("["):
        return None
    try:
        found = json.loads(text)
        "".join(found).encode()
    except (TypeError, ValueError, RecursionError):
        return None
    return tuple(found)


def _read_heredocs(
    instruction: Instruction, lines: list[str], at: int, escape: str, path: Path
) -> tuple[list[Heredoc], int]:
    """Return (the heredocs of INSTRUCTION, whose lines begin at AT; the line after them)."""
    if instruction.name not in WITH_HEREDOC or instruction.argv or "<<" not in instruction.text:
        return [], at
    out = []
    for word in split_words(instruction.text, escape):
        match = HEREDOC.fullmatch(word)
        if not match or not match[3]:
            continue
        name = re.sub(r"[\"'\\]", "", match[3])
        content = ""
        while True:
            if at >= len(lines):
                raise InputError(
                    f"{path}:{instruction.number}: <<{name} has no line {name} at its end",
                    "write that line",
                    page="bring-what-you-have",
                )
            line = lines[at].rstrip("\r")
            at += 1
            if match[2]:
                line = line.lstrip("\t")
            if line == name:
                break
            content += f"{line}\n"
        out.append(Heredoc(name, content, name == match[3]))
    return out, at
