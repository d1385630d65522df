"""Pyxis: `srun --container-image=/absolute/image.sqsh`.

A bare name would go to Docker Hub, so the path is absolute; the image's variables win over the host's unless
--container-env names them.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcstack.errors import InputError
from hpcstack.runtimes.base import Step, binds, forced


def offered(srun_help: str) -> bool:
    """Whether `srun --help` shows that the SPANK plugin is loaded."""
    return "--container-image" in srun_help


@dataclass(frozen=True)
class Pyxis:
    name: str = "pyxis"

    def argv(self, step: Step) -> list[str]:
        line = ["srun", "--export=ALL", *step.slurm, f"--container-image={step.image}", "--no-container-mount-home"]
        if any(sign in str(step.workdir) for sign in "$`\"'\\ "):
            raise InputError(
                f"{step.workdir}: Enroot takes quotes, blanks and $ in a path for shell", "start elsewhere"
            )
        if mounts := binds(step):
            line.append(f"--container-mounts={','.join(mounts)}")
        if str(step.workdir) != "/":
            line.append(f"--container-workdir={step.workdir}")
        if names := sorted(forced(step)):
            line.append(f"--container-env={','.join(names)}")
        return [*line, *step.command]

    def environment(self, step: Step) -> dict[str, str]:
        return forced(step)


RUNTIME = Pyxis()
