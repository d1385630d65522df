"""In a program that a test starts with this folder on PYTHONPATH: writes down what it opens for
reading below $HPCSTACK_AUDIT_BELOW, and whether the gate (hpcstack/core/gate.py) was asked about it.

At the end $HPCSTACK_AUDIT_TO gets a line of JSON for each file: {path, judged, by}, where `by` names
the functions that opened it. A file is told from others by device and inode, so that it does not
matter by which name, or relative to which descriptor, it was opened. Listings of folders are not
counted, nor what is opened for writing alone, nor what this process has made itself.
"""

from __future__ import annotations

import atexit
import importlib.abc
import json
import os
import stat
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

BELOW = tuple(os.environ["HPCSTACK_AUDIT_BELOW"].split(":"))
TO = os.environ["HPCSTACK_AUDIT_TO"]
opened: dict[tuple[int, int], dict[str, Any]] = {}
judged: set[tuple[int, int]] = set()
made: set[tuple[int, int]] = set()  # by this very process, where no file was
is_at_work = False
real_open, real_exit = os.open, os._exit


def note(about: os.stat_result, path: str) -> None:
    is_below = stat.S_ISREG(about.st_mode) and path.startswith(BELOW)
    if not is_below or (about.st_dev, about.st_ino) in made:
        return
    frames = traceback.extract_stack()
    by = [
        f"{one.filename.rpartition('/hpcstack/')[2]}:{one.name}"
        for one in frames
        if "/hpcstack/" in one.filename
    ]
    opened.setdefault((about.st_dev, about.st_ino), {"path": path, "by": by[-5:]})


def open_noted(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    """Be os.open: what is relative to a descriptor is known by its own descriptor."""
    descriptor = real_open(path, flags, mode, dir_fd=dir_fd)
    about = os.fstat(descriptor)
    if flags & os.O_CREAT and flags & os.O_EXCL:
        made.add((about.st_dev, about.st_ino))
    elif flags & os.O_ACCMODE != os.O_WRONLY:
        note(about, str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    return descriptor


def hear(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what is opened by another way than os.open: by its absolute path."""
    global is_at_work
    if event != "open" or is_at_work:
        return
    path, mode = arguments[0], arguments[1]
    if not isinstance(path, (str, bytes)) or (isinstance(mode, str) and "r" not in mode):
        return
    is_at_work = True
    try:
        name = os.path.realpath(os.fsdecode(path))
        if Path(os.fsdecode(path)).is_absolute():
            note(Path(name).stat(), name)
    except OSError:
        return
    finally:
        is_at_work = False


class Finder(importlib.abc.MetaPathFinder):
    """Wraps the gate's judgement as soon as its module has been imported."""

    def find_spec(self, name: str, *_: Any) -> None:
        gate = sys.modules.get("hpcstack.core.gate")
        if gate is not None and hasattr(gate, "explain_disbelief"):
            sys.meta_path.remove(self)
            wrap(gate)


def wrap(gate: ModuleType) -> None:
    real = gate.explain_disbelief

    def explain_disbelief(about: os.stat_result, sharing: Any) -> str:
        judged.add((about.st_dev, about.st_ino))
        return str(real(about, sharing))

    gate.explain_disbelief = explain_disbelief  # type: ignore[attr-defined]


def write() -> None:
    with Path(TO).open("a", encoding="utf-8") as file:
        for number, one in opened.items():
            file.write(json.dumps({**one, "judged": number in judged}) + "\n")


def exit_written(status: int) -> None:
    """Be os._exit, by which a verb ends where it has nothing to tidy up."""
    write()
    real_exit(status)


os.open = open_noted
os._exit = exit_written  # type: ignore[assignment]
sys.addaudithook(hear)
sys.meta_path.insert(0, Finder())
atexit.register(write)
