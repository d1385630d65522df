"""One image out of the cache, imported into it where it is not there yet."""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core import files
from hpcstack.core.errors import HpcstackError, LoginRefused, RegistryError, StoreError
from hpcstack.core.lease import hold_lease, still_holds_lease
from hpcstack.imagecache import acl
from hpcstack.imagecache.careful import CarefulRegistry
from hpcstack.imagecache.collect import check_room, collect_cache
from hpcstack.imagecache.layout import IMAGE, CachedImage, ImageCache, key_of
from hpcstack.imagecache.outcomes import (
    concerns_user,
    error_of,
    read_failure,
    record_failure,
    write_failure,
)
from hpcstack.imagecache.refusals import HolderGone, NotHere, NotShared
from hpcstack.imagecache.telling import ImportTold, Waiting
from hpcstack.oci.importer import pack_image
from hpcstack.oci.metadata import list_files_above
from hpcstack.oci.protocol import is_address
from hpcstack.oci.reference import Reference, registry_image
from hpcstack.oci.sources import FromRegistry
from hpcstack.recipe.model import Base

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress
    from hpcstack.imagecache.collect import Going
    from hpcstack.oci.client import Registry
    from hpcstack.site.load import Site


IMPORTS, IMPORTS_OF_ONE = 4, 2  # at once, on one node
TIMES, SMALL = (
    3,
    256 << 20,
)  # an image may become so many times, and bytes, larger than what its registry says


@dataclass(frozen=True)
class WantedImage:
    """USER, a user id, wants IMAGE for PLATFORM.

    STEP names a job step of several nodes, or is empty.
    """

    image: str
    platform: str
    user: int
    step: str = ""


@dataclass(frozen=True)
class Provided:
    """An image that its user may read.

    HOW: it was there, was imported, or somebody else's import was waited for.
    """

    path: Path
    digest: str
    how: str


@dataclass(frozen=True)
class Provider:
    """The CACHE, and a REGISTRY that asks with the login of whoever wants an image."""

    cache: ImageCache
    site: Site
    registry: Registry
    runner: Runner
    progress: Progress

    def provide(self, wanted: WantedImage) -> Provided:
        """The image that is WANTED, once its user's own login has read its manifest. NotShared
        where it is not for the cache; RegistryError, StoreError, BuildError where it cannot be had.
        """
        base = registry_image(wanted.image)
        check_shareable(base, self.site)
        digest, shown = self._digest(base, wanted)
        key = key_of(base, digest, wanted.platform)
        entry, how = self.cache.entry(key), "there"
        while True:
            if not entry:
                entry, how = self._wait_or_import(key, pin_digest(base, digest), wanted)
            try:
                if shown:
                    self.cache.grant(key, entry, wanted.user)
            except FileNotFoundError:
                if self.cache.entry(key):
                    raise NotShared(
                        f"{self.cache.top} lacks a folder of its own", "start the service anew"
                    ) from None
                entry = None
                continue
            except OSError as error:
                why = error.strerror or error
                raise NotShared(
                    f"{self.cache.top} cannot note that user {wanted.user} may read it: {why}"
                ) from None
            if entry := self.cache.entry(key):  # else it was collected between the two looks
                return Provided(self.cache.image(key), digest, how)

    def _digest(self, base: Base, wanted: WantedImage) -> tuple[str, bool]:
        """What BASE's tag means, for all nodes of a job step the same, and whether the user has
        shown his right. The first node that asks shows it for all: they have his login, and ask
        within minutes.
        """
        if not wanted.step:
            return self._ask(base, wanted)
        text = f"{wanted.user} {wanted.step} {wanted.platform} {base.image}"
        name = hashlib.sha256(text.encode()).hexdigest()[:40]
        if found := self.cache.step(name):
            return _told(found)
        try:
            with hold_lease(
                self.cache.top / "leases" / f"step-{name}", done=lambda: bool(self.cache.step(name))
            ):
                if found := self.cache.step(name):
                    return _told(found)
                try:
                    digest, shown = self._ask(base, wanted)
                except (
                    RegistryError
                ) as error:  # the others would wait as long as we did, one after the other
                    with suppress(OSError):
                        self.cache.write_step(name, record_failure(error, wanted.user))
                    raise
                self.cache.write_step(name, {"digest": digest, "shown": shown})
                return digest, shown
        except OSError:  # a full disk: what is there can be had without a record
            return self._ask(base, wanted)

    def _ask(self, base: Base, wanted: WantedImage) -> tuple[str, bool]:
        """One request to the registry. Where it does not answer, an image that is named by its
        digest is there all the same for who has shown his right lately; that does not show it anew.
        """
        try:
            return self.registry.digest(base), True
        except LoginRefused:
            raise
        except RegistryError as error:
            key = key_of(base, base.digest, wanted.platform)
            entry = self.cache.entry(key) if base.digest else None
            if not entry or not self.cache.may_read(key, entry, wanted.user):
                raise
            self.progress(
                f"{error.message}; what is in the cache is taken, which you could read lately"
            )
            return base.digest, False

    def _wait_or_import(self, key: str, base: Base, wanted: WantedImage) -> tuple[CachedImage, str]:
        """One imports, the others wait for it. What stopped him would stop them, too: they are told
        the same; but what a registry told him, or where he was killed, the next one goes on.
        """
        failed = self.cache.top / "failed" / key
        before = _identity(failed)

        def stopped() -> bool:
            return _identity(failed) != before and concerns_user(read_failure(failed), wanted.user)

        waiting = Waiting(self.cache, key, self.progress, stopped)
        lease = self.cache.top / "leases" / f"import-{key}"
        with hold_lease(lease, waiting.told, waiting.ended) as held:
            self.cache.look_anew()
            if entry := self.cache.entry(key):
                return entry, "waited for" if waiting.waited else "there"
            if not held or waiting.failed():
                raise error_of(read_failure(failed) or {}, "the import for all failed: ")
            try:
                return self._import(key, base, wanted), "imported"
            except (LoginRefused, HolderGone, NotHere):
                raise
            except HpcstackError as error:
                with suppress(OSError):
                    if still_holds_lease(lease):  # else somebody else imports
                        write_failure(failed, error, wanted.user)
                raise

    def _import(self, key: str, base: Base, wanted: WantedImage) -> CachedImage:
        cache, settings = self.cache, self.site.image_cache
        self.progress(f"importing {base.image} for all")
        reference = Reference("docker", base=base)
        source = FromRegistry(reference, wanted.platform, self.registry)
        public = is_public(base, self.site)
        if not public and not acl.keeps_acls(cache.top):
            raise NotShared(f"{cache.top} keeps no ACLs, and {base.image} is not for everybody")
        self._removed(
            check_room(cache, settings.keep_days, settings.max_gb * 1e9, source.image.size, key)
        )
        with import_slot(Path(settings.socket).parent, wanted.user):
            try:
                return self._pack(source, key, base, wanted, public=public)
            except StoreError:  # a quota, say, which nobody could see before
                gone = collect_cache(
                    cache, settings.keep_days, settings.max_gb * 1e9, source.image.size
                )
                if not gone:
                    raise
                self._removed(gone)
            return self._pack(
                FromRegistry(reference, wanted.platform, self.registry),
                key,
                base,
                wanted,
                public=public,
            )

    def _pack(
        self, source: FromRegistry, key: str, base: Base, wanted: WantedImage, *, public: bool
    ) -> CachedImage:
        cache, folder = self.cache, self.cache.new_folder()
        try:
            done = pack_image(
                source,
                folder / IMAGE,
                cache.top / "partial" / key,
                self.site.build.compression,
                self.runner,
                ImportTold(
                    self.progress, cache.top / "incoming" / f"{key}.json", source.image.size
                ),
                lambda image: list_files_above(image, base.image),
                base.image,
                self.site.build.bounds.as_bounds(),
                most=TIMES * source.image.size + SMALL,
            )
            settings = self.site.image_cache
            self._removed(
                collect_cache(cache, settings.keep_days, settings.max_gb * 1e9, done.size)
            )
            entry = CachedImage(base.image, base.digest, wanted.platform, done.size, public)
            cache.put(folder, key, entry)
        finally:
            files.remove_tree(folder)
            (cache.top / "incoming" / f"{key}.json").unlink(missing_ok=True)
        self.progress(f"imported {done.size / 1e6:.0f} MB in {done.seconds:.1f} s")
        return entry

    def _removed(self, gone: list[Going]) -> None:
        for one in gone:
            self.progress(f"removed {one.entry.name}: {one.why}")


