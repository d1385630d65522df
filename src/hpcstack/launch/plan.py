"""Plan a step: its command line, its environment, and the reason for every part of both."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, MissingToolError, did_you_mean, format_count
from hpcstack.core.names import STARTED_IN_IMAGE
from hpcstack.launch import commands, limits
from hpcstack.launch.binding import Binding, bind_ranks, may_bind_by_node
from hpcstack.launch.debug import check_debug, list_debug_variables, wrap_debugged
from hpcstack.launch.domains import Placement, place_nodes
from hpcstack.launch.exclusions import OF_SLURM, check_exclusions, list_given
from hpcstack.launch.failure import OWN_FAILURE
from hpcstack.launch.modes import (
    MODES,
    check_mode,
    list_task_options,
    with_even_tasks,
    with_tasks_of_gpus,
    wrap_command,
)
from hpcstack.launch.page import check_served, list_served_variables, wrap_served
from hpcstack.launch.reach_slurm import add_slurm_commands, runs_slurm_command
from hpcstack.launch.resources import (
    ASKED,
    Resources,
    Share,
)
from hpcstack.launch.site_options import list_site_options
from hpcstack.launch.squashfs_files import find_squashfs_mounts
from hpcstack.launch.variables import (
    ValueOrigin,
    Variable,
    list_mode_variables,
    list_step_variables,
)
from hpcstack.render.image import KERNEL_NAMES
from hpcstack.render.launchers import render_health, with_compat, with_host_libraries, wrap_rank
from hpcstack.runtimes import Part, Runtime, Step
from hpcstack.runtimes.base import make_option
from hpcstack.runtimes.squashfs_mounts import keep_hook
from hpcstack.slurm.client import Client
from hpcstack.slurm.gpus import count_gpus_asked, count_tasks_of_gpus
from hpcstack.slurm.options import GivenOption, SlurmOptions, name_variable
from hpcstack.slurm.rivals import (
    GIVING_TASKS,
    OF_EACH_GPU,
    check_options,
    find_rival_variables,
    find_rivals,
    list_options_of_variables,
)
from hpcstack.store.contents import read_about

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from hpcstack.core.process import Runner
    from hpcstack.hardware.compatibility import Fit
    from hpcstack.launch.request import LaunchRequest
    from hpcstack.launch.staging import Staging
    from hpcstack.launch.surroundings import Surroundings
    from hpcstack.project.added import Added
    from hpcstack.site.injection import Brought
    from hpcstack.site.load import NodeType, Site
    from hpcstack.store.artifact import Artifact


@dataclass(frozen=True)
class Spare:
    """`more` spare nodes beside the `nodes` of the step.

    `script` runs on every node and says whether the node is healthy.
    """

    nodes: int
    more: int
    script: str


@dataclass(frozen=True)
class Plan:
    """The command line of a step and its environment, with the reasons for them.

    It is that of `request`, whose mode is settled. `staged` is copied to the nodes before the line
    runs.
    """

    parts: tuple[Part, ...]
    settings: tuple[Variable, ...]
    request: LaunchRequest
    runtime: str
    reason: str
    fit: Fit | None = None
    staged: Staging | None = None
    ranks: int = 1  # per node
    virtual_gpus: int = 0  # per node: GPUs that Slurm counts and no device stands for
    spare: Spare | None = None
    brought: tuple[Brought, ...] = ()  # the nodes' own libraries that the container is given
    # Tasks of each node, where the nodes are put into the order of their NVLink domains first
    ordered: int = 0
    warnings: tuple[str, ...] = ()  # what could be had better, or is not known
    slurm_refuses: str = ""  # why Slurm would refuse it today; only set where it is only shown

    @property
    def argv(self) -> tuple[str, ...]:
        return tuple(word for part in self.parts for word in part.words)

    @property
    def environment(self) -> dict[str, str]:
        return {one.name: one.value for one in self.settings}

    @property
    def mode(self) -> str:
        return self.request.mode

    @property
    def needs_script(self) -> bool:
        """Whether the step needs more than srun.

        That is staging, a grace period, a watchdog, spare nodes, another start, or nodes in order.
        """
        asked = self.request
        is_asked_for = asked.grace or asked.watchdog or asked.requeue
        return bool(is_asked_for or self.staged or self.spare or self.ordered)

    def shown(self) -> str:
        """Return the line, with its variables before it, as it can be typed into a shell."""
        variables = [
            f"{name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())
        ]
        return " ".join([*variables, shlex.join(self.argv)])


def plan_step(
    request: LaunchRequest,
    artifact: Artifact,
    around: Surroundings,
    *,
    prolog: str = "",
    staged: Staging | None = None,
    added: Added | None = None,
) -> Plan:
    """Return the plan for the step of REQUEST in the image of ARTIFACT, AROUND which is what it says.

    PROLOG is a program that srun runs as the step begins; it records which job the launch became
    (record.keep_prolog). STAGED is on the nodes' own disks before the step starts. ADDED are
    packages on top of the image's. Raise InputError for resources that make no sense here, unless
    only Slurm's limits are against them and the request is only shown.
    """
    site, runner, client = around.site, around.runner, around.client
    runtime, here, allocation = around.runtime, around.here, around.allocation
    mode = request.mode or artifact.mode
    resources = request.resources
    if resources.ntasks:
        resources = with_even_tasks(mode, resources)
    nodes = around.find_nodes(resources)
    kinds, node, share = nodes.kinds, nodes.node, nodes.share
    resources = with_tasks_of_gpus(mode, resources, share)
    request = replace(request, mode=mode, resources=resources)

    _check_request(request, runtime, site, allocation, staged, client)
    refusal = None
    placement = Placement()
    if not here:
        refusal = _slurm_refusal(request, share, allocation, runner)
        placement = place_nodes(
            resources,
            request.spare,
            node,
            allocation,
            client,
            may_lose_nodes=bool(request.requeue),
        )
        refusal = refusal or placement.refusal
    if refusal and not request.only_shown:
        raise refusal
    _check_architecture(artifact, nodes.types, here=here)

    if here:
        staged = None  # this machine reads the shared file itself

    by_site: list[Part] = []
    if not here:
        by_site = _list_options_by_site(resources, site, kinds, share, allocation)
    all_given = (*resources.extra.given, *map(_as_option, by_site))
    with_sites = replace(resources, extra=SlurmOptions(all_given))

    binding = None
    if request.bind and not here:
        binding = bind_ranks(with_sites, node, share)
    brought = bring_libraries(site, kinds, artifact, resources.nodes_at_most)
    near = request.bind and may_bind_by_node(with_sites, node, share)
    variables = _list_variables(request, artifact, site, runtime, binding, brought, near=near)
    options: list[Part] = []
    if not here:
        options = _list_srun_options(
            request, artifact, share, runner, binding, allocation, placement, by_site, prolog=prolog
        )
    step = _make_step(
        request, artifact, site, runtime, share, staged, added, brought, variables, options
    )
    words_before = _hide_variables(request, runtime, allocation, options)
    spare = None
    if request.spare:
        spare = Spare(resources.nodes, request.spare, render_health(site))
    warnings = [placement.warning, _describe_doubt(share, mode)]
    if not here:
        warnings += [_describe_mixture(kinds, share), _describe_slices(node, share, request)]
    return Plan(
        parts=(*words_before, *runtime.parts(step)),
        settings=tuple(_list_settings(runtime, step, variables)),
        request=request,
        runtime=runtime.name,
        reason=around.reason,
        fit=_judge_fit(artifact, nodes.types),
        staged=staged,
        ranks=share.ranks,
        virtual_gpus=0 if here else _count_virtual_gpus(resources, share),
        spare=spare,
        brought=brought,
        ordered=_count_ordered_tasks(options) if placement.spans else 0,
        warnings=tuple(filter(None, warnings)),
        slurm_refuses=refusal.message if refusal else "",
    )


def _list_options_by_site(
    resources: Resources,
    site: Site,
    kinds: Sequence[str],
    share: Share,
    allocation: Mapping[str, str],
) -> list[Part]:
    """Return the options that SITE gives a step of RESOURCES, on nodes of KINDS."""
    given = SlurmOptions(tuple(map(_as_option, resources.parts())))
    partitions = resources.partition or allocation.get("SLURM_JOB_PARTITION", "")
    found = list_site_options(site, partitions, kinds, given, os.environ, in_a_job=bool(allocation))
    if share.may_have_gpus:
        return found
    return [part for part in found if part.option not in OF_EACH_GPU]  # refused without GPUs


def _list_variables(
    request: LaunchRequest,
    artifact: Artifact,
    site: Site,
    runtime: Runtime,
    binding: Binding | None,
    brought: tuple[Brought, ...],
    *,
    near: bool,
) -> list[Variable]:
    """Return the variables of a step, each with where it comes from."""
    variables = [
        *list_step_variables(
            site, request.resources.nodes_at_most, artifact.environment, brought=brought
        ),
        *(Variable(name, value, ValueOrigin.OPTION) for name, value in request.environment.items()),
        *list_mode_variables(
            request.mode, runtime.name, artifact.environment, binding, request.grace, near=near
        ),
    ]
    if request.debug is not None:
        variables += list_debug_variables(request.debug, os.environ, artifact.environment)
    if request.serves:
        variables += list_served_variables(request.serves)
    return variables


def _count_virtual_gpus(resources: Resources, share: Share) -> int:
    """Return the GPUs per node that are asked for and that no device stands for."""
    if share.gpus:
        return 0
    tasks = resources.ntasks_per_node or 1
    return count_gpus_asked(resources.gpu_requests, resources.nodes, tasks) or 0


def _describe_doubt(share: Share, mode: str) -> str:
    """Return what to say where nobody knows how many GPUs a node has; empty where it is known."""
    if not share.doubt:
        return ""
    said = f"{share.doubt}, so hpcstack asks for no GPUs of its own"
    if MODES[mode].ranks_in_a_task or MODES[mode].a_task_a_rank:
        said += f" and starts {format_count(share.ranks, 'rank')} on each node; --nproc-per-node N says how many"
    return said


def _describe_mixture(kinds: Sequence[str], share: Share) -> str:
    """Return what to say where the nodes may be of several KINDS; empty where they are of one."""
    if len(kinds) < 2:
        return ""
    gpus = f": {format_count(share.gpus, 'GPU')} on each" if share.gpus else ""
    return (
        f"these nodes may be of several types ({', '.join(kinds)}), so no more is asked for than all "
        f"have{gpus}; --gpus-per-node TYPE:N, -C or -w chooses"
    )


def _describe_slices(node: NodeType | None, share: Share, request: LaunchRequest) -> str:
    """Return what to say where nodes of the type NODE have MIG slices alone, and none was asked for."""
    has_slices = bool(node and node.gpus and node.gpus.mig)
    if not has_slices or share.may_have_gpus or request.resources.gpu_requests:
        return ""
    word = next(iter(node.gpus.mig)) if node and node.gpus else ""
    return f"these nodes have MIG slices, and none is asked for: --gres gpu:{word}:1 asks for one"


def _make_step(
    request: LaunchRequest,
    artifact: Artifact,
    site: Site,
    runtime: Runtime,
    share: Share,
    staged: Staging | None,
    added: Added | None,
    brought: tuple[Brought, ...],
    variables: list[Variable],
    options: list[Part],
) -> Step:
    """Return the step of REQUEST, with srun's OPTIONS and the VARIABLES that win over the image's."""
    mounts = _list_mounts(request, artifact, site, runtime, brought)
    # On the nodes' own disks, or made for this launch: these win over what lies elsewhere.
    if staged:
        mounts = mounts.with_more(staged.mounts)
    if added:
        mounts = mounts.with_more(added.list_mounts(os.environ))
    folders = [folder for one in brought for folder in one.folders]
    command = with_host_libraries(folders, _command_inside(request, runtime, share, added))
    squashfs = find_squashfs_mounts(mounts.pairs)
    if added:  # the file may have to be made yet
        others = [one for one in squashfs if one.mount != added.squashfs.mount]
        squashfs = (*others, added.squashfs)
    step = Step(
        image=Path(staged.image) if staged and staged.image else artifact.image,
        command=command,
        stack=artifact.stack,
        recipe=_read_own_checksum(artifact),
        slurm=tuple(options),
        mounts=mounts.pairs,
        squashfs=squashfs,
        hook=keep_hook(len(squashfs)) if squashfs and runtime.uses_hooks else None,
        workdir=request.folder,
        home=request.home is not False,
        mounted_home=mounts.home,
        gpus=share.may_have_gpus,
        grace=bool(request.grace),
        environment={one.name: one.value for one in variables},
        image_environment=artifact.environment,
        mount_reasons=mounts.reasons,
    )
    runtime.check_mounts(step)
    if not request.slurm:
        return step
    # What is started from inside has the same around it, but for the launcher of the ranks.
    around = with_host_libraries(folders, _prepare_image(share, runtime, added, ()))
    return add_slurm_commands(step, runtime, around)


def _read_own_checksum(artifact: Artifact) -> str:
    """Return the checksum of its recipe that the image of ARTIFACT keeps; empty where it has none."""
    found = str(read_about(artifact.image).get("spec_sha256", ""))
    # Where there is none, the name alone is compared.
    return found if re.fullmatch(r"[0-9a-f]{64}", found) else ""


@dataclass(frozen=True)
class _Mounts:
    """The mounts of a step, SOURCE:TARGET; `reasons` says why for those that nobody asked for.

    `home` is the home directory where it is one of them; else it is empty.
    """

    pairs: tuple[str, ...]
    reasons: dict[str, str]
    home: str = ""

    def with_more(self, pairs: Iterable[str]) -> _Mounts:
        return replace(self, pairs=(*self.pairs, *pairs))


def _list_mounts(
    request: LaunchRequest,
    artifact: Artifact,
    site: Site,
    runtime: Runtime,
    brought: tuple[Brought, ...],
) -> _Mounts:
    """Return the mounts of a step: the site's, the image's, those of BROUGHT, then the user's."""
    pairs = [*site.mounts, *artifact.mounts]
    reasons: dict[str, str] = {}
    for one in brought:
        pairs += one.mounts
        why = f"{one.reason} (fabric.injections.{one.name})"
        reasons |= dict.fromkeys(one.mounts, why)

    home = ""
    if request.home and "home" not in runtime.brings:
        home = find_home_to_mount()
    if home:
        mount = f"{home}:{home}"
        pairs.append(mount)
        reasons[mount] = "the home directory: where libraries keep their caches"
    return _Mounts((*pairs, *request.mounts), reasons, home)


