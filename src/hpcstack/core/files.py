"""Read and write files that somebody else may have put there.

In a folder that others can write to, a name is whatever its owner made of it: a link to a file of
ours, a pipe that never ends, a folder that changes under us. So links are not followed, and only
ordinary files are read. Each is examined after it was opened, since it could be swapped before.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import hashlib
import os
import pwd
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from hpcstack.core import descriptors, gate
from hpcstack.core.descriptors import find_group_name, find_user_name
from hpcstack.core.descriptors import remove_tree as remove_tree
from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.namespaces import list_trusted_ids
from hpcstack.core.sharing import ALONE, Sharing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe that somebody has put there does not wait for a writer.
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MOST_LINKS = 40  # on the way to a file, as path_resolution(7) has it
LINK = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)  # what open(2) says of a link with O_NOFOLLOW


def open_file(
    path: Path, *, below: Path | None = None, own: bool = False, publishers: Sharing | None = None
) -> BinaryIO:
    """Open the ordinary file PATH for reading.

    BELOW: no folder between that one and PATH may be a link either. OWN: the file must be ours or
    root's, and nobody else may have the right to write it. PUBLISHERS: where the site names its
    publishers, it must belong to one of them, who alone can write it.

    Raise InputError for a link, a pipe, a device or a folder, and where one of these conditions
    fails; FileNotFoundError where there is nothing.
    """
    try:
        descriptor = _open_below(below, path) if below else os.open(path, FILE)
    except OSError as error:
        if error.errno in LINK:
            raise InputError(
                f"{path} is a symbolic link, or lies behind one", "put the file itself there"
            ) from None
        raise

    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise InputError(f"{path} is not an ordinary file", "put the file itself there")

        is_ours_or_roots = about.st_uid in (os.geteuid(), 0)
        # A file server may take us for another user, e.g. root for nobody: that user's are ours.
        if own and not is_ours_or_roots and about.st_uid != _own_id_at(path.parent):
            raise InputError(f"{path} belongs to {name_owner(path)}")
        if publishers:
            gate.check_publishers_word(descriptor, path, publishers)

        if own and about.st_mode & 0o022:
            raise InputError(
                f"{path} can be written by others than its owner",
                f"chmod go-w {path}, or remove it",
            )
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def name_owner(path: Path) -> str:
    """Return who owns PATH, as a name to be shown."""
    try:
        return find_user_name(path.lstat().st_uid)
    except OSError:
        return "an unknown user"


def _own_id_at(folder: Path) -> int:
    """Return the user id that the file server of FOLDER gives to what we write; -1 if we may not.

    It is found out by a temporary file. An NFS server that squashes root, say, takes root for
    another user.
    """
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".who-") as file:
            return os.fstat(file.fileno()).st_uid
    except OSError:
        return -1


def _open_below(top: Path, path: Path) -> int:
    """Open PATH for reading, each folder from TOP on from the one before; links are refused."""
    around = _open_folder(top, path.parent)
    try:
        return os.open(path.name, FILE, dir_fd=around)
    finally:
        os.close(around)


def _open_folder(top: Path, folder: Path) -> int:
    """Open FOLDER, which lies below TOP, one part at a time. Raise OSError at a link."""
    around = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in folder.relative_to(top).parts:
        try:
            if part == "..":
                raise InputError(f"{folder} leads out of {top}")
            inner = os.open(part, FOLDER, dir_fd=around)
        finally:
            os.close(around)
        around = inner
    return around


def read_bytes(
    path: Path,
    limit: int,
    *,
    below: Path | None = None,
    own: bool = False,
    publishers: Sharing | None = None,
) -> bytes:
    """Return the bytes of the ordinary file PATH, opened as `open_file` does.

    Raise InputError for more than LIMIT bytes.
    """
    with open_file(path, below=below, own=own, publishers=publishers) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise InputError(f"{path} is larger than {limit} bytes")
    return content


def read_text(
    path: Path,
    limit: int,
    *,
    below: Path | None = None,
    own: bool = False,
    publishers: Sharing | None = None,
) -> str:
    """Return the text of the ordinary file PATH; bytes that are not UTF-8 are replaced."""
    content = read_bytes(path, limit, below=below, own=own, publishers=publishers)
    return content.decode("utf-8", "replace")


def list_files_under(top: Path, folder: Path) -> list[Path]:
    """Return the paths of the files in FOLDER, sorted.

    Raise InputError where FOLDER lies behind a link below TOP, or holds anything but ordinary
    files.
    """
    try:
        descriptor = _open_folder(top, folder)
    except OSError as error:
        if error.errno in LINK:
            raise InputError(f"{folder} is a symbolic link, or lies behind one") from None
        raise
    try:
        found = []
        for name in sorted(os.listdir(descriptor)):  # noqa: PTH208
            about = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if not stat.S_ISREG(about.st_mode):
                raise InputError(f"{folder / name} is not an ordinary file")
            found.append(folder / name)
        return found
    finally:
        os.close(descriptor)


def without_links(top: Path, path: Path, *, ours: bool = False) -> None:
    """Raise StoreError where a part of PATH below TOP is anything but a real folder.

    OURS accepts links to folders, if they are ours or root's: to a larger disk, say. Parts that
    are missing are accepted.
    """
    here = top
    for part in path.relative_to(top).parts:
        here = here / part
        with contextlib.suppress(FileNotFoundError):
            about = here.lstat()
            by_us = about.st_uid in (os.geteuid(), 0)
            is_own_link = ours and stat.S_ISLNK(about.st_mode) and by_us
            if stat.S_ISDIR(about.st_mode) or (is_own_link and here.is_dir()):
                continue
            raise StoreError(
                f"{here} is not a folder of its own",
                f"it was put there by {name_owner(here)}: look at it, and remove it",
            )


def make_private_folder(path: Path, remedy: str) -> Path:
    """Return the folder PATH, ours and closed to others; make it where it is missing.

    Raise StoreError, with REMEDY, where what is there belongs to another user, or where somebody
    could put something else in its place.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)

    about = path.lstat()
    is_own_folder = stat.S_ISDIR(about.st_mode) and (
        about.st_uid == os.geteuid() or about.st_uid == _own_id_at(path)
    )
    if not is_own_folder:
        raise StoreError(
            f"{path} belongs to {find_user_name(about.st_uid)}: what lies there cannot be trusted",
            remedy,
        )

    check_way_to(path, remedy)
    if about.st_mode & 0o7077:  # open to others, or set-gid: new files would be another group's
        path.chmod(0o700)
    return path


