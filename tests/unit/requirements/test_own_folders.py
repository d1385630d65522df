"""Which folders a project names as packages of the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.requirements.inputs import list_outside_files, read_inputs
from hpcstack.requirements.own_folders import list_own_folders

NAMED = {
    "requirements.txt": "-e ../core\nrich\n",
    "pyproject.toml": (
        '[project]\nname = "it"\nversion = "1"\ndependencies = ["core"]\n'
        '[tool.uv.sources]\ncore = [{path = "../core", editable = true}]\n'
    ),
    "uv.lock": (
        'version = 1\n[[package]]\nname = "it"\nsource = {virtual = "."}\n'
        '[[package]]\nname = "core"\nsource = {editable = "../core"}\n'
    ),
    "pylock.toml": (
        'lock-version = "1.0"\n[[packages]]\nname = "it"\ndirectory = {path = "."}\n'
        '[[packages]]\nname = "core"\ndirectory = {path = "../core", editable = true}\n'
    ),
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project beside a package of the user's own, which itself needs another."""
    for name, needs in (("core", "base"), ("base", "")):
        (tmp_path / name / "src").mkdir(parents=True)
        text = f'[project]\nname = "{name}"\nversion = "1"\n'
        if needs:
            text += f'[tool.uv.sources]\n{needs} = {{path = "../{needs}"}}\n'
        (tmp_path / name / "pyproject.toml").write_text(text)
    (tmp_path / "it").mkdir()
    return tmp_path / "it"


@pytest.mark.parametrize("kind", NAMED)
def test_a_second_package_is_found_with_those_that_it_names(project: Path, kind: str) -> None:
    """researcher 9: `-e ../core` and [tool.uv.sources] were refused."""
    (project / kind).write_text(NAMED[kind])
    if kind == "uv.lock":
        (project / "pyproject.toml").write_text('[project]\nname = "it"\nversion = "1"\n')
    own = [project.parent / "core", project.parent / "base"]
    assert list_own_folders(project, kind) == own

    inputs = read_inputs(project, ())
    assert inputs.own == tuple(own)
    mounts = {f"{one}:{one}" for one in own}
    assert mounts == set(list_outside_files(inputs))
    path = project.parent / "base/pyproject.toml"
    path.write_text(path.read_text() + 'dependencies = ["rich"]\n')
    assert read_inputs(project, ()).digest != inputs.digest


def test_members_of_a_workspace_are_found(project: Path) -> None:
    for name in ("a", "b"):
        (project / "packages" / name).mkdir(parents=True)
        text = f'[project]\nname = "my_{name}"\nversion = "1"\n'
        (project / "packages" / name / "pyproject.toml").write_text(text)
    text = (
        '[project]\nname = "it"\nversion = "1"\n'
        '[tool.uv.workspace]\nmembers = ["packages/*", "/etc/*"]\n'
        "[tool.uv.sources]\nmy-a = {workspace = true}\n"
    )
    (project / "pyproject.toml").write_text(text)
    assert list_own_folders(project, "pyproject.toml") == [project / "packages/a"]
    assert list_outside_files(read_inputs(project, ())) == ()


def test_a_member_of_a_workspace_may_name_its_sibling(tmp_path: Path) -> None:
    """The table of members is in the workspace's root, above both."""
    for name, needs in (("a", "b"), ("b", "")):
        text = f'[project]\nname = "{name}"\nversion = "1"\n'
        if needs:
            text += f"[tool.uv.sources]\n{needs} = {{workspace = true}}\n"
        (tmp_path / "packages" / name).mkdir(parents=True)
        (tmp_path / "packages" / name / "pyproject.toml").write_text(text)
    root = '[tool.uv.workspace]\nmembers = ["packages/*"]\n'
    (tmp_path / "pyproject.toml").write_text(root)
    (tmp_path / "packages/pyproject.toml").write_text("[project]\nname = 'between'\n")
    found = list_own_folders(tmp_path / "packages/a", "pyproject.toml")
    assert found == [tmp_path / "packages/b"]


@pytest.mark.parametrize("path", ["pyproject.toml", "requirements.txt"])
def test_what_is_not_there_and_odd_shapes_are_none(project: Path, path: str) -> None:
    text = "-e ../none\n./it-1-py3-none-any.whl\n"
    if path == "pyproject.toml":
        text = "[tool.uv.workspace]\nmembers = ['', '.', 'p/**x']\n[tool.uv.sources]\na = 3\nb = [4]\nc = {path = 5}\nd = {path = '.'}\ne = {path = \"a\\u0000b\"}\n"
    (project / path).write_text(text)
    assert list_own_folders(project, path) == []
