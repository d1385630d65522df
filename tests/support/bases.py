"""Small bases of this machine's own programs, packed as an import packs: enough to run a step in."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

from support.testbed import Testbed

PROGRAMS = ("bash", "cat", "ls", "mkdir", "rmdir", "touch", "rm", "grep", "mount", "umount", "sleep", "mknod", "chmod",
            "readlink", "id", "find", "sh", "cp", "env", "true", "stat", "unshare")  # fmt: skip


def make_base(
    folder: Path,
    *,
    lacks: tuple[str, ...] = (),
    links: dict[str, str] | None = None,
    device: bool = False,
    python: bool = False,
    bash: str = "",
) -> None:
    """A base of this machine's own programs but those that it LACKS, with LINKS in the place of
    files; with its Python, and with BASH, a script, as its /bin/bash, where these are asked for.
    """
    tree = folder / "tree"
    for name in (
        "etc",
        "proc",
        "sys",
        "dev",
        "tmp",
        "var/tmp",
        "mnt",
        "opt",
        "usr/bin",
        "root",
        "run",
        "home",
    ):
        (tree / name).mkdir(parents=True, exist_ok=True)
    (tree / "bin").symlink_to("usr/bin")
    wanted: set[str] = set()
    for name in PROGRAMS:
        if name in lacks:
            continue
        found = Path(shutil.which(name) or "").resolve()
        shutil.copy(found, tree / "usr/bin" / name)
        listed = subprocess.run(
            ["ldd", str(found)], capture_output=True, text=True, check=False
        ).stdout
        wanted |= set(re.findall(r"(/\S+)", listed))
    for path in wanted:
        target = tree / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(path).resolve(), target)
    if python:
        copy_python(tree)
    if bash:
        (tree / "usr/bin/bash").write_text(bash)
    if device:
        with contextlib.suppress(OSError):  # root's alone to make; one like /dev/zero
            os.mknod(tree / "opt/device", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
            (tree / "opt/device").chmod(0o666)
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (tree / "etc/group").write_text("root:x:0:\n")
    for name in ("hosts", "resolv.conf", "shadow"):
        (tree / "etc" / name).touch()
    for name, to in (links or {}).items():
        link = tree / name
        if link.is_dir():
            shutil.rmtree(link)
        else:
            link.unlink(missing_ok=True)
        link.symlink_to(to)
    argv = [
        "mksquashfs",
        str(tree),
        str(folder / "base.sqsh"),
        "-all-root",
        "-quiet",
        "-no-progress",
        "-noappend",
        "-no-xattrs",
    ]
    subprocess.run(argv, check=True, capture_output=True)


def machines_python() -> tuple[Path, Path]:
    """The program and the library of the Python that the testbed's hpcstack runs in: everybody can
    read it.
    """
    ask = (
        "import os, sys, sysconfig; print(os.path.realpath(sys.executable), "
        "sysconfig.get_path('stdlib'))"
    )
    python = Testbed().folder / "venv/bin/python"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    program, library = done.stdout.split()
    return Path(program), Path(library)


def copy_python(tree: Path) -> None:
    """TREE, of a base, gets this machine's Python: as much of it as begins without a library, and
    its sockets.
    """
    program, library = machines_python()
    wanted = {str(program), *_libraries(program)}
    for name in (
        "os.py",
        "encodings/__init__.py",
        "encodings/aliases.py",
        "encodings/utf_8.py",
        "encodings/ascii.py",
        "linecache.py",  # Python 3.14 keeps the text of `-c` in it
    ):
        wanted.add(str(library / name))
    for extension in (library / "lib-dynload").glob("_socket.*"):
        wanted |= {str(extension), *_libraries(extension)}
    for path in wanted:
        target = tree / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(path).resolve(), target)


def _libraries(program: Path) -> set[str]:
    listed = subprocess.run(
        ["ldd", str(program)], capture_output=True, text=True, check=False
    ).stdout
    return set(re.findall(r"(/\S+) \(", listed))
