"""The enclosure in which programs of a base and of a recipe run (images/enclose.py).

Each build has one, whatever its engine. The container of a step lies within it. So a program that
breaks out of its container finds the system's programs, read-only, and this build's folders, and
nothing else of the machine.
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
from hpcstack.core.process import SYSTEM_PATH, ReadFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpcstack.build.engines.base import Job
    from hpcstack.core.process import Completed, Fed, Runner

READY_S = 60  # seconds until the first process of an enclosure must be ready
TOOLS = ("mksquashfs", "unsquashfs", "squashfuse", "squashfuse_ll")
# How images/enclose.py begins to say so, too.
NO_ENCLOSURE = "this machine lets no enclosure be made"
MOST_MEMORY = 4 << 30  # bytes of address space of a program that evaluates what others wrote
REFUSED = 125  # exit status of images/enclose.py where it could start nothing
SYSTEM = ("usr", "bin", "sbin", "opt")  # folders of / that each enclosure shows
# The first process of an enclosure that has nothing to serve: it makes the file that says that it
# is ready, and lives until its input ends.
HOLD = ("sh", "-c", ': >"$1"; exec cat >/dev/null', "sh")
MOST_LINKS = 40  # path_resolution(7)
BUNDLED = "*/bin/squashfuse_ll"  # below libexec


class NoEnclosure(BuildError):
    """This machine does not let an enclosure be made."""

    page = "allow-user-namespaces"


class EnclosureEnded(BuildError):
    """The first process of an enclosure has failed; the message is its last line of output."""


@dataclass(frozen=True)
class Enclosure:
    """An enclosure that exists; `process` is the id of its first process."""

    process: int

    def enter(self, *, offline: bool = False) -> list[str]:
        """Return the beginning of an argv that runs a command in the enclosure.

        Options of `enclose.py enter`, `--` and the command follow. OFFLINE: without a network.
        """
        argv = [*_run_script("enclose.py"), "enter", "--process", str(self.process), *_as_user()]
        if offline:
            argv.append("--offline")
        return argv


def find_script(name: str) -> str:
    """Return the path of images/NAME."""
    return str(data.find_data_folder("images") / name)


def _run_script(name: str) -> list[str]:
    """Return the argv of images/NAME, run by this Python without anybody's modules but its own."""
    return [sys.executable, "-I", "-S", find_script(name)]


def supervise_command(argv: list[str]) -> list[str]:
    """Return the argv that runs ARGV, a program outside any enclosure, under images/supervise.py.

    When hpcstack ends, the program and all that it has started end with it.
    """
    return [*_run_script("supervise.py"), *argv]


def find_builders_id() -> int | None:
    """Return the user id that runs the steps of a build; None for the user who builds.

    The machine's root does not run them itself, but under an id of its own. Root of a user
    namespace, in a rootless container say, is not the machine's root.
    """
    if is_machines_root():
        return ROOT_BECOMES
    return None


def _as_user() -> list[str]:
    """Return the option of enclose.py for `find_builders_id`."""
    number = find_builders_id()
    if number is None:
        return []
    return ["--uid", str(number)]


def give_to_builder(top: Path) -> None:
    """Give all of TOP to the user who runs the steps.

    TOP must be a folder of this build that nobody else can enter.
    """
    number = find_builders_id()
    if number is None:
        return

    for visit in descriptors.walk_folders(top, anyones=True):
        os.fchown(visit.descriptor, number, number)
        for name in visit.others:
            os.chown(name, number, number, dir_fd=visit.descriptor, follow_symlinks=False)


def open_to_builder(work: Path) -> None:
    """Let the user who runs the steps enter WORK and write to its folders, but not to WORK itself.

    Root writes files there by name, logs for example. No step can put a link in their place.
    """
    number = find_builders_id()
    if number is None:
        return

    with descriptors.hold_folder(work) as descriptor:
        os.fchown(descriptor, -1, number)
        os.fchmod(descriptor, 0o710)
    for entry in work.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            give_to_builder(entry)


def work_folder(job: Job, name: str) -> Path:
    """Make the folder NAME in JOB's own, for the user who runs the steps, and return it."""
    folder = job.work / name
    folder.mkdir(exist_ok=True)
    give_folder_to_builder(folder)
    return folder


