"""One rank below a debugger: `launch --debug RANK`, and `enter --debug`, which talks to it.

The rank runs below pdb (launchers/in-image/debugged.py) and waits for somebody where it stops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.launch.variables import ValueOrigin, Variable
from hpcstack.render.template import read_data_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.launch.request import LaunchRequest

# NCCL's watchdog would end the ranks that wait for the one that is looked at. Source:
# https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
PATIENT = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}


def wrap_debugged(rank: int, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return COMMAND of each rank, which for RANK runs below its debugger."""
    script = read_data_file("launchers", "in-image/debug.sh")
    debugger = read_data_file("launchers", "in-image/debugged.py")
    return ("/bin/sh", "-c", script, "debug", str(rank), debugger, *command)


def make_debug_client(rank: str) -> tuple[str, ...]:
    """Return the words that talk to the debugger of RANK, in its container."""
    client = read_data_file("launchers", "in-image/debug_client.py")
    return ("python3", "-u", "-c", client, rank)


def list_debug_variables(
    rank: int, environ: Mapping[str, str], image: Mapping[str, str]
) -> list[Variable]:
    """Return the variables of a step in which RANK is debugged; the others wait for it.

    What is set in ENVIRON or by the IMAGE stays.
    """
    out = [Variable("HPCSTACK_DEBUG", str(rank), ValueOrigin.OPTION, "the rank to be debugged")]
    why = "the other ranks wait, however long somebody looks at one"
    for name, value in PATIENT.items():
        if name not in environ and name not in image:
            out.append(Variable(name, value, ValueOrigin.OWN, why))
    return out


def check_debug(request: LaunchRequest, *, uses_slurm: bool) -> None:
    """Raise InputError where REQUEST cannot be debugged, or something would end the stopped rank."""
    if request.debug is None:
        return
    if not uses_slurm:
        raise InputError(
            "--debug is for ranks of a job",
            "hpcstack python -- -m pdb train.py",
            page="debug-a-rank",
        )
    if request.mode == "deepspeed":
        raise InputError(
            "--debug does not go with mode deepspeed, whose launcher starts the ranks itself",
            "--mode torchrun; deepspeed.initialize needs no other",
            page="debug-a-rank",
        )
