"""Choose versions for what a project asks for, on top of what an image has.

uv does it inside the image, so that Python, platform and C library are the image's own. The
packages that the image has are constraints; they are taken out of the answer.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from hpcstack.core.errors import BuildError, InputError
from hpcstack.core.files import read_text, write_text
from hpcstack.project.inside import LENT, open_inside
from hpcstack.project.lock_file import (
    TOOL,
    ProjectLock,
    digest_image,
    list_files,
    strip_url_logins,
)
from hpcstack.requirements.allowed_files import list_allowed_hashes
from hpcstack.requirements.inputs import (
    OF_TORCH,
    list_direct_requirements,
    list_outside_files,
    make_folder_error,
)
from hpcstack.requirements.project_files import PYPROJECT, UV_LOCK, WHOLE_LOCKS, read_toml
from hpcstack.site.logins import redact_logins

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.core.process import Completed, Runner
    from hpcstack.core.progress import Progress
    from hpcstack.project.inside import Inside
    from hpcstack.requirements.inputs import Inputs
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact

# What uv says where no versions fit, where a package is on no index, and where it wants git
# (seen from uv 0.13; earlier ones draw lines around the first two)
NO_SOLUTION = "No solution found when resolving dependencies"
ABSENT = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:[<>=!~][^ ]*)? was not found in the package registry"
)
NO_GIT = "Git executable not found"
OWN_OF_TORCH = "the image's own, with its torch"  # the version of what no list of the image names


def lock_project(
    inputs: Inputs,
    artifact: Artifact,
    site: Site,
    runner: Runner,
    progress: Progress,
    before: ProjectLock | None = None,
) -> ProjectLock:
    """Return the lock of what INPUTS ask for, on top of the image of ARTIFACT.

    The versions of a lock that was there BEFORE are kept as far as they fit. Without a network,
    versions that uv's cache has are chosen, and that is said. Raise InputError where something else
    is wanted than the image has, and where a hash is not the user's own. Raise BuildError where uv
    fails.
    """
    check_against_image(inputs, artifact.pip)
    wanted = inputs.folder or ", ".join(inputs.requirements)
    progress(f"choosing versions for {wanted} on top of {artifact.stack}")
    with open_inside(artifact, site, runner, progress) as inside:
        if before:  # uv keeps its versions as far as they still fit
            write_text(inside.lent / "pylock.toml", before.render())
        done = _compile(inputs, inside)
        if done.status:
            raise explain_uv_failure(done, inputs, artifact, site)
        document = read_toml(inside.lent / "pylock.toml")
        base = _read_base(read_text(inside.lent / "names.txt", 1 << 20))
        python, python_path = read_text(inside.lent / "python.txt", 1 << 12).splitlines()[:2]
    lock = subtract_image(document, inputs, artifact, base, python)
    lock.about["python-path"] = python_path
    if inputs.of_the_image:
        progress(f"the image's own count instead of: {', '.join(inputs.of_the_image)}")
    left_out = [name for name, own in lock.about["of-the-image"].items() if own == OWN_OF_TORCH]
    if left_out:
        names = ", ".join(left_out)
        progress(f"left out, since the image's torch has its own of NVIDIA's: {names}")
    return lock


def _compile(inputs: Inputs, inside: Inside) -> Completed:
    """Let uv choose versions, from the index, or without a network from its cache."""
    words = ["lock"]
    variables = {}
    mounts: tuple[str, ...] = ()
    workdir = Path("/")
    if inputs.folder:
        folder = inputs.folder.resolve()
        mounts = (f"{folder}:{folder}", *list_outside_files(inputs))
        workdir = folder
        words += [str(folder / path.name) for path in inputs.files]
    requirements = _list_requirements(inputs, inside.artifact)
    if requirements:
        write_text(inside.lent / "named.txt", "".join(f"{one}\n" for one in requirements))
        words.append(f"{LENT}/named.txt")
    if inputs.overrides:
        write_text(inside.lent / "overrides.txt", "".join(f"{one}\n" for one in inputs.overrides))
        words += ["--override", f"{LENT}/overrides.txt"]
    options = [f"--extra={name}" for name in inputs.extras]
    options += [f"--group={name}" for name in inputs.groups]
    words += options
    if inputs.kind == UV_LOCK and inputs.folder:
        variables["HPCSTACK_UV_LOCK"] = str(inputs.folder.resolve())
        variables["HPCSTACK_UV_WITH"] = " ".join(options)

    done = inside.run(tuple(words), mounts=mounts, variables=variables, workdir=workdir)
    is_answered = not done.status or NO_SOLUTION in " ".join(done.tail)
    if is_answered or os.environ.get("UV_OFFLINE"):
        return done
    variables["UV_OFFLINE"] = "1"
    again = inside.run(tuple(words), mounts=mounts, variables=variables, workdir=workdir)
    if again.status:
        return done
    inside.progress("the package index does not answer; versions are those of uv's cache")
    return again


def _list_requirements(inputs: Inputs, artifact: Artifact) -> list[str]:
    """Return the requirements of INPUTS, for uv.

    A pylock.toml or pixi.lock pins everything, also what its packages need of the image: there the image's
    version counts, if the packages accept it. What PyPI's torch needs for itself is left out.
    """
    if inputs.kind not in WHOLE_LOCKS:
        return list(inputs.requirements)
    has = {canonicalize_name(name) for name in artifact.pip}

    def is_of_image(line: str) -> bool:
        name = canonicalize_name(re.split(r"[ <>=!~;@\[]", line)[0])
        return name in has or bool("torch" in has and OF_TORCH.fullmatch(name))

    return [line for line in inputs.requirements if not is_of_image(line)]


def _read_base(text: str) -> dict[str, str]:
    """Return {name: version} of the image's packages, as project_base.py wrote them."""
    pairs = (line.partition("==")[::2] for line in text.splitlines() if "==" in line)
    return {canonicalize_name(name): version for name, version in pairs}


