"""Read what a project asks for: the files in its folder, and packages that are named by hand.

The first of these that the folder has is read:

1. pylock.toml (https://packaging.python.org/en/latest/specifications/pylock-toml/)
2. uv.lock, with its pyproject.toml
3. pixi.lock, with its pixi.toml or pyproject.toml
4. requirements.txt
5. pyproject.toml alone: its [project] table, or Poetry's own
6. environment.yml of conda's: its `pip:` part, and those of its packages that are on PyPI, too
7. setup.cfg; of a setup.py its build backend is asked, inside the image
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from hpcstack.core.errors import InputError
from hpcstack.core.tables import take_texts
from hpcstack.requirements.allowed_files import AllowedFiles
from hpcstack.requirements.declared import (
    find_declaration,
    is_of_poetry,
    read_poetry,
    read_setup_cfg,
)
from hpcstack.requirements.environment_yml import read_installable_environment
from hpcstack.requirements.own_folders import list_own_folders
from hpcstack.requirements.pip_file import read_pip_file, refuse_outside
from hpcstack.requirements.pixi_lock import read_pixi_project
from hpcstack.requirements.project_files import (
    ENVIRONMENTS,
    PIXI_LOCK,
    PIXI_TOML,
    PYLOCK,
    PYPROJECT,
    REQUIREMENTS,
    SETUP_CFG,
    SETUP_PY,
    UV_LOCK,
    read_toml,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# What torch's wheels on PyPI require for themselves, and NVIDIA's torch does not: its image has CUDA,
# cuDNN and NCCL as files, and a triton of its own. https://pypi.org/pypi/torch/json, requires_dist
OF_TORCH = re.compile(
    r"nvidia-[a-z0-9-]+-cu\d+|triton|pytorch-triton"
    # for CUDA 13 most have no -cu13 behind them
    r"|nvidia-(?:cublas|cuda-[a-z]+|cudnn|cufft|cufile|curand|cusolver|cusparse|cusparselt|nccl|nvjitlink"
    r"|nvjpeg|nvshmem|nvtx|nvvm)"
)
OF_SETUPTOOLS = (SETUP_PY, SETUP_CFG)


@dataclass(frozen=True)
class Inputs:
    """What is asked for: by the files of a project, by hand, or by both.

    `kind` is the file that was read, or "" for packages that are named by hand alone. uv itself
    reads `files`, and `requirements` are further lines for it. `allowed` are the files of packages
    that the user's lists allow. `digest` changes when anything of it does. `own` are folders of
    further packages of the user's, which are used live. `of_the_image` is what the files ask for
    and the image has in its own way, as it is written. `overrides` are requirements that uv is to
    take instead: it believes a hash in a URL without looking at the archive.
    """

    folder: Path | None
    kind: str
    files: tuple[Path, ...]
    requirements: tuple[str, ...]
    allowed: tuple[AllowedFiles, ...]
    digest: str
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    own: tuple[Path, ...] = ()
    of_the_image: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()


def read_inputs(
    folder: Path | None,
    packages: tuple[str, ...],
    extras: tuple[str, ...] = (),
    groups: tuple[str, ...] = (),
    *,
    below: Path | None = None,
) -> Inputs:
    """Return what the project in FOLDER asks for, and PACKAGES, which are named by hand.

    EXTRAS and GROUPS are those of its pyproject.toml. With BELOW, no file elsewhere is read. Raise
    InputError for a folder with nothing to read, and for files that cannot be read.
    """
    if folder is None:
        inputs = Inputs(None, "", (), (), (), "")
    else:
        inputs = _read_folder(folder, below)
    if (extras or groups) and PYPROJECT not in [path.name for path in inputs.files]:
        raise InputError(
            "--extra and --group need a pyproject.toml, and none is read here",
            "leave them out",
            page="your-own-project",
        )
    wanted = replace(
        inputs,
        requirements=(*inputs.requirements, *sorted(packages)),
        extras=tuple(sorted(extras)),
        groups=tuple(sorted(groups)),
        own=tuple(list_own_folders(folder, inputs.kind)) if folder else (),
    )
    return replace(wanted, digest=_digest(wanted))


def _digest(inputs: Inputs) -> str:
    """Return a digest of all that INPUTS ask for."""
    digest = hashlib.sha256()
    words = [inputs.kind, *inputs.requirements, *inputs.extras, "", *inputs.groups]
    for word in words:
        digest.update(f"{word}\0".encode())
    for path in list_read_files(inputs):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def list_read_files(inputs: Inputs) -> list[Path]:
    """Return the files that decide what INPUTS are, with those that they include."""
    if not inputs.folder:
        return []
    found = [inputs.folder / inputs.kind]
    if inputs.kind == UV_LOCK:
        found.append(inputs.folder / PYPROJECT)
    if inputs.kind == PIXI_LOCK:
        manifests = (inputs.folder / PIXI_TOML, inputs.folder / PYPROJECT)
        found.append(next(path for path in manifests if path.is_file()))
    if PYPROJECT in [path.name for path in found]:
        found += _list_dynamic_files(inputs.folder)
    for own in inputs.own:
        if (own / PYPROJECT).is_file():
            found.append(own / PYPROJECT)
            found += _list_dynamic_files(own)
        else:
            found += [own / name for name in OF_SETUPTOOLS if (own / name).is_file()]
    if inputs.kind == REQUIREMENTS:
        found += read_pip_file(found[0]).files
    return list(dict.fromkeys(found))


def list_outside_files(inputs: Inputs) -> tuple[str, ...]:
    """Return mounts, PATH:PATH, of what INPUTS read outside the project: further packages of the
    user's own, and files by a link or by -r.
    """
    if not inputs.folder:
        return ()
    inside = {inputs.folder.resolve()}
    outside = []
    for path in (*inputs.own, *(file.resolve() for file in list_read_files(inputs))):
        if not any(path.is_relative_to(folder) for folder in inside):
            outside.append(path)
            inside.add(path)
    return tuple(f"{one}:{one}" for one in sorted(outside))


def _list_dynamic_files(folder: Path) -> list[Path]:
    """Return the files besides pyproject.toml that say what the project in FOLDER depends on."""
    document = read_toml(folder / PYPROJECT)
    if "dependencies" not in take_texts(document, "project", "dynamic"):
        return []
    names = take_texts(document, "tool", "setuptools", "dynamic", "dependencies", "file")
    return [folder / name for name in (*names, *OF_SETUPTOOLS) if (folder / name).is_file()]


def _read_folder(folder: Path, below: Path | None) -> Inputs:
    """Return what the files in FOLDER ask for, without a digest. With BELOW, no others are read."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise InputError(
            f"--project {folder} {what}",
            "--project . is the current folder",
            page="your-own-project",
        )
    readers: dict[str, Callable[[Path], Inputs]] = {
        PYLOCK: _read_pylock,
        UV_LOCK: _read_uv_lock,
        PIXI_LOCK: _read_pixi_lock,
        REQUIREMENTS: partial(_read_requirements, below=below),
        PYPROJECT: _read_pyproject,
        **dict.fromkeys(ENVIRONMENTS, _read_conda),
        SETUP_CFG: _read_setup_cfg,
        SETUP_PY: _read_setup_py,
    }
    declaring = ""
    for name, reader in readers.items():
        path = folder / name
        if not path.is_file():
            continue
        refuse_outside(path, below)
        if name in (PYPROJECT, SETUP_CFG, SETUP_PY):
            declaring = declaring or find_declaration(folder)
            if declaring != name:
                continue
        return reader(path)
    raise InputError(
        f"{folder} has none of {', '.join(readers)} that says which packages it needs",
        f"write {folder / REQUIREMENTS}: one package a line, as for pip install -r",
        page="your-own-project",
    )


