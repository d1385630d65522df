"""For runtimes that hand a container nothing of the task's environment, or all of it: what each variable is to be.

The rule is Pyxis's: the image's own variables win over the host's, but for those that the step forces; all else of the
task's environment, Slurm's and MPI's variables among it, is there.
"""

from __future__ import annotations

from hpcstack.core.characters import VARIABLE
from hpcstack.runtimes.base import Step, forced


def kept(step: Step) -> dict[str, str]:
    """The image's variables that the step does not force."""
    found = sorted(step.image_environment.items())
    return {name: value for name, value in found if VARIABLE.fullmatch(name) and name not in forced(step)}
