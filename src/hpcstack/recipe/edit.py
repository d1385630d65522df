"""Edit the text of recipes: what is not changed, comments among it, stays as it was written.

A recipe is moved to a new base image. Where the stack's version is the month (or other number) that
its base's tag begins with, a stack of the new version is added beside the old one: an entry of the
matrix, or a file of its own. Else the base is changed in place, and the version stays.

Pure: texts in, texts out.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import InputError
from hpcstack.recipe.catalog import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from hpcstack.recipe.catalog import Recipe

    Node = Any  # of PyYAML, whose types do not say what a node has
    Change = Callable[[str], str]

NUMBER = re.compile(r"[0-9]+(\.[0-9]+)*")


@dataclass(frozen=True)
class NewBase:
    """The base image that a stack is moved to, and what is known of both.

    HOLDS and WILL_HOLD are what the old and the new one contain, as {CUDA: 13.0.2, ...}.
    """

    image: str  # the new one, as a recipe names it
    tag: str
    had_tag: str
    holds: Mapping[str, str] = field(default_factory=dict)
    will_hold: Mapping[str, str] = field(default_factory=dict)

    @property
    def had_month(self) -> str:
        """The number that the old tag begins with: 25.10 of `25.10-py3`; empty for none."""
        return _find_number(self.had_tag)

    @property
    def month(self) -> str:
        """The number that the new tag begins with."""
        return _find_number(self.tag)


@dataclass(frozen=True)
class RecipeEdit:
    """The new text of one recipe's file.

    STACK is the full name of the stack on the new base, BEFORE the text that is there, empty for a
    new file. NOTES say what its writer should look at.
    """

    path: Path
    before: str
    after: str
    stack: str
    notes: tuple[str, ...] = ()


def find_numbers(tag: str) -> list[str]:
    """Return the numbers in TAG: 26.08 and 24.04 of `26.08-ubuntu24.04`."""
    return [found[0] for found in NUMBER.finditer(tag)]


def _find_number(tag: str) -> str:
    return next(iter(find_numbers(tag)), "")


def move_recipe(
    recipe: Recipe, text: str, base: NewBase, has_stack: Callable[[str], bool]
) -> RecipeEdit:
    """Return the edit that moves RECIPE, whose file has this TEXT, to BASE.

    HAS_STACK tells whether there is a stack of a name, which the new one may extend. Raise
    InputError where the text does not say what would have to change.
    """
    stack = recipe.stack
    if stack.version != base.had_month:
        return _change_in_place(recipe, text, base)

    name = "-".join(part for part in (stack.name, base.month, stack.variant) if part)
    entry = _find_matrix_entry(recipe, text)
    if entry is not None:
        after = _add_entry(text, *entry, base)
        notes = _list_notes(base)
        matrix = _find_key(_compose(text), "matrix")
        if matrix and _find_key(matrix[1], "exclude"):
            notes += (f"look whether the matrix's `exclude` is to hold for {base.month}, too",)
        return RecipeEdit(recipe.path, text, after, name, notes)
    return _copy_file(recipe, text, base, name, has_stack)


def extend_shipped(recipe: Recipe, base: NewBase, folder: Path) -> RecipeEdit:
    """Return a new file in FOLDER for RECIPE on BASE, where RECIPE's own file is not to be edited.

    It extends the stack that is there, so that whatever that one brings stays.
    """
    stack = recipe.stack
    version = base.month if stack.version == base.had_month else stack.version
    name = "-".join(part for part in (stack.name, version, stack.variant) if part)
    if name == stack.full_name:
        raise InputError(
            f"{name} comes with hpcstack, and its version does not follow its base",
            f"write a recipe of your own that extends it: extends: {name}",
            page="build-my-own-stack",
        )

    lines = [
        "apiVersion: hpcstack/v1",
        f"extends: {stack.full_name}",
        f"name: {stack.name}",
        f'version: "{version}"',
    ]
    if stack.variant:
        lines.append(f"variant: {stack.variant}")
    lines.append(f"summary: {json.dumps(adapt_summary(stack.summary, base), ensure_ascii=False)}")
    lines.append(f'base: {{image: "{base.image}"}}')
    after = "\n".join(lines) + "\n"
    return RecipeEdit(folder / f"{name}{SUFFIX}", "", after, name, _list_notes(base))


def adapt_summary(summary: str, base: NewBase) -> str:
    """Return SUMMARY for the new base: with its month, and the versions that are known of it.

    What it says in brackets or behind a comma is left out where it may have been true of the old
    base alone: "the last with CUDA 12", or a version that is not known of the new one.
    """

    def adapt_brackets(found: re.Match[str]) -> str:
        kept = [part for part in found[1].split(", ") if not _may_be_stale(part, base)]
        return f" ({', '.join(kept)})" if kept else ""

    text = re.sub(r" *\(([^()]*)\)", adapt_brackets, summary)
    # A comma within brackets ends no part.
    first, *rest = re.split(r", (?![^(]*\))", text)
    kept = [part for part in rest if not _may_be_stale(part, base)]
    return _renew_versions(", ".join([first, *kept]), base)


def _may_be_stale(part: str, base: NewBase) -> bool:
    """Return whether PART of a summary says what cannot be known of the new base."""
    if re.match(r"the (first|last)\b", part):
        return True
    # With all that can be renewed taken out, no number must be left.
    unknown = _month_pattern(base).sub("", part)
    for name in base.holds.keys() & base.will_hold.keys():
        unknown = _version_pattern(name).sub("", unknown)
    return re.search(r"[0-9]", unknown) is not None


def _month_pattern(base: NewBase) -> re.Pattern[str]:
    return re.compile(rf"(?<![0-9.]){re.escape(base.had_month)}(?![0-9])(?!\.[0-9])")


def _version_pattern(name: str) -> re.Pattern[str]:
    """Return what finds NAME with a version behind it, such as `CUDA 13.4`."""
    pattern = rf"(?P<name>(?<!\w){re.escape(name)} )(?P<version>{NUMBER.pattern})"
    return re.compile(pattern, re.IGNORECASE)


def _renew_versions(text: str, base: NewBase) -> str:
    """Return TEXT with the new month, and the new version behind each name that is known."""
    text = _renew_month(text, base)
    for name in sorted(base.holds.keys() & base.will_hold.keys()):
        had, has = base.holds[name], base.will_hold[name]

        def renew(found: re.Match[str], had: str = had, has: str = has) -> str:
            if not _begins_with(had, found["version"]):
                return found[0]
            count = found["version"].count(".") + 1
            numbers = re.findall(r"[0-9]+", has)[:count]
            return found["name"] + ".".join(numbers)

        text = _version_pattern(name).sub(renew, text)
    return text


def _begins_with(version: str, start: str) -> bool:
    """Return whether VERSION begins with the numbers of START: 13.4.0 does with 13.4."""
    numbers = re.findall(r"[0-9]+", version)
    return start.split(".") == numbers[: start.count(".") + 1]


def _renew_month(text: str, base: NewBase) -> str:
    """Return TEXT with the new tag in place of the old one, and the new month of the old one."""
    tag = re.compile(rf"(?<![0-9.A-Za-z]){re.escape(base.had_tag)}(?![0-9A-Za-z])(?!\.[0-9])")
    return _month_pattern(base).sub(base.month, tag.sub(base.tag, text))


def _list_notes(base: NewBase) -> tuple[str, ...]:
    return ("the summary was adapted: read whether it is true",) if base.holds else ()


# -- places in a text


def _compose(text: str) -> Node:
    """Return the nodes of TEXT, whose marks are places in it; it is known to be a mapping."""
    import yaml

    # The loader by which recipes are read, as libyaml takes some texts that PyYAML's own does not.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.compose(text, Loader=loader)


def _find_key(node: Node | None, name: str) -> tuple[Node, Node] | None:
    """Return (key, value) of the key NAME in a mapping; None where NODE has none of that name."""
    pairs = node.value if node is not None and node.id == "mapping" else ()
    for key, value in pairs:
        if key.value == name:
            return key, value
    return None


@dataclass(frozen=True)
class _Replacement:
    """A piece of a text, by the places where it begins and ends, and what comes in its place."""

    start: int
    end: int
    text: str


def _apply(text: str, replacements: list[_Replacement]) -> str:
    for one in sorted(replacements, key=lambda one: one.start, reverse=True):
        text = text[: one.start] + one.text + text[one.end :]
    return text


def _change_scalars(node: Node, change: Change) -> Iterator[_Replacement]:
    """Yield what makes CHANGE of each scalar in NODE; a scalar keeps its way of quoting.

    Scripts and other texts of several lines are left as they are.
    """
    if node.id == "mapping":
        for _, value in node.value:
            yield from _change_scalars(value, change)
    elif node.id == "sequence":
        for item in node.value:
            yield from _change_scalars(item, change)
    elif getattr(node, "style", None) not in ("|", ">"):
        changed = change(node.value)
        if changed != node.value:
            yield _replace_scalar(node, changed)


def _replace_scalar(node: Node, value: str) -> _Replacement:
    """Return what puts VALUE in place of the scalar NODE."""
    style = getattr(node, "style", None)
    written = value
    if style == "'":
        written = "'" + value.replace("'", "''") + "'"
    elif style:
        written = json.dumps(value, ensure_ascii=False)
    return _Replacement(node.start_mark.index, node.end_mark.index, written)


def _cut_pair(text: str, mapping: Node, name: str) -> Iterator[_Replacement]:
    """Yield what takes the key NAME and its value out of MAPPING, if it is there."""
    found = _find_key(mapping, name)
    if not found:
        return
    key, value = found
    start, end = key.start_mark.index, value.end_mark.index

    if not mapping.flow_style:
        begin_of_line = text.rfind("\n", 0, start) + 1
        end = _end_of_content(text, value)
        yield _Replacement(begin_of_line, text.find("\n", end) + 1 or len(text), "")
        return

    # In braces a comma goes with it: the one behind it, or for the last key the one before it.
    behind = re.match(r"\s*,\s*", text[end:])
    before = re.search(r"\s*,\s*$", text[:start])
    if behind:
        yield _Replacement(start, end + behind.end(), "")
    elif before:
        yield _Replacement(before.start(), end, "")
    else:
        yield _Replacement(start, end, "")


def _end_of_content(text: str, node: Node) -> int:
    """Return where the last thing that is written in NODE ends.

    A block collection of PyYAML's ends where the next thing begins, with comments in between.
    """
    if node.id == "scalar" or node.flow_style:
        return len(text[: node.end_mark.index].rstrip())
    last = node.value[-1]
    return _end_of_content(text, last[1] if node.id == "mapping" else last)


# -- the three ways to move a recipe


def _change_in_place(recipe: Recipe, text: str, base: NewBase) -> RecipeEdit:
    """Return the edit that names the new base where the old one is written, in RECIPE's file."""
    stack = recipe.stack
    written = recipe.document.mark(("base", "image"))
    if written.file != str(recipe.path):
        raise InputError(
            f"the base of {stack.full_name} is written in {written}, which other recipes may extend",
            "change it there, and lock each recipe that extends it",
            page="new-ngc-month",
        )

    tree = _compose(text)
    at_mark = [
        node
        for node in _list_scalars(tree)
        if (node.start_mark.line + 1, node.start_mark.column + 1) == written[1:]
    ]
    if not at_mark or base.had_tag not in at_mark[0].value:
        raise InputError(
            f"{written} does not spell out the tag {base.had_tag}",
            f"write the new base there: {base.image}",
            page="new-ngc-month",
        )
    after = _apply(text, [_replace_scalar(at_mark[0], base.image)])
    note = (
        f"the version stays {stack.version}: what is published next is a new release of it, and "
        f"its users get the new base when that is promoted"
    )
    return RecipeEdit(recipe.path, text, after, stack.full_name, (note,))


