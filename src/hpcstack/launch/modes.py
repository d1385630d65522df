"""How a command becomes ranks: one visible table of modes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, format_count
from hpcstack.launch.resources import Resources, Share, gpus_said
from hpcstack.render.launchers import ABOUT, render_inner

if TYPE_CHECKING:
    from hpcstack.runtimes.base import Part


@dataclass(frozen=True)
class Mode:
    """`ranks_in_a_task`: one Slurm task per node starts all of its ranks; else each rank is a task
    of Slurm's.
    """

    about: str
    ranks_in_a_task: bool = False
    a_task_a_rank: bool = False
    pmi: bool = False


MODES: dict[str, Mode] = {
    "torchrun": Mode(ABOUT["torchrun"], ranks_in_a_task=True),
    "deepspeed": Mode(ABOUT["deepspeed"], ranks_in_a_task=True),
    "task-per-gpu": Mode(ABOUT["task-per-gpu"], a_task_a_rank=True),
    "mpi": Mode(ABOUT["mpi"], a_task_a_rank=True, pmi=True),
    "plain": Mode(ABOUT["plain"]),
}


def list_task_options(mode: str, resources: Resources, taken: Share) -> list[Part]:
    """srun's options for RESOURCES in MODE, each with its reason."""
    how = MODES[mode]
    said, why = resources, {}
    if taken.gpus and not gpus_said(resources) and not resources.extra.has("--gpus"):
        said = replace(resources, gpus_per_node=taken.gpus)
        why["--gpus-per-node"] = "all GPUs of the node type, or of the job"
    if how.ranks_in_a_task:
        said = replace(said, ntasks_per_node=1, cpus_per_task=taken.cpus)
        why |= {
            "--ntasks-per-node": how.about,
            "--cpus-per-task": "all CPUs for the one task: its ranks share them",
        }
    elif how.a_task_a_rank:
        ranks = resources.ntasks_per_node or taken.ranks
        cpus = resources.cpus_per_task or (taken.cpus // ranks if taken.cpus else 0)
        said = replace(said, ntasks_per_node=ranks, cpus_per_task=cpus)
        why |= {
            "--ntasks-per-node": how.about,
            "--cpus-per-task": "the node's CPUs, in equal parts",
        }
    if resources.cpus_per_task:
        why.pop("--cpus-per-task", None)
    return [
        replace(part, why=why[part.option]) if part.option in why else part for part in said.parts()
    ]


def with_even_tasks(mode: str, resources: Resources) -> Resources:
    """RESOURCES with the tasks of all nodes as those of each. InputError where MODE starts one task
    a node, or they do not come out even and MODE needs them to; Slurm's own way of spreading them
    is left to mode plain.
    """
    tasks, nodes = resources.ntasks, max(resources.nodes, 1)
    if MODES[mode].ranks_in_a_task:
        each = -(-tasks // nodes)
        raise InputError(
            f"-n {tasks}: in mode {mode} one task per node starts all of its ranks",
            f"--nproc-per-node {each}"
            + (f": {each * nodes} ranks on {nodes} nodes" if nodes > 1 else ""),
        )
    if resources.ntasks_per_node:
        if resources.ntasks_per_node * nodes != tasks:
            on_nodes = (
                f"--ntasks-per-node {resources.ntasks_per_node} on {format_count(nodes, 'node')}"
            )
            raise InputError(f"-n {tasks} and {on_nodes} do not agree", "one of them is enough")
        return replace(resources, ntasks=0)
    if tasks % nodes == 0:
        return replace(resources, ntasks=0, ntasks_per_node=tasks // nodes)
    if MODES[mode].a_task_a_rank:
        raise InputError(
            (
                f"-n {tasks} on {nodes} nodes: not as many on each, and mode {mode} has as many on "
                f"each"
            ),
            f"-N {nodes} -n {tasks // nodes * nodes or nodes}",
        )
    return resources


def command_in(
    mode: str, command: tuple[str, ...], resources: Resources, taken: Share
) -> tuple[str, ...]:
    """What each task runs inside the image for COMMAND."""
    script = render_inner(mode)
    if not script:
        return command
    ranks = (resources.ntasks_per_node or taken.ranks) if MODES[mode].a_task_a_rank else taken.ranks
    return (
        "/bin/sh",
        "-c",
        script,
        mode,
        str(ranks),
        resources.elastic,
        str(resources.restarts),
        *command,
    )


def check_mode(mode: str, resources: Resources) -> None:
    """InputError for what MODE cannot do."""
    how = MODES[mode]
    if how.ranks_in_a_task and resources.ntasks_per_node > 1:
        raise InputError(
            (
                f"--ntasks-per-node {resources.ntasks_per_node}: in mode {mode} one task per node "
                f"starts all of its ranks"
            ),
            f"--nproc-per-node {resources.ntasks_per_node}, or --mode task-per-gpu",
        )
    if not how.ranks_in_a_task and not how.a_task_a_rank and resources.nproc_per_node:
        raise InputError(f"--nproc-per-node has no effect in mode {mode}", "--ntasks-per-node")
    if how.a_task_a_rank and resources.extra.has("--gpus-per-task"):
        raise InputError(
            (
                f"--gpus-per-task in mode {mode}: each rank would see one GPU, as number 0 "
                f"whatever its LOCAL_RANK"
            ),
            "--gpus-per-node",
        )
    if (resources.elastic or resources.restarts) and mode != "torchrun":
        raise InputError(
            f"--elastic and --restarts work in mode torchrun, not in mode {mode}", "--mode torchrun"
        )
