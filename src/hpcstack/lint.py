"""Warnings about recipes that are valid, but may fail later: when they are built, or run.

Each warning points at the file, line and column of the value that it is about.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING

from hpcstack.core import data
from hpcstack.core.errors import InputError, Problem, did_you_mean
from hpcstack.lock.file import LockFile
from hpcstack.lock.known import read_base_environment
from hpcstack.recipe.guard import (
    APT_VARIABLES,
    GUARDED_APT,
    GUARDED_PIP,
    PIP_VARIABLES,
    find_variable,
)
from hpcstack.recipe.packages import normalize_project

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from hpcstack.lock.model import Lock
    from hpcstack.recipe.catalog import Recipe
    from hpcstack.site.load import Site


def lint_recipe(recipe: Recipe, site: Site, names: Collection[str]) -> list[Problem]:
    """Return the warnings about RECIPE at SITE, and what is wrong with its lock.

    NAMES are those of all stacks.
    """
    file = LockFile(recipe, site)
    try:
        path = file.path
    except InputError as error:
        return [Problem(str(recipe.path), 1, 1, "", error.message)]
    try:
        lock = file.read()
    except InputError as error:
        return [Problem(str(path), 1, 1, "", error.message, warning=True)]

    # recipes that come with hpcstack are locked at the site, if at all
    ours = recipe.path.resolve().parent == data.find_data_folder("recipes").resolve()
    return find_warnings(recipe, site, lock, names, date.today(), needs_lock=not ours)


def find_warnings(
    recipe: Recipe,
    site: Site,
    lock: Lock | None,
    names: Collection[str],
    today: date,
    *,
    needs_lock: bool,
) -> list[Problem]:
    """Return all warnings about RECIPE at SITE, sorted.

    LOCK is the recipe's, if it has one, and NEEDS_LOCK says whether it should. NAMES are those of
    all stacks.
    """
    found = [
        *_check_pip(recipe, lock),
        *_check_system_packages(recipe, lock),
        *_check_fit(recipe, site, lock),
        *_check_lifecycle(recipe, names, today),
    ]
    if needs_lock and lock is None and not recipe.stack.base.digest:
        found.append(_warn_of_tag(recipe))
    return sorted({replace(problem, warning=True) for problem in found})


def _warn_of_tag(recipe: Recipe) -> Problem:
    what = (
        f"the tag may change under you; `hpcstack lock {recipe.stack.full_name}` writes down its "
        f"digest"
    )
    return recipe.document.problem(("base", "image"), what)


def _is_of_ngc(recipe: Recipe) -> bool:
    return recipe.stack.base.image.startswith("nvcr.io/nvidia/")


def _check_pip(recipe: Recipe, lock: Lock | None) -> Iterator[Problem]:
    """Warn of pip packages that would replace one of those that NVIDIA built for the base."""
    guarded = [
        (n, text)
        for n, text in enumerate(recipe.stack.packages.pip)
        if GUARDED_PIP.match(normalize_project(text))
    ]
    if not guarded:
        return

    environment = read_base_environment(recipe, lock)
    if not environment.get("CUDA_VERSION") and not _is_of_ngc(recipe):
        return

    from packaging.requirements import Requirement

    for n, text in guarded:
        name = normalize_project(text)
        wanted = Requirement(text)
        has = environment.get(find_variable(name, PIP_VARIABLES), "")  # the base's version

        is_cuda_library = name.startswith(("nvidia-", "cuda-"))
        is_other_version = bool(wanted.specifier) and not _meets_requirement(has, wanted)
        if is_cuda_library or is_other_version:
            brings = f"{name} {has}" if has else f"a {name} of NVIDIA's own"
            what = (
                f"would replace what the base brings ({brings}), or fail the build: leave it out, "
                f"or loosen it"
            )
            yield recipe.document.problem(("packages", "pip", n), what)


def _meets_requirement(version: str, wanted: object) -> bool:
    """Return whether VERSION, the base's, meets a requirement.

    NVIDIA's builds are pre-releases by PEP 440, such as 2.6.0a0: those count as they are.
    """
    from packaging.requirements import Requirement
    from packaging.version import InvalidVersion

    assert isinstance(wanted, Requirement)
    try:
        return bool(version) and wanted.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return False


def _check_system_packages(recipe: Recipe, lock: Lock | None) -> Iterator[Problem]:
    """Warn of packages of apt or dnf that would replace or double what NVIDIA's base brings."""
    packages = recipe.stack.packages
    guarded = [
        (kind, n, package)
        for kind, named in (("apt", packages.apt), ("dnf", packages.dnf))
        for n, package in enumerate(named)
        if GUARDED_APT.match(package)
    ]
    environment = read_base_environment(recipe, lock) if guarded else {}
    for kind, n, package in guarded:
        name = find_variable(package, APT_VARIABLES)
        has = environment.get(name, "")
        # NVIDIA's framework images bring all of these; a plain CUDA image only what its variables
        # name.
        may_be_in_cuda_image = not name and environment.get("CUDA_VERSION")
        if has or _is_of_ngc(recipe) or may_be_in_cuda_image:
            brings = f" ({has})" if has else ""
            what = (
                f"would replace or double what NVIDIA's base brings{brings}, and fail the build: "
                f"leave it out"
            )
            yield recipe.document.problem(("packages", kind, n), what)


def _check_fit(recipe: Recipe, site: Site, lock: Lock | None) -> Iterator[Problem]:
    """Warn of a stack that does not run on nodes of the site: their architecture, driver or GPU.

    A stack that runs on some of the site's architectures is fine: nodes of another one get another
    stack.
    """
    ours = recipe.stack.base.platforms
    theirs = {node.platform for node in site.node_types.values()}
    if theirs and not theirs & set(ours):
        its_platforms = " and ".join(ours)
        site_platforms = " and ".join(sorted(theirs))
        what = f"is for {its_platforms}, and the site's nodes are {site_platforms}"
        yield recipe.document.problem(("base", "platforms"), what)

    nodes = {
        name: node
        for name, node in site.node_types.items()
        if node.real_gpus and node.platform in ours
    }
    if not nodes:
        return

    from hpcstack.hardware.compatibility import judge_fit

    for name, node in nodes.items():
        environment = read_base_environment(recipe, lock, node.platform)
        gpu = node.gpus.model if node.gpus else ""
        answer = judge_fit(node.driver, gpu, environment)
        if not answer.runs:
            certain = "" if answer.certain else ", as far as is known"
            what = f"does not run on node type {name}{certain}: {answer.rule} [{answer.source}]"
            yield recipe.document.problem(("base", "image"), what)


def _check_lifecycle(recipe: Recipe, names: Collection[str], today: date) -> Iterator[Problem]:
    """Warn of a stack that is deprecated or due to be removed, or whose successor is unknown."""
    cycle = recipe.stack.lifecycle
    instead = f"; use {cycle.successor}" if cycle.successor else ""

    if cycle.remove and cycle.remove <= today:
        yield recipe.document.problem(
            ("lifecycle", "remove"), f"was to be removed on {cycle.remove}{instead}"
        )
    elif cycle.deprecate and cycle.deprecate <= today:
        yield recipe.document.problem(
            ("lifecycle", "deprecate"), f"has been deprecated since {cycle.deprecate}{instead}"
        )

    if cycle.successor and cycle.successor not in names:
        what = f"there is no stack {cycle.successor!r}{did_you_mean(cycle.successor, names)}"
        yield recipe.document.problem(("lifecycle", "successor"), what)
