"""Read what a site's Lua modulefile does to the environment, so that its successor does the same.

Lua runs the file, with our own functions in place of Lmod's, and without those that reach files or
programs.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from hpcstack.core import data
from hpcstack.core.characters import CONTROL, VARIABLE
from hpcstack.core.errors import InputError, MissingToolError
from hpcstack.core.files import read_text
from hpcstack.recipe.model import Setting
from hpcstack.recipe.module_values import normalize_part

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.process import Runner

LUAS = ("lua", "lua5.4", "lua5.3", "lua5.1", "luajit")
SECONDS = 10  # that a modulefile may take
MAX_MODULEFILE = 1 << 20  # bytes
MAX_FILES = 2000  # modulefiles of a tree that are searched for the image's name
MEMORY = 256 << 20  # bytes that Lua may take
# Folders that are on every PATH. Lmod moves such a folder to the front, and takes it away when the
# module is unloaded.
EVERY_SHELLS = ("/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin", "/usr/local/sbin")
# Variables by which modules find each other.
OF_MODULES = re.compile(r"MODULEPATH$|LOADEDMODULES$|_LMFILES_$|_{0,2}LMOD_")
FIELDS = 4  # what the reader writes for each act: its kind, a name, a value, a separator


@dataclass(frozen=True)
class LuaModule:
    """What the modulefile PATH does.

    SETTINGS are what a recipe's `module.environment` would say, LEFT_OUT what was not taken over.
    """

    path: Path
    settings: dict[str, dict[str, object]]
    left_out: tuple[str, ...]


def find_modulefile(tree: Path, name: str, version: str, image: Path | None) -> Path:
    """Return the modulefile of NAME and VERSION in TREE, which is a file or a folder.

    It is NAME/VERSION.lua, or else the one that names IMAGE's file. Raise InputError for none, and
    for more than one.
    """
    if tree.is_file():
        return tree
    if not tree.is_dir():
        raise InputError(f"--lua {tree}: there is no such file or folder", page="adopt-an-image")
    modulefiles = sorted(tree.rglob("*.lua"))
    own = [path for path in modulefiles if path.parts[-2:] == (name, f"{version}.lua")]
    if not own and image:
        own = [path for path in modulefiles[:MAX_FILES] if _has_word(path, image.name)]
    if len(own) == 1:
        return own[0]

    among = f" among {len(modulefiles)}"
    if own:
        among = f", but {len(own)}: {', '.join(map(str, own[:5]))}"
    raise InputError(
        f"{tree} has no single modulefile for {name}/{version}{among}",
        "name the file itself: --lua FILE",
        page="adopt-an-image",
    )


def _has_word(path: Path, word: str) -> bool:
    """Return whether the file PATH has WORD in it.

    One that cannot be read, or is too large for a modulefile, has not.
    """
    try:
        return word in read_text(path, MAX_MODULEFILE)
    except (OSError, ValueError, InputError):
        return False


def read_modulefile(path: Path, runner: Runner) -> LuaModule:
    """Return what the Lua modulefile PATH, NAME/VERSION.lua, does when it is loaded.

    Raise InputError where Lua cannot run it, MissingToolError where there is no Lua.
    """
    lua = next((one for one in LUAS if shutil.which(one)), "")
    if not lua:
        raise MissingToolError(
            "--lua needs a Lua interpreter, and none is installed",
            "install lua5.3, or leave --lua out",
            page="adopt-an-image",
        )
    reader = str(data.find_data_folder("modules") / "read-modulefile.lua")
    bounded = ["prlimit", f"--as={MEMORY}", "--core=0"]
    # LUA_INIT names a file that Lua runs first, before ours has taken anything away.
    clean = ["env", "-i", "PATH=/usr/bin:/bin"]
    whole = path.absolute()
    argv = [*bounded, *clean, lua, reader, str(whole), whole.parent.name, whole.stem]
    done = runner.output(argv, timeout=SECONDS)
    if done.status:
        said = done.tail[-1] if done.tail else f"exit {done.status}"
        raise InputError(
            f"--lua {path}: {said}", "does `module load` take it?", page="adopt-an-image"
        )
    return _read_acts(path, done.stdout)


def _read_acts(path: Path, text: str) -> LuaModule:
    """Return what the reader wrote as TEXT: FIELDS of each act of the modulefile, NUL between."""
    words = text.split("\0")[:-1]
    settings: dict[str, dict[str, object]] = {}
    left_out: list[str] = []
    for at in range(0, len(words) - FIELDS + 1, FIELDS):
        kind, name, value, separator = words[at : at + FIELDS]
        is_variable = kind == "other" or VARIABLE.fullmatch(name)
        if CONTROL.search(name + value + separator) or not is_variable:
            left_out.append(f"{kind} {name!r}")
        elif kind != "other" and OF_MODULES.match(name):
            left_out.append(f"{kind} {name} {value}: it is for modules of the old tree")
        elif kind == "set":
            if _is_setting({"set": value}):
                settings[name] = {"set": value}
            else:
                left_out.append(f"{name}: a recipe cannot hold its value")
        elif kind in ("unset", "remove"):
            _take_away(settings, name, value, separator)
            left_out.append(f"{kind} {name} {value}".strip())
        elif kind in ("prepend", "append"):
            _add_parts(settings, left_out, kind, name, value, separator or ":")
        else:
            left_out.append(f"{name} {value}".strip())
    return LuaModule(path, settings, tuple(dict.fromkeys(left_out)))


def _is_setting(value: dict[str, object]) -> bool:
    """Return whether a recipe's `module.environment` takes VALUE."""
    try:
        return not Setting.model_validate(value).explain_change_by_modules()
    except ValidationError:
        return False


def _take_away(
    settings: dict[str, dict[str, object]], name: str, value: str, separator: str
) -> None:
    """Take NAME out of SETTINGS; with a VALUE, only these parts of it."""
    known = settings.get(name)
    if known is None or (value and "set" in known):
        return
    if not value:
        del settings[name]
        return
    gone = [normalize_part(part) for part in value.split(separator or ":") if part]
    for side in ("prepend", "append"):
        parts = known[side]
        assert isinstance(parts, list)
        known[side] = [part for part in parts if part not in gone]
    if not known["prepend"] and not known["append"]:
        del settings[name]


def _add_parts(
    settings: dict[str, dict[str, object]],
    left_out: list[str],
    kind: str,
    name: str,
    value: str,
    separator: str,
) -> None:
    """Put VALUE before or behind the parts of NAME in SETTINGS, as Lmod does.

    What is prepended later comes first, and each folder is there once. What a recipe cannot say
    goes into LEFT_OUT.
    """
    said = value.split(separator)
    new = [normalize_part(part) for part in said if part]
    if name == "PATH":
        left_out += [
            f"{kind} {name} {part}: every shell has it" for part in new if part in EVERY_SHELLS
        ]
        new = [part for part in new if part not in EVERY_SHELLS]
    if not all(said):
        left_out.append(f"{kind} {name}: an empty part, which a recipe cannot say")
    if not new:
        return
    known = settings.get(name, {"prepend": [], "append": [], "separator": separator})
    is_mixed = "set" in known or known["separator"] != separator
    if is_mixed or not _is_setting({kind: new, "separator": separator}):
        left_out.append(f"{kind} {name} {value}")
        return

    first = list(dict.fromkeys(new))
    for side in ("prepend", "append"):
        parts = known[side]
        assert isinstance(parts, list)
        rest = [part for part in parts if part not in new]
        if side == kind == "prepend":
            rest = [*first, *rest]
        elif side == kind:
            rest = [*rest, *first]
        known[side] = rest
    settings[name] = known