def _read_pyproject(path: Path) -> Inputs:
    """Return what pyproject.toml asks for: uv reads a [project] table itself, and Poetry's is read here."""
    if is_of_poetry(path.parent):
        return Inputs(path.parent, PYPROJECT, (), read_poetry(path.parent), (), "")
    return Inputs(path.parent, PYPROJECT, (path,), (), (), "")


def _read_setup_cfg(path: Path) -> Inputs:
    return Inputs(path.parent, SETUP_CFG, (), read_setup_cfg(path.parent), (), "")


def _read_setup_py(path: Path) -> Inputs:
    return Inputs(path.parent, SETUP_PY, (path,), (), (), "")


def _read_uv_lock(path: Path) -> Inputs:
    """Return what uv.lock pins. uv reads the requirements themselves from pyproject.toml.

    Markers are uv's to judge: where the lock has two versions of a package, for two platforms, none
    of them is pinned here (`launchers/in-image/project.sh` asks uv for that of this platform).
    """
    pyproject = path.parent / PYPROJECT
    if not pyproject.is_file():
        raise InputError(
            f"{path} has no {PYPROJECT} beside it",
            f"put the {PYPROJECT} that belongs to it beside it, or name another folder",
            page="your-own-project",
        )
    allowed = []
    for one in read_toml(path).get("package", []):
        files = [*one.get("wheels", []), *filter(None, [one.get("sdist")])]
        found = frozenset(str(file["hash"]) for file in files if "hash" in file)
        if found:
            allowed.append(AllowedFiles(one["name"], found, str(one.get("version", ""))))
    return Inputs(path.parent, UV_LOCK, (pyproject,), (), tuple(allowed), "")


