"""What people type after `--`: what would start the ranks twice, and what to type in place of what
is not there. Pure but for looks at the folder.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

STARTERS = {
    "torchrun": "torchrun", "deepspeed": "deepspeed", "accelerate": "torchrun", "horovodrun": "mpi", "mpirun": "mpi",
    "mpiexec": "mpi", "orterun": "mpi", "prterun": "mpi", "srun": "plain", "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun", "accelerate.commands.launch": "torchrun",
    "deepspeed.launcher.runner": "deepspeed",
}  # fmt: skip
OPTIONS = {
    "torchrun": " --nproc-per-node N",
    "deepspeed": " --mode deepspeed",
    "mpi": " --mode mpi",
    "plain": " --mode plain",
}


def check_starter(mode: str, command: tuple[str, ...]) -> None:
    """InputError for a program that starts ranks itself, where MODE starts it once for every rank
    or node.
    """
    starter, *rest = (PurePosixPath(command[0]).name, *command[1:])
    if starter.startswith("python") or starter == "-m":
        words = [word for word in command if not re.fullmatch(r"-[a-zA-Z]", word) or word == "-m"]
        at = words.index("-m") + 1 if "-m" in words else len(words)
        starter, rest = (words[at], words[at + 1 :]) if at < len(words) else (starter, rest)
    if starter == "accelerate" and rest[:1] != ["launch"]:
        return
    meant = STARTERS.get(starter)
    if meant is None or (mode == "plain" and starter != "srun"):
        return
    again = "on each node" if mode in ("torchrun", "deepspeed") else "for each task"
    raise InputError(
        (
            f"{starter} starts ranks, and so does mode {mode}: there would be a training of its "
            f"own {again}"
        ),
        f"name the program itself: hpcstack launch -N 2{OPTIONS[meant]} -- train.py"
        + ("" if starter == "srun" else f"; --mode plain runs {starter} as it is, once per node"),
    )


def check_step(environ: Mapping[str, str]) -> None:
    """InputError in a step of several tasks, such as `srun hpcstack launch`: every task would
    launch all of it.
    """
    count = environ.get("SLURM_STEP_NUM_TASKS", "")
    if "SLURM_STEP_ID" in environ and count.isdigit() and int(count) > 1:
        raise InputError(
            f"this runs in each of the {count} tasks of an srun, and each would launch all ranks",
            (
                "leave out the srun: `hpcstack launch` in a job's script starts the ranks on all "
                "of its nodes"
            ),
        )


def advise(command: tuple[str, ...], workdir: Path) -> str:
    """What to type in place of a COMMAND that cannot start."""
    word = command[0]
    if any(char in word for char in " |&;<>") and not _exists(workdir / word):
        return f"a line for a shell: -- sh -c {shlex.quote(' '.join(command))}"
    path = workdir / (
        command[1] if word in ("python", "python3", "bash", "sh") and len(command) > 1 else word
    )
    if _exists(path) and not path.resolve().is_relative_to(workdir.resolve()):
        folder = path.resolve().parent
        return (
            f"cd {shlex.quote(str(folder))} first, or --mount {shlex.quote(f'{folder}:{folder}')}"
        )
    if path.suffix in (".py", ".sh") or "/" in word:
        folder = path.parent
        names = _names(folder)
        if near := did_you_mean(path.name, names):
            return near.strip(" ()").replace("did you mean", f"in {folder} is")[:-1]
        return f"ls {shlex.quote(str(folder))}"
    return "`hpcstack shell` shows what the image has; --with adds a package of pip's"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _names(folder: Path) -> list[str]:
    try:
        return [one.name for one in folder.iterdir()]
    except OSError:
        return []
