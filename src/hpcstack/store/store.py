"""The store: images by key, pointers to the newest, releases.

Everything appears by one rename, or not at all.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from typing import TYPE_CHECKING

from hpcstack.core import descriptors, files, sharing
from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.files import digest_of, write_text, writing_below
from hpcstack.core.lease import hold_lease, make_label, remove_leftovers
from hpcstack.store.artifact import IMAGE, Artifact
from hpcstack.store.artifact_format import REMEDY, check_changeable, read_artifact, write_artifact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hpcstack.site.load import Site

KEY = re.compile(r"[0-9a-z]{1,64}")
PLATFORMS = ".platforms"  # below `stacks`
MAX_RECORD = (
    64 << 20
)  # bytes of an artifact.json or a release.json: packages of a large image are 1 MB
ARTIFACT, LOG, LOCK = "artifact.json", "build.log", "lock.json"


class Store:
    """A store below one folder, used by many processes at once.

    One may stand over another, BELOW, which is read and never written: a user's own over the
    site's.
    """

    def __init__(self, top: Path, below: Store | None = None) -> None:
        self.top = top
        self.below = below

    @property
    def releases(self) -> Path:
        """Where what is published is written down: in the site's store, whoever asks."""
        return (self.below or self).top / "releases"

    # -- reading

    def published_image(self, key: str) -> Path:
        """Where the image of KEY lies if it is published: in the site's store, whether it is there
        or not.
        """
        return (self.below or self).top / "images" / key / IMAGE

    def artifact(self, key: str) -> Artifact | None:
        """The image of KEY, if it is there and whole."""
        if not KEY.fullmatch(key):
            return None

        folder = self._folder(key)
        if self.below and not os.path.lexists(folder):
            return self.below.artifact(key)

        try:
            artifact = read_artifact(files.read_bytes(folder / ARTIFACT, MAX_RECORD), str(folder))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError, InputError) as error:
            raise StoreError(f"{folder / ARTIFACT} cannot be read: {error}", REMEDY) from None
        image = folder / IMAGE
        if not image.exists():
            raise StoreError(
                f"{image} is missing", f"hpcstack build {artifact.stack} makes it anew"
            ) from None
        if not image.is_file() or image.stat().st_size != artifact.size:
            raise StoreError(
                f"{image} is not the file that was stored", f"remove {folder} and build again"
            )
        return artifact

    def newest_for(self, stack: str, platform: str) -> Artifact | None:
        """The image for PLATFORM that was built last for STACK; for any where PLATFORM is empty."""
        found = self.newest(stack)
        if not platform or (found and found.platform == platform):
            return found

        key = self.newest_key(stack, platform)
        if self.below and not key:
            return self.below.newest_for(stack, platform)
        pointed = self.artifact(key) if key else None
        return (
            pointed if pointed and (pointed.stack, pointed.platform) == (stack, platform) else None
        )

    def newest(self, stack: str) -> Artifact | None:
        """The image that was built last for STACK, on the platform that its recipe names first."""
        key = self.newest_key(stack)
        if self.below and not key:
            return self.below.newest(stack)

        found = self.artifact(key) if KEY.fullmatch(key) else None
        if found and found.stack != stack:
            raise StoreError(
                f"{self.top / 'stacks' / stack} names an image of {found.stack}",
                f"hpcstack build {stack}",
            )
        return found

    def newest_key(self, stack: str, platform: str = "") -> str:
        """The key of the image that was built last for STACK in this very store, for PLATFORM or
        for the platform that its recipe names first; empty where none was.
        """
        try:
            return files.read_text(self._pointers(platform) / stack, 256).strip()
        except (OSError, ValueError, InputError):
            return ""

    def _pointers(self, platform: str) -> Path:
        """Where the newest images are named: those for PLATFORM out of the sight of older
        hpcstacks, which know one.
        """
        folder = self.top / "stacks"
        return folder / PLATFORMS / platform.replace("/", "-") if platform else folder

    def stacks(self) -> dict[str, Artifact]:
        """{stack: its newest image}."""
        names: set[str] = set()
        for folder in self._folders("stacks"):
            names.update(path.name for path in folder.glob("[!.]*"))
        return {name: artifact for name in sorted(names) if (artifact := self._whole(name))}

    def newest_images(self) -> list[Artifact]:
        """What was built last of each stack, for each platform; a damaged image is none of them."""
        found = {one.key: one for one in self.stacks().values()}
        for folder in self._folders("stacks"):
            for path in sorted(folder.glob(f"{PLATFORMS}/*/[!.]*")):
                with contextlib.suppress(StoreError):
                    if one := self.newest_for(path.name, path.parent.name.replace("-", "/", 1)):
                        found[one.key] = one
        return sorted(found.values(), key=lambda one: (one.stack, one.platform))

    def images(self) -> list[Artifact]:
        """Every whole image, the oldest first."""
        found: dict[str, tuple[float, Artifact]] = {}
        for folder in self._folders("images"):
            for path in folder.glob("[!.]*"):
                with contextlib.suppress(StoreError, OSError):
                    if one := self.artifact(path.name):
                        found.setdefault(path.name, (path.stat().st_mtime, one))
        oldest_first = sorted(found, key=lambda key: (found[key][0], key))
        return [found[key][1] for key in oldest_first]

    def _folders(self, name: str) -> list[Path]:
        """The folders NAME that are there: this store's, then that of the one below."""
        tops = [self.top, *([self.below.top] if self.below else [])]
        return [top / name for top in tops if (top / name).is_dir()]

    def _whole(self, stack: str) -> Artifact | None:
        """The newest image of STACK; a damaged one is as good as none where many are listed."""
        with contextlib.suppress(StoreError):
            return self.newest(stack)
        return None

    # -- writing

    def acting(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Turns the system's refusals into StoreError, which says WHAT; all that is written is
        readable for all.
        """
        return writing_below(self.top, what)

    @contextlib.contextmanager
    def incoming(self) -> Iterator[Path]:
        """A folder beside the images, on the same filesystem, in which one may be made.

        Nobody else can go into it before it is handed over, and its path names this very folder
        (`pinned`): a member of the group may rename what lies beside the images.
        """
        with self.acting("the image was not stored"):
            folder = self._incoming()
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
        """IMAGE, LOG and the text of its LOCK as the image of ARTIFACT.key, INSTEAD of one that is
        there; its stack then names it, AS_NEWEST. An IMAGE that was made in a folder of `incoming`,
        on disk, is not copied.
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
            write_text(incoming / ARTIFACT, write_artifact(artifact))
            self._open_to_readers(incoming)
            descriptors.make_folder(final.parent)
            sharing.make_shared_folder(final.parent)
            self._put_in_place(incoming, final, instead=instead)
            descriptors.sync_folder(final.parent)
        if as_newest:
            self.point(artifact.stack, artifact.key, artifact.platform)
        if as_newest and self._is_first_of_its_stack(artifact):
            self.point(artifact.stack, artifact.key)
        stored = self.artifact(artifact.key)
        assert stored
        return stored

    def _is_first_of_its_stack(self, artifact: Artifact) -> bool:
        """Whether no image of another platform is what its stack means: an image for arm64 nodes,
        built after that for amd64, does not take its place.
        """
        try:
            newest = self.newest(artifact.stack)
        except StoreError:  # damaged
            return True
        return newest is None or newest.platform == artifact.platform

    def _check_replaceable(self, final: Path) -> None:
        """StoreError where the image FINAL was made by a newer hpcstack.

        A damaged one may be replaced.
        """
        with contextlib.suppress(OSError, InputError):
            check_changeable(files.read_bytes(final / ARTIFACT, MAX_RECORD), str(final))

    def _folder(self, key: str) -> Path:
        """Where the image of KEY lies: aside, where a replacement of it was interrupted."""
        final = self.top / "images" / key
        aside = _aside(final)
        return aside if not os.path.lexists(final) and os.path.lexists(aside) else final

    def _put_in_place(self, incoming: Path, final: Path, *, instead: bool) -> None:
        """INCOMING as FINAL, by one rename. If somebody else was faster with the same key, theirs
        stays.

        INSTEAD of one that is there: both change places at once; where the filesystem cannot do
        that, the old one is aside for a moment, where readers find it, and where the next one to
        come puts it back.
        """
        aside = _aside(final)
        if descriptors.path_exists(aside) and descriptors.path_exists(final):
            descriptors.remove_tree(aside)
        elif descriptors.path_exists(aside):
            descriptors.rename_path(aside, final)
        made = descriptors.find_name(incoming, self.top / "incoming")
        if instead and descriptors.path_exists(final):
            if not descriptors.exchange_names(made, final):
                descriptors.rename_path(final, aside)
                descriptors.rename_path(made, final)
                descriptors.remove_tree(aside)
            return
        try:
            descriptors.rename_path(made, final)
        except OSError:
            if not descriptors.path_exists(final / ARTIFACT):
                raise

    def point(self, stack: str, key: str, platform: str = "") -> None:
        """STACK's newest image, for PLATFORM where one is said, is KEY.

        Nothing is written if it is already: a store may be read-only for its users.
        """
        if self.newest_key(stack, platform) == key:
            return
        folder = self._pointers(platform)
        with self.acting("the pointer was not written"):
            for part in (self.top / "stacks", *([folder.parent, folder] if platform else [])):
                descriptors.make_folder(part)
                sharing.make_shared_folder(part)
            remove_leftovers(folder, f".{stack}.", descriptors.remove_file)  # of who was killed
            descriptors.write_file(
                folder / stack, f"{key}\n".encode(), sharing.shared_mode(0o644), owner=make_label()
            )
            descriptors.sync_folder(folder)

    def _incoming(self) -> Path:
        """A new folder beside the images that is ours alone; those of dead processes are swept."""
        parent = self.top / "incoming"
        descriptors.make_folder(parent)
        sharing.make_shared_folder(parent)
        remove_leftovers(parent, "", descriptors.remove_tree)
        folder = parent / f"{make_label()}{uuid.uuid4().hex[:8]}"
        descriptors.make_new_folder(folder)
        return folder

    def _open_to_readers(self, incoming: Path) -> None:
        """What lies in INCOMING is whole: it may be read, and is the group's where one shares the
        store.
        """
        with descriptors.open_by_descriptor(incoming / IMAGE) as image:
            os.fchmod(image.fileno(), sharing.shared_mode(0o644))
        with descriptors.hold_folder(incoming) as folder:
            os.fchmod(folder, 0o755)
        sharing.hand_over(incoming)

    @contextlib.contextmanager
    def lease(self, key: str, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
        """One builder per key: others wait. The lease of one that is dead is taken over."""
        check_key(key)
        path = self.top / "leases" / key
        with contextlib.ExitStack() as stack:
            with self.acting("the lease was not taken"):
                stack.enter_context(
                    hold_lease(
                        path,
                        lambda who: waiting(f"{who} (its lease is {path})") if waiting else None,
                    )
                )
            yield


def open_store(site: Site) -> Store:
    """The site's store; for those who may not write there one of their own, over it.

    StoreError where somebody else can put images into their own: what lies there is run.
    """
    own = site.own_store
    if own == site.store:
        return Store(own)

    _check_own(own)
    return Store(own, below=Store(site.store))


def _check_own(own: Path) -> None:
    """StoreError where the store OWN, or a folder on the way to it as far as there is one, is not
    its user's alone.
    """
    there = next(folder for folder in (own, *own.parents) if folder.exists())
    files.check_way_to(there / "inside", "user_store in site.yaml names it (hpcstack show --site)")


def check_key(key: str) -> None:
    """StoreError where KEY is no image's: it is about to become a part of a path."""
    if not KEY.fullmatch(key):
        raise StoreError(
            f"{key[:80]!r} is not the key of an image", "a record names it: hpcstack status --check"
        )


def _copy(source: Path, target: Path) -> None:
    """SOURCE as the new file TARGET, on disk."""
    with source.open("rb") as reader, descriptors.create_file(target, 0o644) as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
        writer.flush()
        os.fsync(writer.fileno())


def _aside(final: Path) -> Path:
    return final.with_name(f".{final.name}.before")
