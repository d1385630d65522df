"""Merge recipes: `extends`, `matrix`, and a site's policy.

Pure. Every value keeps the place it came from.
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
TOKENS = ("name", "version", "variant")  # what may stand in ${stack.TOKEN}
MOST_PROBLEMS = 50  # that are reported for one matrix
MAX_STACKS = 1000  # of one file
MAX_VALUES = 250_000  # of all stacks of one file together


@dataclass(frozen=True)
class Policy:
    """What a site puts under every recipe (`defaults`), and over it (`force`)."""

    defaults: Document | None = None
    force: Document | None = None


def merge_documents(under: Document, over: Document) -> Document:
    """Return OVER merged on top of UNDER.

    Mappings are merged key by key, lists appended, anything else is replaced. `{replace: [...]}` in
    place of a list drops what is inherited. A key without a value drops the key.
    """
    out = Document(over.file)
    out.value = _merge_values(out, (under, under.value, ()), (over, over.value, ()), ())
    return out


Part = tuple[Document, Any, Path]  # a value, with the document it is from and its place there


def _merge_values(out: Document, under: Part, over: Part, path: Path) -> Any:
    """Return OVER's value merged on UNDER's; note the places of PATH and below in OUT."""
    if not path and (_replaces(under[1]) or _replaces(over[1])):  # a document stays a mapping
        return _merge_mappings(out, under, over, path)

    if _replaces(under[1]):  # what it replaced was below it, and is gone: take the list itself
        under = (under[0], under[1]["replace"], (*under[2], "replace"))
    lower, low, low_path = under
    upper, high, high_path = over

    # A variable's own value replaces parts around the base's value, and parts replace a value.
    if path[:1] == ("environment",) and len(path) == 2 and _sets(low) != _sets(high):
        return _copy(out, over, path)

    if isinstance(low, dict) and isinstance(high, dict) and not _replaces(high):
        out.marks[path] = upper.mark(high_path)
        return _merge_mappings(out, under, over, path)

    if isinstance(low, list) and isinstance(high, list):
        out.marks[path] = upper.mark(high_path)
        items = [(lower, item, (*low_path, n)) for n, item in enumerate(low)]
        items += [(upper, item, (*high_path, n)) for n, item in enumerate(high)]
        return [_copy(out, item, (*path, n)) for n, item in enumerate(items)]

    return _copy(out, over, path)


def _merge_mappings(out: Document, under: Part, over: Part, path: Path) -> dict[str, Any]:
    """Return two mappings merged key by key, the keys of UNDER first."""
    lower, low, low_path = under
    upper, high, high_path = over
    merged: dict[str, Any] = {}
    for key in [*low, *(key for key in high if key not in low)]:
        if key in high and high[key] is None and (key in low or path):
            continue  # dropped; at the top a key without a value is what the model refuses

        here = (*path, key)
        theirs = (lower, low.get(key), (*low_path, key))
        mine = (upper, high.get(key), (*high_path, key))
        stronger = mine if key in high else theirs
        document, _, place = stronger
        out.keys[here] = document.keys.get(place, document.mark(place))
        if key in low and key in high:
            merged[key] = _merge_values(out, theirs, mine, here)
        else:
            merged[key] = _copy(out, stronger, here, drop=True)
    return merged


def _sets(value: Any) -> bool:
    """Return whether a variable's setting is a value of its own, not parts around the base's."""
    return not isinstance(value, dict) or "set" in value


def _replaces(value: Any) -> bool:
    """Return whether VALUE is {replace: a list}."""
    return (
        isinstance(value, dict)
        and list(value) == ["replace"]
        and isinstance(value["replace"], list)
    )


def _copy(out: Document, part: Part, path: Path, *, plain: bool = False, drop: bool = False) -> Any:
    """Return a copy of PART's value, and note its places, from PATH on, in OUT.

    PLAIN takes the list out of `{replace: [...]}`. DROP leaves out keys without a value.
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
        if drop and item is None and isinstance(value, dict):
            continue
        here = (*path, key)
        there = (*place, key)
        if isinstance(value, dict):
            out.keys[here] = source.keys.get(there, source.mark(there))
        copied[key] = _copy(out, (source, item, there), here, plain=plain, drop=drop)

    if isinstance(value, dict):
        return copied
    if isinstance(value, list):
        return list(copied.values())
    return value


def resolve_replacements(document: Document) -> Document:
    """Return DOCUMENT with the list itself in place of each `{replace: [...]}`.

    To be called when nothing more is merged.
    """
    if not any(path[-1] == "replace" for path in document.keys):
        return document
    out = Document(document.file)
    out.value = _copy(out, (document, document.value, ()), (), plain=True)
    return out


def strip_own_keys(document: Document) -> Document:
    """Return DOCUMENT without the keys that a recipe which extends it must say itself."""
    out = Document(document.file, marks=document.marks, keys=document.keys)
    out.value = {key: value for key, value in document.value.items() if key not in OWN}
    return out


def extract_fragment(document: Document, path: Path) -> Document:
    """Return the part of DOCUMENT at PATH as a document of its own; {} for one without a value."""
    value: Any = document.value
    for part in path:
        value = value[part]
    out = Document(document.file)
    out.value = _copy(out, (document, value if value is not None else {}, path), ())
    return out


