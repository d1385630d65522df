"""The one place that starts Slurm's programs to ask something, or to have something done.

Each question has a method here, so that its format and the reading of its answer stand together.
`query` and `state` have the readers; they are pure. Source of formats and answers: the manual pages
at https://slurm.schedmd.com/man_index.html.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import HpcstackError, SlurmError
from hpcstack.slurm.job_record import JobRecord, read_job_records
from hpcstack.slurm.node_failures import COUNTED, EndedJob, parse_ended_jobs
from hpcstack.slurm.nodelist import expand_nodelist
from hpcstack.slurm.options import GivenOption, SlurmOptions, name_variable
from hpcstack.slurm.query import (
    choose_pmi,
    parse_long_options,
    parse_node_kinds,
    read_config,
    read_partitions,
    read_pmi,
)
from hpcstack.slurm.rivals import find_rival_variables
from hpcstack.slurm.state import JobState, read_state
from hpcstack.slurm.topology import read_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from hpcstack.core.process import Completed, Runner
    from hpcstack.slurm.query import Limits, NodeKind
    from hpcstack.slurm.topology import Block

ANSWER_S = 20  # for a question that slurmctld or slurmdbd answers from memory
SCRIPTS_AT_ONCE = 8  # questions to slurmctld, which serves everybody, beside each other
# Slurm's variables that say which cluster is meant, and how; the others are those of a job.
KEPT = ("SLURM_CONF", "SLURM_EXIT_ERROR", "SLURM_CLUSTERS", "SLURM_JWT")
# What hpcstack launch tells the ranks of its own job.
OF_A_LAUNCH = ("HPCSTACK_END", "HPCSTACK_END_JOB", "HPCSTACK_GRACE", "HPCSTACK_ORDER")
# Variables by which users choose what sinfo, squeue and sacct show them: SQUEUE_STATES, say
OF_SHOWING = ("SINFO_", "SQUEUE_", "SACCT_", "SLURM_TIME_FORMAT")
# What squeue, scontrol and scancel answer about a job that Slurm has forgotten, or never had.
FORGOTTEN = "Invalid job id"
ENDED_S = 120  # for an answer of sacct about all jobs of weeks
FIELD_END = "\x1f"  # between the fields of sacct: a job's name may hold any character that is typed


@dataclass(frozen=True)
class QueuedJob:
    """A job, or a task of an array, that waits or runs.

    `name` is its number as people write it: 7, 7_3, or 7_[5-20] for tasks that still wait. `number`
    is Slurm's own, which for a task of an array is another than the array's.
    """

    name: str
    number: str
    state: JobState
    nodes: int
    partition: str
    user: str
    reason: str


QUEUED = "%i|%A|%T|%D|%P|%u|%r"


@dataclass(frozen=True)
class UsedByJob:
    """What Slurm keeps of a job that may name a file: its command, comment and working directory,
    and its batch script, which is empty where it has none.
    """

    job: str
    words: str
    script: str


class Client:
    """Slurm's programs, as far as hpcstack uses them."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    def has(self, program: str) -> bool:
        """Return whether PROGRAM of Slurm is installed here."""
        return self.runner.has(program)

    # -- what the cluster is

    def query_partitions(self) -> dict[str, Limits]:
        """Return {name: limits} of all partitions; none where Slurm does not answer."""
        fields = "%P|%a|%l|%D|%c|%G|%f"
        text = self._ask("sinfo", "--noheader", "--all", "--exact", "--format", fields, timeout=10)
        return read_partitions(text)

    def print_node_kinds(self) -> str:
        """Return a line `PARTITION|NODES|CPUS|GRES` for each kind of node in each partition.

        Empty where Slurm does not answer.
        """
        return self._ask("sinfo", "--noheader", "--all", "--format", "%P|%D|%c|%G")

    def query_node_kinds(self, partitions: str) -> list[NodeKind]:
        """Return the kinds of nodes in PARTITIONS, or in the default one; none where Slurm is silent.

        Raise NodelistError for nodes that are not understood.
        """
        chosen = [f"--partition={partitions}"] if partitions else []
        fields = "%N|%c|%G|%f"
        argv = ["sinfo", "--noheader", "--all", "--exact", *chosen, "--format", fields]
        return parse_node_kinds(self._ask(*argv))

    def count_threads(self, partitions: str) -> int | None:
        """Return the threads of a core on the nodes of PARTITIONS, or of the default one.

        None where Slurm is silent, or nodes differ.
        """
        chosen = [f"--partition={partitions}"] if partitions else []
        said = set(self._ask("sinfo", "--noheader", "--all", *chosen, "--format", "%P|%Z").split())
        rows = {tuple(one.split("|")) for one in said if one.count("|") == 1}
        is_default = any(name.endswith("*") for name, _ in rows)
        counts = {
            count for name, count in rows if partitions or not is_default or name.endswith("*")
        }
        only = counts.pop() if len(counts) == 1 else ""
        return int(only) if only.isdigit() and int(only) else None

    def query_node_states(self, partition: str, nodelist: str) -> dict[str, str]:
        """Return {node: its state} of PARTITION and of NODELIST; of all nodes where both are empty.

        A state may have a sign behind it, such as `idle*` (sinfo(1), NODE STATE CODES). SlurmError
        where Slurm does not say.
        """
        chosen = []
        if partition:
            chosen += ["--partition", partition]
        if nodelist:
            chosen += ["--nodes", nodelist]
        done = self._output(["sinfo", "--noheader", "--Node", *chosen, "--format=%N %T"])
        if done.status:
            said = done.stdout.strip() or " ".join(done.tail[-1:])
            raise SlurmError(
                f"sinfo ended with {done.status}: {said}", "hpcstack doctor", page="check-a-machine"
            )

        states = {}
        for line in done.stdout.splitlines():
            words = line.split(None, 1)
            if len(words) == 2:
                node, state = words
                states[node] = state.strip()
        return states

    def list_drain_reasons(self) -> list[str]:
        """Return `NODE REASON` of each node that is down, drained or failing."""
        text = self._ask("sinfo", "--noheader", "--list-reasons", "--format", "%n %E")
        return text.splitlines()

    def find_trouble(self) -> str:
        """Return the last line that sinfo prints: why Slurm does not answer."""
        return " ".join(self.runner.output(["sinfo"], timeout=ANSWER_S).tail[-1:])

    def read_config(self) -> dict[str, str]:
        """Return slurm.conf as slurmctld has it, {key: value}; empty where it does not answer."""
        return read_config(self._ask("scontrol", "show", "config"))

    def list_pmi_types(self) -> tuple[str, ...]:
        """Return the PMI types that srun offers, `none` left out."""
        return read_pmi(self._ask_loudly("srun", "--mpi=list"))

    def choose_pmi(self) -> str:
        """Return what --mpi should be: PMIx where there is one, else PMI-2; empty for neither."""
        return choose_pmi(self.list_pmi_types())

    def list_options(self, *programs: str) -> frozenset[str]:
        """Return the long options that PROGRAMS know, those of plugins among them.

        Empty where a help lists none.
        """
        found: set[str] = set()
        for program in programs:
            found |= parse_long_options(self._ask_loudly(program, "--help"))
        return frozenset(found)

    def has_pyxis(self) -> bool:
        """Return whether Slurm loads Pyxis, a SPANK plugin: its options are among srun's own."""
        return "--container-image" in self.list_options("srun")

    def query_blocks(self) -> list[Block]:
        """Return the blocks of Slurm's topology/block; none where it has another topology.

        Raise NodelistError for nodes that are not understood.
        """
        return read_blocks(self._ask("scontrol", "show", "topology"))

    def query_partition_nodes(self, partition: str) -> frozenset[str]:
        """Return the nodes of PARTITION, or of the default one where it is empty.

        Of several, `a,b`, those of all. None where Slurm does not answer. Raise NodelistError for
        nodes that are not understood.
        """
        chosen = [f"--partition={partition}"] if partition else []
        text = self._ask("sinfo", "--noheader", "--all", *chosen, "--format", "%P|%N")
        out: set[str] = set()
        for line in text.splitlines():
            name, _, nodelist = line.partition("|")
            if partition or name.endswith("*"):
                out.update(expand_nodelist(nodelist.strip()))
        return frozenset(out)

    def query_job_nodes(self, job: str) -> list[str]:
        """Return the nodes of the running JOB; none where Slurm does not say.

        Raise NodelistError where it says them in another form.
        """
        return list(expand_nodelist(self._ask("squeue", "-h", "--jobs", job, "--format", "%N")))

    # -- what becomes of jobs

    def query_queue(self, jobs: Iterable[str], *, ended: bool = False) -> list[QueuedJob] | None:
        """Return those of JOBS that wait or run, each task of an array by itself.

        With ENDED also those that have ended, as long as slurmctld remembers them. None where Slurm
        does not say: its controller is busy. Where it knows none of the jobs any more, it calls that
        an error; then none is in the queue.
        """
        argv = ["squeue", "--noheader", "--array", "--format", QUEUED, "--jobs", ",".join(jobs)]
        if ended:
            argv.append("--states=all")
        done = self._output(argv, timeout=ANSWER_S)
        if done.status:
            return [] if _is_forgotten(done) else None
        return [job for job in map(parse_queued, done.stdout.splitlines()) if job]

    def query_usage(self) -> list[UsedByJob]:
        """Return what may name a file of each job that waits or runs.

        SlurmError where Slurm does not answer, or does not let us read a job's script.
        """
        done = self._output(["squeue", "--noheader", "--format", "%A|%o|%k|%Z"])
        if done.status:
            said = done.tail[-1] if done.tail else f"exit {done.status}"
            raise SlurmError(f"squeue does not answer: {said}", "try again")
        lines = {line.partition("|")[0]: line for line in done.stdout.splitlines()}
        jobs = sorted(lines.keys() - {""})
        with ThreadPoolExecutor(SCRIPTS_AT_ONCE) as pool:
            scripts = list(pool.map(self._read_script, jobs))
        return [
            UsedByJob(job, lines[job], script) for job, script in zip(jobs, scripts, strict=True)
        ]

    def _read_script(self, job: str) -> str:
        """Return the batch script of JOB; empty where it has none, or has ended meanwhile."""
        done = self.runner.output(["scontrol", "write", "batch_script", job, "-"])
        if not done.status:
            return done.stdout
        said = " ".join(done.tail)
        if re.search(r"denied|permission|contact", said, re.IGNORECASE):
            raise SlurmError(
                f"the script of job {job} cannot be read: {said}",
                "run it as the store's owner with Slurm's operator rights",
                page="free-disk-space",
            )
        return ""

    def query_records(self, job: str) -> list[JobRecord] | None:
        """Return each record of JOB that slurmctld still has.

        None where it has forgotten the job. SlurmError where it does not answer.
        """
        done = self.runner.output(["scontrol", "--oneliner", "show", "job", job])
        if not done.status:
            return read_job_records(done.stdout)
        if _is_forgotten(done):
            return None
        raise SlurmError(f"scontrol does not answer: {' '.join(done.tail[-1:])}", "try again")

    def query_record(self, job: str) -> JobRecord | None:
        """Return the record of JOB; None where slurmctld has none, or does not answer."""
        try:
            records = self.query_records(job)
        except HpcstackError:
            return None
        return next((record for record in records or () if record.fields.get("JobId") == job), None)

    def query_accounting(
        self, jobs: Iterable[str], fields: Sequence[str]
    ) -> list[list[str]] | None:
        """Return FIELDS of each of JOBS, and of each task of an array, as sacct has them.

        None where the site has no accounting, or it does not answer, or knows no such field.
        """
        if not self.has("sacct"):
            return None
        argv = ["sacct", "-nPX", f"--delimiter={FIELD_END}", f"--format={','.join(fields)}"]
        argv += ["--jobs", ",".join(jobs)]
        done = self._output(argv, timeout=ANSWER_S)
        if done.status:
            return None
        # A short answer is filled up with empty fields.
        rows = [line.split(FIELD_END) for line in done.stdout.splitlines()]
        return [[*row, *[""] * len(fields)][: len(fields)] for row in rows]

    def query_ended(self, days: int) -> list[EndedJob] | None:
        """Return the jobs that ended in the last DAYS, of all users whose jobs may be seen.

        None where the site has no accounting, or it does not answer.
        """
        if not self.has("sacct"):
            return None
        fields = "JobIDRaw,User,State,NodeList"
        argv = ["sacct", "-nPX", "--allusers", f"--delimiter={FIELD_END}", f"--format={fields}"]
        # Without an end, --state asks for jobs that are in such a state now: none that ended
        argv += ["--starttime", f"now-{days}days", "--endtime", "now"]
        argv += ["--state", ",".join(COUNTED)]
        done = self._output(argv, timeout=ENDED_S)
        if done.status:
            return None
        rows = [line.split(FIELD_END) for line in done.stdout.splitlines()]
        return parse_ended_jobs([row for row in rows if len(row) == 4])

    # -- what is done

    def submit_job(
        self,
        script: Path,
        options: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        hint: str = "",
    ) -> str:
        """Submit SCRIPT, and return the number of its job. OPTIONS win over its directives.

        The job takes nothing over from a job that this shell may be in. Raise SlurmError with
        sbatch's own words where it refuses; HINT says what to type then.
        """
        self.runner.which("sbatch")
        hidden = _hide_variables_of(script)
        argv = [*_outside_jobs(), *hidden, "sbatch", "--parsable", *options, str(script)]
        done = self.runner.output(argv, env=dict(env or {}))
        job = done.stdout.strip().partition(";")[0]  # NUMBER;CLUSTER in a federation
        if done.status or not job.isdigit():
            said = " ".join(done.tail[-2:]) or done.stdout.strip()[:300]
            raise SlurmError(f"sbatch refused: {said}", hint or f"the script is {script}")
        return job

    def find_refusal(self, script: Path) -> str:
        """Return what sbatch would say against SCRIPT, asked without a job; empty for nothing."""
        hidden = _hide_variables_of(script)
        argv = [*_outside_jobs(), *hidden, "sbatch", "--test-only", str(script)]
        done = self.runner.output(argv)
        if not done.status:
            return ""
        return f"sbatch would refuse it: {' '.join(done.tail[-2:])}"

    def cancel(self, *jobs: str) -> str:
        """Cancel JOBS. Return why Slurm refused one of them; empty where it did not."""
        done = self.runner.output(["scancel", "--verbose", *jobs])
        # scancel may end with 0 although it refused a job: its errors count, too
        if done.status or any("error:" in line for line in done.tail):
            return " ".join(done.tail[-2:]) or f"scancel ended with {done.status}"
        return ""

    def abandon(self, jobs: Iterable[str]) -> None:
        """Cancel JOBS. Nothing is said where Slurm no longer knows one, or cannot be asked."""
        if jobs:
            with contextlib.suppress(HpcstackError, OSError):
                self.cancel(*jobs)

    def end_step(self, step: str, signal: str = "") -> bool:
        """End STEP, `JOB.NUMBER`, or send it SIGNAL. Return whether Slurm accepted it.

        A step that has ended meanwhile counts as accepted.
        """
        how = [f"--signal={signal}"] if signal else []
        try:
            return self.runner.output(["scancel", *how, step]).status == 0
        except HpcstackError:
            return False

    def drain(self, node: str, reason: str) -> str:
        """Drain NODE for REASON, of which Slurm keeps 200 characters. Return the refusal, if any."""
        return self._control("update", f"nodename={node}", "state=drain", f"reason={reason[:200]}")

    def requeue(self, job: str) -> str:
        """End the running JOB and put it back into the queue. Return the refusal, if any."""
        return self._control("requeue", job)

    def exclude_nodes(self, job: str, nodes: str) -> str:
        """Keep the pending JOB off NODES, a list. Return the refusal, if any."""
        return self._control("update", f"JobId={job}", f"ExcNodeList={nodes}")

    def _control(self, *words: str) -> str:
        """Run `scontrol WORDS`. Return why it failed; empty where it did not."""
        done = self.runner.output(["scontrol", *words])
        if not done.status:
            return ""
        return " ".join(done.tail) or f"scontrol ended with {done.status}"

    def run_step(self, options: Sequence[str], command: Sequence[str], seconds: float) -> Completed:
        """Run COMMAND as a job step with OPTIONS of srun, for at most SECONDS. Return its end."""
        return self.runner.output(["srun", *options, *command], timeout=seconds)

    def run_beside(
        self, job: str, nodes: int, name: str, command: Sequence[str], seconds: int
    ) -> Completed:
        """Run COMMAND on each of the NODES of the running JOB, beside its own steps.

        It is a step NAME with one task on each node, which takes none of the job's resources, and
        whose lines begin with the task's number. It ends after so many SECONDS. `timeout` makes it a
        process group of its own, which a Ctrl-C on the terminal does not reach. A task that is done
        early does not end those of the other nodes (--wait=0).
        """
        options = [
            f"--jobid={job}",
            "--overlap",
            f"--nodes={nodes}",
            f"--ntasks={nodes}",
            "--ntasks-per-node=1",
            "--cpus-per-task=1",
            "--mem=0",
            "--cpu-bind=none",
            "--input=none",
            "--kill-on-bad-exit=0",
            "--wait=0",
            "--label",
            f"--job-name={name}",
        ]
        limit = ["timeout", "--kill-after=5", str(seconds)]
        # the step's own limit comes first: then what its tasks have said is read
        return self.runner.output([*limit, "srun", *options, *command], timeout=seconds + 10)

    def attach_beside(
        self,
        job: str,
        node: str,
        name: str,
        command: Sequence[str],
        *,
        pty: bool,
        env: Mapping[str, str] | None = None,
    ) -> int:
        """Run COMMAND on NODE of the running JOB, on this terminal; return its exit status.

        ENV is set for it besides. It is a step NAME beside the job's own, which shares all that the
        job has there. With PTY it gets a terminal of its own. Without one, what it writes comes as
        it was written: by default, slurmstepd waits for the end of each line.
        """
        options = [
            f"--jobid={job}",
            "--overlap",
            "--nodes=1",
            "--ntasks=1",
            f"--nodelist={node}",
            "--mem=0",
            "--cpu-bind=none",
            "--mpi=none",
            "--quiet",
            f"--job-name={name}",
        ]
        options.append("--pty" if pty else "--unbuffered")
        return self.runner.attached([*_outside_jobs(), "srun", *options, *command], env=env)

    # -- how they are asked

    def _ask(self, *argv: str, timeout: float = ANSWER_S) -> str:
        """Return what ARGV prints; empty where the program is not here, or fails."""
        if not self.has(argv[0]):
            return ""
        done = self._output(argv, timeout=timeout)
        return "" if done.status else done.stdout

    def _output(self, argv: Sequence[str], timeout: float = 60) -> Completed:
        """Run ARGV to its end, without the user's own choice of what these programs show."""
        chosen = [name for name in os.environ if name.startswith(OF_SHOWING)]
        unset = [word for name in chosen for word in ("-u", name)]
        return self.runner.output(["env", *unset, *argv] if unset else argv, timeout=timeout)

    def _ask_loudly(self, *argv: str) -> str:
        """Return what ARGV prints, errors too: some releases of srun answer on stderr."""
        if not self.has(argv[0]):
            return ""
        done = self.runner.output(argv, timeout=ANSWER_S)
        return "" if done.status else "\n".join(done.tail)


