"""Make a recipe, a lock and an image in the store of an image that hpcstack did not build."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from hpcstack.adopt.survey import survey_image
from hpcstack.build.base import find_host_platform, import_image
from hpcstack.build.build import build_on
from hpcstack.build.engines import choose_engine
from hpcstack.build.request import LEAST_BYTES, BuildRequest
from hpcstack.core.errors import InputError
from hpcstack.core.files import digest_of
from hpcstack.core.quote import join_lines
from hpcstack.lock.file import LockFile
from hpcstack.lock.model import (
    TEMPLATE_VERSION,
    UNKNOWN,
    AdoptedContents,
    Lock,
    LockedBase,
    LockedPlatform,
)
from hpcstack.lock.model import read_lock as read_lock
from hpcstack.recipe.catalog import Catalog, Recipe
from hpcstack.recipe.new_recipe import place_new_recipe, write_new_recipe
from hpcstack.render.image import KERNEL_NAMES
from hpcstack.store.package_lists import read_package_lists
from hpcstack.store.sif import SIF_SUFFIX, extract_squashfs
from hpcstack.store.store import LOCK
from hpcstack.store.workspace import make_workspace

if TYPE_CHECKING:
    from hpcstack.adopt.lua_module import LuaModule
    from hpcstack.adopt.survey import Survey
    from hpcstack.build.workbench import Workbench
    from hpcstack.core.process import Runner
    from hpcstack.recipe.model import Stack
    from hpcstack.store.artifact import Artifact

# Stands where nothing says what an image was made from. RFC 2606: no registry can have this name.
NO_BASE = "adopted.invalid/not-known:not-known"
TORCHRUN = "torchrun"
PYTHONS = ("python", "python3")  # which a recipe's `module.python` offers
# There is one step and no definition to build by. So the engine that needs nothing but what mounts
# and packs images is enough.
ENGINE = "builtin"


@dataclass(frozen=True)
class AdoptRequest:
    """What to adopt: SOURCE as NAME-VERSION, with its recipe in FOLDER.

    SOURCE is a squashfs, a SIF, or whatever `hpcstack import` takes. COMMANDS get wrappers in the
    module.
    """

    source: str
    name: str
    version: str
    folder: Path
    summary: str = ""
    commands: tuple[str, ...] = ()
    modulefile: LuaModule | None = None


@dataclass(frozen=True)
class Adoption:
    """What was adopted: its recipe, its lock, its image, and what could not be known of it.

    NEW is False where the store had the image already.
    """

    recipe: Recipe
    lock: Lock
    lock_path: Path
    artifact: Artifact
    new: bool
    unknown: tuple[str, ...]


def adopt_image(request: AdoptRequest, catalog: Catalog, bench: Workbench) -> Adoption:
    """Put the image of REQUEST into the store, and write its recipe and its lock.

    If that fails, no new recipe is left.
    """
    full_name, path = place_new_recipe(request.folder, request.name, request.version, catalog)
    with make_workspace(bench.site, bench.runner, LEAST_BYTES) as work:
        source, image = _find_image(request.source, work, bench)
        before = _identify_file(image)
        bench.progress(f"reading {image}")
        sha256 = digest_of(image)
        survey = survey_image(image, (TORCHRUN, *request.commands))
        _check_usable(request, survey)
        named = work / f"adopted-{sha256}.sqsh"  # engines know a base by its name
        named.symlink_to(image)

        def complete(build: BuildRequest, made: Path) -> BuildRequest:
            # By now all of the image has been read: was it one and the same file?
            if _identify_file(image) != before:
                raise InputError(
                    f"{image} was changed while it was read",
                    "adopt it again when nobody writes to it",
                )
            return _add_contents(build, made, bench.runner)

        text = render_recipe(request, survey, source, sha256)
        new_recipe = write_new_recipe(path, text, bench.site.sharing)
        try:
            recipes = Catalog([request.folder, *catalog.folders], catalog.policy)
            recipe = recipes.find(full_name)
            lock = _make_first_lock(recipe.stack, survey, sha256, image.stat().st_size)
            engine, why = choose_engine(ENGINE, bench.runner)
            build = BuildRequest(recipe.stack, lock, bench.site, survey.platform, engine, why)
            artifact, new = build_on(named, build, bench, complete)
        except BaseException:  # also Ctrl-C
            if new_recipe:
                path.unlink(missing_ok=True)
            raise

    whole = read_lock(Path(artifact.folder) / LOCK)
    lock_path = LockFile(recipe, bench.site).write(whole)
    return Adoption(recipe, whole, lock_path, artifact, new, survey.unknown)


def _find_image(source: str, work: Path, bench: Workbench) -> tuple[str, Path]:
    """Return (SOURCE in words, the squashfs that it is, or is imported to in the folder WORK)."""
    path = Path(source).expanduser()
    if path.suffix == SIF_SUFFIX and path.is_file():
        image = work / "extracted.sqsh"
        extract_squashfs(path, image, bench.runner)
        return str(path.absolute()), image
    if path.is_file() and path.suffix != ".tar":
        return str(path.absolute()), path.absolute()
    if path.suffix in (".sqsh", ".squashfs", SIF_SUFFIX):
        raise InputError(
            f"{source} does not exist",
            "name a squashfs, a SIF, or an image as hpcstack import takes it",
            page="adopt-an-image",
        )
    imported = import_image(source, find_host_platform(), work / "imported.sqsh", bench)
    return f"{source.partition('@')[0]}@{imported.image.digest}", imported.path


def _identify_file(path: Path) -> tuple[int, ...]:
    """Return what changes when the file PATH is written to or replaced."""
    about = path.stat()
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def _check_usable(request: AdoptRequest, survey: Survey) -> None:
    """Raise InputError for an image of another platform, or without the commands of REQUEST."""
    here = find_host_platform()
    if survey.platform != here:
        raise InputError(
            f"{request.source} is for {survey.platform}, and this machine is {here}",
            "adopt it on a machine of its kind: "
            f"uname -m says {KERNEL_NAMES[survey.platform]} there",
            page="adopt-an-image",
        )
    lacks = [name for name in request.commands if name not in survey.files]
    if lacks:
        raise InputError(
            f"the image has no {', '.join(lacks)} on its PATH",
            "--command names what the image has",
            page="adopt-an-image",
        )


def render_recipe(request: AdoptRequest, survey: Survey, source: str, sha256: str) -> str:
    """Return the recipe of an image that was adopted from SOURCE, as YAML with comments.

    An image can be adopted again only while its recipe is this very text.
    """
    has_torchrun = TORCHRUN in survey.files
    commands = request.commands
    if not commands and has_torchrun:
        commands = (TORCHRUN,)
    module: dict[str, Any] = {}
    others = [name for name in commands if name not in PYTHONS]
    if others:
        module["commands"] = others
    if len(others) < len(commands):
        module["python"] = True
    if request.modulefile and request.modulefile.settings:
        module["environment"] = {
            name: _shorten(value) for name, value in request.modulefile.settings.items()
        }

    spec: dict[str, Any] = {
        "apiVersion": "hpcstack/v1",
        "name": request.name,
        "version": request.version,
        "summary": request.summary or f"Adopted from {Path(source.partition('@')[0]).name}"[:100],
        "adopted": {"sha256": sha256, "source": source},
        "base": {"image": survey.base or NO_BASE, "platforms": [survey.platform]},
        "launch": {"mode": TORCHRUN if has_torchrun else "plain"},
    }
    if module:
        spec["module"] = module

    lines = [
        "Written by hpcstack adopt: the image is taken as it is, and cannot be built from this "
        "file."
    ]
    if survey.base:
        lines.append(f"The base is what the image says, by {survey.base_said_by}.")
    else:
        lines.append("Nothing says what it was made from.")
    if request.modulefile:
        lines.append(f"module.environment is what {request.modulefile.path} sets.")
    lines += [
        "To build one like it: drop `adopted`, name in base.image what to build on, and write "
        "what was added, e.g.",
        "packages: {pip: [NAME==VERSION]}.",
    ]
    head = "".join(f"# {join_lines(text)}\n" for text in lines)
    return head + yaml.safe_dump(spec, sort_keys=False, allow_unicode=True, width=1000)


def _shorten(value: dict[str, Any]) -> Any:
    """Return a variable's setting as people write it in a recipe, without its default values."""
    if "set" in value:
        return value["set"]
    return {key: part for key, part in value.items() if part and (key, part) != ("separator", ":")}


