"""What is made of the MPI program's lines; the program itself is compiled and run on the testbed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hpcstack_smoke.apps import mpi
from hpcstack_smoke.result import FAIL, PASS, Skip
from hpcstack_smoke.select import select_checks

RUNS = [
    {"ranks": n, "monte_carlo": math.pi + 1e-5, "strong_s": 1.0 / n, "midpoint": math.pi + 1e-13, "midpoint_s": 0.1,
     "weak": math.pi, "weak_s": 1.0} for n in (1, 2, 4)
]  # fmt: skip
FOUND: dict[str, Any] = {"world": 4, "hosts": 2, "wrong": 0, "library": "Open MPI", "runs": RUNS, "tasks": 4, "nodes": 2,
                         "samples": 2_000_000, "virtual": False, "compiler": "/usr/bin/mpicc", "compile_s": 0.5}  # fmt: skip


def test_a_rank_that_is_alone_is_found() -> None:
    assert mpi.check_mpi_world(FOUND).status == PASS
    alone = mpi.check_mpi_world({**FOUND, "world": 1, "hosts": 1})
    assert alone.status == FAIL
    assert "srun --mpi=list" in alone.remedy


def test_pi_by_both_rules_with_its_scaling() -> None:
    result = mpi.check_mpi_pi(FOUND)
    assert result.status == PASS
    assert result.figures["strong_speedup"] == 4.0
    assert mpi.check_mpi_pi({**FOUND, "runs": [{**RUNS[0], "midpoint": 3.14}]}).status == FAIL
    assert mpi.check_mpi_pi({**FOUND, "runs": [{**RUNS[0], "monte_carlo": 3.2}]}).status == FAIL


def test_a_gpus_memory_and_kernel() -> None:
    with pytest.raises(Skip):
        mpi.check_mpi_device(FOUND)
    assert mpi.check_mpi_device({**FOUND, "device": 1}).status == FAIL
    with pytest.raises(Skip, match="no nvcc"):
        mpi.check_mpi_cuda({**FOUND, "cuda_skip": "no nvcc in the image"})
    thrown = {
        "gpu_thrown": 10**9,
        "gpu_inside": round(math.pi / 4 * 10**9),
        "gpu_s": 0.1,
        "gpu_error": 0,
    }
    assert mpi.check_mpi_cuda({**FOUND, **thrown}).status == PASS
    assert mpi.check_mpi_cuda({**FOUND, **thrown, "gpu_inside": 8 * 10**8}).status == FAIL
    assert mpi.check_mpi_cuda({**FOUND, **thrown, "gpu_error": 35}).status == FAIL


def test_nccl_tests_that_were_built_without_mpi_are_found() -> None:
    table = ("#  Rank  0 Group  0 Pid 1 on n1 device 0 [0x18] NVIDIA H100\n"
             "  1024  256  float  sum  -1  20.0  0.1  0.2  0  20.0  0.1  0.2  0\n")  # fmt: skip
    assert mpi.check_mpi_nccl({**FOUND, "nccl_tests": table}).status == FAIL
    assert mpi.check_mpi_nccl({**FOUND, "tasks": 1, "nccl_tests": table}).status == PASS
    with pytest.raises(Skip):
        mpi.check_mpi_nccl(FOUND)


def test_no_compiler_is_a_skip_unless_the_recipe_names_mpi() -> None:
    checks = select_checks("", "mpi", "standard")
    built = {"skip": "no mpicc in the image"}
    assert {row["status"] for row in mpi.make_rows(checks, built, None, "", False)} == {"SKIP"}
    assert {row["status"] for row in mpi.make_rows(checks, built, None, "", True)} == {"ERROR"}
