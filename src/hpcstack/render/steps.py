"""The steps of a build: what runs inside the base, in order, the same for every image format.

Text of a recipe reaches them as quoted words, or as a file of the context that bash is given: never
bare.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcstack.core.quote import quote_words
from hpcstack.render.template import read_data_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpcstack.lock.model import LockedPip, LockedPlatform
    from hpcstack.recipe.model import Stack
    from hpcstack.recipe.packages import Packages, Source

HOME = "/opt/hpcstack"
REQUIREMENTS = "build/requirements.txt"  # below HOME: pip's set with hashes, where the lock has one
SOURCE_DISTRIBUTIONS = (
    "build/source-distributions.json"  # of it what is built in an environment of its own
)
FETCH_SOURCES = "build/fetch_sources.py"
REQUIREMENTS_OF_BASE = (
    "build/requirements-of-base.txt"  # of it what is built with what the base has
)
BUILD_REQUIREMENTS = "build/build-requirements"  # what those are built with: -0.txt, -1.txt, ...
TITLE = 100
ALL = "*"
SHARED = ("build/lib.sh", "build/guard.sh", "build/live_indexes.py")


@dataclass(frozen=True)
class BuildStep:
    """A title, as logs show it, and lines of bash that fail at the first failing command."""

    title: str
    lines: tuple[str, ...]
    reads: tuple[
        str, ...
    ] = ()  # files below HOME, beside those of SHARED; ALL of them for the last step
    network: bool = True  # whether it has one


def plan_steps(stack: Stack, locked: LockedPlatform, commits: dict[str, str]) -> list[BuildStep]:
    """What is done to the base, each between two looks at what NVIDIA built into it."""
    packages = stack.packages
    out = []
    if packages.apt:
        out.append(_step("apt", packages.apt, _apt(packages.apt, locked), "build/apt.sha256"))
    if packages.conda.packages:
        reads = tuple(conda_files(stack, locked))
        out.append(_step("conda", packages.conda.packages, _conda(stack, locked), *reads))
    if packages.pip:
        out.append(_step("pip", packages.pip, _pip(packages, locked), *pip_files(packages, locked)))
    for n, source in enumerate(packages.source):
        lines = _source(n, source, commits.get(source.name, source.commit))
        out.append(_step("source", (source.name,), lines, f"build/source-{n}.sh"))
    if stack.files:
        names = tuple(f"files/{n}" for n in range(len(stack.files)))
        step = _step("files", tuple(file.path for file in stack.files), _files(stack), *names)
        out.append(replace(step, network=False))
    for n, run in enumerate(stack.run):
        step = _step("run", (run.name,), _script(f"run-{n}.sh"), f"build/run-{n}.sh")
        out.append(replace(step, network=run.network))
    out.append(BuildStep("finish", ("hpcstack_finish",), (ALL,), network=False))
    return out


def _step(kind: str, things: tuple[str, ...], lines: tuple[str, ...], *reads: str) -> BuildStep:
    title = f"{kind}: {' '.join(things)}"
    return BuildStep(title if len(title) <= TITLE else f"{title[: TITLE - 4]} ...", lines, reads)


def step_script(step: BuildStep, number: int, total: int) -> str:
    """One step as a script of its own, for engines that run them one by one."""
    head = f". {HOME}/build/lib.sh\nhpcstack_step {number}/{total} {quote_words([step.title])}\n"
    return head + "".join(f"{line}\n" for line in step.lines)


def step_files(stack: Stack, locked: LockedPlatform) -> dict[str, str]:
    """{path below HOME: text} of what the steps read: scripts, files, and the locked sets."""
    out = {
        f"build/source-{n}.sh": _bash(source.build)
        for n, source in enumerate(stack.packages.source)
    }
    out |= {f"build/run-{n}.sh": _bash(run.command) for n, run in enumerate(stack.run)}
    out |= {f"files/{n}": file.content for n, file in enumerate(stack.files)}
    if locked.apt:
        hashes = sorted({entry.hash.removeprefix("sha256:") for entry in locked.apt if entry.hash})
        out["build/apt.sha256"] = "".join(f"{found}\n" for found in hashes)
    if stack.packages.pip and locked.pip is not None:
        out |= pip_files(stack.packages, locked)
    return out | conda_files(stack, locked)


def conda_files(stack: Stack, locked: LockedPlatform | None) -> dict[str, str]:
    """The specs that conda.py solves, or where they are locked the files that it installs."""
    spec = stack.packages.conda
    if not spec.packages:
        return {}
    if locked is None or locked.conda is None:
        found: object = {"channels": spec.channels, "packages": spec.packages}
        name = "build/conda-want.json"
    else:
        found = [entry.model_dump(mode="json", exclude_none=True) for entry in locked.conda]
        name = "build/conda.json"
    return {
        "build/conda.py": read_data_file("images", "conda.py"),
        name: json.dumps(found, indent=1) + "\n",
    }


def _bash(text: str) -> str:
    """A script that fails at its first failing command and names it, as lib.sh does."""
    return f"# shellcheck shell=bash source=/dev/null\n. {HOME}/build/lib.sh\n\n{text.rstrip()}\n"


def split_pip(packages: Packages, locked: LockedPlatform) -> dict[str, list[LockedPip]]:
    """{path of a file: what of the locked set is in it}, in the order of installation; no empty
    file.

    Where the lock says what source distributions are built with, that fills files of its own, which
    come first.
    """
    out: dict[str, list[LockedPip]] = {}
    times_named: dict[str, int] = {}
    for entry in locked.pip_build or ():
        number = times_named.get(entry.name, 0)
        times_named[entry.name] = number + 1
        out.setdefault(f"{BUILD_REQUIREMENTS}-{number}.txt", []).append(entry)
    by_kind: dict[str, list[LockedPip]] = {
        REQUIREMENTS: [],
        SOURCE_DISTRIBUTIONS: [],
        REQUIREMENTS_OF_BASE: [],
    }
    for entry in locked.pip or ():
        by_kind[_kind_of(entry, packages, locked)].append(entry)
    return out | {path: entries for path, entries in by_kind.items() if entries}


def _kind_of(entry: LockedPip, packages: Packages, locked: LockedPlatform) -> str:
    """The file that ENTRY belongs to."""
    if entry.file.endswith(".whl"):
        return REQUIREMENTS
    if packages.built_with_base(entry.name):
        return REQUIREMENTS_OF_BASE
    return REQUIREMENTS if locked.pip_build is None else SOURCE_DISTRIBUTIONS


def pip_files(packages: Packages, locked: LockedPlatform) -> dict[str, str]:
    """{path: text} of what pip's step reads of the lock."""
    out = {}
    for path, entries in split_pip(packages, locked).items():
        if path == SOURCE_DISTRIBUTIONS:
            out[path] = list_sources(entries)
            out[FETCH_SOURCES] = read_data_file("images", "fetch_sources.py")
        else:
            out[path] = render_requirements(entries)
    return out


