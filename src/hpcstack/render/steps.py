"""The steps of a build: what runs inside the base, in order, the same for every image format.

Text of a recipe never stands bare in a step's lines. It is a quoted word, or a file of the context
that bash runs.

Tested in tests/unit/render/test_render.py.
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
# Files below HOME with the locked set of pip, with hashes. A package is in one of the three:
REQUIREMENTS = "build/requirements.txt"  # wheels
SOURCE_DISTRIBUTIONS = "build/source-distributions.json"  # built in an environment of their own
REQUIREMENTS_OF_BASE = "build/requirements-of-base.txt"  # built with the packages of the base
BUILD_REQUIREMENTS = "build/build-requirements"  # what to build with: -0.txt, -1.txt, ...
FETCH_SOURCES = "build/fetch_sources.py"
PIP_INSTALL = ("install", "--no-cache-dir", "--no-compile")
TITLE = 100  # characters of a step's title at most
ALL = "*"
SHARED = ("build/lib.sh", "build/guard.sh", "build/live_indexes.py")  # read by every step


@dataclass(frozen=True)
class BuildStep:
    """One step: its title, as logs show it, and its lines of bash.

    The step fails at the first line that fails.
    """

    title: str
    lines: tuple[str, ...]
    # Files below HOME that it reads besides SHARED; they are part of the key of its layer. The last
    # step reads ALL.
    reads: tuple[str, ...] = ()
    network: bool = True  # whether it may use the network


def plan_steps(stack: Stack, locked: LockedPlatform, commits: dict[str, str]) -> list[BuildStep]:
    """Return the steps that turn the base into STACK's image, in order.

    COMMITS are the locked commits of the git sources, by their names. Steps that install or run
    something check before and after that the packages NVIDIA built into the base are still there
    (`hpcstack_guard` and `hpcstack_guard_check` in images/lib.sh).
    """
    packages = stack.packages
    out = []

    if packages.apt:
        out.append(_step("apt", packages.apt, _apt(packages.apt, locked), "build/apt.sha256"))
    if packages.dnf:
        out.append(_step("dnf", packages.dnf, _dnf(packages.dnf, locked), "build/dnf.sha256"))
    if packages.conda.packages:
        reads = tuple(make_conda_files(stack, locked))
        out.append(_step("conda", packages.conda.packages, _conda(stack, locked), *reads))
    if packages.pip:
        out.append(
            _step("pip", packages.pip, _pip(packages, locked), *make_pip_files(packages, locked))
        )

    for n, source in enumerate(packages.source):
        lines = _source(n, source, commits.get(source.name, source.commit))
        out.append(_step("source", (source.name,), lines, f"build/source-{n}.sh"))

    if stack.files:
        paths = tuple(file.path for file in stack.files)
        names = tuple(f"files/{n}" for n in range(len(stack.files)))
        step = _step("files", paths, _files(stack), *names)
        out.append(replace(step, network=False))

    for n, run in enumerate(stack.run):
        step = _step("run", (run.name,), _script(f"run-{n}.sh"), f"build/run-{n}.sh")
        out.append(replace(step, network=run.network))

    out.append(BuildStep("finish", ("hpcstack_finish",), (ALL,), network=False))
    return out


def _step(kind: str, things: tuple[str, ...], lines: tuple[str, ...], *reads: str) -> BuildStep:
    """Return the step of KIND for THINGS, with a title of at most TITLE characters."""
    title = f"{kind}: {' '.join(things)}"
    if len(title) > TITLE:
        title = f"{title[: TITLE - 4]} ..."
    return BuildStep(title, lines, reads)


def render_step_script(step: BuildStep, number: int, total: int) -> str:
    """Return STEP as a script of its own, for engines that run one step at a time."""
    head = f". {HOME}/build/lib.sh\nhpcstack_step {number}/{total} {quote_words([step.title])}\n"
    return head + "".join(f"{line}\n" for line in step.lines)


def render_step_files(stack: Stack, locked: LockedPlatform) -> dict[str, str]:
    """Return {path below HOME: text} of what the steps read: scripts, files, and locked sets."""
    out: dict[str, str] = {}
    for n, source in enumerate(stack.packages.source):
        out[f"build/source-{n}.sh"] = _bash(source.build)
    for n, run in enumerate(stack.run):
        out[f"build/run-{n}.sh"] = _bash(run.command)
    for n, file in enumerate(stack.files):
        out[f"files/{n}"] = file.content

    if locked.apt:
        hashes = sorted({entry.hash.removeprefix("sha256:") for entry in locked.apt if entry.hash})
        out["build/apt.sha256"] = "".join(f"{found}\n" for found in hashes)
    if locked.dnf:
        hashes = sorted({entry.hash.removeprefix("sha256:") for entry in locked.dnf})
        out["build/dnf.sha256"] = "".join(f"{found}\n" for found in hashes)
    if stack.packages.pip and locked.pip is not None:
        out |= make_pip_files(stack.packages, locked)
    return out | make_conda_files(stack, locked)


def make_conda_files(stack: Stack, locked: LockedPlatform | None) -> dict[str, str]:
    """Return {path below HOME: text} of what conda's step reads; nothing without conda packages.

    Where the lock has conda's set, that is the files to install; else the specs to solve.
    """
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
    """Return TEXT as a bash script that fails at its first failing command and names it.

    images/lib.sh, which it sources, does both.
    """
    return f"# shellcheck shell=bash source=/dev/null\n. {HOME}/build/lib.sh\n\n{text.rstrip()}\n"


def split_pip(packages: Packages, locked: LockedPlatform) -> dict[str, list[LockedPip]]:
    """Return {path below HOME: packages of the locked set in that file}, in the order of use.

    What source distributions are built with comes first, where the lock says it, in files of its
    own. Empty files are left out.
    """
    out: dict[str, list[LockedPip]] = {}

    # Several versions of a build tool may be locked, and a requirements file may name each package
    # only once: the second version goes into the second file, and so on.
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
    """Return the file that ENTRY belongs to."""
    if entry.file.endswith(".whl"):
        return REQUIREMENTS
    if packages.built_with_base(entry.name):
        return REQUIREMENTS_OF_BASE
    if locked.pip_build is None:  # the lock does not say what to build it with: pip fetches that
        return REQUIREMENTS
    return SOURCE_DISTRIBUTIONS


def make_pip_files(packages: Packages, locked: LockedPlatform) -> dict[str, str]:
    """Return {path below HOME: text} of what pip's step reads of the lock."""
    out = {}
    for path, entries in split_pip(packages, locked).items():
        if path == SOURCE_DISTRIBUTIONS:
            out[path] = list_sources(entries)
            out[FETCH_SOURCES] = read_data_file("images", "fetch_sources.py")
        else:
            out[path] = render_requirements(entries)
    return out


