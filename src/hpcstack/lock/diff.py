"""What differs between two locks, and between two stacks: rows that a person or a pull request can
read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcstack.lock.model import Lock, LockedPlatform

QUIET = re.compile(r"^(PATH|LD_LIBRARY_PATH|NVIDIA_BUILD_ID|PYTORCH_BUILD_.*)$")


@dataclass(frozen=True)
class Difference:
    """One difference: an empty side means that it is not there."""

    section: str
    name: str
    before: str
    after: str


def diff_locks(before: Lock, after: Lock) -> list[Difference]:
    """All differences of two locks, section by section."""
    out = list(_rows("base", _base(before), _base(after)))
    for platform in [name for name in before.base.platforms if name in after.base.platforms]:
        low, high = before.base.platforms[platform], after.base.platforms[platform]
        out += _rows("holds", before.facts(platform), after.facts(platform))
        for kind in ("apt", "conda", "pip"):
            out += _rows(kind, _versions(low, kind), _versions(high, kind))
        out += _rows("pip builds with", _build_versions(low), _build_versions(high))
        out += _rows("environment", _environment(low), _environment(high))
    return [*dict.fromkeys(out), *_rows("source", before.sources, after.sources)]


def diff_specs(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """All differences of two effective specs, as `model_dump` gives them."""
    return list(_rows("spec", dict(_flat(before, "")), dict(_flat(after, ""))))


def diff_contents(before: Mapping[str, str], after: Mapping[str, str]) -> list[Difference]:
    """The differences of what two bases hold ({CUDA: 12.6.3, ...}); what only one side says is not
    a difference.
    """
    both = [name for name in before if name in after]
    return list(_rows("holds", {n: before[n] for n in both}, {n: after[n] for n in both}))


def _rows(
    section: str, before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[Difference]:
    for name in sorted(
        {*before, *after}, key=lambda name: (list(before) + list(after)).index(name)
    ):
        if before.get(name, "") != after.get(name, ""):
            yield Difference(section, name, before.get(name, ""), after.get(name, ""))


def _base(lock: Lock) -> dict[str, str]:
    base = lock.base
    out = {"image": f"{base.registry}/{base.repository}:{base.tag}"}
    return out | {f"digest of {name}": platform.digest for name, platform in base.platforms.items()}


def _versions(platform: LockedPlatform, kind: str) -> dict[str, str]:
    found = getattr(platform, kind)
    return (
        {"(all)": "not resolved"}
        if found is None
        else {entry.name: entry.version for entry in found}
    )


def _build_versions(platform: LockedPlatform) -> dict[str, str]:
    """{project: its versions} of what source distributions are built with."""
    versions: dict[str, list[str]] = {}
    for entry in platform.pip_build or ():
        versions.setdefault(entry.name, []).append(entry.version)
    return {name: ", ".join(found) for name, found in versions.items()}


def _environment(platform: LockedPlatform) -> dict[str, str]:
    return {name: value for name, value in platform.environment.items() if not QUIET.match(name)}


def _flat(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for n, item in enumerate(value):
            yield from _flat(item, f"{path}[{n}]")
    else:
        yield path, ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def format_changes(changes: list[Difference], before: str, after: str) -> str:
    """A table for a pull request."""
    rows = [f"| | | {_cell(before)} | {_cell(after)} |", "|---|---|---|---|"]
    rows += [
        f"| {c.section} | {_cell(c.name)} | {_cell(c.before)} | {_cell(c.after)} |" for c in changes
    ]
    return "\n".join(rows)


def _cell(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
    return f"`{escaped}`" if escaped and "`" not in escaped else escaped


def find_newer_tags(tag: str, tags: list[str]) -> list[str]:
    """Those of TAGS that are TAG with higher numbers (24.11-py3 -> 25.01-py3), oldest first."""
    shape, own = _shape(tag), _numbers(tag)
    return sorted(
        {other for other in tags if _shape(other) == shape and _numbers(other) > own}, key=_numbers
    )


def _shape(tag: str) -> str:
    return re.sub(r"[0-9]+", "#", tag)


def _numbers(tag: str) -> tuple[int, ...]:
    return tuple(int(number[:18]) for number in re.findall(r"[0-9]+", tag))
