"""Which options of a launch exclude each other, and why. Pure.

Options of hpcstack's that exclude options of Slurm's are here, too. What Slurm's own options exclude
is in slurm/rivals.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from hpcstack.launch.request import LaunchRequest

# Options of hpcstack's that mean nothing in a step without Slurm
OF_SLURM = (
    "--slurm",
    "--batch",
    "--grace",
    "--watchdog",
    "--spare",
    "--requeue-without",
    "--stage",
    "--stage-in",
)


NODE_RANGE = "-N MIN-MAX"  # stands for it among the options


@dataclass(frozen=True)
class Exclusion:
    """An option that cannot stand beside any of OTHERS; WHY says so of them."""

    option: str
    others: tuple[str, ...]
    why: str
    page: str


EXCLUSIONS = (
    Exclusion(
        "--spare",
        ("--elastic",),
        "both are ways of doing without a node",
        page="start-despite-a-bad-node",
    ),
    Exclusion(
        "--spare",
        (NODE_RANGE,),
        "the spare nodes are counted from a number of nodes",
        page="start-despite-a-bad-node",
    ),
    Exclusion(
        "--elastic",
        (NODE_RANGE,),
        "both say how many nodes it may run on",
        page="choose-a-mode",
    ),
    Exclusion(
        "--spare",
        ("--nodelist",),
        "it chooses among the nodes of the job",
        page="start-despite-a-bad-node",
    ),
    Exclusion(
        "--spare",
        ("--stage", "--stage-in"),
        "staging copies to all nodes of the job",
        page="start-despite-a-bad-node",
    ),
    Exclusion(
        "--requeue-without",
        ("--no-requeue",),
        "it starts the job again",
        page="start-despite-a-bad-node",
    ),
    Exclusion(
        "--requeue-without",
        ("--nodelist",),
        "it chooses other nodes",
        page="start-despite-a-bad-node",
    ),
    Exclusion(
        "--spare",
        ("--pty",),
        "it runs the step from a script, and a terminal cannot be handed on",
        page="start-despite-a-bad-node",
    ),
    Exclusion(
        "--requeue-without",
        ("--pty",),
        "it runs the step from a script, and a terminal cannot be handed on",
        page="start-despite-a-bad-node",
    ),
    Exclusion(
        "--watchdog",
        ("--pty",),
        "it watches what srun prints, and such a step has a terminal of its own",
        page="find-a-hang",
    ),
    Exclusion(
        "--watchdog",
        ("--output", "--error"),
        "it watches what srun prints, which would go to a file instead",
        page="find-a-hang",
    ),
    Exclusion(
        "--label",
        ("--pty",),
        "a terminal of the step's own shows what the program draws, not lines",
        page="find-a-hang",
    ),
    Exclusion(
        "--watchdog",
        ("--debug",),
        "it would end a step that waits for somebody to type",
        page="debug-a-rank",
    ),
)


def list_given(request: LaunchRequest) -> set[str]:
    """Return the options that REQUEST has: hpcstack's own, and those of Slurm's that exclude some."""
    asked = request.resources
    own = {
        "--slurm": request.slurm,
        "--batch": request.batch,
        "--grace": request.grace,
        "--watchdog": request.watchdog,
        "--debug": request.debug is not None,
        "--label": request.label,
        "--spare": request.spare,
        "--requeue-without": request.requeue,
        "--stage": request.stage not in ("", "none"),
        "--stage-in": request.stage_in,
        "--elastic": asked.elastic,
        NODE_RANGE: asked.most_nodes,
        "--restarts": asked.restarts,
        "--nodelist": asked.nodelist,
    }
    given = {option for option, value in own.items() if value}
    of_slurm = {one.name for one in asked.extra.given}
    if request.batch:  # there they name the job's files, and srun still writes to those
        of_slurm -= {"--output", "--error"}
    return given | of_slurm


def check_exclusions(given: AbstractSet[str]) -> None:
    """Raise InputError where two of the options GIVEN exclude each other."""
    for one in EXCLUSIONS:
        others = [option for option in one.others if option in given]
        if one.option in given and others:
            raise InputError(
                f"{one.option} and {others[0]} exclude each other: {one.why}",
                "leave one of them out",
                page=one.page,
            )
