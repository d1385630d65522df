"""Apply a bundle: check all of it first, then put its parts where `build --offline` finds them.

A bundle comes from somebody else, so nothing in it is believed before its manifest and the digests
of its files have been checked, and nothing is written elsewhere or over what is there.

A base that was imported on another machine cannot be checked against the registry's digest. It is
therefore kept under its own sha256, for the lock that came with it, and serves no other build.

Tested in tests/hostile/test_gifts.py.
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
from hpcstack.core import descriptors, files
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
from hpcstack.store.cache import cache_of, hold_cache, name_offline_folder
from hpcstack.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpcstack.core.progress import Progress
    from hpcstack.lock.model import Lock
    from hpcstack.site.load import Site

MAX_MANIFEST = 16 << 20  # bytes
MAX_TEXT = 16 << 20  # bytes of a recipe or a lock
MAX_FILES = 50_000
DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class BundleMember:
    """What a manifest says of one file: its size in bytes, and its digest."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a bundle says that it contains; `files` is {path in the tar: size and digest}.

    `absent` is the base with its name, where the bundle names it and does not contain it.
    """

    stack: str
    platform: str
    files: dict[str, BundleMember]
    absent: tuple[str, BundleMember] | None = None


@dataclass(frozen=True)
class _Base:
    """A base that is to be put in place."""

    path: Path
    sha256: str


@dataclass(frozen=True)
class Applied:
    """What was applied, and where the lock and the recipes were written."""

    stack: str
    platform: str
    files: int
    bytes: int
    lock: Path
    recipes: tuple[Path, ...]


def apply_bundle(file: Path, site: Site, recipes: Path | None, progress: Progress) -> Applied:
    """Put the contents of the bundle FILE where SITE's offline builds find them.

    A recipe in it goes into the folder RECIPES. Raise InputError for a bundle that is damaged, that
    contains what no bundle should, or that would overwrite a file.
    """
    try:
        with tarfile.open(file, "r:", tarinfo=Header) as tar:
            manifest = _read_manifest(tar)

            cache = cache_of(site)
            descriptors.make_folder(cache.top)
            size = sum(entry.size for entry in manifest.files.values())
            check_free_space(cache.top, 2 * size, f"the bundle {file}")

            # Unpacked beside its destination, under a name that the next run removes if this one is
            # killed.
            remove_leftovers(cache.top, ".bundle-", descriptors.remove_tree)
            part = cache.top / f".bundle-{make_label()}{uuid.uuid4().hex[:8]}"
            descriptors.make_new_folder(part)
            try:
                with descriptors.pin_path(part) as own:
                    _extract_files(tar, manifest, own, progress)
                    return _place_files(own, manifest, site, recipes, progress)
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
            f"{file} is not a bundle that can be read: {error}",
            "copy it again",
            page="air-gap",
        ) from None


def _read_manifest(tar: tarfile.TarFile) -> Manifest:
    """Return the manifest, which is the first member of TAR.

    Raise ValueError (or what a wrong type raises: apply_bundle catches it) unless all that it says
    has the right type and form.
    """
    first = tar.next()
    body = None
    if first and first.name == "manifest.json" and first.isreg():
        body = tar.extractfile(first)
    if not first or not body:
        raise ValueError("it does not begin with a manifest.json")

    found = parse_untrusted_json(body.read(min(first.size, MAX_MANIFEST + 1)), MAX_MANIFEST)
    if found.get("format") not in (FORMAT, NAMES_ITS_BASE):
        raise ValueError(f"its format is neither {FORMAT} nor {NAMES_ITS_BASE}")

    name = found.get("stack")
    platform = found.get("platform")
    if not isinstance(name, str) or not EXTENDED.fullmatch(name) or name.startswith("_"):
        raise ValueError(f"{name!r} is not a stack's name")
    if platform not in KERNEL_NAMES:
        raise ValueError(f"{platform!r} is not a platform that is known")

    files = _read_files(found.get("files"), name)
    base = _read_base(found.get("base"), files, is_named=found["format"] == NAMES_ITS_BASE)
    return Manifest(name, str(platform), files, base)


def _read_files(named: object, name: str) -> dict[str, BundleMember]:
    """Return {path: size and digest} of NAMED, the files in the manifest of a bundle of NAME."""
    if not isinstance(named, dict) or len(named) > MAX_FILES:
        raise ValueError("its manifest names no files, or too many")

    files = {}
    for path, entry in named.items():
        if not _is_known(path, name):
            raise ValueError(f"its manifest names {path!r}, which is no part of a bundle")
        files[path] = _read_member(path, entry)

    if f"lock/{name}{LOCK_SUFFIX}" not in files:
        raise ValueError("it has no lock")
    if sum(path.startswith("base/") for path in files) > 1:
        raise ValueError("it has more than one base")
    return files


def _read_base(
    absent: object, files: Mapping[str, BundleMember], *, is_named: bool
) -> tuple[str, BundleMember] | None:
    """Return the base that the manifest names but the bundle does not contain; None for no such.

    IS_NAMED says whether the bundle's format is the one for that. Then ABSENT, what the manifest
    says of the base, must be there; in the other format it must not.
    """
    if not is_named:
        if absent is not None:
            raise ValueError("its manifest names a base beside its files")
        return None

    if not isinstance(absent, dict):
        raise ValueError("its manifest names no base")
    if not FILE_NAME.fullmatch(absent["name"]) or any(path.startswith("base/") for path in files):
        raise ValueError("its manifest names another base than it has")
    return absent["name"], _read_member(absent["name"], absent)


def _read_member(path: str, entry: dict[str, object]) -> BundleMember:
    """Return the size and digest of PATH that ENTRY of the manifest states, if they can be such."""
    size = entry["size"]
    digest = entry["sha256"]
    wrong = ValueError(f"its manifest says no size or no sha256 of {path}")

    if not isinstance(size, int) or isinstance(size, bool):  # Python's bool is an int
        raise wrong
    if not 0 <= size <= MAX_SIZE:
        raise wrong
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise wrong
    return BundleMember(size, digest)


def _is_known(path: str, stack: str) -> bool:
    """Return whether PATH is one that a bundle of STACK may have.

    These are the stack's own lock, recipe and SBOM, and files in base/ and packages/.
    """
    own = (f"lock/{stack}{LOCK_SUFFIX}", f"recipes/{stack}{SUFFIX}", f"sbom/{stack}.cdx.json")
    folder, _, name = path.partition("/")
    return path in own or (folder in ("base", "packages") and FILE_NAME.fullmatch(name) is not None)


def _extract_files(
    tar: tarfile.TarFile, manifest: Manifest, part: Path, progress: Progress
) -> None:
    """Unpack TAR into the folder PART.

    Raise ValueError unless it contains exactly the files of MANIFEST, with their sizes and digests.
    """
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

    missing = set(manifest.files) - seen
    if missing:
        raise ValueError(f"it lacks {sorted(missing)[0]}")


def _place_files(
    part: Path, manifest: Manifest, site: Site, recipes: Path | None, progress: Progress
) -> Applied:
    """Move what was unpacked into PART to its places, and return what was done.

    All of it is checked before anything is written. The lock is written last: once it is there,
    all that it needs is there.
    """
    name = manifest.stack
    platform = manifest.platform

    lock = model.read_lock(part / "lock" / f"{name}{LOCK_SUFFIX}")
    if lock.stack != name:
        raise ValueError(f"its lock is of {lock.stack}")
    lock.platform(platform)  # raises an error where the lock does not have it

    recipe = _find_recipe_target(part / f"recipes/{name}{SUFFIX}", lock, recipes)
    lock_folder = recipe.parent if recipe else site.own_lock_dir
    target = lock_folder / f"{name}{LOCK_SUFFIX}"
    # The first text is what is written now, the second what older versions of hpcstack wrote.
    _refuse_overwriting(target, lock.file_text(), lock.text())

    wanted = base_name(lock, platform, site)
    base = _find_base(part / "base", manifest, wanted, site, progress)

    with Store(site.own_store, sharing=site.sharing).acting("the bundle was not applied"):
        final = name_offline_folder(site, lock, platform)
        (part / "packages").mkdir(exist_ok=True)
        if base:
            base.path.rename(part / "packages" / f"base-{base.sha256}.sqsh")
        descriptors.remove_tree(final)
        descriptors.make_folder(final.parent)
        site.sharing.hand_over(part / "packages")
        descriptors.rename_path(part / "packages", final)
        site.sharing.make_own_names_folder(final)

        if recipe:
            progress(f"writing {recipe}")
            text = (part / f"recipes/{name}{SUFFIX}").read_text(encoding="utf-8")
            write_text(recipe, text, sharing=site.sharing)
        progress(f"writing {target}")
        write_text(target, lock.file_text(), sharing=site.sharing)

    sizes = [entry.size for entry in manifest.files.values()]
    written = (recipe,) if recipe else ()
    return Applied(name, platform, len(sizes), sum(sizes), target, written)


def _find_base(
    folder: Path, manifest: Manifest, wanted: str, site: Site, progress: Progress
) -> _Base | None:
    """Return the bundle's base, which lies in FOLDER; None where the bundle has none.

    Where the bundle only names its base, that is linked into FOLDER from where it is here already.
    Raise InputError where it is not called WANTED: the offline build would not look for it.
    """
    named = manifest.absent
    for path, member in manifest.files.items():
        if path.startswith("base/") and not named:
            named = (path.removeprefix("base/"), member)
    if not named:
        return None

    name, about = named
    if name != wanted:
        raise InputError(
            f"the bundle's base is {name}, this hpcstack would look for {wanted}",
            "make the bundle with the same version and the same build.compression",
            page="air-gap",
        )
    if manifest.absent:
        folder.mkdir()
        _link_to_base_here(folder / name, about, site, progress)
    return _Base(folder / name, about.sha256)


def _link_to_base_here(link: Path, about: BundleMember, site: Site, progress: Progress) -> None:
    """Make LINK a link to the base that ABOUT describes, from an earlier bundle or an import.

    Raise InputError where nothing here has its bytes.
    """
    cache = cache_of(site)
    with hold_cache(cache):  # so that no cleaning of the cache removes what is looked at
        brought = sorted(cache.top.glob(f"offline/*/base-{about.sha256}.sqsh"))
        imported = [path for path in cache.top.glob(link.name) if _size_of(path) == about.size]
        for path in (*brought, *imported):
            progress(f"looking at the base that is here: {about.size / 1e9:.1f} GB")
            try:
                _link_or_copy(path, link, about)
            except (InputError, FileNotFoundError):
                continue  # a symbolic link, or gone by now: another one may do
            if digest_of(link) == about.sha256:
                return
            link.unlink()

    other = ""
    if imported:
        other = f"; {imported[0].name} is here, with other bytes"
    raise InputError(
        f"the bundle was made without its base, and no earlier bundle has brought that (sha256 "
        f"{about.sha256}){other}",
        "make it again without --without-base, or apply first the bundle of another stack on "
        "the same base",
        page="air-gap",
    )


def _size_of(path: Path) -> int:
    """Return the size of PATH itself, in bytes; -1 where it is gone meanwhile."""
    try:
        return path.lstat().st_size
    except OSError:
        return -1


def _link_or_copy(path: Path, link: Path, about: BundleMember) -> None:
    """Make LINK a hard link to the file PATH, or a copy of it where a link is not safe or possible.

    PATH lies where others may write, and may be another file a moment later. So the caller must
    check what LINK holds afterwards.
    """
    status = path.lstat()
    # The owner of a file can change it after the check, so other users' files are copied.
    is_safe = stat.S_ISREG(status.st_mode) and status.st_uid in (0, os.geteuid())
    try:
        if not is_safe:
            raise PermissionError
        os.link(path, link, follow_symlinks=False)
    except OSError:  # not safe; or some filesystems allow no links between folders
        check_free_space(link.parent, about.size, "the base")
        with files.open_file(path) as source, link.open("xb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)


def _find_recipe_target(path: Path, lock: Lock, folder: Path | None) -> Path | None:
    """Return where in FOLDER the bundle's recipe PATH goes; None where the bundle has none.

    Raise ValueError unless it is the recipe of LOCK's stack, and of nothing else. Raise InputError
    where FOLDER is not given, or has another recipe of that name.
    """
    if not path.exists():
        return None

    if folder is None:
        raise InputError(
            "the bundle brings a recipe of its own",
            "say where it goes: --recipes-to DIR, or recipe_dirs: [DIR] in site.yaml",
            page="air-gap",
        )

    recipe = Catalog([]).read(path)
    if [one.stack.full_name for one in recipe] != [lock.stack]:
        raise ValueError(f"its recipe is not that of {lock.stack} alone")
    if recipe[0].stack.checksum() != lock.spec_sha256:
        raise ValueError("its lock is of another recipe than it brings")

    target = folder / path.name
    _refuse_overwriting(target, path.read_text(encoding="utf-8"))
    return target


def _refuse_overwriting(path: Path, *texts: str) -> None:
    """Raise InputError if the file PATH exists and has none of TEXTS: it would be overwritten."""
    try:
        there = read_text(path, MAX_TEXT)
    except FileNotFoundError:
        return
    if there not in texts:
        raise InputError(
            f"{path} already exists, and differs from the bundle's",
            "move it away, and apply again",
            page="air-gap",
        )
