"""Judge what people type after `--`: refuse what would start ranks twice, and say what to type.

Pure but for looks at the folder.

Tested in tests/unit/launch/test_preflight.py.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError, find_nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

# Programs and Python modules that start ranks themselves, and the mode that does the same
STARTERS = {
    "torchrun": "torchrun",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate": "torchrun",
    "accelerate.commands.launch": "torchrun",
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
    "horovodrun": "mpi",
    "mpirun": "mpi",
    "mpiexec": "mpi",
    "orterun": "mpi",
    "prterun": "mpi",
    "srun": "plain",
}
# What to type for a mode, behind `hpcstack launch -N 2`
OPTIONS = {
    "torchrun": " --nproc-per-node N",
    "deepspeed": " --mode deepspeed",
    "mpi": " --mode mpi",
    "plain": " --mode plain",
}


def check_starter(mode: str, command: tuple[str, ...]) -> None:
    """Raise InputError for a program that starts ranks itself, such as torchrun or mpirun.

    MODE would start it once for every rank or node. Mode plain may start it, but for srun.
    """
    starter, rest = _find_program(command)
    if starter == "accelerate" and rest[:1] != ["launch"]:
        return
    meant = STARTERS.get(starter)
    if meant is None or (mode == "plain" and starter != "srun"):
        return

    again = "on each node" if mode in ("torchrun", "deepspeed") else "for each task"
    hint = f"name the program itself: hpcstack launch -N 2{OPTIONS[meant]} -- train.py"
    if starter != "srun":
        hint += f"; --mode plain runs {starter} as it is, once per node"
    raise InputError(
        f"{starter} starts ranks, and so does mode {mode}: there would be a training of its own "
        f"{again}",
        hint,
        page="choose-a-mode",
    )


def _find_program(command: tuple[str, ...]) -> tuple[str, list[str]]:
    """Return (the program of COMMAND, its arguments); of `python -m MODULE` the module."""
    program = PurePosixPath(command[0]).name
    if program.startswith("python") or program == "-m":
        # Flags of Python's such as -u may stand before -m.
        words = [word for word in command if not re.fullmatch(r"-[a-zA-Z]", word) or word == "-m"]
        at = words.index("-m") + 1 if "-m" in words else len(words)
        if at < len(words):
            return words[at], words[at + 1 :]
    return program, list(command[1:])


def check_step(environ: Mapping[str, str]) -> None:
    """Raise InputError inside a step of several tasks, such as `srun hpcstack launch`.

    Every task would launch all ranks.
    """
    count = environ.get("SLURM_STEP_NUM_TASKS", "")
    if "SLURM_STEP_ID" in environ and count.isdigit() and int(count) > 1:
        raise InputError(
            f"this runs in each of the {count} tasks of an srun, and each would launch all ranks",
            "leave out the srun: `hpcstack launch` in a job's script starts the ranks on all of "
            "its nodes",
            page="write-a-job-script",
        )


def advise(command: tuple[str, ...], workdir: Path) -> str:
    """Return what to type in place of a COMMAND that cannot start in WORKDIR."""
    word = command[0]
    if any(char in word for char in " |&;<>") and not _exists(workdir / word):
        return f"a line for a shell: -- sh -c {shlex.quote(' '.join(command))}"

    program = word
    if word in ("python", "python3", "bash", "sh") and len(command) > 1:
        program = command[1]
    path = workdir / program
    if _exists(path) and not path.resolve().is_relative_to(workdir.resolve()):
        folder = path.resolve().parent
        mount = shlex.quote(f"{folder}:{folder}")
        return f"cd {shlex.quote(str(folder))} first, or --mount {mount}"
    if path.suffix in (".py", ".sh") or "/" in word:
        folder = path.parent
        near = find_nearest(path.name, _list_names(folder))
        if near:
            return f"in {folder} is {near!r}"
        return f"ls {shlex.quote(str(folder))}"
    return "`hpcstack shell` shows what the image has; --with adds a package of pip's"


def _exists(path: Path) -> bool:
    """Whether PATH exists; False for one that cannot be a path, or that may not be looked at."""
    try:
        return path.exists()
    except OSError:
        return False


def _list_names(folder: Path) -> list[str]:
    """Return the names in FOLDER; none where it cannot be read."""
    try:
        return [one.name for one in folder.iterdir()]
    except OSError:
        return []
