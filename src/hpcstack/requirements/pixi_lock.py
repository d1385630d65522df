"""A pixi.lock, with the manifest beside it that says what was asked for.

The lock is read by rattler, which pixi is made of. It names all that conda installs, down to its C
library, and an image has those in its own way. So of conda's packages only those count that the
manifest asks for, by the names that PyPI is known to have them by; of PyPI's all count. The manifest:
https://pixi.sh/latest/reference/pixi_manifest/
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from hpcstack.core.errors import InputError
from hpcstack.requirements.allowed_files import AllowedFiles
from hpcstack.requirements.conda_names import find_name_on_pypi, is_of_the_image
from hpcstack.requirements.project_files import PIXI_TOML, PYPROJECT, read_toml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

DEFAULT = "default"  # pixi's name of the environment that `pixi run` takes
# Platforms of conda's that nodes are of, and what Python calls such a machine.
MACHINES = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}
TARGETS = ("", "linux", "unix", *MACHINES)  # tables of the manifest that hold on nodes
HINT = (
    "take them out (the image has CUDA, MPI and compilers of its own), or put those that PyPI has into "
    "[pypi-dependencies], by PyPI's names, and: pixi lock"
)


@dataclass(frozen=True)
class PixiProject:
    """What a project of pixi's asks for: LINES as pip takes them, each with its version.

    `allowed` are the files of PyPI's packages. `of_the_image` is what the image has in its own way.
    """

    lines: tuple[str, ...]
    allowed: tuple[AllowedFiles, ...]
    of_the_image: tuple[str, ...]


def read_pixi_project(path: Path) -> PixiProject:
    """Return what the pixi.lock PATH pins of what the manifest beside it asks for.

    Raise InputError where one of them cannot be read, and for packages that only conda has.
    """
    manifest, wanted = _read_manifest(path)
    versions: dict[str, dict[str, str]] = {}  # {name on PyPI: {machine: version}}
    files: dict[tuple[str, str], set[str]] = {}
    of_the_image: list[str] = []
    unknown: list[str] = []
    for machine, package, is_pypis in _list_locked(path):
        if is_pypis:
            name = str(canonicalize_name(package.name))
            _refuse_other_places(path, package)
            digest = package.hashes.sha256 if package.hashes else None
            if digest:
                files.setdefault((name, package.version), set()).add(f"sha256:{digest.hex()}")
        elif package.name not in wanted:
            continue
        elif is_of_the_image(package.name):
            of_the_image.append(package.name)
            continue
        else:
            name = find_name_on_pypi(package.name)
            if not name:
                unknown.append(package.name)
                continue
        versions.setdefault(name, {})[machine] = str(package.version)
    if unknown:
        named = ", ".join(_describe_line(manifest, name) for name in dict.fromkeys(unknown))
        raise InputError(f"{manifest}: only conda has {named}", HINT, page="your-own-project")

    lines = [line for name in versions for line in _make_lines(name, versions[name])]
    allowed = [AllowedFiles(name, frozenset(found), of) for (name, of), found in files.items()]
    return PixiProject(tuple(lines), tuple(allowed), tuple(dict.fromkeys(of_the_image)))


def _read_manifest(path: Path) -> tuple[Path, set[str]]:
    """Return (the manifest beside PATH, conda's packages that it asks for in its default environment)."""
    for name, keys in ((PIXI_TOML, ()), (PYPROJECT, ("tool", "pixi"))):
        manifest = path.parent / name
        if not manifest.is_file():
            continue
        document = _take_table(read_toml(manifest), *keys)
        if document:
            return manifest, set(_list_dependencies(document))
    raise InputError(
        f"{path} has no {PIXI_TOML} beside it",
        f"put the {PIXI_TOML} that belongs to it beside it, or name another folder",
        page="your-own-project",
    )


def _take_table(document: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """Return the table at KEYS of DOCUMENT; an empty one where there is none."""
    found: Any = document
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _list_dependencies(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of conda's packages in the tables that the default environment is made of."""
    environment = _take_table(document, "environments").get(DEFAULT, [])
    if isinstance(environment, dict):
        environment = environment.get("features", [])
    features = environment if isinstance(environment, list) else []
    tables = [document, *(_take_table(document, "feature", str(one)) for one in features)]
    for table in tables:
        for target in TARGETS:
            holds = _take_table(table, "target", target) if target else table
            yield from _take_table(holds, "dependencies")
            yield from _take_table(holds, "host-dependencies")


def _list_locked(path: Path) -> Iterator[tuple[str, Any, bool]]:
    """Yield (machine, package, whether it is PyPI's) of the lock's default environment.

    Raise InputError where rattler does not take the lock, or nodes have no part in it.
    """
    from rattler import LockFile
    from rattler.exceptions import ParseCondaLockError
    from rattler.lock import PypiLockedPackage

    try:
        environment = LockFile.from_path(path).environment(DEFAULT)
    except (ParseCondaLockError, OSError) as error:
        raise InputError(
            f"{path} cannot be read: {error}", "create it again: pixi lock", page="your-own-project"
        ) from None
    offered = {str(one): one for one in environment.platforms()} if environment else {}
    platforms = [offered[name] for name in MACHINES if name in offered]  # in one order always
    if not environment or not platforms:
        raise InputError(
            f"{path} has nothing for {' or '.join(MACHINES)}",
            'add it to `platforms` of the manifest, e.g. ["linux-64"], and: pixi lock',
            page="your-own-project",
        )
    for platform in platforms:
        for package in environment.packages(platform) or ():
            yield MACHINES[str(platform)], package, isinstance(package, PypiLockedPackage)


def _refuse_other_places(path: Path, package: Any) -> None:
    """Raise InputError for a package of PyPI's form that is no file of an index."""
    if not re.match(r"https?://[^#]*\.(?:whl|zip|tar\.gz)(?:#|$)", package.location):
        raise InputError(
            f"{package.name} of {path} comes from no package index: {package.location}",
            "take it from one; your own code is found from where it lies",
            page="your-own-project",
        )


def _make_lines(name: str, versions: Mapping[str, str]) -> Iterator[str]:
    """Yield the requirement of NAME; one for each machine where their VERSIONS differ."""
    if len(set(versions.values())) == 1:
        yield f"{name}=={next(iter(versions.values()))}"
        return
    for machine, version in versions.items():
        yield f"{name}=={version} ; platform_machine == '{machine}'"


def _describe_line(manifest: Path, name: str) -> str:
    """Return NAME with the number of its line in MANIFEST, where it is found."""
    for number, line in enumerate(manifest.read_text(encoding="utf-8").splitlines(), 1):
        if re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*=", line):
            return f"{name} (line {number})"
    return name
