"""Trees on disk, for tests of images: made by a seed, changed by a seed, and listed in full.

As a program: `trees.py list FOLDER` prints the listing as JSON, `trees.py change FOLDER SEED COUNT`
changes what is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import stat
import sys
import tarfile
from pathlib import Path

NAMES = (
    "a",
    "bin",
    "lib",
    "lib64",
    "share",
    "x" * 60,
    "data.bin",
    "UPPER",
    "ümlaut",
    ".hidden",
    "b c",
    "z",
)
LENGTHS = (0, 1, 100, 4096, 70_000, 131_072, 131_073, 300_000)


def trust_archive(archive: tarfile.TarFile) -> None:
    """Take what ARCHIVE, the test's own, holds as it is. Pythons before 3.11.4 do so anyway."""
    take = getattr(tarfile, "fully_trusted_filter", None)
    if take:
        archive.extraction_filter = take


def described(path: Path) -> list[object]:
    """What PATH, a name, is: kind and mode, owner, time, links, size, content, target or device,
    attributes.
    """
    about = path.lstat()
    content = ""
    if stat.S_ISREG(about.st_mode):
        content = hashlib.sha256(path.read_bytes()).hexdigest()[:20]
    elif stat.S_ISLNK(about.st_mode):
        content = os.readlink(path)  # noqa: PTH115
    xattrs = {}
    with contextlib.suppress(OSError):
        for name in sorted(os.listxattr(path, follow_symlinks=False)):
            if not name.startswith(("user.overlay.", "trusted.overlay.", "security.selinux")):
                with contextlib.suppress(OSError):
                    xattrs[name] = os.getxattr(path, name, follow_symlinks=False).hex()
    size = about.st_size if stat.S_ISREG(about.st_mode) else 0
    return [
        oct(about.st_mode),
        about.st_uid,
        about.st_gid,
        int(about.st_mtime),
        size,
        content,
        about.st_rdev,
        xattrs,
    ]


def listing(top: Path) -> dict[str, list[object]]:
    """{path: what it is} of all below TOP; names of one file say which path names it first."""
    out: dict[str, list[object]] = {}
    first: dict[int, str] = {}
    for folder, folders, files in os.walk(top):
        folders.sort()
        for name in (
            ["", *sorted(folders + files)] if folder == str(top) else sorted(folders + files)
        ):
            path = Path(folder) / name if name else top
            where = str(path.relative_to(top))
            number = path.lstat().st_ino
            same = (
                where
                if path.is_dir() and not path.is_symlink()
                else first.setdefault(number, where)
            )
            out[where] = [*described(path), same]
    return out


def _folders(top: Path) -> list[Path]:
    return [top, *sorted(Path(here) / name for here, names, _ in os.walk(top) for name in names
                         if not (Path(here) / name).is_symlink())]  # fmt: skip


def _files(top: Path) -> list[Path]:
    return sorted(Path(here) / name for here, _, names in os.walk(top) for name in names)


def _content(chance: random.Random) -> bytes:
    size = chance.choice(LENGTHS)
    data = chance.randbytes(size // 2) + b"text " * (size // 10)
    return bytes(262_144) + data if chance.random() < 0.1 else data


def _new(chance: random.Random, path: Path, top: Path) -> None:
    what = chance.random()
    if what < 0.3:
        path.mkdir()
    elif what < 0.7:
        path.write_bytes(_content(chance))
        if chance.random() < 0.2:
            path.chmod(chance.choice((0o600, 0o755, 0o4755)))
    elif what < 0.8:
        path.symlink_to(chance.choice(("a", "/etc/passwd", "../x", "nowhere")))
    elif what < 0.9:
        files = [one for one in _files(top) if not one.is_symlink() and one.is_file()]
        if files:
            os.link(chance.choice(files), path)
    elif what < 0.93:
        os.mkfifo(path)
    else:
        path.write_bytes(b"attributes")
        with contextlib.suppress(OSError):
            os.setxattr(path, "user.note", chance.randbytes(chance.choice((1, 40, 900))))


def change(top: Path, seed: int, count: int) -> None:
    """COUNT changes below TOP: new names, other contents, modes, times and attributes, deletions,
    folders made anew.
    """
    chance = random.Random(seed)
    for _ in range(count):
        folder = chance.choice(_folders(top))
        path = folder / chance.choice(NAMES)
        what = chance.random()
        with contextlib.suppress(FileNotFoundError):
            if not os.path.lexists(path):
                _new(chance, path, top)
            elif path.is_symlink() or not path.is_dir():
                if what < 0.3 or path.is_symlink() or not path.is_file():
                    path.unlink()
                    if what < 0.15:
                        _new(chance, path, top)
                elif what < 0.8:
                    with path.open("ab") as file:
                        file.write(_content(chance))
                else:
                    path.chmod(0o640)
            elif what < 0.12:
                shutil.rmtree(path)
                if what < 0.08:
                    _new(chance, path, top)
            elif what < 0.4:
                path.chmod(0o750)
            elif what < 0.5:
                with contextlib.suppress(OSError):
                    os.setxattr(path, "user.folder", b"yes")
    for path in (*_files(top), *reversed(_folders(top))):
        about = path.lstat()
        if (
            about.st_mtime > 1_600_000_000
        ):  # what was touched: a time that does not hang on the clock
            os.utime(path, (1_500_000_000, 1_500_000_000 + seed % 1000), follow_symlinks=False)


if __name__ == "__main__":
    if sys.argv[1] == "list":
        json.dump(listing(Path(sys.argv[2])), sys.stdout)
    else:
        change(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
