"""Charliecloud under srun: `ch-run IMAGE.sqsh` mounts the image in a namespace of each task's own.

Charliecloud 0.33 and newer can make the folder of a mount although the image is read-only
(--write-fake). An older one can mount only over folders that the image has.
https://charliecloud.io/latest/ch-run.html

Tested in tests/unit/launch/test_plan.py and tests/integration/test_statuses.py.
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
    start_helper,
)
from hpcstack.runtimes.squashfs_mounts import list_placeholders, list_words

# What on-node/charliecloud.sh runs in place of its line RUN.
RUN = 'ch-run --env-no-expand "$@" <&3 &'
# With a grace time, ch-run ignores the ranks' signals and so goes on serving the image. The command
# would inherit that, so UNSHIELDED gives it the default again.
SHIELDED = "(trap '' USR1 USR2 && exec ch-run --env-no-expand \"$@\" <&3) &"
UNSHIELDED = ("env", "--default-signal=USR1,USR2")  # coreutils 8.31 and newer


def make_squashfs_parts(step: Step) -> list[Part]:
    """Return the words that stand before ch-run where STEP mounts squashfs files."""
    if not step.squashfs:
        return []
    apart = ("/bin/sh", "-c", data.read_script("on-node/apart.sh"), "apart")
    around = ("/bin/sh", "-c", data.read_script("on-node/squashfs-around.sh"), "around")
    words = (*list_words(step.squashfs), "--")
    return [
        Part(apart, "a mount namespace of the task's own"),
        Part((*around, *words), "squashfs files, mounted there"),
    ]


@dataclass(frozen=True)
class Charliecloud(Runtime):
    """srun starts one `ch-run` for each task, under a small shell script."""

    name: str = "charliecloud"
    tool: str = "ch-run"
    # Not "home": ch-run's own --home mounts it at /home/$USER, not where it is on the host.
    brings: tuple[str, ...] = ("tmp",)

    def parts(self, step: Step) -> list[Part]:
        if step.gpus:
            raise InputError(
                "Charliecloud does not bind the driver: no GPU would be seen",
                "--runtime apptainer",
                page="choose-a-runtime",
            )

        run = RUN
        command = step.command
        if step.grace:
            run = SHIELDED
            command = (*UNSHIELDED, *step.command)
        script = data.read_script("on-node/charliecloud.sh").replace("\nRUN\n", f"\n{run}\n")

        out = [SRUN, *step.slurm, *start_helper(step), *make_squashfs_parts(step)]
        why = "the image is mounted; the task's variables are there"
        out.append(Part(("/bin/sh", "-c", script, "ch-run"), why))

        for name, value in list_kept_variables(step).items():
            out.append(make_option("--set-env", f"{name}={value}", "the image's own"))
        if step.mounted_home:
            # Without it HOME is /root, and what a library writes there is lost with the container.
            home = f"HOME={step.mounted_home}"
            out.append(make_option("--set-env", home, "the home directory, which is mounted"))

        folders = list_placeholders(step.squashfs)
        out += [make_option("--bind", mount, why) for mount, why in explain_binds(step, folders)]
        out.append(make_option("--cd", step.workdir, "where it was started"))
        out.append(Part((str(step.image), "--"), "the image"))
        out.append(Part(command, "what each task runs"))
        return out

    def environment(self, step: Step) -> dict[str, str]:
        return list_forced_variables(step)


RUNTIME = Charliecloud()
