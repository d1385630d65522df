"""Check that another program reads a rendered Apptainer definition as it was meant.

The other reader is spython's parser, which is sound; spython's writer, which is not, is not used.

Tested in tests/unit/render/test_render.py.
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
    """Raise BuildError unless DEFINITION reads back with the locked base and every step's lines."""
    from spython.main.parse.parsers import get_parser

    with tempfile.TemporaryDirectory(prefix="hpcstack-") as folder:
        path = Path(folder) / "apptainer.def"
        path.write_text(definition, encoding="utf-8")
        recipe = next(iter(get_parser("singularity")(str(path)).recipe.values()))

    base = lock.named(platform)
    if recipe.fromHeader != base:
        raise BuildError(
            f"the definition reads back with the base {recipe.fromHeader}, not {base}",
            "this is a bug: tell us",
        )

    missing: list[str] = []
    for step in plan_steps(stack, lock.platform(platform), lock.sources):
        missing += [line for line in step.lines if line not in recipe.install]
    if missing:
        raise BuildError(
            f"the definition reads back without: {'; '.join(missing)}", "this is a bug: tell us"
        )
