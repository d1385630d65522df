"""Enroot: steps run in hpcstack's enclosure, as with other engines, and the image is spliced.

Where no enclosure can be made, and site.yaml allows it (`build.unconfined`), Enroot does it all:
the rendered enroot.sh creates a container of the imported base, runs all steps in it, and exports
it. It works in folders of the build's own, with Enroot's own mounts, but without Enroot's hooks,
which would write the builder's name and home into the image.

Tested in tests/integration/test_engines.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.build.engines.base import (
    EPOCH,
    NO_NETWORK,
    UNCONFINED,
    BuildResult,
    Job,
    explain_missing,
    list_proxies,
    require_success,
)
from hpcstack.build.engines.enclosure import NoEnclosure, supervise_command
from hpcstack.build.engines.machine import explain_refused_enclosure
from hpcstack.build.engines.overlay import Layered
from hpcstack.core.errors import BuildError
from hpcstack.core.namespaces import explain_no_namespaces

if TYPE_CHECKING:
    from hpcstack.core.process import Completed, Runner

# mksquashfs's options for each value of build.compression.
OPTIONS = {
    "zstd": "-comp zstd -Xcompression-level 1",
    "gzip": "-comp gzip",
    "xz": "-comp xz",
    "lz4": "-comp lz4",
}


def make_enroot_environment(job: Job) -> dict[str, str]:
    """Return Enroot's variables for JOB, with its folders in the build's own, and make those."""
    own = job.work / "enroot"
    folders = {
        f"ENROOT_{name.upper()}_PATH": str(own / name)
        for name in ("data", "cache", "runtime", "temp", "config")
    }
    compression = OPTIONS[job.settings.compression]

    for folder in folders.values():
        Path(folder).mkdir(parents=True, exist_ok=True)
    return {
        **list_proxies(job.settings),
        **folders,
        "HPCSTACK_BASE": str(job.base),
        "HPCSTACK_LENT": str(job.lent),
        "HPCSTACK_ONE_ID": "yes",
        "NVIDIA_VISIBLE_DEVICES": "void",
        "ENROOT_SQUASH_OPTIONS": f"{compression} -mkfs-time {EPOCH} -no-xattrs",
    }


LAYERED = Layered("enroot")


@dataclass(frozen=True)
class EnrootEngine:
    """Builds by layers; without an enclosure, by Enroot itself."""

    name: str = "enroot"
    tools: tuple[str, ...] = ("enroot", "setpriv", "unshare", "mksquashfs", "unsquashfs")
    definition: str = "enroot.sh"
    splices: bool = True

    def usable(self, runner: Runner) -> str:
        missing = explain_missing(self.tools, runner)
        if missing:
            return missing
        if os.geteuid():
            return explain_no_namespaces("enroot*")
        return ""

    def build(self, job: Job, runner: Runner) -> BuildResult:
        why = explain_refused_enclosure(runner)
        if not why:
            try:
                return LAYERED.build(job, runner)
            except NoEnclosure as error:
                why = error.message

        if not job.settings.unconfined:
            raise BuildError(
                f"Enroot can run no step in an enclosure here ({why}), and would run them with "
                "your rights",
                UNCONFINED,
                page="allow-user-namespaces",
            )

        job.progress(f"UNCONFINED (build.unconfined in site.yaml), and packed anew: {why}")
        argv = ["bash", self.definition, str(job.output)]
        if job.options.offline:
            argv = [*NO_NETWORK, *argv]

        done = runner.logged(
            supervise_command(argv),
            job.log,
            env=make_enroot_environment(job),
            cwd=job.context,
            on_line=job.on_line,
        )
        require_success(done)
        return BuildResult(job.output, unconfined=why)

    def run_inside(self, script: str, folder: Path, job: Job, runner: Runner) -> Completed:
        return LAYERED.run_inside(script, folder, job, runner)


ENGINE = EnrootEngine()
