"""Apptainer under srun, for clusters without Pyxis: `srun ... apptainer exec image.sqsh`, with --nv on GPU nodes."""

from __future__ import annotations

import os
from dataclasses import dataclass

from hpcstack.runtimes.base import Step, binds, forced

OWN = ("PATH", "LD_LIBRARY_PATH", "HOME", "SHELL")  # Apptainer makes these itself, from both sides


def exec_argv(step: Step) -> list[str]:
    """`apptainer exec` of the step's command."""
    line = ["apptainer", "--quiet", "exec"]
    if step.gpus:
        line.append("--nv")
    for mount in binds(step):
        line += ["--bind", mount]
    if str(step.workdir) != "/":
        line += ["--pwd", str(step.workdir)]
    return [*line, str(step.image), *step.command]


def exec_environment(step: Step) -> dict[str, str]:
    """Apptainer gives the container what is set as APPTAINERENV_NAME, above the image's own value.

    Left alone, it lets the host's CUDA_HOME, say, win over the image's; here the image wins, as under Pyxis.
    """
    image = {name: value for name, value in step.image_environment.items() if name in os.environ and name not in OWN}
    given = {f"APPTAINERENV_{name}": value for name, value in (image | forced(step)).items()}
    return {"APPTAINER_NO_EVAL": "1"} | given  # a value is text: `$(...)` in it is not run


@dataclass(frozen=True)
class Apptainer:
    name: str = "apptainer"

    def argv(self, step: Step) -> list[str]:
        return ["srun", "--export=ALL", *step.slurm, *exec_argv(step)]

    def environment(self, step: Step) -> dict[str, str]:
        return exec_environment(step)


RUNTIME = Apptainer()
