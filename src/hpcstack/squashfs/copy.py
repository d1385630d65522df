"""Copy bytes from one file to another as cheaply as the filesystem can.

They are shared (reflinks), else copied by the kernel, else read and written.

Tested in tests/unit/squashfs/test_splice.py.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from hpcstack.core.errors import StoreError

FICLONERANGE = 0x4020940D  # ioctl_ficlonerange(2)
ALIGNED = 4096  # bytes of a block: filesystems share whole blocks only
PIECE = 8 << 20
# Bytes that the kernel copies in one call. After each call, other threads can write out what was
# copied, and drop it from the page cache.
AT_ONCE = 64 << 20
# Errors that mean "not with these files", after which the next way is tried.
REFUSED = {
    errno.EXDEV,
    errno.EOPNOTSUPP,
    errno.ENOTTY,
    errno.EINVAL,
    errno.ENOSYS,
    errno.EPERM,
    errno.ETXTBSY,
    errno.EBADF,
}


def copy_bytes(source: int, start: int, target: int, at: int, size: int) -> str:
    """Copy SIZE bytes of SOURCE from START to TARGET from AT; both are file descriptors.

    Return how most of them were copied: `shared`, `kernel` or `plain`. Raise StoreError if SOURCE
    ends too early.
    """
    shared = 0
    if start % ALIGNED == 0 and at % ALIGNED == 0:
        shared = _clone(source, start, target, at, size - size % ALIGNED)
    how = _copy_in_kernel(source, start + shared, target, at + shared, size - shared)
    return "shared" if shared else how


def clone_blocks(source: int, target: int, size: int) -> bool:
    """Let TARGET share the first SIZE bytes, whole blocks, of SOURCE. Return whether it does."""
    return _clone(source, 0, target, 0, size) > 0


def _clone(source: int, start: int, target: int, at: int, size: int) -> int:
    """Let TARGET share SIZE bytes of SOURCE. Return how many are shared: SIZE, or 0."""
    if not size:
        return 0
    try:
        fcntl.ioctl(target, FICLONERANGE, struct.pack("=qQQQ", source, start, size, at))
    except OSError as error:
        if error.errno in REFUSED:
            return 0
        raise
    return size


def _copy_in_kernel(source: int, start: int, target: int, at: int, size: int) -> str:
    """Copy by copy_file_range(2), or else by reading and writing. Return `kernel` or `plain`."""
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
        # Some of the kernel's filesystems return 0 instead of an error:
        # https://lwn.net/Articles/846403/
        if not count:
            _copy_by_hand(source, start + done, target, at + done, size - done)
            return "plain"
        done += count
    return "kernel"


def _copy_by_hand(source: int, start: int, target: int, at: int, size: int) -> None:
    """Copy by reading and writing. Raise StoreError if SOURCE ends too early."""
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
    """Write all of DATA to TARGET, from AT on."""
    rest = memoryview(data)
    while rest:
        count = os.pwrite(target, rest, at)
        rest, at = rest[count:], at + count
