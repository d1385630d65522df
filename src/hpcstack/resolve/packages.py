"""What a stack's packages and sources mean today, asked inside its base, written into its lock."""

from __future__ import annotations

import platform as machine
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcstack.build.base import base_of
from hpcstack.build.build import ANOTHER
from hpcstack.build.engines import choose_engine
from hpcstack.build.engines.base import ANSWERS
from hpcstack.build.inside import FailedInBase, run_in_base
from hpcstack.build.request import needed_bytes
from hpcstack.core.errors import BuildError, HpcstackError, InputError, MissingToolError
from hpcstack.core.files import read_text
from hpcstack.core.progress import Progress
from hpcstack.lock.check import with_open_items
from hpcstack.render.image import KERNEL_NAMES
from hpcstack.render.site_files import list_build_variables
from hpcstack.render.steps import conda_files
from hpcstack.render.template import read_data_file
from hpcstack.resolve.answers import (
    own_mpi,
    read_apt,
    read_build_requirements,
    read_conda,
    read_left_out,
    read_missing,
    read_pip,
    want_files,
)
from hpcstack.store.cache import cache_of
from hpcstack.store.workspace import make_workspace

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.build.workbench import Workbench
    from hpcstack.core.process import Runner
    from hpcstack.lock.model import Lock, LockedConda, LockedPip, LockedPlatform
    from hpcstack.recipe.model import Stack
    from hpcstack.recipe.packages import Packages, Source
    from hpcstack.site.load import Site


def resolve_packages(
    stack: Stack, lock: Lock, bench: Workbench, before: Lock | None = None
) -> Lock:
    """LOCK with everything resolved that can be on this machine; what cannot is left in
    `unresolved`.

    Platforms that another machine has resolved are taken from BEFORE, the lock that was there, if
    it is of the same spec and of the same base.
    """
    sources = {
        source.name: source.commit or _find_commit(source, bench.site, bench.runner)
        for source in stack.packages.source
    }
    platforms = dict(lock.base.platforms)
    for name, locked in lock.base.platforms.items():
        if KERNEL_NAMES[name] == machine.machine() and _asks(stack):
            platforms[name] = _ask_base(stack, lock, name, bench)
        elif before and before.spec_sha256 == lock.spec_sha256 and name in before.base.platforms:
            old = before.base.platforms[name]
            platforms[name] = old if old.digest == locked.digest else locked
    base = lock.base.model_copy(update={"platforms": platforms})
    whole = lock.model_copy(update={"base": base, "sources": sources})
    return with_open_items(whole, stack)


def _find_commit(source: Source, site: Site, runner: Runner) -> str:
    """The commit that REF names now, a tag peeled to what it points at."""
    given = list_build_variables(site.build).items()
    lent = {
        name: value for name, value in given if name.startswith("GIT_CONFIG") or "proxy" in name
    }
    bundle = {"GIT_SSL_CAINFO": site.build.ca_bundle} if site.build.ca_bundle else {}
    env = {"GIT_TERMINAL_PROMPT": "0", **lent, **bundle}
    done = runner.output(["git", "ls-remote", "--", source.git], env=env, timeout=120)
    rows = {
        name: commit
        for commit, _, name in (line.partition("\t") for line in done.stdout.splitlines())
        if name
    }
    # git's own patterns match the end of a name: release/v1 is not v1.
    wanted = (
        f"refs/tags/{source.ref}^{{}}",
        f"refs/tags/{source.ref}",
        f"refs/heads/{source.ref}",
        source.ref,
    )
    found = next((rows[name] for name in wanted if name in rows), "")
    if done.status or not found:
        said = f": {done.tail[-1]}" if done.status and done.tail else ""
        raise InputError(
            f"{source.git} has no {source.ref!r}{said}",
            f"packages.source {source.name}: check git and ref",
        )
    return found


