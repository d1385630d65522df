"""A bundle: all that a locked stack is built from, in one tar, for a machine that reaches nothing.

manifest.json names every file with its size and sha256; what is not named, or differs, is refused. `apply` puts the
lock, the base and the packages where `build --offline` finds them. The registry's digest cannot be checked of a base
that was imported elsewhere: it is kept under its own sha256, for the lock that came with it, and serves no other build.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path

from hpcstack import data, sbom
from hpcstack.bases import BUNDLED, base_name, base_of
from hpcstack.blobs import room
from hpcstack.build import LOG_MODE, explain, job_in, redact
from hpcstack.cache import cache_of, offline_folder
from hpcstack.errors import BuildError, InputError
from hpcstack.files import files_below, read_text
from hpcstack.lease import label, sweep
from hpcstack.lock import model
from hpcstack.lock.model import Lock, LockedPlatform
from hpcstack.lock.place import LOCK_SUFFIX
from hpcstack.oci.config import document
from hpcstack.oci.members import Header
from hpcstack.ordering import Order, needs
from hpcstack.process import Runner
from hpcstack.registry import Registry
from hpcstack.render.image import KERNEL_NAMES
from hpcstack.render.steps import requirements
from hpcstack.render.template import plain
from hpcstack.site import Site
from hpcstack.spec import guard
from hpcstack.spec.catalog import EXTENDED, SUFFIX, Catalog, Recipe
from hpcstack.store import Artifact, Store, digest_of, new_file, settle, write_text, write_tree
from hpcstack.talk import Talk
from hpcstack.verifying import distribution
from hpcstack.workspace import workspace

FORMAT = "hpcstack/bundle/v1"
MAX_MANIFEST, MAX_TEXT, MAX_FILES = 16 << 20, 16 << 20, 50_000
DIGEST = re.compile(r"[0-9a-f]{64}")
FILE_NAME = re.compile(r"(?!\.|base-)[A-Za-z0-9._+~%:!-]{1,250}")  # of .deb files and wheels


@dataclass(frozen=True)
class Named:
    """What a manifest says of one file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a bundle says that it holds: {path in the tar: what it is}."""

    stack: str
    platform: str
    files: dict[str, Named]


@dataclass(frozen=True)
class Applied:
    """What came out of a bundle."""

    stack: str
    platform: str
    files: int
    bytes: int
    lock: Path
    recipes: tuple[Path, ...]


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
    job = job_in(work / "fetch", {}, order.site, base, talk, order.lock.base.registry)
    job = replace(job, environment=locked.environment)
    folder = work / "fetch/hpcstack"
    write_tree(folder, {
        "build/settle.sh": plain("images", "fetch.sh"), "build/lib.sh": plain("images", "lib.sh"),
        "build/needs.py": plain("images", "needs.py"), "build/guard.sh": guard.shell(), **_wanted(locked),
    })  # fmt: skip
    done = order.engine.run_inside(folder, job, runner)
    redact(job.log, order.site)
    if done.status:
        kept = Store(order.site.store).top / "logs" / f"{order.stack.full_name}-bundle.log"
        write_text(kept, job.log.read_text(encoding="utf-8", errors="replace"), LOG_MODE)
        raise explain(done, job.log, kept, order.lock, order.site)
    fetched = files_below(folder, folder / "settled")  # programs of the base wrote there
    for path in fetched:
        if not FILE_NAME.fullmatch(path.name):
            raise BuildError(f"the base's own tools fetched a file with an odd name: {path.name!r}")
    return fetched


def _wanted(locked: LockedPlatform) -> dict[str, str]:
    apt = "".join(f"{entry.name}={entry.version}\n" for entry in locked.apt or ())
    return {"want/apt.txt": apt, "want/requirements.txt": requirements(locked) if locked.pip else ""}


def _recipes(recipe: Recipe) -> dict[str, str]:
    """The effective recipe as one file that extends nothing, unless it comes with hpcstack itself."""
    if recipe.path.resolve().parent == data.folder("recipes").resolve():
        return {}
    import yaml

    spec = recipe.stack.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    text = yaml.safe_dump(spec, sort_keys=False, allow_unicode=True, width=1000)
    name = recipe.stack.full_name
    return {f"recipes/{name}{SUFFIX}": f"# {name}: the effective recipe, as hpcstack bundle wrote it\n{text}"}


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
        with tarfile.open(file, "r:", tarinfo=Header) as tar:
            manifest = _manifest(tar)
            cache = cache_of(site)
            cache.top.mkdir(parents=True, exist_ok=True)
            room(cache.top, 2 * sum(entry.size for entry in manifest.files.values()), f"the bundle {file}")
            sweep(cache.top, ".bundle-", lambda old: shutil.rmtree(old, ignore_errors=True))
            part = cache.top / f".bundle-{label()}"
            try:
                _extracted(tar, manifest, part, talk)
                return _placed(part, manifest, site, recipes, talk)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except (tarfile.TarError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{file} is no bundle that can be read: {error}", "copy it again") from None


def _manifest(tar: tarfile.TarFile) -> Manifest:
    """The first member, whole and of the right types, before anything of the bundle is believed. ValueError else."""
    first = tar.next()
    body = tar.extractfile(first) if first and first.name == "manifest.json" and first.isreg() else None
    if not first or not body:
        raise ValueError("it does not begin with a manifest.json")
    found = document(body.read(min(first.size, MAX_MANIFEST + 1)), MAX_MANIFEST)
    if found.get("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT}")
    name, platform, named = found.get("stack"), found.get("platform"), found.get("files")
    if not isinstance(name, str) or not EXTENDED.fullmatch(name) or name.startswith("_"):
        raise ValueError(f"{name!r} is no stack's name")
    if platform not in KERNEL_NAMES:
        raise ValueError(f"{platform!r} is no platform that is known")
    if not isinstance(named, dict) or len(named) > MAX_FILES:
        raise ValueError("its manifest names no files, or too many")
    files = {}
    for path, entry in named.items():
        if not _in_place(path, name):
            raise ValueError(f"its manifest names {path!r}, and nobody knows what that is for")
        size, digest = entry["size"], entry["sha256"]
        if type(size) is not int or size < 0 or not isinstance(digest, str) or not DIGEST.fullmatch(digest):
            raise ValueError(f"its manifest says no size or no sha256 of {path}")
        files[path] = Named(size, digest)
    if f"lock/{name}{LOCK_SUFFIX}" not in files:
        raise ValueError("it has no lock")
    if sum(path.startswith("base/") for path in files) > 1:
        raise ValueError("it has more than one base")
    return Manifest(name, str(platform), files)


def _in_place(path: str, stack: str) -> bool:
    """Whether PATH is one that a bundle of STACK has: its own lock, recipe and SBOM, one base, packages."""
    own = (f"lock/{stack}{LOCK_SUFFIX}", f"recipes/{stack}{SUFFIX}", f"sbom/{stack}.cdx.json")
    folder, _, name = path.partition("/")
    return path in own or (folder in ("base", "packages") and FILE_NAME.fullmatch(name) is not None)


def _extracted(tar: tarfile.TarFile, manifest: Manifest, part: Path, talk: Talk) -> None:
    seen: set[str] = set()
    for member in tar:
        if member.name == "manifest.json" and not seen:
            continue
        named = manifest.files.get(member.name)
        if not named or not member.isreg() or member.name in seen:
            raise ValueError(f"it holds {member.name!r}, which its manifest does not name")
        if member.size != named.size:
            raise ValueError(f"{member.name} has another size than its manifest says")
        target = part / member.name
        target.parent.mkdir(parents=True, exist_ok=True)
        body = tar.extractfile(member)
        assert body
        with target.open("xb") as out:
            shutil.copyfileobj(body, out, 1 << 20)
        if digest_of(target) != named.sha256:
            raise ValueError(f"{member.name} has other bytes than its manifest says")
        seen.add(member.name)
        talk.amount("unpacking", len(seen), len(manifest.files))
    if missing := set(manifest.files) - seen:
        raise ValueError(f"it lacks {sorted(missing)[0]}")


def _placed(part: Path, manifest: Manifest, site: Site, recipes: Path | None, talk: Talk) -> Applied:
    """All of it looked at first; then what is not there yet is written, the lock last."""
    name, platform = manifest.stack, manifest.platform
    lock = model.read(part / "lock" / f"{name}{LOCK_SUFFIX}")
    if lock.stack != name:
        raise ValueError(f"its lock is of {lock.stack}")
    lock.platform(platform)
    recipe = _recipe_in(part / f"recipes/{name}{SUFFIX}", lock, recipes)
    target = (recipe.parent if recipe else site.lock_dir) / f"{name}{LOCK_SUFFIX}"
    _not_another(target, lock.text())
    base = _base_in(part / "base", base_name(lock, platform, site))
    with Store(site.store).acting("the bundle was not applied"):
        final = offline_folder(site, lock, platform)
        (part / "packages").mkdir(exist_ok=True)
        if base:
            base.rename(part / "packages" / f"base-{manifest.files[f'base/{base.name}'].sha256}.sqsh")
        shutil.rmtree(final, ignore_errors=True)
        final.parent.mkdir(parents=True, exist_ok=True)
        (part / "packages").rename(final)
        if recipe:
            talk(f"writing {recipe}")
            write_text(recipe, (part / f"recipes/{name}{SUFFIX}").read_text(encoding="utf-8"))
        talk(f"writing {target}")
        write_text(target, lock.text())
    sizes = [entry.size for entry in manifest.files.values()]
    return Applied(name, platform, len(sizes), sum(sizes), target, (recipe,) if recipe else ())


def _base_in(folder: Path, wanted: str) -> Path | None:
    for base in folder.glob("*"):
        if base.name != wanted:
            raise InputError(f"the bundle's base is {base.name}, this hpcstack would look for {wanted}",
                             "make the bundle with the same version and the same build.compression")  # fmt: skip
        return base
    return None


def _recipe_in(path: Path, lock: Lock, folder: Path | None) -> Path | None:
    """Where the bundle's own recipe goes, if it brings one: its stack's, as the lock has it, and no other."""
    if not path.exists():
        return None
    if folder is None:
        raise InputError("the bundle brings a recipe of its own", "say where it goes: --recipes-to DIR")
    recipe = Catalog([]).read(path)
    if [one.stack.full_name for one in recipe] != [lock.stack]:
        raise ValueError(f"its recipe is not that of {lock.stack} alone")
    if recipe[0].stack.checksum() != lock.spec_sha256:
        raise ValueError("its lock is of another recipe than it brings")
    _not_another(folder / path.name, path.read_text(encoding="utf-8"))
    return folder / path.name


def _not_another(path: Path, text: str) -> None:
    """InputError where PATH is there with another text than TEXT: nobody's recipe or lock is overwritten."""
    try:
        there = read_text(path, MAX_TEXT)
    except FileNotFoundError:
        return
    if there != text:
        raise InputError(f"{path} is there already, and is another than the bundle's", "move it away, and apply again")


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
        if BUNDLED.fullmatch(path.name):
            continue
        with contextlib.suppress(FileExistsError):
            try:
                (target / path.name).hardlink_to(path)
            except OSError:  # another filesystem
                shutil.copyfile(path, target / path.name)
