"""Driver fit, table by table: each row is a driver, a GPU, an image, and what NVIDIA's rules say of
them.
"""

from __future__ import annotations

import pytest

from hpcstack.core.data import read_facts
from hpcstack.hardware import facts
from hpcstack.hardware.compatibility import (
    Fit,
    has_sass,
    is_covered,
    judge_fit,
    read_required_branches,
)

IMAGE_2411 = facts.image_environment("nvcr.io/nvidia/pytorch:24.11-py3", "linux/amd64")
IMAGE_2510 = facts.image_environment("nvcr.io/nvidia/pytorch:25.10-py3", "linux/amd64")
CUDA_126 = {"CUDA_VERSION": "12.6.3"}
CUDA_128 = {"CUDA_VERSION": "12.8.1"}


TOOLKITS = read_facts("cuda")["toolkits"]


def test_the_driver_that_a_toolkit_ships_with_runs_it_natively_and_so_does_any_newer() -> None:
    missed = []
    for row in TOOLKITS:
        image = {"CUDA_VERSION": row["cuda"]}
        own = judge_fit(row["driver"], "", image)
        newest = judge_fit(TOOLKITS[-1]["driver"], "", image)
        if (own.kind, newest.kind) != ("native", "native") or not own.source:
            missed.append((row["cuda"], own, newest))
    assert missed == []


def test_the_oldest_driver_of_a_major_runs_all_its_toolkits() -> None:
    oldest = {row["major"]: row["driver"] for row in read_facts("cuda")["minor_version"]}
    missed = []
    for row in TOOLKITS:
        major = row["cuda"].partition(".")[0]
        if major == "11":
            model = "A100"
            kinds = {"minor-version compatible", "native", "does not run"}  # it asks for CUDA 11.0
        elif row["cuda"] == "12.0.0":
            model = "H100"
            kinds = {"native"}  # its own driver is the oldest of the major
        else:
            model = "H100"
            kinds = {"minor-version compatible", "native"}

        answer = judge_fit(oldest[major], model, {"CUDA_VERSION": row["cuda"]})
        if answer.kind not in kinds:
            missed.append((row["cuda"], answer))
    assert missed == []


@pytest.mark.parametrize(
    ("driver", "model", "image", "kind", "says"),
    [
        ("560.35.05", "H100", CUDA_126, "native", "own (560.35.05)"),
        ("560", "H100", CUDA_126, "native", "driver 560"),
        ("535.104.05", "H100", CUDA_126, "minor-version compatible", "of CUDA 12"),
        ("525.60.13", "H100", CUDA_126, "minor-version compatible", "limited features"),
        ("525.60.12", "H100", CUDA_126, "does not run", "branches 470, 535, 550"),
        ("470.256.02", "A100", CUDA_126, "forward compatible", "cuda-compat"),
        ("510.47.03", "A100", CUDA_126, "does not run", "branches 470, 535, 550"),
        ("470.256.02", "GTX 1080", CUDA_126, "does not run", "not for the GTX 10xx"),
        (
            "470.256.02",
            "NVIDIA GeForce RTX 3090",
            CUDA_126,
            "does not run",
            "forward compatibility is not for",
        ),
        ("535.104.05", "A100", {"CUDA_VERSION": "13.0.2"}, "forward compatible", "not known"),
        ("575.57.08", "H100", {"CUDA_VERSION": "13.0.2"}, "forward compatible", "cuda-compat"),
        ("580.65.06", "H100", {"CUDA_VERSION": "13.4.1"}, "minor-version compatible", "of CUDA 13"),
        ("615.65.02", "H100", {"CUDA_VERSION": "13.4.1.012"}, "native", "13.4.1.012"),
        ("570.124.06", "V100", CUDA_128, "native", "570.124.06"),
        (
            "580.95.05",
            "V100",
            {"CUDA_VERSION": "13.0.2"},
            "does not run",
            "dropped the V100 (sm_70); CUDA 12.9 was",
        ),
        ("590.44.01", "V100", CUDA_128, "unknown", "580 is said to be the last, without a source"),
        ("535.104.05", "H200", CUDA_126, "unknown", "may be too old for the H200"),
        (
            "570.124.06",
            "B200",
            CUDA_126,
            "does not run",
            "CUDA 12.6.3 does not know the B200 (sm_100); CUDA 12.8",
        ),
        ("570.124.06", "B200", CUDA_128, "native", ""),
        ("580.95.05", "NVIDIA H100 80GB HBM3", IMAGE_2510, "native", ""),
        ("580.95.05", "L40S", IMAGE_2510, "native", ""),  # 8.9 runs 8.6 code
        ("580.95.05", "B300", IMAGE_2510, "native", ""),  # 10.3 runs 10.0 code
        ("580.95.05", "V100", IMAGE_2510, "does not run", "dropped the V100"),
        ("560.35.05", "V100", IMAGE_2411, "native", ""),
        (
            "570.124.06",
            "B300",
            {**CUDA_128, "TORCH_CUDA_ARCH_LIST": "9.0 10.0"},
            "unknown",
            "may be too old for the B300",
        ),
        ("580.65.06", "B300", {**CUDA_128, "TORCH_CUDA_ARCH_LIST": "9.0 10.0"}, "native", ""),
        (
            "535.54.03",
            "L40S",
            {"CUDA_VERSION": "11.7.1", "TORCH_CUDA_ARCH_LIST": "8.0 8.6"},
            "native",
            "",
        ),
        ("590.44.01", "Tesla P40", CUDA_126, "unknown", "580 is said to be the last"),
        ("470.256.02", "RTX 6000 Ada", CUDA_126, "forward compatible", ""),
        ("470.256.02", "RTX 4090", CUDA_126, "does not run", "not for the RTX 40xx"),
        ("580.95.05", "NVIDIA GB10", IMAGE_2510, "native", ""),
        ("", "H100", CUDA_126, "unknown", "does not say which driver"),
        ("560.35.05", "H100", {}, "unknown", "names no CUDA_VERSION"),
        ("560.35.05", "some new thing", CUDA_126, "native", ""),
        ("560.35.05", "H100", {"CUDA_VERSION": "99.1"}, "unknown", "no driver is known"),
        (
            "700.1",
            "H100",
            {"CUDA_VERSION": "99.1", "CUDA_DRIVER_VERSION": "700.1"},
            "native",
            "700.1",
        ),
    ],
)
def test_what_runs(driver: str, model: str, image: dict[str, str], kind: str, says: str) -> None:
    answer = judge_fit(driver, model, image)
    assert (answer.kind, says in answer.rule) == (kind, True), answer


