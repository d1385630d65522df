"""A bundle: all that a locked stack is built from, in one tar, for a machine that reaches nothing.

manifest.json names every file with its sha256; what is not named, or differs, is refused. `apply` puts the lock, the
base and the packages where `build --offline` finds them.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from hpcstack import data, sbom
from hpcstack.bases import base_name, base_of
from hpcstack.build import explain, job_in
from hpcstack.cache import cache_of
from hpcstack.errors import InputError
from hpcstack.lease import label, sweep
from hpcstack.lock import model
from hpcstack.lock.model import Lock, LockedPlatform
from hpcstack.lock.place import LOCK_SUFFIX
from hpcstack.ordering import Order, needs
from hpcstack.process import Runner
from hpcstack.registry import Registry
from hpcstack.render.steps import requirements
from hpcstack.render.template import plain
from hpcstack.site import Site
from hpcstack.spec import guard
from hpcstack.spec.catalog import EXTENDED, Recipe
from hpcstack.store import Artifact, Store, digest_of, new_file, settle, write_text, write_tree
from hpcstack.talk import Talk
from hpcstack.verifying import distribution
from hpcstack.workspace import workspace

FORMAT = "hpcstack/bundle/v1"
MAX_MANIFEST = 64 << 20


@dataclass(frozen=True)
class Applied:
    """What came out of a bundle."""

    stack: str
    platform: str
    files: int
    bytes: int
    lock: Path
    recipes: tuple[Path, ...]


def offline_folder(site: Site, lock: Lock, platform: str) -> Path:
    """Where the packages of a locked stack lie for `build --offline`."""
    return cache_of(site).top / "offline" / f"{lock.digest()[:24]}-{platform.replace('/', '-')}"


def create(
    order: Order,
    recipe: Recipe,
    output: Path,
    artifact: Artifact | None,
    registry: Registry,
    runner: Runner,
    talk: Talk,
) -> int:
    """The bundle of ORDER as the file OUTPUT; the bytes that it has."""
    locked = order.lock.platform(order.platform)
    _can_be_bundled(order)
    output = new_file(output, force=True)
    base = base_of(order.lock, order.platform, order.site, registry, runner, talk)
    with workspace(order.site, runner, needs(locked)) as work:
        packages = _fetched(work, order, base, runner, talk)
        texts = {f"lock/{order.stack.full_name}{LOCK_SUFFIX}": order.lock.text(), **_recipes(recipe)}
        if artifact:
            texts[f"sbom/{order.stack.full_name}.cdx.json"] = sbom.document(
                artifact, distribution(artifact.image, runner)
            )
        write_tree(work / "texts", texts)
        files = {f"packages/{path.name}": path for path in packages} | {"base/" + base.name: base}
        files |= {name: work / "texts" / name for name in texts}
        talk(f"packing {len(files)} files")
        return _packed(output, order, files)


def _can_be_bundled(order: Order) -> None:
    packages = order.stack.packages
    if packages.conda.packages or packages.source:
        raise InputError(
            f"{order.stack.full_name} takes packages from conda or git, which a bundle cannot hold yet",
            "build it where there is a network, and copy the image",
        )
    if order.lock.unresolved:
        raise InputError(
            f"the lock leaves open: {', '.join(order.lock.unresolved)}", f"hpcstack lock {order.stack.full_name}"
        )


def _fetched(work: Path, order: Order, base: Path, runner: Runner, talk: Talk) -> list[Path]:
    """The locked files of apt and pip, fetched inside the base."""
    locked = order.lock.platform(order.platform)
    if not locked.apt and not locked.pip:
        return []
    talk("fetching the locked packages")
    job = replace(job_in(work / "fetch", {}, order.site, base, talk), environment=locked.environment)
    folder = work / "fetch/hpcstack"
    write_tree(folder, {
        "build/settle.sh": plain("images", "fetch.sh"), "build/lib.sh": plain("images", "lib.sh"),
        "build/needs.py": plain("images", "needs.py"), "build/guard.sh": guard.shell(), **_wanted(locked),
    })  # fmt: skip
    done = order.engine.run_inside(folder, job, runner)
    if done.status:
        kept = Store(order.site.store).top / "logs" / f"{order.stack.full_name}-bundle.log"
        write_text(kept, job.log.read_text(encoding="utf-8", errors="replace"))
        raise explain(done, job.log, kept, order.lock)
    return sorted(path for path in (folder / "settled").iterdir() if path.is_file())


def _wanted(locked: LockedPlatform) -> dict[str, str]:
    apt = "".join(f"{entry.name}={entry.version}\n" for entry in locked.apt or ())
    return {"want/apt.txt": apt, "want/requirements.txt": requirements(locked) if locked.pip else ""}


def _recipes(recipe: Recipe) -> dict[str, str]:
    """The recipe's file and the templates beside it, unless they come with hpcstack itself."""
    folder = recipe.path.resolve().parent
    if folder == data.folder("recipes").resolve():
        return {}
    paths = [recipe.path, *folder.glob("_*.yaml")]
    return {f"recipes/{path.name}": path.read_text(encoding="utf-8") for path in paths}


