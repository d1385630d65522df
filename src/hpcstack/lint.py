"""What is not wrong in a recipe and will still hurt: warnings, each at the place of the value that
it is about.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING

from hpcstack.core import data
from hpcstack.core.errors import InputError, Problem, did_you_mean
from hpcstack.lock.file import LockFile
from hpcstack.lock.known import base_environment
from hpcstack.recipe.guard import (
    APT_VARIABLES,
    GUARDED_APT,
    GUARDED_PIP,
    PIP_VARIABLES,
    find_variable,
)
from hpcstack.recipe.packages import normalize_project

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from hpcstack.lock.model import Lock
    from hpcstack.recipe.catalog import Recipe
    from hpcstack.site.load import Site


def lint_recipe(recipe: Recipe, site: Site, names: Collection[str]) -> list[Problem]:
    """What RECIPE's lock and its values will do at SITE, though it can be read; NAMES are the
    stacks there are.
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
    """All warnings of RECIPE at SITE. NAMES are the stacks there are; LOCK is the recipe's, if it
    has one.

    NEEDS_LOCK says whether the recipe is one that should have a lock: the package's own get theirs
    at the site.
    """
    found = [
        *(_tag(recipe) if needs_lock and lock is None and not recipe.stack.base.digest else ()),
        *_pip(recipe, lock),
        *_apt(recipe, lock),
        *_fit(recipe, site, lock),
        *_lifecycle(recipe, names, today),
    ]
    return sorted({replace(problem, warning=True) for problem in found})


def _tag(recipe: Recipe) -> Iterator[Problem]:
    what = (
        f"the tag may change under you; `hpcstack lock {recipe.stack.full_name}` writes down its "
        f"digest"
    )
    yield recipe.document.problem(("base", "image"), what)


def _nvidias(recipe: Recipe, environment: Mapping[str, str]) -> bool:
    return bool(environment.get("CUDA_VERSION")) or recipe.stack.base.image.startswith(
        "nvcr.io/nvidia/"
    )


def _pip(recipe: Recipe, lock: Lock | None) -> Iterator[Problem]:
    guarded = [
        (n, text)
        for n, text in enumerate(recipe.stack.packages.pip)
        if GUARDED_PIP.match(normalize_project(text))
    ]
    environment = base_environment(recipe, lock) if guarded else {}
    if not guarded or not _nvidias(recipe, environment):
        return
    from packaging.requirements import Requirement

    for n, text in guarded:
        name, wanted = normalize_project(text), Requirement(text)
        has = environment.get(find_variable(name, PIP_VARIABLES), "")
        if name.startswith(("nvidia-", "cuda-")) or (wanted.specifier and not _meets(has, wanted)):
            brings = f"{name} {has}" if has else f"a {name} of NVIDIA's own"
            what = (
                f"would replace what the base brings ({brings}), or fail the build: leave it out, "
                f"or loosen it"
            )
            yield recipe.document.problem(("packages", "pip", n), what)


def _meets(version: str, wanted: object) -> bool:
    """Whether VERSION (of the base) meets a requirement, pre-releases taken as they are (PEP 440)."""
    from packaging.requirements import Requirement
    from packaging.version import InvalidVersion

    assert isinstance(wanted, Requirement)
    try:
        return bool(version) and wanted.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return False


def _apt(recipe: Recipe, lock: Lock | None) -> Iterator[Problem]:
    guarded = [
        (n, package)
        for n, package in enumerate(recipe.stack.packages.apt)
        if GUARDED_APT.match(package)
    ]
    environment = base_environment(recipe, lock) if guarded else {}
    for n, package in guarded:
        name = find_variable(package, APT_VARIABLES)
        has = environment.get(name, "")
        # NVIDIA's framework images bring all of these; a plain CUDA image only what its variables
        # name.
        if (
            has
            or recipe.stack.base.image.startswith("nvcr.io/nvidia/")
            or (not name and environment.get("CUDA_VERSION"))
        ):
            brings = f" ({has})" if has else ""
            what = (
                f"would replace or double what NVIDIA's base brings{brings}, and fail the build: "
                f"leave it out"
            )
            yield recipe.document.problem(("packages", "apt", n), what)


def _fit(recipe: Recipe, site: Site, lock: Lock | None) -> Iterator[Problem]:
    ours = recipe.stack.base.platforms  # a node of another architecture gets another stack
    theirs = {node.platform for node in site.node_types.values()}
    if theirs and not theirs & set(ours):
        what = (
            f"is for {' and '.join(ours)}, and the site's nodes are {' and '.join(sorted(theirs))}"
        )
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
        environment = base_environment(recipe, lock, node.platform)
        answer = judge_fit(node.driver, node.gpus.model if node.gpus else "", environment)
        if not answer.runs:
            certain = "" if answer.certain else ", as far as is known"
            what = f"does not run on node type {name}{certain}: {answer.rule} [{answer.source}]"
            yield recipe.document.problem(("base", "image"), what)


def _lifecycle(recipe: Recipe, names: Collection[str], today: date) -> Iterator[Problem]:
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