def give_folder_to_builder(folder: Path) -> None:
    """Give FOLDER itself, not what is in it, to the user who runs the steps."""
    number = find_builders_id()
    if number is not None:
        with descriptors.hold_folder(folder) as descriptor:
            os.fchown(descriptor, number, number)


def prepare_output(job: Job) -> None:
    """Make the empty file of JOB's image, which a program in the enclosure will write."""
    descriptors.write_file(job.output, b"", 0o644, on_disk=False)
    number = find_builders_id()
    if number is not None:
        os.chown(job.output, number, number, follow_symlinks=False)


def make_cache(folder: Path) -> None:
    """Make FOLDER, where layers are kept, and close it to all but the builder.

    A step may have left a file there that runs with its owner's rights (set-user-id).
    """
    descriptors.make_folder(folder, 0o700)
    give_folder_to_builder(folder)
    with descriptors.hold_folder(folder) as descriptor:
        if os.fstat(descriptor).st_mode & 0o7077:
            os.fchmod(descriptor, 0o700)


def list_shown(job: Job, runner: Runner) -> list[str]:
    """Return the paths that an enclosure for JOB shows read-only besides the system's folders.

    They are Python, our scripts, the programs that mount and pack with their libraries, and the
    base.
    """
    shown = [
        Path(sys.executable),
        Path(sys.prefix),
        Path(sys.base_prefix),
        data.find_data_folder("images"),
    ]
    tools = [runner.which(name) for name in TOOLS if runner.has(name)]
    for tool in (*tools, *list_bundled_squashfuses()):
        shown += with_libraries(Path(tool).resolve())
    return list(dict.fromkeys([*_outside_of_system(shown), str(job.base)]))


def _outside_of_system(paths: list[Path]) -> list[str]:
    """Return those of PATHS, with what they link to, that no enclosure shows by itself.

    A symbolic link is shown as a link, so its target must be shown, too. Many a site reaches the
    folder that holds hpcstack through one.
    """
    found = [one for path in paths for one in _chain_of_links(path)]
    return [str(path) for path in found if path.parts[1] not in SYSTEM]


def _chain_of_links(path: Path) -> list[Path]:
    """Return PATH, and where it is a symbolic link, each path that it leads to, link by link."""
    chain = [path]
    while chain[-1].is_symlink() and len(chain) < MOST_LINKS:
        link = chain[-1]
        chain.append(Path(os.path.normpath(link.parent.resolve() / link.readlink())))
    return chain


def with_libraries(tool: Path) -> list[Path]:
    """Return TOOL, and the folders lib and lib64 beside its own where they exist.

    The prefixes of conda and Spack have a tool's libraries there. The folder around them is never
    shown: it may be a home.
    """
    if len(tool.parts) <= 2:
        return [tool]
    beside = [tool.parents[1] / name for name in ("lib", "lib64")]
    return [tool, *(folder for folder in beside if folder.is_dir())]


def list_bundled_squashfuses() -> list[str]:
    """Return the squashfuse programs that Apptainer brings in folders that are on no PATH."""
    folders = []
    for name in ("apptainer", "singularity"):
        found = shutil.which(name)
        if found:
            folders.append(Path(found).resolve().parents[1] / "libexec")
    folders.append(Path("/usr/libexec"))
    return [str(path) for folder in folders for path in folder.glob(BUNDLED)]


@contextlib.contextmanager
def open_enclosure(job: Job, runner: Runner, command: tuple[str, ...] = ()) -> Iterator[Enclosure]:
    """Make an enclosure for JOB, which exists for as long as the block runs.

    COMMAND is its first process. It gets one more word, the path of a file that it must make when
    it is ready, and must end when its input does. Raise NoEnclosure where none can be made, and
    EnclosureEnded where COMMAND ends, or takes READY_S seconds, before it is ready.
    """
    # The first process may write to a folder of its own, and to nothing else in job.work itself.
    own = work_folder(job, "begun")
    ready = own / "ready"
    number = job.work / "enclosure.pid"
    log = job.work / "enclosure.log"
    for path in (ready, number, log):
        path.unlink(missing_ok=True)

    shown = list_shown(job, runner)
    make = _words_to_make(job.work / "enclosure", number, shown, [job.work, job.layers])
    open_to_builder(job.work)
    argv = [*make, "--", *(command or HOLD), str(ready)]
    with runner.fed(argv, log, clean=True, wait=False) as held:
        _wait_until_ready(held, ready, number)
        yield Enclosure(int(number.read_text()))


