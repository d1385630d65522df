"""Where each module of src is tested.

The mirror of src/hpcstack/ROOM/NAME.py is tests/unit/ROOM/test_NAME.py, and that of a module of
hpcstack_smoke tests/unit/smoke/test_NAME.py. A module without a mirror names one or two files in
the last line of its docstring: `Tested in tests/unit/ROOM/test_OTHER.py.` What only a GPU or other
stacks can show is tested by a program of ci/.

    python -m support.mirrors FILE...

prints for ci/quick what to run for each FILE: its unit tests, or its room's where it has none.
"""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
SOURCE = REPO / "src"
FILE = r"((?:tests|ci)/\S+\.py|ci/\w+)"
LINE = re.compile(rf"^Tested in\s+{FILE}(?:\s+and\s+{FILE})?\.\Z", re.MULTILINE)


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def list_modules() -> list[Path]:
    """The files of modules below src, but for packages that are a docstring only."""
    paths = [path for path in sorted(SOURCE.rglob("*.py")) if path.name != "_version.py"]
    return [path for path in paths if path.name != "__init__.py" or len(parse(path).body) > 1]


def mirror_of(module: Path) -> Path:
    """The test file that mirrors MODULE, whether it is there or not.

    A package within a room has its mirrors in the room's folder, `__init__.py` the package's name,
    and an underscore that only keeps a name from being Python's own falls away.
    """
    top, *packages = module.relative_to(SOURCE).with_suffix("").parts[:-1]
    name = module.stem.strip("_")
    if module.stem == "__init__":
        name = module.parent.name
    room = "smoke" if top == "hpcstack_smoke" else "/".join(packages[:1])
    return REPO / "tests/unit" / room / f"test_{name}.py"


def read_named(module: Path) -> list[Path]:
    """The files that the last line of MODULE's docstring names; none where it has no such line."""
    said = ast.get_docstring(parse(module)) or ""
    found = LINE.search(said)
    return [REPO / one for one in found.groups() if one] if found else []


def find_tests(module: Path) -> list[Path]:
    """The test files of MODULE: its mirror, or those that it names."""
    mirror = mirror_of(module)
    return [mirror] if mirror.exists() else read_named(module)


def list_unit_tests(module: Path) -> list[Path]:
    """The files of `find_tests` that are unit tests; where none is, the folder of the room."""
    units = REPO / "tests/unit"
    found = [path for path in find_tests(module) if path.is_relative_to(units)]
    room = mirror_of(module).parent
    return found or ([room] if room.is_dir() and room != units else [])


def main() -> None:
    for word in sys.argv[1:]:
        for path in list_unit_tests(REPO / word):
            print(path.relative_to(REPO))


if __name__ == "__main__":
    main()
