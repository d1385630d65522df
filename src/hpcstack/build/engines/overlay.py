"""Steps as layers: the kernel's overlay over the mounted base, each finished step kept by its key.

Only what changed runs again. Defaults taken: an overlay that an ordinary user may mount in a user
namespace (`userxattr`, Linux 5.11); no root and no entry in /etc/subuid is needed. A step runs in a
container of ours (`container.py`). The base is mounted by squashfuse_ll in the same enclosure, and
unpacked only where that cannot be (`lowest.py`); the image is the base with the layers spliced to
it (`finish.py`). Where a kernel or a filesystem takes no layers, steps run in an unpacked copy,
none is kept, and the copy is packed.
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
from hpcstack.build.engines.container import container_words
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
    remember_script,
    touched_places,
)
from hpcstack.build.engines.lowest import (
    Lowest,
    base_folder,
    give_modes,
    in_base,
    open_lowest,
    open_unpacked,
    put_base_in_place,
)
from hpcstack.build.engines.machine import overlay_refused
from hpcstack.core import descriptors
from hpcstack.core.bounds import MAX_DEPTH
from hpcstack.core.errors import BuildError, StoreError
from hpcstack.core.files import remove_tree, without_links
from hpcstack.core.lease import make_label
from hpcstack.render.steps import ALL, HOME, SHARED, BuildStep, step_script
from hpcstack.store.cache import mark_used

if TYPE_CHECKING:
    from hpcstack.core.process import Completed, Runner

CONTEXT = "context/hpcstack"
VERSION = "6"  # of how steps are run: part of every step's key
LEFT_BEHIND = (STEP.lstrip("/"), "mnt")  # places of ours in a tree: they are not the image's
COMMAND = ["/bin/bash", f"{STEP}/step.sh"]
# seconds: times of files are those of the kernel's last tick, and what comes with a step is made in
# its own
TICK = 0.1


def step_key(before: str, step: BuildStep, files: dict[str, bytes]) -> str:
    """What a step's result depends on: all before it, its lines, the files that it reads."""
    digest = hashlib.sha256(f"{VERSION}\0{before}\0".encode())
    digest.update(b"network\0" if step.network else b"")
    for line in step.lines:
        digest.update(f"{line}\0".encode())
    for path, data in sorted(files.items()):
        digest.update(f"{path}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:24]


@dataclass(frozen=True)
class Layered:
    """Building by the engine NAME: it is part of every step's key."""

    name: str

    def build(self, job: Job, runner: Runner) -> BuildResult:
        """Run every step in a layer of its own, then make one image of all.

        Where there can be no layers, steps run in an unpacked copy of the base.
        """
        try:
            if why := overlay_refused(runner):
                raise NoLayers(why)
            layered = with_layers(job, runner)
        except NoLayers as error:
            return self._build_unpacked(job, error.message, runner)
        return self._build_layers(layered, runner)

    def _build_layers(self, job: Job, runner: Runner) -> BuildResult:
        own: list[Path] = []
        packing = Packing(job, runner)
        try:
            with open_lowest(job, runner) as base, contextlib.closing(packing):
                layers = [base.layer]
                self._run_steps(job, base, layers, own, packing, runner)

                def run_merged(argv: list[str]) -> Completed:
                    options = f"ro,userxattr,lowerdir={':'.join(layers)}"
                    return _run_merged(
                        job, base.enclosure, options, work_folder(job, "merged"), argv, runner
                    )

                whole = Layers(run_merged, work_folder(job, "merged"))
                return finish_image(job, whole, packing)
        finally:
            for path in own:
                remove_tree(path)
                name_packed(path).unlink(missing_ok=True)

    def _build_unpacked(self, job: Job, why: str, runner: Runner) -> BuildResult:
        """Run every step in one tree, which is then packed whole.

        For kernels and filesystems that take no layers.
        """
        if job.settings.splice == "always" and not job.squash:
            raise BuildError(
                f"the image cannot be spliced: {why}", "build.splice: auto in site.yaml packs it"
            )
        job.progress(
            f"no step is kept, and all is packed anew: steps run in an unpacked copy of the "
            f"base ({why})"
        )
        with open_unpacked(job, runner) as (tree, enclosure):
            brought: set[str] = set()
            for number, step in enumerate(job.steps, 1):
                files = {
                    path: data for path, data in _reads(step, job).items() if path not in brought
                }
                brought |= set(files)
                lines = step_script(step, number, len(job.steps))
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
        """Run STEP, whose script is LINES, in TREE itself; ProgramFailed where it fails."""
        began = _mark_beginning(job)
        _place_files(tree, files)
        give_to_builder(tree / HOME.lstrip("/"))
        offline = job.offline or not step.network
        binds = {step_folder(job, lines): STEP}
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
        """Run every step as a layer, newest first in LAYERS; ProgramFailed where one fails.

        The layers of a fresh build are its OWN, and go with it.
        """
        key, brought = f"{self.name} {base_folder(job).name}", set[str]()
        for number, step in enumerate(job.steps, 1):
            files = _reads(step, job)
            key = step_key(key, step, files)
            files = {path: data for path, data in files.items() if path not in brought}
            brought |= set(files)
            name = f".{make_label()}{key}-fresh" if job.fresh else key
            if (job.layers / name).is_dir():
                mark_used(job.layers / name)
                job.progress(
                    f"step {number}/{len(job.steps)} {step.title} (kept from an earlier build)"
                )
            else:
                if job.fresh:
                    own.append(job.layers / name)
                # Somebody may have removed a layer and left what it was packed to.
                name_packed(job.layers / name).unlink(missing_ok=True)
                lines = step_script(step, number, len(job.steps))
                if ALL in step.reads and has_no_conda(
                    job.base, [job.layers / layer for layer in layers[:-1]]
                ):
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
        """Run STEP in a layer of its own, and keep that under KEY; ProgramFailed where it fails.

        A step that may change no library of the base is checked: where its layer says that it may
        have, the libraries before and after it are compared.
        """
        guarded = CHECK in step.lines
        offline = job.offline or not step.network
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
        options = f"userxattr,lowerdir={':'.join(layers)},upperdir={part.name}/upper,workdir={part.name}/work"
        merged = part / "merged"
        try:
            binds = {step_folder(job, lines): STEP}
            require_success(
                self._inside(job, base, options, merged, binds, COMMAND, runner, offline=offline)
            )
            below = [job.layers / layer for layer in layers[:-1]]
            touched = touched_places(upper, job.base, below) if guarded else []
            if touched:
                require_success(self._compare(job, base, options, part, lines, touched, runner))

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

    def _compare(
        self,
        job: Job,
        base: Lowest,
        options: str,
        part: Path,
        lines: str,
        places: list[bytes],
        runner: Runner,
    ) -> Completed:
        """The libraries at PLACES before a step, in all layers but its own, and after it. Fails as
        the step does that has changed one; LINES are its script, OPTIONS its overlay's.
        """
        below = options.partition(",upperdir=")[0]
        for name in ("unused", "unused-work", "below"):
            (part / name).mkdir()
            (part / name).chmod(0o755)
        top = job.context / CONTEXT
        _place_files(part / "unused", {path: (top / path).read_bytes() for path in SHARED})
        for name in ("unused", "unused-work", "below"):
            give_to_builder(part / name)
        before = f"{below},upperdir={part.name}/unused,workdir={part.name}/unused-work"
        shared = step_folder(job, remember_script(lines))
        (shared / PLACES).write_bytes(b"".join(place + b"\0" for place in places))
        (shared / COMPARE).write_text(compare_script(lines))
        give_to_builder(shared)
        done = self._inside(
            job, base, before, part / "below", {shared: STEP}, COMMAND, runner, offline=True
        )
        if done.status:
            return done
        command = ["/bin/bash", f"{STEP}/{COMPARE}"]
        return self._inside(
            job, base, options, part / "merged", {shared: STEP}, command, runner, offline=True
        )

    def _inside(
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
        """COMMAND in a container whose tree is the overlay that OPTIONS say."""
        words = [
            *_overlay_words(job, options, merged),
            *container_words(job, merged, binds, command, sees_files=True),
        ]
        return _run_enclosed(job, base.enclosure, words, runner, offline=offline)

    def run_inside(self, name: str, folder: Path, job: Job, runner: Runner) -> Completed:
        command = ["/bin/bash", f"{HOME}/{name}"]
        work_folder(job, "home")
        merged, upper, over = (work_folder(job, name) for name in ("merged", "upper", "over"))
        give_to_builder(folder)
        if why := overlay_refused(runner):
            job.progress(f"in an unpacked copy of the base: {why}")
            with open_unpacked(job, runner) as (tree, enclosure):
                return _run_in_tree(
                    job, tree, enclosure, {folder: HOME}, command, runner, offline=job.offline
                )
        with open_lowest(job, runner) as base:
            options = f"userxattr,lowerdir={base.layer},upperdir={upper},workdir={over}"
            return self._inside(
                job, base, options, merged, {folder: HOME}, command, runner, offline=job.offline
            )


def _check_depth(upper: Path) -> None:
    """BuildError where a step has put folders so deep into one another that no image holds them."""
    for visit in descriptors.walk_folders(upper, anyones=True):
        if visit.path.count("/") >= MAX_DEPTH:
            raise BuildError(
                (
                    f"a step made folders more than {MAX_DEPTH} deep in one another, below "
                    f"/{visit.path[:80]}"
                ),
                "no layer of an image may: look at what it runs",
            )


def _overlay_words(job: Job, options: str, merged: Path) -> list[str]:
    """Words of `enclose.py enter` that mount an overlay at MERGED; its layers are named from the
    cache on.
    """
    return ["--folder", str(job.layers), "--overlay", options, str(merged)]


def _run_merged(
    job: Job, enclosure: Enclosure, options: str, merged: Path, argv: list[str], runner: Runner
) -> Completed:
    """ARGV, a program of this machine's, where all layers are one tree at MERGED."""
    return _run_enclosed(
        job, enclosure, [*_overlay_words(job, options, merged), "--", *argv], runner, offline=True
    )


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
    """COMMAND in a container whose tree is TREE itself."""
    return _run_enclosed(
        job,
        enclosure,
        container_words(job, tree, binds, command, sees_files=False),
        runner,
        offline=offline,
    )


def _run_enclosed(
    job: Job, enclosure: Enclosure, words: list[str], runner: Runner, *, offline: bool
) -> Completed:
    """What WORDS say, in the ENCLOSURE; its lines into the log."""
    argv = [*enclosure.enter(offline=offline), *words]
    return runner.logged(argv, job.log, cwd=job.layers, on_line=job.on_line, clean=True)


def _mark_beginning(job: Job) -> Path:
    """A file whose time is that of a step's beginning."""
    began = job.work / "began"
    began.touch()
    os.utime(began, (time.time() - TICK, time.time() - TICK))
    return began


def _place_files(top: Path, files: dict[str, bytes]) -> None:
    """FILES below HOME in the tree TOP.

    What a base or a step has put there is replaced, no link is followed.
    """
    for path, data in files.items():
        target = top / HOME.lstrip("/") / path
        without_links(top, target.parent)
        descriptors.make_folder(target.parent)
        descriptors.write_file(
            target, data, 0o755 if data.startswith(b"#!") else 0o644, on_disk=False
        )


def reset_times(upper: Path, began: Path, runner: Runner) -> Completed:
    """All in UPPER that changed since the file BEGAN was made, and hpcstack's own, gets the time
    that a build gives.

    images/lib.sh does the same at a build's end for engines without layers: there each file that an
    earlier layer holds would be copied up by it.
    """
    own = ("-newer", str(began), "-o", "-path", f"{upper}{HOME}*")
    touch = ("-exec", "touch", "-h", "-d", f"@{EPOCH}", "{}", "+")
    return runner.output([*to_read_all(), "find", str(upper), "(", *own, ")", *touch], timeout=3600)


def step_folder(job: Job, lines: str) -> Path:
    """A folder with LINES as step.sh, new for each start: what an earlier step has left in its own,
    a link in the place of its script, say, is never written through.
    """
    folder = Path(tempfile.mkdtemp(prefix="step-", dir=job.work))
    (folder / "step.sh").write_text(lines)
    give_to_builder(folder)
    return folder


def _reads(step: BuildStep, job: Job) -> dict[str, bytes]:
    """{path below HOME: content} of what this step has to find there."""
    top = job.context / CONTEXT
    if ALL in step.reads:
        paths = [str(path.relative_to(top)) for path in sorted(top.rglob("*")) if path.is_file()]
    else:
        paths = [path for path in (*SHARED, *step.reads) if (top / path).is_file()]
    return {path: (top / path).read_bytes() for path in paths}


def _drop(top: Path, path: Path) -> None:
    """PATH, below TOP, gone, if it is an empty file or folder; the folder around it keeps its time."""
    with contextlib.suppress(OSError, StoreError):
        without_links(
            top, path.parent
        )  # the step may have put a link there, which leads out of the image
        around, about = path.parent.stat(), path.lstat()
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
    """No folder of a build takes an overlay's upper layers."""


def with_layers(job: Job, runner: Runner) -> Job:
    """JOB with a cache that takes an overlay's upper layers: its own, or a folder of the build's.

    NoLayers for none.
    """
    make_cache(job.layers)
    if takes_layers(job.layers, runner):
        return job
    if not takes_layers(job.work, runner):
        raise NoLayers(
            (
                f"neither {job.layers} nor {job.work} takes layers of an overlay, as NFS, Lustre "
                f"and FUSE do not"
            ),
            "build.cachedir or build.tmpdir in site.yaml: a folder on a local disk",
        )
    job.progress(
        f"steps are not kept: {job.layers} takes no layers of an overlay, as NFS, Lustre and FUSE "
        f"do not"
        " (build.cachedir in site.yaml: a folder on a local disk)"
    )
    return replace(job, layers=work_folder(job, "layers"))


def takes_layers(folder: Path, runner: Runner) -> bool:
    """Whether an overlay of an ordinary user keeps in FOLDER what a step may do: a file and a
    folder that go, and one in the place of another, for which a filesystem needs attributes of
    users.
    """
    tried = Path(tempfile.mkdtemp(prefix=f".{make_label()}", dir=folder))
    try:
        for name in ("lower/folder", "upper", "work", "merged"):
            (tried / name).mkdir(parents=True)
        for name in ("lower/file", "lower/folder/file"):
            (tried / name).touch()
        change = 'cd "$1" && rm file && rm -r folder && mkdir folder && [ -z "$(ls folder)" ]'
        options = "userxattr,lowerdir=lower,upperdir=upper,workdir=work"
        step = [
            "sh",
            find_script("overlay.sh"),
            str(tried),
            str(tried / "merged"),
            options,
            "sh",
            "-c",
            change,
            "sh",
            str(tried / "merged"),
        ]
        done = try_enclosed(
            tried, step, runner
        )  # as steps run: the machine's root cannot enter a builder's folder so
        return not done.status and (tried / "upper/folder").is_dir()
    finally:
        remove_tree(tried)
