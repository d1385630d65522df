"""Steps as layers: the kernel's overlay over the unpacked base, each finished step kept by its key.

Only what changed runs again. Defaults taken: an overlay that an ordinary user may mount in a user namespace
(`userxattr`, Linux 5.11); no root and no entry in /etc/subuid is needed. What runs a step in the overlay is the
engine's own: a `Starter`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.build.engines.base import EPOCH, Job, squash_argv
from hpcstack.core.errors import StoreError
from hpcstack.core.files import remove_tree, without_links
from hpcstack.core.lease import label, sweep
from hpcstack.render.steps import ALL, HOME, SHARED, BuildStep, step_script
from hpcstack.store.cache import touch

if TYPE_CHECKING:
    from hpcstack.core.process import Completed, Runner

CONTEXT = "context/hpcstack"
UNSHARE = ("unshare", "--user", "--map-root-user", "--mount", "--propagation", "private")
VERSION = "1"  # of how steps are run: part of every step's key
# The overlay that the options $2 say at $1, then the command that follows. Runs as root of its own namespace. mount(8)
# of util-linux 2.39 and newer hands each option to fsconfig(2), which takes 255 bytes, too few for the layers of ten
# steps; the classic mount(2) takes a page.
OVERLAY = 'LIBMOUNT_FORCE_MOUNT2=always mount -t overlay overlay -o "$2" "$1" && shift 2 && exec "$@"'
STEP = "/hpcstack-step"


@dataclass(frozen=True)
class Started:
    """A command in a container: its argv, the variables that it needs, the descriptors that it inherits."""

    argv: list[str]
    environment: dict[str, str]
    keep: tuple[int, ...] = ()


Starter = Callable[[Job, Path, dict[Path, str], list[str]], AbstractContextManager[Started]]
"""(job, the mounted tree, what is bound where, the command) -> how the engine starts it."""


def step_key(before: str, step: BuildStep, files: dict[str, bytes]) -> str:
    """What a step's result depends on: all before it, its lines, the files that it reads."""
    digest = hashlib.sha256(f"{VERSION}\0{before}\0".encode())
    for line in step.lines:
        digest.update(f"{line}\0".encode())
    for path, data in sorted(files.items()):
        digest.update(f"{path}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:24]


@dataclass(frozen=True)
class Layered:
    """An engine's building, with START for how it runs a command in a mounted tree.

    LEFT_BEHIND are places that the engine makes in a tree and that are not the image's: empty ones go.
    """

    name: str
    start: Starter
    left_behind: tuple[str, ...] = ()

    def build(self, job: Job, runner: Runner) -> Completed:
        """Every step in a layer of its own, then all of them packed."""
        with self._layers(job, runner) as (layers, failed):
            if failed:
                return failed
            own: list[Path] = []
            try:
                if failed := self._steps(job, layers, own, runner):
                    return failed
                job.room_to_pack()
                job.progress("packing")
                job.progress.event("phase", name="pack")
                (job.work / "merged").mkdir()
                options = f"ro,userxattr,lowerdir={':'.join(layers)}"
                argv = squash_argv(str(job.work / "merged"), job.output, job.settings.compression)
                return self._overlay(job, options, job.work / "merged", Started(argv, {}), runner)
            finally:
                for path in own:
                    remove_tree(path)

    def _steps(self, job: Job, layers: list[str], own: list[Path], runner: Runner) -> Completed | None:
        """Every step as a layer, newest first in LAYERS. Those of a fresh build are its OWN, and go with it."""
        key, brought = f"{self.name} {layers[0]}", set[str]()
        for number, step in enumerate(job.steps, 1):
            files = _reads(step, job)
            key = step_key(key, step, files)
            files = {path: data for path, data in files.items() if path not in brought}
            brought |= set(files)
            name = f".{label()}{key}-fresh" if job.fresh else key
            if (job.cache / name).is_dir():
                touch(job.cache / name)
                job.progress(f"step {number}/{len(job.steps)} {step.title} (kept from an earlier build)")
            else:
                own += [job.cache / name] if job.fresh else []
                script = step_script(step, number, len(job.steps))
                done = self._step(job, layers, name, script, files, runner)
                if done.status:
                    return done
            layers.insert(0, name)
        return None

    @contextlib.contextmanager
    def _layers(self, job: Job, runner: Runner) -> Iterator[tuple[list[str], Completed | None]]:
        """The unpacked base, made where it is not kept, as the lowest layer."""
        job.cache.mkdir(parents=True, exist_ok=True)
        name = base_folder(job).name
        sweep(job.cache, ".", remove_tree)
        failed = None
        if not (job.cache / name).is_dir():
            job.progress("unpacking the base")
            part = job.cache / f".{label()}{name}"
            argv = ["unsquashfs", "-quiet", "-no-progress", "-no-xattrs", "-dest", str(part), str(job.base)]
            done = runner.logged(argv, job.log)
            failed = done if done.status else None
            if not failed:
                _own(part)
                _put_in_place(part, job.cache / name, runner)
        else:
            touch(job.cache / name)
        yield [name], failed

    def _step(
        self, job: Job, layers: list[str], key: str, script: str, files: dict[str, bytes], runner: Runner
    ) -> Completed:
        """One step in a layer of its own, which is kept under KEY when it has succeeded."""
        part = job.cache / f".{label()}{key}"
        upper = part / "upper"
        for path, data in files.items():
            target = upper / HOME.lstrip("/") / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            target.chmod(0o755 if data.startswith(b"#!") else 0o644)
        upper.mkdir(parents=True, exist_ok=True)
        (part / "work").mkdir()
        (part / "merged").mkdir()
        (job.work / "step").mkdir(exist_ok=True)
        (job.work / "step/step.sh").write_text(script)
        options = f"userxattr,lowerdir={':'.join(layers)},upperdir={part.name}/upper,workdir={part.name}/work"
        command = ["/bin/bash", f"{STEP}/step.sh"]
        binds = {job.work / "step": STEP}
        try:
            done = self._inside(job, options, part / "merged", binds, command, runner)
            if not done.status:
                for left in (STEP.lstrip("/"), *self.left_behind):
                    if not any(os.path.lexists(job.cache / layer / left) for layer in layers):
                        _drop(upper, upper / left)
                os.utime(upper, (EPOCH, EPOCH))  # the root of the image, which the line above has changed
                _put_in_place(upper, job.cache / key, runner)
            return done
        finally:
            remove_tree(part)

    def _inside(
        self, job: Job, options: str, merged: Path, binds: dict[Path, str], command: list[str], runner: Runner
    ) -> Completed:
        """COMMAND in a container whose tree is the overlay that OPTIONS say."""
        with self.start(job, merged, binds, command) as how:
            return self._overlay(job, options, merged, how, runner)

    def _overlay(self, job: Job, options: str, merged: Path, how: Started, runner: Runner) -> Completed:
        """ARGV in a namespace where the overlay is mounted; its layers are named from the cache on, to be short."""
        whole = [*UNSHARE, "sh", "-c", OVERLAY, "sh", str(merged), options, *how.argv]
        return runner.logged(whole, job.log, env=how.environment, cwd=job.cache, on_line=job.on_line, keep=how.keep)

    def run_inside(self, script: str, folder: Path, job: Job, runner: Runner) -> Completed:
        with self._layers(job, runner) as (layers, failed):
            if failed:
                return failed
            command = ["/bin/bash", f"{HOME}/{script}"]
            (job.work / "home").mkdir()
            (job.work / "merged").mkdir()
            (job.work / "upper").mkdir()
            (job.work / "over").mkdir()
            options = f"userxattr,lowerdir={layers[0]},upperdir={job.work / 'upper'},workdir={job.work / 'over'}"
            return self._inside(job, options, job.work / "merged", {folder: HOME}, command, runner)


def scratch(job: Job) -> Path:
    """What a step finds at /tmp and /var/tmp: neither the machine's nor the image's."""
    folder = job.work / "scratch"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o1777)  # in a workspace that is the builder's alone
    return folder


