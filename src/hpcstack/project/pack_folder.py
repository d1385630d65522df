"""Pack a folder into one squashfs file, for `hpcstack launch --mount FILE:TARGET`.

A million files are a million requests to the shared filesystem for every epoch; one file is one.

The folder is packed in shards. Each is a squashfs file of some of the files, in order of their
names, and named after what it holds. They stay beside the output until that is whole: a pack that
was killed goes on behind the last whole shard. In the end the shards are spliced into one file,
whose bytes are copied and not compressed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core import descriptors
from hpcstack.core.errors import BuildError, InputError, StoreError, format_count
from hpcstack.core.lease import hold_lease
from hpcstack.core.replacing import replace_file
from hpcstack.core.sizes import show_bytes
from hpcstack.oci.pack import OWN_TIMES, pack_argv, read_back
from hpcstack.squashfs.splice import splice_image

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress

SHARD = 4 << 30  # bytes of files in a shard, unless one file alone has more
MOST_FILES = 500_000  # in a shard
PIECE = 1 << 20
# Everybody who may read the squashfs file may read what is in it. Its files belong to root: the
# numbers of users mean nothing in a container.
TAR = (
    "tar",
    "--create",
    "--format=posix",
    "--pax-option=delete=atime,delete=ctime",
    "--no-recursion",
    "--null",
    "--verbatim-files-from",
    "--owner=0",
    "--group=0",
    "--numeric-owner",
    "--mode=a+rX",
)


@dataclass(frozen=True)
class FolderEntry:
    """A file, folder or link: `path` is relative to the folder that is packed."""

    path: str
    size: int
    about: str  # changes where the entry is another one
    is_file: bool = False

    @property
    def folders(self) -> list[str]:
        """The folders that the entry lies in, the outermost first."""
        parts = self.path.split("/")[:-1]
        return ["/".join(parts[: count + 1]) for count in range(len(parts))]


@dataclass
class Shard:
    """Entries that are packed into one squashfs file."""

    entries: list[FolderEntry] = field(default_factory=list)
    size: int = 0

    @property
    def name(self) -> str:
        """The name of its file: a digest of what it holds."""
        digest = hashlib.sha256()
        for one in self.entries:
            line = f"{one.path}\0{one.about}\0"
            digest.update(line.encode("utf-8", "surrogateescape"))
        return f"{digest.hexdigest()[:32]}.sqsh"

    def list_paths(self) -> bytes:
        """Return the paths of its entries and of the folders around them, each before a NUL."""
        paths = dict.fromkeys(path for one in self.entries for path in (*one.folders, one.path))
        return b"".join(f"./{path}".encode("utf-8", "surrogateescape") + b"\0" for path in paths)


@dataclass(frozen=True)
class PackedFolder:
    """A folder that was packed: `reused` of its shards were whole already."""

    path: Path
    size: int
    files: int
    bytes: int
    shards: int
    reused: int
    seconds: float


def pack_folder(
    source: Path,
    output: Path,
    runner: Runner,
    progress: Progress,
    *,
    compression: str = "zstd",
    shard_size: int = SHARD,
    force: bool = False,
) -> PackedFolder:
    """Pack the folder SOURCE into the squashfs file OUTPUT.

    SHARD_SIZE is in bytes. Raise InputError where SOURCE is no folder, has nothing in it, or cannot
    be read, and where OUTPUT exists (without FORCE) or would lie in SOURCE. Raise BuildError where
    it cannot be packed, StoreError where the disk is full.
    """
    began = time.monotonic()
    _check_paths(source, output, force=force)
    progress(f"looking at {source}")
    shards = list(split_shards(list_entries(source), shard_size))
    total = sum(one.size for one in shards)
    files = sum(entry.is_file for one in shards for entry in one.entries)
    if not shards:
        raise InputError(
            f"{source} is empty",
            "name the folder that holds the data",
            page="mount-a-packed-data-set",
        )
    progress(
        f"packing {format_count(files, 'file')}, {show_bytes(total)}, in "
        f"{format_count(len(shards), 'shard')}"
    )

    parts = output.with_name(f".{output.name}.shards")
    try:
        descriptors.make_folder(parts, 0o700)
        with hold_lease(parts / "lease", waiting=progress):
            _check_paths(source, output, force=force)  # another pack may have made it meanwhile
            made, reused = _pack_shards(source, shards, parts, compression, runner, progress)
            progress.event("phase", name="join")
            with replace_file(output) as part:
                if len(made) > 1:
                    progress("joining the shards")
                    splice_image(made[0], made[1:], part, int(source.stat().st_mtime), always=True)
                else:
                    made[0].rename(part)
            for path in parts.glob("*.sqsh"):
                path.unlink()
        with contextlib.suppress(OSError):  # another pack waits for the lease
            parts.rmdir()
    except OSError as error:
        raise StoreError(
            f"{output.parent} cannot be written: {error.strerror or error}",
            "make room and type the same command again: complete shards are used again; or "
            "-o /scratch/data.sqsh",
            page="mount-a-packed-data-set",
        ) from None
    took = time.monotonic() - began
    return PackedFolder(output, output.stat().st_size, files, total, len(shards), reused, took)


def _check_paths(source: Path, output: Path, *, force: bool) -> None:
    """Raise InputError where SOURCE cannot be packed into OUTPUT."""
    if not source.is_dir():
        what = "is a file" if source.exists() else "does not exist"
        raise InputError(f"{source} {what}", "name a folder", page="mount-a-packed-data-set")
    if output.is_dir():
        raise InputError(
            f"{output} is a folder",
            f"-o {output / source.resolve().name}.sqsh",
            page="mount-a-packed-data-set",
        )
    if output.exists() and not force:
        raise InputError(f"{output} exists", "--force replaces it", page="mount-a-packed-data-set")
    if output.parent.resolve().is_relative_to(source.resolve()):
        raise InputError(
            f"{output} would lie in the folder that is packed",
            f"-o {source.resolve().parent / output.name}",
            page="mount-a-packed-data-set",
        )


def list_entries(source: Path) -> Iterator[FolderEntry]:
    """Yield what is in the folder SOURCE, in order of names. Links are not followed.

    Raise InputError for what cannot be read, with the first five of its paths. Sockets, pipes and
    devices are left out.
    """
    unreadable: list[str] = []
    yield from _list_folder(source, "", unreadable)
    if unreadable:
        shown = ", ".join(sorted(unreadable)[:5])
        raise InputError(
            f"{format_count(len(unreadable), 'file')} cannot be read: {shown}",
            f"chmod -R u+rX {source}, or pack a folder without them",
            page="mount-a-packed-data-set",
        )


def _list_folder(folder: Path, before: str, unreadable: list[str]) -> Iterator[FolderEntry]:
    """Yield the entries of FOLDER, whose path is BEFORE, and of those in it.

    Paths that cannot be read are added to UNREADABLE.
    """
    try:
        with os.scandir(folder) as found:
            names = sorted(found, key=lambda entry: entry.name)
    except PermissionError:
        unreadable.append(before or str(folder))
        return

    for name in names:
        path = f"{before}/{name.name}" if before else name.name
        status = name.stat(follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        about = f"{status.st_mode:o} {status.st_size} {status.st_mtime_ns}"
        if kind == stat.S_IFDIR:
            yield FolderEntry(path, 0, f"{status.st_mode:o}")
            yield from _list_folder(Path(name.path), path, unreadable)
        elif kind == stat.S_IFLNK:
            yield FolderEntry(path, 0, f"{about} {os.readlink(name.path)}")  # noqa: PTH115
        elif kind == stat.S_IFREG:
            if not os.access(name.path, os.R_OK):
                unreadable.append(path)
            yield FolderEntry(path, status.st_size, about, is_file=True)


def split_shards(entries: Iterable[FolderEntry], size: int) -> Iterator[Shard]:
    """Yield ENTRIES in shards of at most SIZE bytes and MOST_FILES entries, in their order."""
    shard = Shard()
    for one in entries:
        is_full = shard.size + one.size > size or len(shard.entries) >= MOST_FILES
        if shard.entries and is_full:
            yield shard
            shard = Shard()
        shard.entries.append(one)
        shard.size += one.size
    if shard.entries:
        yield shard


def _pack_shards(
    source: Path,
    shards: list[Shard],
    parts: Path,
    compression: str,
    runner: Runner,
    progress: Progress,
) -> tuple[list[Path], int]:
    """Pack each of SHARDS into the folder PARTS. Return their files, and how many were there."""
    total = sum(one.size for one in shards)
    done = 0
    reused = 0
    made = []
    for shard in shards:
        path = parts / f"{compression}-{shard.name}"
        made.append(path)
        if path.exists():
            reused += 1
        else:
            with replace_file(path) as part:
                _pack_shard(source, shard, part, compression, runner, progress, done, total)
                read_back(part, runner)
        done += shard.size
        progress.amount(source.name, done, total)
    if reused:
        progress(f"{reused} of {format_count(len(shards), 'shard')} were packed before")
    return made, reused


def _pack_shard(
    source: Path,
    shard: Shard,
    part: Path,
    compression: str,
    runner: Runner,
    progress: Progress,
    before: int,
    total: int,
) -> None:
    """Pack SHARD into PART: tar reads the files, and the packer reads tar.

    BEFORE of TOTAL bytes were packed before. Raise BuildError where the packer fails, or a file has
    changed or gone since it was listed.
    """
    jobs = len(os.sched_getaffinity(0))
    packer_argv = [*OWN_TIMES, *pack_argv(runner.has, compression, part, jobs)]
    log = part.with_name("pack.log")
    with tempfile.NamedTemporaryFile(prefix="hpcstack-pack-") as paths:
        paths.write(shard.list_paths())
        paths.flush()
        tar_argv = [*TAR, f"--directory={source.absolute()}", f"--files-from={paths.name}"]
        # The tar is read to its end before the packer is asked: it fails for what has changed.
        with runner.fed(packer_argv, log) as packer:
            try:
                with runner.read(tar_argv, env={"LC_ALL": "C"}) as tar:
                    read = 0
                    while moved := os.splice(tar.fileno(), packer.descriptor, PIECE):
                        read += moved
                        progress.amount(source.name, before + min(read, shard.size), total)
            except BrokenPipeError:
                pass  # the packer has ended: its own words say why
            finished = packer.finish()
    if finished.status:
        raise BuildError(
            "\n".join(
                [
                    f"the packer failed (exit {finished.status})",
                    *(f"  < {line}" for line in finished.tail),
                ]
            ),
            "is the disk full? What is packed already is used again",
            page="mount-a-packed-data-set",
        )
    log.unlink()
