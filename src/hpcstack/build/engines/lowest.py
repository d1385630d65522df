"""The base of a build as the lowest of its layers: mounted for as long as the build runs, and never
unpacked.

squashfuse serves the base in the build's enclosure, which each step enters. So what one step has
read of the base the next one finds in memory. Where the base cannot be mounted it is unpacked, and
kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.build.engines.base import EPOCH, Job
from hpcstack.build.engines.enclosure import (
    Enclosure,
    EnclosureEnded,
    builders_id,
    bundled_squashfuses,
    find_script,
    make_cache,
    open_enclosure,
    work_folder,
)
from hpcstack.core import descriptors
from hpcstack.core.errors import BuildError
from hpcstack.core.files import remove_tree
from hpcstack.core.lease import make_label, remove_leftovers
from hpcstack.core.replacing import replace_file
from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.inode import DIR
from hpcstack.squashfs.read import Squashfs
from hpcstack.squashfs.splice import all_root, splice_image
from hpcstack.store.cache import mark_used

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.squashfs.inode import Inode

DNS = "/etc/resolv.conf"


@dataclass(frozen=True)
class Lowest:
    """`layer` is what an overlay calls the base, seen from the cache; `enclosure` is where one is
    mounted.
    """

    layer: str
    enclosure: Enclosure


def base_folder(job: Job) -> Path:
    """Where the base of JOB lies unpacked, if it does; its name is part of every step's key."""
    return job.layers / ("base-" + hashlib.sha256(job.base.name.encode()).hexdigest()[:16])


@contextlib.contextmanager
def open_lowest(job: Job, runner: Runner) -> Iterator[Lowest]:
    """The base of JOB, mounted or unpacked, in an enclosure. BuildError where it is neither."""
    make_cache(job.layers)
    remove_leftovers(job.layers, ".", remove_tree)
    kept = base_folder(job)
    why = ""
    if not kept.is_dir():
        why = cannot_mount(runner)
        if not why:
            with contextlib.ExitStack() as stack:
                try:
                    mounted = stack.enter_context(_mounted(job, runner))
                except (EnclosureEnded, _NotMounted) as error:
                    why = error.message
                else:
                    yield mounted
                    return
        job.progress(f"unpacking the base: it cannot be mounted here ({why})")
        unpack_base(job, kept, runner)
    mark_used(kept)
    with open_enclosure(job, runner) as enclosure:
        yield Lowest(kept.name, enclosure)


class _NotMounted(BuildError):
    """The base is not mounted; the message says why."""


def find_squashfuses(runner: Runner) -> list[str]:
    """What may mount a squashfs here, the best first.

    Apptainer may bring one of its own, which is in no PATH.
    """
    bundled = bundled_squashfuses()
    installed = [name for name in ("squashfuse_ll", "squashfuse") if runner.has(name)]
    many, one = (
        (["squashfuse_ll"], installed[1:]) if "squashfuse_ll" in installed else ([], installed)
    )
    return list(dict.fromkeys((*many, *bundled, *one)))


def cannot_mount(runner: Runner) -> str:
    """Why no base can be mounted here; empty where one can."""
    return "" if find_squashfuses(runner) else "squashfuse is not installed"


@contextlib.contextmanager
def _mounted(job: Job, runner: Runner) -> Iterator[Lowest]:
    where = work_folder(job, "base")
    try:
        base = _to_mount(job)
    except Unreadable as error:
        raise _NotMounted(str(error)) from None
    if re.search(r"[:,\\]", str(where)):
        raise _NotMounted(f"an overlay takes ':' and ',' for its own: {where}")
    command = ("sh", find_script("mount.sh"), str(base), str(where), *find_squashfuses(runner))
    with open_enclosure(job, runner, command) as enclosure:
        yield Lowest(str(where), enclosure)


def _to_mount(job: Job) -> Path:
    """The base of JOB as a file that is all root's: a copy of it, where it is not (of a bundle of
    long ago, say).
    """
    if all_root(job.base):
        return job.base
    copy = job.layers / f"{base_folder(job).name}.sqsh"
    if not copy.exists():
        with replace_file(copy) as part:
            splice_image(job.base, [], part, EPOCH, rooted=True)
    mark_used(copy)
    return copy


