"""Enroot under srun, where there is no Pyxis: `enroot start IMAGE.sqsh` mounts the image.

Nothing is unpacked.

Tested in tests/unit/launch/test_plan.py and tests/integration/test_launching.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcstack.core import data
from hpcstack.runtimes.base import (
    OF_A_SHELL,
    SRUN,
    Part,
    Runtime,
    Step,
    explain_binds,
    list_forced_variables,
    list_hook_binds,
    list_hook_variables,
    list_kept_variables,
    make_shield,
    start_helper,
)

IN = 'cd "$1" && shift && exec "$@"'  # enroot start has no option for the working directory
START = "on-node/enroot.sh"


@dataclass(frozen=True)
class EnrootRuntime(Runtime):
    """srun starts one `enroot start` for each task, under a small shell script."""

    name: str = "enroot"
    tool: str = "enroot"
    refused_signs: str = OF_A_SHELL
    in_modules: bool = True
    uses_hooks: bool = True
    mounts_by_fuse: bool = True

    def parts(self, step: Step) -> list[Part]:
        out = [SRUN, *step.slurm, *start_helper(step), *make_shield()]

        # The script hands on the task's variables, except those named before `--`: for them the
        # image's own value counts.
        own = list(list_kept_variables(step))
        start = ("/bin/sh", "-c", data.read_script(START), "enroot", *own, "--")
        out.append(Part(start, "the task's variables go in; the image is mounted"))

        for mount, why in explain_binds(step, list_hook_binds(step)):
            out.append(Part(("--mount", f"{mount}:none:x-create=auto,bind,rw"), why))
        out.append(Part((str(step.image),), "the image"))

        command = step.command
        if str(step.workdir) != "/":
            command = ("/bin/sh", "-c", IN, "in", str(step.workdir), *command)
        out.append(Part(command, "what each task runs, where it was started"))
        return out

    def environment(self, step: Step) -> dict[str, str]:
        return list_forced_variables(step) | list_hook_variables(step)


RUNTIME = EnrootRuntime()
