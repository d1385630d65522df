"""Run each step as a layer of the kernel's overlay over the mounted base, and keep it by its key.

A later build runs only the steps that have changed, and those after them.

An ordinary user may mount such an overlay in a user namespace (`userxattr`, Linux 5.11), so neither
root nor an entry in /etc/subuid is needed. A step runs in a container of hpcstack's own
(`container.py`). squashfuse_ll mounts the base in the same enclosure; where it cannot, the base is
unpacked (`lowest.py`). The image is the base with the layers spliced to it (`finish.py`).

Where a kernel or a filesystem takes no layers, the steps run in an unpacked copy of the base. Then
no step is kept, and the copy is packed.

Tested in tests/unit/build/test_engines.py and tests/unit/build/test_lowest.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.build.engines.base import EPOCH, BuildResult, Job, require_success, squash_argv
from hpcstack.build.engines.container import list_container_words
from hpcstack.build.engines.enclosure import (
    Enclosure,
    find_script,
    give_to_builder,
    make_cache,
    prepare_output,
    try_enclosed,
    work_folder,
)
from hpcstack.build.engines.finish import Layers, Packing, finish_image, name_packed, to_read_all
from hpcstack.build.engines.guarded import (
    CHECK,
    COMPARE,
    PLACES,
    STEP,
    compare_script,
    has_no_conda,
    list_touched_places,
    remember_script,
)
from hpcstack.build.engines.lowest import (
    Lowest,
    find_base_folder,
    give_modes,
    in_base,
    open_lowest,
    open_unpacked,
    put_base_in_place,
)
from hpcstack.build.engines.machine import explain_refused_overlay
from hpcstack.core import descriptors
from hpcstack.core.bounds import MAX_DEPTH
from hpcstack.core.errors import BuildError, StoreError
from hpcstack.core.files import remove_tree, without_links
from hpcstack.core.lease import make_label
from hpcstack.render.steps import ALL, HOME, SHARED, BuildStep, render_step_script
from hpcstack.store.cache import mark_used

if TYPE_CHECKING:
    from hpcstack.core.process import Completed, Runner

CONTEXT = "context/hpcstack"
VERSION = "6"  # of how steps are run: part of every step's key
# Places in a tree at which a step finds things of ours. They do not belong in the image.
LEFT_BEHIND = (STEP.lstrip("/"), "mnt")
COMMAND = ["/bin/bash", f"{STEP}/step.sh"]
# Seconds by which a step's beginning is set back. The times of files lag behind the clock, by up to
# one tick of the kernel, and what is placed for a step right after it must count as newer.
TICK = 0.1


def compute_step_key(before: str, step: BuildStep, files: dict[str, bytes]) -> str:
    """Return the key of STEP, a digest of all that its result depends on.

    That is BEFORE, the key of the step before it; its lines; whether it has a network; and FILES,
    which it reads.
    """
    digest = hashlib.sha256(f"{VERSION}\0{before}\0".encode())
    digest.update(b"network\0" if step.network else b"")
    for line in step.lines:
        digest.update(f"{line}\0".encode())
    for path, data in sorted(files.items()):
        digest.update(f"{path}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:24]


@dataclass(frozen=True)
class Layered:
    """The build by layers; the engine's name is part of every step's key."""

    name: str

    def build(self, job: Job, runner: Runner) -> BuildResult:
        """Run every step in a layer of its own, then make one image of base and layers.

        Where layers are not possible, run the steps in an unpacked copy of the base.
        """
        try:
            why = explain_refused_overlay(runner)
            if why:
                raise NoLayers(why)
            layered = with_layers(job, runner)
        except NoLayers as error:
            return self._build_unpacked(job, error.message, runner)
        return self._build_layers(layered, runner)

    def _build_layers(self, job: Job, runner: Runner) -> BuildResult:
        """Run every step in a layer of its own, then make one image of base and layers."""
        own: list[Path] = []  # layers that no later build may use
        packing = Packing(job, runner)
        try:
            with open_lowest(job, runner) as base, contextlib.closing(packing):
                layers = [base.layer]
                self._run_steps(job, base, layers, own, packing, runner)
                merged = work_folder(job, "merged")

                def run_merged(argv: list[str]) -> Completed:
                    options = f"ro,userxattr,lowerdir={':'.join(layers)}"
                    return _run_merged(job, base.enclosure, options, merged, argv, runner)

                return finish_image(job, Layers(run_merged, merged), packing)
        finally:
            for path in own:
                remove_tree(path)
                name_packed(path).unlink(missing_ok=True)

    def _build_unpacked(self, job: Job, why: str, runner: Runner) -> BuildResult:
        """Run every step in one tree, then pack the whole tree.

        This is for kernels and filesystems that take no layers; WHY says which.
        """
        if job.settings.splice == "always" and not job.options.squash:
            raise BuildError(
                f"the image cannot be spliced: {why}", "build.splice: auto in site.yaml packs it"
            )
        job.progress(
            f"no step is kept, and the whole image is packed anew: steps run in an unpacked copy "
            f"of the base ({why})"
        )
        with open_unpacked(job, runner) as (tree, enclosure):
            brought: set[str] = set()
            for number, step in enumerate(job.steps, 1):
                files = _read_files(step, job)
                files = {path: data for path, data in files.items() if path not in brought}
                brought |= set(files)
                lines = render_step_script(step, number, len(job.steps))
                self._step_in_tree(job, tree, enclosure, lines, files, step, runner)

            job.progress.event("phase", name="pack")
            prepare_output(job)
            argv = squash_argv(str(tree), job.output, job.settings.compression)
            require_success(_run_enclosed(job, enclosure, ["--", *argv], runner, offline=True))
        return BuildResult(job.output)

    def _step_in_tree(
        self,
        job: Job,
        tree: Path,
        enclosure: Enclosure,
        lines: str,
        files: dict[str, bytes],
        step: BuildStep,
        runner: Runner,
    ) -> None:
        """Run STEP, whose script is LINES, in TREE itself. Raise ProgramFailed where it fails."""
        began = _mark_beginning(job)
        _place_files(tree, files)
        give_to_builder(tree / HOME.lstrip("/"))

        offline = job.options.offline or not step.network
        binds = {make_step_folder(job, lines): STEP}
        require_success(_run_in_tree(job, tree, enclosure, binds, COMMAND, runner, offline=offline))

        _check_depth(tree)
        for left in LEFT_BEHIND:
            if not in_base(job, left):
                _drop(tree, tree / left)

        require_success(reset_times(tree, began, runner))
        os.utime(tree, (EPOCH, EPOCH))

    def _run_steps(
        self,
        job: Job,
        base: Lowest,
        layers: list[str],
        own: list[Path],
        packing: Packing,
        runner: Runner,
    ) -> None:
        """Run every step that has no layer yet, and put the layers into LAYERS, newest first.

        A fresh build's layers go into OWN, too: they are removed after it. Raise ProgramFailed
        where a step fails.
        """
        key = f"{self.name} {find_base_folder(job).name}"
        brought: set[str] = set()  # paths of files that a layer below has

        for number, step in enumerate(job.steps, 1):
            files = _read_files(step, job)
            key = compute_step_key(key, step, files)
            files = {path: data for path, data in files.items() if path not in brought}
            brought |= set(files)

            name = key
            if job.options.fresh:
                name = f".{make_label()}{key}-fresh"

            if (job.layers / name).is_dir():
                mark_used(job.layers / name)
                job.progress(
                    f"step {number}/{len(job.steps)} {step.title} (kept from an earlier build)"
                )
            else:
                if job.options.fresh:
                    own.append(job.layers / name)
                # Somebody may have removed a layer and left the squashfs of it.
                name_packed(job.layers / name).unlink(missing_ok=True)

                lines = render_step_script(step, number, len(job.steps))
                below = [job.layers / layer for layer in layers[:-1]]  # the last one is the base
                # The last step lists conda's packages: it need not search the tree for any.
                if ALL in step.reads and has_no_conda(job.base, below):
                    lines = f"export HPCSTACK_NO_CONDA=yes\n{lines}"
                self._run_step(job, base, layers, name, lines, files, step, runner)

            layers.insert(0, name)
            packing.add(job.layers / name)

    def _run_step(
        self,
        job: Job,
        base: Lowest,
        layers: list[str],
        key: str,
        lines: str,
        files: dict[str, bytes],
        step: BuildStep,
        runner: Runner,
    ) -> None:
        """Run STEP, whose script is LINES, in a layer of its own, and keep that under KEY.

        A step that must change no library of the base is checked: if its layer shows that it may
        have, the libraries before and after it are compared. Raise ProgramFailed where the step or
        that check fails; no layer is kept then.
        """
        guarded = CHECK in step.lines
        offline = job.options.offline or not step.network
        began = _mark_beginning(job)

        part = job.layers / f".{make_label()}{key}"
        upper = part / "upper"
        descriptors.make_new_folder(part, 0o755)
        upper.mkdir()
        _place_files(upper, files)
        for name in ("work", "merged"):
            (part / name).mkdir()
            (part / name).chmod(0o755)
        give_modes(job, layers, upper)
        for name in ("upper", "work", "merged"):
            give_to_builder(part / name)

        # Layers are named relative to the cache: a mount's options hold one page (4 KiB).
        lower = f"userxattr,lowerdir={':'.join(layers)}"
        options = f"{lower},upperdir={part.name}/upper,workdir={part.name}/work"
        merged = part / "merged"
        try:
            binds = {make_step_folder(job, lines): STEP}
            require_success(
                self._run_in_overlay(
                    job, base, options, merged, binds, COMMAND, runner, offline=offline
                )
            )

            below = [job.layers / layer for layer in layers[:-1]]
            touched = list_touched_places(upper, job.base, below) if guarded else []
            if touched:
                require_success(
                    self._compare_libraries(job, base, options, part, lines, touched, runner)
                )

            _check_depth(upper)
            for left in LEFT_BEHIND:
                in_a_layer = any(os.path.lexists(job.layers / layer / left) for layer in layers)
                if not in_a_layer and not in_base(job, left):
                    _drop(upper, upper / left)

            require_success(reset_times(upper, began, runner))
            # The root of the image, which resetting the times has just changed.
            os.utime(upper, (EPOCH, EPOCH))
            put_base_in_place(upper, job.layers / key, runner)
        finally:
            remove_tree(part)

    def _compare_libraries(
        self,
        job: Job,
        base: Lowest,
        options: str,
        part: Path,
        lines: str,
        places: list[bytes],
        runner: Runner,
    ) -> Completed:
        """Compare the libraries at PLACES without a step's layer with those in it.

        LINES are the step's script, and OPTIONS those of its overlay. Return how the comparison
        ended: with a failure where the step has changed a library.
        """
        # An overlay of the same layers below, with an upper folder that holds only what lib.sh
        # needs: that is how the step found the tree.
        below = options.partition(",upperdir=")[0]
        for name in ("unused", "unused-work", "below"):
            (part / name).mkdir()
            (part / name).chmod(0o755)
        top = job.context / CONTEXT
        _place_files(part / "unused", {path: (top / path).read_bytes() for path in SHARED})
        for name in ("unused", "unused-work", "below"):
            give_to_builder(part / name)
        before = f"{below},upperdir={part.name}/unused,workdir={part.name}/unused-work"

        shared = make_step_folder(job, remember_script(lines))
        (shared / PLACES).write_bytes(b"".join(place + b"\0" for place in places))
        (shared / COMPARE).write_text(compare_script(lines))
        give_to_builder(shared)
        binds = {shared: STEP}

        done = self._run_in_overlay(
            job, base, before, part / "below", binds, COMMAND, runner, offline=True
        )
        if done.status:
            return done
        command = ["/bin/bash", f"{STEP}/{COMPARE}"]
        return self._run_in_overlay(
            job, base, options, part / "merged", binds, command, runner, offline=True
        )

    def _run_in_overlay(
        self,
        job: Job,
        base: Lowest,
        options: str,
        merged: Path,
        binds: dict[Path, str],
        command: list[str],
        runner: Runner,
        *,
        offline: bool,
    ) -> Completed:
        """Run COMMAND in a container whose root is an overlay with OPTIONS, mounted at MERGED."""
        words = [
            *_overlay_words(job, options, merged),
            *list_container_words(job, merged, binds, command, sees_files=True),
        ]
        return _run_enclosed(job, base.enclosure, words, runner, offline=offline)

    def run_inside(self, name: str, folder: Path, job: Job, runner: Runner) -> Completed:
        """Run the script NAME of FOLDER inside the base of JOB (Engine.run_inside).

        What it changes in the base is in a layer that nothing keeps, or in a copy of the base where
        layers are not possible.
        """
        command = ["/bin/bash", f"{HOME}/{name}"]
        binds = {folder: HOME}
        work_folder(job, "home")
        merged = work_folder(job, "merged")
        upper = work_folder(job, "upper")
        over = work_folder(job, "over")
        give_to_builder(folder)

        why = explain_refused_overlay(runner)
        if why:
            job.progress(f"in an unpacked copy of the base: {why}")
            with open_unpacked(job, runner) as (tree, enclosure):
                return _run_in_tree(
                    job, tree, enclosure, binds, command, runner, offline=job.options.offline
                )

        with open_lowest(job, runner) as base:
            options = f"userxattr,lowerdir={base.layer},upperdir={upper},workdir={over}"
            return self._run_in_overlay(
                job, base, options, merged, binds, command, runner, offline=job.options.offline
            )


def _check_depth(upper: Path) -> None:
    """Raise BuildError where a step has nested folders of UPPER deeper than an image may."""
    for visit in descriptors.walk_folders(upper, anyones=True):
        if visit.path.count("/") >= MAX_DEPTH:
            raise BuildError(
                f"a step made folders more than {MAX_DEPTH} deep in one another, below "
                f"/{visit.path[:80]}",
                "an image may not contain them: look at what the step runs",
            )


def _overlay_words(job: Job, options: str, merged: Path) -> list[str]:
    """Return the words of `enclose.py enter` that mount an overlay with OPTIONS at MERGED.

    Relative paths in OPTIONS start from the cache of layers.
    """
    return ["--folder", str(job.layers), "--overlay", options, str(merged)]


def _run_merged(
    job: Job, enclosure: Enclosure, options: str, merged: Path, argv: list[str], runner: Runner
) -> Completed:
    """Run ARGV, a program of this machine, where an overlay with OPTIONS is mounted at MERGED."""
    words = [*_overlay_words(job, options, merged), "--", *argv]
    return _run_enclosed(job, enclosure, words, runner, offline=True)


def _run_in_tree(
    job: Job,
    tree: Path,
    enclosure: Enclosure,
    binds: dict[Path, str],
    command: list[str],
    runner: Runner,
    *,
    offline: bool,
) -> Completed:
    """Run COMMAND in a container whose root is TREE itself."""
    words = list_container_words(job, tree, binds, command, sees_files=False)
    return _run_enclosed(job, enclosure, words, runner, offline=offline)


def _run_enclosed(
    job: Job, enclosure: Enclosure, words: list[str], runner: Runner, *, offline: bool
) -> Completed:
    """Run `enclose.py enter` with WORDS in ENCLOSURE; its output goes to JOB's log."""
    argv = [*enclosure.enter(offline=offline), *words]
    return runner.logged(argv, job.log, cwd=job.layers, on_line=job.on_line, clean=True)


