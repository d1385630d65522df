"""Enter the container of a running rank: a shell or a command there, or SSH.

A step beside the job's own finds the rank on its node and enters the namespaces that it is in
(launchers/on-node/enter.sh). So the mounts, the environment and the user are the rank's. The step
is one of the job: Slurm ends it with the job.

Tested in tests/integration/test_entering.py.
"""

from __future__ import annotations

import contextlib
import getpass
import re
import shlex
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core import data
from hpcstack.core.dirs import find_state_folder
from hpcstack.core.errors import InputError, SlurmError
from hpcstack.core.files import make_private_folder, write_text
from hpcstack.launch.record import find_launch
from hpcstack.launch.secrets import is_secret
from hpcstack.launch.stacks import RunningJob, query_running
from hpcstack.runtimes import RUNTIMES, find_plain_name
from hpcstack.slurm.client import Client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcstack.core.process import Runner
    from hpcstack.launch.record import Launch

FOUND = re.compile(
    r"^(?: *\d+: )?hpcstack: rank (\d+) on (\S+): (namespace|second) (\d+)"
    r"(?: (/tmp/hpcstack-[a-z]+-[0-9a-f-]+))?$",
    re.MULTILINE,
)
ANSWER_S = 30


@dataclass(frozen=True)
class EnterableRank:
    """A rank that runs on `node`, as the process of that number there.

    `by_namespace` says whether its container can be entered. Where it cannot, as a set-uid program
    made it, a second container is started from the same image with the same options. `served` is
    the folder in the container of a rank that serves something; else it is empty.
    """

    number: str
    node: str
    by_namespace: bool
    process: str
    served: str = ""


def find_rank(asked: RunningJob, rank: str, node: str, runner: Runner) -> EnterableRank:
    """Return the rank of the job that is ASKED for: RANK, or the first one on NODE, or of all.

    Raise SlurmError where the job does not run or no node answers, InputError where it has no such
    rank.
    """
    found = list_ranks(asked, runner)
    fitting = [one for one in found if rank in ("", one.number) and node in ("", one.node)]
    if not fitting:
        has = ", ".join(f"{one.number} on {one.node}" for one in sorted(found, key=_sort_key))
        what = " ".join(
            filter(None, [f"rank {rank}" if rank else "", f"on {node}" if node else ""])
        )
        raise InputError(
            f"job {asked.job} has no {what or 'rank in a container'}",
            f"it has rank {has}" if has else "wait until its ranks have started",
            page="enter-a-running-job",
        )
    return min(fitting, key=_sort_key)


def list_ranks(asked: RunningJob, runner: Runner) -> list[EnterableRank]:
    """Return the ranks of the job that is ASKED for; none where they have not started yet.

    Raise SlurmError where the job does not run, or no node answers.
    """
    queued = query_running(asked.job, runner)
    script = data.read_script("on-node/enter.sh")
    command = ["/bin/sh", "-c", script, "enter", "find", asked.job, asked.step, ""]
    done = Client(runner).run_beside(asked.job, queued.nodes, "enter", command, ANSWER_S)
    found = [
        EnterableRank(number, host, how == "namespace", process, served)
        for number, host, how, process, served in FOUND.findall(done.stdout)
    ]
    if done.status and not found:
        said = done.tail[-1] if done.tail else "no node answered"
        raise SlurmError(
            f"job {asked.job} cannot be entered: {said}",
            "hpcstack jobs",
            page="enter-a-running-job",
        )
    return found


def _sort_key(one: EnterableRank) -> int:
    return int(one.number)


def enter_rank(
    asked: RunningJob, rank: EnterableRank, command: Sequence[str], runner: Runner, *, pty: bool
) -> int:
    """Run COMMAND, or a shell where it is empty, where RANK runs; return its exit status.

    With PTY it gets a terminal of its own.
    """
    env: dict[str, str] = {}
    if rank.by_namespace:
        script = data.read_script("on-node/enter.sh")
        words = ["/bin/sh", "-c", script, "enter", "enter", asked.job, asked.step, rank.number]
        words += command
    else:
        launch = find_launch(asked.job)
        words = [*make_second_start(launch), *(command or ("/bin/sh",))]
        env = list_second_variables(launch)
    return Client(runner).attach_beside(asked.job, rank.node, "enter", words, pty=pty, env=env)


