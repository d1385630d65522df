"""What a project asks for, as a recipe says it: requirements of pip's, and pins that constrain them.

A recipe's packages are resolved by the base's own pip, which reads no lock. So what the project
wants becomes requirements, and what its lock pins becomes constraints. Where the base has a package
itself, the base's version counts, and the pin is left out (images/resolve.sh).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from hpcstack.core.errors import InputError
from hpcstack.requirements.allowed_files import list_allowed_hashes
from hpcstack.requirements.inputs import (
    OF_TORCH,
    list_read_files,
    make_folder_error,
    read_inputs,
)
from hpcstack.requirements.pip_file import read_pip_file, refuse_outside
from hpcstack.requirements.project_files import (
    PIXI_LOCK,
    PYLOCK,
    PYPROJECT,
    REQUIREMENTS,
    SETUP_PY,
    UV_LOCK,
    read_toml,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from hpcstack.requirements.allowed_files import AllowedFiles
    from hpcstack.requirements.inputs import Inputs


@dataclass(frozen=True)
class ProjectRequirements:
    """What a project wants, and what its own lock pins.

    `allowed` are the files that the lock allows. `sha256` changes with anything of it.
    """

    requirements: tuple[str, ...]
    pins: tuple[str, ...]
    allowed: tuple[AllowedFiles, ...]
    sha256: str


def read_project(
    folder: Path, extras: tuple[str, ...] = (), groups: tuple[str, ...] = ()
) -> ProjectRequirements:
    """Return what the project in FOLDER asks for, with EXTRAS and GROUPS of its pyproject.toml.

    Only files in FOLDER are read. Raise InputError for what cannot be read, for files elsewhere,
    and for what no index has.
    """
    inputs = read_inputs(folder, (), extras, groups, below=folder)
    for path in list_read_files(inputs):
        refuse_outside(path, folder)
    readers = {
        PYLOCK: _read_pylock,
        PIXI_LOCK: _read_pylock,
        UV_LOCK: _read_uv_lock,
        PYPROJECT: _read_pyproject,
        REQUIREMENTS: _read_requirements,
        SETUP_PY: _refuse_setup_py,
    }
    reader = readers.get(inputs.kind, _read_lines)
    requirements, pins = reader(inputs, folder)
    return ProjectRequirements(
        tuple(dict.fromkeys(requirements)),
        tuple(dict.fromkeys(pins)),
        inputs.allowed,
        inputs.digest,
    )


Lines = tuple[list[str], list[str]]  # requirements, pins


def _read_pylock(inputs: Inputs, _folder: Path) -> Lines:
    """A pylock.toml does not say what was asked for, so each package is; its version is a pin.

    What only PyPI's torch needs is not asked for.
    """
    names = []
    pins = []
    has_torch = any(line.startswith("torch==") for line in inputs.requirements)
    for line in inputs.requirements:
        requirement, semicolon, marker = line.partition(" ; ")
        name, pinned, _ = requirement.partition("==")
        if not (has_torch and OF_TORCH.fullmatch(name)):
            names.append(f"{name}{semicolon}{marker}")
        if pinned:
            pins.append(line)
    return names, pins


def _read_lines(inputs: Inputs, _folder: Path) -> Lines:
    return list(inputs.requirements), []


def _refuse_setup_py(_inputs: Inputs, folder: Path) -> Lines:
    raise InputError(
        f"{folder / SETUP_PY} computes what the project needs, and is not run for a recipe",
        f"write the packages into {folder / REQUIREMENTS}",
        page="your-own-project",
    )


def _read_pyproject(inputs: Inputs, folder: Path) -> Lines:
    if not inputs.files:  # of Poetry's own form
        return _read_lines(inputs, folder)
    document = read_toml(folder / PYPROJECT)
    project = document.get("project", {})
    if "dependencies" in project.get("dynamic", []):
        raise InputError(
            f"{folder / PYPROJECT} leaves its dependencies to its build backend",
            f"write them into {folder / REQUIREMENTS}",
            page="your-own-project",
        )
    lines = list(project.get("dependencies", []))
    optional = project.get("optional-dependencies", {})
    for extra in inputs.extras:
        lines += _find_by_name(optional, extra, f"extra of {folder / PYPROJECT}")
    for group in inputs.groups:
        lines += _expand_group(document.get("dependency-groups", {}), group, folder, ())
    return lines, []


def _find_by_name(table: Mapping[str, Any], name: str, what: str) -> list[Any]:
    """Return the list in TABLE under NAME, in whatever spelling. Raise InputError without one."""
    for key, value in table.items():
        if canonicalize_name(key) == canonicalize_name(name):
            return list(value)
    known = ", ".join(table) or "none"
    raise InputError(f"{name} is no {what}", f"it has: {known}", page="your-own-project")


def _expand_group(
    groups: Mapping[str, Any], name: str, folder: Path, chain: tuple[str, ...]
) -> Iterator[str]:
    """Yield the requirements of the dependency group NAME, with those that it includes.

    https://packaging.python.org/en/latest/specifications/dependency-groups/
    """
    if name in chain:
        raise InputError(
            f"the dependency group {name} of {folder / PYPROJECT} includes itself",
            "take that out",
            page="your-own-project",
        )
    for one in _find_by_name(groups, name, f"dependency group of {folder / PYPROJECT}"):
        if isinstance(one, dict):
            yield from _expand_group(groups, str(one["include-group"]), folder, (*chain, name))
        else:
            yield str(one)


def _read_uv_lock(inputs: Inputs, folder: Path) -> Lines:
    requirements, _ = _read_pyproject(inputs, folder)
    packages = read_toml(folder / UV_LOCK).get("package", [])
    names = [canonicalize_name(one["name"]) for one in packages]
    pins = []
    for one in packages:
        source = one.get("source", {})
        path = source.get("editable") or source.get("virtual") or source.get("directory")
        if path == ".":
            continue
        if path:
            raise make_folder_error(one["name"], str(path))
        if "registry" not in source:
            raise InputError(
                f"{one['name']} of {folder / UV_LOCK} comes from no package index: {source}",
                "take it from one, or build it by packages.source of the recipe",
                page="your-own-project",
            )
        pins.append(
            _make_pin(one, is_one_of_several=names.count(canonicalize_name(one["name"])) > 1)
        )
    return requirements, [pin for pin in pins if pin]


def _make_pin(package: Mapping[str, Any], *, is_one_of_several: bool) -> str:
    """Return the constraint that PACKAGE of a uv.lock is; empty where it holds for nobody knows whom.

    Of several versions of a package each is for some platforms or Pythons, as its markers say.
    """
    pin = f"{package['name']}=={package.get('version', '')}"
    if not package.get("version"):
        return ""
    if not is_one_of_several:
        return pin
    markers = package.get("resolution-markers", [])
    return f"{pin} ; {' or '.join(f'({one})' for one in markers)}" if markers else ""


def _read_requirements(_inputs: Inputs, folder: Path) -> Lines:
    found = read_pip_file(folder / REQUIREMENTS, folder)
    for option in found.options:
        raise InputError(
            f"{option.file}:{option.number}: {option.text} is an option, and the site says where "
            "packages come from",
            "take the line out; build.pip of site.yaml names indexes",
            page="your-own-project",
        )
    requirements: list[str] = []
    pins: list[str] = []
    for line in found.lines:
        own = line.file.parent / line.folder if line.folder else None
        if own and own.resolve() == folder.resolve():
            continue  # its own code: that is not part of an image
        if own or line.is_editable:
            raise make_folder_error(line.text, line.folder or line.text)
        (pins if line.is_constraint else requirements).append(line.text)
    return requirements, pins


def find_hash_problems(
    project: ProjectRequirements, chosen: Mapping[str, tuple[str, frozenset[str]]]
) -> list[str]:
    """Return which files of CHOSEN, {name: (version, hashes)}, the project's own lock does not allow.

    What the lock does not know by that version was chosen anew, and is nobody's to allow.
    """
    problems = []
    for name, (version, found) in sorted(chosen.items()):
        allowed = list_allowed_hashes(project.allowed, name, version)
        if allowed is not None and not allowed & found:
            problems.append(f"{name} {version}: {', '.join(sorted(found))}")
    return problems
