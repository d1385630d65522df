"""What a Lua modulefile of a site's does to the environment, so that its successor does the same.

The file is run by Lua, with functions of ours in place of Lmod's and nothing that reaches files or programs.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core import data
from hpcstack.core.characters import CONTROL, VARIABLE
from hpcstack.core.errors import InputError, MissingToolError
from hpcstack.core.files import read_text

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.process import Runner

LUAS = ("lua", "lua5.4", "lua5.3", "lua5.1", "luajit")
SECONDS = 10
MAX_MODULEFILE = 1 << 20  # bytes
MAX_FILES = 2000  # modulefiles of a tree that are looked at
FIELDS = 4  # what the reader writes for each act: its kind, a name, a value, a separator


@dataclass(frozen=True)
class LuaModule:
    """What the modulefile PATH does, as `module.environment` of a recipe has it, and what was not taken over."""

    path: Path
    settings: dict[str, dict[str, object]]
    left_out: tuple[str, ...]


def find_modulefile(tree: Path, name: str, version: str, image: Path | None) -> Path:
    """The modulefile of NAME VERSION in TREE, a file or a folder: NAME/VERSION.lua, else the one that names IMAGE.

    InputError where there is none, or more than one.
    """
    if tree.is_file():
        return tree
    if not tree.is_dir():
        raise InputError(f"--lua {tree}: there is no such file or folder")
    modulefiles = sorted(tree.rglob("*.lua"))[:MAX_FILES]
    own = [path for path in modulefiles if path.parts[-2:] == (name, f"{version}.lua")]
    if not own and image:
        own = [path for path in modulefiles if image.name in read_text(path, MAX_MODULEFILE)]
    if len(own) == 1:
        return own[0]
    among = f", but {len(own)}: {', '.join(map(str, own[:5]))}" if own else f" among {len(modulefiles)}"
    raise InputError(f"{tree} has no one modulefile of {name}/{version}{among}", "name the file itself: --lua FILE")


def read_modulefile(path: Path, name: str, version: str, runner: Runner) -> LuaModule:
    """What the Lua modulefile PATH does when NAME/VERSION is loaded. InputError where Lua cannot run it."""
    lua = next((one for one in LUAS if shutil.which(one)), "")
    if not lua:
        raise MissingToolError("there is no Lua here, which reads --lua", "install lua5.3, or leave --lua out")
    reader = str(data.folder("modules") / "read-modulefile.lua")
    done = runner.output([lua, reader, str(path.absolute()), name, version], timeout=SECONDS)
    if done.status:
        said = done.tail[-1] if done.tail else f"exit {done.status}"
        raise InputError(f"--lua {path}: {said}", "does `module load` take it?")
    return _read_acts(path, done.stdout)


def _read_acts(path: Path, text: str) -> LuaModule:
    words = text.split("\0")[:-1]
    settings: dict[str, dict[str, object]] = {}
    left_out: list[str] = []
    for at in range(0, len(words) - FIELDS + 1, FIELDS):
        kind, name, value, separator = words[at : at + FIELDS]
        if CONTROL.search(name + value + separator) or (kind != "other" and not VARIABLE.fullmatch(name)):
            left_out.append(f"{kind} {name!r}")
        elif kind == "set":
            settings[name] = {"set": value}
        elif kind in ("prepend", "append"):
            _add_parts(settings, left_out, kind, name, value, separator)
        else:
            left_out.append(f"{name} {value}".strip())
    return LuaModule(path, settings, tuple(dict.fromkeys(left_out)))


def _add_parts(
    settings: dict[str, dict[str, object]], left_out: list[str], kind: str, name: str, value: str, separator: str
) -> None:
    """VALUE before or behind NAME's parts, as Lmod puts it: what is prepended later comes first."""
    known = settings.setdefault(name, {"prepend": [], "append": [], "separator": separator})
    if "set" in known or known["separator"] != separator:
        left_out.append(f"{kind} {name} {value}")
        return
    parts = known[kind]
    assert isinstance(parts, list)
    new = [part for part in value.split(separator) if part]
    parts[:] = [*new, *parts] if kind == "prepend" else [*parts, *new]