def _mark_beginning(job: Job) -> Path:
    """Return a file whose mtime is the beginning of a step, for `reset_times`."""
    began = job.work / "began"
    began.touch()
    beginning = time.time() - TICK
    os.utime(began, (beginning, beginning))
    return began


def _place_files(top: Path, files: dict[str, bytes]) -> None:
    """Write FILES, {path below HOME: content}, into the tree TOP.

    What a base or a step has put in their place is replaced. No link is followed.
    """
    for path, data in files.items():
        target = top / HOME.lstrip("/") / path
        without_links(top, target.parent)
        descriptors.make_folder(target.parent)
        mode = 0o755 if data.startswith(b"#!") else 0o644
        descriptors.write_file(target, data, mode, on_disk=False)


def reset_times(upper: Path, began: Path, runner: Runner) -> Completed:
    """Set the time of all in UPPER that is newer than the file BEGAN, and of HOME, to EPOCH.

    For engines without layers, images/lib.sh does that at a build's end. With layers it would copy
    each file of an earlier layer up into the last one.
    """
    own = ("-newer", str(began), "-o", "-path", f"{upper}{HOME}*")
    touch = ("-exec", "touch", "-h", "-d", f"@{EPOCH}", "{}", "+")
    return runner.output([*to_read_all(), "find", str(upper), "(", *own, ")", *touch], timeout=3600)