def test_ptx_under_an_older_driver_is_the_casualty_of_minor_version_compatibility() -> None:
    image = {"CUDA_VERSION": "12.8.1", "TORCH_CUDA_ARCH_LIST": "8.0 9.0+PTX"}
    assert (
        judge_fit("570.124.06", "B200", image).kind == "native"
    )  # JIT, by a driver that knows the PTX
    old = {"CUDA_VERSION": "12.9.1", "TORCH_CUDA_ARCH_LIST": "8.0 9.0+PTX"}
    assert judge_fit("570.124.06", "B200", old).kind == "does not run"


def test_every_forward_branch_of_the_table_is_taken() -> None:
    for row in read_facts("cuda")["forward_branches"]:
        for branch in row["branches"]:
            answer: Fit = judge_fit(f"{branch}.99", "T4", {"CUDA_VERSION": row["cuda"]})
            assert answer.kind in ("forward compatible", "minor-version compatible", "native"), (
                row,
                branch,
                answer,
            )


def test_the_images_own_requirement_beats_the_table() -> None:
    require = "cuda>=12.9 brand=tesla,driver>=535,driver<536 brand=tesla,driver>=550,driver<551"
    assert read_required_branches(require) == ("535", "550")
    image = {"CUDA_VERSION": "13.0.2", "NVIDIA_REQUIRE_CUDA": require}
    assert judge_fit("535.1", "A100", image).certain
    assert judge_fit("470.1", "A100", image).kind == "does not run"


@pytest.mark.parametrize("row", read_facts("gpus")["architectures"], ids=lambda row: row["cc"])
def test_every_gpu_of_the_table_is_known_by_each_of_its_names(row: dict[str, str]) -> None:
    for name in row["gpus"]:
        found = facts.find_gpu(name.replace("xx", "80").replace("xx", "80"))
        assert found is not None
        assert found.capability == row["cc"]


def test_a_name_is_a_whole_word() -> None:
    assert facts.find_gpu("GH200 480GB").capability == "9.0"  # type: ignore[union-attr]
    assert facts.find_gpu("L40S").model == "L40S"  # type: ignore[union-attr]
    assert facts.find_gpu("A1000") is None
    assert facts.find_gpu("virtual") is None


def test_code_selection() -> None:
    assert has_sass("8.9", "8.0 8.6")
    assert not has_sass("8.0", "8.6")
    assert not has_sass("9.0", "8.0 8.6")
    assert is_covered("9.0", "8.0 8.6+PTX")
    assert has_sass("9.0", "9.0a")
    assert not has_sass("10.3", "10.0a")
    assert has_sass("10.3", "10.0f")
    assert not is_covered("10.0", "9.0a+PTX")
    assert has_sass("8.0", "8")


def test_every_source_of_the_tables_is_said() -> None:
    for name, lists in {
        "cuda": ("toolkits", "minor_version", "forward_branches", "branches", "dropped"),
        "gpus": ("architectures", "first_driver", "last_driver"),
        "ngc-pytorch": ("releases",),
    }.items():
        table = read_facts(name)
        for key in lists:
            assert all(mark in table["sources"] for row in table[key] for mark in row["source"]), (
                name,
                key,
            )


def test_what_is_unknown_of_an_image_is_left_out() -> None:
    assert facts.image_environment("nvcr.io/nvidia/pytorch:99.01-py3", "linux/amd64") == {}
    assert facts.image_environment("docker.io/library/python:3.12", "linux/amd64") == {}
    assert IMAGE_2510["TORCH_CUDA_ARCH_LIST"].startswith("7.5")
    arm = facts.image_environment("nvcr.io/nvidia/pytorch:25.10-py3", "linux/arm64")
    assert "7.5" not in arm["TORCH_CUDA_ARCH_LIST"]


@pytest.mark.parametrize("value", ["abc", "9" * 5000, " ", "12.x", "", "1.2.3.4.5.6.7.8"])
@pytest.mark.parametrize(
    "name", ["CUDA_VERSION", "TORCH_CUDA_ARCH_LIST", "NVIDIA_REQUIRE_CUDA", "CUDA_DRIVER_VERSION"]
)
def test_nonsense_in_an_images_variables_is_unknown_or_left_out(name: str, value: str) -> None:
    answer = judge_fit("535.104.05", "H100", {"CUDA_VERSION": "12.6.3", **{name: value}})
    assert answer.kind == ("unknown" if name == "CUDA_VERSION" else "minor-version compatible"), (
        answer
    )