@contextmanager
def import_slot(folder: Path, user: int) -> Iterator[None]:
    """One of the few imports that a node does at once, and of those that USER may have begun: each
    takes all of its cores. NotHere where all are taken.
    """
    own = f"this node imports {IMPORTS_OF_ONE} images for you already"
    of_all = f"this node imports {IMPORTS} images for all already"
    with (
        _one_of(folder, f"import-of-{user}", IMPORTS_OF_ONE, own),
        _one_of(folder, "import", IMPORTS, of_all),
    ):
        yield


@contextmanager
def _one_of(folder: Path, name: str, count: int, taken: str) -> Iterator[None]:
    """One of COUNT locks in FOLDER, that only this account may open.

    NotHere, with TAKEN, where there is none.
    """
    for number in range(count):
        file = os.open(
            folder / f"{name}-{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            os.fchmod(file, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            yield
            return
        finally:
            os.close(file)
    raise NotHere(taken)


def pin_digest(base: Base, digest: str) -> Base:
    """BASE by DIGEST, whatever its tag comes to mean."""
    return Base.model_validate({"image": f"{base.registry}/{base.repository}@{digest}"})


def check_shareable(base: Base, site: Site) -> None:
    """NotShared where a user could be the registry himself: on this very node, at an address of his
    own, in the clear. What site.yaml names under `registries` is the site's own word.
    """
    if base.registry in site.registries:
        return
    name = base.registry.partition(":")[0]
    if is_address(name) or "." not in name:
        raise NotShared(
            f"{base.registry} may be anybody's",
            f"name it under `registries` in site.yaml: {base.registry}",
        )


def is_public(base: Base, site: Site) -> bool:
    """Whether the registry gives BASE to who has no login."""
    try:
        CarefulRegistry(site, anonymous=True).digest(base)
    except HpcstackError:
        return False
    return True


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_ino, found.st_mtime_ns)


def _told(record: Mapping[str, object]) -> tuple[str, bool]:
    """What the first node of a job step was told: a digest, and whether that has shown a right.

    Raises its failure.
    """
    if "digest" in record:
        return str(record["digest"]), bool(record.get("shown"))
    raise error_of(record, "told to the first node of this step: ")
