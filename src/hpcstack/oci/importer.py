"""Import an image from anywhere as one squashfs.

Its layers are merged while they stream into a packer, newest first. Nothing is unpacked to disk:
fetching, checking, uncompressing, merging and packing all go on at the same time.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import signal
import tarfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core import descriptors
from hpcstack.core.bounds import STANDARD, Bounds, Tally, TooLarge
from hpcstack.core.errors import BuildError, HpcstackError, InputError, RegistryError, StoreError
from hpcstack.core.progress import Progress
from hpcstack.core.replacing import replace_file, written_out
from hpcstack.core.sharing import ALONE, Sharing
from hpcstack.oci.decompress import Ahead
from hpcstack.oci.download import check_free_space, explain_system_errors
from hpcstack.oci.flatten import (
    WHITEOUT,
    ClimbsOut,
    NeedsTwoPasses,
    Newest,
    TreeEntry,
    make_entry,
    plan_layers,
)
from hpcstack.oci.headers import END, make_header
from hpcstack.oci.manifest import Image
from hpcstack.oci.metadata import Added, list_files_below
from hpcstack.oci.pack import OWN_TIMES, ROOTLESS, PackedAs, pack_argv, read_back
from hpcstack.oci.resume import BLOBS, taking_over
from hpcstack.oci.tar import BLOCK, Damaged, Flow, Members
from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.shards import WIDE, Shards, join_shards

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.process import Fed, Runner
    from hpcstack.oci.sources import LayerSource

# The version of what import adds to an image. It is part of the name under which a base is kept, so
# a new one makes bases be imported anew.
VERSION = "3"
REFUSED = "do not use this image: no tool makes such a layer by accident"
# Exit statuses of a packer that wrote past the limit set by `prlimit --fsize`: the signal itself,
# or as a shell reports it.
TOO_LARGE = (-signal.SIGXFSZ, 128 + signal.SIGXFSZ)
GATHERED = 1 << 18  # bytes; smaller writes to the packer are collected up to this
PADDING = bytes(BLOCK)
# NVIDIA's images keep a libcuda in compat/lib.real, and some have a link `lib` to it in their
# library search path. At a container's start, their scripts remove the link if the node's driver is
# newer. In a read-only image they cannot, and under Apptainer the older library then wins over the
# node's: CUDA error 803 on every node. So import leaves the link out.
COMPAT_LINK = re.compile(r"usr/local/cuda(-[0-9.]+)?/compat/lib")
COMPAT_LIBRARIES = "lib.real"
Body = Iterable[bytes | memoryview]
AddedTo = Callable[[Image], Added]


@dataclass(frozen=True)
class Tar:
    """One layer as its members, in order.

    A member's body can be read only until the next member is asked for, and may be skipped.
    """

    digest: str
    members: Iterable[tuple[tarfile.TarInfo, Body]]


@dataclass(frozen=True)
class Imported:
    """One image as a squashfs of `size` bytes at `path`.

    It took `seconds`, and `passes` over its layers: one or two.
    """

    path: Path
    size: int
    image: Image
    seconds: float
    passes: int


class Sink:
    """A tar archive written to the packer's standard input, DESCRIPTOR.

    Small writes are collected into larger ones. ROOT says whether the packer accepts the root
    folder as a member; if not, it is left out.
    """

    def __init__(self, descriptor: int, root: bool = True) -> None:
        self.descriptor, self.root = descriptor, root
        self.gathered = bytearray()
        self.links: list[tuple[str, str]] = []
        self.shards = Shards()

    def member(self, member: tarfile.TarInfo, path: str, body: Body) -> None:
        """Write MEMBER with its BODY under the name PATH; the empty path is the root."""
        if not path and not self.root:
            return
        placed = self.shards.place(path, is_folder=member.isdir())
        self.gathered += make_header(member, placed)
        size = 0
        for piece in body:
            size += len(piece)
            if len(piece) < GATHERED >> 2:
                self.gathered += piece
                if len(self.gathered) >= GATHERED:
                    self._flush()
            else:
                self._flush()
                self._write(piece)
        if size % BLOCK:
            self.gathered += PADDING[size % BLOCK :]
        if len(self.gathered) >= GATHERED:
            self._flush()

    def folder(self, path: str) -> None:
        """Write a folder that no layer names, with mode 755 and the time 0.

        Left to itself, a packer would give it the time of day, and the root an arbitrary mode.
        """
        made = tarfile.TarInfo(path)
        made.type, made.mode = tarfile.DIRTYPE, 0o755
        self.member(made, path, ())

    def link(self, path: str, target: str) -> None:
        """Remember PATH as a hard link to TARGET.

        Links are written at the end, when every file is there.
        """
        self.links.append((path, target))

    def end(self) -> None:
        """Write the hard links and the end of the archive."""
        for path, target in self.links:
            placed = self.shards.place(path, is_folder=False)
            there = self.shards.find(target)
            self._small(make_header(tarfile.TarInfo(path), placed, there))
        self._small(END)
        self._flush()

    def _small(self, data: bytes | memoryview) -> None:
        self.gathered += data
        if len(self.gathered) >= GATHERED:
            self._flush()

    def _flush(self) -> None:
        if self.gathered:
            self._write(self.gathered)
            self.gathered = bytearray()

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.descriptor, rest) :]


def pack_image(
    source: LayerSource,
    output: Path,
    work: Path,
    compression: str,
    runner: Runner,
    progress: Progress,
    add: AddedTo,
    provenance: str,
    bounds: Bounds = STANDARD,
    *,
    rooted: bool = False,
    most: int = 0,
    sharing: Sharing = ALONE,
) -> Imported:
    """Import SOURCE's image as the squashfs OUTPUT.

    OUTPUT appears only when it is whole and on disk. A folder beside WORK, and named after it,
    takes layers and the packer's log; what interrupted runs fetched is reused. ADD makes the files
    that are put over the image. With ROOTED, every file belongs to root, as it will in what is
    built on a base: an overlay over a mounted image cannot copy a file whose owner the build's user
    namespace does not know. MOST is the largest size in bytes that OUTPUT may reach, 0 for no
    limit. The group of SHARING may write OUTPUT, too.

    SOURCE is closed. Raise StoreError if the disk is too small, InputError or RegistryError for a
    bad layer, BuildError if the packer fails.
    """
    began = time.monotonic()
    descriptors.make_folder(output.parent)
    # The squashfs is about as large as the layers; those from a network may lie on disk beside it.
    needed = source.image.size
    if source.spooled:
        needed *= 2
    check_free_space(output.parent, needed, f"the import of {provenance}")

    try:
        with (
            taking_over(work) as own,
            explain_system_errors(str(output)),
            replace_file(output, sharing) as part,
        ):
            how = PackedAs(compression, most)
            passes = _pack_into(
                part, own, source, how, runner, progress, add, bounds, rooted=rooted
            )
            size = part.stat().st_size
    finally:
        source.close()
    return Imported(output, size, source.image, time.monotonic() - began, passes)


def _pack_into(
    part: Path,
    work: Path,
    source: LayerSource,
    how: PackedAs,
    runner: Runner,
    progress: Progress,
    add: AddedTo,
    bounds: Bounds,
    *,
    rooted: bool,
) -> int:
    """Pack SOURCE's image into PART, with WORK for layers and the log.

    Return how often the layers were read.
    """
    found = source.image
    sizes = {layer.digest: layer.size for layer in found.layers}
    done = dict.fromkeys(sizes, 0)

    def on_bytes(digest: str, count: int) -> None:
        done[digest] += count
        short = digest[7:19]  # without `sha256:`
        # A second pass counts its bytes again: never show more than the layer has.
        progress.amount(short, min(done[digest], sizes[digest]), sizes[digest])

    def tars() -> Generator[Tar, None, None]:
        return _tars(
            source, add(found), list_files_below(found), progress, Tally(bounds), rooted=rooted
        )

    passes = 1
    progress.event("phase", name="fetch")
    source.start(work / BLOBS, on_bytes)

    why = _try_one_pass(part, work, how, runner, tars, progress)
    if why:
        progress(f"the layers must be read twice: {why}")
        passes = 2
        with contextlib.closing(tars()) as first:
            entries = [_entries(tar) for tar in first]
        with contextlib.closing(tars()) as second:
            _run_packer(
                part, work, how, runner, lambda sink: pack_by_plan(sink, second, entries), progress
            )

    read_back(part, runner)
    progress.event("phase", name="rename")
    return passes


def _try_one_pass(
    part: Path,
    work: Path,
    how: PackedAs,
    runner: Runner,
    tars: Callable[[], Generator[Tar, None, None]],
    progress: Progress,
) -> str:
    """Pack the layers in one pass. Return why that was not possible; empty if it was.

    In either case, the threads that read ahead have ended on return.
    """
    with contextlib.closing(tars()) as layers:
        try:
            _run_packer(part, work, how, runner, lambda sink: one_pass(sink, layers), progress)
        except NeedsTwoPasses as why:
            return str(why)
    return ""


def _tars(
    source: LayerSource,
    above: Added,
    below: Added,
    progress: Progress,
    count: Tally,
    *,
    rooted: bool,
) -> Generator[Tar, None, None]:
    """Yield all layers, newest first, with the files ABOVE before and those BELOW after them.

    While one layer is read, the next one is already being uncompressed. COUNT bounds what all
    members together may be.
    """
    yield Tar("", [(member, [data]) for member, data in above])
    layers = source.image.layers[::-1]
    waiting: list[Ahead] = []
    try:
        for number, layer in enumerate(layers):
            following = layers[number : number + 2]
            while len(waiting) < len(following):
                waiting.append(Ahead(source.tar(following[len(waiting)])))
            progress.event("layer", digest=layer.digest, size=layer.size)
            yield Tar(layer.digest, _members(waiting[0], count, rooted=rooted))
            waiting.pop(0).close()
    finally:
        for ahead in waiting:
            ahead.close()
    yield Tar("", [(member, [data]) for member, data in below])


def _members(
    pieces: Iterable[bytes], count: Tally, *, rooted: bool = False
) -> Iterator[tuple[tarfile.TarInfo, Body]]:
    """Yield the members of the tar in PIECES with their bodies.

    The link that would hide a node's driver is replaced by a whiteout: so it is not in the image,
    and nothing from the layers below appears in its place.
    """
    members = Members(Flow(iter(pieces)))
    for member in members:
        count.member(member)
        if rooted and (member.uid or member.gid):
            member.uid = member.gid = 0
            member.block = b""  # the original header names the original owner
        if _is_compat_link(member):
            folder = posixpath.dirname(member.name)
            yield tarfile.TarInfo(posixpath.join(folder, f"{WHITEOUT}lib")), ()
        else:
            yield member, members.body(member)


def _is_compat_link(member: tarfile.TarInfo) -> bool:
    """Return whether MEMBER is the link that puts NVIDIA's libcuda before a node's own."""
    if not member.issym() or posixpath.basename(member.linkname.rstrip("/")) != COMPAT_LIBRARIES:
        return False
    return COMPAT_LINK.fullmatch(posixpath.normpath(member.name.lstrip("/"))) is not None


def _entries(tar: Tar) -> list[TreeEntry]:
    """Return the headers of TAR's members; their bodies are passed over."""
    with blame_layer(tar):
        return [make_entry(member) for member, _ in tar.members]


