"""Which image is meant by what people type."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.core.errors import InputError
from hpcstack.oci.reference import parse_reference
from support.layers import layout, tar

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "image", "file"),
    [
        (
            "nvcr.io/nvidia/pytorch:24.11-py3",
            "nvcr.io/nvidia/pytorch:24.11-py3",
            "nvidia+pytorch+24.11-py3.sqsh",
        ),
        (
            "docker://nvcr.io#nvidia/pytorch:24.11-py3",
            "nvcr.io/nvidia/pytorch:24.11-py3",
            "nvidia+pytorch+24.11-py3.sqsh",
        ),
        (
            "docker://$oauthtoken@nvcr.io#nvidia/pytorch:1",
            "nvcr.io/nvidia/pytorch:1",
            "nvidia+pytorch+1.sqsh",
        ),
        ("ubuntu", "docker.io/library/ubuntu:latest", "library+ubuntu+latest.sqsh"),
        ("nvidia/cuda:12", "docker.io/nvidia/cuda:12", "nvidia+cuda+12.sqsh"),
        ("127.0.0.1:5000/a/b", "127.0.0.1:5000/a/b:latest", "a+b+latest.sqsh"),
        (f"x.io/a@{DIGEST}", f"x.io/a@{DIGEST}", "a+aaaaaaaaaaaa.sqsh"),
        (f"docker://x.io#a:{DIGEST}", f"x.io/a@{DIGEST}", "a+aaaaaaaaaaaa.sqsh"),
    ],
)
def test_registries(text: str, image: str, file: str) -> None:
    found = parse_reference(text)
    assert found.base
    assert (found.base.image, found.file_name) == (image, file)


def test_local_ones(tmp_path: Path) -> None:
    top = layout(tmp_path / "image", [tar([])])
    assert parse_reference(f"oci:{top}:v1").name == "v1"
    assert parse_reference(str(top)).transport == "oci"
    (tmp_path / "x.tar").write_bytes(b"")
    assert parse_reference(str(tmp_path / "x.tar")).file_name == "x.sqsh"
    assert (
        parse_reference("docker-daemon:demo:1").name
        == parse_reference("dockerd://demo:1").name
        == "demo:1"
    )


@pytest.mark.parametrize(
    "text",
    ["", "oci:", "oci:/nowhere", "/nowhere.tar", "a b", "x.io/UPPER:1", "docker://", "x.io/a;rm:1"],
)
def test_what_is_no_image(text: str) -> None:
    with pytest.raises(InputError):
        parse_reference(text)
