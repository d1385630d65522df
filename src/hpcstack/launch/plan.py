"""The step that would be run: its line, its environment, and the reason for every part."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, MissingToolError, did_you_mean
from hpcstack.launch import commands, limits
from hpcstack.launch.binding import Binding, bind_ranks
from hpcstack.launch.modes import MODES, check_mode, command_in, list_task_options, with_even_tasks
from hpcstack.launch.resources import ASKED, Resources, Share, gpus_said, node_of, share_resources
from hpcstack.launch.variables import OPTION, OWN, RUNTIME, Variable, list_step_variables, of_mode
from hpcstack.render.image import KERNEL_NAMES
from hpcstack.render.launchers import render_health, with_compat, with_host_libraries, wrap_rank
from hpcstack.runtimes import Part, Runtime, Step, choose_runtime
from hpcstack.runtimes.base import make_option
from hpcstack.slurm.query import find_allocation, pmi_type, query_partitions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.core.process import Runner
    from hpcstack.hardware.compatibility import Fit
    from hpcstack.launch.packages import Added
    from hpcstack.launch.request import LaunchRequest
    from hpcstack.launch.staging import Staging
    from hpcstack.site.injection import Brought
    from hpcstack.site.load import NodeType, Site
    from hpcstack.slurm.options import SlurmOptions
    from hpcstack.store.artifact import Artifact

OWN_FAILURE = 125


@dataclass(frozen=True)
class Spare:
    """MORE nodes than the step's NODES; SCRIPT says on each of them whether it is fit for work."""

    nodes: int
    more: int
    script: str


@dataclass(frozen=True)
class Plan:
    """The line that would be run, with its environment and the reasons; `staged` is done on the
    nodes before it.
    """

    parts: tuple[Part, ...]
    settings: tuple[Variable, ...]
    runtime: str
    reason: str
    mode: str
    fit: Fit | None = None
    staged: Staging | None = None
    grace: int = 0
    watchdog: int = 0
    ranks: int = 1  # of a node
    virtual_gpus: int = 0  # of a node: asked for, and no device is behind them
    spare: Spare | None = None
    brought: tuple[Brought, ...] = ()  # libraries of the nodes' own
    slurm_refuses: str = ""  # why Slurm would not take it today, where it is only shown

    @property
    def argv(self) -> tuple[str, ...]:
        return tuple(word for part in self.parts for word in part.words)

    @property
    def environment(self) -> dict[str, str]:
        return {one.name: one.value for one in self.settings}

    def shown(self) -> str:
        """The line as a shell would take it."""
        variables = [
            f"{name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())
        ]
        return " ".join([*variables, shlex.join(self.argv)])


def plan_step(
    request: LaunchRequest,
    artifact: Artifact,
    site: Site,
    runner: Runner,
    *,
    prolog: str = "",
    staged: Staging | None = None,
    added: Added | None = None,
) -> Plan:
    """Return the step of REQUEST in the image of ARTIFACT. InputError for resources that make no
    sense here.

    A request for a batch job is planned for a job of its own, whatever allocation this shell is in.
    PROLOG is a program that srun runs as the step begins, which writes down which job it became
    (record.keep_prolog). STAGED lies on the nodes' own disks before the step, ADDED are packages
    that are not the image's.
    """
    wanted_runtime = site.runtime if request.runtime == "auto" else request.runtime
    runtime, reason = choose_runtime(wanted_runtime, runner)
    here = not runtime.uses_slurm
    allocation = {} if request.batch else find_allocation(os.environ)

    mode = request.mode or artifact.mode
    resources = request.resources
    if resources.ntasks:
        resources = with_even_tasks(mode, resources)
    request = replace(request, mode=mode, resources=resources)
    share = share_resources(resources, site, allocation, here=here)
    node = node_of(resources, site, allocation)

    _check_request(request, runtime, site, allocation, staged)
    refusal = None if here else _slurm_refusal(request, share, allocation, runner)
    if refusal and not request.only_shown:
        raise refusal
    _check_architecture(artifact, node, here=here)

    if here:
        staged = None
    binding = None
    if request.bind and not here:
        binding = bind_ranks(resources, node, share)
    brought = bring_libraries(site, node, artifact, resources.nodes)
    variables = [
        *list_step_variables(site, resources.nodes, artifact.environment, brought=brought),
        *(Variable(name, value, OPTION) for name, value in request.environment.items()),
        *of_mode(mode, runtime.name, artifact.environment, binding, request.grace),
    ]
    options: list[Part] = []
    if not here:
        options = _list_srun_options(
            request, artifact, share, runner, binding, allocation, prolog=prolog
        )
    command = _command_inside(request, runtime, share, added)
    step = _make_step(
        request, artifact, site, runtime, share, command, options, variables, staged, added, brought
    )
    words_before = _without_gpus_by_the_task(request, runtime, allocation)
    spare = None
    if request.spare:
        spare = Spare(resources.nodes, request.spare, render_health(site))
    return Plan(
        parts=(*words_before, *runtime.parts(step)),
        settings=tuple(_list_settings(runtime, step, variables)),
        runtime=runtime.name,
        reason=reason,
        mode=mode,
        fit=_judge_fit(artifact, node),
        staged=staged,
        grace=request.grace,
        watchdog=request.watchdog,
        ranks=share.ranks,
        virtual_gpus=0 if share.gpus or here else gpus_said(resources),
        spare=spare,
        brought=brought,
        slurm_refuses=refusal.message if refusal else "",
    )


