"""Provide an image from the cache, and import it first if it is not there yet.

Each request goes through three steps: what the tag means, by the user's own login; the image, which
one process imports while others wait; the right to read it, for this user.
"""

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
from hpcstack.imagecache.collect import check_room, check_share, collect_cache
from hpcstack.imagecache.layout import IMAGE, CachedImage, ImageCache, key_of
from hpcstack.imagecache.outcomes import (
    concerns_user,
    make_error,
    read_failure,
    record_failure,
    write_failure,
)
from hpcstack.imagecache.refusals import HolderGone, NotHere, NotShared
from hpcstack.imagecache.telling import ImportTold, Waiting
from hpcstack.oci.importer import pack_image
from hpcstack.oci.metadata import list_files_above
from hpcstack.oci.protocol import is_address
from hpcstack.oci.reference import Reference, parse_registry_image
from hpcstack.oci.sources import FromRegistry
from hpcstack.recipe.model import Base

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress
    from hpcstack.imagecache.collect import Going
    from hpcstack.oci.client import Registry
    from hpcstack.site.load import Site


IMPORTS, IMPORTS_OF_ONE = 4, 2  # at once on one node, of all users and of each
# An import is stopped at TIMES the size that the registry states, and SMALL bytes more.
TIMES, SMALL = 3, 256 << 20


@dataclass(frozen=True)
class WantedImage:
    """A request of a user for an image."""

    image: str
    platform: str
    user: int  # user id
    step: str = ""  # the name of a job step of several nodes, or empty


@dataclass(frozen=True)
class Provided:
    """An image that the user who asked for it may read."""

    path: Path
    digest: str
    how: str  # "there", "imported", or "waited for", which another process imported


@dataclass(frozen=True)
class Provider:
    """Provides images from CACHE, with a REGISTRY that uses the login of whoever wants an image."""

    cache: ImageCache
    site: Site
    registry: Registry
    runner: Runner
    progress: Progress

    def provide(self, wanted: WantedImage) -> Provided:
        """Return the WANTED image, once its user's own login has read its manifest.

        Raise NotShared if it is not for the cache; RegistryError, StoreError or BuildError if it
        cannot be had.
        """
        base = parse_registry_image(wanted.image)
        check_shareable(base, self.site)

        digest, shown = self._find_digest(base, wanted)
        key = key_of(base, digest, wanted.platform)
        entry = self.cache.entry(key)
        how = "there"
        while True:  # again if the image is collected meanwhile
            if not entry:
                entry, how = self._wait_or_import(key, pin_digest(base, digest), wanted)
            try:
                if shown:
                    self.cache.grant(key, entry, wanted.user)
            except FileNotFoundError:
                if self.cache.entry(key):
                    raise NotShared(
                        f"the image cache {self.cache.top} lacks one of its folders",
                        "restart the service, which makes them",
                    ) from None
                entry = None
                continue
            except OSError as error:
                why = error.strerror or error
                raise NotShared(
                    f"{self.cache.top} cannot note that user {wanted.user} may read it: {why}"
                ) from None

            entry = self.cache.entry(key)
            if entry:
                return Provided(self.cache.image(key), digest, how)

    def _find_digest(self, base: Base, wanted: WantedImage) -> tuple[str, bool]:
        """Return what BASE's tag means, and whether the user has shown the right to the image.

        All nodes of a job step get the same answer, even if the tag moves meanwhile. The first node
        asks the registry for all: the others have the same login, and ask within minutes.
        """
        if not wanted.step:
            return self._ask_registry(base, wanted)

        text = f"{wanted.user} {wanted.step} {wanted.platform} {base.image}"
        name = f"{wanted.user}-{hashlib.sha256(text.encode()).hexdigest()[:40]}"
        found = self.cache.step(name)
        if found:
            return _read_step(found)

        lease = self.cache.top / "leases" / f"step-{name}"
        try:
            with hold_lease(lease, done=lambda: bool(self.cache.step(name))):
                found = self.cache.step(name)
                if found:
                    return _read_step(found)
                try:
                    digest, shown = self._ask_registry(base, wanted)
                except RegistryError as error:
                    # Record it: otherwise the other nodes would each wait as long, one by one.
                    with suppress(OSError):
                        self.cache.write_step(name, record_failure(error, wanted.user), wanted.user)
                    raise
                self.cache.write_step(name, {"digest": digest, "shown": shown}, wanted.user)
                return digest, shown
        except OSError:  # a full disk, say: what is in the cache can be had without a record
            return self._ask_registry(base, wanted)

    def _ask_registry(self, base: Base, wanted: WantedImage) -> tuple[str, bool]:
        """Ask the registry what BASE means. Return its digest, and whether that shows a right.

        If the registry does not answer, an image that is named by its digest can still be had by a
        user who has shown the right to it lately. That does not extend the right.
        """
        try:
            return self.registry.digest(base), True
        except LoginRefused:
            raise
        except RegistryError as error:
            if not base.digest:
                raise
            key = key_of(base, base.digest, wanted.platform)
            entry = self.cache.entry(key)
            if not entry or not self.cache.may_read(key, entry, wanted.user):
                raise
            self.progress(
                f"{error.message}; taking the image from the cache, which you could read lately"
            )
            return base.digest, False

    def _wait_or_import(self, key: str, base: Base, wanted: WantedImage) -> tuple[CachedImage, str]:
        """Import the image, or wait for another process that does. Return it, and how it came.

        If that process fails, those who wait fail with the same error, since it would stop them as
        well. If the error was specific to its user's login, or the process was killed, the next one
        imports.
        """
        failed = self.cache.top / "failed" / key
        before = _identity(failed)

        def has_failed() -> bool:
            return _identity(failed) != before and concerns_user(read_failure(failed), wanted.user)

        waiting = Waiting(self.cache, key, self.progress, has_failed)
        lease = self.cache.top / "leases" / f"import-{key}"
        with hold_lease(lease, waiting.told, waiting.ended) as held:
            self.cache.look_anew()
            entry = self.cache.entry(key)
            if entry:
                return entry, "waited for" if waiting.waited else "there"
            if not held or waiting.failed():
                raise make_error(read_failure(failed) or {}, "the import for all failed: ")
            try:
                return self._import(key, base, wanted), "imported"
            except (LoginRefused, HolderGone, NotHere):
                raise  # of this user or node alone
            except HpcstackError as error:
                with suppress(OSError):
                    if still_holds_lease(lease):  # if not, another process is importing by now
                        write_failure(failed, error, wanted.user)
                raise

    def _import(self, key: str, base: Base, wanted: WantedImage) -> CachedImage:
        """Import BASE under KEY. The caller holds its lease.

        If the disk turns out to be too small, make room and try once more.
        """
        cache = self.cache
        settings = self.site.image_cache
        max_bytes = settings.max_gb * 1e9
        self.progress(f"importing {base.image} for all")

        reference = Reference("docker", base=base)
        source = FromRegistry(reference, wanted.platform, self.registry)
        size = source.image.size
        public = is_public(base, self.site)
        if not public and not acl.keeps_acls(cache.top):
            raise NotShared(f"{cache.top} keeps no ACLs, and {base.image} is not for everybody")
        user = wanted.user
        self._report_removed(check_room(cache, settings.keep_days, max_bytes, size, key, user))

        with import_slot(Path(settings.socket).parent, user), cache.importing(key, user):
            try:
                return self._pack(source, key, base, wanted, public=public)
            except StoreError:  # a quota, say, which free space does not show
                gone = collect_cache(cache, settings.keep_days, max_bytes, size, user, key)
                if not gone:
                    raise
                self._report_removed(gone)
            source = FromRegistry(reference, wanted.platform, self.registry)
            return self._pack(source, key, base, wanted, public=public)

    def _pack(
        self, source: FromRegistry, key: str, base: Base, wanted: WantedImage, *, public: bool
    ) -> CachedImage:
        """Import SOURCE, and put it into the cache as KEY. Remove others if it is too full then."""
        cache = self.cache
        settings = self.site.image_cache
        folder = cache.new_folder()
        told = cache.top / "incoming" / f"{key}.json"
        try:
            done = pack_image(
                source,
                folder / IMAGE,
                cache.top / "partial" / key,
                self.site.build.compression,
                self.runner,
                ImportTold(self.progress, told, source.image.size),
                lambda image: list_files_above(image, base.image),
                base.image,
                self.site.build.bounds.as_bounds(),
                most=TIMES * source.image.size + SMALL,
            )

            gone = collect_cache(
                cache, settings.keep_days, settings.max_gb * 1e9, done.size, wanted.user, key
            )
            self._report_removed(gone)
            check_share(cache, settings.max_gb * 1e9, done.size, wanted.user)
            entry = CachedImage(
                base.image, base.digest, wanted.platform, done.size, public, wanted.user
            )
            cache.put(folder, key, entry)
        finally:
            files.remove_tree(folder)
            told.unlink(missing_ok=True)
        self.progress(f"imported {done.size / 1e6:.0f} MB in {done.seconds:.1f} s")
        return entry

    def _report_removed(self, gone: list[Going]) -> None:
        """Report what was removed from the cache, and why."""
        for one in gone:
            self.progress(f"removed {one.entry.name}: {one.why}")


