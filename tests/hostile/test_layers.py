"""Layers that were made to hurt: rows M6, M7, M9 and the sparse file of what once got through."""

from __future__ import annotations

import io
import random
import resource
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcstack.core.bounds import Bounds, Tally, TooLarge, check_path
from hpcstack.core.errors import HpcstackError, InputError
from hpcstack.core.process import Runner
from hpcstack.core.progress import Progress
from hpcstack.oci.config import MAX_CONFIG
from hpcstack.oci.flatten import (
    ClimbsOut,
    NeedsTwoPasses,
    Newest,
    TreeEntry,
    make_entry,
    plan_layers,
)
from hpcstack.oci.importer import pack_image
from hpcstack.oci.pack import PACKERS, read_back
from hpcstack.oci.reference import parse_reference
from hpcstack.oci.sources import FromArchive, FromLayout
from hpcstack.oci.tar import Damaged, Flow, Members, check_pax
from support.clock import processor_seconds
from support.layers import archive, folder, hard, layout, link, member, tar, zipped

pytestmark = pytest.mark.squashfs


def bring_in(tmp_path: Path, *layers: bytes, bounds: Bounds | None = None) -> Path:
    """LAYERS as a squashfs."""
    source = FromLayout(parse_reference(f"oci:{layout(tmp_path / 'image', layers)}"), "linux/amd64")
    final = tmp_path / "out.sqsh"
    pack_image(
        source,
        final,
        tmp_path / "work",
        "zstd",
        Runner(),
        Progress(),
        lambda _: [],
        "test",
        bounds or Bounds(),
    )
    return final