def make_step_folder(job: Job, lines: str) -> Path:
    """Make a folder with the script LINES as step.sh, and return it.

    Each start gets a new one. An earlier step may have left a link in its own, in the place of its
    script say, and nothing may be written through that.
    """
    folder = Path(tempfile.mkdtemp(prefix="step-", dir=job.work))
    (folder / "step.sh").write_text(lines)
    give_to_builder(folder)
    return folder


def _read_files(step: BuildStep, job: Job) -> dict[str, bytes]:
    """Return {path below HOME: content} of what STEP must find there."""
    top = job.context / CONTEXT
    if ALL in step.reads:
        paths = [str(path.relative_to(top)) for path in sorted(top.rglob("*")) if path.is_file()]
    else:
        paths = [path for path in (*SHARED, *step.reads) if (top / path).is_file()]
    return {path: (top / path).read_bytes() for path in paths}


def _drop(top: Path, path: Path) -> None:
    """Remove PATH, below TOP, if it is an empty file or folder.

    The folder around it keeps its mode and its time. Where it cannot be removed, it stays.
    """
    with contextlib.suppress(OSError, StoreError):
        without_links(top, path.parent)  # a step may have put a link there that leads elsewhere
        around = path.parent.stat()
        about = path.lstat()

        path.parent.chmod(stat.S_IMODE(around.st_mode) | 0o700)
        try:
            if stat.S_ISDIR(about.st_mode):
                path.rmdir()
            elif stat.S_ISREG(about.st_mode) and about.st_size == 0:
                path.unlink()
        finally:
            path.parent.chmod(stat.S_IMODE(around.st_mode))
        os.utime(path.parent, ns=(around.st_atime_ns, around.st_mtime_ns))


