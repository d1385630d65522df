"""The base as the lowest layer of a build: mounted while the build runs, and not unpacked.

squashfuse serves the base in the build's enclosure, which each step enters. So what one step has
read of the base, the next one finds in memory. Where the base cannot be mounted, it is unpacked and
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
    find_builders_id,
    find_script,
    list_bundled_squashfuses,
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
from hpcstack.squashfs.splice import belongs_to_root, splice_image
from hpcstack.store.cache import mark_used

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.squashfs.inode import Inode

DNS = "/etc/resolv.conf"


@dataclass(frozen=True)
class Lowest:
    """The base, ready for an overlay.

    `layer` is its path as an overlay's option, relative to the cache or absolute. `enclosure` is
    where overlays on it are mounted.
    """

    layer: str
    enclosure: Enclosure


def find_base_folder(job: Job) -> Path:
    """Return where the base of JOB lies if it is unpacked; the name is part of every step's key."""
    digest = hashlib.sha256(job.base.name.encode()).hexdigest()
    return job.layers / f"base-{digest[:16]}"


@contextlib.contextmanager
def open_lowest(job: Job, runner: Runner) -> Iterator[Lowest]:
    """Open the base of JOB, mounted or unpacked, in an enclosure.

    Raise BuildError where it can be neither.
    """
    make_cache(job.layers)
    remove_leftovers(job.layers, ".", remove_tree)

    kept = find_base_folder(job)
    why = ""
    # A base that an earlier build has unpacked is used as it is.
    if not kept.is_dir():
        why = cannot_mount(runner)
        if not why:
            with contextlib.ExitStack() as stack:
                try:
                    mounted = stack.enter_context(_mount_base(job, runner))
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
    """Return the programs that may mount a squashfs here, the best first.

    squashfuse_ll reads with many threads, squashfuse with one. Apptainer may bring a squashfuse_ll
    that is on no PATH; it comes between them.
    """
    found = []
    if runner.has("squashfuse_ll"):
        found.append("squashfuse_ll")
    found += list_bundled_squashfuses()
    if runner.has("squashfuse"):
        found.append("squashfuse")
    return list(dict.fromkeys(found))


def cannot_mount(runner: Runner) -> str:
    """Return why no base can be mounted here; empty where one can."""
    if find_squashfuses(runner):
        return ""
    return "squashfuse is not installed"


@contextlib.contextmanager
def _mount_base(job: Job, runner: Runner) -> Iterator[Lowest]:
    """Mount the base of JOB in an enclosure, whose first process is squashfuse.

    Raise _NotMounted or EnclosureEnded where that fails.
    """
    where = work_folder(job, "base")
    try:
        base = _find_mountable(job)
    except Unreadable as error:
        raise _NotMounted(str(error)) from None

    # The path becomes part of the overlay's option lowerdir.
    if re.search(r"[:,\\]", str(where)):
        raise _NotMounted(f"an overlay splits a path at ':' and ',': {where}")

    command = ("sh", find_script("mount.sh"), str(base), str(where), *find_squashfuses(runner))
    with open_enclosure(job, runner, command) as enclosure:
        yield Lowest(str(where), enclosure)


def _find_mountable(job: Job) -> Path:
    """Return a squashfs of JOB's base in which every file belongs to root.

    That is the base itself, or a copy where it has other owners, as the base of an old bundle may.
    """
    if belongs_to_root(job.base):
        return job.base
    copy = job.layers / f"{find_base_folder(job).name}.sqsh"
    if not copy.exists():
        with replace_file(copy) as part:
            splice_image(job.base, [], part, EPOCH, rooted=True)
    mark_used(copy)
    return copy


@contextlib.contextmanager
def open_unpacked(job: Job, runner: Runner) -> Iterator[tuple[Path, Enclosure]]:
    """Unpack the base of JOB into a tree that steps may write; yield it, and its enclosure."""
    make_cache(job.layers)
    tree = job.work / "tree"
    unpack_base(job, tree, runner)
    with open_enclosure(job, runner) as enclosure:
        yield tree, enclosure


