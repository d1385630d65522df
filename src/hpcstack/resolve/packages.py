"""Resolve a stack's packages and sources to versions and hashes, inside its base, for its lock."""

from __future__ import annotations

import platform as machine
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcstack.build.base import provide_base
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
from hpcstack.render.steps import make_conda_files
from hpcstack.render.template import read_data_file
from hpcstack.requirements.for_recipe import find_hash_problems
from hpcstack.resolve.answers import (
    read_apt,
    read_build_requirements,
    read_conda,
    read_dnf,
    read_left_out,
    read_missing,
    read_own_mpi,
    read_pip,
    want_files,
)
from hpcstack.resolve.kept_versions import keep_entries, refuse_gone, refuse_other_commit
from hpcstack.store.cache import cache_of
from hpcstack.store.workspace import make_workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hpcstack.build.workbench import Workbench
    from hpcstack.core.process import Runner
    from hpcstack.lock.model import (
        Lock,
        LockedApt,
        LockedConda,
        LockedPip,
        LockedPlatform,
        LockedRpm,
    )
    from hpcstack.recipe.model import Stack
    from hpcstack.recipe.packages import Packages, Source
    from hpcstack.requirements.for_recipe import ProjectRequirements
    from hpcstack.resolve.kept_versions import KeptVersions
    from hpcstack.site.load import Site


def resolve_packages(
    stack: Stack,
    lock: Lock,
    bench: Workbench,
    before: Lock | None = None,
    kept: KeptVersions | None = None,
) -> Lock:
    """Return LOCK with everything resolved that this machine can resolve.

    The rest is listed in `unresolved`. A base runs only on a machine of its own architecture; other
    platforms are taken from BEFORE, the previous lock, if that is of the same spec and base. What
    is in KEPT keeps its version. Raise InputError if the base's tools cannot resolve what STACK
    asks for, BuildError if they fail.
    """
    sources = {
        source.name: source.commit or _choose_commit(source, lock, kept, bench)
        for source in stack.packages.source
    }
    platforms = dict(lock.base.platforms)
    for name, locked in lock.base.platforms.items():
        if KERNEL_NAMES[name] == machine.machine() and _has_packages(stack):
            platforms[name] = _ask_base(stack, lock, name, bench, kept)
        elif before and before.spec_sha256 == lock.spec_sha256 and name in before.base.platforms:
            old = before.base.platforms[name]
            if old.digest == locked.digest:
                platforms[name] = old
        if kept and KERNEL_NAMES[name] != machine.machine():
            bench.progress(
                f"{name} cannot be asked on this machine: run the same on one of its kind"
            )

    base = lock.base.model_copy(update={"platforms": platforms})
    whole = lock.model_copy(update={"base": base, "sources": sources})
    return with_open_items(whole, stack)


def refuse_other_files(project: ProjectRequirements, lock: Lock) -> None:
    """Raise InputError where LOCK has a file whose hash the PROJECT's own lock does not allow."""
    chosen = {
        entry.name: (entry.version, frozenset(entry.hashes))
        for platform in lock.base.platforms.values()
        for entry in platform.pip or ()
    }
    problems = find_hash_problems(project, chosen)
    if problems:
        raise InputError(
            "\n  ".join(["the project's own lock allows none of these files:", *problems]),
            "find out why its lock and the index differ; then make its lock again",
            page="your-own-project",
        )


def _choose_commit(source: Source, lock: Lock, kept: KeptVersions | None, bench: Workbench) -> str:
    """Return the commit that is locked for SOURCE, where it is in KEPT; else what its ref names.

    LOCK is the new one. Raise InputError where the recipe has changed, and the ref names another.
    """
    locked = kept.lock.sources.get(source.name, "") if kept else ""
    stays = kept is not None and locked and not kept.moves(source.name)
    if kept and stays and kept.lock.spec_sha256 == lock.spec_sha256:
        return locked
    commit = _find_commit(source, bench.site, bench.runner)
    if kept and stays:
        refuse_other_commit(kept, source.name, source.ref, commit)
    return commit