def parse_queued(line: str) -> QueuedJob | None:
    """Return the job of a LINE of squeue in the format QUEUED; None where it is none."""
    fields = line.split("|", 6)
    if len(fields) != 7 or not fields[3].isdigit():
        return None
    name, number, state, nodes, partition, user, reason = fields
    return QueuedJob(name, number, read_state(state), int(nodes), partition, user, reason)


def _is_forgotten(done: Completed) -> bool:
    """Return whether a program ended as DONE says because Slurm knows no such job any more."""
    return FORGOTTEN in " ".join((done.stdout, *done.tail))


def _hide_variables_of(script: Path) -> list[str]:
    """Return words behind `env` that hide those variables which would win over directives of SCRIPT.

    sbatch takes a variable rather than a directive. What its user has typed is written as one, and so
    are the job's name and its output, by which it is found again.
    """
    if not script.is_file():
        return []  # sbatch says so
    options: list[GivenOption] = []
    for line in script.read_text(errors="replace").splitlines():
        if not line.startswith("#SBATCH "):
            continue
        with contextlib.suppress(ValueError):  # of a script that is not ours
            words = shlex.split(line.removeprefix("#SBATCH "), comments=True)
            options += SlurmOptions.parse(word for word in words if word.startswith("--")).given
    own = [name_variable(option.name, "SBATCH") for option in options]
    names = dict.fromkeys((*own, *find_rival_variables(options, os.environ, "SBATCH")))
    return [word for name in names if name in os.environ for word in ("-u", name)]


def _outside_jobs() -> list[str]:
    """Return a prefix of a command line, by `env`, that hides the job this shell may be in."""
    inherited = [name for name in os.environ if name.startswith("SLURM_") and name not in KEPT]
    inherited += [name for name in OF_A_LAUNCH if name in os.environ]
    return ["env", *(word for name in inherited for word in ("-u", name))]
