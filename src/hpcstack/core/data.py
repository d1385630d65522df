"""Where the package's data folders lie: inside the wheel, or at the top of a source checkout."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

INCLUDED = re.compile(r"^#: (\S+)\n", re.MULTILINE)
FOLDERS = ("recipes", "images", "modules", "launchers", "facts")


@cache
def find_data_root() -> Path:
    """The folder that holds recipes/, images/, modules/, launchers/ and facts/."""
    here = Path(__file__).resolve().parents[1]
    packed = here / "_data"
    return packed if packed.is_dir() else here.parents[1]


def find_data_folder(name: str) -> Path:
    """One data folder, e.g. `recipes`."""
    if name not in FOLDERS:
        raise ValueError(f"no data folder {name!r}")
    return find_data_root() / name


@cache
def read_script(name: str) -> str:
    """launchers/NAME, in which each line `#: FILE` is replaced by the FILE beside it."""
    path = find_data_folder("launchers") / name

    def text_of(match: re.Match[str]) -> str:
        return path.with_name(match[1]).read_text(encoding="utf-8")

    return INCLUDED.sub(text_of, path.read_text(encoding="utf-8"))


def smoke_files() -> dict[str, str]:
    """The smoke-test suite's source, as {path below its package: text}; it is baked into every
    image.
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
