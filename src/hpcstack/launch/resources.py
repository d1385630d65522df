"""The resources that a step asks for, in Slurm's own words, and its share of each node.

Tested in tests/unit/launch/test_plan.py and tests/unit/launch/test_binding.py.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, format_count
from hpcstack.runtimes.base import Part, make_option
from hpcstack.site.model import merge_node_types
from hpcstack.slurm.gpus import (
    GpuRequest,
    Per,
    count_gpus_asked,
    count_job_gpus,
    is_slice,
    list_requests,
    list_requests_of_job,
    list_requests_of_variables,
)
from hpcstack.slurm.options import NO_OPTIONS, GivenOption, SlurmOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcstack.site.load import NodeType
    from hpcstack.slurm.client import Client


@dataclass(frozen=True)
class Resources:
    """What a step asks for, under Slurm's names. Empty or 0 means not asked for.

    `without_gpus` asks for no GPU; otherwise all GPUs of a node are taken. `gpu_type` is the type of
    `gpus_per_node`, as the site's gres.conf names it. `ntasks` counts the tasks of all nodes
    together. Slurm may give a job `nodes` to `most_nodes`, if that is not 0. `elastic` is MIN:MAX nodes
    for torchrun, and `restarts` how often torchrun starts its workers again. `extra` are further
    options of srun. `of_shell` are the GPUs that variables of the shell ask Slurm for, outside a job.
    """

    nodes: int = 1
    most_nodes: int = 0
    ntasks: int = 0
    ntasks_per_node: int = 0
    gpus_per_node: int = 0
    gpu_type: str = ""
    without_gpus: bool = False
    cpus_per_task: int = 0
    nproc_per_node: int = 0
    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    constraint: str = ""
    nodelist: str = ""
    time: str = ""
    exclusive: bool = False
    elastic: str = ""
    restarts: int = 0
    extra: SlurmOptions = NO_OPTIONS
    of_shell: tuple[GpuRequest, ...] = ()

    def __post_init__(self) -> None:
        if self.elastic:
            least, _, most = self.elastic.partition(":")
            if not (least.isdigit() and most.isdigit() and 0 < int(least) <= int(most)):
                raise InputError(
                    f"--elastic {self.elastic}: MIN:MAX nodes are wanted",
                    "e.g. --elastic 2:4",
                    page="choose-a-mode",
                )

    @property
    def span(self) -> str:
        """The value of Slurm's --nodes: a number, or MIN-MAX."""
        if self.elastic:
            return self.elastic.replace(":", "-")
        if self.most_nodes:
            return f"{self.nodes}-{self.most_nodes}"
        return str(self.nodes) if self.nodes else ""

    @property
    def nodes_at_most(self) -> int:
        """The most nodes that it may run on."""
        return self.most_nodes or self.nodes

    @property
    def gpu_requests(self) -> tuple[GpuRequest, ...]:
        """What was asked for in GPUs, by whatever option; else by the shell's variables."""
        own = self._write_gpus()
        options = [GivenOption("--gpus-per-node", own)] if own else []
        typed = [*options, *self.extra.given]
        names = {one.name for one in typed}
        # What is typed replaces a variable that asks by the same option.
        of_shell = tuple(one for one in self.of_shell if one.option not in names)
        return list_requests(typed) or of_shell

    @property
    def takes_a_thread_a_core(self) -> bool:
        """Whether Slurm is asked to give one thread of each core, by an option or outside a job."""
        hint = self.extra.value("--hint") or os.environ.get("SLURM_HINT", "")
        threads = self.extra.value("--threads-per-core")
        threads = threads or os.environ.get("SLURM_THREADS_PER_CORE", "")
        return hint == "nomultithread" or threads == "1"

    @property
    def gives_gpus_by_the_task(self) -> bool:
        return any(one.per is Per.TASK for one in self.gpu_requests)

    def _write_gpus(self) -> str:
        """Return the value of --gpus-per-node; empty where it was not given."""
        if self.without_gpus:
            return "0"
        if not self.gpus_per_node:
            return ""
        return f"{self.gpu_type}:{self.gpus_per_node}" if self.gpu_type else str(self.gpus_per_node)

    def parts(self) -> list[Part]:
        """Return srun's options in a fixed order, each marked as asked for; `extra` come last."""
        said = {
            "nodes": self.span,
            "ntasks": self.ntasks,
            "ntasks-per-node": self.ntasks_per_node,
            "gpus-per-node": self._write_gpus(),
            "cpus-per-task": self.cpus_per_task,
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "reservation": self.reservation,
            "constraint": self.constraint,
            "nodelist": self.nodelist,
            "time": self.time,
        }
        out = [make_option(f"--{name}", value, ASKED) for name, value in said.items() if value]
        if self.exclusive:
            out.append(make_option("--exclusive", why=ASKED))
        out += [make_option(one.name, one.value, ASKED) for one in self.extra.given]
        return out


