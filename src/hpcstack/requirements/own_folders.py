"""Packages of the user's own beside the project: folders that its files name, used live.

    requirements.txt   -e ../core          ./core[gpu]          core @ file:///home/me/core
    pyproject.toml     [tool.uv.sources]   core = {path = "../core"}, {workspace = true}
    uv.lock            source = {editable = "../core"}, {directory = "../core"}
    pylock.toml        directory = {path = "../core"}

https://docs.astral.sh/uv/concepts/projects/dependencies/#path,
https://packaging.python.org/en/latest/specifications/pylock-toml/#packages-directory
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from hpcstack.core.tables import take_table, take_texts
from hpcstack.requirements.pip_file import read_pip_file
from hpcstack.requirements.project_files import (
    PYLOCK,
    PYPROJECT,
    REQUIREMENTS,
    UV_LOCK,
    read_toml,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


def list_own_folders(folder: Path, kind: str) -> list[Path]:
    """Return the folders that the project in FOLDER names as packages, and those that these name.

    KIND is the file that says what it needs. FOLDER itself is none of them, nor is one that does not
    exist: whoever reads the files for their packages says so.
    """
    found: dict[Path, None] = {}
    waiting = list(_list_named(folder, kind))
    while waiting:
        own = waiting.pop(0)
        try:
            own = own.resolve()
            is_new = own != folder.resolve() and own not in found and own.is_dir()
        except (OSError, ValueError):  # a name that no folder can have
            continue
        if not is_new:
            continue
        found[own] = None
        waiting += _list_of_pyproject(own)
    return list(found)


def _list_named(folder: Path, kind: str) -> Iterator[Path]:
    """Yield the folders that the files of the project in FOLDER name."""
    path = folder / kind
    if kind == REQUIREMENTS:
        yield from (one.file.parent / one.folder for one in read_pip_file(path).lines if one.folder)
    elif kind == PYLOCK:
        for one in _take_tables(read_toml(path), "packages"):
            yield from (folder / text for text in take_texts(one, "directory", "path"))
    elif kind == UV_LOCK:
        for one in _take_tables(read_toml(path), "package"):
            for word in ("editable", "directory"):
                yield from (folder / text for text in take_texts(one, "source", word))
    elif kind == PYPROJECT:
        yield from _list_of_pyproject(folder)


def _list_of_pyproject(folder: Path) -> Iterator[Path]:
    """Yield the folders that the pyproject.toml in FOLDER names as sources."""
    path = folder / PYPROJECT
    if not path.is_file():
        return
    document = read_toml(path)
    members: set[str] = set()
    for name, source in take_table(document, "tool", "uv", "sources").items():
        for one in source if isinstance(source, list) else [source]:
            if not isinstance(one, dict):
                continue
            yield from (folder / text for text in take_texts(one, "path"))
            if one.get("workspace") is True:
                members.add(canonicalize_name(name))
    if members:
        yield from _find_members(folder, members)


def _find_members(folder: Path, names: set[str]) -> Iterator[Path]:
    """Yield those members of the workspace that FOLDER belongs to that are one of NAMES.

    Its root is FOLDER itself, else the nearest folder above with a table of members, as for uv.
    """
    for root in (folder, *folder.parents):
        path = root / PYPROJECT
        document = read_toml(path) if path.is_file() else {}
        patterns = take_texts(document, "tool", "uv", "workspace", "members")
        if patterns:
            yield from _list_members(root, patterns, names)
            return


def _list_members(folder: Path, patterns: Iterable[str], names: set[str]) -> Iterator[Path]:
    """Yield the folders below FOLDER, which PATTERNS name, that hold a package of NAMES."""
    for pattern in patterns:
        try:
            members = sorted(folder.glob(pattern))
        except (ValueError, IndexError, NotImplementedError):  # uv says what it thinks of it
            continue
        for member in members:
            path = member / PYPROJECT
            if not path.is_file():
                continue
            named = take_table(read_toml(path), "project").get("name", "")
            if canonicalize_name(str(named)) in names:
                yield member


def _take_tables(document: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the tables in the array KEY of DOCUMENT."""
    found = document.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
