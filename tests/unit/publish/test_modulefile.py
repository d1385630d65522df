"""Modulefiles: what Lua and Tcl make of any text, and what is refused."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcstack.core import data
from hpcstack.core.errors import InputError
from hpcstack.core.quote import join_lines
from hpcstack.publish.modulefile import (
    Release,
    help_text,
    list_extensions,
    list_whatis,
    render_modulefile,
    render_modulefile_tcl,
)
from hpcstack.recipe.catalog import Catalog
from support.modules import Place, bash

STACK = Catalog([data.find_data_folder("recipes")]).find("pytorch-24.11").stack
RELEASE = Release(STACK, 3, "/store/i.sqsh", "0" * 64, "/store/r", "nvcr.io/nvidia/pytorch:24.11-py3",
                  environment={"CUDA_VERSION": "12.6.3.001"})  # fmt: skip
# Modulefile functions that print what they are given, each call between marks
LUA = """\
local function show(name) return function(...) io.write(name, "\\1", table.concat({...}, "\\1"), "\\2") end end
whatis, help, family, prepend_path, setenv, extensions = show"whatis", show"help", show"family", show"prepend_path", show"setenv", show"extensions"
add_property, LmodError, LmodMessage = show"property", show"error", show"message"
function mode() return "spider" end
"""
TCL = """\
proc show {args} { puts -nonewline "[join $args \\1]\\2" }
foreach c {module-whatis prepend-path setenv conflict} { interp alias {} $c {} show $c }
proc module-info {args} { return 0 }
fconfigure stdout -encoding utf-8 -translation lf
"""
anything = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0\1\2"), max_size=40
)


def calls(program: list[str], text: str, tmp_path: Path) -> list[list[str]]:
    file = tmp_path / "modulefile"
    file.write_text(text, encoding="utf-8")
    done = subprocess.run([*program, str(file)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return [call.split("\1") for call in done.stdout.decode().split("\2")[:-1]]


def lua() -> list[str]:
    import shutil

    return [next(filter(None, map(shutil.which, ("lua5.3", "lua5.4", "lua"))))]


@pytest.mark.lua
@settings(
    max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(anything, anything, anything)
def test_any_text_survives_lua(tmp_path: Path, summary: str, said: str, override: str) -> None:
    release = replace(RELEASE, stack=STACK.model_copy(update={"summary": summary}), stand_in=said, override=override,
                      tested=(("verdict", said),))  # fmt: skip
    found = calls(lua(), LUA + render_modulefile(release), tmp_path)
    assert [call[1] for call in found if call[0] == "whatis"][2:] == list_whatis(release)
    assert [call[1] for call in found if call[0] == "help"] == [help_text(release)]
    assert ["setenv", "HPCSTACK_RELEASE", "pytorch/24.11-r3"] in found
    assert len(found) == 10 + len(list_whatis(release))


@pytest.mark.tcl
@settings(
    max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(anything, anything)
def test_any_text_survives_tcl(tmp_path: Path, summary: str, said: str) -> None:
    release = replace(RELEASE, stack=STACK.model_copy(update={"summary": summary}), stand_in=said)
    found = calls(["tclsh", "-encoding", "utf-8"], TCL + render_modulefile_tcl(release), tmp_path)
    assert [call[1] for call in found if call[0] == "module-whatis"][2:] == list_whatis(release)
    assert ["prepend-path", "PATH", "/store/r/bin"] in found


@pytest.mark.parametrize("field", ["image", "sha256", "folder", "dates"])
@pytest.mark.parametrize("sign", ["\n", "\r", "\x1b", "\x7f"])
def test_a_control_character_in_what_is_set_is_refused(field: str, sign: str) -> None:
    for render in (render_modulefile, render_modulefile_tcl):
        with pytest.raises(InputError, match="control character"):
            render(replace(RELEASE, **{field: f"/a{sign}touch /tmp/x"}))  # type: ignore[arg-type]


def test_whatis_lines_are_short_and_single() -> None:
    long = replace(RELEASE, stand_in="x" * 300, holds=(("CUDA", "1\n2"),))
    assert all(len(text) <= 100 and text == join_lines(text) for text in list_whatis(long))


def test_extensions_are_the_images_own_versions() -> None:
    pip = (
        ("torch", "2.6.0a0+x"),
        ("deepspeed", "0.16.2"),
        ("idna", "3.1"),
        ("numpy", "1 2"),
        ("cowsay", "6.1"),
    )
    packages = STACK.packages.model_copy(update={"pip": ("cowsay==6.1",)})
    release = replace(RELEASE, pip=pip, stack=STACK.model_copy(update={"packages": packages}))
    assert list_extensions(release) == ["torch/2.6.0a0+x", "deepspeed/0.16.2", "cowsay/6.1"]


def test_nothing_runs_when_a_modulefile_is_looked_at() -> None:
    for text in (render_modulefile(RELEASE), render_modulefile_tcl(RELEASE)):
        assert not any(
            word in text
            for word in ("capture(", "subprocess", "execute{", "os.execute", "[exec", "popen")
        )


def test_help_has_lines_to_copy() -> None:
    said = help_text(RELEASE)
    for part in (("hpcstack launch pytorch-24.11 -N 2 -- " "train.py"), "--batch", '--container-image="$HPCSTACK_IMAGE"',
                 "driver: 525.60.13 or newer", "none of this image"):  # fmt: skip
        assert part in said


@pytest.mark.lmod
@pytest.mark.emodules
@pytest.mark.parametrize("which", ["lmod", "emodules"])
def test_an_image_for_other_processors_is_refused_in_a_job_and_told_on_a_login_node(
    tmp_path: Path, which: str
) -> None:
    """admin 2: a module of an arm64 image on an amd64 node loaded without a word, and its commands
    failed.
    """
    other, here = (
        ("linux/arm64", "x86_64") if os.uname().machine == "x86_64" else ("linux/amd64", "aarch64")
    )
    place = Place(tmp_path)
    place.publish(platform=other)
    load = "module load pytorch/24.11; echo loaded:$HPCSTACK_RELEASE"
    on_login = bash(place, which, load)
    assert "loaded:pytorch/24.11-r1" in on_login.stdout, on_login.stderr
    assert f"and this node is {here}" in " ".join(on_login.stderr.split())
    in_a_job = bash(place, which, load, SLURM_JOB_ID="7")
    said = " ".join(in_a_job.stderr.split())  # Lmod breaks lines
    assert in_a_job.stdout == "loaded:\n" and f"and this node is {here}" in said, in_a_job
    wrapper = next((place.store.top / "releases/pytorch/24.11-r1/bin").iterdir())
    done = subprocess.run(
        [str(wrapper)], capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 125 and f"this node is {here}" in done.stderr, done
    place.publish(content=b"ours")
    assert "this node is" not in bash(place, which, load).stderr