def expand_matrix(document: Document) -> list[Document]:
    """Return one document for each stack of a file: the matrix multiplied out, tokens filled in.

    Raise ProblemsError with all that is wrong with the matrix.
    """
    if "matrix" not in document.value:
        return [fill_tokens(document)]

    problems = list(islice(_find_problems(document), MOST_PROBLEMS))
    if problems:
        raise ProblemsError(problems)

    matrix = document.value["matrix"]
    axes = [axis for axis in AXES if axis in matrix]
    count = prod(len(matrix[axis]) for axis in axes)
    values = count * len(document.marks)
    what = ""
    if count > MAX_STACKS:
        what = f"it makes {count} stacks of one file; the limit is {MAX_STACKS}"
    elif values > MAX_VALUES:
        what = (
            f"{count} stacks of {len(document.marks)} values are {values} values; "
            f"the limit is {MAX_VALUES}"
        )
    if what:
        raise ProblemsError([document.problem(("matrix",), what)])

    excluded = matrix.get("exclude") or []
    out = []
    for choice in product(*(list(matrix[axis]) for axis in axes)):
        chosen = dict(zip(axes, choice, strict=True))
        if not any(_matches(rule, chosen) for rule in excluded):
            out.append(fill_tokens(_pick(document, chosen)))
    if not out:
        what = "nothing is left: every stack is excluded"
        raise ProblemsError([document.problem(("matrix", "exclude"), what)])
    return out


def _matches(rule: dict[str, str], chosen: dict[str, str]) -> bool:
    """Return whether RULE excludes the stack of the values CHOSEN, {axis: value}."""
    return all(chosen.get(axis) == value for axis, value in rule.items())


def _pick(document: Document, chosen: dict[str, str]) -> Document:
    """Return the document of one stack, for the values CHOSEN, {axis: value}.

    What the matrix says of those values is merged over it.
    """
    out = Document(document.file, marks=dict(document.marks), keys=dict(document.keys))
    out.value = {key: value for key, value in document.value.items() if key != "matrix"}
    for axis, value in chosen.items():
        values = document.value["matrix"][axis]
        where: Path = ("matrix", axis, value)
        if isinstance(values, list):
            where = ("matrix", axis, values.index(value))
        out.value[axis] = value
        out.marks[(axis,)] = out.keys[(axis,)] = document.keys.get(where, document.mark(where))
        if isinstance(values, dict):
            out = merge_documents(out, extract_fragment(document, where))
    return out


def _find_problems(document: Document) -> Iterator[Problem]:
    """Yield what is wrong with the matrix of DOCUMENT."""
    matrix, top = document.value["matrix"], ("matrix",)
    if not isinstance(matrix, dict) or not any(axis in matrix for axis in AXES):
        what = "a matrix has `version`, `variant` or both, and perhaps `exclude`"
        yield document.problem(top, what)
        return

    for key in matrix:
        if key not in (*AXES, "exclude"):
            known = (*AXES, "exclude")
            what = f"unknown key {key!r}{did_you_mean(key, known)}; known: {', '.join(known)}"
            yield document.problem((*top, key), what, at_key=True)
    for axis in AXES:
        if axis in matrix:
            yield from _find_axis_problems(document, axis, matrix[axis])
    yield from _find_exclude_problems(document, matrix)


def _find_axis_problems(document: Document, axis: str, values: Any) -> Iterator[Problem]:
    """Yield what is wrong with one axis: VALUES, a list, or a mapping to what changes with each."""
    path: Path = ("matrix", axis)
    if axis in document.value:
        what = f"`{axis}` is an axis of the matrix: say it there only"
        yield document.problem((axis,), what, at_key=True)
    if not isinstance(values, list | dict) or not values:
        what = "must be a list of values, or a mapping of values to what changes with each"
        yield document.problem(path, what)
        return

    for n, value in enumerate(values):
        is_fragment = isinstance(values, list) or isinstance(values[value], dict | None)
        if not isinstance(value, str) or not is_fragment:
            here = (*path, n if isinstance(values, list) else value)
            what = "a value must be text; in a mapping, what it changes is a mapping"
            yield document.problem(here, what)
            return

    if isinstance(values, dict):
        for value, part in values.items():
            for key in part or ():
                if key in OWN and key != "lifecycle":
                    what = f"`{key}` makes the stack's name: not here"
                    yield document.problem((*path, value, key), what, at_key=True)
    if isinstance(values, list) and len({str(value) for value in values}) < len(values):
        yield document.problem(path, "a value is given twice")


def _find_exclude_problems(document: Document, matrix: dict[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with `exclude`, a list of {axis: value}."""
    rules = matrix.get("exclude") or []
    top = ("matrix", "exclude")
    if not isinstance(rules, list):
        what = "must be a list of mappings such as {version: ..., variant: ...}"
        yield document.problem(top, what)
        return
    if len(rules) > MAX_STACKS:
        yield document.problem(top, f"{len(rules)} rules; the limit is {MAX_STACKS}")
        return

    for n, rule in enumerate(rules):
        path: Path = (*top, n)
        if not isinstance(rule, dict) or not rule:
            yield document.problem(path, "must be a mapping such as {version: ..., variant: ...}")
            continue
        for axis, value in rule.items():
            if axis not in AXES or axis not in matrix:
                known = ", ".join(axis for axis in AXES if axis in matrix)
                what = f"the matrix has no axis {axis!r}; it has: {known}"
                yield document.problem((*path, axis), what)
            elif value not in list(matrix[axis]):
                near = did_you_mean(str(value), map(str, matrix[axis]))
                what = f"excludes nothing: {value!r} is no {axis} of the matrix{near}"
                yield document.problem((*path, axis), what)


def fill_tokens(document: Document) -> Document:
    """Return DOCUMENT with `${stack.name}`, `${stack.version}` and `${stack.variant}` filled in.

    Raise ProblemsError for other tokens of that form.
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

    # The values that the tokens stand for are taken as they are.
    value = {}
    for key, item in document.value.items():
        value[key] = item if key in TOKENS else fill(item, (key,))
    if problems:
        raise ProblemsError(problems)
    return Document(document.file, value, document.marks, document.keys)
