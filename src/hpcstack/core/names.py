"""The names that recipes, site.yaml and the command line share, each list in one place.

What a name means is said where the comment beside its list points.

Tested in tests/unit/launch/test_plan.py.
"""

from __future__ import annotations

WITHOUT_SLURM = "local"  # the runtime that starts no step of Slurm's
RUNTIMES = ("pyxis", "apptainer", "enroot", "podman", "charliecloud", WITHOUT_SLURM)  # runtimes/
MODES = ("torchrun", "deepspeed", "task-per-gpu", "mpi", "plain")  # launch/modes.py
# A script of launchers/in-image/ starts the ranks.
STARTED_IN_IMAGE = ("torchrun", "deepspeed", "task-per-gpu")
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
ADDED = "/opt/hpcstack/with"  # what --with and --project add, in the container: project/added.py