@contextmanager
def import_slot(folder: Path, user: int) -> Iterator[None]:
    """Take one of the few imports that a node does at once, and one of USER's: each uses all cores.

    Raise NotHere if all of them are taken.
    """
    own = f"this node imports {IMPORTS_OF_ONE} images for you already"
    of_all = f"this node imports {IMPORTS} images for all already"
    with (
        _take_lock(folder, f"import-of-{user}", IMPORTS_OF_ONE, own),
        _take_lock(folder, "import", IMPORTS, of_all),
    ):
        yield


@contextmanager
def _take_lock(folder: Path, name: str, count: int, taken: str) -> Iterator[None]:
    """Hold one of COUNT locks called NAME in FOLDER, which only this account may open.

    The kernel releases it if the process dies. Raise NotHere with the text TAKEN if none is free.
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
    """Return BASE named by DIGEST instead of its tag, which may move."""
    return Base.model_validate({"image": f"{base.registry}/{base.repository}@{digest}"})


def check_shareable(base: Base, site: Site) -> None:
    """Raise NotShared if BASE's registry may be run by a user, who could then forge any right.

    That is so for this very node, IP addresses, and names without a domain. A registry that
    site.yaml names under `registries` is trusted.
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
    """Return whether the registry gives BASE to anybody, without a login."""
    try:
        CarefulRegistry(site, anonymous=True).digest(base)
    except HpcstackError:
        return False
    return True


def _identity(path: Path) -> tuple[int, int]:
    """Return a value that changes when PATH is written anew; zeros if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_ino, found.st_mtime_ns)


def _read_step(record: Mapping[str, object]) -> tuple[str, bool]:
    """Return what the first node of a job step was told: a digest, and whether it shows a right.

    Raise its error if it failed.
    """
    if "digest" in record:
        return str(record["digest"]), bool(record.get("shown"))
    raise make_error(record, "told to the first node of this step: ")
