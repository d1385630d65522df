"""What lies in the cache, who may read it, and what goes.

    images/KEY/image.sqsh   0644 where anybody may pull it; else 0600, with an ACL that names who has shown his right
    images/KEY/entry.json   what it is, as a record (core/records.py)
    images/KEY/used         touched when somebody got it
    grants/KEY-UID          when UID last showed his right
    steps/NAME              what a tag meant when the first node of a job step asked
    leases/ incoming/ partial/ failed/   of imports

KEY names registry, repository, digest and platform: a digest alone is not enough. Who can put a
manifest that he has seen into a registry of his own has no right to the image for that. Only the
account that the cache belongs to writes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core import descriptors, files, sharing
from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.files import remove_tree, write_text
from hpcstack.core.lease import PATIENCE_S, hold_lease, make_label, remove_leftovers
from hpcstack.core.records import Format, Plain, Record
from hpcstack.imagecache import acl
from hpcstack.imagecache.outcomes import MAX_RECORD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.recipe.model import Base
    from hpcstack.site.load import Site

IMAGE, ENTRY, USED = "image.sqsh", "entry.json", "used"
FOLDERS = {"images": 0o711, "grants": 0o700, "steps": 0o700, "leases": 0o700, "incoming": 0o700, "partial": 0o700,
           "failed": 0o700}  # fmt: skip
TOUCH_S = 3600.0  # one write an hour tells that an image is used, however many nodes start on it
GRANT_S = 7 * 86400.0
STEP_S = 600.0  # the nodes of a job step ask within this time
FAILED_S = 60.0  # and are told what the first one was told within this


@dataclass(frozen=True)
class CachedImage:
    """One image in the cache."""

    image: str
    digest: str
    platform: str
    size: int
    public: bool  # whether its registry gives it to anybody

    @property
    def name(self) -> str:
        return f"{self.image} ({self.digest[7:19]})"


class CachedImageRecord(Record):
    """A CachedImage in its file."""

    format: str
    image: Plain
    digest: str
    platform: Plain
    size: int
    public: bool


CACHED_IMAGE = Format("hpcstack/cached-image", 1, CachedImageRecord)


def read_cached_image(document: object, where: str) -> CachedImage:
    """The cached image that the file WHERE describes. StoreError where it is damaged."""
    if isinstance(document, dict):
        document.setdefault(
            "format", f"{CACHED_IMAGE.family}/v1"
        )  # before it had a number it was the same
    record = CACHED_IMAGE.read(document, where, "the next launch imports it again")
    return CachedImage(**record.model_dump(exclude={"format"}))


def key_of(base: Base, digest: str, platform: str) -> str:
    """The name of an image's folder: 40 hex digits."""
    text = f"{base.registry}/{base.repository}@{digest} {platform}"
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def open_cache(site: Site) -> ImageCache:
    """The image cache of SITE. InputError where it has none."""
    if not site.image_cache.folder:
        raise InputError(
            "the site has no image cache", "image_cache: {folder: /shared/images} in site.yaml"
        )
    return ImageCache(Path(site.image_cache.folder))


