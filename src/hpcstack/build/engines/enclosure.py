"""Where programs of a base and of a recipe run: one enclosure a build, the same for every engine
(images/enclose.py).

An engine's own container lies within it. So whatever gets out of that finds the system's programs,
read-only, and this build's folders, and nothing else of the machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
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
    from hpcstack.core.process import Completed, Fed, Runner

READY_S = 60
TOOLS = ("mksquashfs", "unsquashfs", "squashfuse", "squashfuse_ll")
REFUSED = 125  # images/enclose.py's exit status where it could start nothing
SYSTEM = ("usr", "bin", "sbin", "opt")  # folders of / that each enclosure shows
HOLD = ("sh", "-c", ': >"$1"; exec cat >/dev/null', "sh")
MOST_LINKS = 40  # path_resolution(7)
BUNDLED = "*/bin/squashfuse_ll"  # below libexec


class NoEnclosure(BuildError):
    """This machine lets none be made."""


class EnclosureEnded(BuildError):
    """An enclosure was made, and its first process has failed in it; the message is its last line."""


@dataclass(frozen=True)
class Enclosure:
    """One that is there: PROCESS is its first one."""

    process: int

    def enter(self, *, offline: bool = False) -> list[str]:
        """The beginning of the argv of a command in it, which follows `--`.

        OFFLINE: without a network.
        """
        argv = [*_python("enclose.py"), "enter", "--process", str(self.process), *_as_user()]
        return [*argv, *(["--offline"] if offline else [])]


def find_script(name: str) -> str:
    """The path of images/NAME."""
    return str(data.find_data_folder("images") / name)


def _python(name: str) -> list[str]:
    return [sys.executable, "-I", find_script(name)]


def supervise_command(argv: list[str]) -> list[str]:
    """ARGV of a program that runs in no enclosure: it and all that it starts end with us
    (images/supervise.py).
    """
    return [*_python("supervise.py"), *argv]


def builders_id() -> int | None:
    """Who runs the steps of a build: None for whoever builds; of the machine's root an id of its
    own.

    Root of a user namespace (in a rootless container, say) is no root of the machine.
    """
    return ROOT_BECOMES if is_machines_root() else None


def _as_user() -> list[str]:
    number = builders_id()
    return [] if number is None else ["--uid", str(number)]


def give_to_builder(top: Path) -> None:
    """All of TOP, a folder of this build's that nobody else can enter, belongs to who runs the
    steps.
    """
    number = builders_id()
    if number is None:
        return
    for visit in descriptors.walk_folders(top, anyones=True):
        os.fchown(visit.descriptor, number, number)
        for name in visit.others:
            os.chown(name, number, number, dir_fd=visit.descriptor, follow_symlinks=False)


def open_to_builder(work: Path) -> None:
    """Who runs the steps may enter WORK and write its folders, but makes and removes nothing in
    WORK itself: what root writes there by name, its logs among it, lies where no step ever puts a
    link.
    """
    number = builders_id()
    if number is None:
        return
    with descriptors.hold_folder(work) as descriptor:
        os.fchown(descriptor, -1, number)
        os.fchmod(descriptor, 0o710)
    for entry in work.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            give_to_builder(entry)


def work_folder(job: Job, name: str) -> Path:
    """The folder NAME of JOB's own, which belongs to who runs its steps."""
    folder = job.work / name
    folder.mkdir(exist_ok=True)
    give_folder_to_builder(folder)
    return folder


def give_folder_to_builder(folder: Path) -> None:
    """The FOLDER itself belongs to who runs the steps."""
    number = builders_id()
    if number is not None:
        with descriptors.hold_folder(folder) as descriptor:
            os.fchown(descriptor, number, number)


def prepare_output(job: Job) -> None:
    """The file of JOB's image is there, empty, for a program in the enclosure to write."""
    descriptors.write_file(job.output, b"", 0o644, on_disk=False)
    number = builders_id()
    if number is not None:
        os.chown(job.output, number, number, follow_symlinks=False)


def make_cache(folder: Path) -> None:
    """FOLDER, where layers are kept, is there, and closed to all but the builder: a step may have
    left a file in it that takes on its owner's rights.
    """
    descriptors.make_folder(folder, 0o700)
    give_folder_to_builder(folder)
    with descriptors.hold_folder(folder) as descriptor:
        if os.fstat(descriptor).st_mode & 0o7077:
            os.fchmod(descriptor, 0o700)


