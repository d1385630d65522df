"""The base of a build as the lowest of its layers: mounted for as long as the build runs, and never unpacked.

One process holds a user and a mount namespace in which squashfuse serves the base; each step enters it. So what one
step has read of the base the next one finds in memory. Where the base cannot be mounted it is unpacked, and kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.build.engines.base import EPOCH, Job
from hpcstack.core import data
from hpcstack.core.files import remove_tree
from hpcstack.core.lease import label, sweep
from hpcstack.core.replacing import replacing
from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.inode import DIR
from hpcstack.squashfs.read import Squashfs
from hpcstack.squashfs.splice import all_root, splice
from hpcstack.store.cache import touch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.core.process import Completed, Fed, Runner
    from hpcstack.squashfs.inode import Inode

UNSHARE = ("unshare", "--user", "--map-root-user", "--mount", "--propagation", "private")
# What serves the mount ends with its shell, and all of it if we are killed.
HELD = ("setpriv", "--pdeathsig", "KILL", *UNSHARE, "--pid", "--fork", "--kill-child")
ENTER = ("nsenter", "--preserve-credentials", "--user", "--mount", "--target")
OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private")
READY_S = 60
DNS = "/etc/resolv.conf"
BUNDLED = "*/bin/squashfuse_ll"  # below libexec


@dataclass(frozen=True)
class Lowest:
    """`layer` is what an overlay calls the base, seen from the cache; `enter` begins the argv of what mounts one."""

    layer: str
    enter: tuple[str, ...]
    failed: Completed | None = None


def base_folder(job: Job) -> Path:
    """Where the base of JOB lies unpacked, if it does; its name is part of every step's key."""
    return job.cache / ("base-" + hashlib.sha256(job.base.name.encode()).hexdigest()[:16])


def work_folder(job: Job, name: str) -> Path:
    """The folder NAME of JOB's own."""
    folder = job.work / name
    folder.mkdir(exist_ok=True)
    return folder


def script(name: str) -> str:
    """The path of images/NAME."""
    return str(data.folder("images") / name)


@contextlib.contextmanager
def lowest(job: Job, runner: Runner) -> Iterator[Lowest]:
    """The base of JOB, mounted or unpacked; or what failed."""
    job.cache.mkdir(parents=True, exist_ok=True)
    sweep(job.cache, ".", _remove)
    kept = base_folder(job)
    if kept.is_dir():
        touch(kept)
        yield Lowest(kept.name, UNSHARE)
        return
    why = cannot_mount(runner)
    with contextlib.ExitStack() as stack:
        if not why:
            try:
                yield stack.enter_context(_mounted(job, runner))
                return
            except _NotMounted as error:
                why = str(error)
    job.progress(f"unpacking the base: it cannot be mounted here ({why})")
    failed = _unpack(job, kept, runner)
    yield Lowest(kept.name, UNSHARE, failed)


def _remove(path: Path) -> None:
    """PATH, which somebody who was killed has left: a layer, or a file that was being packed."""
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


class _NotMounted(Exception):
    """The base is not mounted; the message says why."""


def squashfuses(runner: Runner) -> list[str]:
    """What may mount a squashfs here, the best first. Apptainer may bring one of its own, which is in no PATH."""
    own = [Path(found).resolve().parents[1] / "libexec" for name in ("apptainer", "singularity")
           if (found := shutil.which(name))]  # fmt: skip
    bundled = [str(path) for place in (*own, Path("/usr/libexec")) for path in place.glob(BUNDLED)]
    installed = [name for name in ("squashfuse_ll", "squashfuse") if runner.has(name)]
    many, one = (["squashfuse_ll"], installed[1:]) if "squashfuse_ll" in installed else ([], installed)
    return list(dict.fromkeys((*many, *bundled, *one)))


def cannot_mount(runner: Runner) -> str:
    """Why no base can be mounted here; empty where one can."""
    if not squashfuses(runner):
        return "squashfuse is not installed"
    lacking = [tool for tool in ("setpriv", "nsenter") if not runner.has(tool)]
    return f"{lacking[0]} is not installed" if lacking else ""


@contextlib.contextmanager
def _mounted(job: Job, runner: Runner) -> Iterator[Lowest]:
    where, ready, log = work_folder(job, "base"), job.work / "mounted", job.work / "mount.log"
    try:
        base = _to_mount(job)
    except Unreadable as error:
        raise _NotMounted(str(error)) from None
    if re.search(r"[:,\\]", str(where)):
        raise _NotMounted(f"an overlay takes ':' and ',' for its own: {where}")
    log.unlink(missing_ok=True)
    ready.unlink(missing_ok=True)
    with runner.fed(
        [*HELD, "sh", script("mount.sh"), str(base), str(where), str(ready), *squashfuses(runner)], log, wait=False
    ) as held:
        _wait(held, ready)
        yield Lowest(str(where), (*ENTER, str(held.process.pid), *OWN_MOUNTS))