def _make_step(
    request: LaunchRequest,
    artifact: Artifact,
    site: Site,
    runtime: Runtime,
    share: Share,
    command: tuple[str, ...],
    options: list[Part],
    variables: list[Variable],
    staged: Staging | None,
    added: Added | None,
    brought: tuple[Brought, ...],
) -> Step:
    """Return the step that RUNTIME is given: COMMAND with OPTIONS, VARIABLES and all mounts."""
    home = _mount_home(runtime, request.home)
    mounts = [*site.mounts, *artifact.mounts]
    reasons = dict.fromkeys(home, "the home directory: where libraries keep their caches")
    folders: list[str] = []
    for one in brought:
        mounts += one.mounts
        folders += one.folders
        why = f"{one.reason} (fabric.injections.{one.name})"
        reasons |= dict.fromkeys(one.mounts, why)
    mounts += [*home, *request.mounts]
    if staged:
        mounts += staged.mounts
    if added:
        mounts += added.mounts
    return Step(
        image=Path(staged.image) if staged and staged.image else artifact.image,
        command=with_host_libraries(folders, command),
        slurm=tuple(options),
        mounts=tuple(mounts),
        workdir=request.workdir or Path.cwd(),
        home=request.home is not False,
        mounted_home=home_to_mount() if home else "",
        gpus=bool(share.gpus),
        grace=bool(request.grace),
        environment={one.name: one.value for one in variables},
        image_environment=artifact.environment,
        mount_reasons=reasons,
    )


def _mount_home(runtime: Runtime, wanted: bool | None) -> tuple[str, ...]:
    """Return the mount of the home directory, where it is WANTED and RUNTIME does not bring it."""
    home = home_to_mount()
    if not wanted or not home or "home" in runtime.brings:
        return ()
    return (f"{home}:{home}",)


def home_to_mount() -> str:
    """The home directory, if there is one that every runtime can mount; else empty."""
    home = os.environ.get("HOME", "")
    if (
        not home.startswith("/")
        or home.rstrip("/") == ""
        or any(sign in home for sign in ":,$`\"'\\ \n")
    ):
        return ""
    return home.rstrip("/") if Path(home).is_dir() else ""


def bring_libraries(
    site: Site, node: NodeType | None, artifact: Artifact, nodes: int
) -> tuple[Brought, ...]:
    """The libraries of NODE's own that a step on so many NODES gets. One node needs no fabric."""
    if nodes < 2:
        return ()
    kind = next((name for name, one in site.node_types.items() if one is node), "")
    return tuple(site.fabric.bring(kind, artifact.environment))


# What srun reads of a job that asked for GPUs by the task: the one task that starts all ranks would
# see one GPU
ABOUT_GPUS = (
    "--gpu-bind",
    "--gpu-freq",
    "--gpus",
    "--gpus-per-node",
    "--gpus-per-socket",
    "--gpus-per-task",
)
BY_THE_TASK = ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_GPU_BIND")


