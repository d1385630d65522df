"""The store: images by key, pointers to the newest image of each stack, releases.

Everything appears by one rename, or not at all.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from typing import TYPE_CHECKING

from hpcstack.core import descriptors, files, gate
from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.files import digest_of, write_text, writing_below
from hpcstack.core.lease import hold_lease, make_label, remove_leftovers
from hpcstack.core.sharing import ALONE, Sharing
from hpcstack.store.artifact import IMAGE, Artifact
from hpcstack.store.artifact_format import (
    ELSEWHERE,
    REMEDY,
    check_changeable,
    read_artifact,
    write_artifact,
    write_elsewhere,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hpcstack.core.progress import Say
    from hpcstack.site.load import Site

KEY = re.compile(r"[0-9a-z]{1,64}")
PLATFORMS = ".platforms"  # below `stacks`: the newest images for each platform
MAX_POINTER = 256  # bytes
MAX_RECORD = 64 << 20  # bytes of an artifact.json or release.json; those of a large image have 1 MB
ARTIFACT, LOG, LOCK = "artifact.json", "build.log", "lock.json"  # beside an image


class Store:
    """A store below one folder, used by many processes at once.

    A store may stand over another one, BELOW, which is read and never written: a user's own store
    over the site's. SHARING says which group may write what is stored here, and whose records of
    releases are believed.
    """

    def __init__(self, top: Path, below: Store | None = None, sharing: Sharing = ALONE) -> None:
        self.top = top
        self.below = below
        self.sharing = sharing

    @property
    def releases(self) -> Path:
        """The folder of releases, which is in the site's store, whoever asks."""
        return (self.below or self).top / "releases"

    # -- reading

    def published_image(self, key: str) -> Path:
        """Return where the image of KEY lies if it is published, whether it is there or not.

        That is in the site's store.
        """
        return (self.below or self).top / "images" / key / IMAGE

    def artifact(self, key: str) -> Artifact | None:
        """Return the image of KEY; None where there is none.

        StoreError where it is damaged; and where the site names its publishers, and somebody else
        has put it there, or could write to it.
        """
        if not KEY.fullmatch(key):
            return None

        folder = self._find_folder(key)
        if self.below and not os.path.lexists(folder):
            return self.below.artifact(key)

        self._check_author(folder)
        try:
            record = files.read_bytes(folder / ARTIFACT, MAX_RECORD, publishers=self.sharing)
            artifact = read_artifact(record, str(folder), self.sharing)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError, InputError) as error:
            raise StoreError(
                f"{folder / ARTIFACT} cannot be read: {error}",
                REMEDY,
                page="repair-what-is-published",
            ) from None

        if artifact.key != key:
            raise StoreError(
                f"{folder} holds another image, that of the key {artifact.key}",
                f"hpcstack build {artifact.stack} makes it anew",
                page="repair-what-is-published",
            )
        image = folder / IMAGE
        if not image.exists():
            raise StoreError(
                f"{image} is missing",
                f"hpcstack build {artifact.stack} makes it anew",
                page="repair-what-is-published",
            ) from None
        if not image.is_file() or image.stat().st_size != artifact.size:
            raise StoreError(
                f"{image} is not the file that was stored",
                f"remove {folder} and build again",
                page="repair-what-is-published",
            )
        return artifact

    def _check_author(self, folder: Path) -> None:
        """Raise StoreError unless FOLDER, of an image, and what is read in it are a publisher's.

        Only that folder counts: in those around it each member of the group may rename things, and
        a record names its own key. What is not there is told later.
        """
        if not self.sharing.names_publishers:
            return
        try:
            with contextlib.suppress(FileNotFoundError):
                with descriptors.hold_folder(folder) as held:
                    gate.check_publishers_word(held, folder, self.sharing)
                for name in (ARTIFACT, IMAGE):
                    files.open_file(folder / name, publishers=self.sharing).close()
        except InputError as error:
            raise StoreError(
                error.message,
                "where a publisher builds the stack again, it is made anew",
                page="group-of-administrators",
            ) from None

    def newest_for(self, stack: str, platform: str) -> Artifact | None:
        """Return the newest image of STACK for PLATFORM; for any platform where that is empty."""
        found = self.newest(stack)
        if not platform or (found and found.platform == platform):
            return found

        key = self.newest_key(stack, platform)
        if self.below and not key:
            return self.below.newest_for(stack, platform)
        pointed = self.artifact(key) if key else None
        if pointed and (pointed.stack, pointed.platform) == (stack, platform):
            return pointed
        return None

    def newest(self, stack: str) -> Artifact | None:
        """Return the newest image of STACK for the platform that its recipe names first.

        None where there is none. StoreError where the pointer leads to an image of another stack.
        """
        key = self.newest_key(stack)
        if self.below and not key:
            return self.below.newest(stack)

        found = self.artifact(key) if KEY.fullmatch(key) else None
        if found and found.stack != stack:
            raise StoreError(
                f"{self.top / 'stacks' / stack} names an image of {found.stack}",
                f"hpcstack build {stack}",
                page="repair-what-is-published",
            )
        return found

    def newest_key(self, stack: str, platform: str = "") -> str:
        """Return the key of the newest image of STACK in this very store; empty where it has none.

        It is for PLATFORM, or where that is empty for the platform that the recipe names first.
        """
        try:
            pointer = self._pointers_folder(platform) / stack
            text = files.read_bytes(pointer, MAX_POINTER, publishers=self.sharing)
        except (OSError, ValueError, InputError):
            return ""
        return text.decode("utf-8", "replace").strip()

    def _pointers_folder(self, platform: str) -> Path:
        """Return the folder of pointers to the newest images, for PLATFORM where one is named.

        Those for a platform lie in a hidden folder: older versions of hpcstack take whatever is not
        hidden there for a stack.
        """
        folder = self.top / "stacks"
        return folder / PLATFORMS / platform.replace("/", "-") if platform else folder

    def stacks(self) -> dict[str, Artifact]:
        """Return {stack: its newest image}."""
        names: set[str] = set()
        for folder in self._list_folders("stacks"):
            names.update(path.name for path in folder.glob("[!.]*"))
        out = {}
        for name in sorted(names):
            # Where many are listed, a damaged image is left out, and the others are shown.
            with contextlib.suppress(StoreError):
                artifact = self.newest(name)
                if artifact:
                    out[name] = artifact
        return out

    def newest_images(self) -> list[Artifact]:
        """Return the newest image of each stack for each platform, without damaged ones."""
        found = {one.key: one for one in self.stacks().values()}
        for folder in self._list_folders("stacks"):
            for path in sorted(folder.glob(f"{PLATFORMS}/*/[!.]*")):
                platform = path.parent.name.replace("-", "/", 1)
                with contextlib.suppress(StoreError):
                    one = self.newest_for(path.name, platform)
                    if one:
                        found[one.key] = one
        return sorted(found.values(), key=lambda one: (one.stack, one.platform))

    def images(self) -> list[Artifact]:
        """Return every image that is whole, the oldest first."""
        found: dict[str, tuple[float, Artifact]] = {}
        for folder in self._list_folders("images"):
            for path in folder.glob("[!.]*"):
                with contextlib.suppress(StoreError, OSError):
                    one = self.artifact(path.name)
                    if one:
                        found.setdefault(path.name, (path.stat().st_mtime, one))
        oldest_first = sorted(found, key=lambda key: (found[key][0], key))
        return [found[key][1] for key in oldest_first]

    def list_damaged(self) -> list[Path]:
        """Return the folders of images that `images` leaves out, as they are not whole."""
        whole = {one.key for one in self.images()}
        return [
            path
            for folder in self._list_folders("images")
            for path in sorted(folder.glob("[!.]*"))
            if KEY.fullmatch(path.name) and path.name not in whole
        ]

    def _list_folders(self, name: str) -> list[Path]:
        """Return the folders NAME that are there: this store's, then that of the store below."""
        tops = [self.top]
        if self.below:
            tops.append(self.below.top)
        return [top / name for top in tops if (top / name).is_dir()]

    # -- writing

    def acting(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Turn the system's refusals into StoreError, which says WHAT.

        All that is written meanwhile can be read by all.
        """
        return writing_below(self.top, what, self.sharing)

    @contextlib.contextmanager
    def incoming(self) -> Iterator[Path]:
        """Yield a new folder on the images' filesystem, in which an image may be made.

        Nobody else can enter it before it is handed over. A member of the group may rename what
        lies beside the images, so the path is pinned: it leads to this very folder, whatever it is
        called by now.
        """
        with self.acting("the image was not stored"):
            folder = self._make_incoming()
        try:
            with descriptors.pin_path(folder) as own:
                yield own
        finally:
            descriptors.remove_tree(folder)

    def put(
        self,
        artifact: Artifact,
        image: Path,
        log: Path,
        *,
        lock: str = "",
        instead: bool = False,
        as_newest: bool = True,
    ) -> Artifact:
        """Store IMAGE with LOG and the text of its LOCK under ARTIFACT.key; return it as stored.

        With INSTEAD it replaces an image that is there. With AS_NEWEST it becomes the newest image
        of its stack. An IMAGE that was made in a folder of `incoming`, and is on disk, is not
        copied.
        """
        check_key(artifact.key)
        final = self.top / "images" / artifact.key
        if instead:
            self._check_replaceable(final)

        made_here = image.name == IMAGE and descriptors.is_pinned(image.parent)
        place = contextlib.nullcontext(image.parent) if made_here else self.incoming()
        with self.acting("the image was not stored"), place as incoming:
            if not made_here:
                _copy(image, incoming / IMAGE)
                if digest_of(incoming / IMAGE) != artifact.sha256:
                    raise StoreError(
                        "the stored image differs from the built one",
                        "the disk or memory is damaged",
                    )
            _copy(log, incoming / LOG)
            if lock:
                write_text(incoming / LOCK, lock)
            write_text(incoming / ELSEWHERE, write_elsewhere(artifact))
            write_text(incoming / ARTIFACT, write_artifact(artifact))
            self._open_to_readers(incoming)
            descriptors.make_folder(final.parent)
            # A launch looks at an image, and its job runs it hours later, by its name.
            self.sharing.make_own_names_folder(final.parent)
            self._put_in_place(incoming, final, instead=instead)
            descriptors.sync_folder(final.parent)

        if as_newest:
            self.point(artifact.stack, artifact.key, artifact.platform)
        if as_newest and self._may_stand_for_its_stack(artifact):
            self.point(artifact.stack, artifact.key)
        stored = self.artifact(artifact.key)
        assert stored
        return stored

    def _may_stand_for_its_stack(self, artifact: Artifact) -> bool:
        """Whether ARTIFACT may become the image that its stack means where no platform is named.

        An image for arm64 nodes that is built after one for amd64 does not take its place.
        """
        try:
            newest = self.newest(artifact.stack)
        except StoreError:  # damaged
            return True
        return newest is None or newest.platform == artifact.platform

    def _check_replaceable(self, final: Path) -> None:
        """Raise StoreError where the image in FINAL was made by a newer hpcstack.

        A damaged one may be replaced.
        """
        with contextlib.suppress(OSError, InputError):
            check_changeable(files.read_bytes(final / ARTIFACT, MAX_RECORD), str(final))

    def _find_folder(self, key: str) -> Path:
        """Return where the image of KEY lies: aside, where replacing it was interrupted."""
        final = self.top / "images" / key
        aside = _name_aside(final)
        return aside if not os.path.lexists(final) and os.path.lexists(aside) else final

    def _put_in_place(self, incoming: Path, final: Path, *, instead: bool) -> None:
        """Move INCOMING to FINAL by one rename.

        Without INSTEAD, an image that somebody else has put there meanwhile stays. With INSTEAD the
        two folders change places at once. Where the filesystem cannot do that, the old one is first
        moved aside. Readers find it there. If this is interrupted, the next call puts it back.
        """
        aside = _name_aside(final)
        if descriptors.exists_at(aside) and descriptors.exists_at(final):
            descriptors.remove_tree(aside)
        elif descriptors.exists_at(aside):
            descriptors.rename_path(aside, final)

        made = descriptors.find_name(incoming, self.top / "incoming")
        if instead and descriptors.exists_at(final):
            if not descriptors.exchange_names(made, final):
                descriptors.rename_path(final, aside)
                descriptors.rename_path(made, final)
                descriptors.remove_tree(aside)
            return

        try:
            descriptors.rename_path(made, final)
        except OSError:
            if not descriptors.exists_at(final / ARTIFACT):
                raise

    def point(self, stack: str, key: str, platform: str = "") -> None:
        """Make the image of KEY the newest of STACK, for PLATFORM where one is named.

        Nothing is written where it is so already: a store may be read-only for its users.
        """
        if self.newest_key(stack, platform) == key:
            return
        folder = self._pointers_folder(platform)
        parts = [self.top / "stacks"]
        if platform:
            parts += [folder.parent, folder]
        with self.acting("the pointer was not written"):
            for part in parts:
                descriptors.make_folder(part)
                self.sharing.make_folder(part)
            # What killed processes have left of their own pointers.
            remove_leftovers(folder, f".{stack}.", descriptors.remove_file)
            mode = self.sharing.widen_mode(0o644)
            descriptors.write_file(folder / stack, f"{key}\n".encode(), mode, owner=make_label())
            descriptors.sync_folder(folder)

    def _make_incoming(self) -> Path:
        """Make a folder beside the images that is ours alone. Those of dead processes are swept."""
        parent = self.top / "incoming"
        descriptors.make_folder(parent)
        self.sharing.make_folder(parent)
        remove_leftovers(parent, "", descriptors.remove_tree)
        folder = parent / f"{make_label()}{uuid.uuid4().hex[:8]}"
        descriptors.make_new_folder(folder)
        return folder

    def _open_to_readers(self, incoming: Path) -> None:
        """Let others read INCOMING, which is whole; hand it to the group that shares the store."""
        with descriptors.open_by_descriptor(incoming / IMAGE) as image:
            os.fchmod(image.fileno(), self.sharing.widen_mode(0o644))
        with descriptors.hold_folder(incoming) as folder:
            os.fchmod(folder, 0o755)
        self.sharing.hand_over(incoming)
        self.sharing.make_own_names_folder(incoming)

    @contextlib.contextmanager
    def lease(self, key: str, waiting: Say | None = None) -> Iterator[None]:
        """Keep other builders of KEY out meanwhile. The lease of a dead process is taken over.

        While this has to wait, WAITING is told for whom.
        """
        check_key(key)
        path = self.top / "leases" / key

        def tell_waiting(who: str) -> None:
            if waiting:
                waiting(f"{who} (its lease is {path})")

        with contextlib.ExitStack() as stack:
            # Only taking the lease is `acting`: what the caller does under it has its own errors.
            with self.acting("the lease was not taken"):
                stack.enter_context(hold_lease(path, tell_waiting, sharing=self.sharing))
            yield


def open_store(site: Site) -> Store:
    """Return the site's store; for users who may not write there, one of their own over it.

    StoreError where somebody else could put images into that one: what lies there is run.
    """
    own = site.own_store
    if own == site.store:
        return Store(own, sharing=site.sharing)

    _check_own(own)
    below = Store(site.store, sharing=site.sharing)
    return Store(own, below, site.sharing)


def _check_own(own: Path) -> None:
    """Raise StoreError where another user could replace the store OWN, or a folder on its way.

    While OWN is not there yet, the way is checked as far as it exists.
    """
    there = next(folder for folder in (own, *own.parents) if folder.exists())
    files.check_way_to(there / "inside", "user_store in site.yaml names it (hpcstack show --site)")


def check_key(key: str) -> None:
    """Raise StoreError where KEY cannot be the key of an image. A key becomes a part of a path."""
    if not KEY.fullmatch(key):
        raise StoreError(
            f"{key[:80]!r} is not the key of an image",
            "a record names it: hpcstack status --check",
            page="repair-what-is-published",
        )


def _copy(source: Path, target: Path) -> None:
    """Copy SOURCE to the new file TARGET, and wait until it is on disk."""
    with source.open("rb") as reader, descriptors.create_file(target, 0o644) as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
        writer.flush()
        os.fsync(writer.fileno())


def _name_aside(final: Path) -> Path:
    """Return where an image lies for a moment while another takes its place at FINAL."""
    return final.with_name(f".{final.name}.before")
