"""What the file of a published image was when its bytes were last read and found right.

An image has 20 GB, and a job a thousand nodes: no launch reads it. A launch compares what costs
nothing: size, inode and times of the file with those that whoever read it last wrote into the
release's folder, the publisher's own. Whoever may write to the store can replace an image in it; he
cannot make the new file look like the old one.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from hpcstack.core import descriptors, files, sharing
from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.records import Digest, Format, Record, Text
from hpcstack.releases.records import release_folder

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact
    from hpcstack.store.store import Store

SEAL, MAX_SEAL = "seal.json", 4096
READ = 8 << 20


class Seal(Record):
    """The file of an image: its bytes' sha256, and what stat(2) says of it; when it was READ, in
    UTC.
    """

    format: Text
    sha256: Digest
    size: int
    inode: int
    mtime_ns: int
    ctime_ns: int
    read: Text


SEALS = Format("hpcstack/seal", 1, Seal)


def take_seal(image: Path, bytes_a_second: int = 0) -> Seal:
    """The seal of IMAGE as it is now: all of it is read, at most so many BYTES A SECOND where that
    is said.

    StoreError where it is written meanwhile.
    """
    digest = hashlib.sha256()
    try:
        with files.open_file(image) as file:
            before = os.fstat(file.fileno())
            began, size = time.monotonic(), 0
            while piece := file.read(READ):
                digest.update(piece)
                size += len(piece)
                if bytes_a_second:
                    time.sleep(max(0.0, size / bytes_a_second - (time.monotonic() - began)))
            after = os.fstat(file.fileno())
    except (OSError, InputError) as error:
        raise StoreError(f"{image} cannot be read: {error}", "hpcstack status --check") from None
    if _marks(before) != _marks(after):
        raise StoreError(
            f"{image} was written while it was read", "find out by whom, and verify it again"
        )
    size, inode, mtime, ctime = _marks(after)
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


def _marks(about: os.stat_result) -> tuple[int, int, int, int]:
    return about.st_size, about.st_ino, about.st_mtime_ns, about.st_ctime_ns


def seal_text(seal: Seal) -> str:
    return json.dumps(seal.model_dump(), indent=1) + "\n"


def read_seal(store: Store, name: str, release: str) -> Seal | None:
    """What was written down of the image of a RELEASE; None for one of before there were seals."""
    path = release_folder(store, name, release) / SEAL
    try:
        document = json.loads(files.read_bytes(path, MAX_SEAL, published=True))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError, InputError) as error:
        raise StoreError(
            f"{path} cannot be read: {error}", f"hpcstack verify --all, by who published {name}"
        ) from None
    return SEALS.read(document, str(path), f"hpcstack verify --all, by who published {name}")


def renew_seal(store: Store, name: str, release: str, seal: Seal) -> bool:
    """Whether SEAL could be written into the folder of a RELEASE: who publishes there may, and
    root.
    """
    if not sharing.may_publish():
        return False
    try:
        descriptors.write_file(
            release_folder(store, name, release) / SEAL, seal_text(seal).encode(), 0o644
        )
    except OSError:
        return False
    return True


def check_seal(release: str, artifact: Artifact, site: Site, store: Store) -> str:
    """What to say of the image of RELEASE, NAME/VERSION-rN: empty where its file is the one that
    was read last.

    StoreError where it is another file, or another's, at a site that runs only what is signed.
    """
    name, _, number = release.partition("/")
    why = why_changed(artifact, read_seal(store, name, number))
    if why and site.signatures.required:
        raise StoreError(
            f"the image of {release} {why}",
            "tell the site's administrators: hpcstack verify --all reads it again",
        )
    return why


def is_only_touched(artifact: Artifact, seal: Seal | None) -> bool:
    """Whether the image's file is as it was read, but for its ctime: somebody changed its mode,
    owner or name.

    Who writes to it changes its mtime as well, unless he puts that back.
    """
    if seal is None:
        return False
    try:
        with files.open_file(artifact.image) as file:
            size, inode, mtime, ctime = _marks(os.fstat(file.fileno()))
    except (InputError, OSError):
        return False
    return (size, inode, mtime) == (seal.size, seal.inode, seal.mtime_ns) and ctime != seal.ctime_ns


def why_changed(artifact: Artifact, seal: Seal | None) -> str:
    """Why the image of ARTIFACT is not the file of which SEAL is; empty where it is. A release of
    before there were seals has none, and one whose seal somebody took away: where the site names
    its publishers, that is told.
    """
    if seal is None:
        return "has no seal of its publisher's" if sharing.names_publishers() else ""
    if seal.sha256 != artifact.sha256:
        return "is not the one that was read when it was published"
    try:
        with files.open_file(artifact.image) as file:
            size, inode, mtime, ctime = _marks(os.fstat(file.fileno()))
    except InputError as error:
        return f"is not as it was published: {error.message}"
    except OSError as error:
        return f"cannot be opened: {error.strerror}"
    same = (size, inode, mtime, ctime) == (seal.size, seal.inode, seal.mtime_ns, seal.ctime_ns)
    return "" if same else f"has changed since it was read on {seal.read[:10]}"