def run_strangers_code(
    command: list[str],
    own: Path,
    runner: Runner,
    *,
    shown: list[Path],
    in_place_of: Mapping[Path, Path],
    most: int,
    timeout: int,
) -> bytes:
    """Run COMMAND, which evaluates what others wrote, and return what it prints.

    It runs in an enclosure of its own, without a network, and where root calls as nobody
    (`find_builders_id`). It can write nothing, and can read the system's programs, the paths SHOWN,
    and IN_PLACE_OF {path: the folder of ours that it finds there}. OWN is a folder of ours for what
    an enclosure needs.

    Raise NoEnclosure where none can be made, BuildError where COMMAND fails, prints more than MOST
    bytes, or does not end within TIMEOUT seconds.
    """
    paths = _outside_of_system([data.find_data_folder("images"), *shown])
    make = _words_to_make(own / "root", own / "pid", paths, [])
    for place, source in in_place_of.items():
        # Links in the system's folders are seen in there as they are: their targets are taken.
        seen_as = place.resolve() if place.parts[1] in SYSTEM else place
        make += ["--at", str(source), str(seen_as)]

    # `timeout` is the enclosure's parent, with which it ends; prlimit bounds what it can take.
    limits = ["timeout", "--signal=KILL", str(timeout), "prlimit", f"--as={MOST_MEMORY}"]
    argv = [*limits, *make, "--offline", "--", "env", "-i", f"PATH={SYSTEM_PATH}", *command]
    try:
        with runner.read(argv) as output:
            printed = bytearray()
            while block := output.read(1 << 16):
                printed += block
                if len(printed) > most:
                    raise BuildError(f"{command[0]} has printed more than {most} bytes")
        return bytes(printed)
    except ReadFailed as error:
        why = error.said[-1] if error.said else error.message.splitlines()[0]
        if why.startswith(NO_ENCLOSURE):
            raise NoEnclosure(why, "hpcstack doctor") from None
        raise BuildError(f"{command[0]} has failed: {why}") from None


def _words_to_make(root: Path, number: Path, shown: list[str], writable: list[Path]) -> list[str]:
    """Return the beginning of an argv that makes an enclosure; `--` and its first process follow.

    The enclosure is mounted at ROOT. The first process's id is written to the file NUMBER. SHOWN
    are paths that can be read in it, and WRITABLE those that can be written.
    """
    argv = [*_run_script("enclose.py"), "make", *_as_user()]
    argv += ["--root", str(root), "--pid", str(number)]
    for path in shown:
        argv += ["--ro", path]
    for folder in dict.fromkeys(writable):
        argv += ["--rw", str(folder)]
    return argv


def try_enclosed(folder: Path, command: list[str], runner: Runner) -> Completed:
    """Run COMMAND in an enclosure of its own that shows FOLDER, and return how it ended.

    FOLDER is given to the user who runs the steps; COMMAND runs as that user.
    """
    give_to_builder(folder)
    with tempfile.TemporaryDirectory(prefix="hpcstack-") as own:
        shown = _outside_of_system([data.find_data_folder("images")])
        argv = _words_to_make(Path(own, "root"), Path(own, "pid"), shown, [folder])
        return runner.output([*argv, "--", *command])


def _wait_until_ready(held: Fed, ready: Path, number: Path) -> None:
    """Wait until the file READY exists and NUMBER has been written.

    Two processes of HELD do that, and either may be the first.
    """
    until = time.monotonic() + READY_S
    while not (ready.exists() and number.exists() and number.read_text()):
        status = held.process.poll()
        if status is not None or time.monotonic() > until:
            held.process.kill()
            said = [line for line in held.finish().tail if not line.startswith("> ")]
            why = said[-1] if said else "it gave no reason"
            if status == REFUSED:
                raise NoEnclosure(why, "hpcstack doctor")
            raise EnclosureEnded(why)
        time.sleep(0.005)
