"""The files in which a project says what it needs, as they are found in its folder.

Tested in tests/unit/requirements/test_inputs.py.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from hpcstack.core.errors import InputError
from hpcstack.core.files import read_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PYLOCK, UV_LOCK, PYPROJECT = "pylock.toml", "uv.lock", "pyproject.toml"
REQUIREMENTS, ENVIRONMENTS = "requirements.txt", ("environment.yml", "environment.yaml")
LARGEST = 64 << 20  # bytes of a lock


def read_toml(path: Path) -> dict[str, Any]:
    """Return the TOML file PATH. Raise InputError where it cannot be read."""
    try:
        return tomllib.loads(read_text(path.resolve(), LARGEST))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(
            f"{path}: {error}", "correct the file, or create it again", page="your-own-project"
        ) from None


def read_requirement_lines(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield (file, line) for each line of PATH and of the files that it includes.

    Lines that end in a backslash are joined. A file is read once, however often it is included.
    Raise InputError for a file that cannot be read.
    """
    waiting = [path]
    seen: set[Path] = set()
    while waiting:
        file = waiting.pop(0)
        if file in seen:
            continue
        seen.add(file)
        try:
            text = read_text(file.resolve(), LARGEST)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InputError(
                f"{file}: {reason}", "correct the file", page="your-own-project"
            ) from None
        yield file, ""
        for raw in re.sub(r"\\\r?\n", " ", text).splitlines():
            line = re.sub(r"(^|\s)#.*$", "", raw).strip()
            included = re.match(r"(?:-r|--requirement|-c|--constraint)[ =]*(.+)", line)
            if included and "://" in included[1]:
                continue  # uv reads it; whether it has changed cannot be seen here
            if included:
                waiting.append(file.parent / included[1].strip())
            elif line:
                yield file, line


def list_constraint_files(path: Path) -> set[Path]:
    """Return the files that PATH, and what it includes by -r, names as constraints by -c."""
    found: set[Path] = set()
    waiting = [path]
    seen: set[Path] = set()
    while waiting:
        file = waiting.pop()
        if file in seen or not file.is_file():
            continue
        seen.add(file)
        for raw in read_text(file.resolve(), LARGEST).splitlines():
            included = re.match(r"\s*(-r|--requirement|-c|--constraint)[ =]*([^#]+)", raw)
            if not included or "://" in included[2]:
                continue
            other = file.parent / included[2].strip()
            waiting.append(other)
            if included[1] in ("-c", "--constraint") or file in found:
                found.add(other)
    return found