def make_second_start(launch: Launch) -> list[str]:
    """Return the words that start a second container as that of LAUNCH was.

    Raise InputError where its runtime starts none.
    """
    argv = [str(word) for word in launch.document["argv"]]
    runtime = RUNTIMES.get(launch.runtime)
    words = runtime.find_second_start(argv) if runtime else []
    if not words:
        raise InputError(
            f"job {launch.job} was started by a set-uid program that is not known here",
            "start it by hpcstack launch",
            page="enter-a-running-job",
        )
    return words


def list_second_variables(launch: Launch) -> dict[str, str]:
    """Return the runtime's variables by which those of the container of LAUNCH were set.

    Those that look like secrets were not recorded.
    """
    runtime = RUNTIMES[launch.runtime]
    own = {str(one["name"]): str(one["value"]) for one in launch.document.get("environment", [])}
    return {
        name: value
        for name, value in own.items()
        if (name in runtime.reasons or find_plain_name(name) != name) and not is_secret(name, "")
    }


# -- SSH


@dataclass(frozen=True)
class SshKeys:
    """The keys of one job, in a folder of the user's own that nodes see."""

    folder: Path

    @property
    def key(self) -> Path:
        return self.folder / "key"


def make_ssh_keys(job: str, runner: Runner) -> SshKeys:
    """Return the keys of JOB; make them where they are missing, all at once.

    Keys of this cluster's jobs that have ended are removed. Raise SlurmError where ssh-keygen
    fails.
    """
    cluster = Client(runner).read_config().get("ClusterName", "cluster")
    top = make_private_folder(find_state_folder() / "enter", "name another folder: XDG_STATE_HOME")
    top /= re.sub(r"[^A-Za-z0-9._-]", "_", cluster)
    top.mkdir(exist_ok=True)
    keys = SshKeys(top / job)
    _remove_ended(top, job, runner)
    if keys.folder.is_dir():
        return keys

    part = Path(tempfile.mkdtemp(prefix=".", dir=top))
    try:
        for name in ("host_key", "key"):
            argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"hpcstack-{job}"]
            done = runner.output([*argv, "-f", str(part / name)])
            if done.status:
                raise SlurmError(
                    f"ssh-keygen failed: {' '.join(done.tail)}", page="enter-a-running-job"
                )
        host_key = (part / "host_key.pub").read_text()
        write_text(part / "known_hosts", f"hpcstack-{job} {host_key}", 0o600)
        with contextlib.suppress(OSError):  # another one has made them meanwhile
            part.rename(keys.folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return keys


def _remove_ended(top: Path, job: str, runner: Runner) -> None:
    """Remove the keys below TOP of jobs that have ended, but for those of JOB."""
    others = [one.name for one in top.glob("[0-9]*") if one.name != job]
    if not others:
        return
    queued = Client(runner).query_queue(others)
    if queued is None:
        return
    running = {one.number for one in queued} | {one.name for one in queued}
    for name in others:
        if name not in running:
            shutil.rmtree(top / name, ignore_errors=True)


def serve_ssh(asked: RunningJob, rank: EnterableRank, keys: SshKeys, runner: Runner) -> int:
    """Speak SSH on standard input and output, from the node of RANK; return the step's status."""
    enter = data.read_script("on-node/enter.sh")
    script = data.read_script("on-node/ssh.sh")
    words = ["/bin/sh", "-c", script, "ssh", str(keys.folder), enter]
    words += [asked.job, asked.step, rank.number]
    return Client(runner).attach_beside(asked.job, rank.node, "enter", words, pty=False)


def render_ssh_config(job: str, keys: SshKeys, proxy: Sequence[str]) -> str:
    """Return the block of ~/.ssh/config by which `ssh hpcstack-JOB` lands in the container.

    PROXY is the command that speaks SSH.
    """
    name = f"hpcstack-{job}"
    lines = [
        f"Host {name}",
        f"  ProxyCommand {shlex.join(proxy).replace('%', '%%')}",
        f"  User {getpass.getuser()}",
        f'  IdentityFile "{keys.key}"',
        "  IdentitiesOnly yes",
        f"  HostKeyAlias {name}",
        f'  UserKnownHostsFile "{keys.folder / "known_hosts"}"',
    ]
    return "\n".join(lines)
