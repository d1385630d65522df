"""Bytes from one file into another as cheaply as the filesystem can: shared, copied by the kernel,
or by hand.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from hpcstack.core.errors import StoreError

FICLONERANGE = 0x4020940D  # ioctl_ficlonerange(2)
ALIGNED = 4096  # bytes: what filesystems share is whole blocks
PIECE = 8 << 20
AT_ONCE = (
    64 << 20
)  # what the kernel copies in one call: what is written out meanwhile can be let go of
REFUSED = {errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ETXTBSY,
           errno.EBADF}  # fmt: skip


def copy_bytes(source: int, start: int, target: int, at: int, size: int) -> str:
    """SIZE bytes of the descriptor SOURCE from START into TARGET, from AT on: `shared`, `kernel` or
    `plain`, as it was done for the most of them. StoreError where SOURCE ends before.
    """
    shared = 0
    if start % ALIGNED == 0 and at % ALIGNED == 0:
        shared = _clone(source, start, target, at, size - size % ALIGNED)
    how = _kernel(source, start + shared, target, at + shared, size - shared)
    return "shared" if shared else how


def clone_blocks(source: int, target: int, size: int) -> bool:
    """Whether the files SOURCE and TARGET now share their first SIZE bytes, whole blocks."""
    return _clone(source, 0, target, 0, size) > 0


def _clone(source: int, start: int, target: int, at: int, size: int) -> int:
    """How many bytes the files now share: SIZE, or 0."""
    if not size:
        return 0
    try:
        fcntl.ioctl(target, FICLONERANGE, struct.pack("=qQQQ", source, start, size, at))
    except OSError as error:
        if error.errno in REFUSED:
            return 0
        raise
    return size


def _kernel(source: int, start: int, target: int, at: int, size: int) -> str:
    done = 0
    while done < size:
        try:
            count = os.copy_file_range(
                source, target, min(size - done, AT_ONCE), start + done, at + done
            )
        except OSError as error:
            if error.errno not in REFUSED:
                raise
            count = 0
        if (
            not count
        ):  # also where a filesystem of the kernel's own says 0: https://lwn.net/Articles/846403/
            _plain(source, start + done, target, at + done, size - done)
            return "plain"
        done += count
    return "kernel"


def _plain(source: int, start: int, target: int, at: int, size: int) -> None:
    done = 0
    while done < size:
        data = os.pread(source, min(PIECE, size - done), start + done)
        if not data:
            raise StoreError(
                "a file ends before it should: it was changed while it was read", "try again"
            )
        write_all(target, data, at + done)
        done += len(data)


def write_all(target: int, data: bytes | memoryview, at: int) -> None:
    """DATA into TARGET, from AT on."""
    rest = memoryview(data)
    while rest:
        count = os.pwrite(target, rest, at)
        rest, at = rest[count:], at + count
