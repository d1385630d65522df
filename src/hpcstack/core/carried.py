"""What git carries: files that whoever wrote a checkout has put there, for whoever works in it.

The author of a pull request is not the owner of the files, though they are the owner's: git makes
them as whoever checks out. And git carries symbolic links. So in a checkout no link is followed out
of the folder that is read, and none at all where something is written. Sizes are bounded.

A checkout is what has a `.git` at its top, which git does not carry. What a command writes into the
current folder counts as being in one: an archive that was unpacked has no `.git`.

Tested in tests/hostile/test_checkouts.py.
"""

from __future__ import annotations

import os
from pathlib import Path

from hpcstack.core.errors import InputError
from hpcstack.core.yaml import read_yaml_text

LEADS_OUT = "a symlink that leads out of its folder; put the file itself there, or name its folder"


def read_carried_text(path: Path, folder: Path, limit: int) -> str:
    """Return the text of the ordinary file PATH in FOLDER, at most LIMIT bytes, UTF-8.

    Its line ends stay as they are. A link to a file in FOLDER is followed. Raise ValueError, which
    says why, for any other.
    """
    return read_yaml_text(_resolve_within(path, folder), limit)


def _resolve_within(path: Path, folder: Path) -> Path:
    """Return PATH without links. Raise ValueError where it does not lie in FOLDER."""
    try:
        real = path.resolve()
        if path.is_symlink():
            path.stat()  # Python 3.13 resolves a link that leads to itself without an error
    except FileNotFoundError:
        raise ValueError("a symlink that leads nowhere") from None
    except (OSError, RuntimeError):
        raise ValueError("a symlink that leads to itself") from None
    if not real.is_relative_to(folder.resolve()):
        raise ValueError(LEADS_OUT)
    return real


def check_carried_folder(folder: Path) -> None:
    """Raise InputError where a link in a checkout leads from FOLDER out of that checkout."""
    place = _make_absolute(folder)
    top = _find_checkout(place)
    if top and not place.resolve().is_relative_to(top.resolve()):
        raise InputError(
            f"{folder} lies behind a symbolic link that leads out of {top}, where git may have "
            "brought it",
            f"look where it leads, and name that folder itself: {place.resolve()}",
        )


def check_carried_output(path: Path) -> None:
    """Raise InputError where what is written to PATH could go where a link leads that git carries."""
    place = _make_absolute(path)
    here = Path.cwd()
    is_in_current_folder = here != Path("/") and place.is_relative_to(here)
    is_carried = is_in_current_folder or _find_checkout(place) is not None
    if is_carried and place.is_symlink():
        raise InputError(
            f"{path} is a symbolic link, as git may have brought it",
            f"look where it leads, and name that file itself, or: rm {path}",
        )
    check_carried_folder(place.parent)


def _make_absolute(path: Path) -> Path:
    """Return PATH from the root on, without `..`, and with its links."""
    return Path(os.path.abspath(path))  # noqa: PTH100


def _find_checkout(place: Path) -> Path | None:
    """Return the top of the checkout that PLACE lies in; None where it lies in none.

    What a link leads to is another checkout, perhaps: it is not looked at.
    """
    found = None
    for folder in (*reversed(place.parents), place):
        if folder.is_symlink() and found:
            return found
        if os.path.lexists(folder / ".git"):
            found = folder
    return found
