"""Options that Slurm refuses beside each other: one table for what a user gives and what we add. Pure.

Source: validate_options_salloc_sbatch_srun and what it calls in src/common/slurm_opt.c, and
_opt_verify in src/srun/opt.c, of Slurm 22.05 to 26.05. A row holds for all of them: which release
first refuses a pair makes no difference to who should not give it.

`ci/rivals` lets real releases of srun judge each row, and lines that hpcstack makes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.slurm.gpus import read_request

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hpcstack.slurm.options import GivenOption

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
        ("--ntasks-per-node", "--gpus-per-task", "--gpus-per-socket", TASKS_GPUS),
        by_variable=True,
    ),
    Rivals("--ntasks-per-gpu", (TASKS_CPUS,)),
    Rivals("--cpus-per-gpu", ("--cpus-per-task", TASKS_CPUS)),
    Rivals(TASKS_CPUS, ("--cpus-per-task",)),
    Rivals(TASKS_GPUS, ("--gpus-per-task",)),
    Rivals("--core-spec", ("--thread-spec",)),
    Rivals("--exclusive", ("--oversubscribe", "--overlap")),
    Rivals("--exact", ("--whole",)),
    Rivals("--relative", ("--nodelist", "--exclude")),
    Rivals(ARBITRARY, ("--nodes",)),
    Rivals("--quiet", ("--verbose",)),
)


def list_names(option: GivenOption) -> tuple[str, ...]:
    """Return the names in TABLE of what OPTION asks for."""
    value = option.value or ""
    if option.name == "--gres":
        request = read_request(option.name, value, option.word)
        # What is not understood may be about GPUs.
        is_about_gpus = request is not None and (request.gpus is None or bool(request.gpus))
        return (GRES_OF_GPUS,) if is_about_gpus else ()
    if option.name == "--tres-per-task":
        names = []
        if any(one.startswith("cpu") for one in value.split(",")):
            names.append(TASKS_CPUS)
        if read_request(option.name, value, option.word) is not None:
            names.append(TASKS_GPUS)
        return tuple(names)
    if option.name == "--distribution":
        return (ARBITRARY,) if value.partition(",")[0] == "arbitrary" else ()
    return (option.name,)


def find_rivals(option: GivenOption, others: Iterable[GivenOption]) -> tuple[GivenOption, ...]:
    """Return those of OTHERS that Slurm refuses beside OPTION."""
    names = list_names(option)
    return tuple(
        other
        for other in others
        if any(_are_rivals(one, two) for one in names for two in list_names(other))
    )


def _are_rivals(one: str, two: str) -> bool:
    return any(
        (row.one == one and two in row.others) or (row.one == two and one in row.others)
        for row in TABLE
    )


def find_rival_variables(
    options: Iterable[GivenOption], variables: Mapping[str, str]
) -> tuple[str, ...]:
    """Return those VARIABLES of a job whose options Slurm refuses beside OPTIONS."""
    names = {name for option in options for name in list_names(option)}
    found = []
    for row in TABLE:
        if not row.by_variable:
            continue
        for one in (row.one, *row.others):
            against = row.others if one == row.one else (row.one,)
            variable = _name_variable(one)
            if variable in variables and names.intersection(against):
                found.append(variable)
    return tuple(dict.fromkeys(found))


def _name_variable(name: str) -> str:
    """Return the variable by which srun takes the option NAME of TABLE."""
    option = name.partition("=")[0]
    return f"SLURM_{option.removeprefix('--').replace('-', '_').upper()}"
