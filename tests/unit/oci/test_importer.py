"""Import: what real packers make of layers in every form, and what is refused."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import make_site
from hpcstack.build.base import import_image
from hpcstack.build.workbench import Workbench
from hpcstack.core.errors import HpcstackError, InputError, RegistryError
from hpcstack.core.process import Runner
from hpcstack.core.progress import Progress
from hpcstack.oci import importer
from hpcstack.oci.client import Registry
from hpcstack.oci.decompress import PIECE, inflate_layer
from hpcstack.oci.importer import Imported
from hpcstack.oci.pack import PACKERS, pack_argv
from hpcstack.site.load import Site
from support.layers import archive, folder, hard, held, layout, link, member, sha, tar, zipped

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

pytestmark = pytest.mark.squashfs
Import = Callable[[Path | str], dict[str, tuple[str, bytes]]]


def bench(site: Site) -> Workbench:
    return Workbench(site, Registry(site), Runner(), Progress())


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path | str], Imported]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    site = make_site(tmp_path)

    def run(image: Path | str) -> Imported:
        return import_image(
            str(image), "linux/amd64", tmp_path / "out.sqsh", bench(site), force=True
        )

    return run


@pytest.fixture
def contents(imported: Callable[[Path | str], Imported]) -> Import:
    return lambda image: held(imported(image).path)


SMALL = tar(
    [folder("bin"), member("bin/sh", b"shell", mode=0o755), folder("etc"), member("etc/x", b"1")]
)
TOP = tar([member("etc/x", b"2"), member("etc/.wh.y"), member("new", b"n")])


SKIPPED = b"\x5f\x2a\x4d\x18\x04\0\0\0skip"  # RFC 8878, 3.1.2


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(lambda data: data, id="plain"),
        pytest.param(zipped, id="gzip"),
        pytest.param(
            lambda data: zipped(data[:700]) + zipped(data[700:]), id="gzip of two members"
        ),
        pytest.param(lambda data: zipped(data) + bytes(512), id="gzip and padding"),
        pytest.param(lambda data: zstd.compress(data), id="zstd"),
        pytest.param(
            lambda data: zstd.compress(data[:600]) + zstd.compress(data[600:]),
            id="zstd of two frames",
        ),
        pytest.param(lambda data: SKIPPED + zstd.compress(data), id="zstd as pzstd writes it"),
        pytest.param(
            lambda data: zstd.compress(data[:600]) + SKIPPED + zstd.compress(data[600:]) + SKIPPED,
            id="zstd with frames to be skipped",
        ),
    ],
)
def test_layers_in_every_compression(
    contents: Import, tmp_path: Path, stored: Callable[[bytes], bytes]
) -> None:
    found = contents(layout(tmp_path / "image", [stored(SMALL), stored(TOP)]))
    assert found["bin/sh"] == ("file", b"shell")
    assert found["etc/x"] == ("file", b"2")
    assert found["new"] == ("file", b"n")


def put_names(index: Path, *names: dict[str, str]) -> None:
    """Let INDEX list its image under each of NAMES, by the name's annotation."""
    document = json.loads(index.read_text())
    (entry,) = document["manifests"]
    document["manifests"] = [{**entry, "annotations": one} for one in names]
    index.write_text(json.dumps(document))


def pack(folder: Path) -> Path:
    """A tar of the layout FOLDER, as podman and buildx write it."""
    path = folder.with_suffix(".tar")
    with tarfile.open(path, "w") as tar:
        tar.add(folder, ".")
    return path


REF, CONTAINERD = "org.opencontainers.image.ref.name", "io.containerd.image.name"


@pytest.mark.parametrize("kind", ["oci", "oci-archive"])
@pytest.mark.parametrize(
    "name", ["", ":latest", ":1", ":h.example/demo:1", ":demo:1", ":docker.io/library/x:2"]
)
def test_a_layout_and_a_tar_of_one(contents: Import, tmp_path: Path, kind: str, name: str) -> None:
    """podman#13139: `oci-archive:A.tar` was looked for on Docker Hub."""
    top = layout(tmp_path / "image", [SMALL, TOP])
    if name:
        both = {REF: "2", CONTAINERD: "docker.io/library/x:2"}
        mine = {REF: name[1:]}
        if "demo" in name:
            mine = {REF: "1", CONTAINERD: "h.example/demo:1"}
        put_names(top / "index.json", both, mine)
    found = contents(f"{kind}:{pack(top) if kind == 'oci-archive' else top}{name}")
    assert found["etc/x"] == ("file", b"2")


