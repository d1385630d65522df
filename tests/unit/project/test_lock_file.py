"""A project's lock: what it says, whom it fits, and which squashfs file it stands for."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcstack.core.errors import InputError
from hpcstack.project.lock_file import (
    ProjectLock,
    compare_locks,
    digest_image,
    name_lock_file,
    read_project_lock,
    strip_url_logins,
)
from hpcstack.project.resolve import check_against_image, subtract_image
from hpcstack.requirements.inputs import read_inputs
from unit.launch.test_plan import ARTIFACT

IMAGE = replace(ARTIFACT, pip={"torch": "2.6.0a0+df5bbc09d1.nv24.11", "numpy": "1.26.4"})
DOCUMENT: dict[str, Any] = {
    "lock-version": "1.0",
    "created-by": "uv",
    "packages": [
        {
            "name": "rich",
            "version": "13.9.4",
            "sdist": {"url": "https://ann:secret@x/rich.tar.gz", "hashes": {"sha256": "aa"}},
            "wheels": [{"url": "https://x/rich.whl", "hashes": {"sha256": "bb"}}],
        },
        {"name": "NumPy", "version": "1.26.4", "wheels": []},
        {"name": "mine", "directory": {"path": ".", "editable": True}},
    ],
}


def lock(folder: Path, document: dict[str, Any] = DOCUMENT) -> ProjectLock:
    (folder / "requirements.txt").write_text("rich\n")
    inputs = read_inputs(folder, ())
    return subtract_image(document, inputs, IMAGE, {"numpy": "1.26.4"}, "3.12")


def test_the_images_packages_and_the_project_are_taken_out(tmp_path: Path) -> None:
    made = lock(tmp_path)
    assert [one["name"] for one in made.packages] == ["rich"]
    assert made.about["of-the-image"] == {"numpy": "1.26.4"}
    assert "secret" not in made.render()


@pytest.mark.parametrize(
    ("name", "is_left_out"),
    [
        ("triton", True), ("nvidia-nccl-cu12", True), ("NVIDIA_cublas", True), ("nvidia-cuda-runtime", True),
        ("nvidia-ml-py", False), ("nvidia-dali-cuda120", False), ("nvidia-modelopt", False),
    ],
)  # fmt: skip
def test_what_pypis_torch_brings_is_not_put_before_the_images_own(
    tmp_path: Path, name: str, is_left_out: bool
) -> None:
    """researcher 1: a pip freeze put another triton and NCCL, 380 MB, in front of the image's."""
    asked = {"name": name, "version": "1.0", "wheels": [{"url": "https://x/a.whl", "hashes": {}}]}
    document = {**DOCUMENT, "packages": [asked]}
    (tmp_path / "requirements.txt").write_text(f"{name}==1.0\n")
    inputs = read_inputs(tmp_path, ())
    for base, left_out in (({"torch": "2.6.0"}, is_left_out), ({"numpy": "1.26.4"}, False)):
        made = subtract_image(document, inputs, IMAGE, base, "3.12")
        assert (made.packages == []) is left_out
        assert bool(made.about["of-the-image"]) is left_out


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = lock(tmp_path)
    path = tmp_path / name_lock_file("pytorch-24.11")
    path.write_text(made.render())
    assert path.name == "pylock.pytorch-24_11.toml"
    assert read_project_lock(path) == made
    assert read_project_lock(tmp_path / "none") is None
    path.write_text("[[packages]]\nversion = '1'\n")
    with pytest.raises(InputError, match="a package has no name"):
        read_project_lock(path)


def test_it_fits_the_files_and_the_image_that_it_was_made_for(tmp_path: Path) -> None:
    made = lock(tmp_path)
    digest = read_inputs(tmp_path, ()).digest
    assert made.fits(digest, digest_image(IMAGE))
    assert not made.fits("other", digest_image(IMAGE))
    rebuilt = replace(IMAGE, sha256="1" * 64)
    assert digest_image(rebuilt) == digest_image(IMAGE)
    newer = replace(IMAGE, pip={**IMAGE.pip, "numpy": "2.0"})
    assert not made.fits(digest, digest_image(newer))