def find_home_to_mount() -> str:
    """Return the home directory without a slash at its end; empty where a runtime cannot mount it.

    The root folder is never taken for one. Separators of mounts (`:` and `,`), quotes, `$`,
    backslashes, spaces and newlines in its name are not accepted: not every runtime takes them.
    """
    home = os.environ.get("HOME", "")
    is_a_folder_below_root = home.startswith("/") and home.rstrip("/") != ""
    if not is_a_folder_below_root:
        return ""
    if any(sign in home for sign in ":,$`\"'\\ \n"):
        return ""
    if not Path(home).is_dir():
        return ""
    return home.rstrip("/")


def bring_libraries(
    site: Site, kinds: Sequence[str], artifact: Artifact, nodes: int
) -> tuple[Brought, ...]:
    """Return the nodes' own libraries that a step gets; KINDS are their types, NODES how many.

    Return none for a step on one node, which needs no fabric.
    """
    if nodes < 2:
        return ()
    return tuple(site.fabric.bring(kinds, artifact.environment))


# Options of srun about the GPUs of a task. Where one of them is given, no --gpu-bind is added.
ABOUT_GPUS = (
    "--gpu-bind",
    "--gpu-freq",
    "--gpus",
    "--gpus-per-node",
    "--gpus-per-socket",
    "--gpus-per-task",
)
# Variables that srun reads in a job that was given GPUs by the task. With them, the one task that
# starts all ranks of a node would see one GPU. Slurm 23.11 and newer set those of TRES (env.c).
BY_THE_TASK = (
    "SLURM_GPUS_PER_TASK",
    "SLURM_TRES_PER_TASK",
    "SLURM_TRES_BIND",
    "SLURM_GPU_BIND",
)


