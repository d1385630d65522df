"""Settle: what a stack's packages and sources mean today, asked inside its base, written into its lock."""

from __future__ import annotations

import contextlib
import platform as machine
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcstack.build.base import base_of
from hpcstack.build.build import ANOTHER, explain, job_in, redact, text_of
from hpcstack.build.engines import choose
from hpcstack.build.request import needs
from hpcstack.core import sharing
from hpcstack.core.errors import BuildError, HpcstackError, InputError, MissingToolError
from hpcstack.core.files import read_text, write_text, write_tree
from hpcstack.core.progress import Progress
from hpcstack.lock.check import unresolved
from hpcstack.recipe import guard
from hpcstack.render.image import KERNEL_NAMES
from hpcstack.render.site_files import variables
from hpcstack.render.steps import conda_files
from hpcstack.render.template import plain
from hpcstack.resolve.answers import read_apt, read_conda, read_pip, want_files
from hpcstack.store.cache import cache_of
from hpcstack.store.workspace import workspace

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.lock.model import Lock, LockedConda, LockedPlatform
    from hpcstack.oci.client import Registry
    from hpcstack.recipe.model import Stack
    from hpcstack.recipe.packages import Source
    from hpcstack.site.load import Site


def settle(
    stack: Stack, lock: Lock, site: Site, registry: Registry, runner: Runner, say: Progress, before: Lock | None = None
) -> Lock:
    """LOCK with everything resolved that can be on this machine; what cannot is left in `unresolved`.

    Platforms that another machine has settled are taken from BEFORE, the lock that was there, if it is of the same spec
    and of the same base.
    """
    sources = {source.name: source.commit or _commit(source, site, runner) for source in stack.packages.source}
    platforms = dict(lock.base.platforms)
    for name, locked in lock.base.platforms.items():
        if KERNEL_NAMES[name] == machine.machine() and _asks(stack):
            platforms[name] = _inside(stack, lock, name, locked, site, registry, runner, say)
        elif before and before.spec_sha256 == lock.spec_sha256 and name in before.base.platforms:
            old = before.base.platforms[name]
            platforms[name] = old if old.digest == locked.digest else locked
    base = lock.base.model_copy(update={"platforms": platforms})
    whole = lock.model_copy(update={"base": base, "sources": sources})
    return whole.model_copy(update={"unresolved": unresolved(stack, whole)})


def _commit(source: Source, site: Site, runner: Runner) -> str:
    """The commit that REF names now, a tag peeled to what it points at."""
    given = variables(site.build).items()
    lent = {name: value for name, value in given if name.startswith("GIT_CONFIG") or "proxy" in name}
    bundle = {"GIT_SSL_CAINFO": site.build.ca_bundle} if site.build.ca_bundle else {}
    env = {"GIT_TERMINAL_PROMPT": "0", **lent, **bundle}
    done = runner.output(["git", "ls-remote", "--", source.git], env=env, timeout=120)
    rows = {name: commit for commit, _, name in (line.partition("\t") for line in done.stdout.splitlines()) if name}
    # git's own patterns match the end of a name: release/v1 is not v1.
    wanted = (f"refs/tags/{source.ref}^{{}}", f"refs/tags/{source.ref}", f"refs/heads/{source.ref}", source.ref)
    found = next((rows[name] for name in wanted if name in rows), "")
    if done.status or not found:
        said = f": {done.tail[-1]}" if done.status and done.tail else ""
        raise InputError(
            f"{source.git} has no {source.ref!r}{said}", f"packages.source {source.name}: check git and ref"
        )
    return found


def _inside(
    stack: Stack,
    lock: Lock,
    name: str,
    locked: LockedPlatform,
    site: Site,
    registry: Registry,
    runner: Runner,
    say: Progress,
) -> LockedPlatform:
    engine, _ = choose(site.build.engine, runner)
    if reason := engine.usable(runner):
        raise MissingToolError(f"the engine {engine.name} cannot be used here: {reason}", ANOTHER)
    base = base_of(lock, name, site, registry, runner, say)
    with workspace(site, runner, needs(locked)) as work:
        say(f"asking the base's own apt and pip for {stack.full_name}")
        job = job_in(work / "ask", {}, site, base, Progress(), lock.base.registry)
        job = replace(job, environment=locked.environment)
        folder = work / "ask/hpcstack"
        script = {"build/settle.sh": plain("images", "settle.sh"), "build/lib.sh": plain("images", "lib.sh")}
        write_tree(folder, {**script, "build/guard.sh": guard.shell(), **conda_files(stack, None), **want_files(stack)})
        done = engine.run_inside(folder, job, runner)
        redact(job.log, site)
        if done.status:
            kept = cache_of(site).top / f"{stack.full_name}-lock.log"
            log = text_of(job.log)
            with contextlib.suppress(OSError):
                write_text(kept, log, sharing.log_mode())
            raise _refused(explain(done, job.log, kept, lock, site), log)
        answers = folder / "settled"
        packages = stack.packages

        def said(name: str) -> str:
            return _answer(answers / name, folder)

        try:
            conda = read_conda(said("conda.json")) if packages.conda.packages else None
            _own_python(conda or (), locked)
            found = {
                "apt": read_apt(said("apt.simulated"), said("apt.records")) if packages.apt else None,
                "conda": conda,
                "pip": read_pip(said("pip.json")) if packages.pip else None,
            }
        except NONSENSE as error:
            raise BuildError(
                f"{stack.full_name} is not locked: the base's own tools answered with nonsense: {str(error)[:200]}",
                f"is {lock.base.registry}/{lock.base.repository}:{lock.base.tag} what you meant?",
            ) from None
        return locked.model_copy(update=found)


def _own_python(conda: tuple[LockedConda, ...], locked: LockedPlatform) -> None:
    """Conda's prefix comes first on PATH: its Python would hide the one that NVIDIA built torch for."""
    if "PYTORCH_VERSION" in locked.environment and any(entry.name == "python" for entry in conda):
        raise InputError("conda brings its own python, which would hide that of NVIDIA's torch",
                         "leave out what needs it, install it by pip, or take another base")  # fmt: skip


def _asks(stack: Stack) -> bool:
    return bool(stack.packages.apt or stack.packages.pip or stack.packages.conda.packages)


MAX_ANSWER = 24 << 20  # bytes: pip's report of 1,000 packages is 10 MB
NONSENSE = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
ASKED_WRONGLY = re.compile(
    r"No matching distribution|ResolutionImpossible|Unable to locate package|was not found|"
    r"has no installation candidate|No candidates were found|Cannot solve",
    re.IGNORECASE,
)


def _refused(failed: HpcstackError, log: str) -> HpcstackError:
    """What the user asked for is wrong where the base's own tools say so; else the asking failed."""
    if not isinstance(failed, BuildError):
        return failed
    kind: type[HpcstackError] = InputError if ASKED_WRONGLY.search(log) else BuildError
    return kind(failed.message.replace("the build failed in step", "not locked: inside the base, step", 1), failed.hint)


def _answer(path: Path, folder: Path) -> str:
    """What programs of the base wrote to PATH: a file in FOLDER, of a size that is not made to hurt."""
    try:
        return read_text(path, MAX_ANSWER, below=folder)
    except FileNotFoundError:
        return ""