@contextlib.contextmanager
def blame_layer(tar: Tar) -> Iterator[None]:
    """Turn what is wrong inside a layer into an error that names the layer."""
    try:
        yield
    except ClimbsOut as error:
        raise InputError(
            f"layer {tar.digest} {error}", REFUSED, page="import-a-base-image"
        ) from None
    except TooLarge as error:
        raise InputError(
            f"layer {tar.digest} {error}",
            "is this the image that you meant?",
            page="import-a-base-image",
        ) from None
    except Damaged as error:
        raise RegistryError(
            f"layer {tar.digest} {error}", "fetch it again, or push the image again"
        ) from None


def read_tars(above: Added, pieces: Iterable[bytes]) -> Iterator[Tar]:
    """Yield the files ABOVE, and then the tar in PIECES, which is a whole tree."""
    yield Tar("", [(member, [data]) for member, data in above])
    ahead = Ahead(iter(pieces))
    try:
        yield Tar("", _members(ahead, Tally(STANDARD)))
    finally:
        ahead.close()


def pack_tars(
    tars: Iterable[Tar], output: Path, work: Path, compression: str, runner: Runner
) -> None:
    """Pack TARS, newest first, into the squashfs OUTPUT."""
    _run_packer(
        output, work, PackedAs(compression), runner, lambda sink: one_pass(sink, tars), Progress()
    )


