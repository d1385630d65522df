"""A step in whose containers Slurm's commands can be typed: `launch --slurm`.

Tested in tests/unit/launch/test_slurm_inside.py and tests/integration/test_slurm_inside.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hpcstack.launch.secrets import is_secret
from hpcstack.runtimes.slurm_inside import COMMANDS, describe_step, keep_clients, wrap_entry
from hpcstack.runtimes.squashfs_mounts import keep_hook

if TYPE_CHECKING:
    from hpcstack.launch.request import LaunchRequest
    from hpcstack.launch.surroundings import Surroundings
    from hpcstack.runtimes import Runtime, Step
    from hpcstack.store.artifact import Artifact


def wants_slurm(artifact: Artifact, around: Surroundings) -> bool:
    """Whether the recipe or the site asks for Slurm's commands, and the launch is one under Slurm."""
    is_asked_for = artifact.slurm or around.site.slurm_inside
    return is_asked_for and not around.here


def runs_slurm_command(request: LaunchRequest) -> bool:
    """Whether the command is one of Slurm's, typed where it reaches Slurm."""
    return bool(request.slurm) and request.mode == "plain" and request.command[0] in COMMANDS


def add_slurm_commands(step: Step, runtime: Runtime, around: tuple[str, ...]) -> Step:
    """Return STEP with Slurm's commands in its containers, and write down how these are started.

    What is typed in there starts in the same image, with the words AROUND before its command.
    """
    bare = replace(step, slurm=(), command=wrap_entry(around))
    about = [word for part in runtime.parts(bare) for word in part.words]
    about += [f"{name}={value}" for name, value in sorted(runtime.environment(bare).items())]
    inside = keep_clients(about)
    mounts = (*step.mounts, inside.mount)
    reasons = {**step.mount_reasons, inside.mount: "srun, squeue and the like, for the image"}
    hook = step.hook
    if runtime.is_plugin_of_srun:
        hook = hook or keep_hook(0)
    given = replace(step, slurm_inside=inside, mounts=mounts, mount_reasons=reasons, hook=hook)

    again = runtime.parts(replace(given, slurm=(), command=wrap_entry(around)))
    words = [word for part in again[1:] for word in part.words]
    environment = {
        name: value
        for name, value in runtime.environment(given).items()
        if not is_secret(name, value)
    }
    describe_step(
        inside, words, environment, step.image_environment, by_srun=runtime.is_plugin_of_srun
    )
    return replace(given, command=wrap_entry(step.command))
