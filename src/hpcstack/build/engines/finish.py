"""From a base and a build's layers to one image: spliced, where that can be and is wanted, else packed anew.

Each layer is packed once, as the base is, and kept beside it. What is spliced keeps the base's compressed bytes.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.build.engines.base import EPOCH, Job, squash_argv
from hpcstack.core.errors import BuildError, StoreError
from hpcstack.core.process import Completed
from hpcstack.core.replacing import replacing
from hpcstack.squashfs.codec import Unreadable, options
from hpcstack.squashfs.read import Image
from hpcstack.squashfs.splice import splice
from hpcstack.store.cache import touch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcstack.core.process import Runner

AS_ROOT = ("unshare", "--user", "--map-root-user")  # to read what a step has closed to everybody
MEMORY = "128M"


class _NotPacked(Exception):
    """mksquashfs failed, and what it left is no layer."""


@dataclass(frozen=True)
class Layers:
    """A build's upper folders, the oldest first; `merged` runs a command where all are one tree, at `place`."""

    folders: list[Path]
    merged: Callable[[list[str]], Completed]
    place: Path


def make_image(job: Job, layers: Layers, runner: Runner) -> Completed:
    """The image of JOB, spliced or packed as its site says (`build.splice`)."""
    wish = "never" if job.squash else job.settings.splice
    if wish != "never":
        try:
            return _splice(job, layers, runner, always=wish == "always")
        except Unreadable as why:
            if wish == "always":
                raise BuildError(
                    f"the image cannot be spliced: {why}", "build.splice: auto in site.yaml packs it"
                ) from None
            job.progress(f"packing all of it anew: {why}")
    _room(job.output.parent, job)
    job.progress("packing")
    job.progress.event("phase", name="pack")
    return layers.merged(squash_argv(str(layers.place), job.output, job.settings.compression))


def _splice(job: Job, layers: Layers, runner: Runner, *, always: bool) -> Completed:
    job.progress.event("phase", name="pack")
    with Image(job.base) as base:
        words = [*options(base.super.compressor, base.options()), "-b", str(base.super.block_size)]
    packed = []
    for layer in layers.folders:
        final = layer.with_name(f"{layer.name}.sqsh")
        packed.append(final)
        if final.exists():
            touch(final)
        elif (done := _pack(layer, final, words, job, runner)).status:
            return done
    output = job.beside or job.output
    _room(output.parent, job)
    job.progress("splicing the steps to the base")
    job.made.append(splice(job.base, packed, output, EPOCH, always=always, rooted=True))
    return Completed(("splice",), 0)


def _pack(layer: Path, final: Path, words: list[str], job: Job, runner: Runner) -> Completed:
    """LAYER, with an overlay's marks, as the squashfs FINAL, packed as the base is."""
    try:
        with replacing(final) as part:
            argv = ["mksquashfs", str(layer), str(part), "-noappend", "-quiet", "-no-progress", "-all-root",
                    "-no-exports", "-mkfs-time", str(EPOCH), "-mem", MEMORY, *words]  # fmt: skip
            done = runner.logged([*AS_ROOT, *argv], job.log)
            if done.status:
                raise _NotPacked
    except _NotPacked:
        pass
    return done


def _room(folder: Path, job: Job) -> None:
    """StoreError where what is left of the disk cannot take the image: it is hardly smaller than its base."""
    free, needed = shutil.disk_usage(folder).free, job.base.stat().st_size
    if free < needed:
        raise StoreError(
            f"{folder} has {free / 1e9:.1f} GB free, the image needs about {needed / 1e9:.1f} GB more",
            "make room and build again: what is done is kept; or name another folder: build.tmpdir in site.yaml",
        )