ASKED = "asked for"


@dataclass(frozen=True)
class Share:
    """What a step takes of each node.

    `gpus` are real ones only: 0 where Slurm's GPUs have no device behind them. `doubt` says why
    nobody knows how many they are; `gpus` is 0 then, and the step may have some all the same. A
    `cpus` of 0 means that nobody knows.
    """

    gpus: int
    ranks: int
    cpus: int
    doubt: str = ""
    # They are parts of GPUs that several jobs share: no option asks for them by a number of GPUs.
    of_shares: bool = False

    @property
    def may_have_gpus(self) -> bool:
        return bool(self.gpus or self.doubt)


def share_resources(
    resources: Resources,
    types: Sequence[NodeType],
    inside: Mapping[str, str],
    client: Client,
    *,
    here: bool = False,
) -> Share:
    """Return what a step takes of each node, which is of one of TYPES.

    INSIDE are the variables of the job that it is in, empty for none. CLIENT is asked about that job
    where they do not say how many GPUs it has. HERE means a step without Slurm, for which this
    machine's devices are counted. There is a rank per real GPU, else one, unless --nproc-per-node
    says otherwise.
    """
    node = merge_node_types(types)
    found = _find_gpus(resources, node, inside, client, here=here)
    spans_types = len(types) > 1 and resources.nodes != 1
    if spans_types and inside and node and not resources.gpu_requests:
        # What this node has of the job's, another one of another type may not have.
        found = replace(found, count=min(found.count, node.real_gpus))
    shares = [_count_cpus(found.count, one, inside, resources) for one in types]
    cpus = resources.cpus_per_task or min(shares, default=0)
    if cpus and not resources.cpus_per_task and not inside and resources.takes_a_thread_a_core:
        threads = client.count_threads(resources.partition)
        cpus = cpus // threads if threads else 0
    ranks = resources.nproc_per_node or found.count or 1
    return Share(found.count, ranks, cpus, found.doubt, found.of_shares)


@dataclass(frozen=True)
class _Found:
    """How many real GPUs a step has on each node; DOUBT says why nobody knows."""

    count: int = 0
    doubt: str = ""
    of_shares: bool = False


def _find_gpus(
    resources: Resources,
    node: NodeType | None,
    inside: Mapping[str, str],
    client: Client,
    *,
    here: bool,
) -> _Found:
    """Return the real GPUs per node: as many as asked for, else all that the job or NODE has.

    Where the site describes no NODE, GPUs that were asked for count as real.
    """
    asked = resources.gpu_requests
    if here:
        # What Slurm's variables ask for is Slurm's: this machine has the devices that it has.
        typed = replace(resources, of_shell=()).gpu_requests
        count = count_gpus_asked(typed, 1, 1) if typed else None
        return _Found(len(list(Path("/dev").glob("nvidia[0-9]*"))) if count is None else count)
    if node is not None and node.has_virtual_gpus:
        return _Found()
    if asked:
        return _read_asked(asked, resources.nodes, resources.ntasks_per_node or 1)
    if inside:
        return _find_gpus_of_job(node, inside, client)
    return _Found(node.real_gpus if node else 0)


def _read_asked(asked: tuple[GpuRequest, ...], nodes: int, tasks: int) -> _Found:
    count = count_gpus_asked(asked, nodes, tasks)
    if count is not None:
        return _Found(count)
    unread = [one.source for one in asked if not one.is_understood]
    if unread:
        return _Found(doubt=f"{', '.join(unread)}: hpcstack does not understand it")
    sources = " ".join(one.source for one in asked)
    return _Found(
        doubt=f"{sources} on {format_count(nodes, 'node')} does not say how many GPUs each node has"
    )


