"""Apptainer under srun, for clusters without Pyxis: `srun ... apptainer exec image.sqsh`, with --nv
on GPU nodes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from hpcstack.runtimes.base import (
    SRUN,
    Part,
    Runtime,
    Step,
    explain_binds,
    list_forced_variables,
    list_kept_variables,
    make_option,
    make_shield,
)

OWN = ("PATH", "LD_LIBRARY_PATH", "HOME", "SHELL")  # Apptainer makes these itself, from both sides


def exec_parts(step: Step) -> list[Part]:
    """`apptainer exec` of the step's command."""
    out = [
        Part(
            ("apptainer", "--quiet", "exec"),
            "the image is run as it lies there: nothing is unpacked",
        )
    ]
    if step.gpus:
        why = "the nodes have GPUs: their driver goes into the container"
        out.append(make_option("--nv", why=why))
    if not step.home:
        why = "asked for: nothing of the home directory, but for what is mounted"
        out.append(make_option("--no-home", why=why))
    out += [Part(("--bind", mount), why) for mount, why in explain_binds(step)]
    if str(step.workdir) != "/":
        out.append(Part(("--pwd", str(step.workdir)), "where it was started"))
    return [*out, Part((str(step.image),), "the image"), Part(step.command, "what each task runs")]


def exec_environment(step: Step) -> dict[str, str]:
    """Apptainer gives the container what is set as APPTAINERENV_NAME, above the image's own value.

    Left alone, it lets the host's CUDA_HOME, say, win over the image's; here the image wins, as
    under Pyxis.
    """
    image = {
        name: value
        for name, value in list_kept_variables(step).items()
        if name in os.environ and name not in OWN
    }
    given = {
        f"APPTAINERENV_{name}": value
        for name, value in (image | list_forced_variables(step)).items()
    }
    return {"APPTAINER_NO_EVAL": "1"} | given  # a value is text: `$(...)` in it is not run


@dataclass(frozen=True)
class ApptainerRuntime(Runtime):
    name: str = "apptainer"
    tool: str = "apptainer"
    brings: tuple[str, ...] = ("home", "tmp")
    finds_driver: bool = True
    in_modules: bool = True
    in_scripts: bool = True
    mounts_by_fuse: bool = True

    def parts(self, step: Step) -> list[Part]:
        return [SRUN, *step.slurm, *make_shield(), *exec_parts(step)]

    def environment(self, step: Step) -> dict[str, str]:
        return exec_environment(step)


RUNTIME = ApptainerRuntime()
