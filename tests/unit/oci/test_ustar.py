"""Plain headers read by hand are what the standard library reads; what it would read in another way
is left to it.
"""

from __future__ import annotations

import tarfile
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpcstack.oci.headers import make_header
from hpcstack.oci.tar import Flow, Header, Members
from hpcstack.oci.ustar import passes_on, read_plain

KINDS = st.sampled_from([tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE,
                         tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE])  # fmt: skip
FORMATS: st.SearchStrategy[Literal[0, 1, 2]] = st.sampled_from(
    [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
)
SHOWN = ("name", "mode", "uid", "gid", "size", "mtime", "type", "linkname", "pax_headers")


@st.composite
def members(draw: st.DrawFn) -> tarfile.TarInfo:
    member = tarfile.TarInfo(
        draw(st.text(min_size=1, max_size=120).filter(lambda text: "\0" not in text))
    )
    member.type = draw(KINDS)
    member.linkname = draw(st.text(max_size=110).filter(lambda text: "\0" not in text))
    member.mode, member.mtime = draw(st.integers(0, 0o7777777)), draw(st.integers(0, 2**34))
    member.uid, member.gid = draw(st.integers(0, 2**22)), draw(st.integers(0, 2**22))
    member.size = draw(st.integers(0, 2000)) if member.type == tarfile.REGTYPE else 0
    return member


def of_library(block: bytes) -> tarfile.TarInfo | None:
    """What the standard library makes of BLOCK, with nothing after it."""
    try:
        found = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return None
    if found.isdir():
        found.name = found.name.rstrip("/")
    return found


@given(member=members(), how=FORMATS)
def test_what_is_read_is_what_the_library_reads(
    member: tarfile.TarInfo, how: Literal[0, 1, 2]
) -> None:
    try:
        data = member.tobuf(how, "utf-8", "surrogateescape")
    except ValueError:
        return
    mine = Header()
    block = data[:512]
    if read_plain(block, mine):
        theirs = of_library(block)
        assert theirs is not None
        assert {name: getattr(mine, name) for name in SHOWN} == {
            name: getattr(theirs, name) for name in SHOWN
        }
        if passes_on(block, mine):
            again = of_library(make_header(mine, mine.name))
            assert again is not None
            assert {name: getattr(again, name) for name in SHOWN} == {
                name: getattr(theirs, name) for name in SHOWN
            }


@example(member=tarfile.TarInfo("a"), place=337, value=1, whole=True)  # no device number
@given(member=members(), place=st.integers(0, 511), value=st.integers(0, 255), whole=st.booleans())
def test_a_header_with_a_wrong_byte_is_read_as_the_library_reads_it(
    member: tarfile.TarInfo, place: int, value: int, whole: bool
) -> None:
    """WHOLE: with the checksum made right again, so that the fields themselves are odd."""
    try:
        block = bytearray(member.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")[:512])
    except ValueError:
        return
    block[place] = value
    if whole and not 148 <= place < 156:
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
    mine = Header()
    if read_plain(bytes(block), mine):
        theirs = of_library(bytes(block))
        assert theirs is not None
        assert {name: getattr(mine, name) for name in SHOWN} == {
            name: getattr(theirs, name) for name in SHOWN
        }


def test_a_header_that_is_passed_on_is_the_very_one() -> None:
    member = tarfile.TarInfo("usr/lib/a.py")
    member.size = 5
    data = member.tobuf(tarfile.USTAR_FORMAT) + b"pass\n".ljust(512, b"\0") + bytes(1024)
    (found,) = list(Members(Flow(iter([data]))))
    assert found.block == data[:512] == make_header(found, "usr/lib/a.py")
    assert make_header(found, "other.py") != data[:512], "under another name it is made anew"
    assert make_header(found, "usr/lib/a.py", "usr/lib/b.py")[156:157] == tarfile.LNKTYPE


def test_a_global_pax_header_still_counts_for_plain_members() -> None:
    first = tarfile.TarInfo("a")
    data = (
        tarfile.TarInfo.create_pax_global_header({"mtime": "7"})
        + first.tobuf(tarfile.USTAR_FORMAT)
        + bytes(1024)
    )
    (found,) = list(Members(Flow(iter([data]))))
    assert found.mtime == 7
    assert not found.block


@pytest.mark.parametrize(
    "number", [b"+0002000", b"0o002000", b"0_002000", b" 0002000", b"00002000"]
)
def test_a_number_that_readers_take_in_two_ways_is_not_passed_on(number: bytes) -> None:
    """A packer takes `+2000` for 0, and the file's body for more members."""
    member = tarfile.TarInfo("a")
    member.size = 1024
    block = bytearray(member.tobuf(tarfile.USTAR_FORMAT)[:512])
    block[124:136] = number.ljust(11, b" " if number.startswith(b"0000") else b"\0") + b"\0"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    mine = Header()
    assert read_plain(bytes(block), mine) is (number == b"00002000")


def test_what_stands_behind_the_end_of_a_text_is_not_passed_on() -> None:
    block = bytearray(tarfile.TarInfo("a").tobuf(tarfile.USTAR_FORMAT)[:512])
    for place in (50, 200, 400, 505):
        odd = bytearray(block)
        odd[place] = 65
        odd[148:156] = b" " * 8
        odd[148:156] = b"%06o\0 " % sum(odd)
        mine = Header()
        assert not read_plain(bytes(odd), mine) or not passes_on(bytes(odd), mine)
