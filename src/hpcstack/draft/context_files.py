"""What `COPY` and `%files` take from a folder, as files of a recipe.

Tested in tests/unit/draft/test_from_dockerfile.py and tests/unit/draft/test_from_definition.py.
"""

from __future__ import annotations

import posixpath
import re
import stat
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.core.files import read_bytes
from hpcstack.draft.source_text import read_source
from hpcstack.recipe.fields import MAX_SCRIPT, check_script

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IGNORED = ".dockerignore"
MAX_LISTED = 5000  # files and folders that are looked at
MAX_COPIED = 200  # files that one line copies: a recipe is no archive
MOUNT = (
    "code and data need not be in an image: launch starts them where they lie, --mount SOURCE:TARGET "
    "shows them to a job"
)
# Folders that any base has, and /workspace of NVIDIA's: a file that is copied there goes into them.
FOLDERS = frozenset(
    [
        *("/", "/bin", "/etc", "/home", "/lib", "/media", "/mnt", "/opt", "/root", "/sbin", "/srv"),
        *("/tmp", "/usr", "/usr/bin", "/usr/include", "/usr/lib", "/usr/local", "/usr/local/bin"),
        *(
            "/usr/local/include",
            "/usr/local/lib",
            "/usr/local/sbin",
            "/usr/local/share",
            "/usr/sbin",
        ),
        *("/usr/share", "/usr/share/keyrings", "/usr/src", "/var", "/var/lib", "/var/tmp"),
        *("/etc/apt", "/etc/apt/apt.conf.d", "/etc/apt/keyrings", "/etc/apt/preferences.d"),
        *("/etc/apt/sources.list.d", "/etc/ld.so.conf.d", "/etc/profile.d", "/etc/yum.repos.d"),
        "/workspace",
    ]
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


class Context:
    """The folder that files are copied from. With IGNORE, a file lists what counts as not there."""

    def __init__(self, folder: Path, ignore: Path | None = None) -> None:
        self.top = folder.resolve()
        self.ignore = ignore

    def find_folder(self, source: str) -> Path | None:
        """Return the folder that SOURCE is in it; None where it is none, or lies outside."""
        try:
            folder = (self.top / source.lstrip("/")).resolve()
            return folder if folder.is_dir() and folder.is_relative_to(self.top) else None
        except (OSError, RuntimeError, ValueError):
            return None

    def find_file(self, folder: Path, name: str) -> Path | None:
        """Return the file NAME of its FOLDER; None where it is none, or leads outside."""
        try:
            file = (folder / name).resolve()
            return file if file.is_file() and file.is_relative_to(self.top) else None
        except (OSError, RuntimeError, ValueError):
            return None

    def list_copied(self, sources: list[str], target: str, *, is_into: bool) -> list[CopiedFile]:
        """Return the files that Docker's COPY of SOURCES makes at TARGET, a path of the image.

        Of a folder its content is copied. With IS_INTO, TARGET is a folder. Raise CannotCopy for
        what is not there, lies outside, is no ordinary text, or is too much.
        """
        out: list[CopiedFile] = []
        for source in sources:
            for path in self._find(source):
                for file in self._list_files(path):
                    place = posixpath.join(target, path.name) if is_into else target
                    if path.is_dir():
                        place = posixpath.join(target, str(file.relative_to(path)))
                    out.append(self._copy(file, place))
                    _refuse_many(out)
        if not out:
            raise CannotCopy("no file of the context is that")
        return out

    def list_copied_whole(self, source: str, target: str) -> list[CopiedFile]:
        """Return the files that `cp -r SOURCE TARGET` makes, as Apptainer's %files does."""
        out: list[CopiedFile] = []
        for path in self._find(source):
            is_into = target.endswith("/") or posixpath.normpath(target) in FOLDERS
            place = posixpath.join(target, path.name) if is_into else target
            for file in self._list_files(path):
                below = str(file.relative_to(path)) if path.is_dir() else ""
                out.append(self._copy(file, posixpath.join(place, below)))
                _refuse_many(out)
        if not out:
            raise CannotCopy("no file of the context is that")
        return out

    def _find(self, source: str) -> Iterator[Path]:
        """Yield what SOURCE, a path or a pattern, is. Raise CannotCopy for nothing."""
        plain = posixpath.normpath(source.lstrip("/") or ".")
        if plain.startswith(".."):
            raise CannotCopy(f"{source} lies outside of {self.top}")
        if plain == ".":
            yield self.top
            return
        try:
            # In Docker's patterns two stars are one.
            found = list(islice(self.top.glob(re.sub(r"\*+", "*", plain)), MAX_LISTED))
        except (OSError, RuntimeError, ValueError, NotImplementedError, re.error):
            raise CannotCopy("this is no path that can be looked for") from None
        kept = [path for path in found if self._is_kept(path)]
        if not kept:
            raise CannotCopy(f"{self.top} has no {source}; --context DIR names another folder")
        yield from sorted(kept)

    def _list_files(self, path: Path) -> list[Path]:
        """Return the files of PATH, itself or those below it. Raise CannotCopy for odd ones."""
        if not path.is_dir():
            return [path]
        if path.is_symlink():
            raise CannotCopy(f"{path.relative_to(self.top)} is a link to a folder")
        found = list(islice(path.rglob("*"), MAX_LISTED + 1))
        if len(found) > MAX_LISTED:
            raise CannotCopy(f"{path} has more than {MAX_LISTED} files; {MOUNT}")
        kept = [one for one in found if self._is_kept(one)]
        return sorted(one for one in kept if one.is_symlink() or not one.is_dir())

    def _is_kept(self, path: Path) -> bool:
        kept = self._kept
        name = str(path.relative_to(self.top))
        is_folder = path.is_dir() and not path.is_symlink()
        return kept is None or name in kept or is_folder

    @cached_property
    def _kept(self) -> set[str] | None:
        """The files that the list of those to ignore lets through; None where there is none."""
        if not self.ignore or not self.ignore.is_file():
            return None
        from docker.utils.build import exclude_paths

        lines = [line.strip() for line in read_source(self.ignore).split("\n")]
        patterns = [line for line in lines if line and not line.startswith("#")]
        try:
            kept: set[str] = exclude_paths(str(self.top), patterns)
        except (OSError, RuntimeError, re.error) as error:
            raise InputError(
                f"{self.ignore} cannot be used: {error}",
                "correct the file",
                page="bring-what-you-have",
            ) from None
        return kept

    def _copy(self, file: Path, target: str) -> CopiedFile:
        name = file.relative_to(self.top)
        about = file.lstat()
        if stat.S_ISLNK(about.st_mode):
            raise CannotCopy(f"{name} is a link, and a recipe has files alone")
        if not stat.S_ISREG(about.st_mode):
            raise CannotCopy(f"{name} is no ordinary file")
        if not file.resolve().is_relative_to(self.top):
            raise CannotCopy(f"{name} leads out of {self.top}")
        if about.st_size > MAX_SCRIPT:
            raise CannotCopy(f"{name} is larger than {MAX_SCRIPT} bytes; {MOUNT}")
        try:
            # Below the context by its descriptor: a colleague may put a link there meanwhile.
            content = check_script(read_bytes(file, MAX_SCRIPT, below=self.top).decode())
        except InputError as error:
            raise CannotCopy(f"{name} cannot be read: {error.message}") from None
        except ValueError as error:
            why = "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
            raise CannotCopy(f"{name} is no text of a recipe ({why}); {MOUNT}") from None
        except OSError as error:
            raise CannotCopy(f"{name} cannot be read: {error.strerror}") from None
        mode = f"{stat.S_IMODE(about.st_mode) & 0o777:04o}"
        return CopiedFile(file, posixpath.normpath(target), content, mode)


def _refuse_many(files: list[CopiedFile]) -> None:
    if len(files) > MAX_COPIED:
        raise CannotCopy(f"these are more than {MAX_COPIED} files; {MOUNT}")
