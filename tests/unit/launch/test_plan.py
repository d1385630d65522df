"""The line of a job step, for each runtime."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import click
import pytest

from conftest import make_site
from hpcstack.cli.launch_ import command as launch_command
from hpcstack.cli.resources import GpuCount, parse_resources
from hpcstack.core import data
from hpcstack.core.errors import InputError
from hpcstack.core.names import MODES as OPTION_MODES
from hpcstack.core.process import Completed, Runner
from hpcstack.launch.modes import MODES
from hpcstack.launch.plan import Plan, plan_step
from hpcstack.launch.request import LaunchRequest
from hpcstack.launch.resources import Resources
from hpcstack.launch.script import make_salloc_line, render_script
from hpcstack.launch.surroundings import look_around
from hpcstack.launch.variables import list_mode_variables
from hpcstack.recipe.model import Mode
from hpcstack.render.launchers import ABOUT, render_inner, with_compat, wrap_rank
from hpcstack.runtimes import RUNTIMES, choose_runtime
from hpcstack.runtimes.base import make_option
from hpcstack.site.load import Site
from hpcstack.slurm.gpus import Gres
from hpcstack.slurm.options import SlurmOptions
from hpcstack.store.artifact import Artifact
from support.srun_judge import SrunJudge, find_sruns

ARTIFACT = Artifact(
    stack="pytorch-24.11", key="k", sha256="0" * 64, size=1, platform="linux/amd64", engine="apptainer", lock_sha256="0" * 64,
    base="b:1", stand_in="", suite="0", facts={}, apt={}, pip={}, folder="/store/images/k",
)  # fmt: skip


class Cluster(Runner):
    """A machine that has TOOLS, and an srun whose help says HELP."""

    def __init__(self, *tools: str, help_text: str = "") -> None:
        self.tools, self.help_text = tools, help_text

    def has(self, tool: str) -> bool:
        return tool in self.tools

    def output(self, argv: object, **_: object) -> Completed:
        return Completed(("srun", "--help"), 0, (self.help_text,))


PYXIS = Cluster(
    "srun", "apptainer", help_text="  --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH"
)
PLAIN = Cluster("srun", "apptainer", help_text="  --nodes=N")
ALONE = Cluster("apptainer")


def gpu_site(folder: Path, model: str = "H100", count: int = 8, **about: int) -> Site:
    return Site.model_validate({
        "store": folder, "lock_dir": folder, "module_root": folder, "mounts": ["/scratch:/scratch"],
        "node_types": {"n": {"gpus": {"model": model, "count": count}, **about}}, "partitions": {"p": {"node_type": "n", "default": True}},
    })  # fmt: skip


def plan(
    artifact: Artifact, command: tuple[str, ...], mode: str, resources: Resources, site: Site,
    runner: Runner, **options: Any,
) -> Plan:  # fmt: skip
    """The plan of COMMAND with OPTIONS, as `hpcstack launch` names them."""
    request = LaunchRequest(command, resources, mode=mode, **options)
    return plan_step(
        request, artifact, look_around(request.runtime, site, runner, batch=request.batch)
    )


def line(
    site: Site, runner: Runner, mode: str = "plain", command: tuple[str, ...] = ("hostname",), *,
    artifact: Artifact = ARTIFACT, **resources: object,
) -> list[str]:  # fmt: skip
    wanted = Resources(**resources)  # type: ignore[arg-type]
    made = plan(artifact, command, mode, wanted, site, runner, workdir=Path("/work"))
    return [*(f"{k}={v}" for k, v in sorted(made.environment.items())), *made.argv]


def test_every_list_of_modes_is_the_same() -> None:
    assert set(get_args(Mode)) == set(MODES) == set(ABOUT) == set(OPTION_MODES)


def test_every_list_of_runtimes_is_the_same() -> None:
    option = next(param for param in launch_command.params if param.name == "runtime")
    named = get_args(Site.model_fields["runtime"].annotation)
    assert set(named) == set(option.type.choices) == {"auto", *RUNTIMES}  # type: ignore[attr-defined]


ALLOCATED = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_JOB_PARTITION": "p",
    "SLURM_NTASKS": "1",
}


def test_in_an_allocation_its_own_gpus_and_cpus_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**ALLOCATED, "SLURM_GPUS_ON_NODE": "2", "SLURM_CPUS_ON_NODE": "6"}.items():
        monkeypatch.setenv(name, value)
    site = gpu_site(tmp_path)
    nodes = {"n": site.node_types["n"].model_copy(update={"cpus": 64})}
    said = line(site.model_copy(update={"node_types": nodes}), PYXIS, "torchrun")
    assert "--gpus-per-node=2" in said
    assert "--cpus-per-task=6" in said
    assert said[said.index("torchrun") + 1] == "2"


def test_in_an_allocation_without_gpus_none_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**ALLOCATED, "SLURM_CPUS_ON_NODE": "8"}.items():
        monkeypatch.setenv(name, value)
    said = line(gpu_site(tmp_path), Configured("gpu"))
    assert not [word for word in said if word.startswith("--gpus")]
    assert "--nv" not in said
    unmanaged = line(gpu_site(tmp_path), Configured("(null)"), "torchrun", ("x.py",))
    assert "--nv" in unmanaged, "Slurm manages no GPUs there: a job sees those of its nodes"
    silent = plan(ARTIFACT, ("x.py",), "torchrun", Resources(), gpu_site(tmp_path), PLAIN)
    assert "--nv" in silent.argv
    assert silent.warnings, "a slurmctld that does not answer has not said that there are none"


class Configured(Cluster):
    """A Slurm whose GresTypes are TYPES, and which has no record of any job."""

    def __init__(self, types: str) -> None:
        super().__init__("srun", "apptainer", "scontrol", help_text="  --nodes=N")
        self.types = types

    def output(self, argv: Any, **_: object) -> Completed:
        if list(argv[:3]) == ["scontrol", "show", "config"]:
            text = f"GresTypes = {self.types}"
            return Completed(tuple(argv), 0, (text,), text)
        if argv[0] == "scontrol":
            said = "slurm_load_jobs error: Invalid job id specified"
            return Completed(tuple(argv), 1, (said,))
        return super().output(argv)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        # 4 tasks of one GPU on each node: torchrun's one task gets all of them
        ({"SLURM_GPUS_PER_TASK": "1", "SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "4"}, "--gpus-per-node=4"),
        ({"SLURM_GPUS_PER_TASK": "1", "SLURM_NTASKS": "8"}, "--gpus-per-node=4"),
        ({"SLURM_GPUS_PER_NODE": "h100:4"}, "--gpus-per-node=4"),
        ({"SLURM_GRES": "shard:4"}, ""),
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_JOB_GPUS": "0,1,5"}, "--gpus-per-node=3"),
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_SHARDS_ON_NODE": "4"}, ""),
    ],
)  # fmt: skip
def test_what_a_job_has_by_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_PARTITION": "p"}
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    for name, value in {**job, **variables}.items():
        monkeypatch.setenv(name, value)
    made = plan(
        ARTIFACT, ("x.py",), "torchrun", Resources(nodes=2), gpu_site(tmp_path), Configured("gpu")
    )
    asked = [word for word in made.argv if word.startswith("--gpus")]
    assert asked == ([said] if said else [])
    assert "--nv" in made.argv
    assert not made.warnings


def test_what_nobody_knows_of_an_allocation_is_told_and_is_not_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In salloc's shell on a login node, where Slurm does not answer either."""
    for name, value in ALLOCATED.items():
        monkeypatch.setenv(name, value)
    made = plan(ARTIFACT, ("x.py",), "torchrun", Resources(), gpu_site(tmp_path), PLAIN)
    assert not [word for word in made.argv if word.startswith("--gpus")]
    assert "--nv" in made.argv
    assert "NVIDIA_VISIBLE_DEVICES" not in made.environment
    (said,) = made.warnings
    assert "Slurm does not say how many GPUs job 7 has" in said
    assert "starts 1 rank on each node" in said


