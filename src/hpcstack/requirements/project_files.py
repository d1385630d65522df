"""The files in which a project says what it needs, as they are found in its folder.

Tested in tests/unit/requirements/test_inputs.py.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import InputError
from hpcstack.core.files import read_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from pathlib import Path

PYLOCK, UV_LOCK, PYPROJECT = "pylock.toml", "uv.lock", "pyproject.toml"
PIXI_LOCK, PIXI_TOML = "pixi.lock", "pixi.toml"
WHOLE_LOCKS = (PYLOCK, PIXI_LOCK)  # each package of theirs is a requirement with its version
REQUIREMENTS, ENVIRONMENTS = "requirements.txt", ("environment.yml", "environment.yaml")
SETUP_CFG, SETUP_PY = "setup.cfg", "setup.py"
LARGEST = 64 << 20  # bytes of a lock


def read_toml(path: Path) -> dict[str, Any]:
    """Return the TOML file PATH. Raise InputError where it cannot be read."""
    try:
        return tomllib.loads(read_text(path.resolve(), LARGEST))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: {error}", "correct the file, or create it again", page="your-own-project"
        ) from None