def _make_first_lock(stack: Stack, survey: Survey, sha256: str, size: int) -> Lock:
    """Return the lock of an adopted image before its packages are listed."""
    assert stack.adopted
    locked = LockedPlatform(
        digest=UNKNOWN,
        environment=dict(survey.environment),
        labels=dict(survey.labels),
        entrypoint=survey.entrypoint,
        command=survey.command,
        workdir=survey.workdir,
        compressed_bytes=size,
    )
    base = LockedBase(
        registry=stack.base.registry,
        repository=stack.base.repository,
        tag=stack.base.tag,
        index_digest=UNKNOWN,
        answered_by="nobody",
        platforms={survey.platform: locked},
    )
    contents = AdoptedContents(
        sha256=sha256,
        source=stack.adopted.source,
        base_said_by=survey.base_said_by,
        unknown=survey.unknown,
    )
    return Lock(
        stack=stack.full_name,
        spec_sha256=stack.checksum(),
        template_version=TEMPLATE_VERSION,
        base=base,
        adopted=contents,
    )


def _add_contents(request: BuildRequest, image: Path, runner: Runner) -> BuildRequest:
    """Return REQUEST with the packages of the finished IMAGE in its lock."""
    assert request.lock.adopted
    lists = read_package_lists(image, runner)
    known = request.lock.adopted
    found = {
        "apt": lists.apt,
        "pip": lists.pip,
        "conda": lists.conda,
        "unknown": (*known.unknown, *lists.unlisted),
    }
    contents = AdoptedContents.model_validate({**known.model_dump(), **found})
    return replace(request, lock=request.lock.model_copy(update={"adopted": contents}))
