"""Licences: what packages state of themselves, and nothing that would have to be guessed."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from hpcstack.store.artifact import Artifact
from hpcstack.store.contents import Distribution
from hpcstack.store.licences import list_stated_licences, parse_copyright, read_licences
from hpcstack.store.python_metadata import parse_fields
from hpcstack.store.sbom import make_sbom

ARTIFACT = Artifact(
    stack="pytorch-24.11", key="k", sha256="0" * 64, size=1, platform="linux/amd64", engine="apptainer",
    lock_sha256="0" * 64, base="b:1", stand_in="", suite="0", facts={}, apt={"libodd3": "1-1", "libnone": "2"},
    pip={"Odd_Package": "1.0", "plain": "2"}, folder="/store/images/k",
)  # fmt: skip


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ("Name: x\nLicense-Expression: MIT AND Zlib\nLicense: old\n", ("MIT AND Zlib",)),
        ("Name: x\nLicense: BSD\n\nLicense: of the readme\n", ("BSD",)),
        (
            "Name: x\nLicense: UNKNOWN\nClassifier: License :: OSI Approved :: MIT License\n",
            ("MIT License",),
        ),
        ("Name: x\nLicense: " + "a text of a licence " * 20 + "\n", ()),
        ("Name: x\nClassifier: License :: OSI Approved\nClassifier: Topic :: X\n", ()),
        ("", ()),
    ],
)
def test_a_python_package_states_its_licences(metadata: str, expected: tuple[str, ...]) -> None:
    assert list_stated_licences(parse_fields(metadata)) == expected


def test_a_debian_package_states_them_in_debians_form() -> None:
    text = (
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n"
        "Upstream-Name: odd\n\nFiles: *\nCopyright: 2020 X\nLicense: GPL-2+\n text of it\n .\n License: not this\n\n"
        "Files: a\nLicense: Expat\n\nLicense: GPL-2+\n text\n"
    )
    assert parse_copyright(text) == ("Expat", "GPL-2+")
    assert parse_copyright("This package is free software.\nLicense: MIT\n") == ()


@pytest.mark.squashfs
def test_an_images_parts_list_has_them_and_is_valid(tmp_path: Path) -> None:
    root = tmp_path / "root"
    site = root / "usr/lib/python3/dist-packages"
    for name, text in (
        ("Odd_Package", "Name: odd-package\nVersion: 1.0\nLicense-Expression: MIT\n"),
        ("plain", "Name: plain\n"),
    ):
        (site / f"{name}-1.dist-info").mkdir(parents=True)
        (site / f"{name}-1.dist-info/METADATA").write_text(text)
    # what another package brings along, and what is of another version, is not what is installed
    for folder, version in (("aaa/_vendor", "1.0"), ("aaa", "0.9")):
        (root / f"{folder}/odd_package-{version}.dist-info").mkdir(parents=True)
        (root / f"{folder}/odd_package-{version}.dist-info/METADATA").write_text(
            f"Name: odd-package\nVersion: {version}\nLicense-Expression: Zlib\n"
        )
    doc = root / "usr/share/doc"
    (doc / "odd-common").mkdir(parents=True)
    (doc / "odd-common/copyright").write_text(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nLicense: GPL-2+\n"
    )
    (doc / "libodd3").symlink_to("odd-common")
    image = tmp_path / "image.sqsh"
    subprocess.run(["mksquashfs", str(root), str(image), "-quiet", "-no-progress"], check=True)

    licences = read_licences(image, ARTIFACT)
    assert licences == {"pypi:Odd_Package": ("MIT",), "deb:libodd3": ("GPL-2+",)}

    text = make_sbom(ARTIFACT, Distribution("debian", "12"), licences)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    parts = {one["name"]: one.get("licenses") for one in json.loads(text)["components"]}
    assert parts["odd-package"] == [{"license": {"id": "MIT"}}]
    assert parts["libodd3"] == [{"license": {"name": "GPL-2+"}}]
    assert parts["plain"] is None


def test_an_image_that_cannot_be_read_states_none(tmp_path: Path) -> None:
    (tmp_path / "image.sqsh").write_bytes(b"no image")
    artifact = replace(ARTIFACT, folder=str(tmp_path))
    assert read_licences(artifact.image, artifact) == {}
