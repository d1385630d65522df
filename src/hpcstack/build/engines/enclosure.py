"""Where programs of a base and of a recipe run: one enclosure a build, the same for every engine (images/enclose.py).

An engine's own container lies within it. So whatever gets out of that finds the system's programs, read-only, and this
build's folders, and nothing else of the machine.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core import data, descriptors
from hpcstack.core.errors import BuildError
from hpcstack.core.namespaces import ROOT_BECOMES, is_machines_root

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.build.engines.base import Job
    from hpcstack.core.process import Fed, Runner

READY_S = 60
TOOLS = ("apptainer", "singularity", "enroot", "bwrap", "squashfuse", "squashfuse_ll")
SYSTEM = ("usr", "bin", "sbin", "opt")  # folders of / that each enclosure shows
HOLD = ("sh", "-c", ': >"$1"; exec cat >/dev/null', "sh")


class NoEnclosure(BuildError):
    """This machine lets none be made."""


@dataclass(frozen=True)
class Enclosure:
    """One that is there: PROCESS is its first one."""

    process: int

    def enter(self, *, offline: bool = False) -> list[str]:
        """The beginning of the argv of a command in it, which follows `--`. OFFLINE: without a network."""
        argv = [*_python("enclose.py"), "enter", "--process", str(self.process), *_as_user()]
        return [*argv, *(["--offline"] if offline else [])]


def script(name: str) -> str:
    """The path of images/NAME."""
    return str(data.folder("images") / name)


def _python(name: str) -> list[str]:
    return [sys.executable, "-I", script(name)]


def builders_id() -> int | None:
    """Who runs the steps of a build: None for whoever builds; of the machine's root an id of its own.

    Root of a user namespace (in a rootless container, say) is no root of the machine.
    """
    return ROOT_BECOMES if is_machines_root() else None


def _as_user() -> list[str]:
    number = builders_id()
    return [] if number is None else ["--uid", str(number)]


def give_to_builder(top: Path) -> None:
    """All of TOP, a folder of this build's that nobody else can enter, belongs to who runs the steps."""
    number = builders_id()
    if number is None:
        return
    for visit in descriptors.walk(top, anyones=True):
        os.fchown(visit.descriptor, number, number)
        for name in visit.others:
            os.chown(name, number, number, dir_fd=visit.descriptor, follow_symlinks=False)


def give_folder_to_builder(folder: Path) -> None:
    """The FOLDER itself belongs to who runs the steps."""
    number = builders_id()
    if number is not None:
        with descriptors.holding(folder) as descriptor:
            os.fchown(descriptor, number, number)


def make_cache(folder: Path) -> None:
    """FOLDER, where layers are kept, is there, and closed to all but the builder: a step may have left a file in it
    that takes on its owner's rights."""
    descriptors.make_folder(folder, 0o700)
    give_folder_to_builder(folder)
    with descriptors.holding(folder) as descriptor:
        if os.fstat(descriptor).st_mode & 0o7077:
            os.fchmod(descriptor, 0o700)


def list_shown(job: Job, runner: Runner) -> list[str]:
    """What of the machine an enclosure shows beside the system's folders: Python, our scripts, engines' programs."""
    tools = [Path(runner.which(name)) for name in TOOLS if runner.has(name)]
    folders = [Path(sys.prefix), Path(sys.base_prefix), data.folder("images")]
    folders += [tool.resolve().parent for tool in tools]
    outside = [str(one) for one in folders if one.parts[1] not in SYSTEM]
    return list(dict.fromkeys([*outside, str(job.base)]))


@contextlib.contextmanager
def enclosed(job: Job, runner: Runner, command: tuple[str, ...] = ()) -> Iterator[Enclosure]:
    """An enclosure for JOB, as long as the block runs. COMMAND is its first process: it makes the file `ready` in
    job.work when it is, and ends when its input does. NoEnclosure where there is none.
    """
    ready, number, log = job.work / "ready", job.work / "enclosure.pid", job.work / "enclosure.log"
    for path in (ready, number, log):
        path.unlink(missing_ok=True)
    argv = [*_python("enclose.py"), "make", *_as_user()]
    argv += ["--root", str(job.work / "enclosure"), "--pid", str(number)]
    for shown in list_shown(job, runner):
        argv += ["--ro", shown]
    for folder in dict.fromkeys((job.work, job.cache)):
        argv += ["--rw", str(folder)]
    give_to_builder(job.work)
    with runner.fed([*argv, "--", *(command or (*HOLD, str(ready)))], log, clean=True, wait=False) as held:
        _wait(held, ready, number)
        yield Enclosure(int(number.read_text()))


def _wait(held: Fed, ready: Path, number: Path) -> None:
    """NoEnclosure unless HELD makes READY and writes its NUMBER: two processes, of which either may be the first."""
    until = time.monotonic() + READY_S
    while not (ready.exists() and number.exists() and number.read_text()):
        if held.process.poll() is not None or time.monotonic() > until:
            held.process.kill()
            said = [line for line in held.finish().tail if not line.startswith("> ")]
            raise NoEnclosure(said[-1] if said else "no word why", "hpcstack doctor")
        time.sleep(0.005)