@pytest.mark.parametrize("name", ["", ":3"])
def test_of_several_images_one_is_named(contents: Import, tmp_path: Path, name: str) -> None:
    top = layout(tmp_path / "image", [SMALL])
    put_names(top / "index.json", {REF: "1"}, {REF: "2"})
    with pytest.raises(InputError, match="several images, name one: 1, 2|contains no '3'"):
        contents(f"oci-archive:{pack(top)}{name}")


def test_what_three_runtimes_look_for_is_there(contents: Import, tmp_path: Path) -> None:
    found = contents(layout(tmp_path / "image", [SMALL]))
    assert found["etc/environment"] == ("file", b"PATH=/usr/bin:/bin\nA=1\n")
    assert b"cd /work" in found["etc/rc"][1]
    assert found["etc/fstab"][1] == b""
    assert found["work"][0] == "dir"
    assert b"A=1" in found[".singularity.d/env/10-docker2singularity.sh"][1]
    assert found["singularity"] == ("link", b".singularity.d/runscript")
    assert {"dev", "proc", "sys", "tmp", "var/tmp", "etc/resolv.conf"} <= set(found)


def test_what_the_image_brings_itself_stays(contents: Import, tmp_path: Path) -> None:
    own = tar(
        [
            folder(".singularity.d"),
            member(".singularity.d/notes", b"NVIDIA"),
            member("etc/hosts", b"own"),
        ]
    )
    found = contents(layout(tmp_path / "image", [own]))
    assert found[".singularity.d/notes"] == ("file", b"NVIDIA")
    assert found["etc/hosts"] == (
        "file",
        b"own",
    )


@pytest.mark.parametrize("cuda", ["cuda-12.6", "cuda"])
def test_r10_no_library_of_the_image_hides_a_nodes_driver(
    contents: Import, tmp_path: Path, cuda: str
) -> None:
    """NVIDIA's images have a link by which theirs comes first under Apptainer; what a lower layer
    has there stays away.
    """
    place = f"usr/local/{cuda}/compat"
    below = tar([folder("usr/local"), member(f"{place}/lib/libcuda.so.1", b"old")])
    above = tar([member(f"{place}/lib.real/libcuda.so.1", b"560"), link(f"./{place}/lib", f"/{place}/lib.real"),
                 link(f"{place}/other", "lib.real"), link("opt/lib", "lib.real")])  # fmt: skip
    found = contents(layout(tmp_path / "image", [below, above]))
    assert not [
        path for path in found if path == f"{place}/lib" or path.startswith(f"{place}/lib/")
    ]
    assert found[f"{place}/lib.real/libcuda.so.1"] == ("file", b"560")
    assert found[f"{place}/other"] == ("link", b"lib.real")
    assert found["opt/lib"] == (
        "link",
        b"lib.real",
    )