def list_shown(job: Job, runner: Runner) -> list[str]:
    """What of the machine an enclosure shows beside the system's folders: Python, our scripts, the
    programs that mount and pack, with their libraries.
    """
    shown = [
        Path(sys.executable),
        Path(sys.prefix),
        Path(sys.base_prefix),
        data.find_data_folder("images"),
    ]
    tools = [runner.which(name) for name in TOOLS if runner.has(name)]
    for tool in (*tools, *bundled_squashfuses()):
        shown += with_libraries(Path(tool).resolve())
    return list(dict.fromkeys([*_outside_of_system(shown), str(job.base)]))


def _outside_of_system(paths: list[Path]) -> list[str]:
    """Those of PATHS that no enclosure shows by itself, and what they lead to: a link is shown as
    the link it is, and many a site has one in the place of the folder that holds hpcstack.
    """
    found = [one for path in paths for one in _chain_of_links(path)]
    return [str(path) for path in found if path.parts[1] not in SYSTEM]


def _chain_of_links(path: Path) -> list[Path]:
    """PATH; where it is a link, what it leads to as well, link by link."""
    chain = [path]
    while chain[-1].is_symlink() and len(chain) < MOST_LINKS:
        link = chain[-1]
        chain.append(Path(os.path.normpath(link.parent.resolve() / link.readlink())))
    return chain


def with_libraries(tool: Path) -> list[Path]:
    """What TOOL needs to run, as far as its place says: it, and the libraries beside its folder
    (conda's and Spack's prefixes have them there). Never the folder around it, which may be a home.
    """
    beside = [tool.parents[1] / name for name in ("lib", "lib64")] if len(tool.parts) > 2 else []
    return [tool, *(folder for folder in beside if folder.is_dir())]


def bundled_squashfuses() -> list[str]:
    """What Apptainer brings to mount a squashfs, in folders of its own that are in no PATH."""
    own = [
        Path(found).resolve().parents[1] / "libexec"
        for name in ("apptainer", "singularity")
        if (found := shutil.which(name))
    ]
    return [str(path) for place in (*own, Path("/usr/libexec")) for path in place.glob(BUNDLED)]


@contextlib.contextmanager
def open_enclosure(job: Job, runner: Runner, command: tuple[str, ...] = ()) -> Iterator[Enclosure]:
    """An enclosure for JOB, as long as the block runs.

    COMMAND is its first process: it gets one word more, the path of a file to make when it is
    ready, and ends when its input does. NoEnclosure where there is none; EnclosureEnded where
    COMMAND ends before it is ready.
    """
    own = work_folder(
        job, "begun"
    )  # where the first process says that it is ready: all else in job.work is not its own
    ready, number, log = own / "ready", job.work / "enclosure.pid", job.work / "enclosure.log"
    for path in (ready, number, log):
        path.unlink(missing_ok=True)
    argv = _words_to_make(
        job.work / "enclosure", number, list_shown(job, runner), [job.work, job.layers]
    )
    open_to_builder(job.work)
    with runner.fed(
        [*argv, "--", *(command or HOLD), str(ready)], log, clean=True, wait=False
    ) as held:
        _wait(held, ready, number)
        yield Enclosure(int(number.read_text()))


def _words_to_make(root: Path, number: Path, shown: list[str], writable: list[Path]) -> list[str]:
    """The beginning of the argv of an enclosure's first process, which follows `--`. The enclosure
    is mounted at ROOT, the first process's number is written to NUMBER, and what is SHOWN cannot be
    written.
    """
    argv = [*_python("enclose.py"), "make", *_as_user(), "--root", str(root), "--pid", str(number)]
    for path in shown:
        argv += ["--ro", path]
    for folder in dict.fromkeys(writable):
        argv += ["--rw", str(folder)]
    return argv


def try_enclosed(folder: Path, command: list[str], runner: Runner) -> Completed:
    """COMMAND as who runs the steps, in an enclosure that shows FOLDER, one of ours, and is gone
    when it ends.
    """
    give_to_builder(folder)
    with tempfile.TemporaryDirectory(prefix="hpcstack-") as own:
        shown = _outside_of_system([data.find_data_folder("images")])
        argv = _words_to_make(Path(own, "root"), Path(own, "pid"), shown, [folder])
        return runner.output([*argv, "--", *command])


def _wait(held: Fed, ready: Path, number: Path) -> None:
    """Until HELD makes READY and writes its NUMBER: two processes, of which either may be the
    first.
    """
    until = time.monotonic() + READY_S
    while not (ready.exists() and number.exists() and number.read_text()):
        status = held.process.poll()
        if status is not None or time.monotonic() > until:
            held.process.kill()
            said = [line for line in held.finish().tail if not line.startswith("> ")]
            why = said[-1] if said else "no word why"
            if status == REFUSED:
                raise NoEnclosure(why, "hpcstack doctor")
            raise EnclosureEnded(why)
        time.sleep(0.005)
