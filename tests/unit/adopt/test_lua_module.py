"""What a site's Lua modulefile does, read by the Lua that runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.adopt.lua_module import LuaModule, find_modulefile, read_modulefile
from hpcstack.core.errors import InputError
from hpcstack.core.process import Runner

pytestmark = pytest.mark.lua

MODULEFILE = """\
help([[A site's own]])
whatis("Name: mytorch")
family("torch")
local base = pathJoin("/apps", myModuleName(), myModuleVersion())
setenv("MYTORCH_HOME", base)
pushenv("CC", "gcc")
prepend_path("PATH", pathJoin(base, "bin"))
prepend_path("PATH", "/apps/first")
append_path{"DIRS", "/a;/b", delim=";"}
if mode() == "load" then LmodMessage("hello") end
load("gcc/12")
"""


def read(tmp_path: Path, text: str) -> LuaModule:
    path = tmp_path / "1.lua"
    path.write_text(text)
    return read_modulefile(path, "mytorch", "1", Runner())


def test_variables_and_paths_are_kept_in_lmods_order(tmp_path: Path) -> None:
    found = read(tmp_path, MODULEFILE)
    assert found.settings == {
        "MYTORCH_HOME": {"set": "/apps/mytorch/1"},
        "CC": {"set": "gcc"},
        "PATH": {"prepend": ["/apps/first", "/apps/mytorch/1/bin"], "append": [], "separator": ":"},
        "DIRS": {"prepend": [], "append": ["/a", "/b"], "separator": ";"},
    }


def test_what_is_not_kept_is_said(tmp_path: Path) -> None:
    assert read(tmp_path, MODULEFILE).left_out == ("LmodMessage hello", "load gcc/12")


def test_a_modulefile_reaches_no_file_and_no_program(tmp_path: Path) -> None:
    text = (
        f'local file = io.open("{tmp_path}/made", "w")\nif file then file:write("x") end\n'
        f'os.execute("touch {tmp_path}/made")\n'
    )
    with pytest.raises(InputError):
        read(tmp_path, text)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("while true do end\n", "does not end"),
        ("setenv(\n", "near"),
        ("\x1bLua", "no text"),
        ("error('the site says no')\n", "the site says no"),
    ],
    ids=["endless", "no-lua", "compiled", "refuses"],
)
def test_what_cannot_be_run_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(tmp_path, text)


def test_what_no_recipe_can_hold_is_left_out(tmp_path: Path) -> None:
    found = read(tmp_path, 'setenv("A B", "1")\nsetenv("LINES", "a\\nb")\nsetenv("OK", "1")\n')
    assert list(found.settings) == ["OK"] and len(found.left_out) == 2


def test_the_modulefile_is_found_in_a_tree(tmp_path: Path) -> None:
    for name in ("Core/mytorch/1.lua", "Core/mytorch/2.lua", "Core/other/1.lua"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'setenv("IMAGE", "/images/{path.parent.name}-{path.stem}.sqsh")\n')
    assert find_modulefile(tmp_path, "mytorch", "2", None) == tmp_path / "Core/mytorch/2.lua"
    assert find_modulefile(tmp_path, "new", "7", Path("/x/other-1.sqsh")) == tmp_path / "Core/other/1.lua"
    for tree, image in ((tmp_path, Path("/x/none.sqsh")), (tmp_path / "absent", None)):
        with pytest.raises(InputError):
            find_modulefile(tree, "new", "7", image)
