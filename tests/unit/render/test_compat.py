"""images/compat.sh: the image's own libcuda first where the driver is older than its CUDA, and
nowhere else.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpcstack.core import data

SCRIPT = data.find_data_folder("images") / "compat.sh"
VERSION = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Mon Jan  1 00:00:00 UTC 2024\nGCC "
    "version:  gcc 12.2.0\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (root@host)\n"


def library_path(
    folder: Path,
    driver: str,
    cuda: str,
    *,
    libcuda: str = "lib.real",
    form: str = VERSION,
    shell: str = "sh",
    line: str = "",
    **more: str,
) -> str:
    (folder / "version").write_text(form.format(driver) if driver else "")
    if libcuda is not None:
        (folder / "compat" / libcuda).mkdir(parents=True, exist_ok=True)
        (folder / "compat" / libcuda / "libcuda.so.1").touch()
    environment = {
        "HPCSTACK_DRIVER_FILE": str(folder / "version"),
        "_CUDA_COMPAT_PATH": str(folder / "compat"),
        "CUDA_VERSION": cuda,
        "LD_LIBRARY_PATH": "/base",
        "PATH": f"{folder}:/usr/bin:/bin",
        **more,
    }
    line = line or f'. {SCRIPT}; printf %s "$LD_LIBRARY_PATH"'
    done = subprocess.run(
        [shell, "-euc", line], env=environment, capture_output=True, text=True, check=True
    )
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


def cuda_check(folder: Path, status: int) -> Path:
    """A stand-in of NVIDIA's cudaCheck, which says with which libcuda it was asked."""
    path = folder / "cudaCheck"
    path.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$LD_LIBRARY_PATH" >>{folder}/asked\nexit {status}\n'
    )
    path.chmod(0o755)
    return folder / "asked"


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize(
    ("driver", "made_for", "works", "asked", "first"),
    [
        (
            "580.65.06",
            "590.48.01",
            True,
            True,
            True,
        ),  # CUDA 13.1 on a driver of 13.0: what is compiled at run time
        (
            "580.65.06",
            "590.48.01",
            False,
            True,
            False,
        ),  # a GPU that takes no other libcuda than its driver's
        ("535.104.05", "580.95.05", True, True, True),
        (
            "535.104.05",
            "580.95.05",
            False,
            True,
            False,
        ),  # GeForce: error 804 instead of 803 helps nobody
        ("590.48.01", "590.44.01", True, False, False),
        ("615.65.02", "590.44.01", True, False, False),
    ],
)
def test_p1_nvidias_own_program_decides(
    tmp_path: Path, shell: str, driver: str, made_for: str, works: bool, asked: bool, first: bool
) -> None:
    said = cuda_check(tmp_path, 0 if works else 1)
    found = library_path(tmp_path, driver, "13.1.0", shell=shell, CUDA_DRIVER_VERSION=made_for)
    assert found == ("/compat/lib.real:/base" if first else "/base")
    assert said.exists() is asked
    if asked:
        assert said.read_text() == f"{tmp_path}/compat/lib.real:/base\n"


def test_p1_it_is_asked_once_for_all_that_a_step_starts(tmp_path: Path) -> None:
    said = cuda_check(tmp_path, 1)
    line = f'. {SCRIPT}; sh -euc ". {SCRIPT}"; bash -c ". {SCRIPT}; echo \\$HPCSTACK_COMPAT"'
    found = library_path(
        tmp_path, "580.65.06", "13.1.0", line=line, CUDA_DRIVER_VERSION="590.48.01"
    )
    assert found == "580 .. /compat/lib.real no\n"
    assert len(said.read_text().splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"version", "compat", "cudaCheck", "asked"}


def test_p1_a_check_that_hangs_is_given_up(tmp_path: Path) -> None:
    cuda_check(tmp_path, 0).parent.joinpath("cudaCheck").write_text("#!/bin/sh\nsleep 30\n")
    found = library_path(
        tmp_path, "580.65.06", "13.1.0", CUDA_DRIVER_VERSION="590.48.01", _CUDA_COMPAT_TIMEOUT="0.3"
    )
    assert found == "/base"


def test_no_driver_and_no_library(tmp_path: Path) -> None:
    assert library_path(tmp_path, "", "13.0.2") == "/base"
    (tmp_path / "x").mkdir()
    environment = {"HPCSTACK_DRIVER_FILE": str(tmp_path / "none"), "CUDA_VERSION": "13.0.2"}
    subprocess.run(
        ["sh", "-euc", f'. {SCRIPT}; [ -z "${{LD_LIBRARY_PATH:-}}" ]'], env=environment, check=True
    )


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
    done = subprocess.run(
        [str(script), "printf", "<%s>", "a b", "$c"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "<a b><$c>"
