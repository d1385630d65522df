"""Write the tar headers that the packer gets.

Names are below the root, and nothing in them can be read in two ways.

Tested in tests/unit/oci/test_ustar.py and tests/unit/oci/test_importer.py.
"""

from __future__ import annotations

import math
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

XATTR, OTHER_XATTR = "SCHILY.xattr.", "LIBARCHIVE.xattr."
KEPT = ("user.", "trusted.", "security.")  # the namespaces that squashfs holds; POSIX ACLs are not
MODE = 0o7777
OWNER, SIZE = 1 << 21, 1 << 33  # what a plain header's octal fields cannot hold any more
END = bytes(2 * tarfile.BLOCKSIZE)
ROOT = "."


def make_header(member: tarfile.TarInfo, path: str, link: str = "") -> bytes:
    """Return the header of MEMBER under the name PATH.

    With LINK, it is a hard link to that file, and has no content.
    """
    block: bytes = getattr(member, "block", b"")
    if block and not link and path == member.name:
        return block  # as it came; oci/ustar.py has found it to be plain

    kind = member.type
    if link:
        kind = tarfile.LNKTYPE
    elif _is_file(member):
        kind = tarfile.REGTYPE
    size = 0
    if kind == tarfile.REGTYPE:
        size = member.size
    target = link
    if kind == tarfile.SYMTYPE:
        target = member.linkname
    xattrs = {}
    if member.pax_headers and not link:  # those of a hard link are its file's
        xattrs = _xattrs(member.pax_headers)
    mtime = 0
    if math.isfinite(member.mtime):  # a PAX header may say `nan`
        mtime = max(0, int(member.mtime))

    ascii_names = path.isascii() and target.isascii()
    if ascii_names and not xattrs and len(path) <= 100 and len(target) <= 100:
        small = 0 <= member.uid < OWNER and 0 <= member.gid < OWNER and size < SIZE and mtime < SIZE
        if small:
            return _make_plain(path or ROOT, member, size, mtime, kind, target)

    # Anything else needs PAX headers, which the standard library writes.
    out = tarfile.TarInfo(path or ROOT)
    out.mode, out.uid, out.gid, out.mtime = member.mode & MODE, member.uid, member.gid, mtime
    out.size, out.type, out.linkname, out.pax_headers = size, kind, target, xattrs
    return out.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _is_file(member: tarfile.TarInfo) -> bool:
    """Return whether MEMBER is a regular file. POSIX has unknown types read as such."""
    return member.isreg() or member.type not in tarfile.SUPPORTED_TYPES


def _make_plain(
    path: str, member: tarfile.TarInfo, size: int, mtime: int, kind: bytes, target: str
) -> bytes:
    """Return a ustar header without extensions.

    The standard library's more general way is slower, and an image has hundreds of thousands.
    """
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
    """Return the extended attributes among the PAX FIELDS that a squashfs can hold.

    libarchive writes each of them twice, once by each prefix: only one prefix is read.
    """
    own = {name: value for name, value in fields.items() if name.startswith(XATTR)}
    if not own:
        own = {name: value for name, value in fields.items() if name.startswith(OTHER_XATTR)}

    kept = {}
    for name, value in own.items():
        attribute = name.partition(".xattr.")[2]
        if attribute.startswith(KEPT):
            kept[name] = value
    return kept
