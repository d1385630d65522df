"""Pyxis: `srun --container-image=/absolute/image.sqsh`.

A bare name would go to Docker Hub, so the path is absolute; the image's variables win over the
host's unless --container-env names them.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcstack.core.errors import InputError
from hpcstack.runtimes.base import (
    SRUN,
    Part,
    Runtime,
    Step,
    list_binds,
    list_forced_variables,
    make_option,
)


def is_offered(srun_help: str) -> bool:
    """Whether `srun --help` shows that the SPANK plugin is loaded."""
    return "--container-image" in srun_help


@dataclass(frozen=True)
class Pyxis(Runtime):
    name: str = "pyxis"
    tool: str = "enroot"
    container_per_rank: bool = False  # one a node
    in_modules: bool = True
    in_scripts: bool = True

    def parts(self, step: Step) -> list[Part]:
        out = [SRUN, *step.slurm]
        out.append(
            make_option(
                "--container-image", step.image, "the image; a bare name would be Docker Hub's"
            )
        )
        out.append(
            make_option(
                "--no-container-mount-home",
                why="what lies in the home directory is not the image's",
            )
        )
        if any(sign in str(step.workdir) for sign in "$`\"'\\ "):
            raise InputError(
                f"{step.workdir}: Enroot takes quotes, blanks and $ in a path for shell",
                "start elsewhere",
            )
        if mounts := list_binds(step):
            reasons = [
                "the site's, the user's, this folder",
                *dict.fromkeys(step.mount_reasons.values()),
            ]
            out.append(make_option("--container-mounts", ",".join(mounts), "; ".join(reasons)))
        if str(step.workdir) != "/":
            out.append(make_option("--container-workdir", step.workdir, "where it was started"))
        if names := sorted(list_forced_variables(step)):
            out.append(
                make_option("--container-env", ",".join(names), "these win over the image's own")
            )
        return [*out, Part(step.command, "what each task runs")]

    def environment(self, step: Step) -> dict[str, str]:
        return list_forced_variables(step)


RUNTIME = Pyxis()
