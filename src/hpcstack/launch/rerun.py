"""Submit again what failed of a batch job: of an array, the tasks that failed.

What is submitted is the script that was kept, so that it runs what ran before, in the same image.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import AnswerIsNo, InputError, SlurmError
from hpcstack.launch import record
from hpcstack.launch.failure import OWN_FAILURE
from hpcstack.launch.jobs import (
    find_state,
    find_states,
    list_task_states,
    query_accounting,
    read_directive,
)
from hpcstack.slurm.array import join_tasks, read_tasks
from hpcstack.slurm.client import Client
from hpcstack.slurm.job_id import read_job_id
from hpcstack.slurm.state import UNKNOWN, JobState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.core.process import Runner
    from hpcstack.launch.record import Launch

MOST_TASKS = 1_000_000  # of an array, of which each is looked at


@dataclass(frozen=True)
class Rerun:
    """What of LAUNCH is submitted again: of an array its `tasks`, else all of it.

    `states` are those of the tasks, in Slurm's words. Of the `unknown` ones nobody knows how they
    ended, or whether they did: they are not submitted. `at_once` is how many of the array's tasks may
    run at a time, as the option has it: %4.
    """

    launch: Launch
    tasks: tuple[int, ...] = ()
    states: Mapping[int, JobState] = field(default_factory=dict)
    unknown: tuple[int, ...] = ()
    at_once: str = ""

    @property
    def script(self) -> Path:
        """The script that is submitted."""
        return self.launch.folder / record.SCRIPT

    @property
    def options(self) -> tuple[str, ...]:
        """sbatch's options, which win over the directives in the script."""
        out = [f"--chdir={self.launch.document['folder']}"]
        if self.tasks:
            out.append(f"--array={self.array}")
        return tuple(out)

    @property
    def array(self) -> str:
        """The value of sbatch's option --array; empty for a single job."""
        return f"{join_tasks(self.tasks)}{self.at_once}" if self.tasks else ""


def plan_rerun(job: str, tasks: str, runner: Runner) -> Rerun:
    """Return what of JOB is to be submitted again: what failed, or the TASKS of an array.

    TASKS are as in sbatch's option --array. Raise InputError where JOB was not submitted by hpcstack,
    or its script or its image is gone; AnswerIsNo where nothing of it is known to have failed.
    """
    named = read_job_id(job)
    if named.step or named.part:
        raise InputError(f"{job} is a part of a job", f"hpcstack rerun {named.job}")
    if named.task and tasks:
        raise InputError(
            f"{job} is a task, and --tasks {tasks} names others", "name them in one way"
        )
    tasks = tasks or named.task
    launch = _find_submitted(named.job, runner)
    if launch.is_array:
        return _plan_tasks(launch, tasks, runner)
    if tasks:
        raise InputError(f"--tasks {tasks}: job {job} is no array", "leave it out")
    state = find_state(launch, find_states([launch.job], runner))
    if not state.has_failed:
        said = f"it is {state}" if state.is_known else "nobody knows how it ended"
        raise AnswerIsNo(f"job {job} is not submitted again: {said}", f"hpcstack explain {job}")
    return Rerun(launch)


def _plan_tasks(launch: Launch, tasks: str, runner: Runner) -> Rerun:
    """Return which tasks of the array LAUNCH are to be submitted again: TASKS, or those that failed."""
    array = launch.job_or_array
    option = launch.document.get("array_option") or read_directive(
        launch.folder / record.SCRIPT, "--array"
    )
    ranges = read_tasks(option)
    count = sum(map(len, ranges or ()))
    if not ranges or count > MOST_TASKS:
        raise InputError(
            f"--array={option} of job {array} is not understood", f"hpcstack jobs {array}"
        )
    known = list_task_states(launch, find_states([array], runner))
    states = {task: known.get(str(task), UNKNOWN) for one in ranges for task in one}
    at_once = option[option.index("%") :] if "%" in option else ""
    if tasks:
        chosen = _choose_tasks(tasks, states)
        return Rerun(launch, chosen, {task: states[task] for task in chosen}, at_once=at_once)

    failed = {task: state for task, state in states.items() if state.has_failed}
    unknown = tuple(task for task, state in states.items() if not state.is_known)
    if not failed:
        said = f"none of its {count} tasks is known to have failed"
        hint = f"hpcstack jobs {array}"
        if unknown:
            hint = (
                f"hpcstack rerun {array} --tasks {join_tasks(unknown)}: nobody knows how they ended"
            )
        raise AnswerIsNo(f"job {array} is not submitted again: {said}", hint)
    return Rerun(launch, tuple(failed), failed, unknown, at_once)


