"""The installed module systems are asked whether they change what a recipe's module may set."""

from __future__ import annotations

import os
import string
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from hpcstack.core.quote import quote_lua, quote_tcl
from hpcstack.recipe.model import Setting
from support.modules import system

VARIABLE = "HPCSTACK_TEST_VALUE"
VALUES = st.text(alphabet=[*"~/.: $;\"'ab", *string.digits[:2]], min_size=1, max_size=8)


def write_modulefiles(folder: Path, setting: Setting) -> None:
    """The module `test/1` in FOLDER, for both systems, that does what SETTING says."""
    lua, tcl = "", "#%Module\n"
    if setting.set is not None:
        lua = f"setenv({quote_lua(VARIABLE)}, {quote_lua(setting.set)})\n"
        tcl += f"setenv {VARIABLE} {quote_tcl(setting.set)}\n"
    for part in setting.prepend:
        separator = setting.separator
        lua += f'prepend_path("{VARIABLE}", {quote_lua(part)}, {quote_lua(separator)})\n'
        tcl += f"prepend-path -d {quote_tcl(separator)} {VARIABLE} {quote_tcl(part)}\n"
    for name, text in (("lmod/test/1.lua", lua), ("emodules/test/1", tcl)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def load(which: str, folder: Path) -> str:
    """What the module system WHICH makes of the variable."""
    script = f'eval "$({system(which)} bash load test/1)"; printf %s "${VARIABLE}"'
    env = {"PATH": os.environ["PATH"], "HOME": "/somewhere", "MODULEPATH": str(folder / which)}
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.lmod
@pytest.mark.emodules
@settings(
    max_examples=int(os.environ.get("HPCSTACK_EXAMPLES", "12")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(value=VALUES, how=st.sampled_from(["set", ":", " ", ";"]))
@example(value="~/x", how="set")
@example(value="a:~b", how="set")
@example(value="http://h/p", how="set")
@example(value="/a//", how=":")
@example(value="./.", how=":")
@example(value=" a", how=":")
def test_what_is_taken_is_not_changed(tmp_path: Path, value: str, how: str) -> None:
    said = {"set": value} if how == "set" else {"prepend": value, "separator": how}
    try:
        setting = Setting.model_validate(said)
    except ValidationError:
        return  # what no runtime can set is refused elsewhere
    write_modulefiles(tmp_path, setting)

    found = {which: load(which, tmp_path) for which in ("lmod", "emodules")}
    if not setting.explain_change_by_modules():
        assert found == {"lmod": value, "emodules": value}
