"""The rendered definition as another reader sees it: spython's parser, which is sound where its
writer is not.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.errors import BuildError
from hpcstack.render.steps import plan_steps

if TYPE_CHECKING:
    from hpcstack.lock.model import Lock
    from hpcstack.recipe.model import Stack


def check_definition(stack: Stack, lock: Lock, platform: str, definition: str) -> None:
    """BuildError unless DEFINITION reads back with the locked base and every line of every step."""
    from spython.main.parse.parsers import get_parser

    locked = lock.platform(platform)
    base = lock.named(platform)
    with tempfile.TemporaryDirectory(prefix="hpcstack-") as folder:
        path = Path(folder) / "apptainer.def"
        path.write_text(definition, encoding="utf-8")
        recipe = next(iter(get_parser("singularity")(str(path)).recipe.values()))
    if recipe.fromHeader != base:
        raise BuildError(
            f"the definition reads back with the base {recipe.fromHeader}, not {base}",
            "this is a bug: tell us",
        )
    missing = [
        line
        for step in plan_steps(stack, locked, lock.sources)
        for line in step.lines
        if line not in recipe.install
    ]
    if missing:
        raise BuildError(
            f"the definition reads back without: {'; '.join(missing)}", "this is a bug: tell us"
        )