def _without_gpus_by_the_task(
    request: LaunchRequest, runtime: Runtime, allocation: Mapping[str, str]
) -> list[Part]:
    """Return `env -u ...`, to stand before srun where the job's own words about GPUs by the task
    would count for this step too.
    """
    found = [name for name in BY_THE_TASK if name in allocation]
    by_the_task = request.resources.extra.has("--gpus-per-task", "--tres-per-task")
    if not runtime.uses_slurm or request.mode == "plain" or by_the_task or not found:
        return []
    words = tuple(word for name in found for word in ("-u", name))
    why = "the job gives GPUs by the task; each rank takes its own of all that the node has"
    return [Part(("env", *words), why)]


def is_python(path: Path) -> bool:
    """Whether PATH is a Python file, which is started as one."""
    return path.suffix == ".py" and path.is_file()


def _command_inside(
    request: LaunchRequest, runtime: Runtime, share: Share, added: Added | None
) -> tuple[str, ...]:
    """Return what each task runs inside the image."""
    mode, command = request.mode, request.command
    if mode in ("mpi", "plain"):
        program = (request.workdir or Path.cwd()) / command[0]
        if command[0] == "-m" or is_python(program):
            command = ("python3", *command)

    inside = command_in(mode, command, request.resources, share)
    on_a_terminal = not runtime.uses_slurm or request.resources.extra.has("--pty")
    if inside == command and not on_a_terminal:
        inside = wrap_rank(command)
    if mode in ("mpi", "plain") and share.gpus and not runtime.finds_driver:
        inside = with_compat(inside)
    return added.command(inside) if added else inside


def _list_srun_options(
    request: LaunchRequest,
    artifact: Artifact,
    share: Share,
    runner: Runner,
    binding: Binding | None,
    allocation: Mapping[str, str],
    *,
    prolog: str,
) -> list[Part]:
    """Return srun's options for REQUEST, each with its reason."""
    mode, resources = request.mode, request.resources
    given = resources.extra
    if resources.elastic:
        why = "elastic: the nodes that are left go on"
        out = [make_option("--kill-on-bad-exit", 0, why), make_option("--no-kill", why=why)]
    else:
        why = "one rank that fails ends all: the others would wait for it"
        out = [make_option("--kill-on-bad-exit", 1, why)]
    out.append(make_option("--job-name", artifact.stack, "what squeue shows"))
    if not given.has("--comment"):
        mark = f"hpcstack:{artifact.key}"
        out.append(make_option("--comment", mark, "gc sees which image is in use"))
    if MODES[mode].pmi and not given.has("--mpi"):
        found = pmi_type(runner)
        if not found:
            raise MissingToolError(
                "srun has no PMI: MPI programs would each be alone", "ask for Slurm's PMIx plugin"
            )
        out.append(make_option("--mpi", found, "what `srun --mpi=list` has"))
    if prolog and not given.has("--prolog"):
        out.append(make_option("--prolog", prolog, "writes down which job and nodes this became"))
    if "SLURM_STEP_ID" in allocation and not given.has("--overlap"):
        why = "this shell is a step itself, and has what it would wait for"
        out.append(make_option("--overlap", why=why))

    of_tasks = list_task_options(mode, resources, share)
    of_tasks = _without_tasks_of_elastic(of_tasks, resources, allocation)
    out += of_tasks
    if count := _count_tasks(of_tasks, resources, allocation):
        why = "of all nodes: else the job's own SLURM_NTASKS would count"
        out.append(make_option("--ntasks", count, why))

    job_gives_by_the_task = "SLURM_GPUS_PER_TASK" in allocation
    if mode != "plain" and job_gives_by_the_task and not given.has(*ABOUT_GPUS):
        out.append(make_option("--gpu-bind", "none", "each task sees all GPUs of the step"))
    if binding and MODES[mode].a_task_a_rank:
        out.append(make_option("--cpu-bind", f"mask_cpu:{binding.masks}", binding.why))
    return out


