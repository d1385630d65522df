"""What is said of a Slurm's settings."""

from __future__ import annotations

import pytest

from hpcstack.diagnose.slurm_config import look_at_domains, look_at_pmi, look_at_slurm_config
from hpcstack.slurm.topology import Block


@pytest.mark.parametrize(
    ("program", "when", "wrong"),
    [
        ("/etc/hpcstack/health.sh", "START_ONLY", True),
        ("/etc/hpcstack/health.sh", "REBOOT_ONLY", True),
        ("/etc/hpcstack/health.sh", "ANY,CYCLE", False),
        ("(null)", "START_ONLY", False),
    ],
)
def test_a_health_check_that_runs_once_is_told(program: str, when: str, wrong: bool) -> None:
    config = {"HealthCheckProgram": program, "HealthCheckNodeState": when}
    found = [one.code for one in look_at_slurm_config(config, "here")]
    assert found == (["health.once"] if wrong else [])


def test_a_cluster_that_says_nothing_is_fine() -> None:
    assert not list(look_at_slurm_config({}, "here"))


@pytest.mark.parametrize(
    ("types", "code", "status"),
    [
        (("pmi2", "pmix", "pmix_v4"), "pmi", "OK"),
        (("pmix_v5",), "pmi", "OK"),
        (("cray_shasta", "pmi2"), "pmi.pmix", "WARN"),
        (("cray_shasta",), "pmi", "WARN"),
        ((), "pmi", "WARN"),
    ],
)
def test_how_ranks_find_each_other(types: tuple[str, ...], code: str, status: str) -> None:
    [finding] = look_at_pmi(types, "here")
    assert (finding.code, finding.status) == (code, status)


@pytest.mark.parametrize(
    ("sizes", "code", "status"),
    [
        ((), "domains", "WARN"),
        ((18, 16), "domains", "OK"),  # of one, two nodes are not in service
        ((18, 36), "domains.size", "WARN"),
    ],
)
def test_slurms_blocks_are_nvlink_domains(sizes: tuple[int, ...], code: str, status: str) -> None:
    blocks = [Block(frozenset(f"n{node}" for node in range(size)), 16) for size in sizes]
    [finding] = look_at_domains(18, blocks, "here")
    assert (finding.code, finding.status) == (code, status)
