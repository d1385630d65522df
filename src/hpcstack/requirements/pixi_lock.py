"""A pixi.lock, with the manifest beside it that says what was asked for.

The lock is read by rattler, which pixi is made of. It names all that conda installs, down to its C
library, and an image has those in its own way. So of conda's packages only those count that the
manifest asks for, by the names that PyPI is known to have them by; of PyPI's all count. The manifest:
https://pixi.sh/latest/reference/pixi_manifest/
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from hpcstack.core.errors import InputError
from hpcstack.requirements.allowed_files import AllowedFiles
from hpcstack.requirements.conda_names import find_name_on_pypi, is_of_the_image
from hpcstack.requirements.project_files import PIXI_TOML, PYPROJECT, read_toml

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
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
    machines, locked = _list_locked(path)
    versions: dict[str, dict[str, str]] = {}  # {name on PyPI: {machine: version}}
    files: dict[tuple[str, str], set[str]] = {}
    of_the_image: list[str] = []
    unknown: list[str] = []
    met: set[str] = set()
    for machine, package, is_pypis in locked:
        if is_pypis:
            name = str(canonicalize_name(package.name))
            met.add(name)
            if _is_own(path, package, wanted):
                continue
            digest = _read_digest(package)
            if digest:
                files.setdefault((name, package.version), set()).add(digest)
            version = f"=={package.version}"
        elif package.name not in wanted.of_conda:
            continue
        else:
            met.add(package.name)
            if is_of_the_image(package.name):
                of_the_image.append(package.name)
                continue
            name = find_name_on_pypi(package.name)
            if not name:
                unknown.append(package.name)
                continue
            # A project of another name may count otherwise: py-opencv 4.10.0 is 4.10.0.84 there.
            version = f"=={package.version}" + ("" if name == package.name else ".*")
        versions.setdefault(name, {})[machine] = version
    if unknown:
        named = ", ".join(_describe_line(manifest, name) for name in dict.fromkeys(unknown))
        raise InputError(f"{manifest}: only conda has {named}", HINT, page="your-own-project")
    missing = sorted(wanted.list_names(machines) - met)
    if missing:
        raise InputError(
            f"{path} has no {', '.join(missing)}, which {manifest.name} asks for",
            "make the lock again: pixi lock",
            page="your-own-project",
        )

    lines = [line for name in versions for line in _make_lines(name, versions[name], machines)]
    allowed = [AllowedFiles(name, frozenset(found), of) for (name, of), found in files.items()]
    return PixiProject(tuple(lines), tuple(allowed), tuple(dict.fromkeys(of_the_image)))


@dataclass(frozen=True)
class _Wanted:
    """What a manifest asks for: names of conda's and PyPI's, each with the targets that ask for it.

    `elsewhere` are those of PyPI's that come from no index.
    """

    of_conda: dict[str, set[str]] = field(default_factory=dict)
    of_pypi: dict[str, set[str]] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)

    def list_names(self, machines: Collection[str]) -> set[str]:
        """Return the names that a lock for MACHINES must have."""
        others = {target for target, machine in MACHINES.items() if machine not in machines}
        wanted = {**self.of_conda, **self.of_pypi}
        return {name for name, targets in wanted.items() if targets - others}


def _read_manifest(path: Path) -> tuple[Path, _Wanted]:
    """Return (the manifest beside PATH, what it asks for in its default environment)."""
    for name, keys in ((PIXI_TOML, ()), (PYPROJECT, ("tool", "pixi"))):
        manifest = path.parent / name
        if not manifest.is_file():
            continue
        document = _take_table(read_toml(manifest), *keys)
        if document:
            return manifest, _list_wanted(document)
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


def _list_wanted(document: Mapping[str, Any]) -> _Wanted:
    """Return what the tables ask for that the default environment is made of."""
    said = _take_table(document, "environments").get(DEFAULT, [])
    about = said if isinstance(said, dict) else {"features": said}
    features = about.get("features") or []
    tables = [_take_table(document, "feature", str(one)) for one in features]
    if not about.get("no-default-feature"):
        tables.insert(0, document)

    wanted = _Wanted()
    for table in tables:
        for target in TARGETS:
            holds = _take_table(table, "target", target) if target else table
            for kind in ("dependencies", "host-dependencies"):
                for name in _take_table(holds, kind):
                    wanted.of_conda.setdefault(name.lower(), set()).add(target)
            for name, how in _take_table(holds, "pypi-dependencies").items():
                project = str(canonicalize_name(name))
                wanted.of_pypi.setdefault(project, set()).add(target)
                if isinstance(how, dict) and how.keys() & {"git", "path", "url"}:
                    wanted.elsewhere.add(project)
    return wanted


def _list_locked(path: Path) -> tuple[list[str], list[tuple[str, Any, bool]]]:
    """Return (the machines that the lock is for, (machine, package, whether it is PyPI's) of each).

    They are those of its default environment. Raise InputError where rattler does not take the lock,
    or nodes have no part in it.
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
    offered = {}
    for platform in environment.platforms() if environment else []:
        offered[str(getattr(platform, "subdir", platform))] = platform
    machines = [machine for name, machine in MACHINES.items() if name in offered]
    if not environment or not machines:
        raise InputError(
            f"{path} has nothing for {' or '.join(MACHINES)}",
            'add it to `platforms` of the manifest, e.g. ["linux-64"], and: pixi lock',
            page="your-own-project",
        )
    return machines, [
        (machine, package, isinstance(package, PypiLockedPackage))
        for name, machine in MACHINES.items()
        if name in offered
        for package in environment.packages(offered[name]) or ()
    ]


def _is_own(path: Path, package: Any, wanted: _Wanted) -> bool:
    """Return whether PACKAGE, of PyPI's form, is the project itself.

    Raise InputError for another one that comes from no index.
    """
    if package.location in (".", "./"):
        return True
    is_file = re.match(r"https?://[^#]*\.(?:whl|zip|tar\.gz)(?:#|$)", package.location)
    if not is_file or canonicalize_name(package.name) in wanted.elsewhere:
        raise InputError(
            f"{package.name} of {path} comes from no package index: {package.location}",
            "take it from one; your own code is found from where it lies",
            page="your-own-project",
        )
    return False


def _read_digest(package: Any) -> str:
    """Return sha256:... of PACKAGE's file; empty where the lock has none."""
    try:
        digest = package.hashes.sha256
    except AttributeError:  # rattler's own, where there is no hash
        return ""
    return f"sha256:{digest.hex()}" if digest else ""


def _make_lines(name: str, versions: Mapping[str, str], machines: Collection[str]) -> Iterator[str]:
    """Yield the requirement of NAME; one for each machine where VERSIONS are not one for all."""
    if len(set(versions.values())) == 1 and set(versions) == set(machines):
        yield f"{name}{next(iter(versions.values()))}"
        return
    for machine, version in versions.items():
        yield f"{name}{version} ; platform_machine == '{machine}'"


def _describe_line(manifest: Path, name: str) -> str:
    """Return NAME with the number of its line in MANIFEST, where it is found."""
    for number, line in enumerate(manifest.read_text(encoding="utf-8").splitlines(), 1):
        if re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*=", line):
            return f"{name} (line {number})"
    return name