def _without_tasks_of_elastic(
    asked: list[Part], resources: Resources, inside: Mapping[str, str]
) -> list[Part]:
    """Return ASKED without what breaks an elastic step that makes its own job: one task per node is
    srun's default there.

    With --nodes=1-2 and --ntasks-per-node=1, Slurm 24.11 gives two nodes and the CPUs of one task
    (`cpu counts: 1(x1),0(x1)`), and no step can ever start; seen on 24.11.5, not on 22.05.
    """
    if not resources.elastic or inside or resources.ntasks_per_node not in (0, 1):
        return asked
    return [part for part in asked if (part.option, part.value) != ("--ntasks-per-node", "1")]


def _count_tasks(asked: list[Part], resources: Resources, inside: Mapping[str, str]) -> int:
    """How many tasks a step of an allocation has; 0 where the allocation says nothing of tasks, or
    all is said.
    """
    each_node = inside.get("SLURM_NTASKS_PER_NODE", "")
    if "SLURM_NTASKS" not in inside or resources.elastic:
        return 0
    if resources.ntasks:
        return 0
    said = [part.value for part in asked if part.option == "--ntasks-per-node"]
    whole = resources.nodes == int(inside.get("SLURM_JOB_NUM_NODES", "0"))
    if said:
        each = int(said[0])
    elif each_node.isdigit():
        each = int(each_node)
    else:
        each = 0 if whole else 1
    return each * resources.nodes


def _list_settings(chosen: Runtime, step: Step, given: list[Variable]) -> list[Variable]:
    """What the line is started with: the variables in the runtime's own form, each with where it
    comes from.
    """
    known = {one.name: one for one in given}
    out = []
    for name, value in chosen.environment(step).items():
        plain = name.removeprefix("APPTAINERENV_")
        if plain in known:
            out.append(replace(known[plain], name=name, value=value))
        elif plain in step.image_environment and plain != name:
            out.append(Variable(name, value, "the image", "else this shell's own would win"))
        else:
            out.append(Variable(name, value, RUNTIME, REASONS.get(plain, "")))
    if chosen.uses_slurm:
        status = os.environ.get("SLURM_EXIT_ERROR", str(OWN_FAILURE))
        out.append(
            Variable(
                "SLURM_EXIT_ERROR", status, OWN, "srun's own failure is told from the command's"
            )
        )
    return out


REASONS = {
    "NVIDIA_VISIBLE_DEVICES": "no GPU behind these nodes: NVIDIA's hooks must not look for one",
    "APPTAINER_NO_EVAL": "a variable's value is text, not shell",
    "SLURM_STEP_NUM_NODES": "one node, whatever allocation this shell is in",
    "SLURM_NODEID": "one node, whatever allocation this shell is in",
}


def _judge_fit(artifact: Artifact, node: NodeType | None) -> Fit | None:
    """How the nodes' driver and GPU run the image; None where there is no GPU or the site does not
    say.
    """
    if not node or not node.gpus or not node.real_gpus or not node.driver:
        return None
    from hpcstack.hardware.compatibility import judge_fit

    return judge_fit(node.driver, node.gpus.model, artifact.environment)


def _check_architecture(artifact: Artifact, node: NodeType | None, *, here: bool) -> None:
    """InputError where the image is for other processors than the nodes have, or this machine if it
    runs HERE.
    """
    kind = KERNEL_NAMES.get(artifact.platform, "")
    of_the_nodes = node.architecture if node else ""
    theirs = os.uname().machine if here else of_the_nodes
    if not kind or not theirs or kind == theirs:
        return
    where = "this machine is" if here else "these nodes are"
    platform = next((name for name, machine in KERNEL_NAMES.items() if machine == theirs), "")
    build = f"hpcstack build {artifact.stack} --platform {platform}, where the recipe has it"
    raise InputError(
        f"the image of {artifact.stack} is for {kind}, and {where} {theirs}",
        build if here else f"-p a partition of {kind} nodes, or {build}",
    )