def test_links_long_names_and_no_devices(
    imported: Callable[[Path | str], Imported], tmp_path: Path
) -> None:
    long = "/".join(["d" * 90] * 4)
    base = tar([member("a", b"one"), hard("b", "a"), link("c", "a"), member(long, b"deep"), member("ü/ñ", b"u"),
                member("dev/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)])  # fmt: skip
    gnu = tar([member(long + "2", b"deeper"), link("to", "x" * 150)], tarfile.GNU_FORMAT)
    done = imported(layout(tmp_path / "image", [base, gnu]))
    found = held(done.path)
    assert found["b"] == ("file", b"one")
    assert found["c"] == ("link", b"a")
    assert found[long] == ("file", b"deep")
    assert found["ü/ñ"] == ("file", b"u")
    assert found[long + "2"] == ("file", b"deeper")
    assert found["to"] == ("link", b"x" * 150)
    assert "dev/null" not in found
    assert done.passes == 1


def test_a_link_to_a_file_of_a_lower_layer_takes_two_passes(
    imported: Callable[[Path | str], Imported], tmp_path: Path
) -> None:
    done = imported(
        layout(
            tmp_path / "image",
            [
                tar([member("a", b"old"), hard("b", "a")]),
                tar([member("a", b"new"), hard("c", "b")]),
            ],
        )
    )
    found = held(done.path)
    assert (found["a"][1], found["b"][1], found["c"][1], done.passes) == (b"new", b"old", b"old", 2)


def test_sparse_files_and_extended_attributes(
    imported: Callable[[Path | str], Imported], tmp_path: Path
) -> None:
    import subprocess

    with (tmp_path / "sparse").open("wb") as file:
        file.seek(1 << 20)
        file.write(b"end")
    capability = "\x01\x00\x00\x02\x00\x20" + "\x00" * 14
    info, data = member("ping", b"x")
    info.pax_headers = {
        "SCHILY.xattr.security.capability": capability,
        "SCHILY.xattr.system.acl": "no",
    }
    layers = [tar([(info, data)])]
    for form in ("gnu", "posix"):
        argv = ["tar", "-C", str(tmp_path), "--sparse", f"--format={form}", "-c", "sparse"]
        layers.append(
            subprocess.run(argv, check=True, capture_output=True).stdout.replace(
                b"sparse\0", f"sparse{form[0]}".encode(), 0
            )
        )
    done = imported(layout(tmp_path / "image", layers))
    assert held(done.path)["sparse"] == ("file", bytes(1 << 20) + b"end")
    data = subprocess.run(["sqfs2tar", str(done.path)], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as found:
        assert found.getmember("ping").pax_headers["SCHILY.xattr.security.capability"] == capability


def test_an_archive_of_docker_save(contents: Import, tmp_path: Path) -> None:
    found = contents(f"docker-archive:{archive(tmp_path / 'saved.tar', [SMALL, TOP])}")
    assert found["etc/x"] == ("file", b"2")


def listed(image: Path) -> list[list[str]]:
    """Mode, owner, size, day, time and path of each entry; the root first."""
    said = Runner().output(["unsquashfs", "-lls", str(image)]).stdout
    return [line.split() for line in said.splitlines() if line[:1] in ("d", "-", "l")]


@pytest.mark.parametrize("name", list(PACKERS))
def test_each_packer_makes_the_same_image(
    imported: Callable[[Path | str], Imported],
    tmp_path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        importer, "pack_argv", lambda _has, *rest: pack_argv(lambda tool: tool == name, *rest)
    )
    first = imported(
        layout(
            tmp_path / "image",
            [
                tar(
                    [
                        folder("."),
                        member("a", b"one"),
                        hard("b", "a"),
                        member("s/t", b"x", mode=0o4755),
                    ]
                ),
                TOP,
            ],
        )
    )
    found = held(first.path)
    assert found["b"] == ("file", b"one")
    assert found["etc/x"] == ("file", b"2")
    before, rows = first.path.read_bytes(), listed(first.path)
    time.sleep(1.1)  # a packer that takes the time of day for anything would differ now
    again = imported(tmp_path / "image").path
    assert held(again) == found
    assert listed(again)[1:] == rows[1:]
    assert (
        again.read_bytes() == before or name == "mksquashfs"
    )  # 4.5 sets the root's time itself, whatever one says


@pytest.mark.parametrize("name", list(PACKERS))
@pytest.mark.parametrize(
    "layers",
    [
        [tar([member("s/t", b"x")])],
        [tar([member("a", b"1"), member("a", b"2"), member("s/t", b"x")])],
    ],
    ids=["in one pass", "by plan"],
)
def test_a_folder_that_no_layer_names_has_a_mode_and_no_time_of_its_own(
    imported: Callable[[Path | str], Imported], tmp_path: Path, name: str, layers: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(
        importer, "pack_argv", lambda _has, *rest: pack_argv(lambda tool: tool == name, *rest)
    )
    rows = {row[5]: row for row in listed(imported(layout(tmp_path / "image", layers)).path)}
    assert rows["squashfs-root/s"][::3] == ["drwxr-xr-x", "1970-01-01"]
    assert rows["squashfs-root"][0] == "drwxr-xr-x"
    assert rows["squashfs-root"][3] == "1970-01-01" or name == "mksquashfs"


@pytest.mark.parametrize(
    ("members", "kind", "says"),
    [
        ([member("../../etc/passwd", b"x")], InputError, "outside the image: ../../etc/passwd"),
        (
            [link("l", "../../../etc"), member("l/passwd", b"x")],
            InputError,
            "a link that leads out of the image",
        ),
        ([link("l", "l"), member("l/passwd", b"x")], InputError, "a link to itself"),
        ([hard("b", "../../etc/passwd")], InputError, "outside the image"),
        ([hard("b", "etc/none")], InputError, "which does not exist"),
    ],
)
def test_a_base_that_climbs_out_is_refused(
    imported: Callable[[Path | str], Imported], tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]],
    kind: type[HpcstackError], says: str,
) -> None:  # fmt: skip
    with pytest.raises(kind, match=says.replace(".", r"\.")):
        imported(layout(tmp_path / "image", [tar(members)]))
    assert not (tmp_path / "out.sqsh").exists()
    assert not list(tmp_path.glob(".*.part"))


def test_absolute_names_and_links_stay_inside(contents: Import, tmp_path: Path) -> None:
    found = contents(
        layout(
            tmp_path / "image",
            [tar([member("/etc/x", b"1"), link("l", "/etc"), member("l/y", b"2")])],
        )
    )
    assert found["etc/x"] == ("file", b"1")
    assert found["etc/y"] == ("file", b"2")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (zipped(SMALL)[:-20], "ends in the middle"),
        (
            zipped(SMALL)[:40] + b"\xff" * 40 + zipped(SMALL)[80:],
            "damaged|no tar|other bytes|middle",
        ),
        (SMALL[:1000], "ends in the middle"),
        (b"no tar at all" * 100, "is not a tar archive"),
        (zstd.compress(SMALL)[:-9], "damaged|middle|no tar"),
    ],
)
def test_damaged_layers_are_named(
    imported: Callable[[Path | str], Imported], tmp_path: Path, data: bytes, says: str
) -> None:
    with pytest.raises(RegistryError, match=f"layer {sha(data)} .*({says})"):
        imported(layout(tmp_path / "image", [data]))
    assert not (tmp_path / "out.sqsh").exists()


def test_times_that_no_clock_shows(contents: Import, tmp_path: Path) -> None:
    def odd(value: str) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive_:
            info = tarfile.TarInfo("x")
            info.pax_headers = {"mtime": value}
            archive_.addfile(info)
        return out.getvalue()

    for number, value in enumerate(("inf", "nan", "-5")):
        assert "x" in contents(layout(tmp_path / f"image{number}", [odd(value)]))


def test_a_few_bytes_of_zstd_become_pieces_of_a_bounded_size() -> None:
    bomb = zstd.compress(bytes(300 << 20))
    assert len(bomb) < 1 << 16
    assert max(map(len, inflate_layer(iter([bomb])))) <= PIECE


def test_the_platform_is_looked_at_wherever_the_image_comes_from(
    imported: Callable[[Path | str], Imported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcstack.build.base.find_host_platform", lambda: "linux/arm64")
    site = make_site(tmp_path)
    for image in (layout(tmp_path / "image", [SMALL]), archive(tmp_path / "image.tar", [SMALL])):
        with pytest.raises(InputError, match="is for linux/amd64, not for linux/arm64"):
            import_image(str(image), "", tmp_path / "o", bench(site))


def test_other_bytes_than_the_layout_names(
    imported: Callable[[Path | str], Imported], tmp_path: Path
) -> None:
    top = layout(tmp_path / "image", [SMALL])
    (top / "blobs" / sha(SMALL).replace(":", "/")).write_bytes(TOP)
    with pytest.raises(RegistryError, match="other bytes than"):
        imported(top)


def test_no_image_is_replaced_unasked(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    (tmp_path / "there.sqsh").write_text("mine")
    with pytest.raises(InputError, match="already exists"):
        import_image(
            str(layout(tmp_path / "image", [SMALL])),
            "",
            tmp_path / "there.sqsh",
            bench(site),
        )
    assert (tmp_path / "there.sqsh").read_text() == "mine"