def test_what_is_alike_has_one_name(tmp_path: Path) -> None:
    made = lock(tmp_path)
    name = made.name_contents(IMAGE)
    assert name == made.name_contents(replace(IMAGE, sha256="1" * 64, stack="other-1"))

    elsewhere = lock(tmp_path)
    elsewhere.about["python-path"] = "/opt/conda/bin/python3"
    assert elsewhere.name_contents(IMAGE) != name, "a virtual environment names its Python"

    document = copy.deepcopy(DOCUMENT)
    document["packages"][0]["wheels"][0]["hashes"]["sha256"] = "dd"
    assert lock(tmp_path, document).name_contents(IMAGE) != name

    # what is built is built for one image
    del document["packages"][0]["wheels"]
    built = lock(tmp_path, document)
    assert built.name_contents(IMAGE) != built.name_contents(replace(IMAGE, sha256="1" * 64))


def test_a_file_with_another_hash_than_the_users_lock_is_refused(tmp_path: Path) -> None:
    document = copy.deepcopy(DOCUMENT)
    document["packages"][0]["wheels"][0]["hashes"]["sha256"] = "b" * 64
    for line in (f"rich==13.9.4 --hash=sha256:{'B' * 64}", f"rich>=13 --hash=sha256:{'b' * 64}"):
        (tmp_path / "requirements.txt").write_text(f"{line}\n")
        inputs = read_inputs(tmp_path, ())
        (package,) = subtract_image(document, inputs, IMAGE, {"numpy": "1"}, "3.12").packages
        assert "sdist" not in package
        assert [file["hashes"]["sha256"] for file in package["wheels"]] == ["b" * 64]

    (tmp_path / "requirements.txt").write_text(f"rich>=13 --hash=sha256:{'0' * 64}\n")
    inputs = read_inputs(tmp_path, ())
    with pytest.raises(InputError, match="allows no file that the index has of rich"):
        subtract_image(document, inputs, IMAGE, {"numpy": "1"}, "3.12")


@pytest.mark.parametrize(
    ("wanted", "write"),
    [
        ("torch==2.7.0", "torch>=2.6.0a0"),
        ("torch>=2.6", "torch>=2.6.0a0"),
        ("Torch<2.6.0a0", "Torch>=2.6.0a0"),
        ("numpy>=2", "numpy>=1.26.4"),
    ],
)
def test_another_version_than_the_images_is_refused_with_what_to_write(
    tmp_path: Path, wanted: str, write: str
) -> None:
    (tmp_path / "requirements.txt").write_text(f"rich\n{wanted}\n")
    with pytest.raises(InputError, match="is wanted, and the image has") as refused:
        check_against_image(read_inputs(tmp_path, ()), IMAGE.pip)
    assert write in (refused.value.hint or "")


@pytest.mark.parametrize(
    "wanted",
    [
        "torch",
        "torch>=2.5",
        "torch>=2.6.0a0",
        "numpy<2",
        "numpy>=2 ; python_version < '3'",
        "numpy>=2 ; python_version > '3'",  # uv knows the image's Python, and says so then
    ],
)
def test_what_the_image_satisfies_is_taken(tmp_path: Path, wanted: str) -> None:
    (tmp_path / "requirements.txt").write_text(f"{wanted}\n")
    check_against_image(read_inputs(tmp_path, ()), IMAGE.pip)


def test_logins_leave_urls() -> None:
    said = {"a": ["https://ann:s3cret@x.org/y?z=1", "no@url", "https://x.org/@scope"]}
    assert strip_url_logins(said) == {
        "a": ["https://x.org/y?z=1", "no@url", "https://x.org/@scope"]
    }


def test_what_a_lock_has_changed_is_told() -> None:
    before = ProjectLock(
        {"packages": [{"name": "a", "version": "1"}, {"name": "b", "version": "1"}]}
    )
    vcs = {"name": "c", "vcs": {"commit-id": "0123456789abcdef"}}
    after = ProjectLock({"packages": [{"name": "a", "version": "2"}, vcs]})
    changes = [str(change) for change in compare_locks(before, after)]
    assert changes == ["a 1 -> 2", "- b 1", "+ c 0123456789ab"]
    assert compare_locks(after, after) == []
