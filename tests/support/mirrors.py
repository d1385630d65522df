"""Where each module of src is tested.

The mirror of src/hpcstack/ROOM/NAME.py is tests/unit/ROOM/test_NAME.py, and that of a module of
hpcstack_smoke tests/unit/smoke/test_NAME.py. A module without a mirror names one or two files in
the last line of its docstring: `Tested in tests/unit/ROOM/test_OTHER.py.` What only a GPU or other
stacks can show is tested by a program of ci/.

    python -m support.mirrors FILE...

prints for ci/quick what to run when each FILE of the repository has changed: a module's unit tests,
or its room's where it has none; of a file that modules read (facts, templates, scripts), the unit
tests of those that name it; of what tests share, the unit tests that import it.
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
DATA = ("facts", "images", "launchers", "modules", "recipes")  # folders of what modules read
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


@cache
def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def list_unit_test_files() -> list[Path]:
    return sorted((REPO / "tests/unit").rglob("test_*.py"))


def list_readers(file: Path) -> list[Path]:
    """The modules that read FILE, of one of the folders DATA, or read a script that contains it.

    A module names what it reads: `read_facts("gates")`, `read_script("on-node/shield.sh")`,
    `fill_template("launchers", "srun.sh")` of srun.sh.j2.
    """
    name = file.name.removesuffix(".j2")
    folder = file.relative_to(REPO).parts[0]
    if folder == "facts":
        pattern = rf"""["'/]{re.escape(file.stem)}(\.yaml)?["']"""
        return [path for path in list_modules()
                if "facts" in _read_text(path) and re.search(pattern, _read_text(path))]  # fmt: skip
    if folder == "recipes":
        return [SOURCE / "hpcstack/recipe/catalog.py", SOURCE / "hpcstack/render/image.py"]

    around = [
        other
        for other in sorted((REPO / folder).rglob("*"))
        if other.is_file()
        and re.search(rf"^#: {re.escape(name)}$", _read_text(other), re.MULTILINE)
    ]
    pattern = rf"\b{re.escape(name)}\b"
    own = [path for path in list_modules() if re.search(pattern, _read_text(path))]
    return own + [reader for other in around for reader in list_readers(other)]


def list_tests_of_change(file: Path) -> list[Path]:
    """The unit tests to run when FILE has changed: files and folders, each at most once."""
    place = file.relative_to(REPO)
    if place.parts[0] == "src" and file.suffix == ".py":
        found = [REPO / "tests/unit/test_mirrors.py", *list_unit_tests(file)]
    elif place.parts[:2] == ("tests", "unit") and file.name.startswith("test_"):
        found = [file]
    elif place.parts[:2] == ("tests", "support"):
        found = [one for one in list_unit_test_files() if _imports_support(one, file.stem)]
    elif place.parts[0] in DATA:
        naming = re.compile(rf"\b{re.escape(file.name)}\b")
        found = [one for one in list_unit_test_files() if naming.search(_read_text(one))]
        found += [test for reader in list_readers(file) for test in list_unit_tests(reader)]
        if place.parts[0] != "facts":
            found.append(REPO / "tests/unit/render/test_render.py")  # goldens
    elif place.parts[:2] == ("tests", "data"):
        top = place.parts[2]
        found = [one for one in list_unit_test_files() if top in _read_text(one)]
    else:
        found = []
    return list(dict.fromkeys(found))


def _imports_support(test: Path, name: str) -> bool:
    return bool(re.search(rf"^from support\.{name} import", _read_text(test), re.MULTILINE))


def main() -> None:
    found = {test for word in sys.argv[1:] for test in list_tests_of_change(REPO / word)}
    for test in sorted(found):
        if not any(folder in found for folder in test.parents):
            print(test.relative_to(REPO))


if __name__ == "__main__":
    main()