class NoLayers(BuildError):
    """The kernel, or the filesystems of the build's folders, take no layers of an overlay."""


def with_layers(job: Job, runner: Runner) -> Job:
    """Return JOB with a folder for layers whose filesystem takes an overlay's upper layers.

    That is the cache of layers where it does, else a folder of this build, which is removed at its
    end. Raise NoLayers where neither takes them.
    """
    make_cache(job.layers)
    if takes_layers(job.layers, runner):
        return job

    if not takes_layers(job.work, runner):
        raise NoLayers(
            f"neither {job.layers} nor {job.work} takes layers of an overlay, as NFS, Lustre and "
            "FUSE do not",
            "set build.cachedir or build.tmpdir in site.yaml to a folder on a local disk",
        )

    job.progress(
        f"steps are not kept: {job.layers} takes no layers of an overlay, as NFS, Lustre and FUSE "
        "do not (set build.cachedir in site.yaml to a folder on a local disk)"
    )
    return replace(job, layers=work_folder(job, "layers"))


def takes_layers(folder: Path, runner: Runner) -> bool:
    """Return whether FOLDER can hold the upper layer of an overlay that an ordinary user mounts.

    It is tried: a file and a folder are removed, and a new folder put in the place of the old one.
    The overlay marks the new one by an extended attribute, which the filesystem must let users
    write.
    """
    tried = Path(tempfile.mkdtemp(prefix=f".{make_label()}", dir=folder))
    try:
        for name in ("lower/folder", "upper", "work", "merged"):
            (tried / name).mkdir(parents=True)
        for name in ("lower/file", "lower/folder/file"):
            (tried / name).touch()

        merged = str(tried / "merged")
        change = 'cd "$1" && rm file && rm -r folder && mkdir folder && [ -z "$(ls folder)" ]'
        options = "userxattr,lowerdir=lower,upperdir=upper,workdir=work"
        mount = ["sh", find_script("overlay.sh"), str(tried), merged, options]
        # In an enclosure, as steps run: there the machine's root has another id.
        done = try_enclosed(tried, [*mount, "sh", "-c", change, "sh", merged], runner)
        return not done.status and (tried / "upper/folder").is_dir()
    finally:
        remove_tree(tried)