@contextlib.contextmanager
def open_unpacked(job: Job, runner: Runner) -> Iterator[tuple[Path, Enclosure]]:
    """A copy of the base of JOB that steps may write, and an enclosure that shows it."""
    make_cache(job.layers)
    tree = job.work / "tree"
    unpack_base(job, tree, runner)
    with open_enclosure(job, runner) as enclosure:
        yield tree, enclosure


def unpack_base(job: Job, kept: Path, runner: Runner) -> None:
    """The base of JOB as the folder KEPT, all of it the builder's own.

    BuildError where that cannot be done.
    """
    part = kept.with_name(f".{make_label()}{kept.name}")
    argv = ["unsquashfs", "-quiet", "-no-progress", "-no-xattrs", "-dest", str(part), str(job.base)]
    done = runner.logged(argv, job.log)
    if done.status:
        remove_tree(part)
        said = done.tail[-1] if done.tail else f"exit {done.status}"
        raise BuildError(
            f"the base could not be unpacked: {said}", "is there room? build.cachedir in site.yaml"
        )
    _own(part)
    put_base_in_place(part, kept, runner)


def in_base(job: Job, path: str) -> Inode | None:
    """What PATH, without links on its way, is in the base of JOB; None where it has no such thing."""
    try:
        with Squashfs(job.base) as image:
            return image.find(path.encode())
    except Unreadable:
        return None


def resolv_conf(job: Job) -> str:
    """Where the base of JOB has its resolv.conf; where there is a link in its place, at what that
    points to.
    """
    found = in_base(job, DNS)
    if not found or not found.target:
        return DNS
    place = os.path.normpath(os.path.join("/etc", os.fsdecode(found.target)))  # noqa: PTH118
    if place.startswith(("/proc/", "/sys/", "/dev/")):
        raise BuildError(
            f"the base's {DNS} leads to {place}: what a build puts there would come out elsewhere",
            "do not use this image: no tool makes such a link by accident",
        )
    return place.removeprefix("/var") if place.startswith("/var/run/") else place


def _own(root: Path) -> None:
    """Every file below ROOT the builder's own: root would keep owners without an id in an
    enclosure.

    Modes are said again, as a change of owner takes set-user-id away.
    """
    if os.geteuid():
        return
    number = builders_id() or 0
    for visit in descriptors.walk_folders(root, anyones=True):
        mode = stat.S_IMODE(os.fstat(visit.descriptor).st_mode)
        os.fchown(visit.descriptor, number, number)
        os.fchmod(visit.descriptor, mode)
        for name in visit.others:
            about = os.stat(name, dir_fd=visit.descriptor, follow_symlinks=False)
            if stat.S_ISCHR(about.st_mode) or stat.S_ISBLK(
                about.st_mode
            ):  # which unsquashfs makes for root: live ones
                os.unlink(name, dir_fd=visit.descriptor)
                continue
            os.chown(name, number, number, dir_fd=visit.descriptor, follow_symlinks=False)
            if not stat.S_ISLNK(about.st_mode):
                os.chmod(name, stat.S_IMODE(about.st_mode), dir_fd=visit.descriptor)


def put_base_in_place(part: Path, final: Path, runner: Runner) -> None:
    """PART under its final name, on disk as it is; another builder may have been faster with the
    same.
    """
    runner.output(["sync", "--file-system", str(part)], timeout=600)
    try:
        part.rename(final)
    except (
        PermissionError
    ):  # a folder that its owner may not write (`chmod 555 /`) moves to no other one
        done = runner.output(
            ["unshare", "--user", "--map-root-user", "mv", "-T", str(part), str(final)], timeout=600
        )
        if done.status and not final.is_dir():
            raise
        remove_tree(part)
    except OSError:
        if not final.is_dir():
            raise
        remove_tree(part)


def give_modes(job: Job, layers: list[str], upper: Path) -> None:
    """The folders of UPPER, which lies over LAYERS, newest first, get the modes that they have
    there, or 755: what the cache around it hands on (set-group-id, an ACL, the umask) is none of
    the image's.
    """
    places = [visit.path for visit in descriptors.walk_folders(upper, anyones=True)]
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
        path = job.layers / layer / place
        if path.is_dir() and not path.is_symlink():
            return stat.S_IMODE(path.stat().st_mode)
    found = None
    with contextlib.suppress(Unreadable):
        found = image.find(place.encode()) if image else None
    return found.mode & 0o7777 if found and found.kind == DIR else 0o755