def _choose_tasks(said: str, states: Mapping[int, JobState]) -> tuple[int, ...]:
    """Return the tasks that SAID means. Raise InputError for one that STATES does not have."""
    ranges = [] if "%" in said else read_tasks(said) or []
    wanted = []
    if sum(map(len, ranges)) <= MOST_TASKS:
        wanted = [task for one in ranges for task in one]
    if not wanted:
        raise InputError(f"--tasks {said} is not understood", "--tasks 3,7-9")
    foreign = [task for task in wanted if task not in states]
    if foreign:
        raise InputError(
            f"--tasks {said}: the array has no task {join_tasks(foreign)}",
            f"its tasks are {join_tasks(states)}",
        )
    going = [task for task in wanted if states[task].is_known and not states[task].has_ended]
    if going:
        raise InputError(
            f"--tasks {said}: {join_tasks(going)} wait or run", "name those that have ended"
        )
    return tuple(wanted)


def _find_submitted(job: str, runner: Runner) -> Launch:
    """Return the launch that submitted JOB, whose script and image are there."""
    launch = next(record.read_launches_of(job), None)
    if not launch or launch.is_inside_a_job or not launch.document.get("batch"):
        raise InputError(
            f"job {job} was not submitted by `hpcstack launch --batch`, which keeps what it needs "
            "to do it again",
            _suggest_sbatch(job, runner) or "type its command again",
            page="write-a-job-script",
        )
    image = Path(launch.document["image"])
    for path in (image, launch.folder / record.SCRIPT, Path(launch.document["folder"])):
        if not path.exists():
            raise InputError(
                f"{path} is gone, and job {job} needs it", "launch it anew: hpcstack launch --batch"
            )
    return launch


def _suggest_sbatch(job: str, runner: Runner) -> str:
    """Return how to submit again what failed of JOB, a script of the user's own.

    Empty where accounting does not tell the line, or nothing has failed.
    """
    remembered = query_accounting(job, runner)
    failed = []
    line = ""
    for name, known in remembered.items():
        line = line or known.line
        task = name.partition("_")[2]
        if task.isdigit() and known.state.has_failed:
            failed.append(int(task))
    if not line or not failed:
        return ""
    return f"with --array={join_tasks(failed)} in place of its own: {line}"


def submit_again(rerun: Rerun, runner: Runner) -> tuple[str, Path, str]:
    """Submit what RERUN plans, as a launch of its own. Return (its job, its folder, its output).

    Raise SlurmError where Slurm refuses it.
    """
    folder = record.begin_again(rerun.launch, rerun.array)
    try:
        job = Client(runner).submit_job(
            folder / record.SCRIPT, rerun.options, env={"HPCSTACK_RUN": str(folder)}
        )
    except SlurmError:
        record.write_end(folder, JobState("FAILED", OWN_FAILURE))
        raise
    record.write_submitted(folder, job)
    output = record.name_output(
        read_directive(rerun.script, "--output"),
        read_directive(rerun.script, "--job-name") or rerun.launch.stack,
        job,
        is_array=rerun.launch.is_array,
    )
    output = str(Path(rerun.launch.document["folder"]) / output)
    record.write_output_path(folder, output)
    return job, folder, output
