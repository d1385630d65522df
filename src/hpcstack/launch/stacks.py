"""Ask the nodes of a running job what its ranks do.

Each node runs launchers/on-node/stacks.sh: as a step of its own beside the job's, or by the site's
remote shell where Slurm starts no such step.

Tested in tests/unit/launch/test_hang.py.
"""

from __future__ import annotations

import base64
import gzip
import os
import pwd
import re
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core import data
from hpcstack.core.errors import InputError, SlurmError
from hpcstack.launch.record import find_launch
from hpcstack.site.model import NODE_PLACE
from hpcstack.slurm.client import Client, QueuedJob
from hpcstack.slurm.job_id import read_job_id

if TYPE_CHECKING:
    from hpcstack.core.process import Completed, Runner

ANSWER_S = 60  # how long the nodes have to answer
SHELLS = 64  # remote shells at a time
# What of root's environment a job's user is asked with: where programs, the site and Slurm are
KEPT_FOR_USER = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TERM",
    "NO_COLOR",
    "COLUMNS",
    "HPCSTACK_SITE",
    "SLURM_CONF",
)


@dataclass(frozen=True)
class RunningJob:
    """A job whose ranks are asked for, or one step of it; `why` says in words which it is."""

    job: str
    step: str
    why: str


def parse_job(job: str) -> RunningJob:
    """Return the job that JOB means: NUMBER or NUMBER.STEP, or the newest launch where it is empty.

    Raise InputError for anything else.
    """
    if not job:
        newest = find_launch("")
        if not newest.job:
            raise InputError(
                "the newest launch is not a job of Slurm's",
                "name the job; squeue --me lists yours",
                page="find-a-hang",
            )
        why = f"the newest launch, {newest.stack}, {newest.started}"
        return RunningJob(newest.number or newest.job, newest.step, why)

    found = read_job_id(job)
    if found.step and not found.step.isdigit():
        raise InputError(
            f"{job}: the programs of a launch are in a step with a number",
            f"{found.without_step} means all of them",
            page="find-a-hang",
        )
    why = f"its step {found.step}" if found.step else "every step of it"
    return RunningJob(found.without_step, found.step, why)


@dataclass(frozen=True)
class Answers:
    """What stacks.sh printed on the nodes of a job, and how many nodes were SILENT.

    OWN says that the job is the caller's: files that its ranks wrote may then be read. NOTE says
    how the nodes were asked, where that is not by a step.
    """

    text: str
    silent: int
    own: bool = True
    note: str = ""


def ask_job(asked: RunningJob, command: tuple[str, ...], runner: Runner) -> Answers:
    """Ask the nodes of a job, by a step; else by COMMAND, `hang.command` of site.yaml.

    Raise what `ask_nodes` raises where the site has no such command.
    """
    queued = query_running(asked.job, runner)
    own = not queued.user or queued.user == name_account(os.geteuid())
    if not own and command and os.geteuid() == 0:
        text, silent = ask_by_shell(queued, asked.step, command, runner)
        return Answers(text, silent, own=False, note=f"{queued.user}'s, asked by {command[0]}")
    try:
        return Answers(*ask_nodes(asked, runner))
    except SlurmError as error:
        if not command:
            raise
        note = f"asked by {command[0]}, as Slurm starts no step beside it: {error.message}"
    return Answers(*ask_by_shell(queued, asked.step, command, runner), note=note)


def ask_by_shell(
    job: QueuedJob, step: str, command: tuple[str, ...], runner: Runner
) -> tuple[str, int]:
    """Return the same as `ask_nodes`, by COMMAND, which runs a shell's command on a node.

    Raise SlurmError where no node answers.
    """
    client = Client(runner)
    nodes = client.query_job_nodes(job.number)
    with ThreadPoolExecutor(SHELLS) as pool:
        lines = [
            _make_remote_line(number, node, job.number, step) for number, node in enumerate(nodes)
        ]
        argvs = [
            [*(word.replace(NODE_PLACE, node) for word in command), line]
            for node, line in zip(nodes, lines, strict=True)
        ]
        ended = list(pool.map(lambda argv: runner.output(argv, timeout=ANSWER_S), argvs))
    answered = [number for number, one in enumerate(ended) if "hpcstack: " in one.stdout]
    if not answered:
        said = next((line for one in ended for line in one.tail[-1:]), "nothing")
        raise SlurmError(
            f"no node of job {job.number} answers {command[0]}: {said}",
            f"try {shlex.join(command).replace(NODE_PLACE, nodes[0] if nodes else 'NODE')} true",
            page="find-a-hang",
        )
    # the same form as srun --label gives to a step's output
    text = "".join(
        f"{number}: {line}\n" for number in answered for line in ended[number].stdout.splitlines()
    )
    return text, len(nodes) - len(answered)


