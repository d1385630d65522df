"""Folders that other people can write to: act on open descriptors, never on paths.

Whoever may write to a folder can swap any entry of it for a link between two system calls of ours.
So each function here walks to a folder one part at a time, holds it open, and acts on a name
within it. A link on the way is followed only where root or we ourselves made it (to a larger disk,
say). The last part of a path is never followed.

Modes and owners are changed on the open descriptor. Trees are walked without recursion, so that
one of any depth can be walked.

Code that needs paths (a program that writes a file, say) works in a `pin_path` folder: its path
names the open folder itself, whoever renames it meanwhile.

Tested in tests/hostile/test_shared_folders.py and tests/hostile/test_neighbours.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from hpcstack.core.errors import StoreError
from hpcstack.core.namespaces import list_trusted_ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# How folders and files are opened. None follows a link in the last part of a path.
PASS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC  # enough to go through a folder
LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe that somebody has put there does not wait for a writer.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC  # at a link itself, too

NOT_A_FOLDER = (errno.ELOOP, errno.ENOTDIR)
# A folder that is closed to us. EBADF: we may pass it (O_PATH), but not list it.
CLOSED = (errno.EACCES, errno.EPERM, errno.EBADF)
RENAME_EXCHANGE = 2  # renameat2(2)
MAX_NAME = 255  # bytes of one name, on every filesystem of Linux
MAX_LINKS = 40  # on the way to one folder, as the kernel counts
# Waits between attempts at a folder that another machine has just made or replaced, in seconds: a
# client of GlusterFS takes what it knows for true for a second.
STALE_PAUSES_S = (0.05, 0.2, 0.5, 1.0, 2.0)

_pins: set[int] = set()  # the descriptors of `pin_path`, as long as its block runs
PINNED = re.compile(r"/proc/self/fd/([0-9]+)(?=/|$)")

# -- one folder


def open_folder(path: Path) -> int:
    """Open the folder PATH and return a descriptor, to list it and to act in it.

    Where we may pass the folder but not list it, the descriptor only passes (O_PATH). Raise
    StoreError where a link that another user made lies on the way, and OSError as open(2) does.
    """
    for pause in STALE_PAUSES_S:
        try:
            return _open_folder_once(path)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
        time.sleep(pause)
    return _open_folder_once(path)


def _open_folder_once(path: Path) -> int:
    """Do as `open_folder`. Raise OSError (ESTALE) where another machine has replaced a folder on the
    way while it was opened.

    The kernel looks a path up again then; we open its parts one by one, so it cannot.
    """
    wanted = path.absolute()
    pinned_at = PINNED.match(str(wanted))
    if pinned_at:  # not by its name: the pinned folder may have another one by now
        here = os.dup(int(pinned_at[1]))
        pending = deque(wanted.parts[5:])
    else:
        here = os.open("/", PASS)
        pending = deque(wanted.parts[1:])
    links = 0
    try:
        while pending:
            part = pending.popleft()
            try:
                inner = os.open(part, PASS, dir_fd=here)
            except OSError as error:
                if error.errno not in NOT_A_FOLDER:
                    raise OSError(error.errno, error.strerror, str(wanted)) from None
                target = _trusted_target(here, part, wanted)
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(wanted)) from None
                # The target's own parts come next, before those that follow the link.
                pending.extendleft(reversed([name for name in target.split("/") if name]))
                inner = os.open("/", PASS) if target.startswith("/") else os.dup(here)
            os.close(here)
            here = inner

        # PASS opens the way; acting in the folder needs a descriptor that may list, too.
        with contextlib.suppress(PermissionError):
            listed = os.open(".", LIST, dir_fd=here)
            os.close(here)
            here = listed
    except BaseException:
        os.close(here)
        raise
    return here


def _trusted_target(around: int, name: str, wanted: Path) -> str:
    """Return where the link NAME in the folder AROUND leads.

    Raise StoreError unless root or we made it, NotADirectoryError for anything but a link. WANTED
    is the path that a message names.
    """
    link = os.open(name, LOOK, dir_fd=around)
    try:
        about = os.fstat(link)
        if not stat.S_ISLNK(about.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(wanted))
        if about.st_uid not in list_trusted_ids() and not _is_roots_alone(around):
            raise StoreError(
                f"{wanted} lies behind the link {name}, which {find_user_name(about.st_uid)} made",
                f"{wanted} must be a real folder: look at what leads there, and remove the link",
            )
        # An empty name: read the link that we hold, not what may have replaced it.
        return os.readlink("", dir_fd=link)
    finally:
        os.close(link)


def _is_roots_alone(folder: int) -> bool:
    """Return whether root alone can put anything into FOLDER.

    A link there is the machine's own, whoever owns it.
    """
    about = os.fstat(folder)
    return about.st_uid == 0 and not about.st_mode & 0o022


def find_user_name(number: int) -> str:
    """Return the name of the user NUMBER, to be shown."""
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def find_group_name(number: int) -> str:
    """Return the name of the group NUMBER, to be shown."""
    import grp

    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


@contextlib.contextmanager
def hold_folder(path: Path) -> Iterator[int]:
    """Hold the folder PATH open for the time of the block; yield its descriptor."""
    descriptor = open_folder(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def pin_path(path: Path) -> Iterator[Path]:
    """Yield a path of the folder PATH that keeps naming this very folder, whoever renames it.

    It is good in this process, and in the programs that core/process starts: they inherit the
    descriptor that it names.
    """
    with hold_folder(path) as descriptor:
        _pins.add(descriptor)
        try:
            yield Path(f"/proc/self/fd/{descriptor}")
        finally:
            _pins.discard(descriptor)


def is_pinned(path: Path) -> bool:
    """Return whether PATH is one that `pin_path` gave."""
    return PINNED.fullmatch(str(path)) is not None


def find_name(folder: Path, around: Path) -> Path:
    """Return the path of the pinned FOLDER in the folder AROUND: what it is called there now.

    Raise StoreError where it has no name there: somebody has moved it.
    """
    with hold_folder(folder) as descriptor, hold_folder(around) as outer:
        wanted = _identify(descriptor)
        for name in os.listdir(outer):  # noqa: PTH208
            # An entry may be gone by now: then it is not the one.
            with contextlib.suppress(OSError):
                about = os.stat(name, dir_fd=outer, follow_symlinks=False)
                if (about.st_dev, about.st_ino) == wanted:
                    return around / name
    raise StoreError(
        f"somebody has moved a folder out of {around} while it was written",
        f"look who may write there: ls -ld {around}",
    )


def list_pins(words: Iterable[str]) -> tuple[int, ...]:
    """Return the descriptors of folders pinned now that WORDS of a command line name.

    A recipe or a base may write such a path into a command, too. Only descriptors that we have
    pinned are returned, so that no other one of ours reaches a program.
    """
    found = [int(number) for word in words for number in PINNED.findall(word)]
    return tuple(dict.fromkeys(one for one in found if one in _pins))


def make_new_folder(path: Path, mode: int = 0o700) -> None:
    """Make the folder PATH. Raise FileExistsError where there is anything of that name."""
    with hold_folder(path.parent) as around:
        os.mkdir(path.name, mode, dir_fd=around)


def make_folder(path: Path, mode: int = 0o755, group: int = -1) -> None:
    """Make the folder PATH and those it lies in, where they are missing.

    New ones get MODE (whatever the umask) and GROUP; those that exist stay as they are.
    """
    try:
        with hold_folder(path):
            return
    except FileNotFoundError:
        make_folder(path.parent, mode, group)
    with hold_folder(path.parent) as around:
        try:
            # Closed to others until it has its group and its mode.
            os.mkdir(path.name, 0o700, dir_fd=around)
        except FileExistsError:
            _await_folder(path)
            return
        descriptor = os.open(path.name, LIST, dir_fd=around)
        try:
            inherited = os.fstat(descriptor).st_mode & stat.S_ISGID
            set_marks(descriptor, mode | inherited, group)
        finally:
            os.close(descriptor)


def _await_folder(path: Path) -> None:
    """Return once PATH can be opened, which another process has just made.

    A client that had looked for it before may know for a while that it is not there. Raise
    FileNotFoundError where that does not end.
    """
    for pause in STALE_PAUSES_S:
        with contextlib.suppress(FileNotFoundError), hold_folder(path):
            return
        time.sleep(pause)
    with hold_folder(path):
        pass


def set_marks(descriptor: int, mode: int, group: int = -1) -> None:
    """Set MODE and GROUP (-1: leave it) of what DESCRIPTOR holds open.

    The group comes first, since chown(2) takes set-gid bits away.
    """
    if group != -1:
        os.fchown(descriptor, -1, group)
    os.fchmod(descriptor, mode)


def is_folder(path: Path) -> bool:
    """Return whether PATH is a real folder, and no link.

    Raise StoreError where a link that another user made lies on the way.
    """
    try:
        with hold_folder(path.parent) as around:
            return stat.S_ISDIR(os.stat(path.name, dir_fd=around, follow_symlinks=False).st_mode)
    except OSError:
        return False


def exists_at(path: Path) -> bool:
    """Return whether there is anything called PATH; a link counts, wherever it leads."""
    try:
        with hold_folder(path.parent) as around:
            os.stat(path.name, dir_fd=around, follow_symlinks=False)
    except (OSError, StoreError):
        return False
    return True


# -- one file


def create_file(path: Path, mode: int = 0o600) -> BinaryIO:
    """Create the file PATH, to write and read. Raise FileExistsError for a name that is taken."""
    with hold_folder(path.parent) as around:
        return os.fdopen(os.open(path.name, CREATE, mode, dir_fd=around), "w+b")


def open_by_descriptor(path: Path) -> BinaryIO:
    """Open the ordinary file PATH for reading. Raise StoreError for anything else of that name."""
    with hold_folder(path.parent) as around:
        try:
            descriptor = os.open(path.name, READ, dir_fd=around)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise StoreError(f"{path} is a link", "put the file itself there") from None
            raise OSError(error.errno, error.strerror, str(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StoreError(f"{path} is not an ordinary file", "put the file itself there")
    return os.fdopen(descriptor, "rb")


def remove_file(path: Path) -> None:
    """Remove the file PATH. Do nothing where it, or the folder that it lay in, is not there."""
    with contextlib.suppress(FileNotFoundError), hold_folder(path.parent) as around:
        os.unlink(path.name, dir_fd=around)


def rename_path(old: Path, new: Path) -> None:
    """Rename OLD to NEW by rename(2), which replaces what was called NEW."""
    with hold_folder(old.parent) as source, hold_folder(new.parent) as target:
        os.rename(old.name, new.name, src_dir_fd=source, dst_dir_fd=target)


def hard_link(old: Path, new: Path) -> None:
    """Make NEW another name of the file OLD. Raise FileExistsError for a name that is taken."""
    with hold_folder(old.parent) as source, hold_folder(new.parent) as target:
        os.link(old.name, new.name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)


def point_link(target: str, link: Path) -> None:
    """Make LINK lead to TARGET, by one rename that also survives a power failure."""
    with hold_folder(link.parent) as around:
        part = f".{link.name.lstrip('.')}.{uuid.uuid4().hex[:8]}.part"
        os.symlink(target, part, dir_fd=around)
        os.rename(part, link.name, src_dir_fd=around, dst_dir_fd=around)
        os.fsync(around)


def read_link(path: Path) -> str:
    """Return where the link PATH leads; empty where it is none."""
    try:
        with hold_folder(path.parent) as around:
            return os.readlink(path.name, dir_fd=around)
    except OSError:
        return ""


def touch_path(path: Path) -> None:
    """Set the times of PATH to now. Raise FileNotFoundError where it is not there."""
    with hold_folder(path.parent) as around:
        os.utime(path.name, dir_fd=around, follow_symlinks=False)


def stat_path(path: Path) -> os.stat_result:
    """Return what PATH is; of a link, the link itself. Raise OSError where there is nothing."""
    with hold_folder(path.parent) as around:
        return os.stat(path.name, dir_fd=around, follow_symlinks=False)


def list_names_in(path: Path) -> list[str]:
    """Return the names in the folder PATH, sorted; none where it is missing, or closed to us."""
    try:
        with hold_folder(path) as descriptor:
            return sorted(os.listdir(descriptor))  # noqa: PTH208
    except OSError as error:
        if error.errno in (errno.ENOENT, *CLOSED):
            return []
        raise


def write_file(
    path: Path, content: bytes, mode: int, group: int = -1, *, on_disk: bool = True, owner: str = ""
) -> None:
    """Write CONTENT as the file PATH, by a new file beside it and a rename.

    A link of that name is replaced, not followed. The new file gets MODE and GROUP before it has
    its name; ON_DISK waits until it is on the disk.

    OWNER, a label of core/lease.py, goes into the new file's name: where this process is killed,
    others see whose leftover it is.
    """
    with hold_folder(path.parent) as around:
        end = f"{uuid.uuid4().hex[:8]}.part"
        part = f".{path.name}.{owner}{end}"
        if len(part) > MAX_NAME:  # rather without its owner than not at all
            part = f".{path.name[: MAX_NAME // 2]}.{end}"
        descriptor = os.open(part, CREATE, 0o600, dir_fd=around)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                set_marks(descriptor, mode, group)
                if on_disk:
                    os.fsync(descriptor)
            os.rename(part, path.name, src_dir_fd=around, dst_dir_fd=around)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=around)
            raise


def exchange_names(one: Path, other: Path) -> bool:
    """Swap the names ONE and OTHER in one step. Return False where the filesystem cannot."""
    import ctypes

    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    with hold_folder(one.parent) as first, hold_folder(other.parent) as second:
        done = call(first, os.fsencode(one.name), second, os.fsencode(other.name), RENAME_EXCHANGE)
    return bool(done == 0)


def sync_folder(path: Path) -> None:
    """Wait until the names in the folder PATH are on the disk."""
    with hold_folder(path) as descriptor:
        os.fsync(descriptor)


# -- a tree


@dataclass
class Level:
    """One folder of a walk, on the way from the top to where the walk is.

    PATH is its place below the top, IDENTITY its device and inode, PENDING its folders that are
    still to be visited.
    """

    path: str
    identity: tuple[int, int]
    pending: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Visit:
    """A folder that a walk has come to.

    DESCRIPTOR is open until the walk goes on. PATH is below the top, and empty for the top itself.
    FOLDERS are the names of real folders; a caller that takes one out keeps the walk from going
    there. OTHERS are the names of all else: files, links, devices.
    """

    descriptor: int
    path: str
    folders: list[str]
    others: list[str]


def walk_folders(top: Path, *, anyones: bool = False) -> Iterator[Visit]:
    """Yield each folder of the tree TOP, a folder before those in it.

    It takes no recursion, and two descriptors at most, however deep the tree is. Folders that
    another user owns are not entered, unless ANYONES. Folders that go, or change, meanwhile are
    left out.
    """
    descriptor = open_folder(top)
    levels: list[Level] = []
    try:
        visit = _visit_folder(descriptor, "")
        yield visit
        levels.append(Level("", _identify(descriptor), list(reversed(visit.folders))))

        while levels:
            level = levels[-1]
            # All below this level was visited: go up.
            if not level.pending:
                levels.pop()
                if not levels:
                    continue
                above = _go_up(descriptor, levels[-1])
                if above is None:  # our folder was moved elsewhere: it left this tree
                    return
                os.close(descriptor)
                descriptor = above
                continue

            name = level.pending.pop()
            inner = _go_down(descriptor, name, anyones=anyones)
            if inner is None:
                continue
            os.close(descriptor)
            descriptor = inner

            visit = _visit_folder(descriptor, f"{level.path}/{name}".lstrip("/"))
            yield visit
            levels.append(Level(visit.path, _identify(descriptor), list(reversed(visit.folders))))
    finally:
        os.close(descriptor)


def _visit_folder(descriptor: int, path: str) -> Visit:
    """List the folder that DESCRIPTOR holds open; what is closed to us shows nothing."""
    folders: list[str] = []
    others: list[str] = []
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                (folders if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
    except OSError as error:
        if error.errno not in CLOSED:
            raise
    return Visit(descriptor, path, sorted(folders), sorted(others))


def _identify(descriptor: int) -> tuple[int, int]:
    """Return the device and inode, which a folder keeps when it is renamed."""
    about = os.fstat(descriptor)
    return about.st_dev, about.st_ino


def _go_down(around: int, name: str, *, anyones: bool) -> int | None:
    """Open the folder NAME in AROUND; None where it is gone, a link, or another user's."""
    try:
        inner = os.open(name, LIST, dir_fd=around)
    except OSError:
        return None
    if not anyones and os.fstat(inner).st_uid != os.geteuid():
        os.close(inner)
        return None
    return inner


