"""All packages of an image are listed, by the image or from its files; what cannot be is said."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from hpcstack.core.process import Runner
from hpcstack.core.records import Text
from hpcstack.squashfs.read import Squashfs
from hpcstack.store import package_lists, python_metadata
from hpcstack.store.package_lists import (
    MOST_UNLISTED,
    PackageLists,
    bound_lines,
    parse_dpkg_status,
    read_package_lists,
)
from hpcstack.store.python_metadata import read_python_metadata

pytestmark = [pytest.mark.squashfs]
LISTS = "opt/hpcstack/packages"
SITE = "usr/lib/python3/dist-packages"
STATUS = "Package: a\nStatus: install ok installed\nVersion: 1\n\n"
BROKEN = b"SQLite format 3\0" + bytes(4096)


def make_image(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    root = folder / "root"
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    image = folder / "image.sqsh"
    argv = ["mksquashfs", str(root), str(image), "-quiet", "-no-progress", "-noappend"]
    subprocess.run(argv, check=True)
    return image


def read(folder: Path, files: Mapping[str, str | bytes], *without: str) -> PackageLists:
    """The lists of an image with FILES, on a machine WITHOUT some programs."""

    class Without(Runner):
        def has(self, tool: str) -> bool:
            return tool not in without and super().has(tool)

    return read_package_lists(make_image(folder, files), Without())


def python_package(name: str, version: str, folder: str = SITE) -> dict[str, str]:
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: not this\n"
    return {f"{folder}/{name}-{version}.dist-info/METADATA": text}


def test_what_the_image_lists_is_taken(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {
            f"{LISTS}/apt.txt": "libc6=2.39\nlibc6:i386=2.39\n",
            f"{LISTS}/pip.txt": "Torch==2.6.0\n",
            f"{LISTS}/conda.txt": "zlib=1.3=h1_0\n",
            f"{LISTS}/rpm.txt": "bash=5.1-2\n",
            f"{LISTS}/asked.txt": "dpkg-query listed\npython3 listed\nrpm listed\n",
            "var/lib/dpkg/status": STATUS,
            "var/lib/rpm/rpmdb.sqlite": BROKEN,
            **python_package("torch", "2.6.0"),
        },
    )
    assert found == PackageLists(
        {"libc6": "2.39", "libc6:i386": "2.39"},
        {"Torch": "2.6.0"},
        {"zlib": "1.3=h1_0"},
        {"bash": "5.1-2"},
    )


def test_packages_of_other_pythons_and_second_copies_are_listed_by_their_folders(
    tmp_path: Path,
) -> None:
    venv = "opt/venv/lib/python3.11/site-packages"
    found = read(
        tmp_path,
        {
            f"{LISTS}/pip.txt": "six==1.16\nsetuptools==70\n",
            **python_package("six", "1.16"),
            **python_package("six", "1.16", "usr/local/lib/python3.12/dist-packages"),
            **python_package("six", "1.10", "srv/copy"),
            **python_package("urllib3", "2.0.4", venv),
            **python_package("wheel", "0.43", f"{SITE}/setuptools/_vendor"),
            f"{venv}/old.egg-info/PKG-INFO": "Name: old\nVersion: 1\n",
            f"{venv}/plain-2.egg-info": "Name: plain\nVersion: 2\n",
            f"{venv}/z-3-py3.11.egg/EGG-INFO/PKG-INFO": "Name: z\nVersion: 3\n",
            f"{venv}/latin.dist-info/METADATA": "Name: latin\nVersion: 4\nAuthor: é\n".encode(
                "latin-1"
            ),
        },
    )
    assert found.elsewhere == {
        "/srv/copy": {"six": "1.10"},
        f"/{venv}": {"urllib3": "2.0.4", "old": "1", "plain": "2", "z": "3", "latin": "4"},
        f"/{SITE}/setuptools/_vendor": {"wheel": "0.43"},
    }
    assert found.unlisted == []


def test_metadata_that_names_no_package_is_said(tmp_path: Path) -> None:
    found = read(tmp_path, {f"{SITE}/x.dist-info/METADATA": "Version: 1\n"})
    assert found.unlisted == [f"/{SITE}/x.dist-info/METADATA: it names no package"]


def test_more_metadata_than_is_read_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {key: text for n in range(3) for key, text in python_package(f"p{n}", "1").items()}
    image = make_image(tmp_path, files)
    for limit, most in (("MOST_FILES", 2), ("MAX_ALL", 100)):
        with monkeypatch.context() as patched, Squashfs(image) as opened:
            patched.setattr(python_metadata, limit, most)
            found = read_python_metadata(opened)
        assert len(found.packages) < 3
        assert found.unread == ["Python packages: there are more than are read"]

    monkeypatch.setattr(package_lists, "MAX_ELSEWHERE", 50)
    lists = read_package_lists(image, Runner())
    assert lists.unlisted == ["Python packages: there are more than are written down"]


def test_a_python_package_without_metadata_is_said_once(tmp_path: Path) -> None:
    line = f"/{SITE}/gone.dist-info: it has no METADATA"
    files = {f"{SITE}/gone.dist-info/RECORD": "x", f"{LISTS}/unlisted.txt": f"{line}\n{line}\n"}
    assert read(tmp_path, files).unlisted == [line]


def test_a_name_that_is_none_makes_no_record_large(tmp_path: Path) -> None:
    found = read(tmp_path, python_package("x" * 201, "1"))
    assert found.elsewhere == {}
    assert len(found.unlisted) == 1


def test_an_empty_list_of_a_program_that_has_listed_is_known_to_be_empty(tmp_path: Path) -> None:
    asked = "dpkg-query listed\nrpm listed\n"
    files: dict[str, str | bytes] = {
        f"{LISTS}/asked.txt": asked,
        "var/lib/rpm/rpmdb.sqlite": BROKEN,
        "var/lib/dpkg/status": "",
    }
    assert read(tmp_path, files) == PackageLists()


def test_dpkgs_database_is_read_where_the_image_has_no_dpkg(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {
            "var/lib/dpkg/status": STATUS,
            "var/lib/dpkg/status.d/base": "Package: base-files\nVersion: 12\n",
            "var/lib/dpkg/status.d/base.md5sums": "x",
            "var/lib/dpkg/status.d/torn": "x",
        },
    )
    assert found.apt == {"a": "1", "base-files": "12"}
    assert found.unlisted == [
        "/var/lib/dpkg/status.d/torn: 1 package of dpkg, of which it does not say what they are"
    ]


def test_apks_database_is_read(tmp_path: Path) -> None:
    text = "C:Q1x=\nP:musl\nV:1.2.5-r0\nF:lib\nR:x\n\nC:x\nP:busybox\nV:1.36-r2\n"
    assert read(tmp_path, {"lib/apk/db/installed": text}).other == {
        "musl": "1.2.5-r0",
        "busybox": "1.36-r2",
    }


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            {f"{LISTS}/asked.txt": "dpkg-query failed\n", "var/lib/dpkg/status": STATUS},
            "dpkg-query",
        ),
        ({f"{LISTS}/asked.txt": "python3 failed\n"}, "python3"),
        ({f"{LISTS}/asked.txt": "rpm failed\n", "var/lib/rpm/rpmdb.sqlite": BROKEN}, "rpm"),
        ({"lib/apk/db/installed": "P:a\nV:1\n\nP:b\n"}, "1 package of apk"),
        ({f"{LISTS}/unlisted.txt": "/x: its METADATA cannot be read\n"}, "/x: its METADATA"),
        ({"var/lib/dpkg/status": "torn"}, "/var/lib/dpkg/status"),
        ({"lib/apk/db/installed": "torn"}, "/lib/apk/db/installed"),
        ({"var/lib/rpm/rpmdb.sqlite": BROKEN}, "/var/lib/rpm"),
        ({"usr/lib/sysimage/rpm/Packages.db": "torn"}, "/usr/lib/sysimage/rpm"),
    ],
)
def test_a_look_that_failed_is_said(
    tmp_path: Path, files: Mapping[str, str | bytes], says: str
) -> None:
    [line] = read(tmp_path, files).unlisted
    assert says in line


SPEC = """\
Name: {name}
Version: 1.2
Release: 3
Epoch: 4
Summary: made for a test
License: none
BuildArch: noarch
%description
%files
"""


@pytest.mark.rpm
def test_rpms_database_is_read_by_this_machines_rpm(tmp_path: Path) -> None:
    for name in ("one", "two"):
        spec = tmp_path / f"{name}.spec"
        spec.write_text(SPEC.format(name=name))
        own = f"_topdir {tmp_path}/build"
        subprocess.run(["rpmbuild", "-bb", "--quiet", "--define", own, str(spec)], check=True)
    database = tmp_path / "root/usr/lib/sysimage/rpm"
    packages = sorted(map(str, tmp_path.glob("build/RPMS/noarch/*.rpm")))
    argv = ["rpm", "--dbpath", str(database), "--justdb", "--nodeps", "-i", *packages]
    subprocess.run(argv, check=True)

    found = read(tmp_path, {"etc/x": "1"})
    assert found.other == {"one": "4:1.2-3", "two": "4:1.2-3"}
    assert found.unlisted == []

    assert "install rpm" in read(tmp_path, {"etc/x": "1"}, "rpm").unlisted[0]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(package_lists, "MAX_RPM", 100)
        assert "is larger than" in read(tmp_path, {"etc/x": "1"}).unlisted[0]


def test_dpkgs_status_names_sources() -> None:
    text = (
        "Package: a\nStatus: install ok installed\nVersion: 1\nSource: s\n\n"
        "Package: b\nStatus: hold ok installed\nVersion: 2+b1\nSource: t (2)\n\n"
        "Package: c\nStatus: install ok installed\nVersion: 3\nDescription: x\n Source: not this\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 4\n\nPackage: torn\n"
    )
    found, torn = parse_dpkg_status(text)
    assert found == {"a": ("1", "s", "1"), "b": ("2+b1", "t", "2"), "c": ("3", "c", "3")}
    assert torn == 1, "the last one does not say whether it is installed"


def test_a_base_that_names_its_folders_oddly_leaves_a_record_that_can_be_read() -> None:
    odd = f"/opt/\x1b[31m/x\u202e{'y' * 5000}.dist-info: its METADATA cannot be read"
    lines = bound_lines([odd, "", *[f"/a: {number}" for number in range(MOST_UNLISTED)]])
    for line in lines:
        TypeAdapter(Text).validate_python(line)
    assert lines[-1] == "and 1 more"
    assert len(lines) == MOST_UNLISTED + 1
    assert bound_lines([]) == []
