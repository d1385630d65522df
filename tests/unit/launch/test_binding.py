"""Cores near each rank's GPU: every recorded topology, the masks, and when nothing is bound."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import make_site
from hpcstack.core.cpus import make_cpu_mask, parse_cpu_list
from hpcstack.core.data import read_facts
from hpcstack.core.errors import InputError
from hpcstack.core.process import Runner
from hpcstack.hardware import facts
from hpcstack.launch.binding import bind_ranks, share_cores
from hpcstack.launch.plan import plan_step
from hpcstack.launch.request import LaunchRequest
from hpcstack.launch.resources import Resources, share_resources
from hpcstack.launch.surroundings import look_around
from hpcstack.render.launchers import render_inner, wrap_rank
from hpcstack.site.load import Site
from hpcstack.slurm.client import Client
from hpcstack.slurm.options import SlurmOptions
from unit.launch.test_plan import ARTIFACT, PLAIN

NAMES = list(facts.read_topologies())


def cores(cpus: str) -> set[int]:
    return {one for first, last in parse_cpu_list(cpus) for one in range(first, last + 1)}


def site(
    folder: Path, topology: str = "dgx-h100", cpus: int = 224, count: int = 8, **node: object
) -> Site:
    return Site.model_validate({
        "store": folder, "lock_dir": folder, "module_root": folder,
        "node_types": {"n": {"gpus": {"model": "H100", "count": count}, "cpus": cpus, "topology": topology, **node}},
        "partitions": {"p": {"node_type": "n", "default": True}},
    })  # fmt: skip


def bound(where: Site, **asked: object) -> tuple[str, ...] | None:
    resources = Resources(**asked)  # type: ignore[arg-type]
    share = share_resources(resources, list(where.node_types.values()), {}, Client(Runner()))
    found = bind_ranks(resources, where.node_type(), share)
    return found.cpus if found else None


@pytest.mark.parametrize("name", NAMES)
def test_every_topology_has_a_source_and_gives_each_gpu_cores_of_its_own(name: str) -> None:
    row = next(row for row in read_facts("topologies")["topologies"] if row["name"] == name)
    near = facts.read_topologies()[name].gpu_cpus
    assert row["source"].startswith("https://")
    assert len(near) == int(row["gpus"]["count"])
    parts = [cores(part) for part in share_cores(near)]
    assert all(part <= cores(whole) for part, whole in zip(parts, near, strict=True))
    assert sum(map(len, parts)) == len(set().union(*parts)), "no core has two ranks"
    assert len({len(part) for part in parts}) == 1, "all ranks have as many cores"
    if "cpus" in row:
        assert max(set().union(*parts)) < int(row["cpus"])


def test_threads_of_a_core_stay_together() -> None:
    assert share_cores(["0-55,112-167"] * 4)[1] == "14-27,126-139"
    assert share_cores(["0", "0"]) == ["0", "0"], "fewer cores than GPUs: they share them"


@given(st.sets(st.integers(0, 300), min_size=1))
def test_a_mask_is_its_cores(chosen: set[int]) -> None:
    assert int(make_cpu_mask(",".join(map(str, sorted(chosen)))), 16) == sum(
        1 << one for one in chosen
    )


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "-1", "1,,2", "1;2", "0x3"])
def test_what_is_no_list_of_cpus_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="list of CPUs"):
        parse_cpu_list(text)


def test_a_whole_node_is_bound_and_less_is_not(tmp_path: Path) -> None:
    found = bound(site(tmp_path))
    assert found is not None
    assert found[0] == "0-13,112-125"
    assert found[7] == "98-111,210-223"
    assert bound(site(tmp_path), gpus_per_node=4) is None, (
        "Slurm chooses the cores of a part of a node"
    )
    assert bound(site(tmp_path, cpus=0)) is None, "the site does not say how many cores Slurm gives"
    assert bound(site(tmp_path, cpus=0), exclusive=True) is not None
    assert bound(site(tmp_path), nproc_per_node=2) is None, "not a rank per GPU"
    assert bound(site(tmp_path), extra=SlurmOptions.parse(["--cpu-bind=none"])) is None, (
        "the user has said how"
    )
    assert bound(site(tmp_path, topology="")) is None


def test_a_sites_own_record_counts_more_and_a_wrong_name_is_said(tmp_path: Path) -> None:
    own = site(tmp_path, cpus=16, count=2, gpu_cpus=["0-7", "8-15"])
    assert bound(own) == ("0-7", "8-15")
    with pytest.raises(InputError, match="did you mean 'dgx-h100'"):
        bound(site(tmp_path, topology="dgx-h10"))


# As torch's own does, it makes $ of $$ in what it starts
# (torch/distributed/elastic/multiprocessing, macros.substitute)
TORCHRUN = """#!/usr/bin/env python3
import os, string, sys
words = sys.argv[sys.argv.index("--no-python") + 1 :]
os.execvpe(words[0], [string.Template(word).safe_substitute() for word in words], {**os.environ, "LOCAL_RANK": "1"})
"""


def test_ranks_are_bound_in_the_image(tmp_path: Path) -> None:
    """The launcher's own text, with a torchrun that starts what it was told as local rank 1."""
    if not shutil.which("taskset") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs taskset and two cores")
    torchrun = tmp_path / "torchrun"
    torchrun.write_text(TORCHRUN)
    torchrun.chmod(0o755)
    first, second = sorted(os.sched_getaffinity(0))[:2]
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HPCSTACK_CPUS": f"{first} {second}"}
    argv = [
        "/bin/sh",
        "-c",
        render_inner("torchrun"),
        "torchrun",
        "2",
        "",
        "0",
        "sh",
        "-c",
        "taskset -pc $$$$",
    ]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(f"list: {second}"), done
    gone = subprocess.run(
        argv, env=env | {"HPCSTACK_CPUS": "0 9999"}, capture_output=True, text=True, check=True
    )
    assert "rank is not bound to 9999" in gone.stderr, "said, and it runs all the same"


