"""Recipes out of recipes: `extends`, `matrix`, and a site's policy.

Pure; every value keeps the place it came from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import Problem, ProblemsError, did_you_mean
from hpcstack.core.yaml import Document, Path

if TYPE_CHECKING:
    from collections.abc import Iterator

OWN = ("name", "version", "variant", "matrix", "extends", "lifecycle")  # never inherited
AXES = ("version", "variant")
TOKEN = re.compile(r"\$\{stack\.([^}]*)\}")
MOST_PROBLEMS = 50
MAX_STACKS, MAX_VALUES = 1000, 250_000  # of one file, and of all its stacks together
TOKENS = ("name", "version", "variant")


@dataclass(frozen=True)
class Policy:
    """What a site puts under every recipe (`defaults`), and over it (`force`)."""

    defaults: Document | None = None
    force: Document | None = None


def merge_documents(under: Document, over: Document) -> Document:
    """OVER on top of UNDER: mappings key by key, lists appended, anything else replaced.

    `{replace: [...]}` in place of a list drops what is inherited; a key without a value drops the
    key.
    """
    out = Document(over.file)
    out.value = _merged(out, (under, under.value, ()), (over, over.value, ()), ())
    return out


Part = tuple[Document, Any, Path]


def _merged(out: Document, under: Part, over: Part, path: Path) -> Any:
    if not path and (_replaces(under[1]) or _replaces(over[1])):  # a document stays a mapping
        return _mapping(out, under, over, path)
    if _replaces(under[1]):  # what it replaced lies below it already
        under = (under[0], under[1]["replace"], (*under[2], "replace"))
    (lower, low, low_path), (upper, high, high_path) = under, over
    if path[:1] == ("environment",) and len(path) == 2 and _sets(low) != _sets(high):
        return _copied(
            out, over, path
        )  # a value of its own replaces parts, and parts a value of its own
    if isinstance(low, dict) and isinstance(high, dict) and not _replaces(high):
        out.marks[path] = upper.mark(high_path)
        return _mapping(out, under, over, path)
    if isinstance(low, list) and isinstance(high, list):
        out.marks[path] = upper.mark(high_path)
        items = [(lower, item, (*low_path, n)) for n, item in enumerate(low)]
        items += [(upper, item, (*high_path, n)) for n, item in enumerate(high)]
        return [_copied(out, item, (*path, n)) for n, item in enumerate(items)]
    return _copied(out, over, path)


def _mapping(out: Document, under: Part, over: Part, path: Path) -> dict[str, Any]:
    (lower, low, low_path), (upper, high, high_path) = under, over
    merged: dict[str, Any] = {}
    for key in [*low, *(key for key in high if key not in low)]:
        here = (*path, key)
        mine, theirs = (
            (upper, high.get(key), (*high_path, key)),
            (lower, low.get(key), (*low_path, key)),
        )
        if key in high and high[key] is None and (key in low or path):
            continue  # dropped; at the top a key without a value is what the model refuses
        document, _, place = mine if key in high else theirs
        out.keys[here] = document.keys.get(place, document.mark(place))
        if key in low and key in high:
            merged[key] = _merged(out, theirs, mine, here)
        else:
            merged[key] = _copied(out, mine if key in high else theirs, here, drop=True)
    return merged


def _sets(value: Any) -> bool:
    """Whether a variable's setting is a value of its own, not parts around the base's."""
    return not isinstance(value, dict) or "set" in value


def _replaces(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and list(value) == ["replace"]
        and isinstance(value["replace"], list)
    )


def _copied(
    out: Document, part: Part, path: Path, *, plain: bool = False, drop: bool = False
) -> Any:
    """The value of PART with its places; PLAIN takes the list out of `{replace: [...]}`, DROP
    leaves out empty keys.
    """
    source, value, place = part
    if plain and path and _replaces(value):
        value, place = value["replace"], (*place, "replace")
    out.marks[path] = source.mark(place)
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    copied = {}
    for key, item in items:
        here, there = (*path, key), (*place, key)
        if drop and item is None and isinstance(value, dict):
            continue
        if isinstance(value, dict):
            out.keys[here] = source.keys.get(there, source.mark(there))
        copied[key] = _copied(out, (source, item, there), here, plain=plain, drop=drop)
    if isinstance(value, dict):
        return copied
    return list(copied.values()) if isinstance(value, list) else value


def resolve_replacements(document: Document) -> Document:
    """DOCUMENT when nothing more is merged over it: `{replace: [...]}` is the list itself."""
    if not any(path[-1] == "replace" for path in document.keys):
        return document
    out = Document(document.file)
    out.value = _copied(out, (document, document.value, ()), (), plain=True)
    return out


def strip_own_keys(document: Document) -> Document:
    """DOCUMENT without what a child must say itself."""
    out = Document(document.file, marks=document.marks, keys=document.keys)
    out.value = {key: value for key, value in document.value.items() if key not in OWN}
    return out


def extract_fragment(document: Document, path: Path) -> Document:
    """The part of DOCUMENT at PATH as a document of its own."""
    value: Any = document.value
    for part in path:
        value = value[part]
    out = Document(document.file)
    out.value = _copied(out, (document, value if value is not None else {}, path), ())
    return out


def expand_matrix(document: Document) -> list[Document]:
    """One document for each stack of a file: the matrix multiplied out, `${stack...}` replaced.

    All that is wrong with the matrix is in the ProblemsError that it raises.
    """
    if "matrix" not in document.value:
        return [fill_tokens(document)]
    problems = list(islice(_wrong(document), MOST_PROBLEMS))
    if problems:
        raise ProblemsError(problems)
    matrix = document.value["matrix"]
    axes = [axis for axis in AXES if axis in matrix]
    if (count := prod(len(matrix[axis]) for axis in axes)) > MAX_STACKS:
        what = f"{count} stacks in one file; at most {MAX_STACKS} are taken"
        raise ProblemsError([document.problem(("matrix",), what)])
    if (values := count * len(document.marks)) > MAX_VALUES:
        what = (
            f"{count} stacks of {len(document.marks)} values are {values}; at most {MAX_VALUES} "
            f"are taken"
        )
        raise ProblemsError([document.problem(("matrix",), what)])
    excluded = matrix.get("exclude") or []
    out = []
    for choice in product(*(list(matrix[axis]) for axis in axes)):
        chosen = dict(zip(axes, choice, strict=True))
        if not any(_matches(rule, chosen) for rule in excluded):
            out.append(fill_tokens(_chosen(document, chosen)))
    if not out:
        raise ProblemsError(
            [document.problem(("matrix", "exclude"), "nothing is left: every stack is excluded")]
        )
    return out


def _matches(rule: dict[str, str], chosen: dict[str, str]) -> bool:
    return all(chosen.get(axis) == value for axis, value in rule.items())


def _chosen(document: Document, chosen: dict[str, str]) -> Document:
    """DOCUMENT with one value of each axis, and what the matrix says of those values merged over
    it.
    """
    out = Document(document.file, marks=dict(document.marks), keys=dict(document.keys))
    out.value = {key: value for key, value in document.value.items() if key != "matrix"}
    for axis, value in chosen.items():
        values = document.value["matrix"][axis]
        where: Path = (
            ("matrix", axis, value)
            if isinstance(values, dict)
            else ("matrix", axis, values.index(value))
        )
        out.value[axis] = value
        out.marks[(axis,)] = out.keys[(axis,)] = document.keys.get(where, document.mark(where))
        if isinstance(values, dict):
            out = merge_documents(out, extract_fragment(document, where))
    return out


def _wrong(document: Document) -> Iterator[Problem]:
    matrix, top = document.value["matrix"], ("matrix",)
    if not isinstance(matrix, dict) or not any(axis in matrix for axis in AXES):
        yield document.problem(
            top, "a matrix has `version`, `variant` or both, and perhaps `exclude`"
        )
        return
    for key in matrix:
        if key not in (*AXES, "exclude"):
            known = (*AXES, "exclude")
            what = f"unknown key {key!r}{did_you_mean(key, known)}; known: {', '.join(known)}"
            yield document.problem((*top, key), what, at_key=True)
    for axis in AXES:
        if axis in matrix:
            yield from _wrong_axis(document, axis, matrix[axis])
    yield from _wrong_exclude(document, matrix)


def _wrong_axis(document: Document, axis: str, values: Any) -> Iterator[Problem]:
    path: Path = ("matrix", axis)
    if axis in document.value:
        yield document.problem(
            (axis,), f"`{axis}` is an axis of the matrix: say it there only", at_key=True
        )
    if not isinstance(values, list | dict) or not values:
        yield document.problem(
            path, "a list of values, or a mapping of values to what each changes"
        )
        return
    for n, value in enumerate(values):
        if isinstance(value, str) and (
            isinstance(values, list) or isinstance(values[value], dict | None)
        ):
            continue
        here = (*path, n if isinstance(values, list) else value)
        yield document.problem(here, "a value is text; in a mapping, what it changes is a mapping")
        return
    if isinstance(values, dict):
        for value, part in values.items():
            for key in part or ():
                if key in OWN and key != "lifecycle":
                    here = (*path, value, key)
                    yield document.problem(
                        here, f"`{key}` makes the stack's name: not here", at_key=True
                    )
    if isinstance(values, list) and len({str(value) for value in values}) < len(values):
        yield document.problem(path, "a value is given twice")


def _wrong_exclude(document: Document, matrix: dict[str, Any]) -> Iterator[Problem]:
    rules = matrix.get("exclude") or []
    if not isinstance(rules, list):
        yield document.problem(
            ("matrix", "exclude"), "a list of mappings such as {version: ..., variant: ...}"
        )
        return
    if len(rules) > MAX_STACKS:
        yield document.problem(
            ("matrix", "exclude"), f"{len(rules)} rules; at most {MAX_STACKS} are taken"
        )
        return
    for n, rule in enumerate(rules):
        path: Path = ("matrix", "exclude", n)
        if not isinstance(rule, dict) or not rule:
            yield document.problem(path, "a mapping such as {version: ..., variant: ...}")
            continue
        for axis, value in rule.items():
            if axis not in AXES or axis not in matrix:
                there = [axis for axis in AXES if axis in matrix]
                yield document.problem(
                    (*path, axis), f"the matrix has no axis {axis!r}; it has: {', '.join(there)}"
                )
            elif value not in list(matrix[axis]):
                near = did_you_mean(str(value), map(str, matrix[axis]))
                what = f"excludes nothing: {value!r} is no {axis} of the matrix{near}"
                yield document.problem((*path, axis), what)


def fill_tokens(document: Document) -> Document:
    """DOCUMENT with `${stack.name}`, `${stack.version}` and `${stack.variant}` replaced in its
    values.
    """
    said = {token: document.value.get(token) or "" for token in TOKENS}
    problems: list[Problem] = []

    def fill(value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            return {key: fill(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [fill(item, (*path, n)) for n, item in enumerate(value)]
        if not isinstance(value, str) or "${stack." not in value:
            return value
        for token in TOKEN.findall(value):
            if token not in TOKENS:
                known = ", ".join(f"${{stack.{name}}}" for name in TOKENS)
                what = f"unknown ${{stack.{token}}}{did_you_mean(token, TOKENS)}; known: {known}"
                problems.append(document.problem(path, what))
        return TOKEN.sub(lambda match: str(said.get(match[1], "")), value)

    value = {
        key: item if key in TOKENS else fill(item, (key,)) for key, item in document.value.items()
    }
    if problems:
        raise ProblemsError(problems)
    return Document(document.file, value, document.marks, document.keys)
