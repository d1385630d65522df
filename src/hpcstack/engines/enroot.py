"""Enroot: the rendered enroot.sh, which creates a container of the imported base, runs the steps and exports it.

Defaults taken: Enroot's remapped root, which lets changes of owner succeed; folders of the build's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcstack.engines.base import EPOCH, Job, missing, proxies
from hpcstack.process import Completed, Runner

OPTIONS = {"zstd": "-comp zstd -Xcompression-level 1", "gzip": "-comp gzip", "xz": "-comp xz", "lz4": "-comp lz4"}


def environment(job: Job) -> dict[str, str]:
    """Enroot's folders below the build's own, and how it packs."""
    own = job.work / "enroot"
    folders = {
        f"ENROOT_{name.upper()}_PATH": str(own / name) for name in ("data", "cache", "runtime", "temp", "config")
    }
    for folder in folders.values():
        Path(folder).mkdir(parents=True, exist_ok=True)
    return {
        **proxies(job.settings),
        **folders,
        "HPCSTACK_BASE": str(job.base),
        "HPCSTACK_LENT": str(job.lent),
        "ENROOT_SQUASH_OPTIONS": f"{OPTIONS[job.settings.compression]} -mkfs-time {EPOCH} -no-xattrs",
    }


INSIDE = """\
set -euo pipefail
enroot create --name settle "$1"
printf 'exec "$@"\\n' >"$2/rc"
NVIDIA_VISIBLE_DEVICES=void HPCSTACK_ONE_ID=yes enroot start --root --rw --rc "$2/rc" \\
    --mount "$3:/opt/hpcstack:none:x-create=dir,bind,rw" --mount "$HPCSTACK_LENT:/mnt" \\
    --env NVIDIA_VISIBLE_DEVICES --env HPCSTACK_ONE_ID settle /bin/bash /opt/hpcstack/build/settle.sh
"""


@dataclass(frozen=True)
class Enroot:
    name: str = "enroot"
    tools: tuple[str, ...] = ("enroot", "mksquashfs", "unsquashfs")

    def usable(self, runner: Runner) -> str:
        return missing(self.tools, runner)

    def build(self, job: Job, runner: Runner) -> Completed:
        argv = ["bash", "enroot.sh", str(job.output)]
        argv = ["unshare", "--user", "--map-current-user", "--net", *argv] if job.offline else argv
        return runner.logged(argv, job.log, env=environment(job), cwd=job.context, on_line=job.on_line)

    def run_inside(self, folder: Path, job: Job, runner: Runner) -> Completed:
        argv = ["bash", "-c", INSIDE, "bash", str(job.base), str(job.work), str(folder)]
        return runner.logged(argv, job.log, env=environment(job), cwd=folder, on_line=job.on_line)


ENGINE = Enroot()