def base_folder(job: Job) -> Path:
    """Where the base of JOB lies unpacked."""
    return job.cache / ("base-" + hashlib.sha256(job.base.name.encode()).hexdigest()[:16])


def _reads(step: BuildStep, job: Job) -> dict[str, bytes]:
    """{path below HOME: content} of what this step has to find there."""
    top = job.context / CONTEXT
    if ALL in step.reads:
        paths = [str(path.relative_to(top)) for path in sorted(top.rglob("*")) if path.is_file()]
    else:
        paths = [path for path in (*SHARED, *step.reads) if (top / path).is_file()]
    return {path: (top / path).read_bytes() for path in paths}


def _own(root: Path) -> None:
    """Every file below ROOT the builder's own, as an ordinary user has it: root would keep owners without an id here.

    Modes are said again, as a change of owner takes set-user-id away.
    """
    if os.geteuid():
        return
    for path in (root, *root.rglob("*")):
        info = path.lstat()
        if info.st_uid or info.st_gid:
            os.lchown(path, 0, 0)
            if not stat.S_ISLNK(info.st_mode):
                path.chmod(stat.S_IMODE(info.st_mode))


def _put_in_place(part: Path, final: Path, runner: Runner) -> None:
    """PART under its final name, on disk as it is; another builder may have been faster with the same."""
    runner.output(["sync", "--file-system", str(part)], timeout=600)
    try:
        part.rename(final)
    except OSError:
        if not final.is_dir():
            raise
        remove_tree(part)


def _drop(top: Path, path: Path) -> None:
    """PATH, below TOP, gone, if it is an empty file or folder; the folder around it keeps its time."""
    with contextlib.suppress(OSError, StoreError):
        without_links(top, path.parent)  # the step may have put a link there, which leads out of the image
        around, about = path.parent.stat(), path.lstat()
        if stat.S_ISDIR(about.st_mode):
            path.rmdir()
        elif stat.S_ISREG(about.st_mode) and about.st_size == 0:
            path.unlink()
        os.utime(path.parent, ns=(around.st_atime_ns, around.st_mtime_ns))


def overlay_refused(runner: Runner) -> str:
    """Why this kernel lets ordinary users mount no overlay; empty where it does."""
    with tempfile.TemporaryDirectory(prefix="hpcstack-") as name:
        for folder in ("a", "b", "merged"):
            (Path(name) / folder).mkdir()
        options = f"ro,userxattr,lowerdir={name}/a:{name}/b"
        done = runner.output([*UNSHARE, "sh", "-c", OVERLAY, "sh", f"{name}/merged", options, "true"])
    if done.status:
        return "this kernel does not let ordinary users mount an overlay (Linux 5.11 or newer, with user namespaces)"
    return ""
