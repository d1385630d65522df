"""The files of the cache: what lies where, who may read it, and how it is removed.

    images/KEY/image.sqsh   0644 if anybody may pull it; else 0600, with an ACL that names the users
                            who have shown their right
    images/KEY/entry.json   what it is, as a record (core/records.py)
    images/KEY/used         touched when somebody gets the image
    images/KEY/importer     the number of the user who asked for it first
    grants/KEY-UID          touched when UID shows the right to it
    steps/UID-NAME          what a tag meant when the first node of a job step of UID asked
    partial/KEY             layers that an import has fetched
    partial/KEY.of-UID      touched when UID asks for that import
    leases/ incoming/ failed/   of imports

Users show their right to an image by a login with which its registry gives them its manifest. KEY
stands for registry, repository, digest and platform. A digest alone would not do: whoever knows
one could put its manifest into a registry of their own, and so claim a right to the image. Only the
account that the cache belongs to writes here.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core import descriptors, files
from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.files import remove_tree, write_text
from hpcstack.core.lease import PATIENCE_S, hold_lease, make_label, remove_leftovers
from hpcstack.core.records import Format, Plain, Record
from hpcstack.imagecache import acl
from hpcstack.imagecache.outcomes import MAX_RECORD

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hpcstack.recipe.model import Base
    from hpcstack.site.load import Site

IMAGE, ENTRY, USED, IMPORTER = "image.sqsh", "entry.json", "used", "importer"
FOLDERS = {  # `images` can be entered, not listed: who does not know a KEY does not find an image
    "images": 0o711,
    "grants": 0o700,
    "steps": 0o700,
    "leases": 0o700,
    "incoming": 0o700,
    "partial": 0o700,
    "failed": 0o700,
}
TOUCH_S = 3600.0  # an image in use is touched once an hour, however many nodes start on it
GRANT_S = 7 * 86400.0  # how long a user may read without showing the right again
STEP_S = 600.0  # the answer to the first node of a job step holds for the others this long
FAILED_S = 60.0  # and this long if the registry did not give it, or it is a failure
SWEEP_S = 600.0  # between two sweeps, on whichever node
# What one user may leave in the cache: records of job steps that run, and imports that failed.
STEPS_OF_ONE, PARTIALS_OF_ONE = 128, 4


@dataclass(frozen=True)
class CachedImage:
    """One image in the cache."""

    image: str
    digest: str
    platform: str
    size: int
    public: bool  # whether its registry gives it to anybody
    importer: int = 0  # the user who asked for it first; 0 where that is not known, or root

    @property
    def name(self) -> str:
        """The image and the beginning of its digest, for people."""
        return f"{self.image} ({self.digest[7:19]})"


class CachedImageRecord(Record):
    """A CachedImage as it is written to its file."""

    format: str
    image: Plain
    digest: str
    platform: Plain
    size: int
    public: bool


CACHED_IMAGE = Format("hpcstack/cached-image", 1, CachedImageRecord)


def read_cached_image(document: object, where: str) -> CachedImage:
    """Return the image that DOCUMENT, from the file WHERE, describes.

    Raise StoreError if it is damaged.
    """
    if isinstance(document, dict):  # older files have no format, but are the same as version 1
        document.setdefault("format", f"{CACHED_IMAGE.family}/v1")
    record = CACHED_IMAGE.read(document, where, "the next launch imports it again")
    return CachedImage(**record.model_dump(exclude={"format"}))


def key_of(base: Base, digest: str, platform: str) -> str:
    """Return the name of an image's folder, 40 hex digits."""
    text = f"{base.registry}/{base.repository}@{digest} {platform}"
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def open_cache(site: Site) -> ImageCache:
    """Return the image cache of SITE. Raise InputError if site.yaml names none."""
    if not site.image_cache.folder:
        raise InputError(
            "the site has no image cache",
            "name a folder in site.yaml, e.g. image_cache: {folder: /shared/images}",
            page="set-up-the-image-cache",
        )
    return ImageCache(Path(site.image_cache.folder))


