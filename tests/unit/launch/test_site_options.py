"""srun's options that a site gives its jobs, at three levels, and what goes before them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pydantic import ValidationError

from hpcstack.core.process import Completed, Runner
from hpcstack.launch.plan import Plan, plan_step
from hpcstack.launch.request import LaunchRequest
from hpcstack.launch.resources import Resources
from hpcstack.launch.script import list_directives
from hpcstack.launch.surroundings import look_around
from hpcstack.site.load import Site
from hpcstack.slurm.options import SlurmOptions
from hpcstack.store.artifact import Artifact

ARTIFACT = Artifact(
    stack="x-1", key="k", sha256="0" * 64, size=1, platform="linux/amd64", engine="builtin", lock_sha256="0" * 64,
    base="b:1", stand_in="", suite="0", facts={}, apt={}, pip={}, folder="/store/images/k",
)  # fmt: skip


class Srun(Runner):
    def has(self, tool: str) -> bool:
        return tool in ("srun", "apptainer")

    def output(self, argv: Any, **_: object) -> Completed:
        return Completed(tuple(argv), 0, ("  --nodes=N",))


def gives(value: str, reason: str = "so it is") -> dict[str, str]:
    return {"value": value, "reason": reason}


def make_site(folder: Path) -> Site:
    return Site.model_validate({
        **dict.fromkeys(("store", "lock_dir", "module_root"), str(folder)),
        "srun": {"--mem": gives("0", "all of a node's memory"), "--mpi": gives("pmix_v4"), "--unbuffered": gives("")},
        "node_types": {
            "h100": {"gpus": {"model": "H100", "count": 8}, "cpus": 96, "srun": {"--mem": gives("1000G"), "--hint": gives("nomultithread")}},
            "a100": {"gpus": {"model": "A100", "count": 8}, "cpus": 96, "srun": {"--hint": gives("nomultithread")}},
        },
        "partitions": {
            "gpu": {"node_type": "h100", "default": True, "srun": {"--constraint": gives("nvme", "the others have no disk")}},
            "mixed": {"node_types": ["h100", "a100"]},
            "few": {"node_type": "a100", "srun": {"--cpus-per-gpu": gives("4")}},
            "odd": {"node_type": "a100", "srun": {"--mem-per-cpu": gives("2G"), "--exclusive": gives("")}},
        },
    })  # fmt: skip


def planned(folder: Path, mode: str = "torchrun", **asked: Any) -> Plan:
    extra = SlurmOptions.parse(asked.pop("extra", "").split())
    inside, slurm = asked.pop("inside", {}), asked.pop("slurm", None)
    resources = Resources(**asked, extra=extra)
    request = LaunchRequest(
        ("x.py",), resources, mode=mode, only_shown=True, workdir=folder, slurm=slurm
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    with mock.patch.dict(os.environ, {**kept, **inside}, clear=True):
        return plan_step(
            request,
            ARTIFACT,
            look_around(request.runtime, make_site(folder), Srun(), batch=request.batch),
        )


def options(plan: Plan) -> dict[str, str]:
    """{option: its value} of srun alone."""
    return {part.option: part.value for part in plan.parts if part.option}


def test_the_nearest_level_counts_and_says_why(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    said = options(plan)
    assert said["--mem"] == "1000G"
    assert said["--constraint"] == "nvme"
    assert said["--hint"] == "nomultithread"
    assert said["--mpi"] == "pmix_v4"
    assert said["--unbuffered"] == ""
    why = {part.option: part.why for part in plan.parts}
    assert why["--constraint"] == "the others have no disk (partitions.gpu.srun)"
    assert why["--mem"] == "so it is (node_types.h100.srun)"


def test_what_a_user_asks_for_wins(tmp_path: Path) -> None:
    said = options(
        planned(tmp_path, constraint="ib", extra="--mem-per-cpu=2G --hint=compute_bound")
    )
    assert said["--constraint"] == "ib"
    assert said["--hint"] == "compute_bound"
    assert said["--mem-per-cpu"] == "2G"
    assert "--mem" not in said, "Slurm refuses the two beside each other"


def test_of_several_types_what_all_have(tmp_path: Path) -> None:
    said = options(planned(tmp_path, partition="mixed"))
    assert said["--hint"] == "nomultithread"
    assert said["--mem"] == "0"
    assert "--constraint" not in said


def test_it_goes_before_what_we_add_and_not_before_what_a_launch_needs(tmp_path: Path) -> None:
    few = options(planned(tmp_path, partition="few"))
    assert few["--cpus-per-gpu"] == "4"
    assert "--cpus-per-task" not in few
    inside = options(planned(tmp_path, partition="odd", slurm=True))
    assert "--overlap" in inside
    assert "--exclusive" not in inside


def test_the_nearer_level_has_no_rival_farther_off(tmp_path: Path) -> None:
    odd = options(planned(tmp_path, partition="odd"))
    assert odd["--mem-per-cpu"] == "2G"
    assert "--mem" not in odd, "Slurm refuses the two beside each other"


def test_what_is_about_each_gpu_is_left_out_without_any(tmp_path: Path) -> None:
    few = options(planned(tmp_path, partition="few", without_gpus=True))
    assert "--cpus-per-gpu" not in few
    assert few["--cpus-per-task"] == "96"


@pytest.mark.parametrize("name", ["SLURM_CONSTRAINT", "SBATCH_CONSTRAINT", "SLURM_MPI_TYPE"])
def test_a_variable_of_the_users_wins(tmp_path: Path, name: str) -> None:
    said = options(planned(tmp_path, inside={name: "mine"}))
    assert ("--constraint" in said) is ("CONSTRAINT" not in name)
    assert ("--mpi" in said) is ("MPI" not in name)


@pytest.mark.parametrize(
    "given",
    [
        {"--mem": "1G", "--mem-per-cpu": "1G"},
        {"--gres": "gpu:2"},
        {"--partition": "x"},
        {"--gpus": "2"},
    ],
)
def test_what_slurm_or_hpcstack_would_refuse_is_refused_in_the_file(
    tmp_path: Path, given: dict[str, str]
) -> None:
    folders = dict.fromkeys(("store", "lock_dir", "module_root"), str(tmp_path))
    with pytest.raises(ValidationError, match="only one of them|works it out"):
        Site.model_validate(
            {**folders, "srun": {name: gives(value) for name, value in given.items()}}
        )


def test_a_step_of_a_job_gets_none_of_the_jobs_options(tmp_path: Path) -> None:
    inside = {"SLURM_JOB_ID": "7", "SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_NUM_NODES": "1"}
    said = options(planned(tmp_path, inside={**inside, "SLURM_GPUS_ON_NODE": "8"}))
    assert not {"--mem", "--constraint"} & said.keys()
    assert said["--hint"] == "nomultithread"


def test_in_a_job_script_they_are_directives(tmp_path: Path) -> None:
    request = LaunchRequest(("x.py",), mode="torchrun", batch=True, only_shown=True)
    plan = plan_step(
        request,
        ARTIFACT,
        look_around(request.runtime, make_site(tmp_path), Srun(), batch=request.batch),
    )

    words = [part.words[0] for part in list_directives(plan)]
    assert {"--constraint=nvme", "--mem=1000G"} <= set(words)


@pytest.mark.parametrize("name", ["-C", "mem", "--nodes", "--container-image", "--Mem", "--mem=4G"])
def test_what_no_site_can_give_is_refused(tmp_path: Path, name: str) -> None:
    folders = dict.fromkeys(("store", "lock_dir", "module_root"), str(tmp_path))
    with pytest.raises(ValidationError, match="long form|works it out"):
        Site.model_validate({**folders, "srun": {name: gives("1")}})