def check_way_to(path: Path, remedy: str) -> None:
    """Raise StoreError, with REMEDY, where somebody else could swap something on the way to PATH.

    That is a folder of another user's, or one that lets others write without the sticky bit; or a
    link of another user's. Where links are on the way, the folders around each of them count, and
    around what each leads to.
    """
    for folder in _list_steps_to(path.absolute()):
        about = folder.lstat()
        if about.st_uid not in list_trusted_ids() and about.st_uid != _own_id_at(path.parent):
            who = name_owner(folder)
            raise StoreError(
                f"{folder} is {who}'s, who can put something else in the place of {path}", remedy
            )
        who = "" if stat.S_ISLNK(about.st_mode) else _name_other_writers(about)
        if who:
            raise StoreError(
                f"{folder} lets {who} put something else in the place of {path}",
                f"chmod +t {folder}, or: {remedy}",
            )


def _list_steps_to(path: Path) -> list[Path]:
    """Return each folder in which a name is looked up on the way to PATH, and each link.

    Raise StoreError where links lead to each other without end.
    """
    steps = [Path("/")]
    at = Path("/")
    ahead = list(path.parent.parts[1:])
    links = 0
    while ahead:
        part = ahead.pop(0)
        if part == "..":
            at = at.parent
            continue
        step = at / part
        steps.append(step)
        if not step.is_symlink():
            at = step
            continue
        links += 1
        if links > MOST_LINKS:
            raise StoreError(f"too many links lead to {path}", "name the folder itself")
        target = step.readlink()
        if target.is_absolute():
            at = Path("/")
        ahead[:0] = [one for one in target.parts if one != "/"]
    return list(dict.fromkeys(steps))


def _name_other_writers(about: os.stat_result) -> str:
    """Return who else may rename what lies in a folder; empty where nobody may."""
    if about.st_mode & stat.S_ISVTX:
        return ""
    if about.st_mode & 0o002:
        return "anybody"
    if about.st_mode & 0o020 and not _is_own_group(about.st_gid):
        return f"the members of its group {find_group_name(about.st_gid)}"
    return ""