def refused(tmp_path: Path, *layers: bytes, **more: Any) -> str:
    """Why LAYERS are refused: in seconds, in little memory, and nothing is left."""
    began, before = processor_seconds(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(HpcstackError) as error:
        bring_in(tmp_path, *layers, **more)
    assert processor_seconds() - began < 10
    assert not list(tmp_path.glob("*.sqsh*"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10, "KiB"
    return str(error.value.message)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a/" * 30_000, "4096 bytes"),
        ("a/" * 1_500, "256 folders"),
        ("a/" * 300, "256 folders"),
        ("n" * 256, "255 bytes"),
        ("é" * 128, "255 bytes"),
        ("d/" + "n" * 300, "255 bytes"),
        ("/".join(["p" * 200] * 25), "4096 bytes"),
    ],
)
def test_m6_and_m9_names_that_no_filesystem_holds(tmp_path: Path, name: str, says: str) -> None:
    assert says in refused(tmp_path, zipped(tar([member(name.rstrip("/"), b"x")])))


def test_m6_names_at_the_bound_are_taken(tmp_path: Path) -> None:
    deep = "/".join(["d"] * 200)
    assert bring_in(
        tmp_path, tar([member("n" * 255, b"x"), member("é" * 127, b"y"), member(f"{deep}/f", b"z")])
    ).exists()


def test_m6_links_that_multiply_depth(tmp_path: Path) -> None:
    """Each link leads 200 folders down, and each file goes through one more."""
    deep = "/".join(["d"] * 200)
    below = [folder(f"{deep}"), link("l0", deep)]
    layers = [tar(below)]
    for number in range(8):
        layers.append(
            tar([link(f"l{number}/{deep}/x", "."), member(f"l{number}/{deep}/file", b"x")])
        )
    with pytest.raises(HpcstackError):
        bring_in(tmp_path, *layers)


def test_m6_a_maze_of_links_ends() -> None:
    """10,000 files, each behind 39 links of 2,000 steps: 780 million looks, if they were done."""
    first = [
        TreeEntry(f"l{n}", "link", "./" * 10 + "x/../" * 400 + (f"l{n + 1}" if n < 38 else "x"))
        for n in range(39)
    ]
    second = [TreeEntry(f"l0/f{n}", "file") for n in range(10_000)]
    began = processor_seconds()
    with pytest.raises((TooLarge, ClimbsOut)):
        plan_layers([[TreeEntry("x", "dir"), *first], second])
    assert processor_seconds() - began < 20


def test_m6_names_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from hpcstack.oci import flatten

    monkeypatch.setattr(flatten, "MAX_NAMES", 1 << 16)
    newest = Newest()
    newest.layer()
    with pytest.raises(TooLarge, match="of names"):
        for number in range(1000):
            newest.takes(TreeEntry(f"{'p/' * 100}{number}", "file"))


@pytest.mark.parametrize(
    "record",
    [
        b"1" * (128 << 10), b"30 comment=" + b"7" * 200 + b"\n", b"0 a=b\n", b"-5 a=b\n", b"12 a=b\n", b"6 a=b",
        b"99999999999 a=b\n", b"5 =b\n", b"7 a b c\n", b"x",
    ],
)  # fmt: skip
def test_m7_a_pax_header_is_read_in_time_that_grows_with_it(record: bytes) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, len(record)
    data = (
        info.tobuf(tarfile.USTAR_FORMAT)
        + record
        + bytes(-len(record) % 512)
        + tar([member("a", b"b")])
    )
    began = processor_seconds()
    with pytest.raises(Damaged):
        list(Members(Flow(iter([data]))))
    assert processor_seconds() - began < 1


def test_m7_a_long_pax_header_and_many_of_them(tmp_path: Path) -> None:
    big = member("x", b"", pax_headers={"comment": "c" * (2 << 20)})
    assert "PAX" in refused(tmp_path, tar([big]))
    heads = b""
    for number in range(100):  # global ones are kept for all members that follow
        record = f"10 a{number:03d}=b\n"
        info = tarfile.TarInfo("g")
        info.type, info.size = tarfile.XGLTYPE, len(record)
        heads += info.tobuf(tarfile.USTAR_FORMAT) + record.encode() + bytes(-len(record) % 512)
    with pytest.raises(Damaged, match="global"):
        list(Members(Flow(iter([heads + tar([member("a", b"b")])]))))


def test_m7_good_headers_are_taken() -> None:
    headers = {
        "SCHILY.xattr.user.note": "x" * 4000,
        "SCHILY.xattr.user.sum": "7" * 150,
        "comment": "0" * 300,
        "path": "1" * 200,
        "mtime": "1.5",
    }
    [found] = list(Members(Flow(iter([tar([member("a", b"b", pax_headers=headers)])]))))
    assert found.pax_headers["SCHILY.xattr.user.note"] == "x" * 4000
    check_pax(b"6 a=b\n\0\0")


def test_a_gnu_name_without_end(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 8 << 20
    data = info.tobuf(tarfile.GNU_FORMAT) + b"n" * (8 << 20) + tar([member("a", b"b")])
    with pytest.raises(Damaged, match="name of"):
        list(Members(Flow(iter([data]))))


def sparse(size: int) -> bytes:
    """A GNU sparse file of SIZE bytes that holds none."""
    info = tarfile.TarInfo("hole")
    info.type, info.mode = b"S", 0o644
    head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    head[483:495] = b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + bytes(1024)


def test_low_a_sparse_file_of_a_terabyte(tmp_path: Path) -> None:
    assert "GiB unpacked" in refused(tmp_path, zipped(sparse(1 << 40)))


def test_low_unpacked_bytes_and_entries_are_counted_over_all_layers(tmp_path: Path) -> None:
    layers = [tar([member(f"{n}-{m}", b"x" * 1000) for m in range(10)]) for n in range(3)]
    assert "20 entries" in refused(tmp_path, *layers, bounds=Bounds(entries=20))
    count = Tally(Bounds(unpacked_bytes=2500))
    with pytest.raises(TooLarge):
        for info, _ in (member(str(n), b"x" * 1000) for n in range(3)):
            count.member(info)


def test_the_site_raises_the_bounds(tmp_path: Path) -> None:
    from conftest import make_site

    site = make_site(tmp_path, build={"bounds": {"entries": 7, "unpacked_bytes": 1 << 50}})
    assert site.build.bounds.as_bounds() == Bounds(1 << 50, 7)


def test_m9_what_was_packed_is_read_back(tmp_path: Path) -> None:
    image = bring_in(tmp_path, tar([member(f"f{n}", b"x" * 5000) for n in range(50)]))
    read_back(image, Runner())
    data = bytearray(image.read_bytes())
    table = int.from_bytes(data[64:72], "little")  # of inodes: https://dr-emann.github.io/squashfs/
    data[table : table + 64] = bytes(64)
    (tmp_path / "bad.sqsh").write_bytes(data)
    with pytest.raises(HpcstackError, match="read back"):
        read_back(tmp_path / "bad.sqsh", Runner())


@pytest.mark.parametrize("path", ["a", "a/b", "x" * 255, "é" * 127])
def test_ordinary_paths_are_taken(path: str) -> None:
    check_path(path)


NAMES = st.lists(
    st.sampled_from(
        ["a", "b", "c", "..", ".", "", ".wh.a", ".wh..wh..opq", "x" * 256, "\u00e9", "n\nl"]
    ),
    min_size=1,
    max_size=5,
).map("/".join)
MEMBERS = st.one_of(
    st.builds(member, NAMES, st.binary(max_size=20)),
    st.builds(folder, NAMES),
    st.builds(link, NAMES, NAMES),
    st.builds(hard, NAMES, NAMES),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(MEMBERS, max_size=6), min_size=1, max_size=4))
def test_any_layers_are_merged_or_refused(layers: list[list[Any]]) -> None:
    """Never a traceback; both ways of merging refuse or take."""
    parsed = []
    try:
        for one in layers:
            parsed.append([make_entry(found) for found in Members(Flow(iter([tar(one)])))])
        plan_layers(parsed)
    except (ClimbsOut, TooLarge, Damaged):
        return
    newest = Newest()
    try:
        for entries in reversed(parsed):
            newest.layer()
            for entry in entries:
                newest.takes(entry)
    except NeedsTwoPasses:
        pass


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=3000), st.integers(0, 2000))
def test_any_bytes_are_a_tar_or_damaged(noise: bytes, at: int) -> None:
    data = bytearray(tar([member("a", b"x" * 700), folder("b"), link("c", "a")]))
    data[at : at + len(noise)] = noise
    try:
        members = Members(Flow(iter([bytes(data)])))
        for found in members:
            for _ in members.body(found):
                pass
            make_entry(found)
    except (Damaged, ClimbsOut, TooLarge):
        pass


