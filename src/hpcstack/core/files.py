"""Files that somebody else may have made: links are not followed, and what is not an ordinary file
is not read.

In a folder that others can write to, a name is whatever its owner made of it: a link to a file of
ours, a pipe that never ends, a folder that changes under us. What is opened here is looked at after
it was opened, not before.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from hpcstack.core import descriptors, sharing
from hpcstack.core.descriptors import remove_tree as remove_tree
from hpcstack.core.descriptors import user_name
from hpcstack.core.errors import InputError, StoreError
from hpcstack.core.namespaces import trusted_ids

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
LINK = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)


def open_file(
    path: Path, *, below: Path | None = None, own: bool = False, published: bool = False
) -> BinaryIO:
    """The ordinary file PATH, for reading. InputError for a link, a pipe, a device or a folder.

    No folder of PATH's way BELOW that one may be a link either. OWN: the file is ours or root's,
    and nobody else can write to it. PUBLISHED: where the site names its publishers, it is one of
    theirs. FileNotFoundError where there is nothing.
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
        if own and about.st_uid not in (os.geteuid(), 0) and about.st_uid != _seen_as(path.parent):
            raise InputError(f"{path} belongs to {name_owner(path)}")
        if published and not sharing.is_publisher(about.st_uid):
            raise InputError(
                f"{path} belongs to {user_name(about.st_uid)}, who is no publisher of this site",
                "modules.publishers in site.yaml",
            )
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
    """Who owns PATH, for people."""
    try:
        return user_name(path.lstat().st_uid)
    except OSError:
        return "an unknown user"


def _seen_as(folder: Path) -> int:
    """Who we are to the file server of FOLDER, which may take root for somebody else; -1 where we
    may not write.
    """
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".who-") as file:
            return os.fstat(file.fileno()).st_uid
    except OSError:
        return -1


def _open_below(top: Path, path: Path) -> int:
    """A descriptor of PATH; each part of its way from TOP on is opened from the one before."""
    around = _open_folder(top, path.parent)
    try:
        return os.open(path.name, FILE, dir_fd=around)
    finally:
        os.close(around)


def _open_folder(top: Path, folder: Path) -> int:
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
    path: Path, limit: int, *, below: Path | None = None, own: bool = False, published: bool = False
) -> bytes:
    """All of the ordinary file PATH, as `open_file` takes it.

    InputError for more than LIMIT bytes.
    """
    with open_file(path, below=below, own=own, published=published) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise InputError(f"{path} is larger than {limit} bytes")
    return content


def read_text(path: Path, limit: int, *, below: Path | None = None, own: bool = False) -> str:
    """The same as text; what is no UTF-8 in it is replaced."""
    return read_bytes(path, limit, below=below, own=own).decode("utf-8", "replace")


def files_below(top: Path, folder: Path) -> list[Path]:
    """The ordinary files of FOLDER, sorted.

    InputError where it is behind a link below TOP, or holds another thing.
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
            if not stat.S_ISREG(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                raise InputError(f"{folder / name} is not an ordinary file")
            found.append(folder / name)
        return found
    finally:
        os.close(descriptor)


def without_links(top: Path, path: Path, *, ours: bool = False) -> None:
    """StoreError where a part of PATH's way below TOP is no real folder; OURS takes links of ours
    and root's.
    """
    here = top
    for part in path.relative_to(top).parts:
        here = here / part
        with contextlib.suppress(FileNotFoundError):
            about = here.lstat()
            led = (
                ours and stat.S_ISLNK(about.st_mode) and about.st_uid in (os.geteuid(), 0)
            )  # to a larger disk, say
            if not stat.S_ISDIR(about.st_mode) and not (led and here.is_dir()):
                raise StoreError(
                    f"{here} is not a folder of its own",
                    f"it was put there by {name_owner(here)}: look, and remove it",
                )


def private_folder(path: Path, remedy: str) -> Path:
    """The folder PATH, made if it is not there, ours and closed to others.

    StoreError, with REMEDY, for any other.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    about = path.lstat()
    if not stat.S_ISDIR(about.st_mode) or (
        about.st_uid != os.geteuid() and about.st_uid != _seen_as(path)
    ):
        raise StoreError(
            f"{path} was made by somebody else: what lies there cannot be trusted", remedy
        )
    check_way_to(path, remedy)
    if about.st_mode & 0o7077:  # also of a folder that hands its group on
        path.chmod(0o700)
    return path