def _packed(output: Path, order: Order, files: dict[str, Path]) -> int:
    named = {name: {"sha256": digest_of(path), "size": path.stat().st_size} for name, path in sorted(files.items())}
    manifest = {"format": FORMAT, "stack": order.stack.full_name, "platform": order.platform, "files": named}
    output.parent.mkdir(parents=True, exist_ok=True)
    sweep(output.parent, f".{output.name}.", lambda old: old.unlink(missing_ok=True))
    part = output.with_name(f".{output.name}.{label()}part")
    try:
        with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
            text = json.dumps(manifest, indent=1).encode()
            head = tarfile.TarInfo("manifest.json")
            head.size = len(text)
            tar.addfile(head, io.BytesIO(text))
            for name, path in sorted(files.items()):
                info = tarfile.TarInfo(name)
                info.size = path.stat().st_size
                with path.open("rb") as file:
                    tar.addfile(info, file)
        settle(part, output)
    finally:
        part.unlink(missing_ok=True)
    return output.stat().st_size


def apply(file: Path, site: Site, recipes: Path | None, talk: Talk) -> Applied:
    """What FILE holds, put where builds find it. InputError for a bundle that is damaged or says too much."""
    try:
        with tarfile.open(file, "r:") as tar:
            manifest = _manifest(tar)
            cache = cache_of(site)
            cache.top.mkdir(parents=True, exist_ok=True)
            sweep(cache.top, ".bundle-", lambda old: shutil.rmtree(old, ignore_errors=True))
            part = cache.top / f".bundle-{label()}"
            try:
                _extracted(tar, manifest, part, talk)
                return _placed(part, manifest, site, recipes)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except (tarfile.TarError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{file} is no bundle that can be read: {error}", "copy it again") from None


def _manifest(tar: tarfile.TarFile) -> dict[str, Any]:
    first = tar.next()
    body = tar.extractfile(first) if first and first.name == "manifest.json" and first.isreg() else None
    found = json.loads(body.read(MAX_MANIFEST)) if body else {}
    if found.get("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT}")
    return dict(found)


def _members(tar: tarfile.TarFile, manifest: dict[str, Any]) -> Iterator[tarfile.TarInfo]:
    """The members that the manifest names, each at a plain path below one of the known folders."""
    for member in tar:
        if member.name == "manifest.json":
            continue
        path = PurePosixPath(member.name)
        if member.name not in manifest["files"] or not member.isreg() or len(path.parts) != 2 or ".." in path.parts:
            raise ValueError(f"it holds {member.name!r}, which its manifest does not name")
        if path.parts[0] not in ("base", "packages", "lock", "recipes", "sbom"):
            raise ValueError(f"it holds {member.name!r}, and nobody knows what that is for")
        yield member


def _extracted(tar: tarfile.TarFile, manifest: dict[str, Any], part: Path, talk: Talk) -> None:
    seen = set()
    for member in _members(tar, manifest):
        target = part / member.name
        target.parent.mkdir(parents=True, exist_ok=True)
        body = tar.extractfile(member)
        assert body
        with target.open("wb") as out:
            shutil.copyfileobj(body, out, 1 << 20)
        if digest_of(target) != manifest["files"][member.name]["sha256"]:
            raise ValueError(f"{member.name} has other bytes than its manifest says")
        seen.add(member.name)
        talk.amount("unpacking", len(seen), len(manifest["files"]))
    if missing := set(manifest["files"]) - seen:
        raise ValueError(f"it lacks {sorted(missing)[0]}")


def _placed(part: Path, manifest: dict[str, Any], site: Site, recipes: Path | None) -> Applied:
    name, platform, cache = str(manifest["stack"]), str(manifest["platform"]), cache_of(site)
    if not EXTENDED.fullmatch(name):
        raise ValueError(f"{name!r} is no stack's name")
    lock = model.read(part / "lock" / f"{name}{LOCK_SUFFIX}")
    if lock.stack != name:
        raise ValueError(f"its lock is of {lock.stack}")
    with Store(site.store).acting("the bundle was not applied"):
        wanted = base_name(lock, platform, site)
        for base in (part / "base").glob("*"):
            if base.name != wanted:
                raise InputError(f"the bundle's base is {base.name}, this hpcstack would look for {wanted}",
                                 "make the bundle with the same version and the same build.compression")  # fmt: skip
            if not (cache.top / base.name).exists():  # one that a registry's digest vouches for stays
                settle(base, cache.top / base.name)
        written = _write_recipes(part / "recipes", recipes)
        target = _lock_target(name, written, site)
        _not_another(target, lock.text())
        final = offline_folder(site, lock, platform)
        shutil.rmtree(final, ignore_errors=True)
        final.parent.mkdir(parents=True, exist_ok=True)
        (part / "packages").mkdir(exist_ok=True)
        (part / "packages").rename(final)
        write_text(target, lock.text())
    sizes = [entry["size"] for entry in manifest["files"].values()]
    return Applied(name, platform, len(sizes), sum(sizes), target, tuple(written))


def _write_recipes(source: Path, recipes: Path | None) -> list[Path]:
    found = sorted(source.glob("*")) if source.is_dir() else []
    if found and recipes is None:
        raise InputError("the bundle brings recipes of its own", "say where they go: --recipes-to DIR")
    out = []
    for path in found:
        assert recipes
        _not_another(recipes / path.name, path.read_text(encoding="utf-8"))
    for path in found:
        assert recipes
        write_text(recipes / path.name, path.read_text(encoding="utf-8"))
        out.append(recipes / path.name)
    return out


def _not_another(path: Path, text: str) -> None:
    """InputError where PATH is there with another text than TEXT: nobody's recipe or lock is overwritten."""
    if path.exists() and path.read_text(encoding="utf-8", errors="replace") != text:
        raise InputError(f"{path} is there already, and is another than the bundle's", "move it away, and apply again")


def _lock_target(name: str, written: list[Path], site: Site) -> Path:
    return (written[0].parent if written else site.lock_dir) / f"{name}{LOCK_SUFFIX}"


def lend(job_lent: Path, order: Order) -> None:
    """Into what the site lends to an offline build: the bundle's packages, for pip and apt in place of a network."""
    folder = offline_folder(order.site, order.lock, order.platform)
    if not folder.is_dir():
        locked = order.lock.platform(order.platform)
        if locked.apt or locked.pip:
            raise InputError(
                f"there are no packages of {order.stack.full_name} for a build without a network",
                "hpcstack bundle create where there is one, hpcstack bundle apply here",
            )
        return
    target = job_lent / "packages"
    target.mkdir()
    for path in folder.iterdir():
        with contextlib.suppress(FileExistsError):
            try:
                (target / path.name).hardlink_to(path)
            except OSError:  # another filesystem
                shutil.copyfile(path, target / path.name)