@pytest.mark.parametrize(
    "word", ["--gres=gpu:4", "--gres=gpu:h100:4", "--gres=tmp:1,gpu:4", "--gpus-per-task=4"]
)
def test_gpus_in_another_of_slurms_words_are_seen(tmp_path: Path, word: str) -> None:
    for site in (gpu_site(tmp_path), make_site(tmp_path)):
        said = line(site, PLAIN, "torchrun", extra=SlurmOptions.parse([word]))
        assert "--nv" in said
        assert word in said
        assert not [one for one in said if one.startswith("--gpus-per-node")]
        assert said[said.index("torchrun") + 1] == "4"


@pytest.mark.parametrize(
    ("mode", "options", "says"),
    [
        ("plain", {"grace": 60}, "--grace"),
        ("task-per-gpu", {}, "without Slurm there is one task"),
    ],
)
def test_what_means_nothing_without_slurm_is_refused(
    tmp_path: Path, mode: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        asked = Resources(nproc_per_node=4 if mode != "plain" else 0)
        plan(
            ARTIFACT,
            ("x",),
            mode,
            asked,
            make_site(tmp_path),
            ALONE,
            workdir=Path("/work"),
            **options,
        )


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_what_serves_an_image_lives_through_the_ranks_signal(tmp_path: Path, shell: str) -> None:
    """The shield, with a squashfuse_ll that says which signals it ignores, and a runtime that
    starts it.
    """
    for name, text in {
        "squashfuse_ll": ("grep SigIgn " "/proc/self/status"), "runtime": ('squashfuse_ll "$@"; echo status ' '$?'),
    }.items():  # fmt: skip
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    argv = [shell, "-c", data.read_script("on-node/shield.sh"), "shield", "runtime"]
    for _ in range(2):  # the second finds the first one's file
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
        ignored = int(done.stdout.split()[1], 16)
        assert all(
            ignored >> (one - 1) & 1 for one in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
        ), done
        assert "status 0" in done.stdout


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_full_disk_leaves_the_tool_itself_first_on_path(tmp_path: Path, shell: str) -> None:
    """An empty file in the place of squashfuse_ll would be no program, and every launch on that
    node would fail.
    """
    for name, text in {"squashfuse_ll": "echo served", "runtime": "squashfuse_ll"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    argv = [shell, "-c", data.read_script("on-node/shield.sh"), "shield", "runtime"]
    done = subprocess.run(
        argv, env=env, capture_output=True, text=True, check=False,
        restore_signals=False,  # SIGXFSZ stays ignored: a write fails, as on a full disk
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "served\n"), done.stderr
    assert not list((tmp_path / f"hpcstack-shield-{os.getuid()}").iterdir())


def test_a_short_option_is_asked_for_in_its_long_form() -> None:
    with pytest.raises(InputError, match="long form"):
        SlurmOptions.parse(["-n8"])


def test_mounts_of_site_recipe_and_user_each_once(tmp_path: Path) -> None:
    artifact = replace(ARTIFACT, mounts=["/data:/data", "/scratch:/scratch"])
    said = line(gpu_site(tmp_path), PYXIS, artifact=artifact)
    assert "--container-mounts=/scratch:/scratch,/data:/data,/work:/work" in said


def test_what_the_user_or_the_image_set_is_not_unset() -> None:
    def names(image: dict[str, str], environ: dict[str, str]) -> str:
        return next(
            (
                one.value
                for one in list_mode_variables("torchrun", "pyxis", image, None, 0, environ)
                if "UNSET" in one.name
            ),
            "",
        )

    assert names({}, {}) == "MASTER_ADDR MASTER_PORT OMP_NUM_THREADS"
    assert names({"OMP_NUM_THREADS": "4"}, {"MASTER_ADDR": "x"}) == "MASTER_PORT"


def test_what_the_user_set_wins_over_enroots_hooks() -> None:
    """Pyxis lets the container's variables win, and a hook writes there: what is forced is named to
    it.
    """
    found = list_mode_variables("plain", "pyxis", {}, None, 0, {"OMP_NUM_THREADS": "7"})
    assert [(one.name, one.value, one.origin) for one in found] == [
        ("OMP_NUM_THREADS", "7", "the user's environment")
    ]


def test_mpi_is_told_that_each_rank_has_a_container_of_its_own() -> None:
    def told(runtime: str, environ: dict[str, str]) -> dict[str, str]:
        return {
            one.name: one.value for one in list_mode_variables("mpi", runtime, {}, None, 0, environ)
        }

    assert told("pyxis", {}) == {"PMIX_MCA_gds": "hash"}, "Pyxis has one container a node"
    assert set(told("apptainer", {})) == {
        "PMIX_MCA_gds",
        "UCX_POSIX_USE_PROC_LINK",
        "OMPI_MCA_btl_vader_single_copy_mechanism",
    }
    assert "PMIX_MCA_gds" not in told("apptainer", {"PMIX_MCA_gds": "ds21"}), "the user's own wins"


def test_a_warning_reaches_the_ranks_and_not_the_launcher(tmp_path: Path) -> None:
    """torchrun has no handler for USR1 and would die of it; a rank has one."""
    rank = tmp_path / "rank.py"
    rank.write_text(
        "import os, signal, time\n"
        "def told(*_):\n    os.write(1, b'rank had it\\n')\n    os._exit(3)\n"
        "signal.signal(signal.SIGUSR1, told)\nos.write(1, b'ready\\n')\ntime.sleep(30)\n"
    )
    fake = tmp_path / "torchrun"
    fake.write_text(
        f"#!{sys.executable}\nimport subprocess, "
        f"sys\nsys.exit(subprocess.call([{sys.executable!r}, {str(rank)!r}]))\n"
    )
    fake.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HPCSTACK_GRACE": "60"}
    argv = ["/bin/sh", "-c", render_inner("torchrun"), "torchrun", "1", "", "0", "t.py"]
    with subprocess.Popen(
        argv, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        os.killpg(
            process.pid, signal.SIGUSR1
        )  # as Slurm does it: the whole group, without what ranks shield
        assert process.stdout.read() == "rank had it\n"
        assert process.wait(10) == 3


def test_pyxis_on_gpu_nodes(tmp_path: Path) -> None:
    assert line(gpu_site(tmp_path), PYXIS, nodes=2, gpus_per_node=8, ntasks_per_node=8, time="1:00:00") == [
        "HPCSTACK_NEAR=own", "PYTHONNOUSERSITE=1", "SLURM_EXIT_ERROR=125",
        "srun", "--export=ALL", "--kill-on-bad-exit=1", "--job-name=pytorch-24.11", "--comment=hpcstack:k", "--nodes=2", "--ntasks-per-node=8", "--gpus-per-node=8",
        "--time=1:00:00", "--container-image=/store/images/k/image.sqsh", "--no-container-mount-home",
        "--container-mounts=/scratch:/scratch,/work:/work", "--container-workdir=/work",
        "--container-env=HPCSTACK_NEAR,PYTHONNOUSERSITE",
        "/bin/sh", "-c", data.read_script("in-image/proof.sh"), "proof", "pytorch-24.11", "", *with_compat(wrap_rank(("hostname",))),
    ]  # fmt: skip


def test_under_pyxis_the_image_looks_at_the_nodes_own_driver_whatever_the_site_says(
    tmp_path: Path,
) -> None:
    gpu = {"gpus": {"model": "H100", "count": 8}}
    for driver, compat in (("580.95.05", True), ("470.256.02", True), ("", True)):
        site = make_site(
            tmp_path,
            node_types={"n": {**gpu, "driver": driver}},
            partitions={"p": {"node_type": "n", "default": True}},
        )
        assert (
            "compat"
            in line(site, PYXIS, artifact=replace(ARTIFACT, environment={"CUDA_VERSION": "12.6.3"}))
        ) is compat, driver


def test_the_fabrics_settings_reach_every_step_and_the_user_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "NCCL_IB_HCA": {"value": "mlx5_0", "reason": "r"},
        "NCCL_DEBUG": {"value": "WARN", "reason": "r"},
    }
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    argv = line(make_site(tmp_path, fabric={"settings": settings}), PYXIS)
    assert {"NCCL_DEBUG=INFO", "NCCL_IB_HCA=mlx5_0"} <= set(argv)
    assert "NCCL_IB_HCA" in next(word for word in argv if word.startswith("--container-env="))


@pytest.mark.parametrize(
    ("kind", "net"), [("efa", "AWS Libfabric"), ("slingshot", "AWS Libfabric"), ("gib", "gIB")]
)
def test_p4_between_nodes_nccl_has_the_fabrics_own_plugin_or_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, net: str
) -> None:
    """Images of 26.07 and later say NCCL_NET_PLUGIN=spcx, and NCCL then goes on over sockets
    without a word.
    """
    for name in ("NCCL_NET", "NCCL_NET_PLUGIN"):
        monkeypatch.delenv(name, raising=False)
    of_2607 = replace(ARTIFACT, environment={"NCCL_NET_PLUGIN": "spcx"})
    site = make_site(tmp_path, fabric={"kind": kind})
    two = line(site, PYXIS, artifact=of_2607, nodes=2)
    assert {f"NCCL_NET={net}", "NCCL_NET_PLUGIN=libnccl-net.so"} <= set(two)
    passed = (
        next(word for word in two if word.startswith("--container-env="))
        .partition("=")[2]
        .split(",")
    )
    assert {"NCCL_NET", "NCCL_NET_PLUGIN"} <= set(passed), "else the image's own would count"
    assert not [word for word in line(site, PYXIS, nodes=2) if word.startswith("NCCL_NET_PLUGIN=")]
    assert not [
        word for word in line(site, PYXIS, artifact=of_2607) if word.startswith("NCCL_NET")
    ], "on one node"
    own = {"NCCL_NET_PLUGIN": {"value": "ofi", "reason": "r"}}
    settled = line(
        make_site(tmp_path, fabric={"kind": kind, "settings": own}),
        PYXIS,
        artifact=of_2607,
        nodes=2,
    )
    assert "NCCL_NET_PLUGIN=ofi" in settled
    monkeypatch.setenv("NCCL_NET", "Socket")
    assert "NCCL_NET=Socket" in line(site, PYXIS, artifact=of_2607, nodes=2)
    infiniband = make_site(tmp_path, fabric={"kind": "infiniband"})
    assert not [word for word in line(infiniband, PYXIS, nodes=2) if word.startswith("NCCL_NET=A")]


def test_pyxis_without_gpus_asks_for_none(tmp_path: Path) -> None:
    argv = line(gpu_site(tmp_path, "virtual", 4), PYXIS)
    assert argv[0] == "NVIDIA_VISIBLE_DEVICES=void"
    assert "--container-env=NVIDIA_VISIBLE_DEVICES,PYTHONNOUSERSITE" in argv


def test_apptainer_under_srun_has_nv_on_gpu_nodes_only(tmp_path: Path) -> None:
    argv = line(gpu_site(tmp_path), PLAIN)
    assert argv[argv.index("apptainer") :] == [
        "apptainer", "--quiet", "exec", "--nv", "--bind", "/scratch:/scratch", "--bind", "/work:/work", "--pwd", "/work",
        "/store/images/k/image.sqsh", *wrap_rank(("hostname",)),
    ]  # fmt: skip
    without = line(gpu_site(tmp_path, "virtual"), PLAIN)
    assert "--nv" not in without
    assert "APPTAINERENV_NVIDIA_VISIBLE_DEVICES=void" in without


def test_without_slurm_it_runs_here(tmp_path: Path) -> None:
    assert "srun" not in line(gpu_site(tmp_path), ALONE)
    with pytest.raises(InputError, match="no Slurm in this step"):
        line(gpu_site(tmp_path), ALONE, nodes=2)


def test_what_only_slurm_knows_is_refused_without_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--partition=p --time=5: there is no Slurm"):
        line(gpu_site(tmp_path), ALONE, partition="p", time="5")


def test_apptainer_takes_values_as_text(tmp_path: Path) -> None:
    assert "APPTAINER_NO_EVAL=1" in line(gpu_site(tmp_path), PLAIN)


@pytest.mark.parametrize("folder", ["/we$x", "/my project", "/it's"])
def test_who_cannot_mount_a_folder_says_who_can(tmp_path: Path, folder: str) -> None:
    """researcher 15: "Enroot takes quotes, blanks and $", and Apptainer works there, unsaid."""
    for mounted in ({"workdir": Path(folder)}, {"mounts": (f"{folder}:/data",)}):
        with pytest.raises(InputError, match="cannot be mounted by pyxis") as refused:
            plan(ARTIFACT, ("true",), "plain", Resources(), gpu_site(tmp_path), PYXIS, **mounted)
        assert "--runtime apptainer" in refused.value.hint
    planned = plan(
        ARTIFACT,
        ("true",),
        "plain",
        Resources(),
        gpu_site(tmp_path),
        PLAIN,
        workdir=Path(folder),
        mounts=(f"{folder}:/data",),
    )
    assert f"{folder}:/data" in planned.argv


def test_torchrun_is_one_task_a_node_with_a_rank_a_gpu(tmp_path: Path) -> None:
    argv = line(gpu_site(tmp_path), PYXIS, "torchrun", ("train.py", "a b"), nodes=2)
    assert "--ntasks-per-node=1" in argv
    assert argv[-7:] == [render_inner("torchrun"), "torchrun", "8", "", "0", "train.py", "a b"]


@pytest.mark.parametrize(
    ("model", "resources", "ranks"),
    [
        ("H100", {}, "8"),
        ("H100", {"gpus_per_node": 2}, "2"),
        ("virtual", {"gpus_per_node": 4}, "1"),
        ("virtual", {"nproc_per_node": 3}, "3"),
    ],
)
def test_ranks_a_node(tmp_path: Path, model: str, resources: dict[str, Any], ranks: str) -> None:
    assert line(gpu_site(tmp_path, model), PYXIS, "torchrun", ("t.py",), **resources)[-4] == ranks


def test_what_makes_no_sense_is_refused_before_slurm_is_asked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one node"):
        line(gpu_site(tmp_path), PYXIS, nodes=0)
    with pytest.raises(InputError, match="no partition 'q'"):
        line(gpu_site(tmp_path), PYXIS, partition="q")


def test_auto_says_what_it_chose_and_why() -> None:
    assert [choose_runtime("auto", runner)[0].name for runner in (PYXIS, PLAIN, ALONE)] == [
        "pyxis",
        "apptainer",
        "local",
    ]
    assert choose_runtime("auto", PYXIS)[1] == "srun knows --container-image"


def test_a_gpu_node_gives_its_gpus_without_being_asked(tmp_path: Path) -> None:
    assert "--gpus-per-node=8" in line(gpu_site(tmp_path), PYXIS, "torchrun", ("t.py",))
    assert "--gpus-per-node=2" in line(gpu_site(tmp_path), PYXIS, gpus_per_node=2)


def test_where_the_site_says_nothing_what_was_asked_for_counts(tmp_path: Path) -> None:
    nothing = Site.model_validate(
        {"store": tmp_path, "lock_dir": tmp_path, "module_root": tmp_path}
    )
    asked = line(nothing, PLAIN, "torchrun", ("t.py",), gpus_per_node=8)
    assert "--nv" in asked
    assert "--gpus-per-node=8" in asked
    assert asked[-4] == "8"
    assert not any("void" in word for word in asked)
    assert "APPTAINERENV_NVIDIA_VISIBLE_DEVICES=void" in line(nothing, PLAIN)


def test_one_task_a_node_gets_the_cpus_of_its_gpus(tmp_path: Path) -> None:
    """With task affinity, a task with one CPU would pin all of its ranks to one core."""
    site = gpu_site(tmp_path)
    node = site.node_types["n"].model_copy(update={"cpus": 64})
    site = site.model_copy(update={"node_types": {"n": node}})
    assert "--cpus-per-task=64" in line(site, PYXIS, "torchrun", ("t.py",))
    assert "--cpus-per-task=16" in line(site, PYXIS, "torchrun", ("t.py",), gpus_per_node=2)
    assert "--cpus-per-task=3" in line(site, PYXIS, "torchrun", ("t.py",), cpus_per_task=3)


def test_the_image_wins_over_the_hosts_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", "/opt/host/cuda")
    image = replace(
        ARTIFACT, environment={"CUDA_HOME": "/usr/local/cuda", "PATH": "/x", "NOT_ON_THE_HOST": "1"}
    )
    made = plan(
        image, ("true",), "plain", Resources(), gpu_site(tmp_path), PLAIN, workdir=Path("/work")
    )
    assert made.environment["APPTAINERENV_CUDA_HOME"] == "/usr/local/cuda"
    assert {"APPTAINERENV_PATH", "APPTAINERENV_NOT_ON_THE_HOST"}.isdisjoint(made.environment)


def test_a_folder_that_no_runtime_can_mount_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be mounted"):
        plan(
            ARTIFACT,
            ("true",),
            "plain",
            Resources(),
            gpu_site(tmp_path),
            PYXIS,
            workdir=Path("/a,b"),
        )


@pytest.mark.parametrize(
    ("elastic", "inside", "said"), [("1:2", False, False), ("1:2", True, True), ("", False, True)]
)
def test_an_elastic_step_that_makes_its_own_job_says_nothing_of_tasks(
    elastic: str, inside: bool, said: bool
) -> None:
    """Slurm 24.11 gives the second node of --nodes=1-2 --ntasks-per-node=1 no CPUs."""
    from hpcstack.launch.plan import _without_tasks_of_a_range

    asked = [make_option("--ntasks-per-node", 1, "x"), make_option("--nodes", "1-2", "x")]
    left = _without_tasks_of_a_range(
        asked, Resources(elastic=elastic), {"SLURM_JOB_ID": "1"} if inside else {}
    )
    assert (asked[0] in left) == said
    assert asked[1] in left


@pytest.mark.shellcheck
def test_a_watchdog_is_a_readable_part_of_the_script_and_refused_where_it_would_be_blind(
    tmp_path: Path,
) -> None:
    import subprocess

    from hpcstack.launch.script import list_directives, render_script

    def planned(*extra: str, job: bool = True, watchdog: int = 0) -> Plan:
        asked = Resources(nodes=2, extra=SlurmOptions.parse(extra))
        return plan(
            ARTIFACT,
            ("hostname",),
            "plain",
            asked,
            gpu_site(tmp_path),
            PYXIS,
            batch=job,
            watchdog=watchdog,
        )

    line = planned(watchdog=60)
    script = render_script(line, ARTIFACT, "why", list_directives(line))
    assert '[ "$quiet" -ge 60 ]' in script
    assert "read -r -t 15 -u 5" in script
    assert "is process" in script
    assert "is process" not in render_script(planned(), ARTIFACT, "why")
    # a step that goes on is not said to have been ended: `explain` reads the log
    assert (
        script.index("are asked what")
        < script.index("quiet=0; continue; fi # it")
        < script.index("s: it is ended")
    )
    path = tmp_path / "job.sh"
    path.write_text(script)
    done = subprocess.run(
        ["shellcheck", "--severity=warning", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    for extra in ("--pty", "--output=x", "--error=x"):
        with pytest.raises(InputError, match="--watchdog"):
            planned(extra, job=False, watchdog=60)
    assert planned("--output=x", watchdog=60).request.watchdog == 60


@pytest.mark.shellcheck
def test_a_job_that_may_start_again_without_a_node(tmp_path: Path) -> None:
    import subprocess

    from hpcstack.launch.script import list_directives, render_script

    def planned(*extra: str, job: bool = True, **more: Any) -> Plan:
        asked = Resources(nodes=2, extra=SlurmOptions.parse(extra), **more)
        return plan(
            ARTIFACT,
            ("hostname",),
            "plain",
            asked,
            gpu_site(tmp_path),
            PYXIS,
            batch=job,
            requeue=("/opt/my hpcstack", "requeue"),
        )

    line = planned()
    script = render_script(line, ARTIFACT, "why", list_directives(line))
    assert "#SBATCH --requeue\n" in script
    assert "#SBATCH --open-mode=append\n" in script
    assert "'/opt/my hpcstack' requeue " in script
    assert 'echo "hpcstack: start ' in script
    given = list_directives(planned("--open-mode=truncate", "--requeue"))
    words = [part.words[0] for part in given]
    assert words.count("--requeue") == 1
    assert "--open-mode=append" not in words

    path = tmp_path / "job.sh"
    path.write_text(script)
    done = subprocess.run(
        ["shellcheck", "--severity=warning", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    for extra in ("--pty", "--no-requeue"):
        with pytest.raises(InputError, match="--requeue-without"):
            planned(extra)
    with pytest.raises(InputError, match="is for batch jobs"):
        planned(job=False)
    with pytest.raises(InputError, match="--requeue-without and --nodelist exclude each other"):
        planned(nodelist="n1,n2")


@pytest.mark.parametrize(
    ("given", "unset"),
    [
        (
            {"SLURM_TRES_PER_TASK": "gres/gpu=1", "SLURM_TRES_BIND": "gres/gpu:per_task:1"},
            ["SLURM_TRES_PER_TASK", "SLURM_TRES_BIND"],
        ),
        ({"SLURM_TRES_PER_TASK": "cpu=4"}, []),
    ],
)
def test_newer_slurm_says_by_tres_what_a_task_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], unset: list[str]
) -> None:
    """Slurm 23.11 and newer no longer set SLURM_GPUS_PER_TASK (src/common/env.c)."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_PARTITION": "p", "SLURM_JOB_NUM_NODES": "1"}
    for name, value in {**job, "SLURM_GPUS_ON_NODE": "8", **given}.items():
        monkeypatch.setenv(name, value)

    made = plan(ARTIFACT, ("x.py",), "torchrun", Resources(), gpu_site(tmp_path), PYXIS)
    before = list(made.argv[: made.argv.index("srun")])
    assert before == (["env"] if unset else []) + [word for name in unset for word in ("-u", name)]
    assert ("--gpu-bind=none" in made.argv) is bool(unset)


def test_a_job_that_gives_gpus_by_the_task_does_not_hide_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun reads these from the job's environment (srun/opt.c); torchrun's one task would see one
    GPU.
    """
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_JOB_PARTITION": "p", "SLURM_JOB_NUM_NODES": "1",
                        "SLURM_GPUS_ON_NODE": "8", "SLURM_GPUS_PER_TASK": "1"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    made = plan(ARTIFACT, ("x.py",), "torchrun", Resources(), gpu_site(tmp_path), PYXIS)
    assert made.argv[:4] == ("env", "-u", "SLURM_GPUS_PER_TASK", "srun")
    assert "--gpu-bind=none" in made.argv
    plain = plan(ARTIFACT, ("x.py",), "plain", Resources(), gpu_site(tmp_path), PYXIS)
    assert plain.argv[0] == "srun"  # what the user asked for, as it is
    suite = plan(ARTIFACT, ("x",), "plain", Resources(), gpu_site(tmp_path), PYXIS, all_gpus=True)
    assert suite.argv[:4] == made.argv[:4], "`hpcstack test` looked at one GPU of eight"
    assert "--gpu-bind=none" in suite.argv
    with pytest.raises(InputError, match="--gpus-per-task=1 in mode task-per-gpu"):
        plan(
            ARTIFACT,
            ("x.py",),
            "task-per-gpu",
            Resources(extra=SlurmOptions.parse(["--gpus-per-task=1"])),
            gpu_site(tmp_path),
            PYXIS,
        )


def test_spare_nodes_are_the_jobs_and_the_step_takes_the_healthy_ones(tmp_path: Path) -> None:
    from hpcstack.launch.script import list_directives, make_salloc_line, render_script

    made = plan(
        ARTIFACT,
        ("x.py",),
        "torchrun",
        Resources(nodes=4),
        gpu_site(tmp_path),
        PYXIS,
        batch=True,
        spare=2,
    )
    script = render_script(made, ARTIFACT, "why", list_directives(made))
    assert "#SBATCH --nodes=6\n" in script
    assert "    --nodes=4\n" in script
    assert "check gpus gpus 8" in script
    assert "--nodes=6" in make_salloc_line(made)
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    for resources, word in (
        (Resources(nodelist="n1"), "--spare and --nodelist exclude each other"),
        (Resources(elastic="1:2"), "--elastic"),
    ):
        with pytest.raises(InputError, match=word):
            plan(ARTIFACT, ("x.py",), "torchrun", resources, gpu_site(tmp_path), PYXIS, spare=2)
    with pytest.raises(InputError, match="--spare: there is no Slurm"):
        plan(ARTIFACT, ("x.py",), "torchrun", Resources(), gpu_site(tmp_path), ALONE, spare=2)


@pytest.mark.parametrize("runtime", ["pyxis", "apptainer"])
def test_an_image_for_other_processors_is_refused_before_slurm_is_asked(
    tmp_path: Path, runtime: str
) -> None:
    """admin 2: --check said "it could start", and --dry-run gave a script, for an amd64 image on
    aarch64 nodes.
    """
    site = gpu_site(tmp_path)
    grace = site.node_types["n"].model_copy(update={"architecture": "aarch64"})
    site = site.model_copy(update={"node_types": {"n": grace}})
    with pytest.raises(InputError, match="is for x86_64, and these nodes are aarch64") as refused:
        plan(ARTIFACT, ("true",), "plain", Resources(), site, PYXIS, runtime=runtime)
    assert "a partition of x86_64 nodes" in refused.value.hint
    arm = replace(ARTIFACT, platform="linux/arm64")
    assert plan(arm, ("true",), "plain", Resources(), site, PYXIS, runtime=runtime).argv
    with pytest.raises(
        InputError, match=f"is for aarch64, and this machine is {os.uname().machine}"
    ):
        plan(arm, ("true",), "plain", Resources(), make_site(tmp_path), ALONE)


@pytest.mark.parametrize(
    ("mode", "asked", "given"),
    [
        ("mpi", {"nodes": 2, "ntasks": 4}, ["--ntasks-per-node=2"]),
        ("task-per-gpu", {"nodes": 2, "ntasks": 8}, ["--ntasks-per-node=4"]),
        ("plain", {"nodes": 2, "ntasks": 4}, ["--ntasks-per-node=2"]),
        ("plain", {"nodes": 2, "ntasks": 3}, ["--ntasks=3"]),  # Slurm's own way of spreading them
        ("mpi", {"nodes": 1, "ntasks": 4}, ["--ntasks-per-node=4"]),
    ],
)
def test_tasks_of_all_nodes_are_as_many_on_each(
    tmp_path: Path, mode: str, asked: dict[str, Any], given: list[str]
) -> None:
    """researcher 5: mode mpi -N 2 -n 4 gave 3 + 1."""
    mpi = Cluster("srun", "apptainer", help_text="pmix\n")
    said = line(make_site(tmp_path), mpi, mode, **asked)
    assert [word for word in said if word.startswith("--ntasks")] == given


@pytest.mark.parametrize(
    ("mode", "asked", "says", "remedy"),
    [
        (
            "torchrun",
            {"ntasks": 4},
            "one task per node starts all of its ranks",
            "--nproc-per-node 4",
        ),
        (
            "deepspeed",
            {"nodes": 2, "ntasks": 4},
            "one task per node",
            "--nproc-per-node 2: 4 ranks on 2 nodes",
        ),
        ("mpi", {"nodes": 2, "ntasks": 3}, "same number of tasks on each node", "-N 2 -n 2"),
        (
            "plain",
            {"nodes": 2, "ntasks": 4, "ntasks_per_node": 1},
            "on 2 nodes do not agree",
            "one of them",
        ),
    ],
)
def test_tasks_that_a_mode_cannot_have_are_refused_with_the_word_that_does_it(
    tmp_path: Path, mode: str, asked: dict[str, Any], says: str, remedy: str
) -> None:
    """researcher 5: four torchruns on a node, and EADDRINUSE after 36 s."""
    with pytest.raises(InputError, match=says) as refused:
        line(make_site(tmp_path), PLAIN, mode, **asked)
    assert remedy in refused.value.hint


@pytest.mark.parametrize("runtime", ["pyxis", "apptainer", "enroot", "podman", "charliecloud"])
def test_the_home_directory_is_there_in_every_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    """researcher 8: a library wrote ~/.triton, which worked by Apptainer and not under Pyxis."""
    monkeypatch.setenv("HOME", str(tmp_path))
    tools = Cluster("srun", "apptainer", "enroot", "podman", "ch-run")

    def said(home: bool | None) -> str:
        made = plan(
            ARTIFACT, ("true",), "plain", Resources(), make_site(tmp_path), tools, runtime=runtime,
            workdir=Path("/work"), home=home,
        )  # fmt: skip
        return " ".join(made.argv)

    brought = "home" in RUNTIMES[runtime].brings
    assert (f"{tmp_path}:{tmp_path}" in said(True)) is not brought
    assert f"{tmp_path}:{tmp_path}" not in said(False)
    if runtime == "apptainer":
        assert "--no-home" in said(False)
        assert "--no-home" not in said(True) + said(None)


def test_a_home_that_a_runtime_would_run_as_shell_is_not_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcstack.launch.plan import find_home_to_mount

    odd = tmp_path / "a $(b)"
    odd.mkdir()
    for home in (str(odd), "/", "relative", str(tmp_path / "none"), ""):
        monkeypatch.setenv("HOME", home)
        assert find_home_to_mount() == "", home


@pytest.mark.parametrize(
    ("command", "asks"),
    [
        (("-m", "pdb", "train.py"), True), (("python3", "-m", "pdb", "train.py"), True), (("bash",), True),
        (("ipython",), True), (("python3", "train.py"), False), (("bash", "run.sh"), False), (("-m", "mine"), False),
        (("train.py",), False),
    ],
)  # fmt: skip
def test_what_waits_for_somebody_to_type(command: tuple[str, ...], asks: bool) -> None:
    """researcher: pdb without --pty looked like a hang."""
    from hpcstack.launch.run import asks_for_a_terminal

    assert asks_for_a_terminal(command) is asks


@pytest.mark.parametrize("inside", [False, True])
def test_no_gpu_may_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """`--gpus-per-node 0` took all GPUs of the node type: 0 counted as not asked for."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    if inside:
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
        monkeypatch.setenv("SLURM_GPUS_ON_NODE", "8")
    said = line(gpu_site(tmp_path), PYXIS, "torchrun", ("x.py",), without_gpus=True)
    assert "--gpus-per-node=0" in said
    assert said[said.index("torchrun") + 1] == "1", "one rank"


def test_no_gpu_may_be_asked_for_without_slurm(tmp_path: Path) -> None:
    assert line(gpu_site(tmp_path), ALONE, command=("x.py",), without_gpus=True)[-1] == "x.py"


def test_the_command_line_tells_none_from_not_asked() -> None:
    options = {"runtime": "auto", "nodes": None, "extra": (), "gpus": None}
    assert not parse_resources({**options, "gpus_per_node": None}).without_gpus
    none, four = (GpuCount((Gres("gpu", count=one),)) for one in (0, 4))
    assert parse_resources({**options, "gpus_per_node": none}).without_gpus
    assert parse_resources({**options, "gpus_per_node": None, "gpus": none}).without_gpus
    asked = parse_resources({**options, "gpus_per_node": four})
    assert (asked.gpus_per_node, asked.without_gpus) == (4, False)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("4", (4, "")),
        ("h100:4", (4, "h100")),
        ("h100", (1, "h100")),
        ("3090:2", (2, "3090")),
        ("1g.10gb:1", (1, "1g.10gb")),
        *(
            (word, None)
            for word in ("-1", "all", "four", "1.5", "+4", "", "a:b:c", "8000000000000000")
        ),
    ],
)
def test_a_number_of_gpus_as_it_is_typed(typed: str, expected: tuple[int, str] | None) -> None:
    """What no number is was once a type: `--gpus-per-node=all:1`."""
    words = ["x-1", f"--gpus-per-node={typed}", "--", "x.py"]
    if expected is None:
        with pytest.raises(click.BadParameter, match="no number of GPUs"):
            launch_command.make_context("launch", words)
        return
    found = parse_resources(launch_command.make_context("launch", words).params)
    assert (found.gpus_per_node, found.gpu_type) == expected


def test_a_type_of_gpu_that_one_of_two_names_is_kept() -> None:
    words = ["x-1", "-N", "2", "-G", "h100:8", "--gpus-per-node", "4", "--", "x.py"]
    found = parse_resources(launch_command.make_context("launch", words).params)
    assert (found.gpus_per_node, found.gpu_type) == (4, "h100")
    other = ["x-1", "-N", "2", "-G", "h100:8", "--gpus-per-node", "a100:4", "--", "x.py"]
    with pytest.raises(InputError, match="two types of GPU: a100, h100"):
        parse_resources(launch_command.make_context("launch", other).params)


@pytest.mark.parametrize(
    ("word", "gpus"), [("--gpus=a100:4,h100:4", None), ("--gpus-per-node=a100:2,h100:2", 4)]
)
def test_numbers_of_several_types_go_to_slurm_as_they_stand(word: str, gpus: int | None) -> None:
    found = parse_typed("-N", "2", word)
    assert [one.word for one in found.extra.given] == [word]
    (asked,) = found.gpu_requests
    assert asked.types == ("a100", "h100")
    assert gpus in (None, asked.count_on_node(2, 1))


def parse_typed(*words: str) -> Resources:
    context = launch_command.make_context("launch", ["x-1", *words, "--", "x.py"])
    extra = (*context.meta["passed"], *context.params["extra"])
    return parse_resources({**context.params, "extra": extra})


def test_slurms_range_of_nodes_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-N 2-4` and `--exclusive=user`, Slurm's own forms, were refused."""
    asked = parse_typed("-N", "2-4")
    assert (asked.nodes, asked.most_nodes, asked.span) == (2, 4, "2-4")
    assert parse_typed("-N", "3-3").span == "3"
    argv = line(gpu_site(tmp_path), PYXIS, "torchrun", nodes=2, most_nodes=4)
    assert "--nodes=2-4" in argv
    assert not [word for word in argv if word.startswith("--ntasks=")]

    # a job has its nodes already
    for name, value in {**OF_A_JOB, "SLURM_JOB_NUM_NODES": "3"}.items():
        monkeypatch.setenv(name, value)
    assert parse_typed("-N", "2-4").span == "3"
    assert parse_typed("-N", "4-8").span == "4-8"  # which srun refuses
    for typed in ("0", "2-", "4-2", "-1", "two"):
        with pytest.raises(click.BadParameter, match="no number of nodes"):
            parse_typed(f"--nodes={typed}")


def plan_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], *words: str
) -> Plan:
    """The plan of what is typed, WORDS, in a shell with VARIABLES, in mode torchrun."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    request = LaunchRequest(("x.py",), parse_typed(*words), mode="torchrun", only_shown=True)
    site = gpu_site(tmp_path, cpus=96)
    around = look_around(
        "auto", site, PLAIN, het_group=request.resources.extra.value("--het-group")
    )
    return plan_step(request, ARTIFACT, around)


@pytest.mark.parametrize(
    ("variables", "words", "has", "has_not"),
    [
        # of an option that is given twice the last one counts
        ({}, ("--gres=gpu:2", "--gres=lscratch:1"), ["--gpus-per-node=8"], []),
        # what is typed replaces a variable of the same option
        ({"SLURM_GRES": "gpu:2"}, ("--gres=lscratch:1",), ["--gpus-per-node=8"], []),
        ({"SLURM_GRES": "gpu:2"}, (), [], ["--gpus-per-node"]),
        # ours does not stand beside a variable that srun counts
        ({"SLURM_CPUS_PER_GPU": "12"}, (), ["--gpus-per-node=8"], ["--cpus-per-task"]),
        # and a variable is hidden beside what is typed
        ({"SLURM_CPUS_PER_GPU": "12"}, ("-c4",), ["-u", "SLURM_CPUS_PER_GPU"], []),
        # the node with the fewest CPUs counts, not this one
        (
            {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_ON_NODE": "6", "SLURM_JOB_CPUS_PER_NODE": "6,4",
             "SLURM_GPUS_ON_NODE": "1"},
            (), ["--cpus-per-task=4"], [],
        ),
        (
            {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_ON_NODE": "6", "SLURM_JOB_CPUS_PER_NODE": "6,4",
             "SLURM_GPUS_ON_NODE": "1"},
            ("-N1",), ["--cpus-per-task=6"], [],
        ),
        # another group of a heterogeneous job than the first
        (
            {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_GPUS_ON_NODE": "8", "SLURM_CPUS_ON_NODE": "96",
             "SLURM_JOB_ID_HET_GROUP_1": "8", "SLURM_JOB_NUM_NODES_HET_GROUP_1": "4", "SLURM_GPUS_PER_NODE_HET_GROUP_1": "2",
             "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1": "32(x4)"},
            ("--het-group=1",), ["--nodes=4", "--gpus-per-node=2", "--cpus-per-task=32"], [],
        ),
    ],
)  # fmt: skip
def test_what_counts_beside_variables_of_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str],
    words: tuple[str, ...], has: list[str], has_not: list[str],
) -> None:  # fmt: skip
    argv = plan_in(tmp_path, monkeypatch, variables, *words).argv
    assert [word for word in has if word not in argv] == []
    assert [word for word in argv if word.startswith(tuple(has_not))] == []


def test_what_a_mode_needs_is_not_left_out_for_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="by a variable of this shell"):
        plan_in(tmp_path, monkeypatch, {"SLURM_NTASKS_PER_GPU": "1"})
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(InputError, match="one group of a heterogeneous job"):
        plan_in(tmp_path, monkeypatch, {"SLURM_JOB_ID_HET_GROUP_1": "8"}, "--het-group=0,1")


def test_salloc_is_asked_for_what_srun_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan_in(tmp_path, monkeypatch, {"SLURM_GRES": "gpu:2", "SALLOC_GPUS": "1"})
    assert make_salloc_line(made)[:4] == ("env", "-u", "SALLOC_GPUS", "salloc")
    assert "--gres=gpu:2" in make_salloc_line(made)


def test_what_a_range_of_nodes_excludes(tmp_path: Path) -> None:
    wide = Resources(nodes=2, most_nodes=4)
    with pytest.raises(InputError, match="-N MIN-MAX exclude each other"):
        plan(ARTIFACT, ("x.py",), "torchrun", wide, gpu_site(tmp_path), PYXIS, spare=1)
    with pytest.raises(InputError, match="-N MIN-MAX exclude each other"):
        elastic = replace(wide, elastic="2:4")
        plan(ARTIFACT, ("x.py",), "torchrun", elastic, gpu_site(tmp_path), PYXIS)
    with pytest.raises(InputError, match="cannot be divided among 2-4 nodes"):
        parse_typed("-N", "2-4", "-G", "8")
    with pytest.raises(InputError, match="the same number of tasks on each"):
        plan(ARTIFACT, ("x.py",), "mpi", replace(wide, ntasks=8), gpu_site(tmp_path), PYXIS)


def test_a_flag_of_ours_may_have_srun_s_value(tmp_path: Path) -> None:
    context = launch_command.make_context("launch", ["x-1", "--exclusive=user", "--", "x.py"])
    assert context.meta["passed"] == ("--exclusive=user",)
    assert not context.params["exclusive"]
    with pytest.raises(click.UsageError, match="does not take a value"):
        launch_command.make_context("launch", ["x-1", "--batch=yes", "--", "x.py"])


@pytest.mark.parametrize(("total", "each"), [(0, 4), (8, 0)])
def test_none_and_some_contradict_each_other(total: int, each: int) -> None:
    of_all, of_each = (GpuCount((Gres("gpu", count=one),)) for one in (total, each))
    gpus = {"gpus": of_all, "gpus_per_node": of_each}
    options = {"runtime": "auto", "nodes": None, "extra": (), **gpus}
    with pytest.raises(InputError, match="contradict each other"):
        parse_resources(options)


# Two NVLink domains of two nodes each, dealt out, as Slurm 24.11.5 printed them of 36.
BLOCKS = """\
BlockName=b1 BlockIndex=0 Nodes=n1,n3 BlockSize=2
BlockName=b2 BlockIndex=1 Nodes=n2,n4 BlockSize=2
"""
# Answers of Slurm's for a job script, and a step that only says how it was asked for.
ANSWERS = {
    "scontrol": f"""#!/bin/sh
case "$*" in
"show topology") cat <<'BLOCKS'
{BLOCKS}BLOCKS
;;
"show hostnames "*) echo "$3" | tr , '\\n' ;;
"show hostlist "*) echo "$3" ;;
esac
""",
    "srun": """#!/bin/bash
