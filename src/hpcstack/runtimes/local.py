"""Without Slurm: Apptainer runs the image on this machine.

Slurm's options mean nothing here; `launch` refuses them.

Tested in tests/unit/launch/test_plan.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcstack.core.names import WITHOUT_SLURM
from hpcstack.runtimes.apptainer import PREFIX, REASONS, exec_environment, exec_parts
from hpcstack.runtimes.base import Runtime

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.runtimes.base import Part, Step


@dataclass(frozen=True)
class Local(Runtime):
    """One `apptainer exec` on this machine."""

    name: str = WITHOUT_SLURM
    tool: str = "apptainer"
    brings: tuple[str, ...] = ("home", "tmp")
    uses_slurm: bool = False
    container_per_rank: bool = False
    mounts_by_fuse: bool = True
    variable_prefix: str = PREFIX
    reasons: Mapping[str, str] = field(default_factory=lambda: REASONS)

    def parts(self, step: Step) -> list[Part]:
        return exec_parts(step)

    def environment(self, step: Step) -> dict[str, str]:
        """Return Apptainer's variables, with Slurm's set to one task on one node.

        This shell may be in an allocation of several nodes, which does not concern this step.
        """
        alone = {
            "SLURM_STEP_NUM_NODES": "1",
            "SLURM_NODEID": "0",
            "SLURM_NTASKS": "1",
            "SLURM_STEP_NUM_TASKS": "1",
            "SLURM_PROCID": "0",
            "SLURM_LOCALID": "0",
        }
        return exec_environment(step) | {f"{PREFIX}{name}": value for name, value in alone.items()}


RUNTIME = Local()