def make_node(top: Path, cpulists: dict[str, str]) -> dict[str, str]:
    """What a node says of its GPUs, {PCI address: cores near it}, and the variables that name it."""
    for minor, (address, cpulist) in enumerate(sorted(cpulists.items())):
        bus = top / "sys/bus/pci/drivers/nvidia" / address
        information = top / "proc/driver/nvidia/gpus" / address
        for folder in (bus, information, top / "dev"):
            folder.mkdir(parents=True, exist_ok=True)
        (bus / "local_cpulist").write_text(f"{cpulist}\n")
        (information / "information").write_text(
            f"Model: \t\t NVIDIA H100 80GB HBM3\nDevice Minor: \t {minor}\n"
        )
        (top / f"dev/nvidia{minor}").touch()
    return {f"HPCSTACK_{name.upper()}": str(top / name) for name in ("sys", "proc", "dev")}


@pytest.mark.parametrize(
    ("rank", "visible", "others", "expected"),
    [
        ("0", "", "", 0),
        ("1", "", "", 1),
        ("0", "1,0", "", 1),
        ("0", "", "nvidia0", 1),  # that GPU is another job's
        ("5", "", "", None),
        ("0", "GPU-8a6c", "", None),
    ],
)
def test_without_a_record_the_node_says_which_cores_are_near(
    tmp_path: Path, rank: str, visible: str, others: str, expected: int | None
) -> None:
    if not shutil.which("taskset") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs taskset and two cores")
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    parts = [cores[:half], cores[half:]]
    lists = [",".join(map(str, part)) for part in parts]
    env = make_node(tmp_path, {"0000:1b:00.0": lists[0], "0000:43:00.0": lists[1]})
    if others:
        (tmp_path / "dev" / others).unlink()
        lists[0] = lists[1]  # one GPU is left, and half of the cores are near it
    argv = wrap_rank(("python3", "-c", "import os; print(sorted(os.sched_getaffinity(0)))"))
    done = subprocess.run(
        argv,
        env={
            **os.environ,
            **env,
            "HPCSTACK_NEAR": "shared",
            "OMP_NUM_THREADS": "16",
            "LOCAL_RANK": rank,
            "CUDA_VISIBLE_DEVICES": visible,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    # Of the one GPU that is left, too few cores are near: all are better.
    wanted = cores if expected is None or others else parts[expected]
    assert done.stdout.strip() == str(wanted), done.stderr


def test_nodes_are_asked_where_nothing_is_recorded(tmp_path: Path) -> None:
    """Not where the site knows, there is no GPU, or the user binds."""

    def asks(one: Site, *, bind: bool = True) -> bool:
        request = LaunchRequest(("true",), Resources(), mode="torchrun", bind=bind)
        return (
            "APPTAINERENV_HPCSTACK_NEAR"
            in plan_step(
                request, ARTIFACT, look_around(request.runtime, one, PLAIN, batch=request.batch)
            ).environment
        )

    assert asks(site(tmp_path, "", cpus=16, count=2))
    assert not asks(site(tmp_path, "", cpus=16, count=2), bind=False)
    assert not asks(site(tmp_path, "dgx-h100"))
    assert not asks(site(tmp_path, cpus=16, count=2, gpu_cpus=["0-7", "8-15"]))
    assert not asks(make_site(tmp_path))


def test_no_core_near_a_gpu_is_one_that_the_rank_did_not_have(tmp_path: Path) -> None:
    """The cores of others are there, too: a kernel drops by itself only those that are not."""
    if not shutil.which("taskset") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs taskset and two cores")
    mine, others = sorted(os.sched_getaffinity(0))[:2]
    env = make_node(tmp_path, {"0000:1b:00.0": f"{mine},{others}", "0000:43:00.0": "800-900"})
    argv = wrap_rank(("python3", "-c", "import os; print(sorted(os.sched_getaffinity(0)))"))
    done = subprocess.run(
        ["taskset", "-c", str(mine), *argv],
        env={**os.environ, **env, "HPCSTACK_NEAR": "own", "LOCAL_RANK": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str([mine]), done.stderr


@pytest.mark.parametrize(
    ("how", "bind_type", "narrows"),
    [("shared", "", True), ("own", "", True), ("own", "mask_cpu:", False)],
)
def test_a_rank_keeps_to_the_cores_that_it_has(
    tmp_path: Path, how: str, bind_type: str, narrows: bool
) -> None:
    """Half of them are near. A task that Slurm has bound for itself alone needs all of them."""
    if not shutil.which("taskset") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs taskset and two cores")
    mine = sorted(os.sched_getaffinity(0))[:2]
    # the first of mine and many that are not mine
    env = make_node(tmp_path, {"0000:1b:00.0": f"{mine[0]},500-700", "0000:43:00.0": "800-900"})
    argv = wrap_rank(("python3", "-c", "import os; print(sorted(os.sched_getaffinity(0)))"))
    done = subprocess.run(
        ["taskset", "-c", ",".join(map(str, mine)), *argv],
        env={
            **os.environ,
            **env,
            "HPCSTACK_NEAR": how,
            "SLURM_CPU_BIND_TYPE": bind_type,
            "LOCAL_RANK": "0",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(mine[:1] if narrows else mine), done.stderr
    assert done.stderr == ""