for word; do
    case $word in
    --nodelist=*) echo "nodes $(paste -sd ' ' "${word#*=}")" ;;
    --nodes=* | --ntasks=* | --distribution=*) echo "$word" ;;
    esac
done
echo "order ${HPCSTACK_ORDER:-of Slurm}"
""",
}


class WithBlocks(Cluster):
    """A machine whose Slurm has BLOCKS."""

    def __init__(self) -> None:
        super().__init__("srun", "apptainer", "scontrol", "sinfo")

    def output(self, argv: object, **_: object) -> Completed:
        words = tuple(map(str, argv))  # type: ignore[call-overload]
        if words == ("scontrol", "show", "topology"):
            return Completed(words, 0, tuple(BLOCKS.splitlines()), BLOCKS)
        if words[-1] == "%P|%N":
            return Completed(words, 0, ("p*|n[1-4]",), "p*|n[1-4]\n")
        return Completed(words, 1, ())


def domain_site(folder: Path) -> Site:
    site = gpu_site(folder, count=4)
    gpus = site.node_types["n"].gpus
    assert gpus
    of_racks = gpus.model_copy(update={"domain_nodes": 2})
    node = site.node_types["n"].model_copy(update={"gpus": of_racks})
    return site.model_copy(update={"node_types": {"n": node}})


@pytest.mark.parametrize(
    ("mode", "nodes", "said"),
    [
        ("torchrun", "n1,n2,n3,n4", ["nodes n1 n3 n2 n4", "--distribution=arbitrary", "--ntasks=4", "order n1,n3,n2,n4"]),
        ("task-per-gpu", "n2,n1,n3,n4", ["nodes n1 n1 n1 n1 n3 n3 n3 n3 n2 n2 n2 n2 n4 n4 n4 n4", "--distribution=arbitrary", "--ntasks=16", "order n1,n3,n2,n4"]),
        ("torchrun", "n1,n3,n2,n4", ["--nodes=4", "order of Slurm"]),  # in order already
        ("torchrun", "n1,n2,n3,n4,n5", ["--nodes=4", "order of Slurm"]),  # a part of a job
        ("torchrun", "n5,n6,n2,n1", ["nodes n1 n2 n5 n6", "--distribution=arbitrary", "--ntasks=4", "order n1,n2,n5,n6"]),  # in no block
    ],
)  # fmt: skip
def test_a_script_puts_nodes_into_the_order_of_their_domains(
    tmp_path: Path, mode: str, nodes: str, said: list[str]
) -> None:
    made = plan(
        ARTIFACT, ("prog",), mode, Resources(nodes=4), domain_site(tmp_path), WithBlocks(),
        workdir=Path("/work"),
    )  # fmt: skip
    assert made.needs_script
    assert "--segment=2" in make_salloc_line(made)
    assert "--segment" not in render_script(made, ARTIFACT, "why")  # the step is in that job
    for name, text in ANSWERS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", render_script(made, ARTIFACT, "why")],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_NODELIST": nodes, "SLURM_JOB_ID": "1", "HPCSTACK_ORDER": "stale", "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert sorted(done.stdout.splitlines()) == sorted(said), done.stderr
    assert not list(tmp_path.glob("tmp.*"))


def test_nodes_are_put_in_order_only_where_it_can_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, slurm = domain_site(tmp_path), WithBlocks()

    def is_ordered(mode: str = "torchrun", **resources: Any) -> bool:
        asked = Resources(**{"nodes": 4, **resources})
        return bool(plan(ARTIFACT, ("prog",), mode, asked, site, slurm, workdir=tmp_path).ordered)

    assert is_ordered()
    assert is_ordered("plain", ntasks_per_node=2)
    assert not is_ordered(nodes=2)  # in one domain
    assert not is_ordered("plain")  # Slurm alone knows how many tasks a node gets
    assert not is_ordered(extra=SlurmOptions.parse(["--distribution=cyclic"]))
    assert not is_ordered(extra=SlurmOptions.parse(["--pty"]))
    monkeypatch.setenv("SLURM_HOSTFILE", "/home/user/hosts")
    assert not is_ordered()


def test_a_segment_that_does_not_fit_is_refused_or_only_told(tmp_path: Path) -> None:
    asked = Resources(nodes=4, extra=SlurmOptions.parse(["--segment=3"]))
    site, slurm = domain_site(tmp_path), WithBlocks()
    assert not plan(ARTIFACT, ("prog",), "plain", asked, site, slurm, workdir=tmp_path).ordered
    asked = replace(asked, nodes=3, extra=SlurmOptions.parse(["--segment=2"]))
    with pytest.raises(InputError, match="3 nodes cannot be shared out in parts of 2"):
        plan(ARTIFACT, ("prog",), "plain", asked, site, slurm, workdir=tmp_path)
    shown = plan(
        ARTIFACT, ("prog",), "plain", asked, site, slurm, workdir=tmp_path, only_shown=True
    )
    assert "3 nodes cannot be shared out" in shown.slurm_refuses


def test_another_cluster_is_refused(tmp_path: Path) -> None:
    """It was passed on, and judged by this cluster's partitions."""

    class Named(Cluster):
        def output(self, argv: Any, **_: object) -> Completed:
            said = "ClusterName = alpha" if argv[0] == "scontrol" else "  --nodes=N"
            return Completed(tuple(argv), 0, (said,), said)

    runner = Named("srun", "apptainer", "scontrol")
    for word, is_taken in (("--clusters=alpha", True), ("--clusters=beta", False)):
        resources = Resources(extra=SlurmOptions.parse([word]))
        if is_taken:
            plan(ARTIFACT, ("x.py",), "plain", resources, gpu_site(tmp_path), runner)
            continue
        with pytest.raises(InputError, match="this cluster, which is alpha"):
            plan(ARTIFACT, ("x.py",), "plain", resources, gpu_site(tmp_path), runner)


