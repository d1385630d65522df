"""What `COPY` and `%files` take from a folder, as files of a recipe.

Tested in tests/unit/draft/test_from_dockerfile.py.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from hpcstack.core.files import read_bytes, read_text
from hpcstack.recipe.fields import MAX_SCRIPT, check_script

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IGNORED = ".dockerignore"
MAX_IGNORED = 1 << 16  # bytes of it
MAX_LISTED = 5000  # files and folders that are looked at
MAX_COPIED = 200  # files that one line copies: a recipe is no archive
MOUNT = (
    "code and data need not be in an image: launch starts them where they lie, --mount SOURCE:TARGET "
    "shows them to a job"
)


class CannotCopy(Exception):
    """A recipe cannot hold what would be copied; the text says why."""


@dataclass(frozen=True)
class CopiedFile:
    """SOURCE, a file of the context, as PATH of the image."""

    source: Path
    path: str
    content: str
    mode: str


def list_copied(
    context: Path, sources: list[str], target: str, *, is_into: bool
) -> list[CopiedFile]:
    """Return the files that SOURCES of the folder CONTEXT become at TARGET, a path of the image.

    Of a folder its content is copied. With IS_INTO, TARGET is a folder. Raise CannotCopy for what
    is not there, lies outside, is no text, or is too much.
    """
    top = context.resolve()
    kept = _list_kept(top)
    out: list[CopiedFile] = []
    for source in sources:
        for path in _find(top, source):
            files = [path] if path.is_file() else _list_below(path)
            for file in files:
                if not file.is_file() or str(file.relative_to(top)) not in kept:
                    continue
                below = file.relative_to(path) if file != path else None
                out.append(_copy(top, file, _name_target(target, file, below, is_into=is_into)))
                if len(out) > MAX_COPIED:
                    raise CannotCopy(f"these are more than {MAX_COPIED} files; {MOUNT}")
    if not out:
        raise CannotCopy("no file of the context is that")
    return out


def _list_below(folder: Path) -> list[Path]:
    found = list(islice(folder.rglob("*"), MAX_LISTED + 1))
    if len(found) > MAX_LISTED:
        raise CannotCopy(f"{folder} has more than {MAX_LISTED} files; {MOUNT}")
    return sorted(found)


def find_folder(context: Path, source: str) -> Path | None:
    """Return the folder that SOURCE is in the folder CONTEXT; None where it is none."""
    top = context.resolve()
    folder = (top / source.lstrip("/")).resolve()
    return folder if folder.is_dir() and folder.is_relative_to(top) else None


def _name_target(target: str, file: Path, below: Path | None, *, is_into: bool) -> str:
    if below is not None:
        return posixpath.normpath(posixpath.join(target, str(below)))
    if is_into:
        return posixpath.normpath(posixpath.join(target, file.name))
    return posixpath.normpath(target)


def _find(top: Path, source: str) -> Iterator[Path]:
    """Yield what SOURCE, a path or a pattern, is in the folder TOP. Raise CannotCopy for nothing."""
    plain = posixpath.normpath(source.lstrip("/") or ".")
    if plain.startswith(".."):
        raise CannotCopy(f"{source} lies outside of {top}")
    found = [top] if plain == "." else sorted(top.glob(plain))
    if not found:
        raise CannotCopy(f"{top} has no {source}; --context DIR names another folder")
    yield from found


def _list_kept(top: Path) -> _Kept:
    patterns = []
    path = top / IGNORED
    if path.is_file():
        lines = [line.strip() for line in read_text(path, MAX_IGNORED).splitlines()]
        patterns = [line for line in lines if line and not line.startswith("#")]
    return _Kept(top, patterns)


class _Kept:
    """Which files of a folder its .dockerignore lets through; all where it has none."""

    def __init__(self, top: Path, patterns: list[str]) -> None:
        self._kept: set[str] | None = None
        if patterns:
            from docker.utils.build import exclude_paths

            self._kept = exclude_paths(str(top), patterns)

    def __contains__(self, name: str) -> bool:
        return self._kept is None or name in self._kept


def _copy(top: Path, file: Path, target: str) -> CopiedFile:
    if not file.resolve().is_relative_to(top):
        raise CannotCopy(f"{file} leads out of {top}")
    if file.stat().st_size > MAX_SCRIPT:
        raise CannotCopy(f"{file.relative_to(top)} is larger than {MAX_SCRIPT} bytes; {MOUNT}")
    try:
        content = check_script(read_bytes(file.resolve(), MAX_SCRIPT).decode())
    except ValueError:
        raise CannotCopy(f"{file.relative_to(top)} is no text; {MOUNT}") from None
    except OSError as error:
        raise CannotCopy(f"{file.relative_to(top)} cannot be read: {error.strerror}") from None
    is_program = file.stat().st_mode & 0o111
    return CopiedFile(file, target, content, "0755" if is_program else "0644")
