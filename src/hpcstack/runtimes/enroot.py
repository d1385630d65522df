"""Enroot under srun where there is no Pyxis: `enroot start IMAGE.sqsh`, which mounts the image and
unpacks nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcstack.core import data
from hpcstack.runtimes.base import (
    SRUN,
    Part,
    Runtime,
    Step,
    explain_binds,
    list_forced_variables,
    list_kept_variables,
    make_shield,
)

IN = 'cd "$1" && shift && exec "$@"'
START = "on-node/enroot.sh"


@dataclass(frozen=True)
class EnrootRuntime(Runtime):
    name: str = "enroot"
    tool: str = "enroot"
    in_modules: bool = True
    mounts_by_fuse: bool = True

    def parts(self, step: Step) -> list[Part]:
        own = list(list_kept_variables(step))
        out = [SRUN, *step.slurm, *make_shield()]
        out.append(
            Part(
                ("/bin/sh", "-c", data.read_script(START), "enroot", *own, "--"),
                "the task's variables go in; the image is mounted",
            )
        )
        out += [
            Part(("--mount", f"{mount}:none:x-create=auto,bind,rw"), why)
            for mount, why in explain_binds(step)
        ]
        command = step.command
        if str(step.workdir) != "/":
            command = ("/bin/sh", "-c", IN, "in", str(step.workdir), *command)
        return [
            *out,
            Part((str(step.image),), "the image"),
            Part(command, "what each task runs, where it was started"),
        ]

    def environment(self, step: Step) -> dict[str, str]:
        return list_forced_variables(step)


RUNTIME = EnrootRuntime()
