"""Charliecloud under srun: `ch-run IMAGE.sqsh`, which mounts the image in a namespace of the task's
own.

0.33 and newer can make a mount's folder in an image that nobody can write (--write-fake); with an
older one only what the image has can be mounted over. https://charliecloud.io/latest/ch-run.html
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcstack.core import data
from hpcstack.core.errors import InputError
from hpcstack.runtimes.base import (
    SRUN,
    Part,
    Runtime,
    Step,
    explain_binds,
    list_forced_variables,
    list_kept_variables,
    make_option,
)

RUN = 'ch-run --env-no-expand "$@" <&3 &'
# With a grace time: what ignores a signal goes on serving the image, and the command has it as
# usual again.
SHIELDED = "(trap '' USR1 USR2 && exec ch-run --env-no-expand \"$@\" <&3) &"
UNSHIELDED = ("env", "--default-signal=USR1,USR2")  # coreutils 8.31 and newer


@dataclass(frozen=True)
class Charliecloud(Runtime):
    name: str = "charliecloud"
    tool: str = "ch-run"
    # Not the home directory: its own --home mounts it at /home/$USER, and not where it is.
    brings: tuple[str, ...] = ("tmp",)

    def parts(self, step: Step) -> list[Part]:
        if step.gpus:
            raise InputError(
                "Charliecloud does not bind the driver: no GPU would be seen", "--runtime apptainer"
            )
        out = [SRUN, *step.slurm]
        start = data.read_script("on-node/charliecloud.sh").replace(
            "\nRUN\n", f"\n{SHIELDED if step.grace else RUN}\n"
        )
        command = (*UNSHIELDED, *step.command) if step.grace else step.command
        out.append(
            Part(
                ("/bin/sh", "-c", start, "ch-run"),
                "the image is mounted; the task's variables are there",
            )
        )
        out += [
            make_option("--set-env", f"{name}={value}", "the image's own")
            for name, value in list_kept_variables(step).items()
        ]
        if (
            step.mounted_home
        ):  # unasked it says /root, where what a library writes is gone with the container
            out.append(
                make_option(
                    "--set-env",
                    f"HOME={step.mounted_home}",
                    "the home directory, which is mounted",
                )
            )
        out += [make_option("--bind", mount, why) for mount, why in explain_binds(step)]
        out.append(make_option("--cd", step.workdir, "where it was started"))
        return [
            *out,
            Part((str(step.image), "--"), "the image"),
            Part(command, "what each task runs"),
        ]

    def environment(self, step: Step) -> dict[str, str]:
        return list_forced_variables(step)


RUNTIME = Charliecloud()
