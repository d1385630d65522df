"""images/compat.sh: the image's own libcuda first where the driver is older than its CUDA, and nowhere else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpcstack.core import data

SCRIPT = data.folder("images") / "compat.sh"
VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Mon Jan  1 00:00:00 UTC 2024\nGCC version:  gcc 12.2.0\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (root@host)\n"


def library_path(folder: Path, driver: str, cuda: str, *, libcuda: str = "lib.real", form: str = VERSION) -> str:
    (folder / "version").write_text(form.format(driver) if driver else "")
    if libcuda is not None:
        (folder / "compat" / libcuda).mkdir(parents=True, exist_ok=True)
        (folder / "compat" / libcuda / "libcuda.so.1").touch()
    environment = {
        "HPCSTACK_DRIVER_FILE": str(folder / "version"),
        "_CUDA_COMPAT_PATH": str(folder / "compat"),
        "CUDA_VERSION": cuda,
        "LD_LIBRARY_PATH": "/base",
    }
    line = f'. {SCRIPT}; printf %s "$LD_LIBRARY_PATH"'
    done = subprocess.run(["sh", "-euc", line], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.replace(str(folder), "")


@pytest.mark.parametrize("form", [VERSION, OPEN], ids=["closed", "open"])
@pytest.mark.parametrize(
    ("driver", "cuda", "first"),
    [("535.104.05", "13.0.2.006", True), ("580.65.06", "13.0.2.006", False), ("615.65.02", "12.6.3", False),
     ("470.256.02", "12.6.3.001", True), ("525.60.13", "12.6.3.001", False), ("450.80.02", "11.8.0", False),
     ("470.1.1", "", False)],
)  # fmt: skip
def test_where_it_is_needed(tmp_path: Path, driver: str, cuda: str, first: bool, form: str) -> None:
    expected = "/compat/lib.real:/base" if first else "/base"
    assert library_path(tmp_path, driver, cuda, form=form) == expected


def test_no_driver_and_no_library(tmp_path: Path) -> None:
    assert library_path(tmp_path, "", "13.0.2") == "/base"
    (tmp_path / "x").mkdir()
    environment = {"HPCSTACK_DRIVER_FILE": str(tmp_path / "none"), "CUDA_VERSION": "13.0.2"}
    subprocess.run(["sh", "-euc", f'. {SCRIPT}; [ -z "${{LD_LIBRARY_PATH:-}}" ]'], env=environment, check=True)


@pytest.mark.parametrize("place", ["lib.real", "lib", "."])
def test_each_place_where_images_keep_it(tmp_path: Path, place: str) -> None:
    found = library_path(tmp_path, "470.1.1", "12.6.3", libcuda=place)
    assert found == f"/compat{'' if place == '.' else '/' + place}:/base"


def test_as_a_prefix_it_runs_the_command_with_its_arguments(tmp_path: Path) -> None:
    folder = tmp_path / "hpcstack"
    folder.mkdir()
    script = folder / "compat.sh"
    script.write_text(SCRIPT.read_text())
    script.chmod(0o755)
    done = subprocess.run([str(script), "printf", "<%s>", "a b", "$c"], capture_output=True, text=True, check=True)
    assert done.stdout == "<a b><$c>"
