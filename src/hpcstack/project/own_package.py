"""A project's own packages, live: their modules are imported from where they are edited.

Python finds them by PYTHONPATH. A small folder of a few files has what an installation would add:
the package's metadata, for `pip list` and for entry points, and its programs.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcstack.core.dirs import find_data_home
from hpcstack.core.files import write_tree
from hpcstack.core.tables import take_table, take_texts
from hpcstack.requirements.project_files import PYPROJECT, read_toml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PLACE = "/opt/hpcstack/own"  # in the container
# An entry point: module:object, or module:object.attribute
# https://packaging.python.org/en/latest/specifications/entry-points/
OBJECT = re.compile(r"([\w.]+)\s*:\s*([\w.]+)\s*(?:\[.*\])?")


NAME = re.compile(r"\w(?:[\w.-]*\w)?")  # of a package or a program: never a path
VERSION = re.compile(r"[\w.!+-]{1,100}")


@dataclass(frozen=True)
class OwnPackages:
    """The packages in `folders`: `roots` are the folders that their modules lie in.

    `files` is what an installation would add, {path below PLACE: text}.
    """

    folders: tuple[Path, ...]
    roots: tuple[Path, ...]
    files: dict[str, str]

    def find_place(self, environ: Mapping[str, str]) -> Path:
        """Return where its files are kept on the host: a folder named after what they hold."""
        digest = hashlib.sha256(repr(sorted(self.files.items())).encode()).hexdigest()
        return find_data_home(environ) / "hpcstack" / "projects" / f"own-{digest[:24]}"

    def write(self, environ: Mapping[str, str]) -> None:
        """Write its files, unless they are there."""
        place = self.find_place(environ)
        if place.is_dir():
            return
        part = place.with_name(f".{place.name}.{uuid.uuid4().hex[:8]}")
        write_tree(part, self.files, on_disk=False)
        try:
            part.rename(place)
        except OSError:  # another launch has made it meanwhile
            shutil.rmtree(part, ignore_errors=True)


def describe_own_packages(folders: Sequence[Path]) -> OwnPackages:
    """Return what the packages in FOLDERS bring themselves: the project's own, and others of the user.

    Without a pyproject.toml they have modules alone.
    """
    roots: list[Path] = []
    files = {"about.txt": "What an installation of your own packages would add\n"}
    for folder in folders:
        path = folder / PYPROJECT
        document = read_toml(path) if path.is_file() else {}
        roots += find_roots(folder, document)
        files |= _make_files(folder, document)
    return OwnPackages(tuple(folders), tuple(dict.fromkeys(roots)), files)


def _make_files(folder: Path, document: Mapping[str, Any]) -> dict[str, str]:
    """Return what an installation of the package in FOLDER would add besides its modules.

    DOCUMENT is its pyproject.toml. Nothing is added for what has no name.
    """
    project = take_table(document, "project") or take_table(document, "tool", "poetry")
    name = str(project.get("name", ""))
    if not NAME.fullmatch(name):
        return {}

    version = str(project.get("version", "0"))
    if not VERSION.fullmatch(version):
        version = "0"
    stem = f"{re.sub(r'[-_.]+', '_', name)}-{version}.dist-info"
    files = {
        f"site/{stem}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"site/{stem}/INSTALLER": "hpcstack\n",
        f"site/{stem}/RECORD": "",
        f"site/{stem}/direct_url.json": _describe_origin(folder),
        f"site/{stem}/entry_points.txt": _render_entry_points(project),
    }
    scripts = {**take_table(project, "scripts"), **take_table(project, "gui-scripts")}
    for script, target in scripts.items():
        found = OBJECT.fullmatch(str(target))
        if found and NAME.fullmatch(script):
            files[f"bin/{script}"] = _render_script(found[1], found[2])
    return files


def _describe_origin(folder: Path) -> str:
    """Return direct_url.json: `pip list` shows the folder of what is installed editable."""
    import json

    return json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True}}) + "\n"


def _render_entry_points(project: dict[str, Any]) -> str:
    """Return entry_points.txt of PROJECT, the table of its pyproject.toml."""
    groups = {
        "console_scripts": take_table(project, "scripts"),
        "gui_scripts": take_table(project, "gui-scripts"),
        **take_table(project, "entry-points"),
    }
    lines = []
    for group, points in groups.items():
        if isinstance(points, dict) and points:
            lines.append(f"[{group}]")
            lines += [f"{name} = {target}" for name, target in points.items()]
    return "\n".join(lines) + "\n"


def _render_script(module: str, attribute: str) -> str:
    """Return a program that calls ATTRIBUTE of MODULE."""
    first = attribute.partition(".")[0]
    return (
        "#!/usr/bin/env python3\n"
        "import sys\n"
        f"from {module} import {first}\n"
        f"sys.exit({attribute}())\n"
    )


def find_roots(folder: Path, document: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the folders that the modules of the project in FOLDER lie in.

    Its build backend's settings in DOCUMENT, its pyproject.toml, say so; else it is src/ where that
    exists, and the folder itself.
    """
    tool = take_table(document, "tool")
    hatch = "hatch", "build"
    wheel = *hatch, "targets", "wheel"
    found = [
        *take_texts(tool, "setuptools", "package-dir", ""),
        *take_texts(tool, "setuptools", "packages", "find", "where"),
        *(str(Path(one).parent) for one in take_texts(tool, *hatch, "packages")),
        *(str(Path(one).parent) for one in take_texts(tool, *wheel, "packages")),
        *take_texts(tool, *hatch, "sources"),
        *take_texts(tool, *wheel, "sources"),
        *take_texts(tool, "pdm", "build", "package-dir"),
    ]
    packages = take_table(tool, "poetry").get("packages", [])
    if isinstance(packages, list):
        found += [str(one.get("from", ".")) for one in packages if isinstance(one, dict)]
    found += [one or "." for one in take_texts(tool, "uv", "build-backend", "module-root")]

    roots = [folder / one for one in dict.fromkeys(found) if (folder / one).is_dir()]
    if roots:
        return tuple(roots)
    if (folder / "src").is_dir():
        return (folder / "src",)
    return (folder,)
