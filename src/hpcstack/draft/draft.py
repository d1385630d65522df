"""Make a recipe of a file that somebody has already, whatever kind of file it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.draft.from_definition import draft_definition
from hpcstack.draft.from_devcontainer import draft_devcontainer
from hpcstack.draft.from_dockerfile import draft_dockerfile
from hpcstack.draft.from_edf import draft_edf
from hpcstack.draft.from_packages import draft_environment, draft_requirements
from hpcstack.requirements.project_files import (
    PIXI_LOCK,
    PIXI_TOML,
    PYLOCK,
    PYPROJECT,
    SETUP_CFG,
    SETUP_PY,
    UV_LOCK,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpcstack.draft.recipe_draft import RecipeDraft

KINDS = (
    "Dockerfile or Containerfile, NAME.def, environment.yml, requirements.txt, an EDF (NAME.toml), "
    "devcontainer.json"
)

OF_PROJECTS = (PYLOCK, UV_LOCK, PIXI_LOCK, PIXI_TOML, PYPROJECT, SETUP_CFG, SETUP_PY)


@dataclass(frozen=True)
class DraftRequest:
    """What to make a recipe of: the file SOURCE.

    STACK is a stack to start from instead of the base that SOURCE names; empty for none. CONTEXT is
    the folder that it copies files from; None for the source's own. ARGUMENTS are its build
    arguments, TARGET the stage that is wanted.
    """

    source: Path
    platform: str
    stack: str = ""
    context: Path | None = None
    arguments: Mapping[str, str] | None = None
    target: str = ""


def draft_recipe(request: DraftRequest) -> RecipeDraft:
    """Return what a recipe can say of the source of REQUEST.

    Raise InputError where it cannot be read, is of no kind that is known, or names no base and the
    request has no stack.
    """
    source = request.source
    if source.is_dir():
        raise InputError(
            f"{source} is a folder", f"name a file in it: {KINDS}", page="bring-what-you-have"
        )
    if not source.is_file():
        what = "is no ordinary file" if source.exists() else "does not exist"
        raise InputError(f"{source} {what}", f"name one of: {KINDS}", page="bring-what-you-have")

    draft = _read(request)
    if request.stack:
        draft.extends, draft.image = request.stack, ""
    if not draft.image and not draft.extends:
        whys = "".join(f": {one.why}. {one.instead}" for one in draft.left_out[:1] if one.instead)
        raise InputError(
            f"{source} names no base to start from{whys}",
            "--on STACK names a stack to start from; hpcstack list shows all",
            page="bring-what-you-have",
        )
    return draft


def _read(request: DraftRequest) -> RecipeDraft:
    source, platform, target = request.source, request.platform, request.target
    arguments = request.arguments or {}
    context = request.context or source.absolute().parent
    needs_base = not request.stack
    name = source.name.lower()
    if name.endswith((".json", ".jsonc")):
        return draft_devcontainer(
            source, request.context, arguments, target, platform, needs_base=needs_base
        )
    if name.endswith((".def", ".recipe")) or name in ("singularity", "apptainer"):
        return draft_definition(source, context, arguments, target, platform, needs_base=needs_base)
    if re.search(r"dockerfile|containerfile", name):
        return draft_dockerfile(source, context, arguments, target, platform, needs_base=needs_base)
    if arguments or target:
        raise InputError(
            f"{source} takes neither --build-arg nor --target",
            "leave them out",
            page="bring-what-you-have",
        )
    if name in OF_PROJECTS:
        raise InputError(
            f"{source} is of a project, and a recipe reads it itself",
            "in the recipe, packages: {project: DIR}; its lock pins the versions",
            page="write-a-recipe",
        )
    if name.endswith((".yml", ".yaml")):
        return draft_environment(source)
    if name.endswith((".txt", ".in")):
        return draft_requirements(source)
    if name.endswith(".toml"):
        return draft_edf(source, platform)
    raise InputError(
        f"{source} is of no kind that is read",
        f"name it as one of: {KINDS}",
        page="bring-what-you-have",
    )
