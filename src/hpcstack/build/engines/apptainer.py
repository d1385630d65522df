"""Apptainer: steps run in hpcstack's enclosure, as with other engines, and the image is spliced.

Where no enclosure can be made, and site.yaml allows it (`build.unconfined`), Apptainer does it all:
`apptainer build` starts from the imported base, and the squashfs is taken out of the SIF. Apptainer
chooses between user namespaces and fakeroot. It packs with the site's compression, zstd at level 1
(1.2 GB: 22 s, against 112 s with gzip).

Tested in tests/integration/test_engines.py.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from hpcstack.build.engines.base import (
    EPOCH,
    NO_NETWORK,
    UNCONFINED,
    BuildResult,
    Job,
    ProgramFailed,
    explain_missing,
    list_proxies,
    require_success,
)
from hpcstack.build.engines.container import make_scratch
from hpcstack.build.engines.enclosure import NoEnclosure, supervise_command
from hpcstack.build.engines.machine import explain_refused_enclosure
from hpcstack.build.engines.overlay import Layered
from hpcstack.core.errors import BuildError, InputError
from hpcstack.core.process import Completed, Runner
from hpcstack.store.sif import extract_squashfs

# mksquashfs's options for each value of build.compression.
LEVEL = {
    "zstd": "-comp zstd -Xcompression-level 1",
    "gzip": "-comp gzip",
    "xz": "-comp xz",
    "lz4": "-comp lz4",
}


def build_argv(job: Job, sif: Path) -> list[str]:
    """Return the argv of `apptainer build`, which writes the image of JOB to SIF.

    What the site lends is bound at /mnt for the time of the build.
    """
    ids = []
    if job.options.offline:
        ids = ["--ignore-subuid"]  # newuidmap does not work in the namespace without a network

    return [
        "apptainer",
        "build",
        "--force",
        "--bind",
        f"{job.lent}:/mnt",
        "--bind",
        f"{job.work}/scratch:/tmp",
        "--bind",
        f"{job.work}/scratch:/var/tmp",
        *ids,
        "--mksquashfs-args",
        f"-no-xattrs {LEVEL[job.settings.compression]}",
        str(sif),
        "local.def",
    ]


LAYERED = Layered("apptainer")


def make_apptainer_environment(job: Job, home: Path) -> dict[str, str]:
    """Return Apptainer's variables for JOB, with HOME of the build's own.

    So the user's settings do not get into an image. Only the cache is the site's or the user's.
    """
    cache = (
        job.settings.cachedir
        or os.environ.get("APPTAINER_CACHEDIR")
        or str(Path.home() / ".apptainer/cache")
    )
    return {
        **list_proxies(job.settings),
        "HOME": str(home),
        "APPTAINER_TMPDIR": str(job.work),
        "APPTAINER_CACHEDIR": cache,
        "APPTAINER_CONFIGDIR": str(home / ".apptainer"),
    }


def without_settings(argv: list[str], env: dict[str, str]) -> list[str]:
    """Return ARGV without the user's own variables for Apptainer, except for those in ENV.

    They are meant for containers that the user runs: their binds and variables have no place in an
    image.
    """
    own = [
        name
        for name in os.environ
        if name.startswith(("APPTAINER", "SINGULARITY")) and name not in env
    ]
    return ["env", *(f"--unset={name}" for name in sorted(own)), *argv]


def prepare_home(job: Job) -> Path:
    """Make the home and the scratch folder for an `apptainer build`, and return the home."""
    home = job.work / "home"
    (home / ".apptainer").mkdir(parents=True, exist_ok=True)
    make_scratch(job)
    return home


@dataclass(frozen=True)
class ApptainerEngine:
    """Builds by layers; without an enclosure, by Apptainer itself."""

    name: str = "apptainer"
    tools: tuple[str, ...] = ("apptainer", "mksquashfs", "unsquashfs")
    definition: str = "apptainer.def"
    splices: bool = True

    def usable(self, runner: Runner) -> str:
        return explain_missing(self.tools, runner)

    def build(self, job: Job, runner: Runner) -> BuildResult:
        if re.search(r"[,:]", str(job.work)):
            raise InputError(
                f"{job.work}: Apptainer splits a path at ',' and ':'", "name another build.tmpdir"
            )

        why = explain_refused_enclosure(runner)
        if not why:
            try:
                return LAYERED.build(job, runner)
            except NoEnclosure as error:
                why = error.message

        # From here on Apptainer would run the steps itself.
        if job.settings.splice == "always" and not job.options.squash:
            raise BuildError(
                f"the image cannot be spliced: Apptainer runs no step in a mounted base ({why})",
                "build.splice: auto in site.yaml packs it",
            )
        if job.options.offline and os.geteuid():
            reason = (
                why,
                "Apptainer cannot shut the network out here: use --engine builtin or enroot",
            )
            raise ProgramFailed(Completed(("apptainer", "exec"), 1, reason))
        if not job.settings.unconfined:
            raise BuildError(
                f"Apptainer can run no step in an enclosure here ({why}), and would run them with "
                "your rights",
                UNCONFINED,
                page="allow-user-namespaces",
            )

        job.progress(f"UNCONFINED (build.unconfined in site.yaml), and packed anew: {why}")
        self._build_whole(job, runner)
        return BuildResult(job.output, unconfined=why)

    def _build_whole(self, job: Job, runner: Runner) -> None:
        """Build with `apptainer build`, which runs all steps itself, and take out the squashfs."""
        from hpcstack.render.image import render_local_definition

        sif = job.work / "image.sif"
        definition = (job.context / self.definition).read_text()
        (job.context / "local.def").write_text(render_local_definition(definition, str(job.base)))

        env = make_apptainer_environment(job, prepare_home(job))
        argv = without_settings(build_argv(job, sif), env)
        if job.options.offline:
            argv = [*NO_NETWORK, *argv]
        done = runner.logged(
            supervise_command(argv), job.log, env=env, cwd=job.context, on_line=job.on_line
        )
        require_success(done)

        extract_squashfs(sif, job.output, runner)
        with job.output.open("r+b") as file:
            # `apptainer build` overrides mksquashfs's -mkfs-time, so the superblock's time is set
            # here.
            file.seek(8)
            file.write(struct.pack("<I", EPOCH))
        sif.unlink()

    def run_inside(self, script: str, folder: Path, job: Job, runner: Runner) -> Completed:
        return LAYERED.run_inside(script, folder, job, runner)


ENGINE = ApptainerEngine()