def subtract_image(
    document: dict[str, Any],
    inputs: Inputs,
    artifact: Artifact,
    base: Mapping[str, str],
    python: str,
) -> ProjectLock:
    """Return the lock of DOCUMENT, what uv has chosen, without the packages of BASE.

    What PyPI's torch brings of NVIDIA's is left out as well where BASE has a torch, whoever asked for
    it: in front of the image's own libraries it would break that. Files are kept that the user's own
    hashes allow. Raise InputError where none is left.
    """
    kept = []
    of_the_image: dict[str, str] = {}
    for package in strip_url_logins(document.get("packages", [])):
        name = canonicalize_name(package["name"])
        if name in base:
            of_the_image[name] = base[name]
        elif "torch" in base and OF_TORCH.fullmatch(name):
            of_the_image[name] = OWN_OF_TORCH
        elif "directory" in package:
            _check_own(package, inputs)
        else:
            kept.append(_with_allowed_files(_with_absolute_paths(package), inputs))
    chosen: dict[str, str] = {
        canonicalize_name(one["name"]): str(one.get("version", "")) for one in kept
    }
    instead: dict[str, str] = {}
    for row in sorted(inputs.allowed, key=lambda row: (row.name, row.pinned)):
        locked = canonicalize_name(row.name)
        taken = of_the_image.get(locked) or chosen.get(locked, row.pinned)
        is_locked = any(one.holds_for(locked, taken) for one in inputs.allowed)
        if row.pinned and not is_locked:
            instead[locked] = f"{taken} instead of {row.pinned}"
    if inputs.kind in WHOLE_LOCKS:
        instead |= _list_contradicted(inputs, of_the_image)
    about = {
        "stack": artifact.stack,
        "python": python,
        "platform": artifact.platform,
        "inputs": inputs.digest,
        "image": digest_image(artifact),
        "of-the-image": of_the_image,
        "instead": instead,
    }
    return ProjectLock(
        {
            "lock-version": "1.0",
            "created-by": "hpcstack",
            "requires-python": f"=={python}.*",
            "packages": kept,
            "tool": {TOOL: about},
        }
    )


