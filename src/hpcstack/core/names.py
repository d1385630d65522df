"""The names that recipes, site.yaml and the command line share, each list in one place.

What a name means is said where the comment beside its list points.
"""

from __future__ import annotations

RUNTIMES = (  # a module each: runtimes/
    "pyxis",
    "apptainer",
    "enroot",
    "podman",
    "charliecloud",
    "local",
)
MODES = ("torchrun", "deepspeed", "task-per-gpu", "mpi", "plain")  # launch/modes.py
STARTED_IN_IMAGE = MODES[:3]  # a script of launchers/in-image/ starts the ranks
STAGES = ("none", "copy", "sbcast")  # launch/staging.py
TEMPLATES = (  # a file each: launchers/to-copy/templates/
    "ddp",
    "deepspeed",
    "mpi",
    "jupyter",
    "tensorboard",
    "array",
    "checkpoint-requeue",
    "monitoring",
)
