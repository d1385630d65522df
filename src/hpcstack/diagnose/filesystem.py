"""Try what a store and a module tree need of their filesystem, in a folder of their own there.

Several machines share them. Leases are made by link(2), files and folders appear by one rename(2),
heartbeats are times of files, groups inherit by setgid. A filesystem that has not one of these loses
something when two do something at once, so it is tried, not looked up by the filesystem's name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core import descriptors
from hpcstack.core.mounts import find_filesystem
from hpcstack.diagnose.advice import Finding, report_fine, report_skipped, report_wrong

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hpcstack.core.process import Runner

AWAY_S = 60.0  # the most that the clock of a file server may be away
REFUSED = 9  # the status of TAKE_LOCK where the lock is held
TAKE_LOCK = f"""
import fcntl, sys
try:
    fcntl.flock(open(sys.argv[1], "w"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit({REFUSED})
"""
HUGE = 5 << 30  # bytes: images are larger than 4 GiB


@dataclass(frozen=True)
class Trait:
    """One thing that is tried: a TRIAL in an empty folder, which raises where it does not hold.

    NEED says what of hpcstack needs it.
    """

    name: str
    need: str
    trial: Callable[[Path], None]


class NotSo(Exception):
    """It does not hold; the text says what was seen."""


def look_at_filesystems(places: dict[str, Path], where: str, runner: Runner) -> Iterator[Finding]:
    """Try the filesystem of each of PLACES, {what it is: its folder}, once where two share one."""
    seen: set[int] = set()
    for what, path in places.items():
        if not path.is_dir():
            continue  # what checks places says so
        device = path.stat().st_dev
        if device in seen:
            continue
        seen.add(device)
        yield try_filesystem(what, path, where, runner)


def try_filesystem(what: str, path: Path, where: str, runner: Runner) -> Finding:
    """Try all of `TRAITS` below PATH, which is WHAT. Nothing is left there."""
    kind = find_filesystem(path.stat().st_dev) or "an unknown filesystem"
    try:
        folder = Path(tempfile.mkdtemp(prefix=".hpcstack-try-", dir=path))
    except OSError as error:
        return report_skipped("filesystem", where, f"{what}: {path}: {error.strerror}")

    missing = []
    try:
        # Others may write to PATH, and put something else where our folder was: it is held open.
        with descriptors.pin_path(folder) as held:
            if not _is_ours_alone(held):
                what_was_seen = f"{what}: somebody has replaced a folder of ours in {path}"
                return report_skipped("filesystem", where, what_was_seen)
            missing = _list_missing(held, runner)
            for entry in held.iterdir():
                descriptors.remove_tree(entry)
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()  # what is not empty is not ours

    if missing:
        found = f"{what}: {path} is on {kind}, which does not support {'; '.join(missing)}"
        return report_wrong("filesystem", where, found, path=str(path))
    count = len(TRAITS) + 1
    return report_fine(
        "filesystem", where, f"{what}: {kind} supports the {count} things that are tried"
    )


def _is_ours_alone(folder: Path) -> bool:
    """Whether FOLDER is ours, and closed to all others: then nobody else can change what is in it."""
    about = folder.stat()
    return about.st_uid == os.geteuid() and stat.S_IMODE(about.st_mode) & 0o077 == 0


def _list_missing(folder: Path, runner: Runner) -> list[str]:
    """Try all in FOLDER, and return what does not hold, why, and what needs it."""
    missing = []
    for trait in (*TRAITS, _make_lock_trait(runner)):
        own = folder / trait.name.replace(" ", "-")
        own.mkdir()
        try:
            trait.trial(own)
        except NotSo as error:
            missing.append(f"{trait.name} ({error}): {trait.need}")
        except OSError as error:
            missing.append(f"{trait.name} ({error.strerror}): {trait.need}")
    return missing


def _create_once(folder: Path) -> None:
    path = folder / "a"
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        raise NotSo("a file was created twice")


def _link(folder: Path) -> None:
    (folder / "a").write_text("a")
    os.link(folder / "a", folder / "b")
    if (folder / "a").stat().st_nlink != 2 or not (folder / "b").samefile(folder / "a"):
        raise NotSo("a second name is another file")
    (folder / "c").write_text("c")
    with contextlib.suppress(FileExistsError):
        os.link(folder / "a", folder / "c")
        raise NotSo("a link replaced a file")


def _replace_file(folder: Path) -> None:
    (folder / "a").write_text("old")
    (folder / "b").write_text("new")
    with (folder / "a").open() as reading:
        (folder / "b").rename(folder / "a")
        if reading.read() != "old":
            raise NotSo("who reads the old file gets another")
    if (folder / "a").read_text() != "new" or (folder / "b").exists():
        raise NotSo("a file was not replaced")


def _rename_folder(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "x").write_text(name)
    (folder / "a").rename(folder / "c")
    if (folder / "c/x").read_text() != "a":
        raise NotSo("what was in it is not there")
    with contextlib.suppress(OSError):
        (folder / "b").rename(folder / "c")
        raise NotSo("a folder replaced one that was not empty")


def _replace_symlink(folder: Path) -> None:
    (folder / "current").symlink_to("1")
    (folder / "next").symlink_to("2")
    (folder / "next").rename(folder / "current")
    if str((folder / "current").readlink()) != "2":
        raise NotSo("it leads where it led before")


def _keep_modes(folder: Path) -> None:
    path = folder / "a"
    path.touch()
    for mode in (0o640, 0o400, 0o755):
        path.chmod(mode)
        if stat.S_IMODE(path.stat().st_mode) != mode:
            raise NotSo(f"mode {mode:o} became {stat.S_IMODE(path.stat().st_mode):o}")


def _inherit_group(folder: Path) -> None:
    """A member of the site's group publishes, and the others may go on."""
    folder.chmod(0o2775)
    below = folder / "a"
    below.mkdir()
    if below.stat().st_gid != folder.stat().st_gid or not below.stat().st_mode & stat.S_ISGID:
        raise NotSo("a new folder does not inherit the group")


def _keep_times(folder: Path) -> None:
    path = folder / "a"
    path.touch()
    away = path.stat().st_mtime - time.time()
    if abs(away) > AWAY_S:
        raise NotSo(f"its clock is {away:+.0f} s from this machine's")
    os.utime(path, (1_000_000_000, 1_000_000_000))
    if int(path.stat().st_mtime) != 1_000_000_000:
        raise NotSo("a time that was set is not kept")


def _flush(folder: Path) -> None:
    for path, flags in ((folder / "a", os.O_CREAT | os.O_WRONLY), (folder, os.O_RDONLY)):
        descriptor = os.open(path, flags, 0o600)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _take_names(folder: Path) -> None:
    for name in (b"a" * 255, b"\xff\xfe"):
        path = os.fsencode(folder) + b"/" + name
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    (folder / "x").touch()
    if (folder / "X").exists():
        raise NotSo("small and capital letters are alike")


def _hold_huge_files(folder: Path) -> None:
    descriptor = os.open(folder / "a", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        os.pwrite(descriptor, b"x", HUGE)  # the rest is a hole
        if os.fstat(descriptor).st_size != HUGE + 1 or os.pread(descriptor, 1, HUGE) != b"x":
            raise NotSo("the end of a file of 5 GiB is lost")
    finally:
        os.close(descriptor)


TRAITS = (
    Trait("exclusive creation", "two would build the same", _create_once),
    Trait("hard links", "leases are made by them", _link),
    Trait("replacing a file by rename", "half of a file would be seen", _replace_file),
    Trait("renaming a folder", "images and releases appear by it", _rename_folder),
    Trait("replacing a symbolic link", "what is published is switched by it", _replace_symlink),
    Trait("modes", "who may read and write is told by them", _keep_modes),
    Trait("inheriting a group", "a group of publishers shares folders by it", _inherit_group),
    Trait("times", "that a holder lives is told by them", _keep_times),
    Trait("fsync", "what was published would be lost with the power", _flush),
    Trait("names of 255 bytes and any letters", "images have such files", _take_names),
    Trait("files beyond 4 GiB", "images are that large", _hold_huge_files),
)


def _make_lock_trait(runner: Runner) -> Trait:
    """Return the trial of flock(2) between two processes: within one it says nothing."""

    def trial(folder: Path) -> None:
        with (folder / "a").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            done = runner.output([sys.executable, "-c", TAKE_LOCK, str(folder / "a")])
            if done.status != REFUSED:
                raise NotSo("a second process got the lock")

    return Trait("locks of files", "packages of --with are made once by them", trial)
