"""Read plain tar headers, which most members of most layers have, faster than the standard library.

This takes a sixth of the time; with an image of 300,000 small files, that saves a third of an
import. What is not plain is not read here: long names, PAX, GNU's extensions, base-256 numbers, a
checksum of the old kind.
"""

from __future__ import annotations

import tarfile
import zlib

USTAR, NUL = b"ustar\x0000", b"\0"
# Device numbers, two fields, of what is no device: as Go, GNU tar and others write them.
NO_DEVICE = (b"0000000\0" * 2, bytes(16), b"000000 \0" * 2)
PLAIN = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE)
# The modulus of adler32, whose lower half is 1 plus the sum of all bytes: the fastest sum of bytes
# in the standard library. It overlooks a checksum that is wrong by exactly a multiple of this.
MODULUS = 65521


def read_plain(block: bytes, member: tarfile.TarInfo) -> bool:
    """Read BLOCK, 512 bytes, into MEMBER, a new one. Return False if it is not a plain header."""
    kind = block[156:157]
    if block[257:265] != USTAR or block[345] or kind not in PLAIN:
        return False
    if block[329:345] not in NO_DEVICE:
        return False
    try:
        # The checksum is of the header with blanks in the place of the checksum: 8 times 32 = 256.
        claimed = parse_octal(block[148:156])
        if ((zlib.adler32(block) & 0xFFFF) - 1 - sum(block[148:156]) + 256 - claimed) % MODULUS:
            return False
        member.mode = parse_octal(block[100:108])
        member.uid = parse_octal(block[108:116])
        member.gid = parse_octal(block[116:124])
        member.size = parse_octal(block[124:136])
        member.mtime = parse_octal(block[136:148])
    except ValueError:
        return False
    name = block[:100].partition(NUL)[0].decode("utf-8", "surrogateescape")
    member.name, member.type, member.chksum = name, kind, claimed
    if kind == tarfile.DIRTYPE:
        member.name = name.rstrip("/")
    if block[157]:
        member.linkname = block[157:257].partition(NUL)[0].decode("utf-8", "surrogateescape")
    return True


def parse_octal(field: bytes) -> int:
    """Read a number of a header: octal digits, then blanks or NULs.

    Raise ValueError for anything else. `+7`, `0o7` and `0_7` are numbers to Python's `int`, and 0
    to a packer; they must not mean two things.
    """
    digits = field.rstrip(b"\0 ")
    if not digits.isdigit():
        raise ValueError
    return int(digits, 8)


def passes_on(block: bytes, member: tarfile.TarInfo) -> bool:
    """Return whether BLOCK can be passed to a packer as it is.

    `read_plain` has read it into MEMBER. Nothing in it may have two meanings: so it must name a
    file or a folder, and hide nothing behind the end of a text.
    """
    if member.mode >= 0o10000 or not member.name.isascii() or not member.name:
        return False
    if b"\0" in block[:100].rstrip(NUL) or block[157:257].strip(NUL) or block[345:].strip(NUL):
        return False
    return member.type == tarfile.REGTYPE or (member.type == tarfile.DIRTYPE and member.size == 0)
