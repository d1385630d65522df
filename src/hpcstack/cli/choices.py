"""The type of an option that is one of several words, or is left open.

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