def _wait(held: Fed, ready: Path) -> None:
    """_NotMounted unless HELD makes READY."""
    until = time.monotonic() + READY_S
    while not ready.exists():
        if held.process.poll() is not None or time.monotonic() > until:
            held.process.kill()
            said = [line for line in held.finish().tail if not line.startswith("> ")]
            raise _NotMounted(said[0] if said else "no word why")
        time.sleep(0.005)


def _to_mount(job: Job) -> Path:
    """The base of JOB as a file that is all root's: a copy of it, where it is not (of a bundle of long ago, say)."""
    if all_root(job.base):
        return job.base
    copy = job.cache / f"{base_folder(job).name}.sqsh"
    if not copy.exists():
        with replacing(copy) as part:
            splice(job.base, [], part, EPOCH, rooted=True)
    touch(copy)
    return copy


def _unpack(job: Job, kept: Path, runner: Runner) -> Completed | None:
    part = job.cache / f".{label()}{kept.name}"
    argv = ["unsquashfs", "-quiet", "-no-progress", "-no-xattrs", "-dest", str(part), str(job.base)]
    done = runner.logged(argv, job.log)
    if done.status:
        remove_tree(part)
        return done
    _own(part)
    put_in_place(part, kept, runner)
    return None


def in_base(job: Job, path: str) -> Inode | None:
    """What PATH, without links on its way, is in the base of JOB; None where it has no such thing."""
    try:
        with Squashfs(job.base) as image:
            return image.find(path.encode())
    except Unreadable:
        return None


def resolv_conf(job: Job) -> str:
    """Where the base of JOB has its resolv.conf; where there is a link in its place, at what that points to."""
    found = in_base(job, DNS)
    if not found or not found.target:
        return DNS
    place = os.path.normpath(os.path.join("/etc", os.fsdecode(found.target)))  # noqa: PTH118
    return place.removeprefix("/var") if place.startswith("/var/run/") else place


def _own(root: Path) -> None:
    """Every file below ROOT the builder's own, as an ordinary user has it: root would keep owners without an id here.

    Modes are said again, as a change of owner takes set-user-id away.
    """
    if os.geteuid():
        return
    for path in (root, *root.rglob("*")):
        info = path.lstat()
        if info.st_uid or info.st_gid:
            os.lchown(path, 0, 0)
            if not stat.S_ISLNK(info.st_mode):
                path.chmod(stat.S_IMODE(info.st_mode))


def put_in_place(part: Path, final: Path, runner: Runner) -> None:
    """PART under its final name, on disk as it is; another builder may have been faster with the same."""
    runner.output(["sync", "--file-system", str(part)], timeout=600)
    try:
        part.rename(final)
    except PermissionError:  # a folder that its owner may not write (`chmod 555 /`) moves to no other one
        done = runner.output(["unshare", "--user", "--map-root-user", "mv", "-T", str(part), str(final)], timeout=600)
        if done.status and not final.is_dir():
            raise
        remove_tree(part)
    except OSError:
        if not final.is_dir():
            raise
        remove_tree(part)


def give_modes(job: Job, layers: list[str], upper: Path) -> None:
    """The folders of UPPER, which lies over LAYERS, newest first, get the modes that they have there, or 755: what the
    cache around it hands on (set-group-id, an ACL, the umask) is none of the image's."""
    places = ["", *(str(path.relative_to(upper)) for path in upper.rglob("*") if path.is_dir())]
    with contextlib.ExitStack() as opened:
        image = None
        with contextlib.suppress(Unreadable):
            image = opened.enter_context(Squashfs(job.base))
        for place in sorted(places, reverse=True):
            path = upper / place
            with contextlib.suppress(OSError):
                os.removexattr(path, "system.posix_acl_default")
            path.chmod(_mode_below(job, layers, place, image))


def _mode_below(job: Job, layers: list[str], place: str, image: Squashfs | None) -> int:
    for layer in layers[:-1]:  # the last one is the base, which is mounted elsewhere
        path = job.cache / layer / place
        if path.is_dir() and not path.is_symlink():
            return stat.S_IMODE(path.stat().st_mode)
    found = None
    with contextlib.suppress(Unreadable):
        found = image.find(place.encode()) if image else None
    return found.mode & 0o7777 if found and found.kind == DIR else 0o755