def _check_request(
    request: LaunchRequest,
    runtime: Runtime,
    site: Site,
    allocation: Mapping[str, str],
    staged: Staging | None,
) -> None:
    """Raise InputError for what does not go together, or means nothing here."""
    mode, resources = request.mode, request.resources
    if resources.nodes < 1:
        raise InputError(f"-N {resources.nodes}: a step has at least one node")
    check_mode(mode, resources)
    commands.check_starter(mode, request.command)
    if request.watchdog:
        _check_watchdog(resources.extra, job=request.batch)
    if request.spare:
        _check_spare(request, allocation, staged)
    if not runtime.uses_slurm:
        _check_local(request, staged)
        return
    asked_for = resources.partition.split(",") if site.partitions else []
    for partition in filter(None, asked_for):
        if partition not in site.partitions:
            near = did_you_mean(partition, site.partitions)
            raise InputError(
                f"the site names no partition {partition!r}{near}",
                f"known: {', '.join(site.partitions)}",
            )


def _slurm_refusal(
    request: LaunchRequest, share: Share, allocation: Mapping[str, str], runner: Runner
) -> InputError | None:
    """Return why the allocation, or Slurm's partition, does not have what REQUEST asks for; None
    where it does.
    """
    resources = request.resources
    if MODES[request.mode].a_task_a_rank and not resources.ntasks_per_node:
        resources = replace(resources, ntasks_per_node=share.ranks)
    try:
        if allocation:
            limits.check_allocation(resources, allocation)
        else:
            limits.check_limits(resources, query_partitions(runner))
    except InputError as error:
        return error
    return None


def _check_watchdog(given: SlurmOptions, *, job: bool) -> None:
    """InputError where the step's output does not come by srun, which is what a watchdog sees."""
    if given.has("--pty"):
        raise InputError(
            "--watchdog: a step with a terminal of its own (--pty) is not watched",
            "leave one of them out",
        )
    files = [one.word for one in given.given if one.name in ("--output", "--error")]
    if files and not job:
        raise InputError(
            f"--watchdog sees what srun writes, and with {files[0]} the nodes write",
            "leave one out",
        )


def _check_spare(
    request: LaunchRequest, allocation: Mapping[str, str], staged: Staging | None
) -> None:
    """Raise InputError where the nodes are given already, or something else must run on all of
    them.
    """
    resources = request.resources
    if allocation:
        raise InputError(
            "--spare wants a job of its own, and this shell is in one", "leave it out, or --batch"
        )
    if resources.elastic:
        raise InputError(
            "--spare and --elastic are two ways of doing without a node", "leave one of them out"
        )
    if resources.nodelist:
        raise InputError("--spare chooses among nodes, and -w names them", "leave one of them out")
    if staged:
        raise InputError(
            "--spare with --stage or --stage-in: the nodes are chosen first",
            "leave one of them out",
        )
    if resources.extra.has("--pty"):
        raise InputError(
            "--spare is a script's, and --pty wants the terminal", "leave one of them out"
        )


def _check_local(request: LaunchRequest, staged: Staging | None) -> None:
    """Raise InputError for what means nothing without Slurm."""
    mode, resources = request.mode, request.resources
    stages = bool(request.stage or request.stage_in)  # and not only the site's way
    asked = {
        "--batch": request.batch,
        "--grace": request.grace,
        "--watchdog": request.watchdog,
        "--spare": request.spare,
        "--stage and --stage-in": staged and stages,
    }
    if wrong := [option for option, value in asked.items() if value]:
        raise InputError(
            f"{', '.join(wrong)}: there is no Slurm in this step, only this machine", "leave it out"
        )
    if MODES[mode].a_task_a_rank and resources.nproc_per_node > 1:
        raise InputError(
            f"mode {mode}: without Slurm there is one task",
            "--mode torchrun starts several ranks here",
        )
    if of_slurm := replace(resources, nodes=0, gpus_per_node=0).parts():
        words = " ".join(part.words[0] for part in of_slurm)
        raise InputError(
            f"{words}: there is no Slurm in this step, only this machine", "leave it out"
        )
    if resources.nodes > 1:
        raise InputError(
            f"-N {resources.nodes}: there is no Slurm in this step, only this machine",
            "leave out -N",
        )


__all__ = ["ASKED", "OWN_FAILURE", "Plan", "bring_libraries", "plan_step"]