def list_sources(entries: Iterable[LockedPip]) -> str:
    """ENTRIES, source distributions, as images/fetch_sources.py reads them."""
    named = [
        {"name": one.name, "version": one.version, "file": one.file, "hashes": list(one.hashes)}
        for one in entries
    ]
    return json.dumps(named, indent=1) + "\n"


def render_requirements(entries: Iterable[LockedPip]) -> str:
    """ENTRIES of pip's set as a requirements file that takes these files and no others."""
    head = "# Written by hpcstack from the lock: pip takes these files and no others.\n"
    lines = []
    for package in entries:
        hashes = "".join(f" \\\n    --hash={found}" for found in package.hashes)
        lines.append(f"{package.name}=={package.version}{hashes}\n")
    return head + "".join(lines)


def _apt(packages: tuple[str, ...], locked: LockedPlatform) -> tuple[str, ...]:
    if locked.apt is None:
        install = quote_words(
            ["apt-get", "-q", "install", "-y", "--no-install-recommends", *packages]
        )
        line = f"DEBIAN_FRONTEND=noninteractive {install}"
    else:
        line = quote_words(
            ["hpcstack_apt_locked", *(f"{entry.name}={entry.version}" for entry in locked.apt)]
        )
    if locked.apt == ():
        return ("hpcstack_guard", "hpcstack_guard_check")  # the base has it all
    return (
        "hpcstack_guard",
        "hpcstack_apt_update",
        line,
        "hpcstack_clean_apt",
        "hpcstack_guard_check",
    )


def _conda(stack: Stack, locked: LockedPlatform) -> tuple[str, ...]:
    does = "hpcstack_conda" if locked.conda is None else "hpcstack_conda_locked"
    return (
        "hpcstack_guard",
        quote_words([does, stack.packages.conda.prefix]),
        "hpcstack_guard_check",
    )


def _pip(packages: Packages, locked: LockedPlatform) -> tuple[str, ...]:
    install = ["install", "--no-cache-dir", "--no-compile"]
    lines = []
    if locked.pip is None:
        for of_base in (False, True):
            wanted = [text for text in packages.pip if packages.built_with_base(text) == of_base]
            how = ["--no-build-isolation"] if of_base else []
            lines += [quote_words(["hpcstack_pip", *install, *how, *wanted])] if wanted else []
    else:
        # every file is named by its hash, so no constraint can say more; the image's own would need
        # hashes, too
        only = ["python3", "-m", "pip", *install, "--no-deps", "--require-hashes"]
        paths = list(split_pip(packages, locked))
        tools = [f"{HOME}/{path}" for path in paths if path.startswith(BUILD_REQUIREMENTS)]
        if tools:
            lines.append(quote_words(["hpcstack_fetch_build_requirements", *tools]))
        for path in paths:
            if path == SOURCE_DISTRIBUTIONS:
                lines.append(quote_words(["hpcstack_pip_from_source", f"{HOME}/{path}", *install]))
            elif path in (REQUIREMENTS, REQUIREMENTS_OF_BASE):
                how = ["--no-build-isolation"] if path == REQUIREMENTS_OF_BASE else []
                lines.append(
                    f"env -u PIP_CONSTRAINT -u PIP_BUILD_CONSTRAINT "
                    f"{quote_words([*only, *how])} -r {HOME}/{path}"
                )
    return ("hpcstack_guard", *lines, "hpcstack_guard_check")


def _source(number: int, source: Source, commit: str) -> tuple[str, ...]:
    fetch = [
        "hpcstack_source",
        source.name,
        source.git,
        commit,
        "yes" if source.submodules else "no",
    ]
    return (
        "hpcstack_guard",
        quote_words(fetch),
        f'(cd "$HPCSTACK_WORK/source/{source.name}" && bash {HOME}/build/source-{number}.sh)',
        f'rm -rf "$HPCSTACK_WORK/source/{source.name}"',
        "hpcstack_guard_check",
    )


def _files(stack: Stack) -> tuple[str, ...]:
    installed = (
        quote_words(["install", "-D", "-m", file.mode, f"{HOME}/files/{n}", file.path])
        for n, file in enumerate(stack.files)
    )
    return (
        *installed,
        'rm -f "$HPCSTACK_LEFT"',
    )  # the next step looks anew: what a recipe puts there is not guarded


def _script(name: str) -> tuple[str, ...]:
    return ("hpcstack_guard", f"bash {HOME}/build/{name}", "hpcstack_guard_check")