def _read_pylock(path: Path) -> Inputs:
    """Return what pylock.toml pins, each package as a requirement of its own."""
    requirements = []
    allowed = []
    document = read_toml(path)
    if not str(document.get("lock-version", "")).startswith("1."):
        raise InputError(
            f"{path}: lock-version {document.get('lock-version')!r} is not supported, only 1.x",
            "uv export --format pylock.toml",
            page="your-own-project",
        )
    for one in document.get("packages", []):
        name = canonicalize_name(one["name"])
        line = _describe_pylock_package(one, name, path.parent)
        if not line:
            continue
        marker = one.get("marker")
        requirements.append(f"{line} ; {marker}" if marker else line)
        others = [one.get("sdist"), one.get("archive")]
        files = [*one.get("wheels", []), *filter(None, others)]
        found = frozenset(
            f"{kind}:{value}" for file in files for kind, value in file.get("hashes", {}).items()
        )
        if found:
            allowed.append(AllowedFiles(name, found, str(one.get("version", ""))))
    return Inputs(path.parent, PYLOCK, (), tuple(requirements), tuple(allowed), "")


def _describe_pylock_package(one: dict[str, Any], name: str, folder: Path) -> str:
    """Return the requirement for ONE package, NAME, of the pylock.toml in FOLDER; empty for one of the
    user's own.
    """
    if "directory" in one:
        path = folder / str(one["directory"].get("path", "."))
        if not path.is_dir():
            raise InputError(
                f"{name} is the folder {path}, which does not exist",
                f"correct its path in {folder / PYLOCK}",
                page="your-own-project",
            )
        return ""  # the project itself, or another package of the user's own
    if "vcs" in one:
        vcs = one["vcs"]
        below = f"#subdirectory={vcs['subdirectory']}" if "subdirectory" in vcs else ""
        return f"{name} @ {vcs['type']}+{vcs.get('url', '')}@{vcs['commit-id']}{below}"
    if "archive" in one and "url" in one["archive"]:
        return f"{name} @ {one['archive']['url']}"
    if "version" not in one:
        return name
    return f"{name}=={one['version']}"


def make_folder_error(name: str, path: str) -> InputError:
    """Return the refusal of the package NAME, which is a folder of the user's own."""
    return InputError(
        f"{name} is the folder {path}, and only packages of an index are installed",
        f"take it off the list, add what it needs, and: export PYTHONPATH={path}, --mount if it is "
        "outside the project",
        page="your-own-project",
    )


def _read_requirements(path: Path, below: Path | None) -> Inputs:
    """Return what requirements.txt asks for; uv reads the file itself."""
    lines = read_pip_file(path, below).lines
    allowed = tuple(one.allowed for one in lines if one.allowed)
    instead = tuple(one.without_url_hash for one in lines if one.without_url_hash)
    return Inputs(path.parent, REQUIREMENTS, (path,), (), allowed, "", overrides=instead)


def _read_pixi_lock(path: Path) -> Inputs:
    """Return what pixi.lock pins, each package as a requirement of its own."""
    found = read_pixi_project(path)
    return Inputs(
        path.parent, PIXI_LOCK, (), found.lines, found.allowed, "", of_the_image=found.of_the_image
    )


def _read_conda(path: Path) -> Inputs:
    """Return what environment.yml asks for that PyPI has, too."""
    found = read_installable_environment(path)
    return Inputs(
        path.parent,
        path.name,
        (),
        tuple(one.text for one in found.lines),
        tuple(one.allowed for one in found.lines if one.allowed),
        "",
        of_the_image=tuple(one.text for one in found.of_the_image),
        overrides=tuple(one.without_url_hash for one in found.lines if one.without_url_hash),
    )


def list_direct_requirements(inputs: Inputs) -> list[Requirement]:
    """Return what the user has written: the requirements of INPUTS that can be told from it.

    Lines that only uv understands are left out.
    """
    lines = list(inputs.requirements)
    out: list[Requirement] = []
    for path in inputs.files:
        if path.name == PYPROJECT:
            project = read_toml(path).get("project", {})
            lines += project.get("dependencies", [])
            for extra in inputs.extras:
                lines += project.get("optional-dependencies", {}).get(extra, [])
        elif path.name == REQUIREMENTS:
            out += [one.requirement for one in read_pip_file(path).lines if one.requirement]
    for line in lines:
        try:
            out.append(Requirement(line))
        except InvalidRequirement:
            continue
    return out
