"""Which of a site's node types a step may run on, where a partition has nodes of several."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcstack.core.process import Completed, Runner
from hpcstack.launch.node_types import find_node_type, list_node_types
from hpcstack.launch.resources import Resources, share_resources
from hpcstack.launch.surroundings import Surroundings
from hpcstack.runtimes import RUNTIMES
from hpcstack.site.load import Site
from hpcstack.site.model import NodeType
from hpcstack.slurm.client import Client
from hpcstack.slurm.gpus import list_requests_of_variables
from hpcstack.slurm.options import SlurmOptions

TYPES = {
    "a100x4": {"gpus": {"model": "A100", "count": 4, "nvlink": True}, "cpus": 64, "driver": "550.54.15"},
    "h100x4": {"gpus": {"model": "H100", "count": 4, "nvlink": True}, "cpus": 96, "driver": "550.54.15"},
    "v100x2": {"gpus": {"model": "V100", "count": 2}, "cpus": 40, "driver": "525.60.13"},
    "mig": {"gpus": {"model": "A100", "count": 0, "mig": {"1g.5gb": 28}}, "cpus": 64},
    "cpu": {"cpus": 128, "architecture": "aarch64"},
}  # fmt: skip
SINFO = """\
a[1-4]|64|gpu:nvidia_a100-sxm4-40gb:4(S:0-1)|a100,ib
h[1-2]|96|gpu:h100:4|h100,ib
v1|40|gpu:v100:2|v100
m1|64|gpu:1g.5gb:28|mig
c[1-9]|128|(null)|(null)
"""


class Sinfo(Runner):
    """Answers as sinfo does, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def has(self, tool: str) -> bool:
        return True

    def output(self, argv: Any, **_: object) -> Completed:
        self.asked += 1
        return Completed(tuple(argv), 0, tuple(SINFO.splitlines()), SINFO)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    folders = dict.fromkeys(("store", "lock_dir", "module_root"), str(tmp_path))
    partitions = {
        "gpu": {"node_types": ["a100x4", "h100x4", "v100x2", "mig"], "default": True},
        "cpu": {"node_type": "cpu"},
        "all": {"node_types": list(TYPES)},
    }
    return Site.model_validate({**folders, "node_types": TYPES, "partitions": partitions})


def chosen(site: Site, inside: dict[str, str] | None = None, **asked: Any) -> str:
    extra = SlurmOptions.parse(asked.pop("extra", "").split())
    resources = Resources(**asked, extra=extra)
    return " ".join(list_node_types(resources, site, inside or {}, Client(Sinfo())))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, "a100x4 h100x4 v100x2 mig"),
        ({"partition": "cpu"}, "cpu"),
        ({"partition": "cpu,gpu"}, "cpu a100x4 h100x4 v100x2 mig"),
        ({"gpus_per_node": 2}, "a100x4 h100x4 v100x2 mig"),
        ({"gpus_per_node": 4}, "a100x4 h100x4 mig"),  # a V100 node has two
        ({"gpus_per_node": 40}, "a100x4 h100x4 v100x2 mig"),  # no node has so many: Slurm says so
        ({"extra": "--gres=none"}, "a100x4 h100x4 v100x2 mig"),
        ({"gpus_per_node": 4, "gpu_type": "h100"}, "h100x4"),
        ({"gpus_per_node": 4, "gpu_type": "nvidia_a100-sxm4-40gb"}, "a100x4 mig"),
        ({"extra": "--gres=gpu:v100:1"}, "v100x2"),
        ({"extra": "--gres=gpu:1g.5gb:1"}, "mig"),
        ({"extra": "--gres=gpu:b300:1"}, "a100x4 h100x4 v100x2 mig"),  # nobody knows
        ({"constraint": "h100"}, "h100x4"),
        ({"constraint": "ib"}, "a100x4 h100x4"),
        ({"constraint": "a100|h100"}, "a100x4 h100x4"),
        ({"constraint": "ib&h100"}, "h100x4"),
        ({"constraint": "h100*2"}, "a100x4 h100x4 v100x2 mig"),  # of the others nothing is asked
        ({"nodelist": "v1"}, "v100x2"),
        ({"nodelist": "a[1-2],h1"}, "a100x4 h100x4"),
        ({"nodelist": "m1"}, "mig"),
        ({"nodelist": "x9"}, "a100x4 h100x4 v100x2 mig"),
        ({"partition": "all", "nodelist": "c3"}, "cpu"),
    ],
)
def test_what_is_asked_for_chooses(site: Site, asked: dict[str, Any], expected: str) -> None:
    assert chosen(site, **asked) == expected