class ImageCache:
    """The cache below the folder TOP."""

    def __init__(self, top: Path) -> None:
        self.top = top

    def prepare(self) -> None:
        """Create the folders of the cache, with their modes.

        Raise StoreError if the cache belongs to another account, if others may write to it, or if
        a folder cannot be created.
        """
        try:
            self.top.mkdir(parents=True, exist_ok=True)
            about = self.top.stat()
            if about.st_uid != os.geteuid():
                owner = files.name_owner(self.top)
                raise StoreError(
                    f"the image cache {self.top} belongs to {owner}, and this account is another",
                    f"run this as {owner}: nobody else may write what all users run",
                    page="set-up-the-image-cache",
                )
            if about.st_mode & 0o022:
                raise StoreError(
                    f"others may write to the image cache {self.top}",
                    f"chmod 755 {self.top}",
                    page="set-up-the-image-cache",
                )

            for name, mode in FOLDERS.items():
                (self.top / name).mkdir(mode=mode, exist_ok=True)
                (self.top / name).chmod(mode)
        except OSError as error:
            raise StoreError(
                f"the image cache cannot be used: {error.strerror} ({error.filename})",
                "correct image_cache in site.yaml, or that folder's mode",
                page="set-up-the-image-cache",
            ) from None

    # -- reading

    def image(self, key: str) -> Path:
        """Return where the squashfs of KEY lies."""
        return self.top / "images" / key / IMAGE

    def entry(self, key: str) -> CachedImage | None:
        """Return what is kept under KEY; None if that is nothing, or damaged."""
        path = self.top / "images" / key / ENTRY
        try:
            entry = read_cached_image(json.loads(files.read_text(path, MAX_RECORD)), str(path))
            size = self.image(key).stat().st_size
        except (OSError, ValueError, RecursionError, InputError, StoreError):
            return None
        if size != entry.size:
            return None
        return replace(entry, importer=self._read_importer(key))

    def _read_importer(self, key: str) -> int:
        """Return which user asked for the image of KEY first; 0 if that is not known."""
        with suppress(OSError, ValueError, InputError):
            return int(files.read_text(self.top / "images" / key / IMPORTER, MAX_RECORD))
        return 0

    def entries(self) -> dict[str, tuple[CachedImage, float]]:
        """Return {key: (what it is, when it was last used, in seconds since 1970)}.

        Raise InputError if this account may not list the cache.
        """
        if self.top.exists() and not os.access(self.top / "images", os.R_OK):
            owner = files.name_owner(self.top)
            raise InputError(
                f"only {owner} may list the image cache",
                f"sudo -u {owner} hpcstack cache list",
                page="set-up-the-image-cache",
            )
        found = {path.name: self.entry(path.name) for path in (self.top / "images").glob("*")}
        return {key: (entry, self.used(key)) for key, entry in found.items() if entry}

    def used(self, key: str) -> float:
        """Return when somebody last got KEY's image, in seconds since 1970; 0 if never.

        The file server's clock counts.
        """
        with suppress(OSError):
            return (self.top / "images" / key / USED).stat().st_mtime
        return 0.0

    # -- writing

    def new_folder(self) -> Path:
        """Make a folder for a new image in `incoming`, which no other account can enter.

        What processes that have died left there is removed first.
        """
        remove_leftovers(self.top / "incoming", "", remove_tree)
        folder = self.top / "incoming" / f"{make_label()}{os.urandom(4).hex()}"
        folder.mkdir(mode=0o700)
        return folder

    def put(self, folder: Path, key: str, entry: CachedImage) -> None:
        """Move FOLDER, from `new_folder` and with an image in it, to its place as KEY.

        It appears there whole, by one rename. A public image may be read by anybody; others by
        nobody, until `grant`. If KEY has an image already, that one stays.
        """
        record = {"format": CACHED_IMAGE.name, **asdict(entry)}
        # In a file of its own: services of an older hpcstack, on other nodes, read the record.
        write_text(folder / IMPORTER, f"{record.pop('importer')}\n", 0o600)
        # 0600, since the names of private images are private as well.
        write_text(folder / ENTRY, json.dumps(record, indent=1) + "\n", 0o600)
        (folder / USED).touch()
        (folder / IMAGE).chmod(0o644 if entry.public else 0o600)
        folder.chmod(0o711)

        final = self.top / "images" / key
        if self.entry(key):  # another import was faster, and jobs may run from its image
            return
        if final.exists():  # a damaged one
            remove_tree(final)
        self._forget_grants(key)  # of a file that is gone
        folder.rename(final)
        files.sync_to_disk(final.parent)

    def grant(self, key: str, entry: CachedImage, user: int) -> None:
        """Let USER, who has just shown the right to it, read the image of KEY.

        Its time of last use is now. Raise FileNotFoundError if the image has been removed.
        """
        self._touch(self.top / "images" / key / USED)
        if entry.public or user in (0, os.geteuid()):
            return
        mark = self.top / "grants" / f"{key}-{user}"
        path = self.image(key)

        def is_granted() -> bool:
            return self._touch(mark) and user in acl.list_readers(path)

        if is_granted():
            return
        # An ACL is written whole, so only one process may do so at a time.
        with hold_lease(self.top / "leases" / f"grant-{key}", done=is_granted) as held:
            if held and not is_granted():
                mark.touch()
                acl.set_readers(path, self._list_granted(key))

    def _list_granted(self, key: str) -> set[int]:
        """Return the users who have shown the right to the image of KEY within GRANT_S."""
        now = self.now()
        found: set[int] = set()
        for mark in (self.top / "grants").glob(f"{key}-*"):
            with suppress(FileNotFoundError, ValueError):
                if now - mark.stat().st_mtime < GRANT_S:
                    found.add(int(mark.name.rpartition("-")[2]))
        return found

    def _forget_grants(self, key: str) -> None:
        """Forget who has shown the right to the image of KEY. Its ACL is not changed."""
        for mark in (self.top / "grants").glob(f"{key}-*"):
            mark.unlink(missing_ok=True)

    def now(self) -> float:
        """Return the time as the file server has it, in seconds since 1970.

        Times of files are compared with it, and not with a node's own clock, which may be wrong.
        """
        path = self.top / "leases" / ".now"
        path.touch()
        os.utime(path)
        return path.stat().st_mtime

    def look_anew(self) -> None:
        """See from now on what other nodes have put into `images`.

        An NFS client may remember for half a minute that a name does not exist. It looks again
        after this node itself has changed the folder.
        """
        probe = self.top / "images" / f".{make_label()}{os.urandom(4).hex()}"
        with suppress(OSError):
            probe.mkdir()
            probe.rmdir()

    def may_read(self, key: str, entry: CachedImage, user: int) -> bool:
        """Return whether anybody may read the image, or USER has shown the right within GRANT_S."""
        with suppress(OSError):
            mark = self.top / "grants" / f"{key}-{user}"
            return entry.public or time.time() - mark.stat().st_mtime < GRANT_S
        return False

    @staticmethod
    def _touch(path: Path) -> bool:
        """Set PATH's time to now if it is older than TOUCH_S. Return False if there is no PATH."""
        try:
            if time.time() - path.stat().st_mtime > TOUCH_S:
                os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def remove(self, key: str, since: float = math.inf) -> bool:
        """Remove the image of KEY, unless somebody got it after SINCE. Return whether it is gone.

        It disappears by one rename. A process that has it open can go on reading.
        """
        if self.used(key) > since:
            return False
        place = self.top / "images" / key
        grave = self.top / "incoming" / f"{make_label()}{os.urandom(4).hex()}"
        try:
            place.rename(grave)
        except FileNotFoundError:
            return False
        with suppress(OSError):
            if (grave / USED).stat().st_mtime > since:  # somebody got it just before the rename
                grave.rename(place)
                return False
        self._forget_grants(key)
        remove_tree(grave)
        return True

    def withdraw_grants(self) -> int:
        """Withdraw the rights that users have not shown again for GRANT_S seconds.

        Return how many images that concerned.
        """
        now = self.now()
        old: set[str] = set()  # keys
        for mark in (self.top / "grants").iterdir():
            with suppress(FileNotFoundError):
                if now - mark.stat().st_mtime >= GRANT_S:
                    old.add(mark.name.rpartition("-")[0])
        for key in old:
            with hold_lease(self.top / "leases" / f"grant-{key}"), suppress(FileNotFoundError):
                granted = self._list_granted(key)
                acl.set_readers(self.image(key), granted)
                for mark in (self.top / "grants").glob(f"{key}-*"):
                    if mark.name.rpartition("-")[2] not in map(str, granted):
                        mark.unlink(missing_ok=True)
        return len(old)

    # -- job steps

    def step(self, name: str) -> dict[str, object]:
        """Return what the first node of the job step NAME was told about a tag.

        That is {digest, shown}, or the record of a failure; empty if no node has asked lately. What
        the registry itself has answered holds for STEP_S, anything else for FAILED_S.
        """
        path = self.top / "steps" / name
        with suppress(OSError, ValueError, RecursionError, InputError):
            found = json.loads(files.read_text(path, MAX_RECORD))
            if not isinstance(found, dict):
                return {}
            holds_s = STEP_S if found.get("shown") else FAILED_S
            if time.time() - path.stat().st_mtime < holds_s:
                return found
        return {}

    def write_step(self, name: str, said: Mapping[str, object], user: int) -> None:
        """Record what the first node of the job step NAME, of USER, was told.

        Of more than STEPS_OF_ONE records of this user the oldest go.
        """
        write_text(self.top / "steps" / name, json.dumps(dict(said)), 0o600)
        for path in _sort_by_age((self.top / "steps").glob(f"{user}-*"))[STEPS_OF_ONE:]:
            path.unlink(missing_ok=True)

    def forget_steps(self) -> None:
        """Remove the records of job steps that hold no more."""
        for path in (self.top / "steps").iterdir():
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > STEP_S:
                    path.unlink()

    def forget_imports(self, older_than: float) -> None:
        """Remove what imports have left that nobody has continued for OLDER_THAN seconds.

        That is: layers that were fetched, and records of progress. Records of failures, which only
        those read who waited for it, are kept for STEP_S seconds at most.
        """
        now = self.now()
        kept = {"partial/*": older_than, "failed/*": min(older_than, STEP_S)}
        kept["incoming/*.json"] = older_than
        for pattern, seconds in kept.items():
            for path in list(self.top.glob(pattern)):
                with suppress(FileNotFoundError):
                    if now - path.stat().st_mtime >= seconds:
                        self._remove_import(path, now)

    def _remove_import(self, path: Path, now: float) -> None:
        """Remove PATH, which an import has left, unless somebody goes on with it."""
        if self._is_importing(path.name, now):
            return
        if path.is_dir():
            remove_tree(path)
        else:
            path.unlink()

    @contextmanager
    def importing(self, key: str, user: int) -> Iterator[None]:
        """Note that USER imports KEY. What does not become an image is kept, to be gone on with."""
        partial = self.top / "partial"
        mark = partial / f"{key}.of-{user}"
        mark.touch()
        self.bound_partials()
        try:
            yield
        finally:
            if not (partial / key).exists():
                mark.unlink(missing_ok=True)

    def bound_partials(self) -> None:
        """Remove, for each user, what all but the newest PARTIALS_OF_ONE imports have left.

        What another user's import has left, too, stays.
        """
        partial = self.top / "partial"
        now = self.now()
        marks: dict[str, list[Path]] = {}  # by user
        for mark in partial.glob("*.of-*"):
            marks.setdefault(mark.name.rpartition("-")[2], []).append(mark)
        for own in marks.values():
            for mark in _sort_by_age(own)[PARTIALS_OF_ONE:]:
                key = mark.name.partition(".")[0]
                is_anothers_too = any(one != mark for one in partial.glob(f"{key}.of-*"))
                for path in [mark] if is_anothers_too else [partial / key, mark]:
                    with suppress(FileNotFoundError):
                        self._remove_import(path, now)

    def arriving_for(self, user: int, but: str) -> int:
        """Return the bytes of the images that are imported for USER now, without the key BUT's."""
        now = self.now()
        keys = [mark.name.partition(".")[0] for mark in self.top.glob(f"partial/*.of-{user}")]
        return sum(
            self._read_total(key) for key in keys if key != but and self._is_importing(key, now)
        )

    def is_unswept(self) -> bool:
        """Return whether no node has swept the cache for SWEEP_S; then this one is to do it."""
        mark = self.top / "leases" / ".swept"
        with suppress(FileNotFoundError):
            if abs(self.now() - mark.stat().st_mtime) < SWEEP_S:
                return False
        mark.touch()
        os.utime(mark)
        return True

    def _is_importing(self, name: str, now: float) -> bool:
        """Return whether some process holds, and renews, the lease of an import.

        NAME is that of one of its files: KEY, or KEY and more after a dot.
        """
        key = name.partition(".")[0]
        with suppress(OSError):
            renewed = (self.top / "leases" / f"import-{key}").stat().st_mtime
            return now - renewed < PATIENCE_S
        return False

    def left_over(self, but: str) -> int:
        """Return the bytes that imports have fetched and not yet used, without those of key BUT."""
        partial = self.top / "partial"
        others = [path for path in partial.iterdir() if path.name.split(".")[0] != but]
        return sum(map(descriptors.count_bytes, others))

    def arriving(self, but: str) -> int:
        """Return the bytes of all images that are being imported now, without the key BUT's."""
        found = 0
        now = self.now()
        for path in self.top.glob("incoming/*.json"):
            if path.stem != but and self._is_importing(path.stem, now):
                found += self._read_total(path.stem)
        return found

    def _read_total(self, key: str) -> int:
        """Return the bytes of the image KEY that is being imported; 0 if that is not known yet."""
        path = self.top / "incoming" / f"{key}.json"
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError, InputError):
            return max(0, int(json.loads(files.read_text(path, MAX_RECORD))["total"]))
        return 0


def _sort_by_age(paths: Iterable[Path]) -> list[Path]:
    """Return those of PATHS that are there, the newest first."""
    found: list[tuple[float, str]] = []
    for path in paths:
        with suppress(FileNotFoundError):
            found.append((path.stat().st_mtime, str(path)))
    return [Path(name) for _, name in sorted(found, reverse=True)]