def _run_packer(
    part: Path,
    work: Path,
    how: PackedAs,
    runner: Runner,
    feed: Callable[[Sink], None],
    progress: Progress,
) -> None:
    """Run the packer on what FEED writes to it, so that PART is a squashfs, and synced to disk."""
    jobs = len(os.sched_getaffinity(0))
    part.unlink(missing_ok=True)
    argv = pack_argv(runner.has, how.compression, part, jobs)
    rootless = argv[0] in ROOTLESS
    argv = [*how.bounded(runner.has), *OWN_TIMES, *argv]

    log = work / "pack.log"
    log.unlink(missing_ok=True)  # of an earlier run
    with runner.fed(argv, log) as packer, written_out(part):
        try:
            sink = Sink(packer.descriptor, not rootless)
            feed(sink)
            sink.end()
            progress.event("phase", name="sync")
        except BrokenPipeError:
            raise _explain_failure(packer, part) from None
        done = packer.finish()
        if done.status:
            raise _explain_failure(packer, part)
    if sink.shards.wide:
        try:
            join_shards(part, sink.shards.wide)
        except Unreadable as error:
            raise BuildError(
                f"the folders of more than {WIDE} names cannot be packed: {error}",
                "is this the image that you meant?",
                page="import-a-base-image",
            ) from None