def _list_contradicted(inputs: Inputs, of_the_image: Mapping[str, str]) -> dict[str, str]:
    """Return {name: `THE IMAGE'S instead of THE LOCK'S`} where the image has what a lock does not take."""
    out: dict[str, str] = {}
    for line in inputs.requirements:
        try:
            wanted = Requirement(line)
        except InvalidRequirement:
            continue
        name = canonicalize_name(wanted.name)
        has = of_the_image.get(name, "")
        is_for_here = wanted.marker is None or wanted.marker.evaluate()
        if has and is_for_here and not _accepts(wanted.specifier, has):
            out[name] = f"{has} instead of {str(wanted.specifier).removeprefix('==')}"
    return out


def _check_own(package: dict[str, Any], inputs: Inputs) -> None:
    """Raise InputError unless PACKAGE, which is a folder, is used live: the project, or what it names."""
    path = posixpath.normpath(posixpath.join(LENT, package["directory"].get("path", "")))
    folders = {str(inputs.folder), *map(str, inputs.own)}
    is_own = path == LENT or path in folders
    if inputs.folder and (inputs.folder / PYPROJECT).is_file():
        project = read_toml(inputs.folder / PYPROJECT).get("project", {})
        is_own |= canonicalize_name(package["name"]) == canonicalize_name(project.get("name", ""))
    if not is_own:
        raise make_folder_error(package["name"], path)


def _with_absolute_paths(package: dict[str, Any]) -> dict[str, Any]:
    """Return PACKAGE, whose local files are named relative to LENT, with their absolute paths."""
    out = dict(package)
    for kind in ("archive", "sdist"):
        if "path" in out.get(kind, {}):
            out[kind] = {**out[kind], "path": posixpath.normpath(f"{LENT}/{out[kind]['path']}")}
    if "wheels" in out:
        out["wheels"] = [
            {**one, "path": posixpath.normpath(f"{LENT}/{one['path']}")} if "path" in one else one
            for one in out["wheels"]
        ]
    return out


def _with_allowed_files(package: dict[str, Any], inputs: Inputs) -> dict[str, Any]:
    """Return PACKAGE with those of its files whose hashes the user's own lock allows, if it has any.

    Raise InputError where none is left: either the lock or the file was changed.
    """
    name = canonicalize_name(package["name"])
    version = str(package.get("version", ""))
    url = str(package.get("archive", {}).get("url", ""))
    allowed = list_allowed_hashes(inputs.allowed, name, version, url.partition("#")[0])
    if allowed is None:
        return package

    def is_allowed(file: dict[str, Any]) -> bool:
        hashes = file.get("hashes", {})
        return any(f"{kind}:{value}".lower() in allowed for kind, value in hashes.items())

    out = dict(package)
    if "wheels" in out:
        out["wheels"] = [file for file in out["wheels"] if is_allowed(file)]
        if not out["wheels"]:
            del out["wheels"]
    for kind in ("sdist", "archive"):
        if kind in out and not is_allowed(out[kind]):
            del out[kind]
    if any(True for _ in list_files(out)):
        return out
    found = ", ".join(
        f"{kind}:{value}" for file in list_files(package) for kind, value in file["hashes"].items()
    )
    raise InputError(
        f"{inputs.kind} allows no file that the index has of {name} {package.get('version')}: "
        f"their hashes are {found}",
        f"find out why {inputs.kind} and the index differ; then make {inputs.kind} again",
        page="your-own-project",
    )


def check_against_image(inputs: Inputs, base: Mapping[str, str]) -> None:
    """Raise InputError where INPUTS themselves ask for another version than BASE, the image's, has.

    All of them are named at once. What packages require of each other is uv's to judge.
    """
    has = {canonicalize_name(name): version for name, version in base.items()}
    problems = []
    write = []
    names = []
    overridden = _list_overridden(inputs)
    for wanted in list_direct_requirements(inputs):
        name = canonicalize_name(wanted.name)
        version = has.get(name, "")
        # Whether a marker holds is the image's Python's to say: uv asks it.
        if not version or wanted.marker or name in overridden:
            continue
        if inputs.kind not in WHOLE_LOCKS and not _accepts(wanted.specifier, version):
            problems.append(
                f"{wanted.name}{wanted.specifier} is wanted, and the image has {version}"
            )
            write.append(_suggest(wanted.name, version))
            names.append(name)
    if problems:
        file = inputs.files[0].name if inputs.files else inputs.kind
        where = f"in {file}, write " if file else "write "
        raise InputError(
            "\n  ".join(["the image's own packages are never replaced:", *problems]),
            f"{where}{', '.join(write)}; or use another stack: hpcstack find {names[0]}",
            page="your-own-project",
        )


