"""No Slurm: the image runs here, by Apptainer.

Slurm's options have no meaning and are refused by `launch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.names import WITHOUT_SLURM
from hpcstack.runtimes.apptainer import exec_environment, exec_parts
from hpcstack.runtimes.base import Runtime

if TYPE_CHECKING:
    from hpcstack.runtimes.base import Part, Step


@dataclass(frozen=True)
class Local(Runtime):
    name: str = WITHOUT_SLURM
    tool: str = "apptainer"
    brings: tuple[str, ...] = ("home", "tmp")
    uses_slurm: bool = False
    container_per_rank: bool = False
    mounts_by_fuse: bool = True

    def parts(self, step: Step) -> list[Part]:
        return exec_parts(step)

    def environment(self, step: Step) -> dict[str, str]:
        """One node, whatever allocation this shell is in."""
        alone = {
            "SLURM_STEP_NUM_NODES": "1",
            "SLURM_NODEID": "0",
            "SLURM_NTASKS": "1",
            "SLURM_STEP_NUM_TASKS": "1",
            "SLURM_PROCID": "0",
            "SLURM_LOCALID": "0",
        }
        return exec_environment(step) | {
            f"APPTAINERENV_{name}": value for name, value in alone.items()
        }


RUNTIME = Local()
