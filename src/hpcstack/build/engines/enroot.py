"""Enroot: each step as its remapped root, which lets changes of owner succeed, over the mounted base.

Steps are layers that are kept (overlay.py). Where the kernel lets ordinary users mount no overlay, the rendered
enroot.sh creates a container of the imported base, runs all steps in it, and exports it. Defaults taken: folders of
the build's own, Enroot's own mounts, none of its hooks (they write the builder's name and home into the image).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.build.engines.base import EPOCH, UNCONFINED, Job, missing, proxies
from hpcstack.build.engines.enclosure import NoEnclosure, give_to_builder
from hpcstack.build.engines.overlay import Layered, Started, namespaces_refused, scratch
from hpcstack.core.errors import BuildError, InputError
from hpcstack.core.namespaces import no_namespaces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.core.process import Completed, Runner

OPTIONS = {"zstd": "-comp zstd -Xcompression-level 1", "gzip": "-comp gzip", "xz": "-comp xz", "lz4": "-comp lz4"}
SYSTEM = ("/etc/enroot", "/usr/local/etc/enroot")
# Enroot finds a container by its name below its data folder: the mounted tree is bound there.
NAMED = 'mount --rbind "$1" "$2" && shift 2 && exec "$@"'
RC = 'exec "$@"\n'


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
        "HPCSTACK_ONE_ID": "yes",
        "NVIDIA_VISIBLE_DEVICES": "void",
        "ENROOT_SQUASH_OPTIONS": f"{OPTIONS[job.settings.compression]} -mkfs-time {EPOCH} -no-xattrs",
    }


def system_without_hooks(job: Job) -> Path:
    """Enroot's system folder for one build: its settings and mounts, no hook."""
    own = job.work / "enroot/system"
    if not own.is_dir():
        (own / "hooks.d").mkdir(parents=True)
        named = os.environ.get("ENROOT_SYSCONF_PATH")
        top = next((Path(place) for place in ((named,) if named else SYSTEM) if place and Path(place).is_dir()), None)
        for path in top.iterdir() if top else ():
            if path.name == "mounts.d":
                shutil.copytree(path, own / path.name)
            elif path.name == "enroot.conf":
                shutil.copyfile(path, own / path.name)
    return own


@contextlib.contextmanager
def started(job: Job, root: Path, binds: dict[Path, str], command: list[str]) -> Iterator[Started]:
    """COMMAND by `enroot start`, in the tree ROOT."""
    if re.search(r"[\s:]", str(job.work)):
        raise InputError(f"{job.work}: Enroot splits a path at blanks and ':'", "name another build.tmpdir")
    env = {**environment(job), "ENROOT_SYSCONF_PATH": str(system_without_hooks(job)), "HPCSTACK_LAYERS": "yes"}
    place = Path(env["ENROOT_DATA_PATH"]) / "build"
    place.mkdir(exist_ok=True)
    rc = job.work / "enroot/rc"
    rc.write_text(RC)
    mounts = [f"{source}:{target}:none:x-create=dir,bind,rw" for source, target in binds.items()]
    mounts.append(f"{job.lent}:/mnt:none:bind,ro")
    mounts += [f"{scratch(job)}:{target}:none:bind,rw" for target in ("/tmp", "/var/tmp")]
    argv = ["enroot", "start", "--root", "--rw", "--rc", str(rc), "--env", "NVIDIA_VISIBLE_DEVICES",
            "--env", "HPCSTACK_ONE_ID", "--env", "HPCSTACK_LAYERS",
            *(word for mount in mounts for word in ("--mount", mount)),
            "build", *command]  # fmt: skip
    give_to_builder(job.work / "enroot")
    yield Started(["sh", "-c", NAMED, "sh", str(root), str(place), *argv], env)


LAYERED = Layered("enroot", started, left_behind=(".lock", "etc/machine-id"))


@dataclass(frozen=True)
class EnrootEngine:
    name: str = "enroot"
    tools: tuple[str, ...] = ("enroot", "setpriv", "unshare", "mksquashfs", "unsquashfs")
    splices: bool = True

    def usable(self, runner: Runner) -> str:
        return missing(self.tools, runner) or (no_namespaces("enroot*") if os.geteuid() else "")

    def build(self, job: Job, runner: Runner) -> Completed:
        if not (why := namespaces_refused(runner)):
            try:
                return LAYERED.build(job, runner)
            except NoEnclosure as error:
                why = error.message
        if not job.settings.unconfined:
            raise BuildError(
                f"Enroot can run no step in an enclosure here ({why}), and would run them beside you", UNCONFINED
            )
        job.progress(f"UNCONFINED (build.unconfined in site.yaml), and packed anew: {why}")
        argv = ["bash", "enroot.sh", str(job.output)]
        argv = ["unshare", "--user", "--map-current-user", "--net", *argv] if job.offline else argv
        return runner.logged(argv, job.log, env=environment(job), cwd=job.context, on_line=job.on_line)

    def run_inside(self, script: str, folder: Path, job: Job, runner: Runner) -> Completed:
        return LAYERED.run_inside(script, folder, job, runner)


ENGINE = EnrootEngine()
