"""The layer that makes an image of its base, applied by hand: it gives the image, file by file."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import stat
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hpcstack.oci.compress import MEMBER, compress_layer
from hpcstack.oci.delta_layer import find_delta, write_delta
from hpcstack.oci.headers import XATTR
from hpcstack.squashfs.read import Squashfs
from support.splicing import Case, need_overlay
from support.trees import listing, trust_archive

Listing = dict[str, list[Any]]
NEVER: frozenset[str] = frozenset()


@pytest.fixture
def case(tmp_path: Path) -> Case:
    need_overlay()
    return Case(tmp_path)


def make_layer(base: Path, image: Path, always: frozenset[str] = NEVER) -> bytes:
    with Squashfs(base) as below, Squashfs(image) as above:
        return b"".join(write_delta(find_delta(below, above, always), above))


def unpack(image: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    argv = ["unsquashfs", "-no-progress", "-quiet", "-d", str(folder), str(image)]
    subprocess.run(argv, check=True, capture_output=True)
    return folder


def apply_layer(layer: bytes, top: Path) -> None:
    """LAYER over TOP, as the image specification says: whiteouts, and what replaces what is there."""
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        trust_archive(tar)
        folders = []
        for member in tar:
            path = top / member.name
            name = path.name
            if name.startswith(".wh."):
                gone = path.with_name(name.removeprefix(".wh."))
                if gone.is_dir() and not gone.is_symlink():
                    shutil.rmtree(gone)
                else:
                    gone.unlink(missing_ok=True)
                continue
            is_folder = path.is_dir() and not path.is_symlink()
            if is_folder and not member.isdir():
                shutil.rmtree(path)
            elif os.path.lexists(path) and not (is_folder and member.isdir()):
                path.unlink()
            if member.islnk():
                os.link(top / member.linkname, path)
                continue
            tar.extract(member, top)
            for field, value in member.pax_headers.items():
                if field.startswith(XATTR):
                    data = value.encode("utf-8", "surrogateescape")
                    os.setxattr(path, field.removeprefix(XATTR), data, follow_symlinks=False)
            if member.isdir():
                folders.append((path, member))
        for path, member in folders:
            path.chmod(member.mode)


def compared(found: Listing) -> Listing:
    """FOUND without owners, and without times and attributes of folders, which do not count."""
    out = {}
    for path, (mode, _, _, time, size, content, device, xattrs, same) in found.items():
        kind = stat.S_IFMT(int(mode, 8))
        # Python's tarfile gives links no time.
        counts = kind not in (stat.S_IFDIR, stat.S_IFLNK)
        out[path] = [mode, time if counts else 0, size, content, device, xattrs, same]
    return out


@pytest.mark.soak("drawn changes: some are enough", but=lambda seed: seed < 6)
@pytest.mark.parametrize("seed", range(20))
def test_it_makes_the_image_of_its_base(case: Case, seed: int) -> None:
    case.make_base(seed, 80)
    for number in range(1 + seed % 3):
        case.change_by(seed * 100 + number, 5 + seed * 4)
    case.splice()
    base, image = case.folder / "base.sqsh", case.folder / "out.sqsh"
    layer = make_layer(base, image)

    expected = listing(unpack(image, case.folder / "expected"))
    top = unpack(base, case.folder / "applied")
    apply_layer(layer, top)
    assert compared(listing(top)) == compared(expected)

    # The same image, packed by itself: it shares no bytes with its base, and has such a layer, too.
    (case.folder / "alone").mkdir()
    shutil.move(str(case.folder / "expected"), str(case.folder / "alone/tree"))
    alone = case.pack("alone/tree", "alone.sqsh")
    top = unpack(base, case.folder / "applied")
    apply_layer(make_layer(base, alone), top)
    assert compared(listing(top)) == compared(listing(case.folder / "alone/tree"))


def test_what_has_not_changed_is_not_in_it(case: Case) -> None:
    case.make_base(5, 200)
    case.change("mkdir -p opt/new; echo new > opt/new/file; ln -s file opt/new/link")
    case.splice()
    layer = make_layer(case.folder / "base.sqsh", case.folder / "out.sqsh")
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        assert tar.getnames() == ["opt", "opt/new", "opt/new/file", "opt/new/link"]
    assert len(layer) < 8192


def test_what_import_has_added_is_always_in_it(case: Case) -> None:
    case.make_base(5, 20)
    (case.folder / "base/etc").mkdir()
    (case.folder / "base/etc/empty").mkdir()
    (case.folder / "base/etc/rc").write_text("exec x\n")
    case.pack("base", "base.sqsh")
    case.change("touch new")
    case.splice()
    files = (case.folder / "base.sqsh", case.folder / "out.sqsh")
    layer = make_layer(*files, frozenset({"etc/rc", "etc/none", "etc/empty"}))
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        assert tar.getnames() == ["etc", "etc/empty", "etc/rc", "new"]


def test_a_link_to_cuda_that_import_left_out_is_removed(case: Case) -> None:
    """NVIDIA's layers have it; the base that was imported of them does not."""
    (case.folder / "base/usr/local/cuda-12.6/compat/lib.real").mkdir(parents=True)
    case.pack("base", "base.sqsh")
    case.change("touch usr/local/cuda-12.6/new")
    case.splice()
    with Squashfs(case.folder / "base.sqsh") as base, Squashfs(case.folder / "out.sqsh") as image:
        delta = find_delta(base, image)
    assert delta.gone == [b"usr/local/cuda-12.6/compat/lib"]


def test_what_no_layer_can_have_is_told(case: Case) -> None:
    """A file with a whiteout's name would remove another one wherever the layer is unpacked."""
    case.make_base(5, 20)
    (case.folder / "base/keep").write_text("x")
    (case.folder / "base/turns").write_text("x")
    case.pack("base", "base.sqsh")
    case.change("echo y > .wh.keep; rm turns; mknod turns p; touch new")
    case.splice()
    with Squashfs(case.folder / "base.sqsh") as base, Squashfs(case.folder / "out.sqsh") as image:
        delta = find_delta(base, image)
    assert delta.skipped == [b".wh.keep"]
    assert sorted(delta.changed) == [b"new", b"turns"]


@pytest.mark.parametrize("size", [0, 1, MEMBER, MEMBER + 1, 3 * MEMBER])
def test_a_layer_is_one_gzip_file(size: int) -> None:
    plain = os.urandom(size // 2) + bytes(size - size // 2)
    pieces = [plain[at : at + 70_000] for at in range(0, size, 70_000)]
    out, again = io.BytesIO(), io.BytesIO()
    done = compress_layer(pieces, out)
    assert compress_layer([plain], again) == done
    assert gzip.decompress(out.getvalue()) == plain if size else out.getvalue() == b""
    assert (done.size, done.plain_size) == (len(out.getvalue()), size)