def _make_remote_line(number: int, node: str, job: str, step: str) -> str:
    """Return the line that a remote shell on NODE, the job's NUMBERth, is to run.

    The script goes as base64: no shell, csh among them, finds anything in it to expand. It is
    packed, since Dropbear takes 9,000 characters at most.
    """
    packed = gzip.compress(data.read_script("on-node/stacks.sh").encode(), mtime=0)
    script = base64.b64encode(packed).decode()
    decode = f'eval "$(echo {script} | base64 -d | gzip -dc)"'
    words = ["env", f"SLURMD_NODENAME={node}", f"SLURM_PROCID={number}", "/bin/sh", "-c", decode]
    return shlex.join([*words, "stacks", job, step, find_lent_spy()])


def ask_nodes(asked: RunningJob, runner: Runner) -> tuple[str, int]:
    """Return (what stacks.sh printed on all nodes of a job, how many nodes did not answer in time).

    Raise SlurmError where the job does not run, or no node answers.
    """
    number, nodes = find_running(asked.job, runner)
    script = data.read_script("on-node/stacks.sh")
    command = ["/bin/sh", "-c", script, "stacks", number, asked.step, find_lent_spy()]
    done = Client(runner).run_beside(number, nodes, "hang", command, ANSWER_S)
    if "hpcstack: " not in done.stdout:
        said = " ".join(done.tail[-2:]) or f"exit {done.status}"
        raise SlurmError(
            f"the nodes of job {asked.job} did not answer: {said}",
            "hpcstack doctor -w NODE",
            page="check-a-machine",
        )
    answered = set(re.findall(r"^ *(\d+): hpcstack: ", done.stdout, re.MULTILINE))
    return done.stdout, max(0, nodes - len(answered))


def find_running(job: str, runner: Runner) -> tuple[str, int]:
    """Return (the number of JOB, how many nodes it has).

    JOB may be NUMBER_TASK, a task of an array: its own number is another one. Raise SlurmError
    where it does not run, and InputError where it is another user's: Slurm lets nobody but a job's
    own user start a step in it, root included.
    """
    found = query_running(job, runner)
    if found.user and found.user != name_account(os.geteuid()):
        raise InputError(
            f"job {job} is {found.user}'s: Slurm starts a step in it for that user alone",
            f"sudo hpcstack hang {job} --as-user",
            page="find-a-hang",
        )
    return found.number, found.nodes


def query_running(job: str, runner: Runner) -> QueuedJob:
    """Return JOB as Slurm's queue has it. Raise SlurmError where it does not run."""
    queued = Client(runner).query_queue([job])
    if queued is None:
        raise SlurmError("squeue does not answer", "hpcstack doctor")
    running = [one for one in queued if one.state.word == "RUNNING"]
    if not running:
        now = f"is {queued[0].state.word.lower()}" if queued else "is not in the queue"
        raise SlurmError(
            f"job {job} {now}: only a running job can be asked",
            f"hpcstack explain {job}",
            page="find-a-hang",
        )
    return running[0]


def name_account(number: int) -> str:
    """Return the name of the user NUMBER; the number itself where it has none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def run_as_job_user(job: str, words: list[str], runner: Runner) -> Completed:
    """Run `hpcstack WORDS` as the user of JOB, and return how it ended. For root alone.

    All of it runs as that user, so that root reads no file that the user wrote. A process of that
    user can be taken over by another one. So it has neither root's terminal nor its environment,
    but for what names the site and Slurm, and what it prints comes through pipes. Raise InputError
    for anybody else than root, and where the job's user is not known here.
    """
    if os.geteuid() != 0:
        raise InputError(
            "--as-user is for root: Slurm starts a step in a job for its own user alone",
            f"sudo hpcstack hang {job} --as-user",
            page="find-a-hang",
        )
    user = query_running(job, runner).user
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise InputError(
            f"job {job} is of the user {user!r}, who is not known on this machine",
            "run it on a machine that knows the job's user",
            page="find-a-hang",
        ) from None

    kept = {name: value for name, value in os.environ.items() if name in KEPT_FOR_USER}
    kept |= {"HOME": entry.pw_dir, "USER": user, "LOGNAME": user, "SHELL": "/bin/sh"}
    argv = [
        *("setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups"),
        *("--", "setsid", "--wait", "env", "-i", *(f"{name}={one}" for name, one in kept.items())),
        *(sys.executable, "-I", "-m", "hpcstack", *words),
    ]
    return runner.output(argv, timeout=2 * ANSWER_S)


def find_lent_spy() -> str:
    """Return the py-spy beside this Python; empty where there is none.

    Nodes that see hpcstack see it, too.
    """
    spy = Path(sys.executable).parent / "py-spy"
    return str(spy) if spy.exists() else ""