# -- a task proves that it is in the image

ABOUT_IMAGE = {"spec_sha256": "a" * 64, "stack": "pytorch-24.11", "summary": "x"}


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize(
    ("about", "recipe", "is_in_it"),
    [
        (ABOUT_IMAGE, "a" * 64, True),
        (ABOUT_IMAGE, "", True),
        (ABOUT_IMAGE, "b" * 64, False),
        ({**ABOUT_IMAGE, "stack": "other-1"}, "", False),
        (None, "", False),  # the host
    ],
)
def test_a_slurmd_without_pyxis_ends_the_launch_with_the_reason(
    tmp_path: Path, shell: str, about: dict[str, str] | None, recipe: str, is_in_it: bool
) -> None:
    """NVIDIA/pyxis 79 and 29: the task ran on the host, and the launch said that it was in the image."""
    if about:
        text = json.dumps(about, indent=1, sort_keys=True)  # as render/image.py writes it
        (tmp_path / "stack.json").write_text(text + "\n")
    script = data.read_script("in-image/proof.sh").replace("/opt/hpcstack", str(tmp_path))
    argv = [shell, "-c", script, "proof", "pytorch-24.11", recipe, "echo", "two words"]
    env = {**os.environ, "SLURMD_NODENAME": "n7"}
    done = subprocess.run(argv, capture_output=True, text=True, env=env)
    if is_in_it:
        assert (done.returncode, done.stdout, done.stderr) == (0, "two words\n", "")
        return
    assert (done.returncode, done.stdout) == (125, "")
    assert "hpcstack: n7: this task is not in the image of pytorch-24.11" in done.stderr