def _find_commit(source: Source, site: Site, runner: Runner) -> str:
    """Return the commit that SOURCE's ref names now; for an annotated tag, the commit it points to.

    Raise InputError if the repository cannot be read, or has no such ref.
    """
    env = {"GIT_TERMINAL_PROMPT": "0"}  # fail instead of asking for a password
    for name, value in list_build_variables(site.build).items():
        if name.startswith("GIT_CONFIG") or "proxy" in name:
            env[name] = value
    if site.build.ca_bundle:
        env["GIT_SSL_CAINFO"] = site.build.ca_bundle

    # Not in the caller's folder: that may be a repository whose configuration names a program.
    argv = ["git", "-C", "/", "ls-remote", "--", source.git]
    done = runner.output(argv, env=env, timeout=120)
    rows = {}
    for line in done.stdout.splitlines():
        commit, _, name = line.partition("\t")
        if name:
            rows[name] = commit

    # Chosen here and not by a pattern of git's, which matches the end of a name: `v1` would also
    # match `release/v1`. `^{}` is what an annotated tag points to.
    wanted = (
        f"refs/tags/{source.ref}^{{}}",
        f"refs/tags/{source.ref}",
        f"refs/heads/{source.ref}",
        source.ref,
    )
    found = next((rows[name] for name in wanted if name in rows), "")
    if done.status or not found:
        reason = ""
        if done.status and done.tail:
            reason = f": {done.tail[-1]}"
        raise InputError(
            f"{source.git} has no {source.ref!r}{reason}",
            f"check git and ref of {source.name} in packages.source",
        )
    return found


def _ask_base(
    stack: Stack, lock: Lock, platform: str, bench: Workbench, kept: KeptVersions | None
) -> LockedPlatform:
    """Return PLATFORM's entry of LOCK, with STACK's packages resolved by the base's own tools.

    images/resolve.sh runs apt, conda and pip inside the base; nothing is installed. What is in KEPT
    keeps its version. What stays open is told to the bench's progress.
    """
    locked = lock.platform(platform)
    packages = stack.packages
    engine, _ = choose_engine(bench.site.build.engine, bench.runner)
    reason = engine.usable(bench.runner)
    if reason:
        raise MissingToolError(
            f"the engine {engine.name} cannot be used here: {reason}",
            ANOTHER,
            page="choose-an-engine",
        )

    base = provide_base(lock, platform, bench)
    with make_workspace(bench.site, bench.runner, needed_bytes(locked)) as work:
        bench.progress(
            f"asking the base's own {'dnf' if packages.dnf else 'apt'} and pip for {stack.full_name}"
        )
        log = cache_of(bench.site).top / f"{stack.full_name}-lock.log"
        programs = ("build_requirements.py", "dnf_plan.py")
        scripts = {f"build/{name}": read_data_file("images", name) for name in programs}
        files = {**scripts, **_make_questions(stack, platform, kept)}
        quiet = replace(bench, progress=Progress())
        allowed = packages.allow_replace
        try:
            folder = run_in_base(
                "resolve.sh", files, work, log, engine, base, lock, platform, quiet, allowed
            )
        except FailedInBase as error:
            raise _explain_failure(error, kept) from None

        answers = folder / ANSWERS

        def answer_of(name: str) -> str:
            return _read_answer(answers / name, folder)

        # None means that nothing was asked for, () that nothing has to be installed for it.
        conda = pip = None
        try:
            if packages.conda.packages:
                conda = read_conda(answer_of("conda.json"))
            _refuse_second_python(conda or (), locked)
            apt, dnf = _read_system_packages(packages, locked, answer_of)
            if packages.pip:
                pip = read_pip(answer_of("pip.json"), answer_of("pip-of-base.json"))
            left_out = read_left_out(answer_of("left-out.txt"))
            built_with = read_build_requirements(answer_of("pip-build.json"))
            unknown = {
                name: why
                for name, why in built_with.unknown.items()
                if not packages.built_with_base(name)
            }
        except NONSENSE as error:
            image = f"{lock.base.registry}/{lock.base.repository}:{lock.base.tag}"
            raise BuildError(
                f"{stack.full_name} is not locked: the answers of the base's own tools cannot be "
                f"read: {str(error)[:200]}",
                f"is {image} the image that you meant?",
            ) from None

        for project, why in list(unknown.items())[:MOST_NAMED]:
            bench.progress(f"what {project} is built with stays open: {why}")
        for index in left_out or ():
            bench.progress(f"left out: the base's extra index {index}")
        _report_missing(read_missing(answer_of("apt.missing")), bench.progress)

        pip_build = None  # recorded only if the set is complete
        if _builds_from_source(pip, packages) and not unknown:
            pip_build = built_with.packages
        found = {
            "apt": apt,
            "dnf": dnf,
            "conda": conda,
            "pip": pip,
            "pip_build": pip_build,
            "left_out": left_out,
        }
        whole = locked.model_copy(update=found)
        if kept:
            refuse_gone(kept, platform, whole)
            return keep_entries(kept, platform, whole)
        return whole