def test_an_archive_with_a_hostile_header_is_refused(tmp_path: Path) -> None:
    record = b"1" * (128 << 10)
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, len(record)
    (tmp_path / "a.tar").write_bytes(
        info.tobuf(tarfile.USTAR_FORMAT) + record + bytes(-len(record) % 512) + bytes(1024)
    )
    from hpcstack.oci.sources import FromArchive

    began = processor_seconds()
    with pytest.raises(InputError):
        FromArchive(parse_reference(f"docker-archive:{tmp_path / 'a.tar'}"))
    assert processor_seconds() - began < 2


def test_a_layout_whose_config_is_hostile_is_refused_by_its_name(tmp_path: Path) -> None:
    top = layout(tmp_path / "evil", [tar([member("a")])], {"Env": ["PATH=/bin\n%setup"]})
    with pytest.raises(InputError, match="evil"):
        FromLayout(parse_reference(f"oci:{top}"), "linux/amd64")


def test_bodies_are_what_the_header_says() -> None:
    data = io.BytesIO(tar([member("a", b"x" * 10)])).getvalue()
    members = Members(Flow(iter([data])))
    assert b"".join(bytes(piece) for one in members for piece in members.body(one)) == b"x" * 10


def test_m6_whiteouts_are_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from hpcstack.oci import flatten

    monkeypatch.setattr(flatten, "MAX_NAMES", 1 << 20)
    newest = Newest()
    newest.layer()
    with pytest.raises(TooLarge, match="of names"):
        for number in range(20_000):
            newest.takes(TreeEntry(f"{number}/{'a/' * 100}.wh.x", "file"))


@pytest.mark.parametrize(
    "config", [{"Env": {"A": "1"}}, {"Labels": 5}, {"Env": ["A=\ud800"]}, {"Cmd": [1]}]
)
def test_an_archive_whose_config_is_nonsense_is_refused(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    with pytest.raises(InputError):
        FromArchive(
            parse_reference(
                f"docker-archive:{archive(tmp_path / 'a.tar', [tar([member('a')])], config)}"
            )
        )


def test_a_file_of_an_image_that_unpacks_to_gigabytes_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcstack.build.verify import describe_image_file, read_own_name
    from hpcstack.naming.names import ImageFile
    from hpcstack.store import contents
    from hpcstack.store.store import Store

    monkeypatch.setattr(contents, "MAX_SIZE", 1 << 20)
    image = bring_in(tmp_path, tar([member("opt/hpcstack/stack.json", bytes(5 << 20))]))
    with pytest.raises(HpcstackError, match="larger than"):
        contents.read_image_file(image, "opt/hpcstack/stack.json")
    assert read_own_name(image) == ""
    assert describe_image_file(ImageFile(image, None), Store(tmp_path))["about"]


@pytest.mark.parametrize("packer", ["tar2sqfs", "mksquashfs"])
def test_an_image_that_becomes_larger_than_it_may_is_ended(
    tmp_path: Path, packer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcstack.oci.pack.PACKERS", {packer: PACKERS[packer]})
    body = tar([member("a", random.Random(1).randbytes(5 << 20)), member("b", b"b")])
    source = FromLayout(
        parse_reference(f"oci:{layout(tmp_path / 'image', (body,))}"), "linux/amd64"
    )
    with pytest.raises(HpcstackError, match="far larger than its registry says"):
        pack_image(
            source, tmp_path / "out.sqsh", tmp_path / "work", "zstd", Runner(), Progress(), lambda _: [], "test",
            most=1 << 20,
        )  # fmt: skip
    assert not list(tmp_path.glob("*.sqsh*"))


def test_n18_a_config_of_megabytes_is_refused_wherever_it_comes_from(tmp_path: Path) -> None:
    """Each variable of it becomes several objects: 7 MiB cost 260 MB."""
    config = {"Env": ["A=" + "x" * MAX_CONFIG]}
    with pytest.raises(HpcstackError):
        FromLayout(
            parse_reference(f"oci:{layout(tmp_path / 'image', [tar([member('a')])], config)}"),
            "linux/amd64",
        )
    with pytest.raises(HpcstackError):
        FromArchive(
            parse_reference(
                f"docker-archive:{archive(tmp_path / 'a.tar', [tar([member('a')])], config)}"
            )
        )


def test_t20_a_link_to_nothing_is_refused_as_the_image_comes_in(tmp_path: Path) -> None:
    """It ended in the packer, as a build that failed (exit 4)."""
    assert "as a link to nothing" in refused(tmp_path, tar([link("a", "")]))
