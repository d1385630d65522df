"""Tar headers as the packer is given them: names below the root, nothing that a packer could take
in two ways.
"""

from __future__ import annotations

import math
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

XATTR, OTHER_XATTR = "SCHILY.xattr.", "LIBARCHIVE.xattr."
KEPT = ("user.", "trusted.", "security.")  # what a squashfs can hold; POSIX ACLs are not among it
MODE, OWNER, SIZE = 0o7777, 1 << 21, 1 << 33
END = bytes(2 * tarfile.BLOCKSIZE)
ROOT = "."


def make_header(member: tarfile.TarInfo, path: str, link: str = "") -> bytes:
    """The header of MEMBER as PATH.

    With LINK it is another name of that file, and has no content.
    """
    block: bytes = getattr(member, "block", b"")
    if block and not link and path == member.name:
        return block
    kind = member.type
    if link:
        kind = tarfile.LNKTYPE
    elif _file(member):
        kind = tarfile.REGTYPE
    size = member.size if kind == tarfile.REGTYPE else 0
    target = link or (member.linkname if kind == tarfile.SYMTYPE else "")
    xattrs = {} if link or not member.pax_headers else _xattrs(member.pax_headers)
    mtime = max(0, int(member.mtime)) if math.isfinite(member.mtime) else 0
    if (
        not xattrs
        and len(path) <= 100
        and len(target) <= 100
        and path.isascii()
        and target.isascii()
    ):
        small = 0 <= member.uid < OWNER and 0 <= member.gid < OWNER and size < SIZE and mtime < SIZE
        if small:
            return _plain(path or ROOT, member, size, mtime, kind, target)
    out = tarfile.TarInfo(path or ROOT)
    out.mode, out.uid, out.gid, out.mtime = member.mode & MODE, member.uid, member.gid, mtime
    out.size, out.type, out.linkname, out.pax_headers = size, kind, target, xattrs
    return out.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _file(member: tarfile.TarInfo) -> bool:
    return member.isreg() or member.type not in tarfile.SUPPORTED_TYPES


def _plain(
    path: str, member: tarfile.TarInfo, size: int, mtime: int, kind: bytes, target: str
) -> bytes:
    """A ustar header, made without the library's generality: an image has hundreds of thousands."""
    block = bytearray(
        b"%-100b%07o\0%07o\0%07o\0%011o\0%011o\0        %b%-100bustar\x0000"
        % (
            path.encode().ljust(100, b"\0"),
            member.mode & MODE,
            member.uid,
            member.gid,
            size,
            mtime,
            kind,
            target.encode().ljust(100, b"\0"),
        )
    )
    block += bytes(tarfile.BLOCKSIZE - len(block))
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _xattrs(fields: Mapping[str, str]) -> dict[str, str]:
    """The extended attributes among the PAX fields, each once."""
    own = {name: value for name, value in fields.items() if name.startswith(XATTR)}
    if not own:
        own = {name: value for name, value in fields.items() if name.startswith(OTHER_XATTR)}
    return {
        name: value for name, value in own.items() if name.partition(".xattr.")[2].startswith(KEPT)
    }
