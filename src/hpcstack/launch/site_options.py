"""srun's options that the site gives every job of a partition, of a node type, or of its own.

What a user asks for wins over the partition's, that over the node type's, and that over the site's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.runtimes.base import Part, make_option
from hpcstack.slurm.options import GivenOption, Scope, find_scope, name_variable
from hpcstack.slurm.rivals import find_rivals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hpcstack.site.injection import Reasoned
    from hpcstack.site.load import Site
    from hpcstack.slurm.options import SlurmOptions
# What a job may ask for, too, and each step says anew: how its tasks are laid out
OF_EACH_STEP = ("--distribution", "--gres-flags", "--hint", "--overcommit", "--threads-per-core")


def list_site_options(
    site: Site,
    partitions: str,
    kinds: Sequence[str],
    given: SlurmOptions,
    variables: Mapping[str, str],
    *,
    in_a_job: bool,
) -> list[Part]:
    """Return the options that SITE gives a step in PARTITIONS, whose nodes are of KINDS.

    Those that a user has GIVEN are left out, be it by VARIABLES of the shell. Of several partitions
    or kinds, only what all of them have counts. IN_A_JOB a step gets no option that is the job's:
    the job has its own already.
    """
    names = partitions.split(",") if partitions else site.default_partitions
    of_kinds = _common([site.node_types[kind].srun for kind in kinds])
    of_partitions = _common(
        [site.partitions[name].srun for name in names if name in site.partitions]
    )
    levels = (
        ("srun", site.srun),
        (f"node_types.{'/'.join(kinds)}.srun", of_kinds),
        (f"partitions.{'/'.join(names)}.srun", of_partitions),
    )
    chosen: dict[str, Part] = {}
    for place, options in levels:
        for name, row in options.items():
            option = GivenOption(name, row.value or None)
            farther = [GivenOption(part.option, part.value or None) for part in chosen.values()]
            for rival in find_rivals(option, farther):
                del chosen[rival.name]
            chosen[name] = make_option(name, option.value, f"{row.reason} ({place})")
    return [
        part
        for name, part in chosen.items()
        if not given.has(name)
        and not (in_a_job and find_scope(name) is not Scope.STEP and name not in OF_EACH_STEP)
        and not variables.keys() & _list_variables(name)
    ]


def _list_variables(name: str) -> set[str]:
    """Return the variables by which a user may have given the option NAME."""
    return {name_variable(name, prefix) for prefix in ("SLURM", "SRUN", "SBATCH")}


def _common(every: Iterable[Mapping[str, Reasoned]]) -> dict[str, Reasoned]:
    """Return the options that EVERY one has with the same value."""
    first, *others = list(every) or [{}]
    return {
        name: row
        for name, row in first.items()
        if all(name in other and other[name].value == row.value for other in others)
    }