def _list_scalars(node: Node) -> Iterator[Node]:
    if node.id == "scalar":
        yield node
    elif node.id == "mapping":
        for _, value in node.value:
            yield from _list_scalars(value)
    else:
        for item in node.value:
            yield from _list_scalars(item)


def _find_matrix_entry(recipe: Recipe, text: str) -> tuple[Node, int] | None:
    """Return the versions of the matrix in TEXT, and which of them RECIPE is; None for no matrix."""
    matrix = _find_key(_compose(text), "matrix")
    versions = _find_key(matrix[1], "version") if matrix else None
    if not versions:
        return None
    axis = versions[1]
    entries = [pair[0] if axis.id == "mapping" else pair for pair in axis.value]
    names = [entry.value for entry in entries]
    return axis, names.index(recipe.stack.version)


def _add_entry(text: str, axis: Node, number: int, base: NewBase) -> str:
    """Return TEXT with an entry for BASE behind the entry NUMBER of the matrix's versions.

    It is a copy of that entry, without its lifecycle.
    """
    entry = axis.value[number]
    first, last = entry if axis.id == "mapping" else (entry, entry)
    start, end = first.start_mark.index, _end_of_content(text, last)

    changes = list(_change_scalars(first, lambda value: _renew_month(value, base)))
    if axis.id == "mapping":
        changes += _renew_all(text, last, base)
    copied = _apply(text[:end], changes)[start:]

    line_end = _find_line_end(text)
    if axis.flow_style:
        return text[:end] + ", " + copied + text[end:]
    begin_of_line = text.rfind("\n", 0, start) + 1
    opening = text[begin_of_line:start]  # the indentation, and the dash of a list
    end_of_line = text.find("\n", end)
    if end_of_line < 0:
        return text + line_end + opening + copied + line_end
    return text[: end_of_line + 1] + opening + copied + line_end + text[end_of_line + 1 :]