def list_sources(entries: Iterable[LockedPip]) -> str:
    """Return ENTRIES, source distributions, as the JSON that images/fetch_sources.py reads."""
    named = [
        {"name": one.name, "version": one.version, "file": one.file, "hashes": list(one.hashes)}
        for one in entries
    ]
    return json.dumps(named, indent=1) + "\n"


def render_requirements(entries: Iterable[LockedPip]) -> str:
    """Return ENTRIES of pip's set as a requirements file that admits these files and no others."""
    head = "# Written by hpcstack from the lock: pip takes these files and no others.\n"
    lines = []
    for package in entries:
        hashes = "".join(f" \\\n    --hash={found}" for found in package.hashes)
        lines.append(f"{package.name}=={package.version}{hashes}\n")
    return head + "".join(lines)


def _apt(packages: tuple[str, ...], locked: LockedPlatform) -> tuple[str, ...]:
    """Return the lines that install PACKAGES by apt, in the LOCKED versions where there are any."""
    if locked.apt == ():  # the base has all of them
        return ("hpcstack_guard", "hpcstack_guard_check")

    if locked.apt is None:
        install = ["apt-get", "-q", "install", "-y", "--no-install-recommends", *packages]
        line = f"DEBIAN_FRONTEND=noninteractive {quote_words(install)}"
    else:
        versions = [f"{entry.name}={entry.version}" for entry in locked.apt]
        line = quote_words(["hpcstack_apt_locked", *versions])
    return (
        "hpcstack_guard",
        "hpcstack_apt_update",
        line,
        "hpcstack_clean_apt",
        "hpcstack_guard_check",
    )