def unpack_base(job: Job, kept: Path, runner: Runner) -> None:
    """Unpack the base of JOB into the folder KEPT, all of which then belongs to the builder.

    Raise BuildError where that fails.
    """
    part = kept.with_name(f".{make_label()}{kept.name}")
    argv = ["unsquashfs", "-quiet", "-no-progress", "-no-xattrs", "-dest", str(part), str(job.base)]
    done = runner.logged(argv, job.log)
    if done.status:
        remove_tree(part)
        said = done.tail[-1] if done.tail else f"exit {done.status}"
        raise BuildError(
            f"the base could not be unpacked: {said}",
            "is there room? If not, name another folder: build.cachedir in site.yaml",
            page="free-disk-space",
        )

    _give_tree_to_builder(part)
    put_base_in_place(part, kept, runner)


def in_base(job: Job, path: str) -> Inode | None:
    """Return what PATH is in the base of JOB, links not followed; None where it is not there."""
    try:
        with Squashfs(job.base) as image:
            return image.find(path.encode())
    except Unreadable:
        return None


def resolv_conf(job: Job) -> str:
    """Return the path of the base's resolv.conf: of what it points to, where it is a link.

    Raise BuildError where the link leads to /proc, /sys or /dev.
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
    if place.startswith("/var/run/"):  # a link to /run
        return place.removeprefix("/var")
    return place


def _give_tree_to_builder(root: Path) -> None:
    """Give every file below ROOT to the builder.

    unsquashfs keeps the owners when root runs it, and an enclosure has no ids for them. Modes are
    set again, because a change of owner takes set-user-id away.
    """
    if os.geteuid():
        return

    number = find_builders_id() or 0
    for visit in descriptors.walk_folders(root, anyones=True):
        mode = stat.S_IMODE(os.fstat(visit.descriptor).st_mode)
        os.fchown(visit.descriptor, number, number)
        os.fchmod(visit.descriptor, mode)
        for name in visit.others:
            about = os.stat(name, dir_fd=visit.descriptor, follow_symlinks=False)
            if stat.S_ISCHR(about.st_mode) or stat.S_ISBLK(about.st_mode):
                # unsquashfs makes real device nodes for root: a step must not find them.
                os.unlink(name, dir_fd=visit.descriptor)
                continue

            os.chown(name, number, number, dir_fd=visit.descriptor, follow_symlinks=False)
            if not stat.S_ISLNK(about.st_mode):
                os.chmod(name, stat.S_IMODE(about.st_mode), dir_fd=visit.descriptor)


def put_base_in_place(part: Path, final: Path, runner: Runner) -> None:
    """Sync the folder PART to disk, and rename it to FINAL.

    Where another builder has been faster, its FINAL stays, and PART is removed.
    """
    runner.output(["sync", "--file-system", str(part)], timeout=600)
    try:
        part.rename(final)
    except PermissionError:
        # To move a folder into another one, its owner must have the right to write it, and a step
        # may have done `chmod 555 /`. Root of a user namespace needs no such right.
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
    """Give the folders of UPPER the modes that they have in LAYERS, newest first, or 755.

    The folder of the cache may hand on a set-group-id bit, an ACL or a umask's mode. None of that
    may get into the image.
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
    """Return the mode of the folder PLACE in LAYERS or in IMAGE, the base; 755 where it is new."""
    for layer in layers[:-1]:  # the last one is the base, which is mounted elsewhere
        path = job.layers / layer / place
        if path.is_dir() and not path.is_symlink():
            return stat.S_IMODE(path.stat().st_mode)

    if image is not None:
        with contextlib.suppress(Unreadable):
            found = image.find(place.encode())
            if found and found.kind == DIR:
                return found.mode & 0o7777
    return 0o755
