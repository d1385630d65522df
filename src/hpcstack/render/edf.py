"""A stack as an Environment Definition File (EDF), for CSCS's Container Engine and the Sarus Suite.

The keys are those of the schema in sarus-suite/raster, src/schema/edf.json, and of
https://docs.cscs.ch/software/container-engine/edf.

Tested in tests/unit/render/test_front_ends.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tomli_w

from hpcstack.core.errors import InputError

if TYPE_CHECKING:
    from hpcstack.recipe.model import Stack
    from hpcstack.site.load import Site

HEAD = "# {stack}, for srun --environment; written by hpcstack render --format edf\n"


def render_edf(stack: Stack, site: Site, image: str) -> str:
    """Return the EDF of STACK at SITE. IMAGE is the path of its squashfs, or a registry's image.

    InputError where a value holds `${`, which would be filled in by the engine.
    """
    document: dict[str, Any] = {
        "image": _check_plain(image, "the image"),
        "mounts": [_check_plain(one, "a mount") for one in (*site.mounts, *stack.launch.mounts)],
        # NVIDIA's entrypoint prints a banner, once a rank.
        "entrypoint": False,
        "env": {
            **{
                name: _check_plain(one.value, name)
                for name, one in site.fabric.settings_for(2, {}).items()
            },
            **own_variables(),
        },
    }
    text: str = tomli_w.dumps({key: value for key, value in document.items() if value != []})
    return HEAD.format(stack=stack.full_name) + text


def own_variables() -> dict[str, str]:
    """Return the variables that every launch sets: packages in a home never shadow the image's."""
    return {"PYTHONNOUSERSITE": "1"}


def _check_plain(text: str, what: str) -> str:
    if "${" in text:
        raise InputError(
            f"{what} is {text!r}, and an EDF fills in what begins with ${{",
            "write the value itself",
            page="other-front-ends",
        )
    return text
