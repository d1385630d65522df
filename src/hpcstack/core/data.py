"""The package's data folders: inside the wheel, or at the top of a source checkout.

Tested in tests/unit/recipe/test_schema.py and tests/unit/adopt/test_adopt_image.py.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from hpcstack.core.yaml import parse_yaml

INCLUDED = re.compile(r"^#: (\S+)\n", re.MULTILINE)
FOLDERS = ("recipes", "images", "modules", "launchers", "facts")


@cache
def find_data_root() -> Path:
    """Return the folder that holds recipes/, images/, modules/, launchers/ and facts/."""
    package = Path(__file__).resolve().parents[1]
    packed = package / "_data"
    if packed.is_dir():  # an installed wheel
        return packed
    return package.parents[1]  # a checkout: src/hpcstack lies two folders below its top


def find_data_folder(name: str) -> Path:
    """Return the path of one data folder, e.g. `recipes`. Raise ValueError for any other NAME."""
    if name not in FOLDERS:
        raise ValueError(f"no data folder {name!r}")
    return find_data_root() / name


@cache
def read_facts(name: str) -> dict[str, Any]:
    """Return the data of facts/NAME.yaml; every scalar is text."""
    path = find_data_folder("facts") / f"{name}.yaml"
    found: dict[str, Any] = parse_yaml(path.read_text(encoding="utf-8"), str(path)).value
    return found


def find_howto_folder() -> Path:
    """Return the folder of the how-to pages, which `hpcstack help` prints."""
    root = find_data_root()
    packed = root / "how-to"
    return packed if packed.is_dir() else root / "docs/how-to"


@cache
def read_script(name: str) -> str:
    """Return the text of launchers/NAME; the FILE beside it replaces each line `#: FILE`."""
    path = find_data_folder("launchers") / name

    def text_of(match: re.Match[str]) -> str:
        return path.with_name(match[1]).read_text(encoding="utf-8")

    return INCLUDED.sub(text_of, path.read_text(encoding="utf-8"))


def read_smoke_files() -> dict[str, str]:
    """Return the smoke suite's source, {path from `hpcstack_smoke/` on: text}.

    It is put into every image.
    """
    return dict(_smoke_files())


@cache
def _smoke_files() -> tuple[tuple[str, str], ...]:
    package = Path(__file__).resolve().parents[2] / "hpcstack_smoke"
    found = sorted(package.rglob("*.py"))
    return tuple(
        (path.relative_to(package.parent).as_posix(), path.read_text(encoding="utf-8"))
        for path in found
    )
