"""Create a bundle: all that a locked stack is built from, in one tar, for use without a network.

The tar's manifest.json names every file with its size and sha256. Whatever it does not name, or
what differs, is refused when the bundle is applied (bundle_apply.py).

Tested in tests/hostile/test_gifts.py and tests/integration/test_images.py.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.build.base import provide_base
from hpcstack.build.bundle_format import FILE_NAME, FORMAT, NAMES_ITS_BASE
from hpcstack.build.engines.base import ANSWERS
from hpcstack.build.inside import run_in_base
from hpcstack.build.request import BuildRequest, needed_bytes
from hpcstack.core import data
from hpcstack.core.errors import BuildError, InputError
from hpcstack.core.files import digest_of, list_files_under, write_tree
from hpcstack.core.outputs import new_file
from hpcstack.core.replacing import replace_file
from hpcstack.lock.check import find_open_items
from hpcstack.lock.path import LOCK_SUFFIX
from hpcstack.recipe.catalog import SUFFIX, Recipe
from hpcstack.render.steps import make_pip_files
from hpcstack.store import sbom
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
    """Write the bundle of REQUEST to the file OUTPUT, and return its size in bytes.

    A bundle without its base (not WITH_BASE) only names it, for machines to which an earlier bundle
    has brought the base. ARTIFACT adds the SBOM of the stack's image. Raise InputError for a stack
    that cannot be bundled.
    """
    locked = request.lock.platform(request.platform)
    _check_bundleable(request)
    output = new_file(output, force=True)

    base = provide_base(request.lock, request.platform, bench)
    with make_workspace(request.site, bench.runner, needed_bytes(locked)) as work:
        packages = _fetch_packages(work, request, base, bench)

        name = request.stack.full_name
        texts = {f"lock/{name}{LOCK_SUFFIX}": request.lock.text(), **_recipes(recipe)}
        if artifact:
            texts[f"sbom/{name}.cdx.json"] = sbom.make_image_sbom(artifact)
        write_tree(work / "texts", texts, on_disk=False)

        files = {f"packages/{path.name}": path for path in packages}
        files |= {name: work / "texts" / name for name in texts}
        absent = None
        if with_base:
            files[f"base/{base.name}"] = base
        else:
            absent = base

        bench.progress(f"packing {len(files)} files")
        return _pack(output, request, files, absent)


def _check_bundleable(request: BuildRequest) -> None:
    """Raise InputError where a bundle could not contain all that REQUEST is built from."""
    packages = request.stack.packages
    if packages.conda.packages or packages.source:
        raise InputError(
            f"{request.stack.full_name} takes packages from conda or git, which a bundle cannot "
            "contain yet",
            "build it where there is a network, and copy the image",
            page="air-gap",
        )

    open_items = find_open_items(request.stack, request.lock)
    if open_items:
        raise InputError(
            f"the lock leaves open: {', '.join(map(str, open_items))}",
            f"hpcstack lock {request.stack.full_name}",
            page="air-gap",
        )


def _fetch_packages(work: Path, request: BuildRequest, base: Path, bench: Workbench) -> list[Path]:
    """Return the locked files of apt, dnf and pip, which the base's own tools fetch inside BASE."""
    locked = request.lock.platform(request.platform)
    if not locked.apt and not locked.dnf and not locked.pip:
        return []

    bench.progress("fetching the locked packages")
    files = _list_wanted(request.stack, locked)
    kept = bench.store.top / "logs" / f"{request.stack.full_name}-bundle.log"
    folder = run_in_base(
        "fetch.sh", files, work, kept, request.engine, base, request.lock, request.platform, bench
    )

    # Programs of the base wrote there, so neither the tree nor the names are trusted.
    fetched = list_files_under(folder, folder / ANSWERS)
    for path in fetched:
        if not FILE_NAME.fullmatch(path.name):
            raise BuildError(f"the base's own tools fetched a file with an odd name: {path.name!r}")
    return fetched


def _list_wanted(stack: Stack, locked: LockedPlatform) -> dict[str, str]:
    """Return {path: text} of what images/fetch.sh reads: the lists below want/, and a script."""
    out = {
        "want/apt.txt": "".join(f"{entry.name}={entry.version}\n" for entry in locked.apt or ()),
        "want/dnf.txt": "".join(f"{entry.nevra}\n" for entry in locked.dnf or ()),
    }
    if not locked.pip:
        return out

    files = make_pip_files(stack.packages, locked)
    for path, text in files.items():
        if path.endswith(".py"):
            out[path] = text
        else:
            out[f"want/{Path(path).name}"] = text
    return out


def _recipes(recipe: Recipe) -> dict[str, str]:
    """Return {path: text} of the effective recipe, as one file that extends nothing.

    A recipe that comes with hpcstack is left out: the other machine has it.
    """
    if recipe.path.resolve().parent == data.find_data_folder("recipes").resolve():
        return {}

    import yaml

    spec = recipe.stack.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    for entry in spec.get("files", []):
        if entry.get("content") is not None:
            # The recipe holds the text now. The file itself lies beside the original recipe, and
            # does not come with the bundle.
            entry.pop("source", None)

    # What the project asks for is among `pip` and `constraints` now.
    spec.get("packages", {}).pop("project", None)

    name = recipe.stack.full_name
    head = f"# {name}: the effective recipe, as hpcstack bundle wrote it\n"
    text = yaml.safe_dump(spec, sort_keys=False, allow_unicode=True, width=1000)
    return {f"recipes/{name}{SUFFIX}": f"{head}{text}"}


def _pack(output: Path, request: BuildRequest, files: dict[str, Path], absent: Path | None) -> int:
    """Write the tar OUTPUT of FILES, {path in the tar: file}, and return its size in bytes.

    ABSENT is the base, where the bundle only names it. The manifest comes first, so that a reader
    can check every file as it comes.
    """
    named = {name: _measure(path) for name, path in sorted(files.items())}
    manifest = {
        "format": FORMAT,
        "stack": request.stack.full_name,
        "platform": request.platform,
        "files": named,
    }
    if absent:
        manifest |= {"format": NAMES_ITS_BASE, "base": {"name": absent.name, **_measure(absent)}}

    output.parent.mkdir(parents=True, exist_ok=True)
    with (
        replace_file(output) as part,
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


def _measure(path: Path) -> dict[str, str | int]:
    """Return the sha256 and the size of the file PATH, as a manifest states them."""
    return {"sha256": digest_of(path), "size": path.stat().st_size}
