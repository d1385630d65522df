"""Import: an image from anywhere becomes one squashfs. Layers stream, newest first, merged, into a
packer.

No unpacked copy lies on disk; fetching, checking, uncompressing, merging and packing go on at once.
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
from hpcstack.oci.decompress import Ahead
from hpcstack.oci.download import check_free_space, explain_system_errors
from hpcstack.oci.flatten import (
    WHITEOUT,
    ClimbsOut,
    NeedsTwoPasses,
    Newest,
    TreeEntry,
    entry_of,
    plan_layers,
)
from hpcstack.oci.headers import END, make_header
from hpcstack.oci.manifest import Image
from hpcstack.oci.metadata import Added, list_files_below
from hpcstack.oci.pack import OWN_TIMES, ROOTLESS, PackedAs, pack_argv, read_back
from hpcstack.oci.resume import BLOBS, taking_over
from hpcstack.oci.tar import BLOCK, Damaged, Flow, Members

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.process import Fed, Runner
    from hpcstack.oci.sources import LayerSource

VERSION = "3"  # of what import adds to an image; it is part of the name under which a base is kept
REFUSED = "do not use this image: no tool makes such a layer by accident"
TOO_LARGE = (-signal.SIGXFSZ, 128 + signal.SIGXFSZ)
GATHERED, PADDING = 1 << 18, bytes(BLOCK)
# NVIDIA's images keep a libcuda in compat/lib.real, and some have a link `lib` to it where their
# search path leads. On a node their scripts take the link away where the driver is newer. In an
# image that nobody can write to they cannot, and under Apptainer the older library wins over the
# node's: CUDA's error 803 on every node.
COMPAT_LINK, COMPAT_LIBRARIES = re.compile(r"usr/local/cuda(-[0-9.]+)?/compat/lib"), "lib.real"
Body = Iterable[bytes | memoryview]
AddedTo = Callable[[Image], Added]


@dataclass(frozen=True)
class Tar:
    """One layer: its members, in order; each body is read, or not, before the next member is asked
    for.
    """

    digest: str
    members: Iterable[tuple[tarfile.TarInfo, Body]]


@dataclass(frozen=True)
class Imported:
    """One image as a squashfs at `path`, `size` bytes; the digest is that of its platform's
    manifest.
    """

    path: Path
    size: int
    image: Image
    seconds: float
    passes: int


class Sink:
    """The packer's input.

    Small writes are gathered. ROOT: whether the packer takes the root as a member.
    """

    def __init__(self, descriptor: int, root: bool = True) -> None:
        self.descriptor, self.root, self.gathered = descriptor, root, bytearray()
        self.links: list[tuple[str, str]] = []

    def member(self, member: tarfile.TarInfo, path: str, body: Body) -> None:
        if not path and not self.root:
            return
        self.gathered += make_header(member, path)
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
        """A folder that no layer names: a packer would give it the time of day, and the root any
        mode.
        """
        made = tarfile.TarInfo(path)
        made.type, made.mode = tarfile.DIRTYPE, 0o755
        self.member(made, path, ())

    def link(self, path: str, target: str) -> None:
        """PATH as another name of TARGET, at the end: every file is there then."""
        self.links.append((path, target))

    def end(self) -> None:
        for path, target in self.links:
            self._small(make_header(tarfile.TarInfo(path), path, target))
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
) -> Imported:
    """SOURCE's image into OUTPUT, which is there only when it is whole and on disk. Folders beside
    WORK, named after it, take layers and the log; those of earlier runs are gone on with.

    ROOTED: every file is root's, as it is in what is built on a base: an overlay over a mounted
    image can copy no file whose owner a build's namespace does not know. MOST: bytes that it may
    become, 0 for no bound.
    """
    began = time.monotonic()
    descriptors.make_folder(output.parent)
    check_free_space(
        output.parent,
        source.image.size * (2 if source.spooled else 1),
        f"the import of {provenance}",
    )
    try:
        with taking_over(work) as own:
            size, passes = _pack_in(
                own, source, output, compression, runner, progress, add, bounds, rooted, most
            )
    finally:
        source.close()
    return Imported(output, size, source.image, time.monotonic() - began, passes)


def _pack_in(
    work: Path,
    source: LayerSource,
    output: Path,
    compression: str,
    runner: Runner,
    progress: Progress,
    add: AddedTo,
    bounds: Bounds,
    rooted: bool,
    most: int,
) -> tuple[int, int]:
    """SOURCE's image into OUTPUT, with WORK for layers and the log: its bytes, and how often the
    layers were read.
    """
    found = source.image
    sizes = {layer.digest: layer.size for layer in found.layers}
    done = dict.fromkeys(sizes, 0)

    def on_bytes(digest: str, count: int) -> None:
        done[digest] += count
        progress.amount(digest[7:19], min(done[digest], sizes[digest]), sizes[digest])

    def tars() -> Generator[Tar, None, None]:
        return _tars(
            source, add(found), list_files_below(found), progress, Tally(bounds), rooted=rooted
        )

    passes, how = 1, PackedAs(compression, most)
    with explain_system_errors(str(output)), replace_file(output) as part:
        progress.event("phase", name="fetch")
        source.start(work / BLOBS, on_bytes)
        if why := _first_pass(part, work, how, runner, tars, progress):
            progress(f"the layers must be read twice: {why}")
            passes = 2
            with contextlib.closing(tars()) as first:
                entries = [_entries(tar) for tar in first]
            with contextlib.closing(tars()) as second:
                _packed(
                    part, work, how, runner, lambda sink: by_plan(sink, second, entries), progress
                )
        read_back(part, runner)
        progress.event("phase", name="rename")
        size = part.stat().st_size
    return size, passes


def _first_pass(
    part: Path,
    work: Path,
    how: PackedAs,
    runner: Runner,
    tars: Callable[[], Generator[Tar, None, None]],
    progress: Progress,
) -> str:
    """Why one pass was not enough; empty where it was. What read ahead for it has ended then."""
    with contextlib.closing(tars()) as layers:
        try:
            _packed(part, work, how, runner, lambda sink: one_pass(sink, layers), progress)
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
    """All layers, newest first; the next one is uncompressed ahead while one is read."""
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
    members = Members(Flow(iter(pieces)))
    for member in members:
        count.member(member)
        if rooted and (member.uid or member.gid):
            member.uid = member.gid = 0
            member.block = b""
        if _hides_drivers(member):
            yield (
                tarfile.TarInfo(posixpath.join(posixpath.dirname(member.name), f"{WHITEOUT}lib")),
                (),
            )
        else:
            yield member, members.body(member)


def _hides_drivers(member: tarfile.TarInfo) -> bool:
    """Whether MEMBER is the link by which NVIDIA's libcuda comes before a node's. As a whiteout it
    is not in the image, and nothing of the layers below is seen in its place.
    """
    if not member.issym() or posixpath.basename(member.linkname.rstrip("/")) != COMPAT_LIBRARIES:
        return False
    return COMPAT_LINK.fullmatch(posixpath.normpath(member.name.lstrip("/"))) is not None


def _entries(tar: Tar) -> list[TreeEntry]:
    with blame_layer(tar):
        return [entry_of(member) for member, _ in tar.members]


@contextlib.contextmanager
def blame_layer(tar: Tar) -> Iterator[None]:
    """What is wrong with a layer is told with its name."""
    try:
        yield
    except ClimbsOut as error:
        raise InputError(f"layer {tar.digest} {error}", REFUSED) from None
    except TooLarge as error:
        raise InputError(
            f"layer {tar.digest} {error}", "is this the image that you meant?"
        ) from None
    except Damaged as error:
        raise RegistryError(
            f"layer {tar.digest} {error}", "fetch it again, or push the image again"
        ) from None


def tars_of(above: Added, pieces: Iterable[bytes]) -> Iterator[Tar]:
    """One tree that comes as one tar, with ABOVE over it."""
    yield Tar("", [(member, [data]) for member, data in above])
    ahead = Ahead(iter(pieces))
    try:
        yield Tar("", _members(ahead, Tally(STANDARD)))
    finally:
        ahead.close()


def pack_tars(
    tars: Iterable[Tar], output: Path, work: Path, compression: str, runner: Runner
) -> None:
    """TARS, newest first, as the squashfs OUTPUT."""
    _packed(
        output, work, PackedAs(compression), runner, lambda sink: one_pass(sink, tars), Progress()
    )


def _packed(
    part: Path,
    work: Path,
    how: PackedAs,
    runner: Runner,
    feed: Callable[[Sink], None],
    progress: Progress,
) -> None:
    """PART made by the packer from what FEED gives it, and synced."""
    jobs = len(os.sched_getaffinity(0))
    part.unlink(missing_ok=True)
    argv = pack_argv(runner.has, how.compression, part, jobs)
    rootless = argv[0] in ROOTLESS
    argv = [*how.bounded(runner.has), *OWN_TIMES, *argv]
    (work / "pack.log").unlink(missing_ok=True)  # of an earlier run
    with runner.fed(argv, work / "pack.log") as packer, written_out(part):
        try:
            sink = Sink(packer.descriptor, not rootless)
            feed(sink)
            sink.end()
            progress.event("phase", name="sync")
        except BrokenPipeError:
            raise _refused(packer, part) from None
        done = packer.finish()
        if done.status:
            raise _refused(packer, part)


def _refused(packer: Fed, part: Path) -> HpcstackError:
    done = packer.finish()
    if done.status in TOO_LARGE:
        return BuildError(
            "the image becomes far larger than its registry says",
            "is this the image that you meant?",
        )
    check_free_space(part.parent, 0, "the image")  # the likeliest reason, said as what it is
    if any(
        "I/O error" in line or "No space left" in line or "quota" in line for line in done.tail
    ):  # what it wrote is removed by now
        said = (
            f"the image could not be written below {part.parent}: no space was left, or the disk "
            f"is damaged"
        )
        return StoreError(said, "make room, or name another folder, and import again")
    return BuildError(
        "\n".join(
            [
                f"the packer failed\n  > {done.command()}  (exit {done.status})",
                *(f"  < {x}" for x in done.tail),
            ]
        )
    )


def one_pass(sink: Sink, tars: Iterable[Tar]) -> None:
    """TARS, newest first, into SINK. NeedsTwoPasses where that is not enough."""
    newest = Newest()
    for tar in tars:
        newest.layer()
        with blame_layer(tar):
            for member, body in tar.members:
                entry = entry_of(member)
                if newest.takes(entry):
                    sink.member(member, entry.path, body)
    for path in newest.implied():
        sink.folder(path)
    for path, target in newest.links:
        sink.link(path, target)


def by_plan(sink: Sink, tars: Iterable[Tar], entries: Sequence[Sequence[TreeEntry]]) -> None:
    """TARS, newest first, into SINK, as a plan made of all their ENTRIES says."""
    try:
        names, implied = plan_layers(entries[::-1])
    except (ClimbsOut, TooLarge) as error:
        raise InputError(f"the image {error}", REFUSED) from None
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
