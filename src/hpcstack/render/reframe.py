"""A test for ReFrame that runs a stack's smoke suite and judges it by its JSON.

Source: https://reframe-hpc.readthedocs.io, regression test API of 4.x.

Tested in tests/unit/render/test_front_ends.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpcstack.render.template import fill_template

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcstack.recipe.model import Stack


def render_reframe(stack: Stack, command: Sequence[str], nodes: int, tier: str) -> str:
    """Return a ReFrame test of STACK on NODES nodes, by the suite's TIER.

    COMMAND are the words that start this hpcstack with its site and recipes.
    """
    return fill_template(
        "launchers",
        "to-copy/reframe.py.j2",
        stack=stack.full_name,
        title=_make_class_name(stack.full_name),
        command=tuple(command),
        nodes=nodes,
        tier=tier,
    )


def _make_class_name(full_name: str) -> str:
    """Return FULL_NAME as the name of a class: `pytorch-25.10` as `Pytorch_25_10`."""
    plain = re.sub(r"[^A-Za-z0-9]+", "_", full_name)
    return f"Smoke_{plain}"
