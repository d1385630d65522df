"""A project's own package, live: its modules are imported from where they are edited.

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
from hpcstack.project.inputs import PYPROJECT, read_toml

if TYPE_CHECKING:
    from collections.abc import Mapping

PLACE = "/opt/hpcstack/own"  # in the container
# An entry point: module:object, or module:object.attribute
# https://packaging.python.org/en/latest/specifications/entry-points/
OBJECT = re.compile(r"([\w.]+)\s*:\s*([\w.]+)\s*(?:\[.*\])?")


@dataclass(frozen=True)
class OwnPackage:
    """The project in `folder`: `roots` are the folders that its modules lie in.

    `files` is what an installation would add, {path below PLACE: text}.
    """

    folder: Path
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


def describe_own_package(folder: Path) -> OwnPackage:
    """Return what the project in FOLDER brings itself.

    Without a pyproject.toml it has modules alone.
    """
    path = folder / PYPROJECT
    document = read_toml(path) if path.is_file() else {}
    roots = find_roots(folder, document)
    project = document.get("project") or document.get("tool", {}).get("poetry") or {}
    name = str(project.get("name", ""))
    if not name:
        return OwnPackage(folder, roots, {"about.txt": "A project without a package of its own\n"})

    version = str(project.get("version", "0"))
    stem = f"{re.sub(r'[-_.]+', '_', name)}-{version}.dist-info"
    files = {
        f"site/{stem}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"site/{stem}/INSTALLER": "hpcstack\n",
        f"site/{stem}/RECORD": "",
        f"site/{stem}/direct_url.json": _describe_origin(folder),
        f"site/{stem}/entry_points.txt": _render_entry_points(project),
    }
    scripts = {**project.get("scripts", {}), **project.get("gui-scripts", {})}
    for script, target in scripts.items():
        found = OBJECT.fullmatch(str(target))
        if found and re.fullmatch(r"[\w.-]+", script):
            files[f"bin/{script}"] = _render_script(found[1], found[2])
    return OwnPackage(folder, roots, files)


def _describe_origin(folder: Path) -> str:
    """Return direct_url.json: `pip list` shows the folder of what is installed editable."""
    import json

    return json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True}}) + "\n"


def _render_entry_points(project: dict[str, Any]) -> str:
    """Return entry_points.txt of PROJECT, the table of its pyproject.toml."""
    groups = {
        "console_scripts": project.get("scripts", {}),
        "gui_scripts": project.get("gui-scripts", {}),
        **project.get("entry-points", {}),
    }
    lines = []
    for group, points in groups.items():
        if points:
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
    tool = document.get("tool", {})
    setuptools = tool.get("setuptools", {})
    found: list[str] = []

    found += filter(None, [setuptools.get("package-dir", {}).get("")])
    packages = setuptools.get("packages")
    if isinstance(packages, dict):
        found += packages.get("find", {}).get("where", [])
    hatch = tool.get("hatch", {}).get("build", {})
    for target in (hatch, hatch.get("targets", {}).get("wheel", {})):
        found += [str(Path(one).parent) for one in target.get("packages", [])]
        found += target.get("sources", []) if isinstance(target.get("sources"), list) else []
    for one in tool.get("poetry", {}).get("packages", []):
        found.append(one.get("from", "."))
    found += filter(None, [tool.get("pdm", {}).get("build", {}).get("package-dir")])
    backend = tool.get("uv", {}).get("build-backend", {})
    if "module-root" in backend:
        found.append(backend["module-root"] or ".")

    roots = [folder / one for one in dict.fromkeys(found) if (folder / one).is_dir()]
    if roots:
        return tuple(roots)
    if (folder / "src").is_dir():
        return (folder / "src",)
    return (folder,)