def _read_system_packages(
    packages: Packages, locked: LockedPlatform, answer_of: Callable[[str], str]
) -> tuple[tuple[LockedApt, ...] | None, tuple[LockedRpm, ...] | None]:
    """Return what apt and what dnf would install; None for one that was not asked."""
    apt = dnf = None
    allowed = packages.allow_replace
    if packages.apt:
        mpi = read_own_mpi(locked.environment)
        apt = read_apt(answer_of("apt.simulated"), answer_of("apt.records"), allowed, mpi)
    if packages.dnf:
        dnf = read_dnf(answer_of("dnf.json"), allowed)
    return apt, dnf


def _make_questions(stack: Stack, platform: str, kept: KeptVersions | None) -> dict[str, str]:
    """Return {path: text} of the files that tell the base what is asked."""
    if not kept:
        return {**make_conda_files(stack, None), **want_files(stack)}

    conda = stack.packages.conda
    if conda.packages:
        conda = conda.model_copy(update={"packages": (*conda.packages, *kept.conda(platform))})
        packages = stack.packages.model_copy(update={"conda": conda})
        stack = stack.model_copy(update={"packages": packages})
    wanted = want_files(
        stack, kept.pip(platform), kept.apt_preferences(platform), kept.dnf(platform)
    )
    return {**make_conda_files(stack, None), **wanted}


def _report_missing(missing: Mapping[str, list[str]], progress: Progress) -> None:
    """Tell PROGRESS of packages that the base has without some of their files."""
    for package, paths in list(missing.items())[:MOST_NAMED]:
        more = ""
        if paths[1:]:
            more = f" and {len(paths) - 1} more"
        progress(
            f"{package} is in the base already, without some of its files: {paths[0]}{more}. "
            "apt does not bring them back: do without them, or put them there in a step of `run`"
        )


def _builds_from_source(pip: tuple[LockedPip, ...] | None, packages: Packages) -> bool:
    """Return whether a package in PIP is built from source, in an environment of its own."""
    return any(
        not entry.file.endswith(".whl") and not packages.built_with_base(entry.name)
        for entry in pip or ()
    )


def _refuse_second_python(conda: tuple[LockedConda, ...], locked: LockedPlatform) -> None:
    """Raise InputError if CONDA has a Python, and the base is one of NVIDIA's with torch.

    Conda's prefix comes first on PATH: its Python would hide the one that torch was built for.
    """
    if "PYTORCH_VERSION" in locked.environment and any(entry.name == "python" for entry in conda):
        raise InputError(
            "conda brings its own python, which would hide that of NVIDIA's torch",
            "leave out what needs it, install it by pip, or take another base",
        )


def _has_packages(stack: Stack) -> bool:
    """Return whether STACK has packages that the base's own tools must resolve."""
    packages = stack.packages
    return bool(packages.apt or packages.dnf or packages.pip or packages.conda.packages)


MOST_NAMED = 20
MAX_ANSWER = 24 << 20  # bytes: pip's report of 1,000 packages is 10 MB
NONSENSE = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
# What apt, pip and conda say if a package does not exist, or requirements contradict each other.
ASKED_WRONGLY = re.compile(
    r"No matching distribution|ResolutionImpossible|Unable to locate package|was not found|"
    r"has no installation candidate|No candidates were found|Cannot solve",
    re.IGNORECASE,
)


def _explain_failure(failed: FailedInBase, kept: KeptVersions | None) -> HpcstackError:
    """Return an InputError if the packages in the recipe are wrong, else a BuildError.

    With KEPT versions, they may be what is wrong.
    """
    message = failed.failure.message("not locked: the base's own tools failed")
    if ASKED_WRONGLY.search(failed.log):
        hint = failed.hint
        if kept:
            hint = "what stands in the way stays as it was locked: let it move, too: --only NAME"
        return InputError(message, hint, page=failed.page)
    return BuildError(message, failed.hint, page=failed.page)


def _read_answer(path: Path, folder: Path) -> str:
    """Return what a program of the base has written to PATH; empty if there is no such file.

    The base is not trusted. Raise InputError if PATH is a link, or lies behind one below FOLDER,
    and for more than MAX_ANSWER bytes.
    """
    try:
        return read_text(path, MAX_ANSWER, below=folder)
    except FileNotFoundError:
        return ""