def _explain_failure(packer: Fed, part: Path) -> HpcstackError:
    """Return the error for a PACKER that failed. Raise StoreError if the disk of PART is full."""
    done = packer.finish()
    if done.status in TOO_LARGE:
        return BuildError(
            "the image becomes far larger than its registry says",
            "is this the image that you meant?",
            page="import-a-base-image",
        )

    check_free_space(part.parent, 0, "the image")  # the most likely reason
    # The packer may have removed its output by now, and so have freed the space that was missing.
    signs = ("I/O error", "No space left", "quota")
    if any(sign in line for line in done.tail for sign in signs):
        return StoreError(
            f"the image could not be written below {part.parent}: no space was left, or the disk "
            "is damaged",
            "make room, or name another folder, and import again",
            page="free-disk-space",
        )

    lines = [f"the packer failed\n  > {done.command()}  (exit {done.status})"]
    lines += [f"  < {line}" for line in done.tail]
    return BuildError("\n".join(lines))


def one_pass(sink: Sink, tars: Iterable[Tar]) -> None:
    """Write TARS, newest first, to SINK as one merged tree.

    Raise NeedsTwoPasses if that cannot be decided layer by layer (`oci/flatten.py`).
    """
    newest = Newest()
    for tar in tars:
        newest.layer()
        with blame_layer(tar):
            for member, body in tar.members:
                entry = make_entry(member)
                if newest.takes(entry):
                    sink.member(member, entry.path, body)
    for path in newest.implied():
        sink.folder(path)
    for path, target in newest.links:
        sink.link(path, target)


def pack_by_plan(sink: Sink, tars: Iterable[Tar], entries: Sequence[Sequence[TreeEntry]]) -> None:
    """Write TARS, newest first, to SINK, by a plan made from the ENTRIES of all of them."""
    try:
        names, implied = plan_layers(entries[::-1])  # the plan counts layers from the oldest
    except (ClimbsOut, TooLarge) as error:
        raise InputError(f"the image {error}", REFUSED, page="import-a-base-image") from None

    for path in implied:
        sink.folder(path)
    for number, tar in enumerate(tars):
        layer = len(entries) - 1 - number
        with blame_layer(tar):
            for place, (member, body) in enumerate(tar.members):
                paths = names.get((layer, place))
                if paths is not None:
                    sink.member(member, paths[0], body)
                    for other in paths[1:]:
                        sink.link(other, paths[0])