def test_pyxis_alone_needs_the_proof(tmp_path: Path) -> None:
    made = plan(ARTIFACT, ("x.py",), "plain", Resources(), gpu_site(tmp_path), PYXIS)
    at = made.argv.index("proof")
    assert made.argv[at + 1 : at + 3] == ("pytorch-24.11", ""), (
        "the image of this test is not there"
    )
    assert (
        "proof"
        not in plan(ARTIFACT, ("x.py",), "plain", Resources(), gpu_site(tmp_path), PLAIN).argv
    )


# -- every line that we make is one that srun takes

# Of each option that is about nodes, tasks, CPUs, GPUs, memory and where they lie: forms of srun(1)
WORDS = [
    "--nodes=2", "--nodes=1-3", "--ntasks=4", "--ntasks-per-node=2", "--ntasks-per-gpu=1", "--ntasks-per-core=1", "--ntasks-per-socket=1",
    "--gpus-per-node=4", "--gpus-per-node=h100:4", "--gpus-per-node=0", "--gpus=4", "--gpus=h100:4", "--gres=gpu:2", "--gres=gpu",
    "--gres=gpu:h100:2", "--gres=none", "--gpus-per-task=1", "--gpus-per-task=h100:1", "--tres-per-task=cpu=2",
    "--tres-per-task=gres/gpu=1", "--tres-per-task=cpu=2,gres/gpu=1", "--gpus-per-socket=1", "--sockets-per-node=1",
    "--cpus-per-task=4", "--cpus-per-gpu=4", "--mem=4G", "--mem-per-cpu=1G", "--mem-per-gpu=4G", "--mincpus=4",
    "--exclusive", "--exclusive=user", "--overlap", "--oversubscribe", "--exact", "--whole", "--core-spec=1", "--thread-spec=1",
    "--hint=nomultithread", "--threads-per-core=1", "--cpu-bind=cores", "--gpu-bind=none", "--gpu-bind=closest",
    "--distribution=block", "--distribution=arbitrary", "--nodelist=n1", "--exclude=n2", "--relative=0", "--contiguous",
    "--constraint=x", "--label", "--unbuffered", "--kill-on-bad-exit=0", "--time=10", "--no-kill", "--overcommit", "--quiet",
    "--verbose", "--mpi=none", "--comment=x", "--job-name=x", "--segment=1", "--wait=5",
]  # fmt: skip
# Variables of a job that a step may be in: as salloc and sbatch set them
CONTEXTS: list[dict[str, str]] = [
    {},
    {"SLURM_GPUS_ON_NODE": "8", "SLURM_CPUS_ON_NODE": "96", "SLURM_GPUS_PER_NODE": "8"},
    {"SLURM_GPUS_ON_NODE": "8", "SLURM_CPUS_ON_NODE": "96", "SLURM_NTASKS_PER_GPU": "1", "SLURM_GPUS": "8", "SLURM_NTASKS": "8"},
    {"SLURM_GPUS_ON_NODE": "8", "SLURM_CPUS_ON_NODE": "96", "SLURM_GPUS_PER_TASK": "1", "SLURM_NTASKS": "8"},
    {"SLURM_GPUS_ON_NODE": "8", "SLURM_CPUS_ON_NODE": "96", "SLURM_NTASKS_PER_NODE": "4", "SLURM_NTASKS": "8", "SLURM_CPUS_PER_TASK": "2"},
    {"SLURM_JOB_CPUS_PER_NODE": "96(x2)", "SLURM_GPUS_PER_NODE": "4"},
]  # fmt: skip
OF_A_JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_PARTITION": "p",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "n[1-2]",
}


