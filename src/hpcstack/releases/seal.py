"""Seals: what the file of a published image was when its bytes were last read and found right.

An image may have 20 GB and a job a thousand nodes, so no launch reads the bytes. A launch compares
what costs nothing: the file's size, inode and times with those in the seal. Whoever read the image
last wrote the seal into the release's folder, which is the publisher's own. Others who may write to
the store can replace an image in it, but they cannot make the new file look like the old one.

An image that is signed and in no release has its seal beside it, from whoever signed it. It counts
where that is a publisher.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from hpcstack.core import descriptors, files
from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.records import Digest, Format, Record, Text
from hpcstack.releases.records import name_release_folder

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.sharing import Sharing
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact
    from hpcstack.store.store import Store

SEAL, MAX_SEAL = "seal.json", 4096
READ = 8 << 20  # bytes read at once


class Seal(Record):
    """The sha256 of an image's bytes, what stat(2) said of its file, and when it was read (UTC)."""

    format: Text
    sha256: Digest
    size: int
    inode: int
    mtime_ns: int
    ctime_ns: int
    read: Text


SEALS = Format("hpcstack/seal", 1, Seal)


def take_seal(image: Path, bytes_a_second: int = 0) -> Seal:
    """Read all of IMAGE and return its seal.

    It is read at BYTES_A_SECOND at most, or as fast as possible where that is 0. StoreError where
    it cannot be read, or somebody writes to it meanwhile.
    """
    digest = hashlib.sha256()
    try:
        with files.open_file(image) as file:
            before = os.fstat(file.fileno())
            began = time.monotonic()
            size = 0
            while piece := file.read(READ):
                digest.update(piece)
                size += len(piece)
                if bytes_a_second:
                    ahead = size / bytes_a_second - (time.monotonic() - began)
                    time.sleep(max(0.0, ahead))
            after = os.fstat(file.fileno())
    except (OSError, InputError) as error:
        raise StoreError(
            f"{image} cannot be read: {error}",
            "hpcstack status --check",
            page="repair-what-is-published",
        ) from None

    if _identify_state(before) != _identify_state(after):
        raise StoreError(
            f"{image} was written while it was read",
            "find out by whom, and verify it again",
            page="repair-what-is-published",
        )
    size, inode, mtime, ctime = _identify_state(after)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Seal(
        format=SEALS.name,
        sha256=digest.hexdigest(),
        size=size,
        inode=inode,
        mtime_ns=mtime,
        ctime_ns=ctime,
        read=now,
    )


def _identify_state(about: os.stat_result) -> tuple[int, int, int, int]:
    """Return what tells one state of a file from another: size, inode, mtime, ctime.

    Not even its owner can set the ctime of a file.
    """
    return about.st_size, about.st_ino, about.st_mtime_ns, about.st_ctime_ns


def seal_text(seal: Seal) -> str:
    """Return the text of seal.json."""
    return json.dumps(seal.model_dump(), indent=1) + "\n"


def read_seal(store: Store, name: str, release: str) -> Seal | None:
    """Return the seal of a RELEASE of NAME; None where it has none.

    Older versions of hpcstack wrote none. StoreError where it cannot be read.
    """
    path = name_release_folder(store, name, release) / SEAL
    try:
        document = json.loads(files.read_bytes(path, MAX_SEAL, publishers=store.sharing))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError, InputError) as error:
        raise StoreError(
            f"{path} cannot be read: {error}",
            f"hpcstack verify --all, by who published {name}",
            page="repair-what-is-published",
        ) from None
    return SEALS.read(document, str(path), f"hpcstack verify --all, by who published {name}")


def renew_seal(store: Store, name: str, release: str, seal: Seal) -> bool:
    """Write SEAL into the folder of a RELEASE, and return whether that was possible.

    A publisher of the site may, if the folder is his to write, and root.
    """
    if not store.sharing.may_publish:
        return False
    try:
        descriptors.write_file(
            name_release_folder(store, name, release) / SEAL, seal_text(seal).encode(), 0o644
        )
    except OSError:
        return False
    return True


def check_seal(release: str, artifact: Artifact, site: Site, store: Store) -> str:
    """Return what is wrong with the image of RELEASE, NAME/VERSION-rN, as far as its file shows it.

    Empty where the file is the one that was last read. StoreError instead where it is not and the
    site runs only what is signed.
    """
    name, _, number = release.partition("/")
    seal = read_seal(store, name, number)
    why = explain_change(artifact, seal, store.sharing)
    if seal is None and site.signatures.required:
        why = "has no seal: somebody may have taken it away"
    if why and site.signatures.required:
        raise StoreError(
            f"the image of {release} {why}",
            "tell the site's administrators: hpcstack verify --all reads it again",
            page="repair-what-is-published",
        )
    return why


def name_image_seal(image: Path) -> Path:
    """Return where the seal of an image lies that is signed."""
    return image.with_name(f"{image.name}.{SEAL}")


def write_image_seal(image: Path, seal: Seal, store: Store) -> bool:
    """Write SEAL beside IMAGE, and return whether that was possible and will count."""
    if not store.sharing.may_publish:
        return False
    try:
        descriptors.write_file(name_image_seal(image), seal_text(seal).encode(), 0o644)
    except OSError:
        return False
    return True


def explain_image_change(artifact: Artifact, store: Store) -> str:
    """Return why the image of ARTIFACT, which is signed, is not the file that was; empty where it is.

    Its signature is of bytes, which no launch reads.
    """
    path = name_image_seal(artifact.image)
    try:
        document = json.loads(files.read_bytes(path, MAX_SEAL, publishers=store.sharing))
        seal = SEALS.read(document, str(path), "hpcstack verify --signature")
    except (FileNotFoundError, NotADirectoryError):
        return "it has no seal: nobody has read it since it was signed"
    except (OSError, ValueError, RecursionError, InputError, StoreError) as error:
        return f"its seal does not count: {error}"
    why = explain_change(artifact, seal, store.sharing)
    return f"it {why}" if why else ""


def is_only_touched(artifact: Artifact, seal: Seal | None) -> bool:
    """Whether the image's file is as it was when it was read, but for its ctime.

    So it is where somebody changed its mode, owner or name. Writing to it would change its mtime as
    well, but that can be set back.
    """
    if seal is None:
        return False
    try:
        with files.open_file(artifact.image) as file:
            size, inode, mtime, ctime = _identify_state(os.fstat(file.fileno()))
    except (InputError, OSError):
        return False
    return (size, inode, mtime) == (seal.size, seal.inode, seal.mtime_ns) and ctime != seal.ctime_ns


def explain_change(artifact: Artifact, seal: Seal | None, sharing: Sharing) -> str:
    """Return why the image of ARTIFACT is not the file that SEAL describes; empty where it is.

    Without a seal nothing can be compared. That is reported only where SHARING names
    publishers: somebody may have taken the seal away.
    """
    if seal is None:
        return "has no seal from its publisher" if sharing.names_publishers else ""
    if seal.sha256 != artifact.sha256:
        return "is not the one that was read when it was published"
    try:
        with files.open_file(artifact.image) as file:
            found = _identify_state(os.fstat(file.fileno()))
    except InputError as error:
        return f"is not as it was published: {error.message}"
    except OSError as error:
        return f"cannot be opened: {error.strerror}"
    if found == (seal.size, seal.inode, seal.mtime_ns, seal.ctime_ns):
        return ""
    return f"has changed since it was read on {seal.read[:10]}"