def _find_gpus_of_job(node: NodeType | None, inside: Mapping[str, str], client: Client) -> _Found:
    """Return the GPUs that the job with the variables INSIDE has on each node.

    On its nodes a variable says it. In salloc's shell on a login node there is only what was asked
    for by one of the options that salloc hands on; else slurmctld is asked.
    """
    on_node = inside.get("SLURM_GPUS_ON_NODE", "")
    if "SLURM_SHARDS_ON_NODE" in inside:
        return _Found(1, of_shares=True)
    if on_node.isdigit():
        return _Found(int(on_node))
    indices = inside.get("SLURM_JOB_GPUS", "")
    if re.fullmatch(r"\d+(,\d+)*", indices):
        return _Found(len(indices.split(",")))
    nodes = inside.get("SLURM_JOB_NUM_NODES", "")
    asked = list_requests_of_variables(inside, "SLURM")
    if asked and nodes.isdigit():
        count = count_gpus_asked(asked, int(nodes), _count_tasks_of_job(inside))
        if count is not None:
            return _Found(count, of_shares=any(one.is_of_shares for one in asked))

    record = client.query_record(inside.get("SLURM_JOB_ID", ""))
    if record:
        count = count_job_gpus(record.fields)
        if count is not None:
            shares = any(one.is_of_shares for one in list_requests_of_job(record.fields))
            return _Found(count, of_shares=shares)
    is_on_a_node = "SLURM_CPUS_ON_NODE" in inside  # slurmd sets it, and salloc does not
    if record or is_on_a_node:
        found = _find_gpus_by_config(node, client, is_on_a_node=is_on_a_node)
        if found is not None:
            return found
    job = inside.get("SLURM_JOB_ID", "")
    return _Found(doubt=f"Slurm does not say how many GPUs job {job} has on each node")


def _count_tasks_of_job(inside: Mapping[str, str]) -> int:
    """Return the tasks that a job has on each node by its variables; 0 where they do not say."""
    on_a_node = inside.get("SLURM_NTASKS_PER_NODE", "")
    if on_a_node.isdigit():
        return int(on_a_node)
    tasks, nodes = inside.get("SLURM_NTASKS", ""), inside.get("SLURM_JOB_NUM_NODES", "")
    if not (tasks.isdigit() and nodes.isdigit() and int(nodes)):
        return 0
    return int(tasks) // int(nodes) if int(tasks) % int(nodes) == 0 else 0


def _find_gpus_by_config(
    node: NodeType | None, client: Client, *, is_on_a_node: bool
) -> _Found | None:
    """Return the GPUs on each node of a job about which neither its variables nor Slurm name any.

    Where Slurm does not manage GPUs at all, each job sees those of its nodes. Else there are none,
    if Slurm would have named them: on a node it always does, in a record only where the site tracks
    them. None where nobody knows.
    """
    config = client.read_config()
    if not config:
        return None
    is_managed = "gpu" in config.get("GresTypes", "").split(",")
    if not is_managed:
        return _Found(node.real_gpus) if node is not None else None
    is_tracked = "gres/gpu" in config.get("AccountingStorageTRES", "").split(",")
    return _Found() if is_on_a_node or is_tracked else None


def _count_cpus(
    gpus: int, node: NodeType | None, inside: Mapping[str, str], resources: Resources
) -> int:
    """Return the CPUs per node that go with so many GPUS.

    They are 0 where the site does not say how many NODE has. Inside a job they are the job's: of a step
    on several nodes, and in salloc's shell on a login node, those of the node with the fewest.
    Elsewhere a step that takes a part of the GPUs of NODE, or of its slices, takes the same part of
    its CPUs.
    """
    if not node or not node.cpus:
        return 0
    of_the_node = inside.get("SLURM_CPUS_ON_NODE", "")
    of_the_job = [
        one.partition("(")[0] for one in inside.get("SLURM_JOB_CPUS_PER_NODE", "").split(",")
    ]
    of_all = [int(one) for one in of_the_job if one.isdigit()]  # 96(x2),48
    if of_the_node.isdigit():
        several = resources.nodes != 1
        return min([int(of_the_node), *of_all]) if several else int(of_the_node)
    if of_all and len(of_all) == len(of_the_job):
        return min(of_all)
    if gpus and node.real_gpus:
        return node.cpus * gpus // node.real_gpus
    slices = sum(node.gpus.mig.values()) if node.gpus else 0
    types = [word for request in resources.gpu_requests for word in request.types]
    if gpus and slices and all(map(is_slice, types)):
        return max(node.cpus * gpus // slices, 1)
    return node.cpus
