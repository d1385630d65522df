"""Options that Slurm refuses beside each other; the srun that is here judges them, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hpcstack.core.errors import InputError
from hpcstack.slurm.options import GivenOption, SlurmOptions
from hpcstack.slurm.rivals import check_options, find_rival_variables, find_rivals
from support.srun_judge import SrunJudge, find_sruns


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
    "--ntasks-per-tres=1 --ntasks-per-node=4",
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
    "--gpus=1 --gpus-per-task=1",
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


@pytest.mark.parametrize(
    ("text", "in_a_job", "said"),
    [
        ("--mem=4G --mem-per-cpu=1G", False, "Slurm takes only one of them"),
        ("--gpus-per-socket=1", False, "only with --sockets-per-node"),
        ("--gpus-per-socket=1 --sockets-per-node=2", False, ""),
        ("--gpus-per-socket=1 --extra-node-info=2", False, ""),
        ("--gpus-per-socket=1", True, ""),
        ("--relative=0", False, "about the nodes of a job"),
        ("--relative=0", True, ""),
        ("--gpus-per-node=h100:4 --gpus-per-task=1", False, "types in all of them or in none"),
        ("--gpus-per-node=h100:4 --gpus-per-task=h100:1", False, ""),
        ("--gres=none --cpus-per-gpu=4", False, "asks for none"),
        ("--gres=none --mem=4G", False, ""),
    ],
)
def test_what_is_refused_before_srun_is_asked(text: str, in_a_job: bool, said: str) -> None:
    if not said:
        check_options(options(text), in_a_job=in_a_job)
        return
    with pytest.raises(InputError, match=said):
        check_options(options(text), in_a_job=in_a_job)


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
        ("--cpus-per-gpu=2", "SLURM_CPUS_PER_TASK", ["SLURM_CPUS_PER_TASK"]),
        ("--mem=2G", "SLURM_MEM_PER_CPU", []),  # what is typed wins
        ("--gres=tmp:2", "SLURM_GPUS_PER_NODE", []),
    ],
)
def test_what_a_job_says_that_srun_refuses_beside_an_option(
    text: str, variables: str, expected: list[str]
) -> None:
    given = dict.fromkeys(variables.split(), "1")
    assert list(find_rival_variables(options(text), given)) == expected


@pytest.fixture(scope="module", params=find_sruns() or [""])
def judge(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SrunJudge]:
    found = SrunJudge(request.param, tmp_path_factory.mktemp("slurm"))
    yield found
    found.close()


# What a release refuses only later, in slurmctld, or takes and forgets one of them.
LATER = {
    "--gres=gpu:2 --gpus-per-node=2": "srun itself from 26.05 on",
    "--gres=tmp:1,gpu:h100 --gpus-per-node=2": "the same",
    "--cpus-per-gpu=4 --cpus-per-task=4": "srun itself from 23.11 on",
}


@pytest.mark.srun
def test_srun_says_the_same(judge: SrunJudge) -> None:
    """Of each row that its release has the options for."""
    judged = []
    for text in (*REFUSED, *TAKEN):
        words = text.split()
        if not all(map(judge.knows, words)):
            continue
        if "a:b:c" in text or "tmp:" in text:
            continue  # srun leaves the list to slurmctld
        said = judge.judge(["--ntasks=1", *words], {})  # which --gpus-per-task wants
        if text in LATER and not said:
            continue
        judged.append(text)
        assert bool(said) is (text in REFUSED), f"{text}: {said}"
    assert len(judged) > 10