def _is_own_group(number: int) -> bool:
    """Return whether the group NUMBER is root's, or the user's own, with nobody else in it.

    Distributions give each user a group of the same name. Whose first group a group is, a machine
    need not be able to list; so any other name may be a project's.
    """
    if number == 0:
        return True
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except KeyError:
        return False
    is_named_alike = group.gr_name == user.pw_name and number == user.pw_gid
    return is_named_alike and set(group.gr_mem) <= {user.pw_name}


def sync_to_disk(path: Path) -> None:
    """Wait until PATH, a file or a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_in_place(part: Path, final: Path, sharing: Sharing = ALONE) -> None:
    """Rename PART to FINAL on one filesystem, so that it survives a power failure from then on.

    Where SHARING has a group, the group may read and write the file, and all others may read it.
    """
    with descriptors.open_by_descriptor(part) as file:
        os.fsync(file.fileno())
        if sharing.has_group:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            os.fchmod(file.fileno(), sharing.widen_mode(mode | 0o044))
    descriptors.rename_path(part, final)
    descriptors.sync_folder(final.parent)


def digest_of(path: Path) -> str:
    """Return the sha256 of a file, in hex."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def copy_range(source: Path, target: Path, start: int, length: int) -> None:
    """Copy LENGTH bytes of SOURCE, from START on, into TARGET."""
    with source.open("rb") as reader, target.open("wb") as writer:
        reader.seek(start)
        while length:
            block = reader.read(min(length, 1 << 20))
            if not block:
                raise StoreError(f"{source} ends before its partition does", "build again")
            writer.write(block)
            length -= len(block)


def write_text(
    path: Path, text: str, mode: int = 0o644, *, on_disk: bool = True, sharing: Sharing = ALONE
) -> None:
    """Write TEXT to PATH by a temporary file and a rename; ON_DISK waits for the disk between them.

    A link that is there is replaced, not followed. The group of SHARING may write the file, too.
    """
    descriptors.make_folder(path.parent)
    descriptors.write_file(path, text.encode(), sharing.widen_mode(mode), on_disk=on_disk)


def write_tree(folder: Path, files: Mapping[str, str], *, on_disk: bool = True) -> None:
    """Write FILES, {path: text}, below FOLDER. Those that begin with `#!` become executable.

    Pass ON_DISK=False for what lives no longer than this process, or the job that it starts: to
    wait for the disk once for each of a hundred small files takes long.
    """
    for name, text in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise StoreError(f"{name} leads out of {folder}")

        path.parent.mkdir(parents=True, exist_ok=True)
        mode = 0o755 if text.startswith("#!") else 0o644
        write_text(path, text, mode, on_disk=on_disk)


@contextlib.contextmanager
def writing_below(top: Path, what: str, sharing: Sharing = ALONE) -> Iterator[None]:
    """Turn an OSError of the block into a StoreError that says WHAT was not done.

    Within the block, what is made below TOP can be read by all, whatever the user's umask, and
    written by the group of SHARING, where it has one.
    """
    before = os.umask(sharing.umask)
    try:
        sharing.make_own_names_folder(top)
        sharing.open_old(top)
        yield
    except OSError as error:
        page = "free-disk-space" if is_for_want_of_room(error) else ""
        raise StoreError(
            f"{what}: {error.strerror or error} ({error.filename or top})",
            _advise(error, top),
            page=page,
        ) from None
    finally:
        os.umask(before)


def is_for_want_of_room(error: OSError) -> bool:
    """Return whether ERROR says that a disk or a quota is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _advise(error: OSError, top: Path) -> str:
    """Return what to do about ERROR, which came while writing below TOP; empty where unknown."""
    if is_for_want_of_room(error):
        return "make room: hpcstack gc --dry-run; or name another store in site.yaml"
    ours = Path(str(error.filename or top)).is_relative_to(top)
    if ours and error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return (
            f"{top} must be writable by you; the store is `store` in site.yaml "
            "(hpcstack show --site)"
        )
    if ours and error.errno in (errno.ENOTDIR, errno.ENOENT, errno.ESTALE, errno.EIO):
        return (
            "is its filesystem mounted? See `store` and `build.cachedir` in site.yaml "
            "(hpcstack show --site)"
        )
    return ""
