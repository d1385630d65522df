"""Compares two locks, or two specs, in rows that a person or a pull request can read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcstack.lock.model import Lock, LockedPlatform

# Variables of a base whose differences tell a reader nothing.
QUIET = re.compile(r"^(PATH|LD_LIBRARY_PATH|NVIDIA_BUILD_ID|PYTORCH_BUILD_.*)$")


@dataclass(frozen=True)
class Difference:
    """One difference; a side is empty where it does not have the thing."""

    section: str
    name: str
    before: str
    after: str


def diff_locks(before: Lock, after: Lock) -> list[Difference]:
    """Return all differences between two locks, section by section.

    Platforms that only one of them has are compared by digest alone.
    """
    out = list(_compare("base", _describe_base(before), _describe_base(after)))
    for platform in [name for name in before.base.platforms if name in after.base.platforms]:
        low, high = before.base.platforms[platform], after.base.platforms[platform]
        out += _compare("holds", before.facts(platform), after.facts(platform))
        for kind in ("apt", "dnf", "conda", "pip"):
            out += _compare(kind, _list_versions(low, kind), _list_versions(high, kind))
        out += _compare("pip builds with", _list_build_versions(low), _list_build_versions(high))
        out += _compare("environment", _list_variables(low), _list_variables(high))
    # Most differences are the same on each platform: one row is enough.
    return [*dict.fromkeys(out), *_compare("source", before.sources, after.sources)]


def diff_specs(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Return all differences between two effective specs, as `model_dump` gives them."""
    return list(_compare("spec", dict(_flatten(before, "")), dict(_flatten(after, ""))))


def diff_contents(before: Mapping[str, str], after: Mapping[str, str]) -> list[Difference]:
    """Return the differences between what two bases hold ({CUDA: 12.6.3, ...}).

    What only one of them says is no difference: the other may hold it as well.
    """
    both = [name for name in before if name in after]
    return list(
        _compare(
            "holds", {name: before[name] for name in both}, {name: after[name] for name in both}
        )
    )


def _compare(
    section: str, before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[Difference]:
    """Yield a row for each name whose values differ: in BEFORE's order, then in AFTER's."""
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name, ""), after.get(name, "")
        if old != new:
            yield Difference(section, name, old, new)


def _describe_base(lock: Lock) -> dict[str, str]:
    base = lock.base
    out = {"image": f"{base.registry}/{base.repository}:{base.tag}"}
    return out | {f"digest of {name}": platform.digest for name, platform in base.platforms.items()}


def _list_versions(platform: LockedPlatform, kind: str) -> dict[str, str]:
    """Return {package: version} of the packages of KIND: apt, conda or pip."""
    found = getattr(platform, kind)
    if found is None:
        return {"(all)": "not resolved"}
    return {entry.name: entry.version for entry in found}


def _list_build_versions(platform: LockedPlatform) -> dict[str, str]:
    """Return {project: its versions} of what source distributions are built with."""
    versions: dict[str, list[str]] = {}
    for entry in platform.pip_build or ():
        versions.setdefault(entry.name, []).append(entry.version)
    return {name: ", ".join(found) for name, found in versions.items()}


def _list_variables(platform: LockedPlatform) -> dict[str, str]:
    return {name: value for name, value in platform.environment.items() if not QUIET.match(name)}


def _flatten(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of each value in a nested document: `packages.source[0].name`.

    A list of plain values is one text.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flatten(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for number, item in enumerate(value):
            yield from _flatten(item, f"{path}[{number}]")
    elif isinstance(value, list):
        yield path, ", ".join(map(str, value))
    else:
        yield path, str(value)


def format_changes(changes: list[Difference], before: str, after: str) -> str:
    """Return CHANGES as a Markdown table, for a pull request."""
    rows = [f"| | | {_format_cell(before)} | {_format_cell(after)} |", "|---|---|---|---|"]
    for one in changes:
        cells = " | ".join(_format_cell(text) for text in (one.name, one.before, one.after))
        rows.append(f"| {one.section} | {cells} |")
    return "\n".join(rows)


def _format_cell(text: str) -> str:
    """Return TEXT as a cell of a Markdown table: as code, or plain where it has a backtick."""
    escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
    return f"`{escaped}`" if escaped and "`" not in escaped else escaped


def find_newer_tags(tag: str, tags: list[str]) -> list[str]:
    """Return those of TAGS that are TAG with higher numbers, the oldest first.

    25.01-py3 is one for 24.11-py3.
    """
    own = order_tag(tag)
    newer = {other for other in tags if have_same_shape(other, tag) and order_tag(other) > own}
    return sorted(newer, key=order_tag)


def find_tags_of(tag: str, month: str, tags: list[str]) -> list[str]:
    """Return those of TAGS that are of TAG's shape and whose first number is MONTH.

    They come the oldest first. 26.08-cuda13.4 is one for 25.06-cuda12.9 and 26.08.
    """
    number = re.compile(rf"[^0-9]*{re.escape(month)}(?![0-9])(?!\.[0-9])")
    found = {other for other in tags if have_same_shape(other, tag) and number.match(other)}
    return sorted(found, key=order_tag)


def have_same_shape(one: str, other: str) -> bool:
    """Return whether two tags differ in their numbers alone."""
    return re.sub(r"[0-9]+", "#", one) == re.sub(r"[0-9]+", "#", other)


def order_tag(tag: str) -> tuple[int, ...]:
    """Return the numbers in TAG, by which tags are sorted.

    Each is cut at 18 digits, however long a registry's tag may be.
    """
    return tuple(int(number[:18]) for number in re.findall(r"[0-9]+", tag))
