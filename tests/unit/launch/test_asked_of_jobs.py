"""What a job is asked for, of what a launch's words and the shell's variables say of its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import click
import pytest

from hpcstack.cli.launch_ import command as launch_command
from hpcstack.cli.resources import parse_resources
from hpcstack.core.errors import InputError
from hpcstack.core.process import Completed
from hpcstack.launch.plan import Plan, plan_step
from hpcstack.launch.request import LaunchRequest, check_srun_options, resolve_mount
from hpcstack.launch.script import check_directives, list_directives, make_salloc_line
from hpcstack.launch.surroundings import look_around
from hpcstack.render.job_template import render_job_template
from hpcstack.slurm.options import Scope, find_scope
from unit.launch.test_plan import ARTIFACT, Cluster, gpu_site


class Threads(Cluster):
    """A cluster whose cores have two threads each, and whose name is alpha."""

    def output(self, argv: Any, **_: object) -> Completed:
        said = ""
        if "%P|%Z" in argv:
            said = "p*|2\np*|2"
        elif list(argv[:3]) == ["scontrol", "show", "config"]:
            said = "ClusterName = alpha"
        return Completed(tuple(argv), 0, (said,), said)


SLURM = Threads("srun", "apptainer", "scontrol", "sinfo")


def planned(folder: Path, *words: str, mode: str = "torchrun", **variables: str) -> Plan:
    """The plan of `launch x-1 WORDS -- x.py` outside of a job, with VARIABLES of the shell."""
    context = launch_command.make_context("launch", ["x-1", *words, "--", "x.py"])
    typed = {**context.params, "extra": (*context.meta["passed"], *context.params["extra"])}
    site = gpu_site(folder, cpus=96)
    with mock.patch.dict("os.environ", variables):
        request = LaunchRequest(
            ("x.py",), parse_resources(typed), mode=mode, only_shown=True, batch=typed["batch"]
        )
        return plan_step(
            request, ARTIFACT, look_around("apptainer", site, SLURM, batch=request.batch)
        )


OF_BOTH = (
    "--cpus-per-gpu=12",
    "--gres-flags=enforce-binding",
    "--hint=compute_bound",
    "--distribution=cyclic",
    "--oversubscribe",
    "--overcommit",
    "--chdir=/tmp",
    "--ntasks-per-socket=4",
)
OF_THE_JOB = ("--time-min=10", "--reboot", "--priority=7", "--bb=x", "--delay-boot=1")


@pytest.mark.parametrize("word", [*OF_BOTH, *OF_THE_JOB])
def test_what_sbatch_and_salloc_know_a_job_is_asked_for(tmp_path: Path, word: str) -> None:
    made = planned(tmp_path, "--batch", "--gpus-per-node=4", word)
    assert word in [one for part in list_directives(made) for one in part.words]
    assert word in make_salloc_line(made)


@pytest.mark.parametrize("word", ["--export-file=x", "--get-user-env", "--ignore-pbs"])
def test_what_sbatch_alone_knows_is_of_no_step(tmp_path: Path, word: str) -> None:
    made = planned(tmp_path, "--batch", word)
    assert word in [one for part in list_directives(made) for one in part.words]
    assert word not in make_salloc_line(made)
    assert find_scope(word.partition("=")[0]) is Scope.JOB


def test_a_script_of_ones_own_is_refused() -> None:
    with pytest.raises(InputError, match="--wrap: hpcstack writes"):
        check_srun_options(["--wrap=ls"], [], Cluster("srun", help_text="  --nodes=N"), batch=True)


@pytest.mark.parametrize(
    "word", ["--nodefile=x", "--whole", "--tasks-per-node=2", "--test-only", "--hint=x"]
)
def test_what_a_help_leaves_out_is_left_to_srun(word: str) -> None:
    check_srun_options([word], [], Cluster("srun", help_text="  --nodes=N"), batch=False)


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["--hint=nomultithread"], {}),
        (["--threads-per-core=1"], {}),
        ([], {"SLURM_HINT": "nomultithread"}),
        ([], {"SLURM_THREADS_PER_CORE": "1"}),
    ],
)
def test_of_each_core_one_thread_is_taken(
    tmp_path: Path, words: list[str], variables: dict[str, str]
) -> None:
    assert "--cpus-per-task=48" in planned(tmp_path, *words, **variables).argv
    assert "--cpus-per-task=96" in planned(tmp_path, "--hint=compute_bound").argv


@pytest.mark.parametrize(
    ("words", "nodes"),
    [
        (["-w", "n1,n2"], "2"),
        (["-w", "n[1-4],x7"], "5"),
        (["-w", "n1"], "1"),
        (["-w", "./hosts"], "1"),
        (["-N", "3", "-w", "n1,n2"], "3"),
    ],
)
def test_nodes_that_are_named_are_counted(tmp_path: Path, words: list[str], nodes: str) -> None:
    assert f"--nodes={nodes}" in planned(tmp_path, *words).argv


def test_the_number_of_tasks_of_the_shell_is_not_ours(tmp_path: Path) -> None:
    """With it srun started eight torchruns of eight ranks each."""
    assert "--ntasks=1" in planned(tmp_path, SLURM_NTASKS="8").argv
    assert not [one for one in planned(tmp_path).argv if one.startswith("--ntasks=")]


def test_a_program_starts_where_srun_is_told_to(tmp_path: Path) -> None:
    argv = planned(tmp_path, "-D", "/tmp").argv
    assert argv[argv.index("--pwd") + 1] == "/tmp" if "--pwd" in argv else "/tmp" in " ".join(argv)
    assert "--chdir=/tmp" in argv


def test_another_cluster_is_refused_however_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="^SLURM_CLUSTERS=beta: "):
        planned(tmp_path, SLURM_CLUSTERS="beta")
    with pytest.raises(InputError, match="^--clusters=beta: "):
        planned(tmp_path, "-M", "beta")
    planned(tmp_path, SLURM_CLUSTERS="alpha")


@pytest.mark.parametrize(
    "word",
    [
        "--gpu-bind=single:1",
        "--gpu-bind=verbose,per_task:1",
        "--gpu-bind=map_gpu:0,1,2,3",
        "--tres-bind=gres/gpu:single:1",
        "--tres-bind=gres/gpu:verbose,per_task:1",
    ],
)
@pytest.mark.parametrize("mode", ["torchrun", "task-per-gpu"])
def test_a_task_that_sees_its_own_gpus_alone_is_refused(
    tmp_path: Path, mode: str, word: str
) -> None:
    with pytest.raises(InputError, match="GPUs bound by"):
        planned(tmp_path, word, mode=mode)


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("/d:/", "--mount /d:/data"),
        ("/d://", "--mount /d:/data"),
        ("/d:/opt/hpcstack", "--mount /d:/data"),
        ("/d:/opt/hpcstack/x/", "--mount /d:/data"),
        ("/d:/data,/e:/more", "--mount /d:/data --mount /e:/more"),
    ],
)
def test_a_mount_that_covers_the_image_or_is_two(said: str, hint: str) -> None:
    with pytest.raises(InputError) as refused:
        resolve_mount(said)
    assert refused.value.hint == hint


def test_whole_gpus_and_shares_are_not_added_up(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="whole GPUs or shares"):
        planned(tmp_path, "--gres=gpu:h100:4,shard:2")


@pytest.mark.parametrize(
    ("asked", "gone"),
    [
        ({"gres": "gpu:h100:4"}, "--gpus-per-node"),
        ({"gres": "none"}, "--gpus-per-node"),
        ({"cpus-per-gpu": "4"}, "--cpus-per-task"),
        ({"hint": "nomultithread"}, "--cpus-per-task"),
        ({"tasks-per-node": "2"}, "--ntasks-per-node"),
    ],
)
def test_a_template_has_no_rival_of_what_was_asked(
    tmp_path: Path, asked: dict[str, str], gone: str
) -> None:
    script = render_job_template("ddp", "pytorch-24.11", gpu_site(tmp_path, cpus=96), asked)
    plain = render_job_template("ddp", "pytorch-24.11", gpu_site(tmp_path, cpus=96), {})
    assert f"#SBATCH {gone}=" in plain
    assert f"#SBATCH {gone}=" not in script
    ((name, value),) = asked.items()
    assert f"#SBATCH --{name}={value}" in script


@pytest.mark.parametrize("asked", [{"mem": "4G", "mem-per-cpu": "1G"}, {"time": "2h"}])
def test_a_template_is_not_written_that_sbatch_refuses(asked: dict[str, str | None]) -> None:
    with pytest.raises(InputError):
        check_directives(asked)


def test_short_forms_of_srun_have_their_long_form_named() -> None:
    with pytest.raises(
        click.UsageError, match="-m: write srun's option in its long form: --distribution"
    ):
        launch_command.make_context("launch", ["x-1", "-m", "cyclic", "--", "x.py"])


def test_a_value_follows_any_option_that_has_one() -> None:
    words = ["x-1", "--hint", "nomultithread", "--distribution", "cyclic", "--", "x.py"]
    context = launch_command.make_context("launch", words)
    assert context.meta["passed"] == ("--hint=nomultithread", "--distribution=cyclic")
    alone = launch_command.make_context("launch", ["x-1", "--template", "jupyter", "--mem", "64G"])
    assert alone.meta["passed"] == ("--mem=64G",)