def _hide_variables(
    request: LaunchRequest,
    runtime: Runtime,
    allocation: Mapping[str, str],
    options: Sequence[Part],
) -> list[Part]:
    """Return `env -u ...`, to stand before srun where it must not see some of the variables.

    They are those that give GPUs by the task, and those that srun refuses beside its OPTIONS.
    """
    if not runtime.uses_slurm:
        return []
    refused = find_rival_variables(map(_as_option, options), allocation or os.environ)
    out = []
    if refused:
        why = "srun would refuse them beside the options of this step"
        out.append(Part(_unset(refused), why))
    by_the_task = _list_variables_by_the_task(request, allocation)
    if by_the_task:
        why = "the job gives GPUs by the task; each rank takes its own of all that the node has"
        out.append(Part(_unset(by_the_task), why))
    return out


def _unset(names: Iterable[str]) -> tuple[str, ...]:
    return ("env", *(word for name in names for word in ("-u", name)))


def _list_variables_by_the_task(
    request: LaunchRequest, allocation: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the variables by which srun would apply a job's GPUs by the task to this step, too.

    There are none where the user asked for GPUs by the task here, and in mode plain, unless the
    request wants all GPUs.
    """
    if not _gives_gpus_by_the_task(allocation):
        return ()
    asked_here = request.resources.extra.has("--gpus-per-task", "--tres-per-task")
    as_the_job_says = request.mode == "plain" and not request.all_gpus
    if as_the_job_says or asked_here:
        return ()
    return tuple(name for name in BY_THE_TASK if name in allocation)


def _gives_gpus_by_the_task(allocation: Mapping[str, str]) -> bool:
    """Whether a job with these variables gives each task GPUs of its own.

    SLURM_TRES_PER_TASK alone does not say so: of `--cpus-per-task=4` it is `cpu=4`.
    """
    if "SLURM_GPUS_PER_TASK" in allocation or "SLURM_GPU_BIND" in allocation:
        return True
    tres = ("SLURM_TRES_PER_TASK", "SLURM_TRES_BIND")
    return any("gres/gpu" in allocation.get(name, "") for name in tres)


def is_python(path: Path) -> bool:
    """Whether PATH is a Python file, which is started with python3."""
    return path.suffix == ".py" and path.is_file()


def _command_inside(
    request: LaunchRequest, runtime: Runtime, share: Share, added: Added | None
) -> tuple[str, ...]:
    """Return what each task runs inside the image.

    The command runs inside the script that starts the ranks of its mode, or inside the one that
    reports how a rank ended (launchers/in-image/rank.sh). A step with a terminal of its own runs
    the bare command.
    """
    mode = request.mode
    command = request.command
    if request.debug is not None:
        command = wrap_debugged(request.debug, command)
    if request.serves:
        command = wrap_served(request.serves, command)
    elif mode in ("mpi", "plain"):
        program = request.folder / command[0]
        if command[0] == "-m" or is_python(program):
            command = ("python3", *command)

    inside = wrap_command(mode, command, request.resources, share, label=request.label)
    on_a_terminal = not runtime.uses_slurm or request.resources.extra.has("--pty")
    # Unchanged: the mode has no script of its own, so nothing else would report how a rank ends.
    if inside == command and not on_a_terminal:
        inside = wrap_rank(command)
    if mode in ("mpi", "plain"):
        return _prepare_image(share, runtime, added, inside)
    return added.command(inside) if added else inside


def _prepare_image(
    share: Share, runtime: Runtime, added: Added | None, command: tuple[str, ...]
) -> tuple[str, ...]:
    """Return COMMAND, for which the image is prepared: for the node's driver, with what is ADDED."""
    if share.may_have_gpus and not runtime.finds_driver:
        command = with_compat(command)
    if added:
        command = added.command(command)
    return command


def _list_srun_options(
    request: LaunchRequest,
    artifact: Artifact,
    share: Share,
    runner: Runner,
    binding: Binding | None,
    allocation: Mapping[str, str],
    placement: Placement,
    by_site: list[Part],
    *,
    prolog: str,
) -> list[Part]:
    """Return srun's options for REQUEST, each with its reason; BY_SITE are those that the site gives."""
    mode = request.mode
    resources = request.resources
    given = SlurmOptions((*resources.extra.given, *map(_as_option, by_site)))
    if resources.elastic:
        why = "elastic: the remaining nodes go on without the one that failed"
        out = [make_option("--kill-on-bad-exit", 0, why), make_option("--no-kill", why=why)]
    else:
        why = "a rank that fails ends the step: the others would wait for it for ever"
        out = [make_option("--kill-on-bad-exit", 1, why)]

    out.append(make_option("--job-name", artifact.stack, "what squeue shows"))
    if not given.has("--comment"):
        mark = f"hpcstack:{artifact.key}"
        out.append(make_option("--comment", mark, "tells hpcstack gc which image is in use"))

    if request.label and mode not in STARTED_IN_IMAGE:
        out.append(make_option("--label", why="each line begins with its task's number"))
    if placement.segment:
        out.append(placement.segment)

    if MODES[mode].pmi and not given.has("--mpi"):
        found = Client(runner).choose_pmi()
        if not found:
            raise MissingToolError(
                "srun has no PMI: each rank of an MPI program would run alone, as rank 0 of 1",
                "ask the site's administrators for Slurm's PMIx plugin",
                page="choose-a-mode",
            )
        out.append(make_option("--mpi", found, "the best that `srun --mpi=list` has"))
    if prolog and not given.has("--prolog"):
        out.append(make_option("--prolog", prolog, "records which job and nodes this became"))
    is_in_step = "SLURM_STEP_ID" in allocation
    if (is_in_step or request.slurm) and not given.has("--overlap"):
        why = "this shell is a step itself and holds the resources that srun would wait for"
        if not is_in_step:
            why = "steps that are started from inside must not wait for this one"
        out.append(make_option("--overlap", why=why))

    of_tasks = list_task_options(mode, resources, share)
    of_tasks = _without_tasks_of_a_range(of_tasks, resources, allocation)
    out += of_tasks
    out += _list_number_of_tasks(mode, of_tasks, resources, allocation, request.spare)

    job_gives_by_the_task = _gives_gpus_by_the_task(allocation)
    takes_all = mode != "plain" or request.all_gpus
    if takes_all and job_gives_by_the_task and not given.has(*ABOUT_GPUS):
        out.append(make_option("--gpu-bind", "none", "each task sees all GPUs of the step"))
    if binding and MODES[mode].a_task_a_rank:
        out.append(make_option("--cpu-bind", f"mask_cpu:{binding.masks}", binding.why))
    of_shell = _list_options_of_shell(request, allocation)
    return _without_rivals(out, by_site, of_shell, mode, in_a_job=bool(allocation))


def _list_options_of_shell(
    request: LaunchRequest, allocation: Mapping[str, str]
) -> tuple[GivenOption, ...]:
    """Return the options that this shell's variables stand for; none in a job, whose own they are."""
    if allocation:
        return ()
    return list_options_of_variables(os.environ, "SBATCH" if request.batch else "SLURM")


# What hpcstack adds for good measure: left out where the user asks for the same in another way.
LEFT_OUT = ("--cpus-per-task", "--gpus-per-node", "--gpu-bind")


def _without_rivals(
    parts: list[Part],
    by_site: list[Part],
    of_shell: Sequence[GivenOption],
    mode: str,
    *,
    in_a_job: bool,
) -> list[Part]:
    """Return PARTS and what the site gives, without what Slurm refuses beside something that counts more.

    What was asked for counts most, then what is BY_SITE, then what hpcstack adds for good measure.
    Raise InputError where Slurm refuses two that were asked for, or one that MODE cannot do without.
    """
    # Of an option that is given twice the last one counts.
    asked = list({part.option: _as_option(part) for part in parts if part.why == ASKED}.values())
    check_options(asked, in_a_job=in_a_job)
    needed = [
        _as_option(part) for part in parts if part.why == ASKED or part.option not in LEFT_OUT
    ]
    of_site = [part for part in by_site if not find_rivals(_as_option(part), needed)]
    # What is typed wins over a variable, and a variable over what is added here.
    typed = {one.name for one in asked}
    by_variable = [one for one in of_shell if one.name not in typed and not find_rivals(one, asked)]
    given = [*asked, *map(_as_option, of_site), *by_variable]
    names = {part.option for part in of_site}
    kept = []
    for part in parts:
        if part.why == ASKED:
            kept.append(part)
            continue
        if part.option in names:
            continue
        rivals = find_rivals(_as_option(part), given)
        if rivals and part.option not in LEFT_OUT:
            word, hint = rivals[0].word, f"leave out {rivals[0].name}"
            if rivals[0] in by_variable:
                word, hint = f"{word}, by a variable of this shell", "unset the variable"
            raise InputError(
                f"{word}: Slurm does not take it beside {part.words[0]}, which mode {mode} needs: "
                f"{part.why}",
                hint,
                page="choose-a-mode",
            )
        if not rivals:
            kept.append(part)
    return [*kept, *of_site]


def _as_option(part: Part) -> GivenOption:
    return GivenOption(part.option, part.value or None)


def _without_tasks_of_a_range(
    asked: list[Part], resources: Resources, inside: Mapping[str, str]
) -> list[Part]:
    """Return ASKED without --ntasks-per-node=1 for MIN to MAX nodes that are not INSIDE a job.

    With --nodes=1-2 and --ntasks-per-node=1, Slurm 24.11 gives two nodes and the CPUs of one task
    (`cpu counts: 1(x1),0(x1)`), and no step can ever start; seen on 24.11.5, not on 22.05. One task
    per node is srun's default there, so the option can be left out.
    """
    is_a_range = resources.elastic or resources.most_nodes
    if not is_a_range or inside or resources.ntasks_per_node not in (0, 1):
        return asked
    return [part for part in asked if (part.option, part.value) != ("--ntasks-per-node", "1")]


def _list_number_of_tasks(
    mode: str, asked: list[Part], resources: Resources, inside: Mapping[str, str], spare: int
) -> list[Part]:
    """Return --ntasks where the step needs it; ASKED are its options so far, SPARE its spare nodes.

    A step INSIDE an allocation would take the job's own SLURM_NTASKS, which is meant for all nodes
    of the job. In mode plain, without any number, Slurm starts as many copies as the CPUs allow.
    """
    if resources.ntasks:
        return []
    needs_number = resources.gives_gpus_by_the_task and not resources.extra.has("--gpus")
    if resources.elastic or resources.most_nodes:
        if needs_number and "SLURM_NTASKS" not in inside:
            raise InputError(
                f"GPUs by the task on {resources.span} nodes: Slurm wants to know how many tasks there are",
                "--gpus-per-node N",
                page="use-four-gpus-of-eight",
            )
        return []
    by_shell = not inside and mode != "plain" and "SLURM_NTASKS" in os.environ
    if "SLURM_NTASKS" in inside or by_shell:
        count = _count_tasks(asked, resources, inside)
        whose = "this shell's" if by_shell else "the job's own"
        why = f"on all nodes together: otherwise {whose} SLURM_NTASKS would count"
        return [make_option("--ntasks", count, why)] if count else []

    if needs_number:
        why = "Slurm takes GPUs by the task only where it knows how many tasks there are"
        each = [int(part.value) for part in asked if part.option == "--ntasks-per-node"]
        per_node = each[0] if each else count_tasks_of_gpus(resources.gpu_requests) or 1
        return [make_option("--ntasks", resources.nodes * per_node, why)]

    is_said = resources.ntasks_per_node or resources.extra.has(*GIVING_TASKS, "--distribution")
    by_gpus = resources.extra.has("--gpus") and resources.extra.has("--gpus-per-task")
    has_number = any(part.option == "--ntasks-per-node" for part in asked)
    if mode != "plain" or is_said or by_gpus or has_number or "SLURM_HOSTFILE" in os.environ:
        return []
    if spare:  # salloc would ask for no more nodes than tasks
        return []
    why = "one on each node: otherwise Slurm starts as many as the CPUs allow"
    return [make_option("--ntasks", resources.nodes, why)]


def _count_tasks(asked: list[Part], resources: Resources, inside: Mapping[str, str]) -> int:
    """Return the tasks of all nodes of a step INSIDE an allocation; 0 where SLURM_NTASKS is right.

    Where the options ASKED for do not say how many tasks a node has, the job's
    SLURM_NTASKS_PER_NODE counts, or one per node on a part of the job's nodes.
    """
    asked_per_node = [part.value for part in asked if part.option == "--ntasks-per-node"]
    job_per_node = inside.get("SLURM_NTASKS_PER_NODE", "")
    has_all_nodes = resources.nodes == int(inside.get("SLURM_JOB_NUM_NODES", "0"))
    if asked_per_node:
        per_node = int(asked_per_node[0])
    elif job_per_node.isdigit():
        per_node = int(job_per_node)
    elif has_all_nodes:
        per_node = 0  # SLURM_NTASKS is right
    else:
        per_node = 1
    return per_node * resources.nodes


def _count_ordered_tasks(options: Sequence[Part]) -> int:
    """Return how many tasks each node has by srun's OPTIONS, where the nodes can be put in order.

    0 where they cannot: the nodes have different numbers of tasks, or Slurm alone knows how many,
    or the user has said how tasks are to be distributed.
    """
    values = {part.option: part.value for part in options}
    by_a_variable = "SLURM_DISTRIBUTION" in os.environ or "SLURM_HOSTFILE" in os.environ
    if by_a_variable or "--distribution" in values or "--pty" in values:
        return 0
    if "--ntasks-per-node" in values:
        return int(values["--ntasks-per-node"])
    return 0


def _list_settings(chosen: Runtime, step: Step, given: list[Variable]) -> list[Variable]:
    """Return the variables that the line is started with, each with where it comes from.

    They are named in the form of the CHOSEN runtime, which may put a prefix before them. GIVEN are those of the
    step, whose origins and reasons are kept.
    """
    known = {one.name: one for one in given}
    out = []
    for name, value in chosen.environment(step).items():
        plain = name.removeprefix(chosen.variable_prefix)
        if plain in known:
            out.append(replace(known[plain], name=name, value=value))
        elif plain in step.image_environment and plain != name:
            out.append(Variable(name, value, ValueOrigin.IMAGE, "otherwise this shell's would win"))
        else:
            why = chosen.reasons.get(plain) or REASONS.get(plain, "")
            out.append(Variable(name, value, ValueOrigin.RUNTIME, why))
    if chosen.uses_slurm:
        status = os.environ.get("SLURM_EXIT_ERROR", str(OWN_FAILURE))
        why = "tells a failure of srun's own from one of the command"
        out.append(Variable("SLURM_EXIT_ERROR", status, ValueOrigin.OWN, why))
    return out


REASONS = {
    "NVIDIA_VISIBLE_DEVICES": "no GPU behind these nodes: NVIDIA's hooks must not look for one",
    "SLURM_STEP_NUM_NODES": "one node, whatever allocation this shell is in",
    "SLURM_NODEID": "one node, whatever allocation this shell is in",
}


def _judge_fit(artifact: Artifact, types: Iterable[NodeType]) -> Fit | None:
    """Return how well the driver and GPU of nodes run the image; of several TYPES, the worst.

    None where the nodes have no GPU, or the site does not name its driver.
    """
    from hpcstack.hardware.compatibility import judge_fit

    fits = [
        judge_fit(node.driver, node.gpus.model, artifact.environment)
        for node in types
        if node.gpus and node.real_gpus and node.driver
    ]
    return min(fits, key=lambda fit: (fit.runs, fit.kind == "native"), default=None)


def _check_architecture(artifact: Artifact, types: Iterable[NodeType], *, here: bool) -> None:
    """Raise InputError where the image is for other processors than those of one of TYPES.

    HERE compares with this machine instead. Nothing is known of nodes that the site does not
    describe, and nothing is refused for them.
    """
    wanted = KERNEL_NAMES.get(artifact.platform, "")
    found = [os.uname().machine] if here else [node.architecture for node in types]
    theirs = next((one for one in found if one != wanted), "")
    if not wanted or not theirs:
        return

    platform = next((name for name, machine in KERNEL_NAMES.items() if machine == theirs), "")
    where = "this machine is" if here else "these nodes are"
    hint = f"hpcstack build {artifact.stack} --platform {platform}, where the recipe has it"
    if not here:
        hint = f"-p a partition of {wanted} nodes, or {hint}"
    raise InputError(
        f"the image of {artifact.stack} is for {wanted}, and {where} {theirs}",
        hint,
        page="two-architectures",
    )


def _check_request(
    request: LaunchRequest,
    runtime: Runtime,
    site: Site,
    allocation: Mapping[str, str],
    staged: Staging | None,
    client: Client,
) -> None:
    """Raise InputError for options that exclude each other or mean nothing here."""
    mode = request.mode
    resources = request.resources
    if resources.nodes < 1:
        raise InputError(f"-N {resources.nodes}: a step has at least one node")
    check_mode(mode, resources)
    if not runs_slurm_command(request):
        commands.check_starter(mode, request.command)
    check_debug(request, uses_slurm=runtime.uses_slurm)
    check_served(request)
    given = list_given(request)
    check_exclusions(given | ({"--stage"} if staged else set()))
    _check_job(request, allocation)
    if not runtime.uses_slurm:
        _check_local(request, given)
        return
    typed = resources.extra.value("--clusters")
    variable = name_variable("--clusters", "SBATCH" if request.batch else "SLURM")
    by_variable = "" if allocation else os.environ.get(variable, "")
    if typed or by_variable:
        said = f"--clusters={typed}" if typed else f"{variable}={by_variable}"
        _check_cluster(typed or by_variable, said, client)
    if not site.partitions:
        return

    for partition in filter(None, resources.partition.split(",")):
        if partition not in site.partitions:
            near = did_you_mean(partition, site.partitions)
            raise InputError(
                f"site.yaml names no partition {partition!r}{near}",
                f"known: {', '.join(site.partitions)}",
                page="describe-your-cluster",
            )


def _check_cluster(asked: str, said: str, client: Client) -> None:
    """Raise InputError where another cluster than this one is ASKED for, by what was SAID.

    Partitions, node types and images are judged by what this cluster has.
    """
    own = client.read_config().get("ClusterName", "")
    if asked != own:
        here = f", which is {own}" if own else "; Slurm does not say what it is called"
        raise InputError(
            f"{said}: images, partitions and node types are those of this cluster{here}",
            "log in there; or leave it out",
            page="describe-your-cluster",
        )


def _slurm_refusal(
    request: LaunchRequest, share: Share, allocation: Mapping[str, str], runner: Runner
) -> InputError | None:
    """Return the refusal where REQUEST asks for more than the allocation or the partition has.

    None where it has all of it.
    """
    resources = request.resources
    if MODES[request.mode].a_task_a_rank and not resources.ntasks_per_node:
        resources = replace(resources, ntasks_per_node=share.ranks)
    if resources.gpu_requests and share.gpus:
        resources = replace(resources, gpus_per_node=share.gpus)
    try:
        if allocation:
            limits.check_allocation(resources, allocation)
        else:
            limits.check_limits(resources, Client(runner).query_partitions())
    except InputError as error:
        return error
    return None


def _check_job(request: LaunchRequest, allocation: Mapping[str, str]) -> None:
    """Raise InputError where spare nodes have no new job, or there is no batch job to start again."""
    if request.spare and allocation:
        raise InputError(
            "--spare needs a new job, and this shell is in one already",
            "leave it out, or add --batch",
            page="start-despite-a-bad-node",
        )
    if request.requeue and not request.batch and not allocation:
        raise InputError(
            "--requeue-without is for batch jobs: only they can start again",
            "add --batch, or write it into a job script",
            page="start-despite-a-bad-node",
        )


def _check_local(request: LaunchRequest, given: AbstractSet[str]) -> None:
    """Raise InputError for options that mean nothing without Slurm, among those that are GIVEN."""
    mode = request.mode
    resources = request.resources

    # The site's own way of staging is left out without a word; only what was asked for is refused.
    wrong = [option for option in OF_SLURM if option in given]
    if wrong:
        raise InputError(
            f"{', '.join(wrong)}: there is no Slurm in this step, only this machine",
            "leave it out",
            page="choose-a-runtime",
        )

    if MODES[mode].a_task_a_rank and resources.nproc_per_node > 1:
        raise InputError(
            f"mode {mode}: without Slurm there is one task",
            "--mode torchrun starts several ranks here",
            page="choose-a-runtime",
        )
    # GPUs may be asked for here, or none of them, and -N has a message of its own below.
    of_slurm = replace(resources, nodes=0, gpus_per_node=0, without_gpus=False).parts()
    if of_slurm:
        words = " ".join(part.words[0] for part in of_slurm)
        raise InputError(
            f"{words}: there is no Slurm in this step, only this machine",
            "leave it out",
            page="choose-a-runtime",
        )
    if resources.nodes > 1:
        raise InputError(
            f"-N {resources.nodes}: there is no Slurm in this step, only this machine",
            "leave out -N",
            page="choose-a-runtime",
        )


__all__ = ["ASKED", "OWN_FAILURE", "Plan", "bring_libraries", "plan_step"]