def _go_up(descriptor: int, level: Level) -> int | None:
    """Open the folder around DESCRIPTOR; None where that is no longer LEVEL."""
    try:
        above = os.open("..", LIST, dir_fd=descriptor)
    except OSError:
        return None
    if _identify(above) == level.identity:
        return above
    os.close(above)
    return None


def remove_tree(path: Path) -> None:
    """Remove PATH and all in it, also from folders that their owner may not write.

    Of a link only the link goes. What may not be removed stays, and no error is raised: look
    whether PATH is still there.
    """
    with contextlib.suppress(OSError), hold_folder(path.parent) as around:
        _remove_entry(around, path.name)


def _remove_entry(around: int, name: str) -> None:
    """Remove NAME, a file or a whole tree, from the folder AROUND, without recursion."""
    descriptor = _open_to_empty(around, name)
    if descriptor is None:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=around)
        return

    # A level holds the name of the folder that is being emptied, and the identity of the folder
    # around it, to which the walk must come back.
    levels = [Level(name, _identify(around), [])]
    pending = [_remove_files(descriptor)]
    try:
        while pending:
            # Down, into the next folder that is in the way ...
            if pending[-1]:
                below = pending[-1].pop()
                inner = _open_to_empty(descriptor, below)
                if inner is not None:
                    levels.append(Level(below, _identify(descriptor)))
                    pending.append(_remove_files(inner))
                    os.close(descriptor)
                    descriptor = inner
                continue

            # ... or up, and away with the folder that is empty now.
            pending.pop()
            level = levels.pop()
            above = _go_up(descriptor, level) if levels else os.dup(around)
            if above is None:  # our folder was moved elsewhere: it is not ours to empty there
                return
            os.close(descriptor)
            descriptor = above
            with contextlib.suppress(OSError):
                os.rmdir(level.path, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def _open_to_empty(around: int, name: str) -> int | None:
    """Open the folder NAME after making it its owner's to write; None where it is no folder."""
    try:
        looked = os.open(name, PASS, dir_fd=around)
    except OSError:
        return None
    try:
        with contextlib.suppress(OSError):
            # By way of /proc, to change this very folder: fchmod(2) refuses O_PATH descriptors.
            Path(f"/proc/self/fd/{looked}").chmod(0o700)
        return os.open(".", LIST, dir_fd=looked)
    except OSError:
        return None
    finally:
        os.close(looked)


def _remove_files(descriptor: int) -> list[str]:
    """Remove all but folders from the folder that DESCRIPTOR holds; return the folders' names."""
    folders = []
    with os.scandir(descriptor) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, real in found:
        if real:
            folders.append(name)
            continue
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=descriptor)
    return folders


def count_bytes(path: Path) -> int:
    """Return the bytes on disk of the file or tree PATH; 0 where there is nothing."""
    try:
        with hold_folder(path.parent) as around:
            about = os.stat(path.name, dir_fd=around, follow_symlinks=False)
    except OSError:
        return 0
    if not stat.S_ISDIR(about.st_mode):
        return about.st_blocks * 512  # st_blocks counts in 512 bytes, whatever the filesystem
    total = 0
    for visit in walk_folders(path, anyones=True):
        for name in visit.others:
            with contextlib.suppress(OSError):
                about = os.stat(name, dir_fd=visit.descriptor, follow_symlinks=False)
                total += about.st_blocks * 512
    return total
