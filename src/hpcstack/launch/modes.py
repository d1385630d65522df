"""How a command becomes ranks: the table of modes, and the tasks that each asks Slurm for.

Tested in tests/unit/launch/test_plan.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, format_count
from hpcstack.render.launchers import ABOUT, render_inner
from hpcstack.slurm.gpus import Per, count_tasks_of_gpus
from hpcstack.slurm.options import SlurmOptions

if TYPE_CHECKING:
    from hpcstack.launch.resources import Resources, Share
    from hpcstack.runtimes.base import Part


@dataclass(frozen=True)
class Mode:
    """One way to start ranks.

    With `ranks_in_a_task`, one Slurm task per node starts all ranks of the node. With
    `a_task_a_rank`, each rank is a task of its own. Mode plain is neither: its tasks are the
    user's affair. With `pmi`, the ranks find each other by Slurm's PMI.
    """

    about: str
    ranks_in_a_task: bool = False
    a_task_a_rank: bool = False
    pmi: bool = False


# Values of --gpu-bind by which a task sees some GPUs of its own alone
OWN_GPUS = ("single", "per_task", "map_gpu")
MODES: dict[str, Mode] = {
    "torchrun": Mode(ABOUT["torchrun"], ranks_in_a_task=True),
    "deepspeed": Mode(ABOUT["deepspeed"], ranks_in_a_task=True),
    "task-per-gpu": Mode(ABOUT["task-per-gpu"], a_task_a_rank=True),
    "mpi": Mode(ABOUT["mpi"], a_task_a_rank=True, pmi=True),
    "plain": Mode(ABOUT["plain"]),
}


def list_task_options(mode: str, resources: Resources, taken: Share) -> list[Part]:
    """Return srun's options for RESOURCES in MODE, each with its reason.

    TAKEN fills in what was not asked for: the GPUs, tasks and CPUs of each node.
    """
    how = MODES[mode]
    completed = resources
    why: dict[str, str] = {}
    if taken.gpus and not taken.of_shares and not resources.gpu_requests:
        completed = replace(completed, gpus_per_node=taken.gpus)
        why["--gpus-per-node"] = "all GPUs of the node type, or of the job"

    if how.ranks_in_a_task:
        completed = replace(completed, ntasks_per_node=1, cpus_per_task=taken.cpus)
        why["--ntasks-per-node"] = how.about
        why["--cpus-per-task"] = "all CPUs for the one task: its ranks share them"
    elif how.a_task_a_rank:
        ranks = resources.ntasks_per_node or taken.ranks
        cpus = resources.cpus_per_task or taken.cpus // ranks
        completed = replace(completed, ntasks_per_node=ranks, cpus_per_task=cpus)
        why["--ntasks-per-node"] = how.about
        why["--cpus-per-task"] = "the node's CPUs, in equal parts"
    if resources.cpus_per_task:
        why.pop("--cpus-per-task", None)  # the user's own number: it stays "asked for"

    return [replace(part, why=why.get(part.option, part.why)) for part in completed.parts()]


def with_even_tasks(mode: str, resources: Resources) -> Resources:
    """Return RESOURCES with its `ntasks` of all nodes turned into `ntasks_per_node`.

    Raise InputError where MODE starts one task per node, or needs as many tasks on each node and
    they cannot be shared out evenly. Mode plain leaves an uneven number as it is: Slurm spreads it.
    """
    tasks = resources.ntasks
    nodes = max(resources.nodes, 1)
    if resources.most_nodes:
        if mode == "plain":
            return resources
        raise InputError(
            f"-n {tasks} on {resources.span} nodes: mode {mode} needs the same number of tasks on each",
            f"--ntasks-per-node, or -N {nodes}",
            page="choose-a-mode",
        )
    if MODES[mode].ranks_in_a_task:
        each = -(-tasks // nodes)
        hint = f"--nproc-per-node {each}"
        if nodes > 1:
            hint += f": {each * nodes} ranks on {nodes} nodes"
        raise InputError(
            f"-n {tasks}: in mode {mode} one task per node starts all of its ranks",
            hint,
            page="choose-a-mode",
        )

    if resources.ntasks_per_node:
        if resources.ntasks_per_node * nodes != tasks:
            on_nodes = (
                f"--ntasks-per-node {resources.ntasks_per_node} on {format_count(nodes, 'node')}"
            )
            raise InputError(
                f"-n {tasks} and {on_nodes} do not agree",
                "one of them is enough",
                page="choose-a-mode",
            )
        return replace(resources, ntasks=0)

    if tasks % nodes == 0:
        return replace(resources, ntasks=0, ntasks_per_node=tasks // nodes)
    if MODES[mode].a_task_a_rank:
        even = tasks // nodes * nodes or nodes
        raise InputError(
            f"-n {tasks} on {nodes} nodes: mode {mode} needs the same number of tasks on each node",
            f"-N {nodes} -n {even}",
            page="choose-a-mode",
        )
    return resources


def with_tasks_of_gpus(mode: str, resources: Resources, taken: Share) -> Resources:
    """Return RESOURCES whose --ntasks-per-gpu is turned into `ntasks_per_node`.

    That is done in a MODE whose ranks are tasks, since it says the number of tasks itself. Slurm
    refuses the two beside each other. In mode plain, Slurm works the tasks out.
    """
    each = resources.extra.value("--ntasks-per-gpu")
    if not MODES[mode].a_task_a_rank or not each.isdigit() or not taken.gpus:
        return resources
    kept = [one for one in resources.extra.given if one.name != "--ntasks-per-gpu"]
    tasks = taken.gpus * int(each)
    return replace(resources, ntasks_per_node=tasks, extra=SlurmOptions(tuple(kept)))


def wrap_command(
    mode: str,
    command: tuple[str, ...],
    resources: Resources,
    taken: Share,
    *,
    label: bool = False,
) -> tuple[str, ...]:
    """Return what each task runs inside the image for COMMAND.

    It is the script of MODE with its arguments and COMMAND behind them, or the bare COMMAND where
    MODE has no script. With LABEL, the ranks that the script starts begin their lines with their
    numbers.
    """
    script = render_inner(mode, label=label)
    if not script:
        return command
    ranks = taken.ranks
    if MODES[mode].a_task_a_rank and resources.ntasks_per_node:
        ranks = resources.ntasks_per_node
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
    """Raise InputError for options that MODE cannot honour."""
    how = MODES[mode]
    if how.ranks_in_a_task and resources.ntasks_per_node > 1:
        raise InputError(
            f"--ntasks-per-node {resources.ntasks_per_node}: in mode {mode} one task per node "
            "starts all of its ranks",
            f"--nproc-per-node {resources.ntasks_per_node}, or --mode task-per-gpu",
            page="choose-a-mode",
        )
    if not how.ranks_in_a_task and not how.a_task_a_rank and resources.nproc_per_node:
        raise InputError(
            f"--nproc-per-node has no effect in mode {mode}",
            "--ntasks-per-node",
            page="choose-a-mode",
        )
    # The newer name of --gpu-bind (srun(1))
    of_tres = re.search(r"gres/gpu:([^+]*)", resources.extra.value("--tres-bind"))
    said = resources.extra.value("--gpu-bind") or (of_tres[1] if of_tres else "")
    bound = said.removeprefix("verbose,").partition(":")[0]
    if bound in OWN_GPUS and (how.a_task_a_rank or how.ranks_in_a_task):
        raise InputError(
            f"GPUs bound by {said} in mode {mode}: each task would see its "
            "own GPUs alone, whatever the LOCAL_RANK of its ranks",
            "leave it out; or --mode plain",
            page="choose-a-mode",
        )
    by_the_task = [one for one in resources.gpu_requests if one.per is Per.TASK]
    tasks = count_tasks_of_gpus(resources.gpu_requests)
    if how.ranks_in_a_task and by_the_task and tasks > 1:
        raise InputError(
            f"{by_the_task[0].source} makes {tasks} tasks of a node: in mode {mode} one task per "
            "node starts all of its ranks",
            f"leave it out, or --nproc-per-node {tasks}",
            page="choose-a-mode",
        )
    if how.a_task_a_rank and by_the_task:
        raise InputError(
            f"{by_the_task[0].source} in mode {mode}: each rank would see one GPU, as number 0 whatever "
            "its LOCAL_RANK",
            "--gpus-per-node",
            page="choose-a-mode",
        )
    if (resources.elastic or resources.restarts) and mode != "torchrun":
        raise InputError(
            f"--elastic and --restarts work in mode torchrun, not in mode {mode}",
            "--mode torchrun",
            page="choose-a-mode",
        )