def _find_line_end(text: str) -> str:
    """Return how the lines of TEXT end."""
    return "\r\n" if "\r\n" in text else "\n"


def _renew_all(text: str, mapping: Node, base: NewBase) -> list[_Replacement]:
    """Return what makes MAPPING, a recipe or a part of one, that of a stack on BASE.

    The new month stands in its version, its base and what it extends, the summary is adapted, and
    the days on which the old stack ends are cut.
    """
    out = list(_cut_pair(text, mapping, "lifecycle"))
    summary = _find_key(mapping, "summary")
    if summary:
        adapted = adapt_summary(summary[1].value, base)
        if adapted != summary[1].value:
            out.append(_replace_scalar(summary[1], adapted))
    below = _find_key(mapping, "base")
    image = _find_key(below[1], "image") if below else None
    named = [image, *(_find_key(mapping, key) for key in ("version", "extends"))]
    for pair in filter(None, named):
        out += _change_scalars(pair[1], lambda value: _renew_month(value, base))
    return out


def _find_other_months(tree: Node, base: NewBase) -> Iterator[str]:
    """Yield a note for each value in TREE, a recipe for BASE, that has the old month in it still.

    It may be the version of a package, or a part of an address: whoever wrote it knows.
    """
    for node in _list_scalars(tree):
        if _month_pattern(base).search(node.value):
            line = node.start_mark.line + 1
            yield f"line {line} has {base.had_month} in it still: {node.value.splitlines()[0][:60]}"


