"""What a project asks for, as a recipe says it: from each kind of file, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.core.errors import InputError
from hpcstack.requirements.for_recipe import find_hash_problems, read_project

PYPROJECT = """\
[project]
name = "mine"
version = "0"
dependencies = ["torch", "rich>=13", "tomli; python_version < '3.11'"]
[project.optional-dependencies]
Nice_Plots = ["matplotlib"]
[dependency-groups]
test = ["pytest", {include-group = "lint"}]
lint = ["ruff"]
loop = [{include-group = "loop"}]
"""
UV_LOCK = """\
version = 1
[[package]]
name = "rich"
version = "13.9.4"
source = { registry = "https://pypi.org/simple" }
wheels = [{ url = "https://x/rich.whl", hash = "sha256:bb", size = 1 }]
[[package]]
name = "numpy"
version = "1.26.4"
source = { registry = "https://pypi.org/simple" }
resolution-markers = ["python_full_version < '3.12'", "sys_platform == 'darwin'"]
[[package]]
name = "numpy"
version = "2.2.0"
source = { registry = "https://pypi.org/simple" }
resolution-markers = ["python_full_version >= '3.12'"]
[[package]]
name = "mine"
version = "0"
source = { editable = "." }
"""
PYLOCK = """\
lock-version = "1.0"
created-by = "uv"
[[packages]]
name = "Rich"
version = "13.9.4"
wheels = [{ url = "https://x/rich.whl", hashes = { sha256 = "bb" } }]
[[packages]]
name = "old"
version = "1"
marker = "python_version < '3.9'"
sdist = { url = "https://x/old.tar.gz", hashes = { sha256 = "cc" } }
"""


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_a_pyproject_with_extras_and_groups(tmp_path: Path) -> None:
    write(tmp_path, pyproject__toml=PYPROJECT)
    project = read_project(tmp_path)
    assert project.requirements == ("torch", "rich>=13", "tomli; python_version < '3.11'")
    assert project.pins == ()
    more = read_project(tmp_path, ("nice-plots",), ("test",))
    assert more.requirements[3:] == ("matplotlib", "pytest", "ruff")
    assert more.sha256 != project.sha256


@pytest.mark.parametrize(
    ("extras", "groups", "says"),
    [
        (("none",), (), "none is no extra of"),
        ((), ("none",), "none is no dependency group of"),
        ((), ("loop",), "includes itself"),
    ],
)
def test_what_it_has_not(
    tmp_path: Path, extras: tuple[str, ...], groups: tuple[str, ...], says: str
) -> None:
    write(tmp_path, pyproject__toml=PYPROJECT)
    with pytest.raises(InputError, match=says):
        read_project(tmp_path, extras, groups)


def test_a_uv_lock_pins(tmp_path: Path) -> None:
    write(tmp_path, pyproject__toml=PYPROJECT, uv__lock=UV_LOCK)
    project = read_project(tmp_path)
    assert project.requirements[:2] == ("torch", "rich>=13")
    assert project.pins == (
        "rich==13.9.4",
        "numpy==1.26.4 ; (python_full_version < '3.12') or (sys_platform == 'darwin')",
        "numpy==2.2.0 ; (python_full_version >= '3.12')",
    )


def test_a_pylock_asks_for_names_and_pins_versions(tmp_path: Path) -> None:
    project = read_project(write(tmp_path, pylock__toml=PYLOCK))
    assert project.requirements == ("rich", "old ; python_version < '3.9'")
    assert project.pins == ("rich==13.9.4", "old==1 ; python_version < '3.9'")


def test_what_only_another_torch_needs_is_not_asked_for(tmp_path: Path) -> None:
    names = ("torch", "nvidia-cublas-cu12", "triton", "nvidia-ml-py", "rich")
    blocks = "".join(f'[[packages]]\nname = "{name}"\nversion = "1"\n' for name in names)
    project = read_project(write(tmp_path, pylock__toml=f'lock-version = "1.0"\n{blocks}'))
    assert project.requirements == ("torch", "nvidia-ml-py", "rich")
    assert len(project.pins) == len(names)


def test_requirements_and_what_constrains_them(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    write(
        tmp_path,
        requirements__txt=f"rich==13.9.4 --hash=sha256:{'b' * 64}\n-r more/others.txt\n-c pins.txt\n-e .\n",
        pins__txt="numpy<2\n-r more/deeper.txt\n",
    )
    write(tmp_path / "more", others__txt="einops\n", deeper__txt="scipy<2\n")
    project = read_project(tmp_path)
    assert project.requirements == ("rich==13.9.4", "einops")
    assert project.pins == ("numpy<2", "scipy<2")


def test_an_environment_of_condas(tmp_path: Path) -> None:
    text = "dependencies: [python=3.10, rich, {pip: [einops]}]\n"
    assert set(read_project(write(tmp_path, environment__yml=text)).requirements) == {
        "rich",
        "einops",
    }


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "has none of"),
        ({"requirements__txt": "--extra-index-url https://x/\nrich\n"}, "is an option"),
        ({"requirements__txt": "-r ../other.txt\n"}, "leads out of"),
        (
            {"pyproject__toml": '[project]\nname = "m"\ndynamic = ["dependencies"]\n'},
            "leaves its dependencies to its build backend",
        ),
        (
            {
                "pyproject__toml": PYPROJECT,
                "uv__lock": '[[package]]\nname = "x"\nversion = "1"\nsource = { git = "https://x" }\n',
            },
            "comes from no package index",
        ),
        (
            {
                "pyproject__toml": PYPROJECT,
                "uv__lock": '[[package]]\nname = "x"\nversion = "1"\nsource = { directory = "../x" }\n',
            },
            "x is the folder ../x",
        ),
    ],
)
def test_what_no_image_can_have(tmp_path: Path, files: dict[str, str], says: str) -> None:
    folder = tmp_path / "it"
    folder.mkdir()
    (tmp_path / "other.txt").write_text("einops\n")
    with pytest.raises(InputError, match=says):
        read_project(write(folder, **files))


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "it"
    folder.mkdir()
    (tmp_path / "secret").write_text("token-of-somebody\n")
    (folder / "requirements.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="leads out of") as caught:
        read_project(folder)
    assert "token-of-somebody" not in str(caught.value)


def test_a_hash_that_the_lock_does_not_allow(tmp_path: Path) -> None:
    project = read_project(write(tmp_path, pylock__toml=PYLOCK))
    right = {"rich": ("13.9.4", frozenset({"sha256:bb", "sha512:0"}))}
    assert find_hash_problems(project, right) == []
    wrong = {"rich": ("13.9.4", frozenset({"sha256:ee"}))}
    assert find_hash_problems(project, wrong) == ["rich 13.9.4: sha256:ee"]
    # another version, or another package: nothing was said of it
    other = {"rich": ("14", frozenset({"sha256:ee"})), "numpy": ("2", frozenset({"sha256:ff"}))}
    assert find_hash_problems(project, other) == []
