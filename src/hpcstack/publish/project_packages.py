"""What is kept for a user's projects, each with why it stays: a job or a process may use it.

Tested in tests/integration/test_projects.py.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from hpcstack.project.packed import KeptPackages, explain_kept, list_kept_packages, remove_kept
from hpcstack.publish.gc import find_images_in_use

if TYPE_CHECKING:
    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress


def list_packages_of_projects() -> list[KeptPackages]:
    """Return what takes room for the user's projects, the last used first."""
    return list_kept_packages(os.environ)


def judge_packages(days: float, runner: Runner) -> dict[KeptPackages, str]:
    """Return {what is kept: why it stays, empty where it may go}.

    What was used within DAYS stays. Raise SlurmError where Slurm does not say which jobs there are.
    """
    in_use = find_images_in_use(runner)
    now = time.time()
    return {
        kept: explain_kept(kept, in_use, days, now, os.environ)
        for kept in list_packages_of_projects()
    }


def clear_packages(judged: dict[KeptPackages, str], progress: Progress) -> None:
    """Remove what is JUDGED not to stay."""
    going = [kept for kept, stays in judged.items() if not stays]
    remove_kept(going, os.environ, progress)


__all__ = ["KeptPackages", "clear_packages", "judge_packages", "list_packages_of_projects"]