def _copy_file(
    recipe: Recipe, text: str, base: NewBase, name: str, has_stack: Callable[[str], bool]
) -> RecipeEdit:
    """Return a new file beside RECIPE's: a copy of it for BASE, whose stack is NAME."""
    tree = _compose(text)
    changes = _renew_all(text, tree, base)
    notes = list(_list_notes(base))

    extends = _find_key(tree, "extends")
    if extends:
        parent = extends[1].value
        renewed = _renew_month(parent, base)
        if renewed != parent and not has_stack(renewed):
            place = extends[1].start_mark.index
            changes = [one for one in changes if one.start != place]
            notes.append(f"it extends {parent} still: there is no {renewed}")

    # A file whose matrix makes several variants is named after what they have in common.
    stem = f"{recipe.stack.name}-{base.month}" if _find_key(tree, "matrix") else name
    path = recipe.path.with_name(f"{stem}{SUFFIX}")
    after = _apply(text, changes)
    notes += _find_other_months(_compose(after), base)
    return RecipeEdit(path, "", after, name, tuple(notes))


def set_base(edit: RecipeEdit, image: str) -> RecipeEdit:
    """Return EDIT with `base.image` set to IMAGE, where its recipe inherits another base.

    Raise InputError where it has a `base` already.
    """
    tree = _compose(edit.after)
    if _find_key(tree, "base"):
        raise InputError(
            f"{edit.path.name} would not be on {image}",
            f"set base.image in it by hand: {image}",
            page="new-ngc-month",
        )
    last = max((_find_key(tree, key) for key in ("name", "version", "variant")), key=_place_of_pair)
    assert last is not None
    end = edit.after.find("\n", _end_of_content(edit.after, last[1]))
    line = f'base: {{image: "{image}"}}{_find_line_end(edit.after)}'
    after = edit.after[: end + 1] + line + edit.after[end + 1 :]
    return RecipeEdit(edit.path, edit.before, after, edit.stack, edit.notes)


def _place_of_pair(pair: tuple[Node, Node] | None) -> int:
    return pair[0].start_mark.index if pair else -1
