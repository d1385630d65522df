"""The variables of a step, each with where its value comes from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.names import STARTED_IN_IMAGE
from hpcstack.runtimes import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcstack.launch.binding import Binding
    from hpcstack.site.injection import Brought
    from hpcstack.site.load import Site

USER, FABRIC, OWN, IMAGE, RUNTIME, OPTION = "the user's environment", "the site's fabric", "hpcstack", "the image", \
    "the runtime", "the command line"  # fmt: skip


@dataclass(frozen=True)
class Variable:
    """One variable: its value, who says so, and why."""

    name: str
    value: str
    origin: str
    why: str = ""

    @property
    def kept(self) -> bool:
        """Whether what the user has set at the time counts more."""
        return self.origin in (FABRIC, USER, OWN)

    def __str__(self) -> str:
        return f"{self.origin}: {self.why}" if self.why else self.origin


def list_users_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """What the user has set, also in Apptainer's own way of saying it for containers only."""
    own = "APPTAINERENV_"
    inside = {
        name.removeprefix(own): value for name, value in environ.items() if name.startswith(own)
    }
    return {**environ, **inside}


def list_step_variables(
    site: Site,
    nodes: int,
    image: Mapping[str, str],
    environ: Mapping[str, str] | None = None,
    *,
    brought: Sequence[Brought] = (),
) -> list[Variable]:
    """What every step is told: the fabric's settings, those of the libraries that are BROUGHT, and
    no packages of ~/.local. What the user has set wins.
    """
    environ = list_users_variables(os.environ if environ is None else environ)
    out = [Variable("PYTHONNOUSERSITE", "1", OWN, "packages in ~/.local are not the image's")]
    rows = site.fabric.settings_for(nodes, image)
    for one in brought:
        rows |= one.settings
    out += [Variable(name, row.value, FABRIC, row.reason) for name, row in rows.items()]
    return [
        Variable(one.name, environ[one.name], USER, f"{one.origin} would say {one.value!r}")
        if one.name in environ and environ[one.name] != one.value
        else one
        for one in out
    ]


UNDER_SLURM = frozenset(name for name, one in RUNTIMES.items() if one.uses_slurm)
APART = frozenset(name for name, one in RUNTIMES.items() if one.container_per_rank)
# What MPI wants where each rank is in a container of its own: two user namespaces on one node.
MPI: tuple[tuple[str, str, frozenset[str], str], ...] = (
    ("PMIX_MCA_gds", "hash", UNDER_SLURM,
     "PMIx's shared memory is of the host's version, not the image's (apptainer/singularity#5195)"),
    ("UCX_POSIX_USE_PROC_LINK", "n", APART,
     "ranks in containers of their own may not open each other's /proc/PID/fd (openucx/ucx#4511)"),
    ("OMPI_MCA_btl_vader_single_copy_mechanism", "none", APART,
     "nor read each other's memory (open-mpi/ompi#6844)"),
)  # fmt: skip
REMADE = ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")


def of_mode(
    mode: str,
    runtime: str,
    image: Mapping[str, str],
    bound: Binding | None,
    grace: int,
    environ: Mapping[str, str] | None = None,
) -> list[Variable]:
    """What the launcher of MODE inside the image is told.

    What the user or the image has set wins.
    """
    environ = list_users_variables(os.environ if environ is None else environ)
    out = [
        Variable(name, environ[name], USER, "Enroot's hooks do not count")
        for name in REMADE
        if name in environ
    ]
    if mode == "mpi":
        out += [
            Variable(name, value, OWN, why)
            for name, value, runtimes, why in MPI
            if runtime in runtimes and name not in environ and name not in image
        ]
    if mode in STARTED_IN_IMAGE:
        if names := " ".join(name for name in REMADE if name not in environ and name not in image):
            out.append(
                Variable(
                    "HPCSTACK_UNSET",
                    names,
                    OWN,
                    "neither yours nor the image's: Enroot's hooks' do not count",
                )
            )
        if bound and mode != "task-per-gpu":
            out.append(Variable("HPCSTACK_CPUS", " ".join(bound.cpus), OWN, bound.why))
    if grace:
        out.append(
            Variable(
                "HPCSTACK_GRACE",
                str(grace),
                OWN,
                "so many seconds before the time is up each rank gets USR1",
            )
        )
    return out


def all_of(
    step: list[Variable], image: Mapping[str, str], environ: Mapping[str, str]
) -> list[Variable]:
    """Every variable that a rank starts with, as known here: the step's above the image's above the
    host's.
    """
    out = {name: Variable(name, value, USER) for name, value in environ.items()}
    out |= {name: Variable(name, value, IMAGE) for name, value in image.items()}
    out |= {one.name: one for one in step}
    return [out[name] for name in sorted(out)]
