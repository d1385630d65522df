"""What a project declares without a [project] table."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.core.errors import InputError
from hpcstack.requirements.for_recipe import read_project
from hpcstack.requirements.inputs import list_direct_requirements, read_inputs

BACKEND = '[build-system]\nrequires = ["setuptools"]\n'
POETRY = """\
[tool.poetry]
name = "q"
version = "1"
[tool.poetry.dependencies]
python = "^3.10"
einops = "^0.8"
rich = {version = "~13.2", extras = ["jupyter"], markers = "sys_platform == 'linux'"}
plots = {version = "1.0", optional = true}
numpy = [{version = "1.26", python = "<3.12"}, {version = "2.0", python = ">=3.12"}]
tool = {git = "https://h/tool.git", rev = "abc"}
[tool.poetry.extras]
x = ["plots"]
[tool.poetry.group.dev.dependencies]
pytest = "^8"
"""
AS_PIP = (
    "einops<0.9,>=0.8",
    'rich[jupyter]<13.3,>=13.2; sys_platform == "linux"',
    'numpy==1.26; python_version < "3.12"',
    'numpy==2.0; python_version >= "3.12"',
    "tool@ git+https://h/tool.git@abc",
)


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_poetrys_own_form_is_read_by_poetry(tmp_path: Path) -> None:
    write(tmp_path, pyproject__toml=POETRY)
    inputs = read_inputs(tmp_path, ())
    assert inputs.kind == "pyproject.toml"
    assert [one.replace(" @ ", "@ ") for one in inputs.requirements] == list(AS_PIP)
    assert len(list_direct_requirements(inputs)) == len(AS_PIP)
    assert read_project(tmp_path).requirements == inputs.requirements
    write(tmp_path, pyproject__toml=POETRY.replace("^0.8", "^0.7"))
    assert read_inputs(tmp_path, ()).digest != inputs.digest


@pytest.mark.parametrize(
    ("line", "says"),
    [("core = {path = '../core'}", "path of your own"), ("einops = '^^x'", "pyproject.toml: ")],
)
def test_what_poetry_alone_can_install_is_refused(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core/pyproject.toml").write_text(POETRY.replace('"q"', '"core"'))
    folder = tmp_path / "it"
    folder.mkdir()
    text = POETRY.replace('einops = "^0.8"', line)
    with pytest.raises(InputError, match=says):
        read_inputs(write(folder, pyproject__toml=text), ())


@pytest.mark.parametrize("pyproject", ["", BACKEND, "[tool.ruff]\nline-length = 100\n"])
def test_settings_alone_hide_nothing(tmp_path: Path, pyproject: str) -> None:
    """uv#6838: such a project asked for nothing, and nothing was said."""
    write(tmp_path, pyproject__toml=pyproject)
    with pytest.raises(InputError, match="has none of"):
        read_inputs(tmp_path, ())

    write(
        tmp_path,
        setup__cfg="[metadata]\nname = q\n[options]\ninstall_requires =\n  einops>=0.8\n  # no\n  rich\n",
    )
    assert read_inputs(tmp_path, ()).requirements == ("einops>=0.8", "rich")
    assert read_project(tmp_path).requirements == ("einops>=0.8", "rich")
    write(tmp_path, environment__yml="dependencies: [tqdm]\n")
    assert read_inputs(tmp_path, ()).requirements == ("tqdm",)


def test_of_what_is_computed_the_backend_is_asked_and_a_recipe_refuses(tmp_path: Path) -> None:
    setup = "from setuptools import setup\nsetup(install_requires=['einops'])\n"
    write(tmp_path, pyproject__toml=BACKEND, setup__py=setup)
    inputs = read_inputs(tmp_path, ())
    assert inputs.files == (tmp_path / "setup.py",)
    with pytest.raises(InputError, match="computes what the project needs"):
        read_project(tmp_path)


@pytest.mark.parametrize(
    ("said", "says"),
    [("file: requirements.in", "read from elsewhere"), ("\n  foo bar", "foo bar: ")],
)
def test_another_form_of_setup_cfg_is_refused(tmp_path: Path, said: str, says: str) -> None:
    write(tmp_path, setup__cfg=f"[options]\ninstall_requires = {said}\n")
    with pytest.raises(InputError, match=says):
        read_inputs(tmp_path, ())
