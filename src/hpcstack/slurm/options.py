"""Options of Slurm's: one table of what each is for, and what somebody asked for by them.

What an option means, which value it takes and its short form: https://slurm.schedmd.com/srun.html,
https://slurm.schedmd.com/sbatch.html and https://slurm.schedmd.com/salloc.html.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING

from hpcstack.core.data import read_facts
from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Scope(Enum):
    """For whom an option is."""

    JOB_AND_STEP = "a job asks for it, and its steps take it over"
    JOB = "a job alone: a step does not know it, or must not say it again"
    STEP = "a step alone"


class Value(Enum):
    """Whether a value follows an option."""

    NEEDED = "--mem=4G, or --mem 4G"
    OPTIONAL = "--exclusive, or --exclusive=user"
    NONE = "--contiguous"


@dataclass(frozen=True)
class SlurmOption:
    """One option of srun, sbatch or salloc, by its long form.

    `salloc` and `srun` say whether these know it, `in_help` whether a `--help` names it. `srun` is
    kept only for options that no `--help` names.
    """

    name: str
    short: str = ""
    scope: Scope = Scope.STEP
    value: Value = Value.NEEDED
    salloc: bool = True
    in_help: bool = True
    srun: bool = True


def _of_job_and_step(
    name: str, short: str = "", value: Value = Value.NEEDED, *, in_help: bool = True
) -> SlurmOption:
    return SlurmOption(name, short, Scope.JOB_AND_STEP, value, in_help=in_help)


def _of_job(
    name: str, short: str = "", value: Value = Value.NEEDED, *, salloc: bool = True
) -> SlurmOption:
    return SlurmOption(name, short, Scope.JOB, value, salloc)


def _of_job_silently(
    name: str, value: Value = Value.NEEDED, *, salloc: bool = True, srun: bool = True
) -> SlurmOption:
    """An option that is in the manual and in no `--help`."""
    return SlurmOption(name, "", Scope.JOB, value, salloc, in_help=False, srun=srun)


_ROWS = (
    _of_job_and_step("--clusters", "-M"),
    _of_job_and_step("--contiguous", value=Value.NONE),
    _of_job_and_step("--cpus-per-task", "-c"),
    _of_job_and_step("--exclude", "-x"),
    _of_job_and_step("--gpus", "-G"),
    _of_job_and_step("--gpus-per-node"),
    _of_job_and_step("--gpus-per-task"),
    _of_job_and_step("--gres"),
    _of_job_and_step("--job-name", "-J"),
    _of_job_and_step("--mem"),
    _of_job_and_step("--mem-per-cpu"),
    _of_job_and_step("--mem-per-gpu"),
    _of_job_and_step("--mincpus"),
    _of_job_and_step("--no-kill", "-k", Value.OPTIONAL),
    _of_job_and_step("--nodelist", "-w"),
    _of_job_and_step("--nodes", "-N"),
    _of_job_and_step("--ntasks", "-n"),
    _of_job_and_step("--ntasks-per-node"),
    _of_job_and_step("--tmp"),
    # What a job does not ask for, its steps cannot have
    _of_job_and_step("--chdir", "-D"),
    _of_job_and_step("--core-spec", in_help=False),
    _of_job_and_step("--cores-per-socket", in_help=False),
    _of_job_and_step("--cpus-per-gpu"),
    _of_job_and_step("--distribution", in_help=False),
    _of_job_and_step("--extra-node-info", in_help=False),
    _of_job_and_step("--gpus-per-socket", in_help=False),
    _of_job_and_step("--gres-flags", in_help=False),
    _of_job_and_step("--hint", in_help=False),
    _of_job_and_step("--nodefile", in_help=False),
    _of_job_and_step("--ntasks-per-core", in_help=False),
    _of_job_and_step("--ntasks-per-gpu", in_help=False),
    _of_job_and_step("--ntasks-per-socket", in_help=False),
    _of_job_and_step("--ntasks-per-tres", in_help=False),
    _of_job_and_step("--overcommit", "-O", Value.NONE),
    _of_job_and_step("--oversubscribe", "-s", Value.NONE),
    _of_job_and_step("--sockets-per-node", in_help=False),
    _of_job_and_step("--thread-spec", in_help=False),
    _of_job_and_step("--threads-per-core", in_help=False),
    _of_job_and_step("--tres-per-task", in_help=False),
    _of_job("--account", "-A"),
    _of_job("--array", "-a", salloc=False),
    _of_job("--begin", "-b"),
    _of_job("--comment"),
    _of_job("--constraint", "-C"),
    _of_job("--deadline"),
    _of_job("--dependency", "-d"),
    _of_job("--error", "-e", salloc=False),
    _of_job("--exclusive", value=Value.OPTIONAL),
    _of_job("--hold", "-H", Value.NONE),
    _of_job("--kill-on-invalid-dep", salloc=False),
    _of_job("--licenses", "-L"),
    _of_job("--mail-type"),
    _of_job("--mail-user"),
    _of_job("--nice", value=Value.OPTIONAL),
    _of_job("--no-requeue", value=Value.NONE, salloc=False),
    _of_job_silently("--open-mode", salloc=False),
    _of_job("--output", "-o", salloc=False),
    _of_job("--parsable", value=Value.NONE, salloc=False),
    _of_job("--partition", "-p"),
    _of_job("--qos", "-q"),
    _of_job("--requeue", value=Value.NONE, salloc=False),
    _of_job("--reservation"),
    _of_job("--signal"),
    _of_job("--switches"),
    _of_job("--time", "-t"),
    # For sbatch: wait until the job ends. For srun: the seconds that the other tasks get after the
    # first has ended.
    _of_job("--wait", "-W", Value.OPTIONAL, salloc=False),
    _of_job("--wckey"),
    # Source: the table of options in src/common/slurm_opt.c, up to Slurm 26.05
    _of_job_silently("--consolidate-segments", Value.NONE),
    _of_job_silently("--external", Value.NONE, salloc=False, srun=False),
    _of_job_silently("--extra"),
    _of_job_silently("--mem-update"),
    _of_job_silently("--network"),
    _of_job_silently("--oom-kill-step", Value.OPTIONAL),
    _of_job_silently("--prefer"),
    _of_job_silently("--resources"),
    _of_job_silently("--segment"),
    _of_job_silently("--spread-segments", Value.NONE),
    _of_job_silently("--stepmgr", Value.NONE),
    _of_job_silently("--bb"),
    _of_job_silently("--bbf"),
    _of_job_silently("--cluster-constraint"),
    _of_job_silently("--delay-boot"),
    _of_job_silently("--mcs-label"),
    _of_job_silently("--priority"),
    _of_job_silently("--reboot", Value.NONE),
    _of_job_silently("--spread-job", Value.NONE),
    _of_job_silently("--time-min"),
    _of_job_silently("--use-min-nodes", Value.NONE),
    _of_job_silently("--export-file", salloc=False, srun=False),
    _of_job_silently("--get-user-env", Value.OPTIONAL, salloc=False, srun=False),
    _of_job_silently("--ignore-pbs", Value.NONE, salloc=False, srun=False),
    _of_job_silently("--wait-all-nodes", srun=False),
    _of_job_silently("--x11", Value.OPTIONAL),
    SlurmOption("--cpu-bind"),
    SlurmOption("--gpu-bind"),
    SlurmOption("--mpi"),
    SlurmOption("--overlap", value=Value.NONE),
    SlurmOption("--prolog"),
    SlurmOption("--pty", value=Value.OPTIONAL),
    # Listed so that a job script behind one of them is not taken for its value (launch/jobs.py).
    # hpcstack puts none of them into a job's directives.
    SlurmOption("--help", "-h", value=Value.NONE),
    SlurmOption("--immediate", "-I", value=Value.OPTIONAL),
    SlurmOption("--propagate", value=Value.OPTIONAL),
    SlurmOption("--quiet", "-Q", value=Value.NONE),
    SlurmOption("--resv-ports", value=Value.OPTIONAL),
    SlurmOption("--test-only", value=Value.NONE),
    SlurmOption("--verbose", "-v", value=Value.NONE),
    SlurmOption("--version", "-V", value=Value.NONE),
)
OPTIONS = {row.name: row for row in _ROWS}
# `-H`: the next word is none of its own. Source of what an optional value looks like, -W8 say:
# https://slurm.schedmd.com/sbatch.html
SHORT_FLAGS = frozenset(row.short for row in _ROWS if row.short and row.value is not Value.NEEDED)
SHORT = {row.short: row.name for row in _ROWS if row.short and row.value is Value.NEEDED}


def find_scope(name: str) -> Scope:
    """Return whose the option NAME is.

    Where the table does not have it, it is the job's if only sbatch knows it, else the step's.
    """
    known = OPTIONS.get(name)
    if known:
        return known.scope
    is_of_sbatch = name in list_known_options("sbatch") - list_known_options("srun")
    return Scope.JOB if is_of_sbatch else Scope.STEP


# Options whose variables are not named after them
# https://slurm.schedmd.com/srun.html and sbatch.html, INPUT ENVIRONMENT VARIABLES
NAMED_OTHERWISE = {
    "--array": "ARRAY_INX",
    "--mem": "MEM_PER_NODE",
    "--mpi": "MPI_TYPE",
    "--switches": "REQ_SWITCH",
    "--time": "TIMELIMIT",
}


def name_variable(option: str, prefix: str) -> str:
    """Return the variable by which a program of Slurm is asked for OPTION, a long name.

    PREFIX is the program's: SLURM or SRUN of srun, SBATCH, SALLOC.
    """
    named_after = option.removeprefix("--").replace("-", "_").upper()
    return f"{prefix}_{NAMED_OTHERWISE.get(option, named_after)}"


@cache
def list_valued_options() -> frozenset[str]:
    """Return the long options of srun and sbatch whose value is the next word: `--mem 4G`."""
    known = load_getopt_options()
    every = (*known["srun"]["valued"], *known["sbatch"]["valued"])
    return frozenset(one for one in every if one.startswith("--"))


@cache
def list_known_options(program: str) -> frozenset[str]:
    """Return the long options of PROGRAM, srun or sbatch, in any release that is known."""
    known = load_getopt_options()[program]
    return frozenset(one for one in (*known["valued"], *known["others"]) if one.startswith("--"))


def load_getopt_options() -> dict[str, dict[str, list[str]]]:
    """Return {program: {valued, others}}: all options of srun and sbatch as getopt takes them.

    The `valued` are followed by a value; the `others` by none, or only by `=VALUE`. Long forms and
    short ones are listed beside each other.
    """
    document: dict[str, dict[str, list[str]]] = read_facts("slurm-options")
    return document


@dataclass(frozen=True)
class GivenOption:
    """One option as it was given; `value` is None where none follows it."""

    name: str
    value: str | None = None

    @property
    def word(self) -> str:
        """The option as one word of a command line."""
        return self.name if self.value is None else f"{self.name}={self.value}"


@dataclass(frozen=True)
class SlurmOptions:
    """Options that somebody gave in Slurm's own words, in their order."""

    given: tuple[GivenOption, ...] = ()

    @classmethod
    def parse(cls, words: Iterable[str]) -> SlurmOptions:
        """Return the options that WORDS are, each `--name` or `--name=value`.

        InputError for a short form, whose value could not be told from it.
        """
        given = []
        for word in words:
            if not word.startswith("--"):
                raise InputError(
                    f"{word}: write the long form of an option of srun's",
                    "e.g. --ntasks=8 for -n8",
                    page="write-a-job-script",
                )
            name, sign, value = word.partition("=")
            given.append(GivenOption(name, value if sign else None))
        return cls(tuple(given))

    def has(self, *names: str) -> bool:
        """Return whether one of the options NAMES was given."""
        return any(one.name in names for one in self.given)

    def value(self, name: str) -> str:
        """Return the value of the option NAME; of several the last one's, as Slurm has it."""
        values = [one.value for one in self.given if one.name == name]
        return values[-1] or "" if values else ""


NO_OPTIONS = SlurmOptions()
