"""Options that Slurm refuses beside each other. `ci/rivals` lets real releases of srun judge them."""

from __future__ import annotations

import pytest

from hpcstack.slurm.options import GivenOption, SlurmOptions
from hpcstack.slurm.rivals import find_rival_variables, find_rivals


def options(text: str) -> tuple[GivenOption, ...]:
    return SlurmOptions.parse(text.split()).given


REFUSED = [
    "--gres=gpu:2 --gpus-per-node=2",
    "--gres=tmp:1,gpu:h100 --gpus-per-node=2",
    "--gres=gpu:a:b:c --gpus-per-node=2",
    "--mem=4G --mem-per-cpu=1G",
    "--mem-per-cpu=1G --mem-per-gpu=1G",
    "--ntasks-per-gpu=1 --ntasks-per-node=4",
    "--ntasks-per-gpu=1 --gpus-per-task=1",
    "--ntasks-per-gpu=1 --tres-per-task=gres/gpu=1",
    "--ntasks-per-gpu=1 --tres-per-task=cpu=1",
    "--cpus-per-gpu=4 --cpus-per-task=4",
    "--cpus-per-gpu=4 --tres-per-task=cpu=4",
    "--cpus-per-task=4 --tres-per-task=cpu=4",
    "--gpus-per-task=1 --tres-per-task=gres/gpu=1",
    "--exclusive --overlap",
    "--exact --whole",
    "--distribution=arbitrary --nodes=2",
]
TAKEN = [
    "--gres=tmp:1 --gpus-per-node=2",
    "--gres=none --gpus-per-node=2",
    "--gpus=8 --gpus-per-node=4",
    "--gpus=8 --gpus-per-task=1",
    "--gpus-per-task=1 --tres-per-task=cpu=4",
    "--cpus-per-gpu=4 --tres-per-task=gres/gpu=1",
    "--distribution=block --nodes=2",
    "--mem=4G --cpus-per-task=4",
]


@pytest.mark.parametrize("text", REFUSED)
def test_what_slurm_refuses(text: str) -> None:
    one, other = options(text)
    assert find_rivals(one, [other]) == (other,)
    assert find_rivals(other, [one]) == (one,)


@pytest.mark.parametrize("text", TAKEN)
def test_what_slurm_takes(text: str) -> None:
    one, other = options(text)
    assert find_rivals(one, [other]) == find_rivals(other, [one]) == ()


@pytest.mark.parametrize(
    ("text", "variables", "expected"),
    [
        ("--ntasks-per-node=1", "SLURM_NTASKS_PER_GPU SLURM_NTASKS", ["SLURM_NTASKS_PER_GPU"]),
        ("--ntasks-per-gpu=1", "SLURM_NTASKS_PER_NODE", ["SLURM_NTASKS_PER_NODE"]),
        ("--gres=gpu:2", "SLURM_GPUS_PER_NODE", ["SLURM_GPUS_PER_NODE"]),
        ("--gpus-per-node=2", "SLURM_GRES", ["SLURM_GRES"]),
        ("--cpus-per-task=2", "SLURM_CPUS_PER_GPU", []),  # what is typed wins
        ("--gres=tmp:2", "SLURM_GPUS_PER_NODE", []),
    ],
)
def test_what_a_job_says_that_srun_refuses_beside_an_option(
    text: str, variables: str, expected: list[str]
) -> None:
    given = dict.fromkeys(variables.split(), "1")
    assert list(find_rival_variables(options(text), given)) == expected
