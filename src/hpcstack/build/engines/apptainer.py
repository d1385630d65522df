"""Apptainer, as an ordinary user: each step by `apptainer exec --writable` in the mounted base.

Steps are layers that are kept (overlay.py), and the image is spliced. A filter lets changes of owner succeed, as under
the engine builtin. Where an overlay cannot be mounted by ordinary users, or Apptainer does not start in one:
`apptainer build` from the imported base, whose squashfs is taken out of the SIF. Defaults taken there: user namespaces
or fakeroot as Apptainer chooses; the site's compression, level 1 for zstd (1.2 GB: 22 s against 112 s with gzip).
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import struct
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.build.engines.base import EPOCH, UNCONFINED, Job, missing, proxies
from hpcstack.build.engines.enclosure import NoEnclosure, give_to_builder, script
from hpcstack.build.engines.lowest import DNS, in_base, resolv_conf
from hpcstack.build.engines.overlay import Layered, Started, namespaces_refused, scratch
from hpcstack.build.engines.seccomp import ARCHITECTURES, program
from hpcstack.core.errors import BuildError, InputError
from hpcstack.core.files import copy_range
from hpcstack.core.process import Completed, Runner
from hpcstack.squashfs.inode import FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

OWN = ("unshare", "mount", "sh")  # what building in layers takes, beside the engine's tools
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


def step_argv(root: Path, job: Job, binds: dict[Path, str], command: list[str]) -> list[str]:
    """COMMAND in the tree ROOT, which it may write: of the host it sees what the site lends, BINDS and the network."""
    argv = ["apptainer", "--quiet", "--build-config", "exec", "--userns", "--writable", "--containall", "--no-home",
            "--cleanenv", "--no-mount", "/etc/hosts,/etc/localtime", "--pwd", "/"]  # fmt: skip
    argv += ["--drop-caps", "CAP_SYS_ADMIN"]  # with it a step mounts what it may only read so that it may write
    argv += ["--bind", f"{job.lent}:/mnt:ro"]
    for source, target in (*binds.items(), (scratch(job), "/tmp"), (scratch(job), "/var/tmp"), *_network(job)):
        argv += ["--bind", f"{source}:{target}"]
    return [*argv, "--env", "HPCSTACK_ONE_ID=yes,HPCSTACK_LAYERS=yes", str(root), *command]


def _network(job: Job) -> list[tuple[Path, str]]:
    """Copies of the machine's /etc/hosts and resolv.conf, where the base has a place for them.

    They are made anew for each start, in a folder that nothing has run with: what a step leaves there, links too, is
    never written through. None is the machine's own file, which root would write to.
    """
    folder = Path(tempfile.mkdtemp(prefix="network-", dir=job.work))
    target, out = resolv_conf(job), []
    for source, place in (("/etc/hosts", "/etc/hosts"), (DNS, target)):
        there = None if place.startswith("/run/") else in_base(job, place)
        if not Path(source).is_file() or not (place.startswith("/run/") or (there and there.kind == FILE)):
            continue
        if re.search(r"[,:\\]", place):  # the base's own words, which Apptainer would take for another bind
            continue
        copy = folder / place.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(Path(source).read_bytes())
        out.append((folder / "run", "/run") if place.startswith("/run/") else (copy, place))
    give_to_builder(folder)
    return out


@contextlib.contextmanager
def started(job: Job, root: Path, binds: dict[Path, str], command: list[str]) -> Iterator[Started]:
    """COMMAND by `apptainer exec`, in the tree ROOT, under the filter."""
    places = [target for target in ("/mnt", *binds.values()) if target.count("/") == 1]
    with tempfile.TemporaryFile() as file:
        file.write(program(platform.machine(), capset=False))
        file.flush()
        file.seek(0)
        filtered = [sys.executable, "-I", script("filtered.py"), str(file.fileno())]
        made = [sys.executable, "-I", script("places.py"), str(root), "--make", *places, "--"]
        home = prepare(job)
        give_to_builder(home)
        argv = [*made, *filtered, *step_argv(root, job, binds, command)]
        yield Started(argv, environment(job, home), (file.fileno(),))


def enclosure_refused(runner: Runner) -> str:
    """Why no build here can run its steps in an enclosure; empty where it may."""
    lacking = missing(OWN, runner) or ("" if platform.machine() in ARCHITECTURES else "no filter for this architecture")
    return lacking or namespaces_refused(runner)


LAYERED = Layered("apptainer", started, left_behind=("mnt",))


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


def without_settings(argv: list[str], env: dict[str, str]) -> list[str]:
    """ARGV without the user's own settings of Apptainer but for those in ENV: binds and variables for containers that
    he runs have no place in an image."""
    his = [name for name in os.environ if name.startswith(("APPTAINER", "SINGULARITY")) and name not in env]
    return ["env", *(f"--unset={name}" for name in sorted(his)), *argv]


def partition(listing: str) -> str:
    """The id of the system partition in what `apptainer sif list` prints."""
    match = PARTITION.search(listing)
    if not match:
        raise ValueError(f"no system partition in: {listing[:400]}")
    return match[1]


def prepare(job: Job) -> Path:
    """A home for the build."""
    home = job.work / "home"
    (home / ".apptainer").mkdir(parents=True, exist_ok=True)
    scratch(job)
    return home


@dataclass(frozen=True)
class ApptainerEngine:
    name: str = "apptainer"
    tools: tuple[str, ...] = ("apptainer", "mksquashfs", "unsquashfs")
    splices: bool = True

    def usable(self, runner: Runner) -> str:
        return missing(self.tools, runner)

    def build(self, job: Job, runner: Runner) -> Completed:
        if re.search(r"[,:]", str(job.work)):
            raise InputError(f"{job.work}: Apptainer splits a path at ',' and ':'", "name another build.tmpdir")
        if not (why := enclosure_refused(runner)):
            try:
                return LAYERED.build(job, runner)
            except NoEnclosure as error:
                why = error.message
        if job.settings.splice == "always" and not job.squash:
            raise BuildError(f"the image cannot be spliced: Apptainer runs no step in a mounted base ({why})",
                             "build.splice: auto in site.yaml packs it")  # fmt: skip
        if job.offline and os.geteuid():
            return Completed(
                ("apptainer", "exec"), 1, (why, "no network can be shut out so: --engine builtin or enroot")
            )
        if not job.settings.unconfined:
            raise BuildError(
                f"Apptainer can run no step in an enclosure here ({why}), and would run them beside you", UNCONFINED
            )
        job.progress(f"UNCONFINED (build.unconfined in site.yaml), and packed anew: {why}")
        return self._build_whole(job, runner)

    def _build_whole(self, job: Job, runner: Runner) -> Completed:
        from hpcstack.render.image import local_definition

        sif = job.work / "image.sif"
        definition = (job.context / "apptainer.def").read_text()
        (job.context / "local.def").write_text(local_definition(definition, str(job.base)))
        env = environment(job, prepare(job))
        argv = without_settings(build_argv(job, sif), env)
        argv = ["unshare", "--user", "--map-current-user", "--net", *argv] if job.offline else argv
        done = runner.logged(argv, job.log, env=env, cwd=job.context, on_line=job.on_line)
        if done.status:
            return done
        listing = runner.output(["apptainer", "sif", "list", str(sif)])
        if listing.status:
            return listing
        return self._extract(sif, partition(listing.stdout), job, runner)

    def run_inside(self, script: str, folder: Path, job: Job, runner: Runner) -> Completed:
        return LAYERED.run_inside(script, folder, job, runner)

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
