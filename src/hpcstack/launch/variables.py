"""List the environment variables of a step, each with the origin of its value.

Tested in tests/unit/launch/test_plan.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from hpcstack.core.names import STARTED_IN_IMAGE
from hpcstack.runtimes import RUNTIMES, find_plain_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcstack.launch.binding import Binding
    from hpcstack.site.injection import Brought
    from hpcstack.site.load import Site


class ValueOrigin(str, Enum):
    """Where a value comes from, as the record of a launch keeps it and `why` shows it."""

    USER = "the user's environment"
    FABRIC = "the site's fabric"
    OWN = "hpcstack"
    IMAGE = "the image"
    RUNTIME = "the runtime"
    OPTION = "the command line"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Variable:
    """One variable: its value, where the value comes from, and why it is set."""

    name: str
    value: str
    origin: ValueOrigin
    why: str = ""

    @property
    def plain_name(self) -> str:
        """The name that it has in the container."""
        return find_plain_name(self.name)

    @property
    def kept(self) -> bool:
        """Whether a value that the user sets when the script runs wins over this one."""
        return self.origin in (ValueOrigin.FABRIC, ValueOrigin.USER, ValueOrigin.OWN)

    def __str__(self) -> str:
        return f"{self.origin}: {self.why}" if self.why else self.origin


def list_users_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the user has set in ENVIRON.

    A runtime's own way to set NAME in containers only, such as PREFIX_NAME, counts as NAME and wins.
    """
    plain = {name: find_plain_name(name) for name in environ}
    inside = {plain[name]: value for name, value in environ.items() if plain[name] != name}
    return {**environ, **inside}


def list_step_variables(
    site: Site,
    nodes: int,
    image: Mapping[str, str],
    environ: Mapping[str, str] | None = None,
    *,
    brought: Sequence[Brought] = (),
) -> list[Variable]:
    """Return the variables of every step on so many NODES, in an image with the variables IMAGE.

    They are the settings of the site's fabric, those of the libraries that are BROUGHT, and the one
    that keeps out packages of ~/.local. What the user has set in ENVIRON wins.
    """
    environ = list_users_variables(os.environ if environ is None else environ)
    wanted = [
        Variable(
            "PYTHONNOUSERSITE", "1", ValueOrigin.OWN, "packages in ~/.local are not the image's"
        )
    ]
    rows = site.fabric.settings_for(nodes, image)
    for one in brought:
        rows |= one.settings
    wanted += [
        Variable(name, row.value, ValueOrigin.FABRIC, row.reason) for name, row in rows.items()
    ]

    out = []
    for variable in wanted:
        users = environ.get(variable.name, variable.value)
        if users == variable.value:
            out.append(variable)
        else:
            why = f"{variable.origin} would say {variable.value!r}"
            out.append(Variable(variable.name, users, ValueOrigin.USER, why))
    return out


UNDER_SLURM = frozenset(name for name, one in RUNTIMES.items() if one.uses_slurm)
APART = frozenset(name for name, one in RUNTIMES.items() if one.container_per_rank)
# What MPI needs where each rank is in a container of its own, so that the ranks of a node are in
# different user namespaces: (name, value, runtimes that it is for, why)
MPI: tuple[tuple[str, str, frozenset[str], str], ...] = (
    ("PMIX_MCA_gds", "hash", UNDER_SLURM,
     "PMIx's shared memory is of the host's version, not the image's (apptainer/singularity#5195)"),
    ("UCX_POSIX_USE_PROC_LINK", "n", APART,
     "ranks in containers of their own may not open each other's /proc/PID/fd (openucx/ucx#4511)"),
    ("OMPI_MCA_btl_vader_single_copy_mechanism", "none", APART,
     "nor read each other's memory (open-mpi/ompi#6844)"),
)  # fmt: skip
# Variables that the launchers in the image set themselves where neither user nor image has set them
REMADE = ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")


def list_mode_variables(
    mode: str,
    runtime: str,
    image: Mapping[str, str],
    bound: Binding | None,
    grace: int,
    environ: Mapping[str, str] | None = None,
    *,
    near: bool = False,
) -> list[Variable]:
    """Return the variables for the launcher of MODE inside the image.

    BOUND are the cores of the ranks. With NEAR, ranks are bound by what their node says where BOUND
    has nothing. GRACE are the seconds of --grace. What the user (ENVIRON) or the
    IMAGE has set wins. Enroot's hooks set some of the same variables; theirs are overridden.
    """
    environ = list_users_variables(os.environ if environ is None else environ)
    out = []
    for name in REMADE:
        if name in environ:
            out.append(
                Variable(name, environ[name], ValueOrigin.USER, "wins over the runtime's hooks")
            )

    if mode == "mpi":
        for name, value, runtimes, why in MPI:
            if runtime in runtimes and name not in environ and name not in image:
                out.append(Variable(name, value, ValueOrigin.OWN, why))
    if mode in STARTED_IN_IMAGE:
        unset = [name for name in REMADE if name not in environ and name not in image]
        if unset:
            why = "set neither by you nor by the image: what the runtime's hooks set is dropped"
            out.append(Variable("HPCSTACK_UNSET", " ".join(unset), ValueOrigin.OWN, why))
        # In mode task-per-gpu each rank is a task, which srun binds (--cpu-bind).
        if bound and mode != "task-per-gpu":
            out.append(Variable("HPCSTACK_CPUS", " ".join(bound.cpus), ValueOrigin.OWN, bound.why))
    if near and not bound:
        why = "each rank on the cores that its node says are near its GPU: no topology is recorded"
        is_shared = mode in STARTED_IN_IMAGE and mode != "task-per-gpu"
        how = "shared" if is_shared else "own"
        out.append(Variable("HPCSTACK_NEAR", how, ValueOrigin.OWN, why))

    if grace:
        why = "each rank gets SIGUSR1 this many seconds before the time limit"
        out.append(Variable("HPCSTACK_GRACE", str(grace), ValueOrigin.OWN, why))
    return out


def list_final_variables(
    step: list[Variable], image: Mapping[str, str], environ: Mapping[str, str]
) -> list[Variable]:
    """Return every variable that a rank starts with, by name, as far as it is known here.

    Those of the STEP win over those of the IMAGE, and these over ENVIRON, the host's.
    """
    out = {name: Variable(name, value, ValueOrigin.USER) for name, value in environ.items()}
    out |= {name: Variable(name, value, ValueOrigin.IMAGE) for name, value in image.items()}
    out |= {one.name: one for one in step}
    return [out[name] for name in sorted(out)]