def _list_overridden(inputs: Inputs) -> set[str]:
    """Return the packages whose requirements uv overrides, by the project's pyproject.toml."""
    if not inputs.folder or PYPROJECT not in [path.name for path in inputs.files]:
        return set()
    uv = read_toml(inputs.folder / PYPROJECT).get("tool", {}).get("uv", {})
    lines = uv.get("override-dependencies", [])
    return {canonicalize_name(re.split(r"[ <>=!~;@\[]", str(line))[0]) for line in lines}


def _accepts(specifier: Any, version: str) -> bool:
    try:
        return bool(specifier.contains(Version(version), prereleases=True))
    except InvalidVersion:
        return True  # uv says what it thinks of it


def _suggest(name: str, version: str) -> str:
    """Return a requirement that VERSION satisfies: NVIDIA's are often builds before a release."""
    found = re.match(r"\d+(\.\d+)*((a|b|rc)\d+)?", version)
    return f"{name}>={found[0]}" if found else name


def explain_uv_failure(
    done: Completed, inputs: Inputs, artifact: Artifact, site: Site
) -> InputError | BuildError:
    """Return the error for uv, which is DONE and has failed for INPUTS."""
    tail = [line for line in done.tail if line.strip()]
    said = "".join(f"\n  < {line}" for line in tail)
    text = " ".join(re.sub("[│╰─▶×]", " ", " ".join(tail)).split())
    head, hint = _name_cause(text, inputs, artifact)
    if head:
        return InputError(redact_logins(head + said, site), hint, page="your-own-project")
    what = inputs.folder or ", ".join(inputs.requirements)
    return BuildError(redact_logins(f"uv failed for {what}{said}", site), page="your-own-project")


def _name_cause(text: str, inputs: Inputs, artifact: Artifact) -> tuple[str, str]:
    """Return (what in the user's files is wrong, what to do), by what uv has said; empty if nothing is.

    TEXT is in one line.
    """
    absent = list(dict.fromkeys(ABSENT.findall(text)))
    if absent:
        return (
            f"not on the package index: {', '.join(absent)}",
            "correct the spelling; a package of your own is named by its folder: -e ../FOLDER",
        )
    if NO_GIT in text:
        return (
            f"{artifact.stack} has no git, and one of the packages comes from a git repository",
            "name an archive of it, NAME @ https://.../COMMIT.tar.gz; or clone it, and -e ../FOLDER",
        )
    if NO_SOLUTION in text:
        return _explain_conflict(text, inputs, artifact)
    return "", ""


def _explain_conflict(text: str, inputs: Inputs, artifact: Artifact) -> tuple[str, str]:
    """Return (why no versions fit, what to do). TEXT names the packages that stand in the way."""
    words = set(re.findall(r"[A-Za-z0-9][A-Za-z0-9._-]*", text))
    named = {canonicalize_name(re.split(r"[<>=!~\[]", word)[0]) for word in words}
    has = [
        f"{name} {version}"
        for name, version in sorted(artifact.pip.items())
        if canonicalize_name(name) in named
    ]
    what = inputs.folder or ", ".join(inputs.requirements)
    head = f"no versions fit {what} on top of {artifact.stack}"
    if has:
        head += f": the image has {', '.join(has)}"
    hint = "allow older versions of what wants something else"
    if inputs.kind in (UV_LOCK, PYPROJECT) and has:
        name = has[0].partition(" ")[0]
        hint += f'; if that is too strict: [tool.uv] override-dependencies = ["{name}"]'
    return head, hint