def _dnf(packages: tuple[str, ...], locked: LockedPlatform) -> tuple[str, ...]:
    """Return the lines that install PACKAGES by dnf, in the LOCKED versions where there are any."""
    if locked.dnf == ():  # the base has all of them
        return ("hpcstack_guard", "hpcstack_guard_check")

    if locked.dnf is None:
        line = quote_words(["hpcstack_dnf", *("-".join(one.split("=", 1)) for one in packages)])
    else:
        line = quote_words(["hpcstack_dnf_locked", *(entry.nevra for entry in locked.dnf)])
    return ("hpcstack_guard", line, "hpcstack_clean_dnf", "hpcstack_guard_check")


def _conda(stack: Stack, locked: LockedPlatform) -> tuple[str, ...]:
    """Return the lines that install the conda packages into their prefix."""
    function = "hpcstack_conda_locked"
    if locked.conda is None:
        function = "hpcstack_conda"
    return (
        "hpcstack_guard",
        quote_words([function, stack.packages.conda.prefix]),
        "hpcstack_guard_check",
    )


def _pip(packages: Packages, locked: LockedPlatform) -> tuple[str, ...]:
    """Return the lines that install pip's packages: what was asked for, or the LOCKED set."""
    if locked.pip is None:
        lines = _pip_unlocked(packages)
    else:
        lines = _pip_locked(packages, locked)
    return ("hpcstack_guard", *lines, "hpcstack_guard_check")


def _pip_unlocked(packages: Packages) -> list[str]:
    """Return a line for what pip builds on its own, and one for what it builds with the base."""
    lines = []
    for of_base in (False, True):
        wanted = [text for text in packages.pip if packages.built_with_base(text) == of_base]
        if not wanted:
            continue

        how = ["--no-build-isolation"] if of_base else []
        lines.append(quote_words(["hpcstack_pip", *PIP_INSTALL, *how, *wanted]))
    return lines


def _pip_locked(packages: Packages, locked: LockedPlatform) -> list[str]:
    """Return the lines that install the files of `split_pip`, in its order."""
    # Every file is named by its hash, so the image's constraints can add nothing. They would have
    # to have hashes, too, so they are unset.
    unset = "env -u PIP_CONSTRAINT -u PIP_BUILD_CONSTRAINT"
    pip = ["python3", "-m", "pip", *PIP_INSTALL, "--no-deps", "--require-hashes"]

    lines = []
    paths = list(split_pip(packages, locked))
    tools = [f"{HOME}/{path}" for path in paths if path.startswith(BUILD_REQUIREMENTS)]
    if tools:
        lines.append(quote_words(["hpcstack_fetch_build_requirements", *tools]))

    for path in paths:
        if path == SOURCE_DISTRIBUTIONS:
            build = ["hpcstack_pip_from_source", f"{HOME}/{path}", *PIP_INSTALL]
            lines.append(quote_words(build))
        elif path == REQUIREMENTS:
            lines.append(f"{unset} {quote_words(pip)} -r {HOME}/{path}")
        elif path == REQUIREMENTS_OF_BASE:
            with_base = quote_words([*pip, "--no-build-isolation"])
            lines.append(f"{unset} {with_base} -r {HOME}/{path}")
    return lines


def _source(number: int, source: Source, commit: str) -> tuple[str, ...]:
    """Return the lines that fetch SOURCE at COMMIT, run its build script, and remove its tree."""
    submodules = "yes" if source.submodules else "no"
    fetch = ["hpcstack_source", source.name, source.git, commit, submodules]
    return (
        "hpcstack_guard",
        quote_words(fetch),
        f'(cd "$HPCSTACK_WORK/source/{source.name}" && bash {HOME}/build/source-{number}.sh)',
        f'rm -rf "$HPCSTACK_WORK/source/{source.name}"',
        "hpcstack_guard_check",
    )


def _files(stack: Stack) -> tuple[str, ...]:
    """Return the lines that put the recipe's own files in place."""
    lines = [
        quote_words(["install", "-D", "-m", file.mode, f"{HOME}/files/{n}", file.path])
        for n, file in enumerate(stack.files)
    ]
    # What a recipe puts over the base on purpose is not guarded. Without what the last step has
    # noted, the next one looks at the base anew.
    lines.append('rm -f "$HPCSTACK_LEFT"')
    return tuple(lines)


def _script(name: str) -> tuple[str, ...]:
    """Return the lines that run the recipe's script build/NAME."""
    return ("hpcstack_guard", f"bash {HOME}/build/{name}", "hpcstack_guard_check")
