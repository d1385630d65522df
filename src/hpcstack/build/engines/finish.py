"""From a base and a build's layers to one image: spliced, where that can be and is wanted, else
packed anew.

Each layer is packed once, as the base is, and kept beside it. What is spliced keeps the base's
compressed bytes.
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
MEMORY = "128M"
ASKED_FOR = "--squash, or build.splice: never in site.yaml"
IMAGE = "the image of all of them"  # in the log, after the steps


class _NotPacked(Exception):
    """mksquashfs failed, and what it left is no layer."""


@dataclass(frozen=True)
class Layers:
    """All of a build: `merged` runs a command where it is one tree, at `place`."""

    merged: Callable[[list[str]], Completed]
    place: Path


class Packing:
    """Layers are packed, each once, while the next step runs.

    `words` are mksquashfs's, as the base is packed.
    """

    def __init__(self, job: Job, runner: Runner) -> None:
        self.job, self.runner = job, runner
        self.worker = ThreadPoolExecutor(1)
        self.jobs: list[Future[Completed]] = []
        self.layers: list[Path] = []
        self.running: Fed | None = None
        self.kind = (0, 0)  # compressor and block size of the base
        self.why = ASKED_FOR if job.squash or job.settings.splice == "never" else ""
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
        """LAYER, an upper folder, is packed beside itself, if it is not yet and something will be
        spliced.
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
        """All is packed. Unreadable where it is not: there is nothing to splice then."""
        for job in self.jobs:
            if (done := job.result()).status:
                raise Unreadable(f"a layer could not be packed: {' '.join(done.tail[-1:])}")

    def close(self) -> None:
        self.worker.shutdown(wait=False, cancel_futures=True)
        if self.running:
            self.running.process.kill()
        self.worker.shutdown()

    def _fits(self, final: Path) -> bool:
        """Whether FINAL is there, packed as the base is."""
        try:
            with Squashfs(final) as layer:
                return (layer.super.compressor, layer.super.block_size) == self.kind
        except (OSError, Unreadable):
            return False

    def _pack(self, layer: Path, final: Path) -> Completed:
        """LAYER, with an overlay's marks, as the squashfs FINAL."""
        argv = [*to_read_all(), *OWN_TIMES, "mksquashfs", str(layer)]
        more = [
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
            with self.runner.fed(
                [*argv, str(part), *more], self.job.work / "pack.log"
            ) as self.running:
                done = self.running.finish()
            if done.status:
                raise _NotPacked
        return done


def to_read_all() -> tuple[str, ...]:
    """Words before a program that reads what a step has closed to everybody.

    Root may: it needs none.
    """
    return AS_ROOT if os.geteuid() else ()


def name_packed(layer: Path) -> Path:
    """Where LAYER is kept as a squashfs."""
    return layer.with_name(f"{layer.name}.sqsh")


def finish_image(job: Job, layers: Layers, packing: Packing) -> BuildResult:
    """Make the image of JOB, spliced or packed as its site says (`build.splice`)."""
    job.clock.begin(IMAGE)
    always = job.settings.splice == "always" and not job.squash
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
        job.progress(f"packing all of it anew: {why}")
    _room(job.output.parent, job)
    job.progress.event("phase", name="pack")
    prepare_output(job)
    argv = squash_argv(str(layers.place), job.output, job.settings.compression)
    require_success(layers.merged(argv))
    return BuildResult(job.output)


def _splice(job: Job, files: list[Path], *, always: bool) -> BuildResult:
    job.progress.event("phase", name="pack")
    output = job.beside or job.output
    _room(output.parent, job)
    job.progress("splicing the steps to the base")
    spliced = splice_image(job.base, files, output, EPOCH, always=always, rooted=True)
    return BuildResult(output, spliced)


def _room(folder: Path, job: Job) -> None:
    """StoreError where what is left of the disk cannot take the image: it is hardly smaller than
    its base.
    """
    free, needed = shutil.disk_usage(folder).free, job.base.stat().st_size
    name = "store" if job.beside and folder == job.beside.parent else "build.tmpdir"
    if free < needed:
        raise StoreError(
            (
                f"{folder} has {show_bytes(free)} free, the image needs about {show_bytes(needed)} "
                f"more"
            ),
            (
                f"make room and build again: what is done is kept; or name another folder: {name} "
                f"in site.yaml"
            ),
        )
