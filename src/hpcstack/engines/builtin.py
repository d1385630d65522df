"""No engine at all: user namespaces by bubblewrap over the unpacked base. For machines that have nothing else.

Neither root nor an entry in /etc/subuid is needed: one id is mapped, and a seccomp filter lets changes of owner succeed
(seccomp.py). Each finished step is a layer of an overlay and is kept by its key, so that only what changed runs again.
Defaults taken: the kernel's overlay with `userxattr` (Linux 5.11); where it is not to be had, the base is copied and no
step is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcstack.engines.base import EPOCH, Job, missing, squash_argv
from hpcstack.engines.seccomp import ARCHITECTURES, program
from hpcstack.lease import label, sweep
from hpcstack.process import Completed, Runner
from hpcstack.render.steps import ALL, HOME, SHARED, Step, step_script
from hpcstack.store import remove_tree

CONTEXT = "context/hpcstack"
UNSHARE = ("unshare", "--user", "--map-root-user", "--mount", "--propagation", "private")
VERSION = "1"  # of how steps are run: part of every step's key
# The overlay of LAYERS (newest first) at $1, then the command that follows. Runs as root of its own namespace.
OVERLAY = 'mount -t overlay overlay -o "$2" "$1" && shift 2 && exec "$@"'
DNS = "/etc/resolv.conf"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def step_key(before: str, step: Step, files: dict[str, bytes]) -> str:
    """What a step's result depends on: all before it, its lines, the files that it reads."""
    digest = hashlib.sha256(f"{VERSION}\0{before}\0".encode())
    for line in step.lines:
        digest.update(f"{line}\0".encode())
    for path, data in sorted(files.items()):
        digest.update(f"{path}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:24]


def contained(root: Path, job: Job, binds: dict[Path, str], command: list[str], descriptor: int) -> list[str]:
    """bwrap's argv: ROOT as /, nothing of the host but what the site lends, BINDS and the network.

    DESCRIPTOR holds the seccomp filter.
    """
    env = {"PATH": PATH, "HOME": "/root", "TERM": "dumb", **job.environment, "HPCSTACK_ONE_ID": "yes"}
    argv = ["bwrap", "--bind", str(root), "/", "--dev", "/dev", "--proc", "/proc"]
    argv += ["--ro-bind", "/sys", "/sys", "--unshare-pid", "--unshare-uts", "--unshare-ipc", "--die-with-parent"]
    argv += ["--unshare-net"] if job.offline else []
    argv += [*_dns(job), "--ro-bind", str(job.lent), "/mnt", "--chdir", "/"]
    for source, target in binds.items():
        argv += ["--bind", str(source), target]
    argv += ["--seccomp", str(descriptor), "--clearenv"]
    for name, value in env.items():
        argv += ["--setenv", name, value]
    return [*argv, "--", *command]


@dataclass(frozen=True)
class Builtin:
    name: str = "builtin"
    tools: tuple[str, ...] = ("bwrap", "unshare", "unsquashfs", "mksquashfs")

    def usable(self, runner: Runner) -> str:
        if reason := missing(self.tools, runner):
            return reason
        if platform.machine() not in ARCHITECTURES:
            return f"{platform.machine()} has no seccomp filter here"
        if runner.output([*UNSHARE, "true"]).status:
            return "this kernel gives ordinary users no user namespaces"
        return ""

    def build(self, job: Job, runner: Runner) -> Completed:
        with self._layers(job, runner) as (layers, failed):
            if failed:
                return failed
            own: list[Path] = []
            try:
                if failed := self._steps(job, layers, own, runner):
                    return failed
                job.talk("packing")
                job.talk.event("phase", name="pack")
                (job.work / "merged").mkdir()
                options = f"ro,userxattr,lowerdir={':'.join(layers)}"
                argv = squash_argv(str(job.work / "merged"), job.output, job.settings.compression)
                return self._overlay(job, options, job.work / "merged", argv, runner)
            finally:
                for path in own:
                    remove_tree(path)

    def _steps(self, job: Job, layers: list[str], own: list[Path], runner: Runner) -> Completed | None:
        """Every step as a layer, newest first in LAYERS. Those of a fresh build are its OWN, and go with it."""
        key, brought = layers[0], set[str]()
        for number, step in enumerate(job.steps, 1):
            files = _reads(step, job)
            key = step_key(key, step, files)
            files = {path: data for path, data in files.items() if path not in brought}
            brought |= set(files)
            name = f".{label()}{key}-fresh" if job.fresh else key
            if (job.cache / name).is_dir():
                os.utime(job.cache / name)
                job.talk(f"step {number}/{len(job.steps)} {step.title} (kept from an earlier build)")
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
        name = "base-" + hashlib.sha256(job.base.name.encode()).hexdigest()[:16]
        sweep(job.cache, ".", remove_tree)
        failed = None
        if not (job.cache / name).is_dir():
            job.talk("unpacking the base")
            part = job.cache / f".{label()}{name}"
            argv = ["unsquashfs", "-quiet", "-no-progress", "-no-xattrs", "-dest", str(part), str(job.base)]
            done = runner.logged(argv, job.log)
            failed = done if done.status else None
            if not failed:
                _settle(part, job.cache / name)
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
        command = ["/bin/bash", "/hpcstack-step/step.sh"]
        binds = {job.work / "step": "/hpcstack-step"}
        try:
            done = self._inside(job, options, part / "merged", binds, command, runner)
            if not done.status:
                with contextlib.suppress(OSError):
                    (upper / "hpcstack-step").rmdir()
                os.utime(upper, (EPOCH, EPOCH))  # the root of the image, which the line above has changed
                _settle(upper, job.cache / key)
            return done
        finally:
            remove_tree(part)

    def _inside(
        self, job: Job, options: str, merged: Path, binds: dict[Path, str], command: list[str], runner: Runner
    ) -> Completed:
        """COMMAND in a container whose tree is the overlay that OPTIONS say."""
        with _filter() as descriptor:
            argv = contained(merged, job, binds, command, descriptor)
            return self._overlay(job, options, merged, argv, runner, keep=(descriptor,))

    def _overlay(
        self, job: Job, options: str, merged: Path, argv: list[str], runner: Runner, keep: tuple[int, ...] = ()
    ) -> Completed:
        """ARGV in a namespace where the overlay is mounted; its layers are named from the cache on, to be short."""
        whole = [*UNSHARE, "sh", "-c", OVERLAY, "sh", str(merged), options, *argv]
        return runner.logged(whole, job.log, cwd=job.cache, on_line=job.on_line, keep=keep)

    def run_inside(self, folder: Path, job: Job, runner: Runner) -> Completed:
        with self._layers(job, runner) as (layers, failed):
            if failed:
                return failed
            command = ["/bin/bash", f"{HOME}/build/settle.sh"]
            (job.work / "home").mkdir()
            (job.work / "merged").mkdir()
            (job.work / "upper").mkdir()
            (job.work / "over").mkdir()
            options = f"userxattr,lowerdir={layers[0]},upperdir={job.work / 'upper'},workdir={job.work / 'over'}"
            return self._inside(job, options, job.work / "merged", {folder: HOME}, command, runner)


def _dns(job: Job) -> list[str]:
    """The machine's resolv.conf; where the base has a link in its place, at what that points to."""
    source = os.path.realpath(DNS)
    link = next(iter(job.cache.glob("base-*/etc/resolv.conf")), None)
    target = os.path.normpath(Path("/etc") / (link.readlink() if link and link.is_symlink() else DNS))
    return [*(["--tmpfs", "/run"] if target.startswith("/run/") else []), "--ro-bind-try", source, target]


def _reads(step: Step, job: Job) -> dict[str, bytes]:
    """{path below HOME: content} of what this step has to find there."""
    top = job.context / CONTEXT
    if ALL in step.reads:
        paths = [str(path.relative_to(top)) for path in sorted(top.rglob("*")) if path.is_file()]
    else:
        paths = [path for path in (*SHARED, *step.reads) if (top / path).is_file()]
    return {path: (top / path).read_bytes() for path in paths}


def _settle(part: Path, final: Path) -> None:
    """PART under its final name; another builder may have been faster with the same."""
    try:
        part.rename(final)
    except OSError:
        if not final.is_dir():
            raise
        remove_tree(part)


@contextlib.contextmanager
def _filter() -> Iterator[int]:
    with tempfile.TemporaryFile() as file:
        file.write(program(platform.machine()))
        file.flush()
        file.seek(0)
        yield file.fileno()


ENGINE = Builtin()