def _ask_base(stack: Stack, lock: Lock, platform: str, bench: Workbench) -> LockedPlatform:
    """What apt, conda and pip of the base itself make of what STACK asks for."""
    locked = lock.platform(platform)
    engine, _ = choose_engine(bench.site.build.engine, bench.runner)
    if reason := engine.usable(bench.runner):
        raise MissingToolError(f"the engine {engine.name} cannot be used here: {reason}", ANOTHER)
    base = base_of(lock, platform, bench)
    with make_workspace(bench.site, bench.runner, needed_bytes(locked)) as work:
        bench.progress(f"asking the base's own apt and pip for {stack.full_name}")
        kept = cache_of(bench.site).top / f"{stack.full_name}-lock.log"
        script = {"build/build_requirements.py": read_data_file("images", "build_requirements.py")}
        files = {**script, **conda_files(stack, None), **want_files(stack)}
        quiet = replace(bench, progress=Progress())
        allowed = stack.packages.allow_replace
        try:
            folder = run_in_base(
                "resolve.sh", files, work, kept, engine, base, lock, platform, quiet, allowed
            )
        except FailedInBase as error:
            raise _refusal(error) from None
        answers = folder / ANSWERS
        packages = stack.packages

        def answer_of(name: str) -> str:
            return _read_answer(answers / name, folder)

        try:
            conda = read_conda(answer_of("conda.json")) if packages.conda.packages else None
            _own_python(conda or (), locked)
            apt = None
            if packages.apt:
                mpi = own_mpi(locked.environment)
                apt = read_apt(answer_of("apt.simulated"), answer_of("apt.records"), allowed, mpi)
            pip = (
                read_pip(answer_of("pip.json"), answer_of("pip-of-base.json"))
                if packages.pip
                else None
            )
            left_out = read_left_out(answer_of("left-out.txt"))
            built_with = read_build_requirements(answer_of("pip-build.json"))
            unknown = {
                name: why
                for name, why in built_with.unknown.items()
                if not packages.built_with_base(name)
            }
        except NONSENSE as error:
            raise BuildError(
                (
                    f"{stack.full_name} is not locked: the base's own tools answered with "
                    f"nonsense: {str(error)[:200]}"
                ),
                f"is {lock.base.registry}/{lock.base.repository}:{lock.base.tag} what you meant?",
            ) from None
        for project, why in list(unknown.items())[:MOST_NAMED]:
            bench.progress(f"what {project} is built with stays open: {why}")
        for index in left_out or ():
            bench.progress(f"left out: the base's extra index {index}")
        for package, paths in list(read_missing(answer_of("apt.missing")).items())[:MOST_NAMED]:
            more = f" and {len(paths) - 1} more" if paths[1:] else ""
            bench.progress(
                f"{package} is in the base already, without some of its files: {paths[0]}{more}. "
                f"apt does not bring "
                "them back: do what needs them without it, or put them there by a step of `run`"
            )
        pip_build = None
        if _builds_from_source(pip, packages) and not unknown:
            pip_build = built_with.packages
        found = {
            "apt": apt,
            "conda": conda,
            "pip": pip,
            "pip_build": pip_build,
            "left_out": left_out,
        }
        return locked.model_copy(update=found)


def _builds_from_source(pip: tuple[LockedPip, ...] | None, packages: Packages) -> bool:
    """Whether one of PIP's set is built in an environment of its own."""
    return any(
        not entry.file.endswith(".whl") and not packages.built_with_base(entry.name)
        for entry in pip or ()
    )


def _own_python(conda: tuple[LockedConda, ...], locked: LockedPlatform) -> None:
    """Conda's prefix comes first on PATH: its Python would hide the one that NVIDIA built torch
    for.
    """
    if "PYTORCH_VERSION" in locked.environment and any(entry.name == "python" for entry in conda):
        raise InputError(
            "conda brings its own python, which would hide that of NVIDIA's torch",
            "leave out what needs it, install it by pip, or take another base",
        )


def _asks(stack: Stack) -> bool:
    return bool(stack.packages.apt or stack.packages.pip or stack.packages.conda.packages)


MOST_NAMED = 20
MAX_ANSWER = 24 << 20  # bytes: pip's report of 1,000 packages is 10 MB
NONSENSE = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
ASKED_WRONGLY = re.compile(
    r"No matching distribution|ResolutionImpossible|Unable to locate package|was not found|"
    r"has no installation candidate|No candidates were found|Cannot solve",
    re.IGNORECASE,
)


def _refusal(failed: FailedInBase) -> HpcstackError:
    """What the user asked for is wrong where the base's own tools say so; else the asking failed."""
    message = failed.failure.message("not locked: the base's own tools failed")
    if ASKED_WRONGLY.search(failed.log):
        return InputError(message, failed.hint)
    return BuildError(message, failed.hint)


def _read_answer(path: Path, folder: Path) -> str:
    """What programs of the base wrote to PATH: a file in FOLDER, of a size that is not made to
    hurt.
    """
    try:
        return read_text(path, MAX_ANSWER, below=folder)
    except FileNotFoundError:
        return ""
