"""What a step reads, brought to each node's own disk before its ranks start: the image, and what
the user names.

A thousand ranks that open one file on a shared filesystem are its end. One task per node copies it
once and checks it, or Slurm broadcasts it (https://slurm.schedmd.com/sbcast.html), and the next job
finds it there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact

HOW = {
    "none": "the nodes read the shared file",
    "copy": "each node copies it once to its own disk",
    "sbcast": "Slurm hands it from node to node: the shared file is read once",
}


@dataclass(frozen=True)
class Piece:
    """SOURCE, of so many bytes, as NAME in the node's folder; `target` is where the container sees
    it, if it does.

    Of a spliced image: the bytes up to `kept`, but for the superblock, are those of every image on
    `base`.
    """

    source: Path
    name: str
    size: int
    sha256: str = "-"
    target: str = ""
    base: str = "-"
    kept: int = 0


@dataclass(frozen=True)
class Staging:
    """`how` is a key of HOW; `folder` is the user's own on each node."""

    how: str
    folder: str
    pieces: tuple[Piece, ...]

    def local(self, piece: Piece) -> str:
        return f"{self.folder}/{piece.name}"

    @property
    def image(self) -> str:
        """Where the image is on the node, if it is brought there."""
        return next((self.local(piece) for piece in self.pieces if piece.sha256 != "-"), "")

    @property
    def mounts(self) -> tuple[str, ...]:
        return tuple(f"{self.local(piece)}:{piece.target}" for piece in self.pieces if piece.target)

    @property
    def sources(self) -> tuple[str, ...]:
        """The mounts as they will look, from where the data are now."""
        return tuple(f"{piece.source}:{piece.target}" for piece in self.pieces if piece.target)

    @property
    def words(self) -> list[str]:
        """The arguments of launchers/on-node/stage.sh's `put`."""
        words = [
            (one.source, one.name, one.size, one.sha256, one.base, one.kept) for one in self.pieces
        ]
        return [str(word) for piece in words for word in piece]


def plan_staging(artifact: Artifact, site: Site, how: str, data: tuple[str, ...]) -> Staging | None:
    """What is brought to the nodes for a step of ARTIFACT; None for nothing. HOW overrides the
    site's; DATA are SOURCE:TARGET.
    """
    chosen = how or site.staging.how
    pieces = [_data(one) for one in data]
    if chosen != "none":
        pieces.insert(0, _image(artifact))
    if not pieces:
        return None
    return Staging(
        chosen, f"{site.staging.folder.rstrip('/')}/hpcstack-staged-{os.getuid()}", tuple(pieces)
    )


def _image(artifact: Artifact) -> Piece:
    """The image; of a spliced one a node that has another on its base is brought the difference
    alone.
    """
    from hpcstack.squashfs.splice import read_splice

    piece = Piece(artifact.image, f"{artifact.sha256}.sqsh", artifact.size, artifact.sha256)
    with contextlib.suppress(OSError):
        if about := read_splice(artifact.image):
            return replace(piece, base=about.base, kept=about.kept)
    return piece


def _data(said: str) -> Piece:
    source, colon, target = said.partition(":")
    path = Path(source)
    if not colon or not path.is_absolute() or not target.startswith("/"):
        raise InputError(
            f"--stage-in {said}: SOURCE:TARGET of two absolute paths is wanted", "/data/cifar:/data"
        )
    if not path.exists():
        raise InputError(f"--stage-in {said}: {source} does not exist")
    path = path.resolve()
    size, seen = 0, hashlib.sha256(str(path).encode())
    for file in sorted([path, *path.rglob("*")] if path.is_dir() else [path]):
        about = file.lstat()
        size += about.st_size
        seen.update(
            f"{file}\0{about.st_size}\0{about.st_mtime_ns}\0".encode("utf-8", "surrogateescape")
        )
    return Piece(path, f"data-{seen.hexdigest()[:32]}", size, target=target)
