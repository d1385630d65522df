"""A bundle: all that a locked stack is built from, in one tar, for a machine that reaches nothing.

manifest.json names every file with its size and sha256; what is not named, or differs, is refused.
`apply` puts the lock, the base and the packages where `build --offline` finds them. The registry's
digest cannot be checked of a base that was imported elsewhere: it is kept under its own sha256, for
the lock that came with it, and serves no other build.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.build.base import base_of
from hpcstack.build.bundle_format import FILE_NAME, FORMAT, NAMES_ITS_BASE
from hpcstack.build.engines.base import ANSWERS
from hpcstack.build.inside import run_in_base
from hpcstack.build.request import BuildRequest, needed_bytes
from hpcstack.core import data
from hpcstack.core.errors import BuildError, InputError
from hpcstack.core.files import digest_of, files_below, write_tree
from hpcstack.core.outputs import new_file
from hpcstack.core.replacing import replace_file
from hpcstack.lock.check import find_open_items
from hpcstack.lock.path import LOCK_SUFFIX
from hpcstack.recipe.catalog import SUFFIX, Recipe
from hpcstack.render.steps import pip_files
from hpcstack.store import sbom
from hpcstack.store.contents import read_distribution
from hpcstack.store.workspace import make_workspace

if TYPE_CHECKING:
    from hpcstack.build.workbench import Workbench
    from hpcstack.lock.model import LockedPlatform
    from hpcstack.recipe.model import Stack
    from hpcstack.store.artifact import Artifact


def create_bundle(
    request: BuildRequest,
    recipe: Recipe,
    output: Path,
    artifact: Artifact | None,
    bench: Workbench,
    *,
    with_base: bool = True,
) -> int:
    """The bundle of REQUEST as the file OUTPUT; the bytes that it has. Not WITH_BASE: it names its
    base, which an earlier bundle has brought to where it goes.
    """
    locked = request.lock.platform(request.platform)
    _can_be_bundled(request)
    output = new_file(output, force=True)
    base = base_of(request.lock, request.platform, bench)
    with make_workspace(request.site, bench.runner, needed_bytes(locked)) as work:
        packages = _fetch(work, request, base, bench)
        texts = {
            f"lock/{request.stack.full_name}{LOCK_SUFFIX}": request.lock.text(),
            **_recipes(recipe),
        }
        if artifact:
            texts[f"sbom/{request.stack.full_name}.cdx.json"] = sbom.make_sbom(
                artifact, read_distribution(artifact.image)
            )
        write_tree(work / "texts", texts, on_disk=False)
        files = {f"packages/{path.name}": path for path in packages}
        files |= {name: work / "texts" / name for name in texts}
        files |= {f"base/{base.name}": base} if with_base else {}
        bench.progress(f"packing {len(files)} files")
        return _pack(output, request, files, None if with_base else base)


def _can_be_bundled(request: BuildRequest) -> None:
    packages = request.stack.packages
    if packages.conda.packages or packages.source:
        raise InputError(
            (
                f"{request.stack.full_name} takes packages from conda or git, which a bundle "
                f"cannot contain yet"
            ),
            "build it where there is a network, and copy the image",
        )
    if left := find_open_items(request.stack, request.lock):
        raise InputError(
            f"the lock leaves open: {', '.join(map(str, left))}",
            f"hpcstack lock {request.stack.full_name}",
        )


def _fetch(work: Path, request: BuildRequest, base: Path, bench: Workbench) -> list[Path]:
    """The locked files of apt and pip, fetched inside the base."""
    locked = request.lock.platform(request.platform)
    if not locked.apt and not locked.pip:
        return []
    bench.progress("fetching the locked packages")
    files = _wanted(request.stack, locked)
    kept = bench.store.top / "logs" / f"{request.stack.full_name}-bundle.log"
    folder = run_in_base(
        "fetch.sh", files, work, kept, request.engine, base, request.lock, request.platform, bench
    )
    fetched = files_below(folder, folder / ANSWERS)  # programs of the base wrote there
    for path in fetched:
        if not FILE_NAME.fullmatch(path.name):
            raise BuildError(f"the base's own tools fetched a file with an odd name: {path.name!r}")
    return fetched


def _wanted(stack: Stack, locked: LockedPlatform) -> dict[str, str]:
    apt = "".join(f"{entry.name}={entry.version}\n" for entry in locked.apt or ())
    files = pip_files(stack.packages, locked) if locked.pip else {}
    scripts = {path: text for path, text in files.items() if path.endswith(".py")}
    lists = {f"want/{Path(path).name}": text for path, text in files.items() if path not in scripts}
    return {"want/apt.txt": apt, **lists, **scripts}


def _recipes(recipe: Recipe) -> dict[str, str]:
    """The effective recipe as one file that extends nothing, unless it comes with hpcstack itself."""
    if recipe.path.resolve().parent == data.find_data_folder("recipes").resolve():
        return {}
    import yaml

    spec = recipe.stack.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    for entry in spec.get("files", []):
        if entry.get("content") is not None:
            entry.pop(
                "source", None
            )  # the file's text is here: its own lies beside the recipe it came from
    text = yaml.safe_dump(spec, sort_keys=False, allow_unicode=True, width=1000)
    name = recipe.stack.full_name
    return {
        f"recipes/{name}{SUFFIX}": (
            f"# {name}: the effective recipe, as hpcstack bundle wrote it\n{text}"
        )
    }


def _pack(output: Path, request: BuildRequest, files: dict[str, Path], absent: Path | None) -> int:
    """OUTPUT of FILES, {path in the tar: file}; ABSENT is the base where that is only named."""
    named = {name: _about(path) for name, path in sorted(files.items())}
    manifest = {
        "format": FORMAT,
        "stack": request.stack.full_name,
        "platform": request.platform,
        "files": named,
    }
    if absent:
        manifest |= {"format": NAMES_ITS_BASE, "base": {"name": absent.name, **_about(absent)}}
    output.parent.mkdir(parents=True, exist_ok=True)
    with (
        replace_file(output, shared=False) as part,
        tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar,
    ):
        text = json.dumps(manifest, indent=1).encode()
        head = tarfile.TarInfo("manifest.json")
        head.size = len(text)
        tar.addfile(head, io.BytesIO(text))
        for name, path in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(info, file)
    return output.stat().st_size


def _about(path: Path) -> dict[str, str | int]:
    return {"sha256": digest_of(path), "size": path.stat().st_size}