class ImageCache:
    """The cache below the folder TOP."""

    def __init__(self, top: Path) -> None:
        self.top = top

    def prepare(self) -> None:
        """Its folders, with their modes. StoreError where they cannot be this account's own."""
        try:
            self.top.mkdir(parents=True, exist_ok=True)
            about = self.top.stat()
            if about.st_uid != os.geteuid():
                raise StoreError(
                    (
                        f"the image cache {self.top} belongs to {files.name_owner(self.top)}, not "
                        f"to who runs this"
                    ),
                    f"run it as {files.name_owner(self.top)}: nobody else may write what all run",
                )
            if about.st_mode & 0o022:
                raise StoreError(
                    f"others may write to the image cache {self.top}", f"chmod 755 {self.top}"
                )
            sharing.share_with_group("")  # the site's group has no part in this
            for name, mode in FOLDERS.items():
                (self.top / name).mkdir(mode=mode, exist_ok=True)
                (self.top / name).chmod(mode)
        except OSError as error:
            raise StoreError(
                f"no image cache: {error.strerror} ({error.filename})", "image_cache in site.yaml"
            ) from None

    # -- reading

    def image(self, key: str) -> Path:
        return self.top / "images" / key / IMAGE

    def entry(self, key: str) -> CachedImage | None:
        """What is kept under KEY, if it is whole."""
        path = self.top / "images" / key / ENTRY
        try:
            entry = read_cached_image(json.loads(files.read_text(path, MAX_RECORD)), str(path))
            return entry if self.image(key).stat().st_size == entry.size else None
        except (OSError, ValueError, RecursionError, InputError, StoreError):
            return None

    def entries(self) -> dict[str, tuple[CachedImage, float]]:
        """{key: what it is and when it was last used, in seconds since 1970}. InputError for who
        may not see that.
        """
        if self.top.exists() and not os.access(self.top / "images", os.R_OK):
            raise InputError(
                f"what is in the image cache is for {files.name_owner(self.top)} to see",
                f"sudo -u {files.name_owner(self.top)} hpcstack cache list",
            )
        found = {path.name: self.entry(path.name) for path in (self.top / "images").glob("*")}
        return {key: (entry, self.used(key)) for key, entry in found.items() if entry}

    def used(self, key: str) -> float:
        """When the image of KEY was last got, in seconds since 1970 as the file server counts them."""
        with suppress(OSError):
            return (self.top / "images" / key / USED).stat().st_mtime
        return 0.0

    # -- writing

    def new_folder(self) -> Path:
        """A folder of this process in `incoming`, which nobody else can enter."""
        remove_leftovers(self.top / "incoming", "", remove_tree)
        folder = self.top / "incoming" / f"{make_label()}{os.urandom(4).hex()}"
        folder.mkdir(mode=0o700)
        return folder

    def put(self, folder: Path, key: str, entry: CachedImage) -> None:
        """FOLDER, made by `new_folder` and with its image, as KEY: there at once, and to be read by
        whom ENTRY says.
        """
        record = {"format": CACHED_IMAGE.name, **asdict(entry)}
        write_text(
            folder / ENTRY, json.dumps(record, indent=1) + "\n", 0o600
        )  # private images have names, too
        (folder / USED).touch()
        (folder / IMAGE).chmod(0o644 if entry.public else 0o600)
        folder.chmod(0o711)
        final = self.top / "images" / key
        if self.entry(key):  # somebody else's was faster: jobs may run from it
            return
        if final.exists():
            remove_tree(final)
        self._forget_grants(key)  # of a file that is gone
        folder.rename(final)
        files.sync_to_disk(final.parent)

    def grant(self, key: str, entry: CachedImage, user: int) -> None:
        """USER, who has shown his right, may read the image of KEY, which is in use now."""
        self._touch(self.top / "images" / key / USED)
        if entry.public or user in (0, os.geteuid()):
            return
        mark, path = self.top / "grants" / f"{key}-{user}", self.image(key)

        def granted() -> bool:
            return self._touch(mark) and user in acl.list_readers(path)

        if granted():
            return
        with hold_lease(self.top / "leases" / f"grant-{key}", done=granted) as held:
            if held and not granted():
                mark.touch()
                acl.set_readers(path, self._shown(key))

    def _shown(self, key: str) -> set[int]:
        """Who has shown within GRANT_S that he may read the image of KEY."""
        now, found = self.now(), set[int]()
        for mark in (self.top / "grants").glob(f"{key}-*"):
            with suppress(FileNotFoundError, ValueError):
                if now - mark.stat().st_mtime < GRANT_S:
                    found.add(int(mark.name.rpartition("-")[2]))
        return found

    def _forget_grants(self, key: str) -> None:
        for mark in (self.top / "grants").glob(f"{key}-*"):
            mark.unlink(missing_ok=True)

    def now(self) -> float:
        """The time as the file server has it, which is whose times are compared: a node's clock may
        be anywhere.
        """
        path = self.top / "leases" / ".now"
        path.touch()
        os.utime(path)
        return path.stat().st_mtime

    def look_anew(self) -> None:
        """What others have put here is seen from now on: NFS remembers for half a minute that
        something is not there, until the folder is changed from here.
        """
        probe = self.top / "images" / f".{make_label()}{os.urandom(4).hex()}"
        with suppress(OSError):
            probe.mkdir()
            probe.rmdir()

    def may_read(self, key: str, entry: CachedImage, user: int) -> bool:
        """Whether USER has shown within GRANT_S that he may, or anybody may."""
        with suppress(OSError):
            mark = self.top / "grants" / f"{key}-{user}"
            return entry.public or time.time() - mark.stat().st_mtime < GRANT_S
        return False

    @staticmethod
    def _touch(path: Path) -> bool:
        """Whether PATH is there; its time is now, to within TOUCH_S."""
        try:
            if time.time() - path.stat().st_mtime > TOUCH_S:
                os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def remove(self, key: str, since: float = math.inf) -> bool:
        """What KEY names, at once, unless somebody got it after SINCE; who has it open goes on
        reading. Whether it is gone.
        """
        if self.used(key) > since:
            return False
        place, grave = (
            self.top / "images" / key,
            self.top / "incoming" / f"{make_label()}{os.urandom(4).hex()}",
        )
        try:
            place.rename(grave)
        except FileNotFoundError:
            return False
        with suppress(OSError):
            if (grave / USED).stat().st_mtime > since:  # between the two looks
                grave.rename(place)
                return False
        self._forget_grants(key)
        remove_tree(grave)
        return True

    def withdraw_grants(self) -> int:
        """Takes back the right to read of who has not shown it for GRANT_S seconds; of how many
        images.
        """
        now, old = self.now(), set[str]()
        for mark in (self.top / "grants").iterdir():
            with suppress(FileNotFoundError):
                if now - mark.stat().st_mtime >= GRANT_S:
                    old.add(mark.name.rpartition("-")[0])
        for key in old:
            with hold_lease(self.top / "leases" / f"grant-{key}"), suppress(FileNotFoundError):
                shown = self._shown(key)
                acl.set_readers(self.image(key), shown)
                for mark in (self.top / "grants").glob(f"{key}-*"):
                    if mark.name.rpartition("-")[2] not in map(str, shown):
                        mark.unlink(missing_ok=True)
        return len(old)

    # -- job steps

    def step(self, name: str) -> dict[str, object]:
        """What the first node of the job step NAME was told of a tag: {digest, shown}, or a
        failure; empty where none has asked lately. What is not the registry's own answer counts for
        a minute.
        """
        path = self.top / "steps" / name
        with suppress(OSError, ValueError, RecursionError, InputError):
            found = json.loads(files.read_text(path, MAX_RECORD))
            if isinstance(found, dict) and time.time() - path.stat().st_mtime < (
                STEP_S if found.get("shown") else FAILED_S
            ):
                return found
        return {}

    def write_step(self, name: str, said: Mapping[str, object]) -> None:
        write_text(self.top / "steps" / name, json.dumps(dict(said)), 0o600)

    def forget_steps(self) -> None:
        for path in (self.top / "steps").iterdir():
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > STEP_S:
                    path.unlink()

    def forget_imports(self, older_than: float) -> None:
        """Removes what imports have fetched and said that nobody has gone on with for OLDER_THAN
        seconds.
        """
        now = self.now()
        for path in (
            *self.top.glob("partial/*"),
            *self.top.glob("failed/*"),
            *self.top.glob("incoming/*.json"),
        ):
            with suppress(FileNotFoundError):
                if now - path.stat().st_mtime >= older_than and not self._is_importing(
                    path.name, now
                ):
                    remove_tree(path) if path.is_dir() else path.unlink()

    def _is_importing(self, name: str, now: float) -> bool:
        """Whether somebody holds, and renews, the lease for the import that NAME, KEY or KEY.more,
        is of.
        """
        with suppress(OSError):
            return (
                now - (self.top / "leases" / f"import-{name.partition('.')[0]}").stat().st_mtime
                < PATIENCE_S
            )
        return False

    def left_over(self, but: str) -> int:
        """Bytes that imports have fetched and not used yet, but those of the key BUT."""
        others = [
            path for path in (self.top / "partial").iterdir() if path.name.split(".")[0] != but
        ]
        return sum(map(descriptors.count_bytes, others))

    def arriving(self, but: str) -> int:
        """Bytes of the images that are imported now, packed, but for the key BUT."""
        found, now = 0, self.now()
        for path in self.top.glob("incoming/*.json"):
            with suppress(OSError, ValueError, TypeError, KeyError, RecursionError, InputError):
                if path.stem != but and self._is_importing(path.stem, now):
                    found += max(0, int(json.loads(files.read_text(path, MAX_RECORD))["total"]))
        return found
