"""Apptainer under srun, for clusters without Pyxis: `srun ... apptainer exec image.sqsh`.

Tested in tests/unit/launch/test_plan.py and tests/integration/test_launching.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
    start_helper,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PREFIX, NO_EVAL = "APPTAINERENV_", "APPTAINER_NO_EVAL"
REASONS = {NO_EVAL: "a variable's value is text, not shell"}
IMAGE_SUFFIXES = (".sqsh", ".sif", ".img")
# Variables that Apptainer composes itself from the host's values and the image's.
OWN = ("PATH", "LD_LIBRARY_PATH", "HOME", "SHELL")


def exec_parts(step: Step) -> list[Part]:
    """Return the words of `apptainer exec` that run the command of STEP."""
    why = "the image is run as it lies there: nothing is unpacked"
    out = [Part(("apptainer", "--quiet", "exec"), why)]

    if step.gpus:
        why = "the nodes have GPUs: their driver goes into the container"
        out.append(make_option("--nv", why=why))
    if not step.home:
        why = "asked for: nothing of the home directory, but for what is mounted"
        out.append(make_option("--no-home", why=why))

    images = {one.mount: f"{one.mount}:image-src=/,ro" for one in step.squashfs}
    out += [Part(("--bind", mount), why) for mount, why in explain_binds(step, images)]
    if str(step.workdir) != "/":
        out.append(Part(("--pwd", str(step.workdir)), "where it was started"))
    out.append(Part((str(step.image),), "the image"))
    out.append(Part(step.command, "what each task runs"))
    return out


def exec_environment(step: Step) -> dict[str, str]:
    """Return the APPTAINERENV_NAME variables of STEP: Apptainer sets NAME in the container to them.

    Left alone, Apptainer lets a variable of the host, say CUDA_HOME, win over the image's. Here the
    image wins, as under Pyxis: each of its variables that the host has too is set to the image's
    value.
    """
    image = {
        name: value
        for name, value in list_kept_variables(step).items()
        if name in os.environ and name not in OWN
    }
    variables = image | list_forced_variables(step)
    given = {f"{PREFIX}{name}": value for name, value in variables.items()}

    # A value is plain text: Apptainer must not run the `$(...)` in it.
    return {NO_EVAL: "1"} | given


@dataclass(frozen=True)
class ApptainerRuntime(Runtime):
    """srun starts one `apptainer exec` for each task."""

    name: str = "apptainer"
    tool: str = "apptainer"
    brings: tuple[str, ...] = ("home", "tmp")
    finds_driver: bool = True
    in_modules: bool = True
    in_scripts: bool = True
    mounts_by_fuse: bool = True
    variable_prefix: str = PREFIX
    reasons: Mapping[str, str] = field(default_factory=lambda: REASONS)

    def parts(self, step: Step) -> list[Part]:
        return [SRUN, *step.slurm, *start_helper(step), *make_shield(), *exec_parts(step)]

    def environment(self, step: Step) -> dict[str, str]:
        return exec_environment(step)

    def find_second_start(self, argv: Sequence[str]) -> list[str]:
        begin = next((n for n, word in enumerate(argv) if word == self.tool), len(argv))
        # The image is the first of its kind that is no mount: what follows it is the user's command.
        images = (
            n
            for n in range(begin + 1, len(argv))
            if argv[n].endswith(IMAGE_SUFFIXES) and argv[n - 1] != "--bind"
        )
        image = next(images, None)
        return [] if image is None else list(argv[begin : image + 1])


RUNTIME = ApptainerRuntime()
