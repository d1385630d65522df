"""Reads a folder of declared releases: every *.yaml in it, as one declaration.

What is wrong is named with its file and line. A name that two files declare is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from hpcstack.core.carried import check_carried_folder, read_carried_text
from hpcstack.core.errors import InputError, ProblemsError
from hpcstack.core.yaml import list_problems, parse_yaml
from hpcstack.sync.declaration import Declaration, Declared, fill_in_defaults

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.errors import Problem
    from hpcstack.core.yaml import Document

MAX_BYTES = 1 << 20  # of a file
MOST_FILES = 500
OF_ALL = ("defaults", "build", "prune")  # keys that one file alone may have
HINT = "correct the file; hpcstack schema --releases has all keys"


@dataclass(frozen=True)
class DeclaredFolder:
    """What a folder declares, and which file declares each name.

    `declaration.releases` has the defaults filled in.
    """

    folder: Path
    declaration: Declaration
    files: dict[str, Path]  # {name: its file}


def read_folder(folder: Path) -> DeclaredFolder:
    """Return what FOLDER declares. FOLDER may also be a single file.

    InputError where there is nothing to read, ProblemsError with all that is wrong in its files.
    """
    paths = _list_files(folder)
    documents = {path: _read_document(path) for path in paths}
    problems = [one for document in documents.values() for one in _find_problems(document)]
    problems += _find_conflicts(documents)
    if problems:
        raise ProblemsError(problems, HINT, page="declare-releases")

    merged: dict[str, Any] = {"releases": {}}
    files: dict[str, Path] = {}
    for path, document in documents.items():
        value = document.value
        merged |= {key: value[key] for key in OF_ALL if key in value}
        for name, declared in value.get("releases", {}).items():
            merged["releases"][name] = declared
            files[name] = path
    if not files:
        raise InputError(
            f"{folder} declares no releases",
            "releases: {pytorch: newest 3}",
            page="declare-releases",
        )

    declaration = Declaration.model_validate(merged)
    filled = {
        name: cast("Declared", fill_in_defaults(one, declaration.defaults))
        for name, one in declaration.releases.items()
    }
    return DeclaredFolder(folder, declaration.model_copy(update={"releases": filled}), files)


def _list_files(folder: Path) -> list[Path]:
    """Return the files of FOLDER that declare releases, sorted; or FOLDER, which is a file."""
    check_carried_folder(folder)
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise InputError(
            f"{folder}: no such folder", "hpcstack sync FOLDER", page="declare-releases"
        )
    found = sorted(
        path
        for path in folder.iterdir()
        if path.suffix in (".yaml", ".yml") and not path.name.startswith(".")
    )
    if not found:
        raise InputError(
            f"{folder} has no *.yaml that declares releases",
            f"write {folder / 'releases.yaml'}",
            page="declare-releases",
        )
    if len(found) > MOST_FILES:
        raise InputError(f"{folder} has more than {MOST_FILES} files", page="declare-releases")
    return found


def _read_document(path: Path) -> Document:
    """Return the file PATH as a document. InputError or ProblemsError for a bad one."""
    try:
        document = parse_yaml(read_carried_text(path, path.parent, MAX_BYTES), str(path))
    except ValueError as error:
        raise InputError(f"{path}: {error}", page="declare-releases") from None
    except ProblemsError as error:
        raise ProblemsError(error.problems, error.hint, page="declare-releases") from None
    if document.value is None:
        document.value = {}
    if not isinstance(document.value, dict):
        what = "a file of releases is a mapping, e.g. releases: {pytorch: newest 3}"
        raise ProblemsError([document.problem((), what)], page="declare-releases")
    return document


def _find_problems(document: Document) -> list[Problem]:
    """Return what is wrong with DOCUMENT by itself."""
    try:
        Declaration.model_validate(document.value)
    except ValidationError as error:
        return list(list_problems(error, document, Declaration))
    return []


def _find_conflicts(documents: dict[Path, Document]) -> list[Problem]:
    """Return a problem for each name, and each key of all, that a second file has."""
    out = []
    seen: dict[tuple[str, ...], Path] = {}
    for path, document in documents.items():
        releases = document.value.get("releases")
        names = list(releases) if isinstance(releases, dict) else []
        places: list[tuple[str, ...]] = [(key,) for key in OF_ALL if key in document.value]
        places += [("releases", name) for name in names]
        for place in places:
            if place in seen:
                what = f"{place[-1]} is also in {seen[place].name}"
                out.append(document.problem(place, what, at_key=True))
            seen.setdefault(place, path)
    return out
