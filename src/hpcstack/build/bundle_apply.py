"""What is in a bundle that somebody gave: looked at as a whole, then put where builds find it, and
nowhere else.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tarfile
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.build.base import base_name
from hpcstack.build.bundle_format import FILE_NAME, FORMAT, NAMES_ITS_BASE
from hpcstack.core import descriptors, files, sharing
from hpcstack.core.errors import InputError
from hpcstack.core.files import digest_of, read_text, write_text
from hpcstack.core.lease import make_label, remove_leftovers
from hpcstack.core.untrusted import parse_untrusted_json
from hpcstack.lock import model
from hpcstack.lock.path import LOCK_SUFFIX
from hpcstack.oci.download import check_free_space
from hpcstack.oci.manifest import MAX_SIZE
from hpcstack.oci.tar import Header
from hpcstack.recipe.catalog import EXTENDED, SUFFIX, Catalog
from hpcstack.render.image import KERNEL_NAMES
from hpcstack.store.cache import cache_of, hold_cache, offline_folder
from hpcstack.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpcstack.core.progress import Progress
    from hpcstack.lock.model import Lock
    from hpcstack.site.load import Site

MAX_MANIFEST, MAX_TEXT, MAX_FILES = 16 << 20, 16 << 20, 50_000
DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class BundleMember:
    """What a manifest says of one file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a bundle says that it holds: {path in the tar: what it is}."""

    stack: str
    platform: str
    files: dict[str, BundleMember]
    absent: tuple[str, BundleMember] | None = (
        None  # the base, by its name, where the bundle only names it
    )


@dataclass(frozen=True)
class _Base:
    path: Path
    sha256: str


@dataclass(frozen=True)
class Applied:
    """What came out of a bundle."""

    stack: str
    platform: str
    files: int
    bytes: int
    lock: Path
    recipes: tuple[Path, ...]


def apply_bundle(file: Path, site: Site, recipes: Path | None, progress: Progress) -> Applied:
    """What FILE holds, put where builds find it.

    InputError for a bundle that is damaged or says too much.
    """
    try:
        with tarfile.open(file, "r:", tarinfo=Header) as tar:
            manifest = _manifest(tar)
            cache = cache_of(site)
            descriptors.make_folder(cache.top)
            check_free_space(
                cache.top,
                2 * sum(entry.size for entry in manifest.files.values()),
                f"the bundle {file}",
            )
            remove_leftovers(cache.top, ".bundle-", descriptors.remove_tree)
            part = cache.top / f".bundle-{make_label()}{uuid.uuid4().hex[:8]}"
            descriptors.make_new_folder(part)
            try:
                with descriptors.pin_path(part) as own:
                    _extracted(tar, manifest, own, progress)
                    return _placed(own, manifest, site, recipes, progress)
            finally:
                descriptors.remove_tree(part)
    except (
        tarfile.TarError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
    ) as error:
        raise InputError(
            f"{file} is not a bundle that can be read: {error}", "copy it again"
        ) from None


def _manifest(tar: tarfile.TarFile) -> Manifest:
    """The first member, whole and of the right types, before anything of the bundle is believed.

    ValueError else.
    """
    first = tar.next()
    body = (
        tar.extractfile(first)
        if first and first.name == "manifest.json" and first.isreg()
        else None
    )
    if not first or not body:
        raise ValueError("it does not begin with a manifest.json")
    found = parse_untrusted_json(body.read(min(first.size, MAX_MANIFEST + 1)), MAX_MANIFEST)
    if found.get("format") not in (FORMAT, NAMES_ITS_BASE):
        raise ValueError(f"its format is neither {FORMAT} nor {NAMES_ITS_BASE}")

    name, platform = found.get("stack"), found.get("platform")
    if not isinstance(name, str) or not EXTENDED.fullmatch(name) or name.startswith("_"):
        raise ValueError(f"{name!r} is not a stack's name")
    if platform not in KERNEL_NAMES:
        raise ValueError(f"{platform!r} is not a platform that is known")

    files = _read_files(found.get("files"), name)
    base = _read_base(found.get("base"), files, is_named=found["format"] == NAMES_ITS_BASE)
    return Manifest(name, str(platform), files, base)


def _read_files(named: object, name: str) -> dict[str, BundleMember]:
    """The files that the manifest of a bundle of the stack NAME says, {path: its size and digest}."""
    if not isinstance(named, dict) or len(named) > MAX_FILES:
        raise ValueError("its manifest names no files, or too many")
    files = {}
    for path, entry in named.items():
        if not _in_place(path, name):
            raise ValueError(f"its manifest names {path!r}, and nobody knows what that is for")
        files[path] = _member(path, entry)
    if f"lock/{name}{LOCK_SUFFIX}" not in files:
        raise ValueError("it has no lock")
    if sum(path.startswith("base/") for path in files) > 1:
        raise ValueError("it has more than one base")
    return files


def _read_base(
    absent: object, files: Mapping[str, BundleMember], *, is_named: bool
) -> tuple[str, BundleMember] | None:
    """The base that the manifest only names, where its format IS_NAMED for that; None where the
    bundle has its own.
    """
    if not is_named:
        if absent is not None:
            raise ValueError("its manifest names a base beside its files")
        return None
    if not isinstance(absent, dict):
        raise ValueError("its manifest names no base")
    if not FILE_NAME.fullmatch(absent["name"]) or any(path.startswith("base/") for path in files):
        raise ValueError("its manifest names another base than it has")
    return absent["name"], _member(absent["name"], absent)


def _member(path: str, entry: dict[str, object]) -> BundleMember:
    size, digest = entry["size"], entry["sha256"]
    if (
        not isinstance(size, int)
        or isinstance(size, bool)
        or not 0 <= size <= MAX_SIZE
        or not isinstance(digest, str)
        or not DIGEST.fullmatch(digest)
    ):
        raise ValueError(f"its manifest says no size or no sha256 of {path}")
    return BundleMember(size, digest)


def _in_place(path: str, stack: str) -> bool:
    """Whether PATH is one that a bundle of STACK has: its own lock, recipe and SBOM, one base,
    packages.
    """
    own = (f"lock/{stack}{LOCK_SUFFIX}", f"recipes/{stack}{SUFFIX}", f"sbom/{stack}.cdx.json")
    folder, _, name = path.partition("/")
    return path in own or (folder in ("base", "packages") and FILE_NAME.fullmatch(name) is not None)


def _extracted(tar: tarfile.TarFile, manifest: Manifest, part: Path, progress: Progress) -> None:
    seen: set[str] = set()
    for member in tar:
        if member.name == "manifest.json" and not seen:
            continue
        named = manifest.files.get(member.name)
        if not named or not member.isreg() or member.name in seen:
            raise ValueError(f"it contains {member.name!r}, which its manifest does not name")
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
        progress.amount("unpacking", len(seen), len(manifest.files))
    if missing := set(manifest.files) - seen:
        raise ValueError(f"it lacks {sorted(missing)[0]}")


def _placed(
    part: Path, manifest: Manifest, site: Site, recipes: Path | None, progress: Progress
) -> Applied:
    """All of it looked at first; then what does not exist yet is written, the lock last."""
    name, platform = manifest.stack, manifest.platform
    lock = model.read_lock(part / "lock" / f"{name}{LOCK_SUFFIX}")
    if lock.stack != name:
        raise ValueError(f"its lock is of {lock.stack}")
    lock.platform(platform)
    recipe = _recipe_in(part / f"recipes/{name}{SUFFIX}", lock, recipes)
    target = (recipe.parent if recipe else site.own_lock_dir) / f"{name}{LOCK_SUFFIX}"
    _not_another(
        target, lock.file_text(), lock.text()
    )  # as it is written now, and as older hpcstacks wrote it
    base = _base_in(part / "base", manifest, base_name(lock, platform, site), site, progress)
    with Store(site.own_store).acting("the bundle was not applied"):
        final = offline_folder(site, lock, platform)
        (part / "packages").mkdir(exist_ok=True)
        if base:
            base.path.rename(part / "packages" / f"base-{base.sha256}.sqsh")
        descriptors.remove_tree(final)
        descriptors.make_folder(final.parent)
        sharing.hand_over(part / "packages")
        descriptors.rename_path(part / "packages", final)
        if recipe:
            progress(f"writing {recipe}")
            write_text(recipe, (part / f"recipes/{name}{SUFFIX}").read_text(encoding="utf-8"))
        progress(f"writing {target}")
        write_text(target, lock.file_text())
    sizes = [entry.size for entry in manifest.files.values()]
    return Applied(name, platform, len(sizes), sum(sizes), target, (recipe,) if recipe else ())


def _base_in(
    folder: Path, manifest: Manifest, wanted: str, site: Site, progress: Progress
) -> _Base | None:
    """The bundle's base in FOLDER; where it is only named, another name of the one that is here
    already.
    """
    named = manifest.absent or next(
        (
            (path.removeprefix("base/"), one)
            for path, one in manifest.files.items()
            if path.startswith("base/")
        ),
        None,
    )
    if not named:
        return None
    name, about = named
    if name != wanted:
        raise InputError(
            f"the bundle's base is {name}, this hpcstack would look for {wanted}",
            "make the bundle with the same version and the same build.compression",
        )
    if manifest.absent:
        folder.mkdir()
        _link_to_base_here(folder / name, about, site, progress)
    return _Base(folder / name, about.sha256)


def _link_to_base_here(link: Path, about: BundleMember, site: Site, progress: Progress) -> None:
    """LINK to the base that ABOUT names, of an earlier bundle or of an import.

    InputError where none has its bytes.
    """
    cache = cache_of(site)
    with hold_cache(cache):  # nothing of it is collected meanwhile
        brought = sorted(cache.top.glob(f"offline/*/base-{about.sha256}.sqsh"))
        imported = [path for path in cache.top.glob(link.name) if _size_of(path) == about.size]
        for path in (*brought, *imported):
            progress(f"looking at the base that is here: {about.size / 1e9:.1f} GB")
            try:
                _link_or_copy(path, link, about)
            except (
                InputError,
                FileNotFoundError,
            ):  # a link in its place, or it is gone: another may be there
                continue
            if digest_of(link) == about.sha256:
                return
            link.unlink()
    other = f"; {imported[0].name} is here, with other bytes" if imported else ""
    raise InputError(
        (
            f"the bundle was made without its base, and no earlier bundle has brought that (sha256 "
            f"{about.sha256}){other}"
        ),
        (
            "make it again without --without-base, or apply first the bundle of another stack on "
            "the same base"
        ),
    )


def _size_of(path: Path) -> int:
    """The size of PATH itself; -1 where it is gone meanwhile."""
    try:
        return path.lstat().st_size
    except OSError:
        return -1


def _link_or_copy(path: Path, link: Path, about: BundleMember) -> None:
    """LINK is the file PATH, or its copy where links are not allowed. What it holds is looked at
    afterwards: PATH lies where others may write, and may be another file a moment later.
    """
    about_it = path.lstat()
    ours = stat.S_ISREG(about_it.st_mode) and about_it.st_uid in (
        0,
        os.geteuid(),
    )  # another's may become another thing
    try:
        if not ours:
            raise PermissionError
        os.link(path, link, follow_symlinks=False)
    except OSError:  # or between folders of some filesystems
        check_free_space(link.parent, about.size, "the base")
        with files.open_file(path) as source, link.open("xb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)


def _recipe_in(path: Path, lock: Lock, folder: Path | None) -> Path | None:
    """Where the bundle's own recipe goes, if it brings one: its stack's, as the lock has it, and no
    other.
    """
    if not path.exists():
        return None
    if folder is None:
        raise InputError(
            "the bundle brings a recipe of its own",
            "say where it goes: --recipes-to DIR, or recipe_dirs: [DIR] in site.yaml",
        )
    recipe = Catalog([]).read(path)
    if [one.stack.full_name for one in recipe] != [lock.stack]:
        raise ValueError(f"its recipe is not that of {lock.stack} alone")
    if recipe[0].stack.checksum() != lock.spec_sha256:
        raise ValueError("its lock is of another recipe than it brings")
    _not_another(folder / path.name, path.read_text(encoding="utf-8"))
    return folder / path.name


def _not_another(path: Path, *texts: str) -> None:
    """InputError where PATH is there with none of these TEXTS: nobody's recipe or lock is
    overwritten.
    """
    try:
        there = read_text(path, MAX_TEXT)
    except FileNotFoundError:
        return
    if there not in texts:
        raise InputError(
            f"{path} already exists, and is another than the bundle's",
            "move it away, and apply again",
        )
