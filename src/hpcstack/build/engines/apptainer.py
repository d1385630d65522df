"""Apptainer, as an ordinary user: `apptainer build` from the imported base; the squashfs is taken out of the SIF.

Defaults taken: user namespaces or fakeroot as Apptainer chooses; the site's compression, level 1 for zstd (1.2 GB:
22 s against 112 s with the default gzip).
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from hpcstack.build.engines.base import EPOCH, Job, missing, proxies
from hpcstack.core.files import copy_range
from hpcstack.core.process import Completed, Runner
from hpcstack.render.steps import HOME

LEVEL = {"zstd": "-comp zstd -Xcompression-level 1", "gzip": "-comp gzip", "xz": "-comp xz", "lz4": "-comp lz4"}
OFFSET, SIZE = re.compile(r"Offset:\s*(\d+)"), re.compile(r"Size:\s*(\d+)")
PARTITION = re.compile(r"^(\d+)\s*\|.*\|FS \(Squashfs/\*System/", re.MULTILINE)


def build_argv(job: Job, sif: Path) -> list[str]:
    """The build's argv. What the site lends is bound at /mnt, for the time of the build."""
    return [
        "apptainer", "build", "--force",
        "--bind", f"{job.lent}:/mnt", "--bind", f"{job.work}/scratch:/tmp", "--bind", f"{job.work}/scratch:/var/tmp",
        *(["--ignore-subuid"] if job.offline else []),  # newuidmap does not work in the namespace without a network
        "--mksquashfs-args", f"-no-xattrs {LEVEL[job.settings.compression]}",
        str(sif), "local.def",
    ]  # fmt: skip


def inside_argv(script: str, folder: Path, job: Job) -> list[str]:
    """A container of its own: no home, no variables of the host, /tmp on the build's disk, the base read-only."""
    return [
        "apptainer", "--quiet", "exec", "--containall", "--no-home", "--cleanenv",
        "--workdir", str(job.work / "scratch"),
        "--bind", f"{folder}:{HOME}", "--bind", f"{job.lent}:/mnt", "--pwd", "/",
        str(job.base), "/bin/bash", f"{HOME}/{script}",
    ]  # fmt: skip


def environment(job: Job, home: Path) -> dict[str, str]:
    """Where Apptainer works, in a home of the build's own: the user's settings do not reach into an image."""
    return {
        **proxies(job.settings),
        "HOME": str(home),
        "APPTAINER_TMPDIR": str(job.work),
        "APPTAINER_CACHEDIR": job.settings.cachedir
        or os.environ.get("APPTAINER_CACHEDIR")
        or str(Path.home() / ".apptainer/cache"),
        "APPTAINER_CONFIGDIR": str(home / ".apptainer"),
    }


def partition(listing: str) -> str:
    """The id of the system partition in what `apptainer sif list` prints."""
    match = PARTITION.search(listing)
    if not match:
        raise ValueError(f"no system partition in: {listing[:400]}")
    return match[1]


def prepare(job: Job) -> Path:
    """A home for the build."""
    home = job.work / "home"
    (home / ".apptainer").mkdir(parents=True)
    (job.work / "scratch").mkdir()
    (job.work / "scratch").chmod(0o1777)
    return home


@dataclass(frozen=True)
class ApptainerEngine:
    name: str = "apptainer"
    tools: tuple[str, ...] = ("apptainer", "mksquashfs", "unsquashfs")
    splices: bool = False

    def usable(self, runner: Runner) -> str:
        return missing(self.tools, runner)

    def build(self, job: Job, runner: Runner) -> Completed:
        from hpcstack.render.image import local_definition

        sif = job.work / "image.sif"
        definition = (job.context / "apptainer.def").read_text()
        (job.context / "local.def").write_text(local_definition(definition, str(job.base)))
        env = environment(job, prepare(job))
        argv = build_argv(job, sif)
        argv = ["unshare", "--user", "--map-current-user", "--net", *argv] if job.offline else argv
        done = runner.logged(argv, job.log, env=env, cwd=job.context, on_line=job.on_line)
        if done.status:
            return done
        listing = runner.output(["apptainer", "sif", "list", str(sif)])
        if listing.status:
            return listing
        return self._extract(sif, partition(listing.stdout), job, runner)

    def run_inside(self, script: str, folder: Path, job: Job, runner: Runner) -> Completed:
        home = prepare(job)
        argv, env = inside_argv(script, folder, job), environment(job, home)
        return runner.logged(argv, job.log, env=env, cwd=folder, on_line=job.on_line)

    def _extract(self, sif: Path, number: str, job: Job, runner: Runner) -> Completed:
        """The partition's bytes into job.output, as they are."""
        info = runner.output(["apptainer", "sif", "info", number, str(sif)])
        text = info.stdout
        offset, size = OFFSET.search(text), SIZE.search(text)
        if info.status or not offset or not size:
            return Completed(info.argv, info.status or 1, info.tail)
        copy_range(sif, job.output, int(offset[1]), int(size[1]))
        with job.output.open("r+b") as file:  # the superblock's time; Apptainer spoils mksquashfs' -mkfs-time
            file.seek(8)
            file.write(struct.pack("<I", EPOCH))
        sif.unlink()
        return info


ENGINE = ApptainerEngine()