Typed = tuple[str, tuple[str, ...], dict[str, str]]


def list_pairs() -> list[Typed]:
    """(mode, words, variables) of each pair of options once outside a job, and once inside one."""
    pairs = list(itertools.combinations(WORDS, 2))
    modes = [one for one in MODES if one != "mpi"]  # whose PMI the srun of this machine may lack
    out: list[Typed] = []
    for number, pair in enumerate(pairs):
        first, second = modes[number % len(modes)], modes[(number // 7 + 1) % len(modes)]
        out.append((first, pair, {}))
        out.append((second, pair, {**OF_A_JOB, **CONTEXTS[1 + number % (len(CONTEXTS) - 1)]}))
    return out


def plan_typed(mode: str, words: tuple[str, ...], site: Site, variables: dict[str, str]) -> Plan:
    """The plan of what somebody types: by the verb's own parser, on a login node or in a job."""
    context = launch_command.make_context("launch", ["x-1", *words, "--mode", mode, "--", "x.py"])
    typed = {**context.params, "extra": (*context.meta["passed"], *context.params["extra"])}
    inside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    with mock.patch.dict(os.environ, {**inside, **variables}, clear=True):
        request = LaunchRequest(("x.py",), parse_resources(typed), mode=mode, only_shown=True)
        return plan_step(
            request, ARTIFACT, look_around(request.runtime, site, PLAIN, batch=request.batch)
        )


def judge_all(judge: SrunJudge, site: Site, lines: Iterable[Typed]) -> tuple[int, int, list[str]]:
    """(lines that srun took, lines that we refused, what srun refused of the others)."""
    taken, refused, wrong = 0, 0, []
    for mode, words, variables in lines:
        if not all(map(judge.knows, words)):
            continue
        try:
            made = plan_typed(mode, words, site, variables)
        except (InputError, click.UsageError):
            refused += 1
            continue
        argv = list(made.argv)
        begins = argv.index("srun")
        hidden = argv[:begins]  # env -u NAME ...
        kept = {name: value for name, value in variables.items() if name not in hidden}
        options = argv[begins + 1 : argv.index("apptainer")]
        if "/bin/sh" in options:  # what stands around the runtime
            options = options[: options.index("/bin/sh")]
        said = judge.judge(options, kept)
        if said:
            wrong.append(f"{mode} {' '.join(words)} in {variables}: {said.strip()} of {options}")
        taken += not said
    return taken, refused, wrong


EACH = 9  # parts, of which `ci/test` has one judged


@pytest.fixture(scope="module", params=find_sruns() or [""])
def judge(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SrunJudge]:
    found = SrunJudge(request.param, tmp_path_factory.mktemp("slurm"))
    yield found
    found.close()


@pytest.mark.srun
@pytest.mark.soak(
    "3,000 lines: a ninth of them has each option many times", but=lambda part: part == 0
)
@pytest.mark.parametrize("part", range(EACH))
def test_srun_takes_what_we_make_of_two_options(
    judge: SrunJudge, tmp_path: Path, part: int
) -> None:
    site = gpu_site(tmp_path)
    node_types = {"n": site.node_types["n"].model_copy(update={"cpus": 96})}
    site = site.model_copy(update={"node_types": node_types})
    taken, refused, wrong = judge_all(judge, site, list_pairs()[part::EACH])
    print(
        f"{judge.program}: {taken} lines taken, {refused} refused by hpcstack, {len(wrong)} wrong"
    )
    assert not wrong, "\n".join(wrong)
    assert taken > 100
    assert refused