def check_way_to(path: Path, remedy: str) -> None:
    """StoreError, with REMEDY, where a folder on the way to PATH lets somebody else put another in
    its place.
    """
    for folder in path.absolute().parents:
        about = folder.stat()
        if about.st_uid not in trusted_ids() and about.st_uid != _seen_as(path.parent):
            who = name_owner(folder)
            raise StoreError(
                f"{folder} is {who}'s, who can put something else in the place of {path}", remedy
            )
        if about.st_mode & 0o002 and not about.st_mode & stat.S_ISVTX:
            raise StoreError(
                f"{folder} lets anybody put something else in the place of {path}",
                f"chmod +t {folder}, or: {remedy}",
            )


def sync_to_disk(path: Path) -> None:
    """PATH, a file or a folder, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_in_place(part: Path, final: Path, *, shared: bool = True) -> None:
    """PART on disk and called FINAL, also after a power failure; both lie on one filesystem."""
    with descriptors.open_by_descriptor(part) as file:
        os.fsync(file.fileno())
        if shared and sharing.is_shared():
            mode = os.fstat(file.fileno()).st_mode & 0o777
            os.fchmod(file.fileno(), sharing.shared_mode(mode | 0o044))
    descriptors.rename_path(part, final)
    descriptors.sync_folder(final.parent)


def digest_of(path: Path) -> str:
    """sha256 of a file, in hex."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def copy_range(source: Path, target: Path, start: int, length: int) -> None:
    """LENGTH bytes of SOURCE from START into TARGET."""
    with source.open("rb") as reader, target.open("wb") as writer:
        reader.seek(start)
        while length:
            block = reader.read(min(length, 1 << 20))
            if not block:
                raise StoreError(f"{source} ends before its partition does", "build again")
            writer.write(block)
            length -= len(block)


def write_text(path: Path, text: str, mode: int = 0o644, *, on_disk: bool = True) -> None:
    """TEXT into PATH by a temporary file, fsync (if it has to be ON_DISK) and rename. A link that
    is there is replaced, not followed.
    """
    descriptors.make_folder(path.parent)
    descriptors.write_file(path, text.encode(), sharing.shared_mode(mode), on_disk=on_disk)


def write_tree(folder: Path, files: Mapping[str, str], *, on_disk: bool = True) -> None:
    """{path: text} below FOLDER. Files that begin with `#!` are executable.

    What is to live no longer than this process, or the job that it starts, need not be ON_DISK: a
    hundred small files are a hundred waits for the disk else.
    """
    for name, text in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise StoreError(f"{name} leads out of {folder}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text, 0o755 if text.startswith("#!") else 0o644, on_disk=on_disk)


@contextlib.contextmanager
def writing_below(top: Path, what: str) -> Iterator[None]:
    """Turns the system's refusals into StoreError, which says WHAT was not done.

    What is made below TOP is readable for all, whatever the umask, and the group's to write where
    one shares it.
    """
    before = os.umask(sharing.shared_umask())
    try:
        sharing.make_shared_folder(top)
        sharing.open_old(top)
        yield
    except OSError as error:
        raise StoreError(
            f"{what}: {error.strerror or error} ({error.filename or top})", _advice(error, top)
        ) from None
    finally:
        os.umask(before)


def is_for_want_of_room(error: OSError) -> bool:
    """Whether a disk or somebody's quota is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _advice(error: OSError, top: Path) -> str:
    if is_for_want_of_room(error):
        return "make room: hpcstack gc --dry-run; or name another store in site.yaml"
    ours = Path(str(error.filename or top)).is_relative_to(top)
    if ours and error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return (
            f"{top} must be writable by you; if it is the store: `store` in site.yaml (hpcstack "
            f"show --site)"
        )
    if ours and error.errno in (errno.ENOTDIR, errno.ENOENT, errno.ESTALE, errno.EIO):
        return (
            "is its filesystem there? See `store` and `build.cachedir` in site.yaml (hpcstack show "
            "--site)"
        )
    return ""
