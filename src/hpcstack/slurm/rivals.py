"""Options that Slurm refuses beside each other: one table for what a user gives and what we add. Pure.

Source: validate_options_salloc_sbatch_srun and what it calls in src/common/slurm_opt.c, and
_opt_verify in src/srun/opt.c, of Slurm 22.05 to 26.05. A row holds for all of them: which release
first refuses a pair makes no difference to who should not give it.

Real releases of srun judge the rows in tests/unit/slurm/test_rivals.py, and lines that hpcstack makes
in tests/unit/launch/test_plan.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.slurm.gpus import list_requests, read_gpu_request
from hpcstack.slurm.options import GivenOption, name_variable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hpcstack.slurm.gpus import GpuRequest

# An option whose value decides has a name here for each thing that it asks for.
GRES_OF_GPUS = "--gres=gpu"
TASKS_CPUS = "--tres-per-task=cpu"
TASKS_GPUS = "--tres-per-task=gres/gpu"
ARBITRARY = "--distribution=arbitrary"


@dataclass(frozen=True)
class Rivals:
    """ONE of them is refused beside each of OTHERS.

    With `by_variable`, Slurm counts an option that comes from a variable, too: SLURM_NTASKS_PER_GPU,
    say. Of the others, what is typed wins over a variable.
    """

    one: str
    others: tuple[str, ...]
    by_variable: bool = False


TABLE = (
    Rivals(GRES_OF_GPUS, ("--gpus-per-node",), by_variable=True),
    Rivals("--mem", ("--mem-per-cpu", "--mem-per-gpu")),
    Rivals("--mem-per-cpu", ("--mem-per-gpu",)),
    Rivals(
        "--ntasks-per-gpu",
        ("--ntasks-per-node", "--gpus-per-task", "--gpus-per-socket", TASKS_GPUS, TASKS_CPUS),
        by_variable=True,
    ),
    Rivals(
        "--ntasks-per-tres",
        ("--ntasks-per-node", "--gpus-per-task", "--gpus-per-socket", TASKS_GPUS, TASKS_CPUS),
        by_variable=True,
    ),
    Rivals("--cpus-per-gpu", ("--cpus-per-task",), by_variable=True),
    Rivals("--cpus-per-gpu", (TASKS_CPUS,)),
    Rivals(TASKS_CPUS, ("--cpus-per-task",)),
    Rivals(TASKS_GPUS, ("--gpus-per-task",)),
    Rivals("--core-spec", ("--thread-spec",)),
    Rivals("--exclusive", ("--oversubscribe", "--overlap", "--whole")),
    Rivals("--exact", ("--whole",)),
    Rivals("--relative", ("--nodelist", "--exclude")),
    Rivals(ARBITRARY, ("--nodes",)),
    Rivals("--quiet", ("--verbose",)),
)

# Options from which srun works out how many tasks a step has
GIVING_TASKS = (
    "--ntasks-per-core",
    "--ntasks-per-gpu",
    "--ntasks-per-socket",
    "--ntasks-per-tres",
)
# An option that a new job is refused without one of the others, and one that only a step has
NEEDED = {"--gpus-per-socket": ("--sockets-per-node", "--extra-node-info")}
ONLY_IN_A_JOB = ("--relative",)
# Options about each GPU, which are refused where none is asked for
OF_EACH_GPU = ("--cpus-per-gpu", "--mem-per-gpu", "--ntasks-per-gpu", "--ntasks-per-tres")


def check_options(given: Sequence[GivenOption], *, in_a_job: bool) -> None:
    """Raise InputError for the first of the options GIVEN that Slurm refuses as they stand together.

    IN_A_JOB says whether they are for a step of a job that is there.
    """
    names = {one.name for one in given}
    for one in given:
        rivals = find_rivals(one, given)
        if rivals:
            raise InputError(
                f"{one.word} and {rivals[0].word}: Slurm takes only one of them",
                "leave one of them out",
                page="write-a-job-script",
            )
        needed = NEEDED.get(one.name)
        if needed and not in_a_job and not names.intersection(needed):
            raise InputError(
                f"{one.word}: Slurm takes it only with {needed[0]}",
                f"{needed[0]}=N",
                page="write-a-job-script",
            )
        if one.name in ONLY_IN_A_JOB and not in_a_job:
            raise InputError(
                f"{one.word} is about the nodes of a job, and there is none yet",
                "leave it out",
                page="write-a-job-script",
            )
    requests = list_requests(given)
    for request in requests:
        names = {gres.name for gres in request.gpus or () if gres.count}
        if "gpu" in names and len(names) > 1:
            raise InputError(
                f"{request.source}: Slurm takes whole GPUs or shares of them, not both",
                "leave one of them out",
                page="use-four-gpus-of-eight",
            )
    of_each = [one for one in given if one.name in OF_EACH_GPU]
    if of_each and requests and all(one.asks_for_none for one in requests):
        raise InputError(
            f"{of_each[0].word} is about each GPU, and {requests[0].source} asks for none",
            "leave one of them out",
            page="write-a-job-script",
        )
    _check_types(requests)


def _check_types(requests: Iterable[GpuRequest]) -> None:
    """Raise InputError where one of REQUESTS names types of GPUs, and another one does not."""
    asking = [one for one in requests if one.gpus]
    typed = [one for one in asking if one.types]
    if typed and len(typed) < len(asking):
        plain = next(one for one in asking if not one.types)
        raise InputError(
            f"{typed[0].source} names a type of GPU and {plain.source} none: Slurm takes types in "
            "all of them or in none",
            "write the type in both, or leave one of them out",
            page="write-a-job-script",
        )


def list_claims(option: GivenOption) -> tuple[str, ...]:
    """Return the names in TABLE of what OPTION asks for."""
    value = option.value or ""
    if option.name == "--gres":
        request = read_gpu_request(option.name, value, option.word)
        # What is not understood may be about GPUs.
        is_about_gpus = request is not None and (request.gpus is None or bool(request.gpus))
        return (GRES_OF_GPUS,) if is_about_gpus else ()
    if option.name == "--tres-per-task":
        names = []
        if any(one.startswith("cpu") for one in value.split(",")):
            names.append(TASKS_CPUS)
        if read_gpu_request(option.name, value, option.word) is not None:
            names.append(TASKS_GPUS)
        return tuple(names)
    if option.name == "--distribution":
        return (ARBITRARY,) if value.partition(",")[0] == "arbitrary" else ()
    return (option.name,)


def find_rivals(option: GivenOption, others: Iterable[GivenOption]) -> tuple[GivenOption, ...]:
    """Return those of OTHERS that Slurm refuses beside OPTION."""
    names = list_claims(option)
    return tuple(
        other
        for other in others
        if any(_are_rivals(one, two) for one in names for two in list_claims(other))
    )


def _are_rivals(one: str, two: str) -> bool:
    return any(
        (row.one == one and two in row.others) or (row.one == two and one in row.others)
        for row in TABLE
    )


def find_rival_variables(
    options: Iterable[GivenOption], variables: Mapping[str, str], prefix: str = "SLURM"
) -> tuple[str, ...]:
    """Return those VARIABLES whose options Slurm refuses beside OPTIONS.

    PREFIX is that of the program that reads them: SLURM of srun, SBATCH, SALLOC.
    """
    names = {name for option in options for name in list_claims(option)}
    found = []
    for row in TABLE:
        if not row.by_variable:
            continue
        for one in (row.one, *row.others):
            against = row.others if one == row.one else (row.one,)
            variable = name_variable(one.partition("=")[0], prefix)
            if variable in variables and names.intersection(against):
                found.append(variable)
    return tuple(dict.fromkeys(found))


def list_options_of_variables(variables: Mapping[str, str], prefix: str) -> tuple[GivenOption, ...]:
    """Return the options in TABLE that VARIABLES with PREFIX stand for, where Slurm counts these."""
    names = dict.fromkeys(
        name.partition("=")[0]
        for row in TABLE
        if row.by_variable
        for name in (row.one, *row.others)
    )
    found = []
    for option in names:
        value = variables.get(name_variable(option, prefix), "")
        if value:
            found.append(GivenOption(option, value))
    return tuple(found)
