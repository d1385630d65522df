"""What is kept for a user's projects, each with why it stays: a job or a process may use it.

Tested in tests/integration/test_projects.py.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from hpcstack.launch.jobs import find_states
from hpcstack.launch.record import read_launches
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

    What was used within DAYS stays, and what a launch of this user's names that is not known to have
    ended, or a process of this machine.
    """
    in_use = find_images_in_use(runner, slurm=False) + _list_open_launches(runner)
    now = time.time()
    return {
        kept: explain_kept(kept, in_use, days, now, os.environ)
        for kept in list_packages_of_projects()
    }


def _list_open_launches(runner: Runner) -> str:
    """Return a text of the command lines of all launches that are not known to have ended."""
    open_ones = [
        launch for launch in read_launches() if launch.is_array or not launch.state.is_known
    ]
    known = find_states([one.job_or_array for one in open_ones if one.job], runner)
    lines = []
    for launch in open_ones:
        state = known.get(launch.job_or_array)
        has_ended = state is not None and state.has_ended and not launch.is_array
        if not has_ended:
            lines.append("\n".join(map(str, launch.document.get("argv", ()))))
    return "\n".join(["", *lines])


def clear_packages(judged: dict[KeptPackages, str], progress: Progress) -> None:
    """Remove what is JUDGED not to stay."""
    going = [kept for kept, stays in judged.items() if not stays]
    remove_kept(going, os.environ, progress)


__all__ = ["KeptPackages", "clear_packages", "judge_packages", "list_packages_of_projects"]
