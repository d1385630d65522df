"""Recipes on disk: finding one by its full name, reading it, listing all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from hpcstack.errors import InputError, Problem, ProblemsError, did_you_mean
from hpcstack.spec.model import Stack
from hpcstack.yamlfile import parse, problems_of

SUFFIX = ".yaml"


@dataclass(frozen=True)
class Recipe:
    """A stack and the file that states it."""

    stack: Stack
    path: Path


def read(path: Path) -> Recipe:
    """The recipe in PATH; every problem of the file is in the ProblemsError that it raises."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ProblemsError([Problem(str(path), 1, 1, "", f"not UTF-8: {error.reason}")]) from None
    except OSError as error:
        raise ProblemsError([Problem(str(path), 1, 1, "", f"cannot be read: {error.strerror}")]) from None
    document = parse(text, str(path))
    if not isinstance(document.value, dict):
        raise ProblemsError([document.problem((), "a recipe is a mapping that begins with apiVersion: hpcstack/v1")])
    try:
        stack = Stack.model_validate(document.value)
    except ValidationError as error:
        raise ProblemsError(problems_of(error, document, Stack)) from None
    if path.name != stack.full_name + SUFFIX:
        what = f"the file of {stack.full_name} must be named {stack.full_name}{SUFFIX}"
        raise ProblemsError([document.problem(("name",), what)])
    return Recipe(stack, path)


def files(folders: Iterable[Path]) -> dict[str, Path]:
    """{full name: file}; a folder that is named earlier wins."""
    out: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            out.setdefault(path.name.removesuffix(SUFFIX), path)
    return dict(sorted(out.items()))


def find(name: str, folders: Sequence[Path]) -> Recipe:
    """The recipe NAME (a full name, or the path of a .yaml file)."""
    if name.endswith(SUFFIX) and ("/" in name or Path(name).exists()):
        return read(Path(name))
    known = files(folders)
    if name in known:
        return read(known[name])
    versions = [full for full in known if full.startswith(f"{name}-")]
    hint = f"say which version: {', '.join(versions)}" if versions else "hpcstack list shows all stacks"
    raise InputError(f"there is no stack {name!r}{did_you_mean(name, known)}", hint)
