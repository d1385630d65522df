"""Make one image of a base and a build's layers.

It is spliced where that is possible and wanted: it then keeps the base's compressed bytes, and the
layers' are added. Each layer is packed for that once, with the base's compressor and block size,
and the squashfs is kept beside it. Else the whole image is packed anew.

Tested in tests/unit/build/test_engines.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.build.engines.base import EPOCH, BuildResult, Job, require_success, squash_argv
from hpcstack.build.engines.enclosure import prepare_output
from hpcstack.core.errors import BuildError, StoreError
from hpcstack.core.replacing import replace_file
from hpcstack.core.sizes import show_bytes
from hpcstack.oci.pack import OWN_TIMES
from hpcstack.squashfs.codec import Unreadable, list_codec_options
from hpcstack.squashfs.read import Squashfs
from hpcstack.squashfs.splice import splice_image
from hpcstack.store.cache import mark_used

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcstack.core.process import Completed, Fed, Runner

AS_ROOT = ("unshare", "--user", "--map-root-user")
MEMORY = "128M"  # of mksquashfs for a layer: it runs beside the next step
ASKED_FOR = "--squash, or build.splice: never in site.yaml"
IMAGE = "the image of all of them"  # its line in the log, after those of the steps


class _NotPacked(Exception):
    """mksquashfs has failed: the file that it left is not to be kept."""


@dataclass(frozen=True)
class Layers:
    """The result of all steps: `merged` runs a command where it is one tree, at `place`."""

    merged: Callable[[list[str]], Completed]
    place: Path


class Packing:
    """Pack each layer once, while the next step runs.

    `words` are the options by which mksquashfs packs as the base was packed. `why` says why nothing
    will be spliced, so that no layer need be packed; it is empty otherwise.
    """

    def __init__(self, job: Job, runner: Runner) -> None:
        self.job = job
        self.runner = runner
        self.worker = ThreadPoolExecutor(1)
        self.jobs: list[Future[Completed]] = []
        self.layers: list[Path] = []
        self.running: Fed | None = None
        self.kind = (0, 0)  # compressor and block size of the base
        self.why = ""
        if job.options.squash or job.settings.splice == "never":
            self.why = ASKED_FOR

        try:
            with Squashfs(job.base) as base:
                self.kind = base.super.compressor, base.super.block_size
                self.words = [
                    *list_codec_options(base.super.compressor, base.options()),
                    "-b",
                    str(base.super.block_size),
                ]
        except Unreadable as error:
            self.why = self.why or str(error)

    def add(self, layer: Path) -> None:
        """Begin to pack LAYER, the upper folder of a step, into a squashfs beside it.

        Nothing is done if an earlier build has packed it, or if nothing will be spliced.
        """
        if self.why:
            return

        final = name_packed(layer)
        self.layers.append(final)
        if self._fits(final):
            mark_used(final)
        else:
            self.jobs.append(self.worker.submit(self._pack, layer, final))

    def finish(self) -> None:
        """Wait until all layers are packed. Raise Unreadable where one could not be."""
        for job in self.jobs:
            done = job.result()
            if done.status:
                raise Unreadable(f"a layer could not be packed: {' '.join(done.tail[-1:])}")

    def close(self) -> None:
        """Stop packing, also in the middle of a layer."""
        self.worker.shutdown(wait=False, cancel_futures=True)
        if self.running:
            self.running.process.kill()
        self.worker.shutdown()

    def _fits(self, final: Path) -> bool:
        """Return whether FINAL exists and is packed as the base is."""
        try:
            with Squashfs(final) as layer:
                return (layer.super.compressor, layer.super.block_size) == self.kind
        except (OSError, Unreadable):
            return False

    def _pack(self, layer: Path, final: Path) -> Completed:
        """Pack LAYER into the squashfs FINAL.

        Its extended attributes are packed, unlike an image's: the overlay's own marks are among
        them.
        """
        program = [*to_read_all(), *OWN_TIMES, "mksquashfs", str(layer)]
        options = [
            "-noappend",
            "-quiet",
            "-no-progress",
            "-all-root",
            "-no-exports",
            "-xattrs",
            "-mkfs-time",
            str(EPOCH),
            "-mem",
            MEMORY,
            *self.words,
        ]

        with contextlib.suppress(_NotPacked), replace_file(final) as part:
            argv = [*program, str(part), *options]
            with self.runner.fed(argv, self.job.work / "pack.log") as self.running:
                done = self.running.finish()
            if done.status:
                raise _NotPacked
        return done


def to_read_all() -> tuple[str, ...]:
    """Return the words before a program that must read files a step has closed to everybody.

    An ordinary user has that right as root of a user namespace. Root has it anyway.
    """
    if os.geteuid():
        return AS_ROOT
    return ()


def name_packed(layer: Path) -> Path:
    """Return where the squashfs of LAYER is kept."""
    return layer.with_name(f"{layer.name}.sqsh")


def finish_image(job: Job, layers: Layers, packing: Packing) -> BuildResult:
    """Make the image of JOB, spliced or packed as its site says (`build.splice`).

    Raise BuildError where it cannot be spliced and the site wants it spliced always. Raise
    StoreError where the disk has no room for it.
    """
    job.clock.begin(IMAGE)
    always = job.settings.splice == "always" and not job.options.squash
    try:
        if packing.why:
            raise Unreadable(packing.why)
        packing.finish()
        return _splice(job, packing.layers, always=always)
    except Unreadable as why:
        if always:
            raise BuildError(
                f"the image cannot be spliced: {why}", "build.splice: auto in site.yaml packs it"
            ) from None
        job.progress(f"packing the whole image anew: {why}")

    _check_room(job.output.parent, job)
    job.progress.event("phase", name="pack")
    prepare_output(job)
    argv = squash_argv(str(layers.place), job.output, job.settings.compression)
    require_success(layers.merged(argv))
    return BuildResult(job.output)


def _splice(job: Job, files: list[Path], *, always: bool) -> BuildResult:
    """Splice FILES, the packed layers, to the base of JOB.

    Raise Unreadable where that cannot be done, or, unless ALWAYS, would waste too many bytes.
    """
    job.progress.event("phase", name="pack")
    output = job.beside or job.output
    _check_room(output.parent, job)
    job.progress("splicing the steps to the base")
    spliced = splice_image(job.base, files, output, EPOCH, always=always, rooted=True)
    return BuildResult(output, spliced)


def _check_room(folder: Path, job: Job) -> None:
    """Raise StoreError where FOLDER has less free space than the base of JOB takes.

    An image is hardly smaller than its base.
    """
    free = shutil.disk_usage(folder).free
    needed = job.base.stat().st_size
    if free >= needed:
        return

    name = "build.tmpdir"
    if job.beside and folder == job.beside.parent:
        name = "store"
    raise StoreError(
        f"{folder} has {show_bytes(free)} free, the image needs about {show_bytes(needed)} more",
        f"make room and build again: what is done is kept; or name another folder: {name} in "
        "site.yaml",
        page="free-disk-space",
    )
