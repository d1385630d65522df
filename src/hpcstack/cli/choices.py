"""What options take: one of several words or none, and a name of a module.

Tested in tests/unit/cli/test_verbs.py.
"""

from __future__ import annotations

from typing import Any

import click


class OptionalChoice(click.Choice):  # type: ignore[type-arg]  # generic only from click 8.4 on
    """One of several words, or the empty string for "not chosen".

    Help texts, refusals and completion name the words alone. A script may still pass an empty
    variable, as in `--mode "$MODE"`.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            return ""

        return super().convert(value, param, ctx)


def split_module_name(text: str) -> tuple[str, str]:
    """Split NAME/VERSION, what --as is given. Raise InputError where one of them is missing."""
    from hpcstack.core.errors import InputError

    name, _, version = text.partition("/")
    if not name or not version:
        raise InputError(
            f"--as {text}: a name and a version",
            "--as NAME/VERSION, as in: --as mytorch/2024.1",
            page="write-a-recipe",
        )
    return name, version
