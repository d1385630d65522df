"""Plan what is copied to each node's own disk before the ranks start: the image, the user's data.

A shared filesystem does not bear a thousand ranks that open one file. So one task per node copies
the file once and checks it, or Slurm broadcasts it (https://slurm.schedmd.com/sbcast.html). The
next job on the node finds it there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.squashfs.read import is_squashfs

if TYPE_CHECKING:
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact

HOW = {
    "none": "the nodes read the shared file",
    "copy": "each node copies it once to its own disk",
    "sbcast": "Slurm sends it from node to node: the shared file is read once",
}


@dataclass(frozen=True)
class Piece:
    """One file or folder that is copied: `source`, of `size` bytes, to `name` in the node's folder.

    The container sees it at `target`, if it has one. A spliced image shares its beginning with
    every other image on the same `base`: the first `kept` bytes but for the superblock. A `-`
    stands for no value, since all of this becomes arguments of a script.
    """

    source: Path
    name: str
    size: int
    sha256: str = "-"  # only an image's is known
    target: str = ""
    base: str = "-"
    kept: int = 0


@dataclass(frozen=True)
class Staging:
    """The pieces for one step. `how` is a key of HOW; `folder` is the user's own on each node."""

    how: str
    folder: str
    pieces: tuple[Piece, ...]

    def local(self, piece: Piece) -> str:
        """Return the path of PIECE on the node."""
        return f"{self.folder}/{piece.name}"

    @property
    def image(self) -> str:
        """The path of the image on the node; empty where it is not copied there."""
        return next((self.local(piece) for piece in self.pieces if piece.sha256 != "-"), "")

    @property
    def mounts(self) -> tuple[str, ...]:
        """The mounts of the data, from the node's folder."""
        return tuple(f"{self.local(piece)}:{piece.target}" for piece in self.pieces if piece.target)

    @property
    def sources(self) -> tuple[str, ...]:
        """The mounts of the data, from where it is now: the container will see the same files."""
        return tuple(f"{piece.source}:{piece.target}" for piece in self.pieces if piece.target)

    @property
    def words(self) -> list[str]:
        """The arguments of `put` in launchers/on-node/stage.sh: six for each piece."""
        out: list[str] = []
        for one in self.pieces:
            fields = (one.source, one.name, one.size, one.sha256, one.base, one.kept)
            out += map(str, fields)
        return out


def plan_staging(artifact: Artifact, site: Site, how: str, data: tuple[str, ...]) -> Staging | None:
    """Return what is copied to the nodes for a step of ARTIFACT; None for nothing.

    HOW overrides the site's way of staging the image. DATA are SOURCE:TARGET. Raise InputError for
    data that does not exist.
    """
    chosen = how or site.staging.how
    pieces = [_data_piece(one) for one in data]
    if chosen != "none":
        pieces.insert(0, _image_piece(artifact))
    if not pieces:
        return None
    folder = f"{site.staging.folder.rstrip('/')}/hpcstack-staged-{os.getuid()}"
    return Staging(chosen, folder, tuple(pieces))


def _image_piece(artifact: Artifact) -> Piece:
    """Return the piece of the image of ARTIFACT.

    For a spliced image it names the base, so that a node which has another image on that base is
    sent the difference alone.
    """
    from hpcstack.squashfs.splice import read_splice

    piece = Piece(artifact.image, f"{artifact.sha256}.sqsh", artifact.size, artifact.sha256)
    with contextlib.suppress(OSError):
        splice = read_splice(artifact.image)
        if splice:
            return replace(piece, base=splice.base, kept=splice.kept)
    return piece


def _data_piece(said: str) -> Piece:
    """Return the piece of SAID, a value of --stage-in: a file or a folder with all below it.

    Its name is a digest of the paths, sizes and times of its files, so that data which has changed
    is copied again.
    """
    source, _, target = said.partition(":")
    path = Path.cwd() / source
    if not source or not target.startswith("/"):
        raise InputError(
            f"--stage-in {said}: SOURCE:TARGET is needed, and TARGET is an absolute path",
            "/data/cifar:/data",
            page="bring-data-and-images-to-nodes",
        )
    if not path.exists():
        raise InputError(
            f"--stage-in {said}: {path} does not exist", page="bring-data-and-images-to-nodes"
        )

    path = path.resolve()
    files = [path]
    if path.is_dir():
        files += path.rglob("*")
    size = 0
    digest = hashlib.sha256(str(path).encode())
    for file in sorted(files):
        status = file.lstat()
        size += status.st_size
        line = f"{file}\0{status.st_size}\0{status.st_mtime_ns}\0"
        digest.update(line.encode("utf-8", "surrogateescape"))
    # The copy's name says that the container is to see what is in it.
    suffix = ".sqsh" if is_squashfs(path) else ""
    return Piece(path, f"data-{digest.hexdigest()[:32]}{suffix}", size, target=target)
