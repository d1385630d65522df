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
    path = tmp_path / "mytorch/1.lua"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return read_modulefile(path, Runner())


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
    found = read(tmp_path, text)
    assert found.left_out == (f"os.execute touch {tmp_path}/made",)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("while true do end\n", "does not end"),
        ("setenv(\n", "near"),
        ("\x1bLua", "not a text file"),
        ("local s = ('x'):rep(2e9)\n", "memory"),
        ("for n = 1, 1e6 do setenv('A' .. n, 'value') end\n", "too much"),
        ("error('the site says no')\n", "the site says no"),
    ],
    ids=["endless", "no-lua", "compiled", "memory", "told", "refuses"],
)
def test_what_cannot_be_run_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(tmp_path, text)


def test_what_no_recipe_can_hold_is_left_out(tmp_path: Path) -> None:
    found = read(tmp_path, 'setenv("A B", "1")\nsetenv("LINES", "a\\nb")\nsetenv("OK", "1")\n')
    assert list(found.settings) == ["OK"]
    assert len(found.left_out) == 2


def test_the_modulefile_is_found_in_a_tree(tmp_path: Path) -> None:
    for name in ("Core/mytorch/1.lua", "Core/mytorch/2.lua", "Core/other/1.lua"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'setenv("IMAGE", "/images/{path.parent.name}-{path.stem}.sqsh")\n')
    assert find_modulefile(tmp_path, "mytorch", "2", None) == tmp_path / "Core/mytorch/2.lua"
    assert (
        find_modulefile(tmp_path, "new", "7", Path("/x/other-1.sqsh"))
        == tmp_path / "Core/other/1.lua"
    )
    for tree, image in ((tmp_path, Path("/x/none.sqsh")), (tmp_path / "absent", None)):
        with pytest.raises(InputError):
            find_modulefile(tree, "new", "7", image)


def test_what_lmod_does_not_have_means_nothing(tmp_path: Path) -> None:
    text = 'if DEBUG then setenv("NCCL_DEBUG", "INFO") end\nsetenv("ROOT", SITE_ROOT or "/opt/x")\n'
    found = read(tmp_path, text)
    assert found.settings == {"ROOT": {"set": "/opt/x"}}
    assert found.left_out == ()


def test_what_depends_on_the_user_is_nobody_elses(tmp_path: Path) -> None:
    text = (
        'setenv("SCRATCH", "/scratch/" .. os.getenv("USER"))\npushenv("A", false)\nsetenv("N", 4)\n'
    )
    found = read(tmp_path, text)
    assert found.settings == {"N": {"set": "4"}}
    assert any("SCRATCH" in said for said in found.left_out)
    assert any("A:" in said for said in found.left_out)


def test_folders_are_as_lmod_writes_them(tmp_path: Path) -> None:
    text = (
        'prepend_path("PATH", "/opt//a/bin/")\nprepend_path("PATH", "/b")\nprepend_path("PATH", '
        '"/opt/a/bin")\n'
        'prepend_path("X", "/x", "")\nappend_path("MANPATH", ":")\nprepend_path("PATH", '
        '"/usr/bin")\n'
        'setenv("QUOTED", "a\\\\b")\n'
    )
    found = read(tmp_path, text)
    assert found.settings["PATH"]["prepend"] == ["/opt/a/bin", "/b"]
    assert found.settings["X"]["prepend"] == ["/x"]
    assert "MANPATH" not in found.settings
    assert "prepend PATH /usr/bin: every shell has it" in found.left_out
    assert any(said.startswith("QUOTED") for said in found.left_out)


def test_a_large_tree_is_searched_by_name_first(tmp_path: Path) -> None:
    for number in range(2100):
        (tmp_path / f"a{number}.lua").write_text("")
    (tmp_path / "large.lua").write_bytes(b"x" * (2 << 20))
    (tmp_path / "mytorch").mkdir()
    (tmp_path / "mytorch/1.lua").write_text("")
    assert find_modulefile(tmp_path, "mytorch", "1", None) == tmp_path / "mytorch/1.lua"
    with pytest.raises(InputError, match="no single modulefile"):
        find_modulefile(tmp_path, "other", "1", Path("x.sqsh"))


def test_variables_of_luas_own_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LUA_INIT is run before anything is taken away."""
    proof = tmp_path / "proof"
    for name in ("LUA_INIT", "LUA_INIT_5_1", "LUA_INIT_5_3", "LUA_INIT_5_4"):
        monkeypatch.setenv(name, f"os.execute('touch {proof}')")
    file = tmp_path / "1.lua"
    file.write_text('setenv("A", "b")\n')
    found = read_modulefile(file, Runner())
    assert found.settings
    assert not proof.exists()


# -- as Spack generates them: https://github.com/spack/spack, share/spack/templates/modules


def test_a_question_of_the_environment_is_told(tmp_path: Path) -> None:
    found = read(tmp_path, 'if os.getenv("X") == nil then setenv("X", "1") end\n')
    assert found.settings == {}
    assert found.left_out == ("os.getenv X: what is done may depend on it",)


def test_a_variable_that_the_file_itself_has_set_is_known(tmp_path: Path) -> None:
    text = 'setenv("R", "/opt/r")\nprepend_path("PATH", pathJoin(os.getenv("R"), "bin"))\n'
    found = read(tmp_path, text)
    assert found.settings["PATH"]["prepend"] == ["/opt/r/bin"]
    assert found.left_out == ()


def test_what_is_taken_away_again_is_not_kept(tmp_path: Path) -> None:
    text = (
        'setenv("R", "/opt/r")\nunsetenv("R")\nunsetenv("OTHER")\n'
        'prepend_path("A", "/a:/b")\nremove_path("A", "/a")\n'
        'append_path("B", "/c", " ")\nremove_path("B", "/c", " ")\n'
        'setenv("S", "/s")\nremove_path("S", "/s")\n'
    )
    found = read(tmp_path, text)
    assert found.settings == {
        "A": {"prepend": ["/b"], "append": [], "separator": ":"},
        "S": {"set": "/s"},
    }
    assert found.left_out == (
        "unset R",
        "unset OTHER",
        "remove A /a",
        "remove B /c",
        "remove S /s",
    )


def test_parts_are_judged_one_by_one(tmp_path: Path) -> None:
    text = (
        'prepend_path("PATH", "/opt/a/bin:/usr/bin")\n'
        'prepend_path("MANPATH", "/opt/r/man")\nappend_path("MANPATH", "", ":")\n'
    )
    found = read(tmp_path, text)
    assert found.settings["PATH"]["prepend"] == ["/opt/a/bin"]
    assert found.settings["MANPATH"]["prepend"] == ["/opt/r/man"]
    assert found.left_out == (
        "prepend PATH /usr/bin: every shell has it",
        "append MANPATH: an empty part, which a recipe cannot say",
    )


def test_a_hierarchy_of_the_old_tree_is_not_unlocked(tmp_path: Path) -> None:
    found = read(
        tmp_path, 'prepend_path("MODULEPATH", "/old/mpi")\nsetenv("LMOD_MPI_NAME", "openmpi")\n'
    )
    assert found.settings == {}
    assert [said.partition(":")[2] for said in found.left_out] == [
        " it is for modules of the old tree"
    ] * 2


def test_a_modulefile_knows_its_own_name(tmp_path: Path) -> None:
    found = read(
        tmp_path, 'setenv("N", myFileName():find(myModuleFullName(), 1, true) and "yes")\n'
    )
    assert found.settings == {"N": {"set": "yes"}}