def test_in_a_job_its_nodes_choose(site: Site) -> None:
    inside = {"SLURM_JOB_ID": "7", "SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_NODELIST": "h[1-2]"}
    assert chosen(site, inside) == "h100x4"
    typed = {**inside, "SLURM_JOB_NODELIST": "a1", "SLURM_GPUS_PER_NODE": "v100:2"}
    assert chosen(site, typed) == "v100x2"


def test_slurm_is_asked_only_where_it_decides(site: Site) -> None:
    for asked, count in (
        ({}, 0),
        ({"gpus_per_node": 4, "gpu_type": "h100"}, 0),
        ({"nodelist": "v1"}, 1),
    ):
        sinfo = Sinfo()
        list_node_types(Resources(**asked), site, {}, Client(sinfo))
        assert sinfo.asked == count, asked


def test_of_several_no_more_is_promised_than_all_have(site: Site) -> None:
    found = find_node_type(Resources(nodelist="a1,h1"), site, {}, Client(Sinfo()))
    assert found
    assert found.gpus
    assert (found.cpus, found.gpus.model, found.gpus.count) == (64, "A100 or H100", 4)
    assert found.gpus.nvlink
    assert found.driver == "550.54.15"
    every = find_node_type(Resources(), site, {}, Client(Sinfo()))
    assert every
    assert (every.cpus, every.driver) == (40, "")
    assert every.gpus
    assert every.gpus.count == 0
    assert find_node_type(Resources(partition="nowhere"), site, {}, Client(Sinfo())) is None


def test_a_share_of_the_cpus_is_one_that_each_type_has(site: Site) -> None:
    types = [site.node_types[name] for name in ("a100x4", "h100x4")]
    asked = Resources(gpus_per_node=2)
    assert share_resources(asked, types, {}, Client(Sinfo())).cpus == 32, "half of 64, not of 96"
    large = NodeType.model_validate({"gpus": {"model": "H100", "count": 8}, "cpus": 96})
    every = share_resources(Resources(), [types[0], large], {}, Client(Sinfo()))
    assert (every.gpus, every.cpus) == (4, 48)


def test_a_step_without_slurm_heeds_no_variable_of_slurms(site: Site) -> None:
    """Of a job of two nodes, SLURM_GPUS=8 is for both."""
    of_shell = list_requests_of_variables({"SLURM_GPUS": "8"}, "SLURM")
    here = len(list(Path("/dev").glob("nvidia[0-9]*")))
    asked = Resources(of_shell=of_shell)
    assert share_resources(asked, [], {}, Client(Sinfo()), here=True).gpus == here
    typed = Resources(gpus_per_node=2, of_shell=of_shell)
    assert share_resources(typed, [], {}, Client(Sinfo()), here=True).gpus == 2


def test_virtual_gpus_make_no_real_ones_void(site: Site) -> None:
    virtual = NodeType.model_validate({"gpus": {"model": "virtual", "count": 4}, "cpus": 8})
    job = {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "4"}
    types = [virtual, site.node_types["h100x4"]]
    assert share_resources(Resources(), types, job, Client(Sinfo())).gpus == 4
    assert share_resources(Resources(), [virtual], job, Client(Sinfo())).gpus == 0


def test_an_architecture_is_known_where_all_have_it(site: Site) -> None:
    around = Surroundings(site, Sinfo(), RUNTIMES["pyxis"], "", {})
    assert around.find_machine(Resources(partition="gpu")) == "x86_64"
    assert around.find_machine(Resources(partition="cpu")) == "aarch64"
    assert around.find_machine(Resources(partition="all")) == ""
    here = replace(around, runtime=RUNTIMES["local"])
    assert here.find_machine(Resources(partition="cpu")) == os.uname().machine


@pytest.mark.parametrize("partition", [{}, {"node_type": "cpu", "node_types": ["cpu"]}])
def test_a_partition_says_its_types_once(tmp_path: Path, partition: dict[str, Any]) -> None:
    folders = dict.fromkeys(("store", "lock_dir", "module_root"), str(tmp_path))
    with pytest.raises(ValueError, match="either node_type, or node_types"):
        Site.model_validate({**folders, "node_types": TYPES, "partitions": {"p": partition}})
