"""What a project asks for, from each of the files that people have."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.core.errors import InputError
from hpcstack.requirements.allowed_files import list_allowed_hashes
from hpcstack.requirements.inputs import Inputs, list_direct_requirements, read_inputs

UV_LOCK = """\
version = 1
[[package]]
name = "Rich"
version = "13.9.4"
sdist = { url = "https://x/rich.tar.gz", hash = "sha256:aa", size = 1 }
wheels = [{ url = "https://x/rich.whl", hash = "sha256:bb", size = 1 }]
[[package]]
name = "mine"
version = "0"
source = { editable = "." }
"""
PYPROJECT = """\
[project]
name = "mine"
version = "0"
dependencies = ["rich>=13"]
[project.optional-dependencies]
plots = ["matplotlib"]
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
[[packages]]
name = "from-git"
vcs = { type = "git", url = "https://x/repo", commit-id = "abc", subdirectory = "py" }
[[packages]]
name = "mine"
directory = { path = ".", editable = true }
"""
A, B = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
REQUIREMENTS = f"""\
# as pip-compile writes it
rich==13.9.4 \\
    --hash={A} \\
    --hash={B}   # both files
einops>=0.8 ; python_version >= '3.9'
-r more.txt
"""
ENVIRONMENT = """\
name: mine
channels: [conda-forge, pytorch]
dependencies:
  - python=3.11
  - pip
  - pytorch::pytorch=2.6
  - conda-forge::pandas=2.2.*
  - scipy >=1.10,<2
  - tqdm==4.66.1=pyhd8ed1ab_0
  - pip:
      - rich==13.9.4
"""


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def read(folder: Path, *packages: str) -> Inputs:
    return read_inputs(folder, packages)


def allowed(inputs: Inputs, name: str = "rich", version: str = "13.9.4") -> frozenset[str] | None:
    return list_allowed_hashes(inputs.allowed, name, version)


def test_uv_lock_pins_and_pyproject_asks(tmp_path: Path) -> None:
    inputs = read(write(tmp_path, uv__lock=UV_LOCK, pyproject__toml=PYPROJECT))
    assert inputs.kind == "uv.lock"
    assert inputs.files == (tmp_path / "pyproject.toml",)
    assert allowed(inputs) == frozenset({"sha256:aa", "sha256:bb"})
    assert [str(one) for one in list_direct_requirements(inputs)] == ["rich>=13"]


def test_a_pylock_asks_for_what_it_pins_but_not_for_the_project(tmp_path: Path) -> None:
    inputs = read(write(tmp_path, pylock__toml=PYLOCK))
    assert inputs.requirements == (
        "rich==13.9.4",
        "old==1 ; python_version < '3.9'",
        "from-git @ git+https://x/repo@abc#subdirectory=py",
    )
    assert allowed(inputs) == frozenset({"sha256:bb"})


def test_hashes_of_requirements_count_and_what_they_include(tmp_path: Path) -> None:
    write(tmp_path, requirements__txt=REQUIREMENTS, more__txt="tqdm\n-r requirements.txt\n")
    inputs = read(tmp_path)
    assert inputs.files == (tmp_path / "requirements.txt",)
    assert allowed(inputs) == frozenset({A, B})
    names = [one.name for one in list_direct_requirements(inputs)]
    assert names == ["rich", "einops", "tqdm"]

    before = inputs.digest
    write(tmp_path, more__txt="tqdm>4\n")
    assert read(tmp_path).digest != before


def test_of_several_files_the_strictest_is_read(tmp_path: Path) -> None:
    order = {
        "environment.yml": ENVIRONMENT,
        "pyproject.toml": PYPROJECT,
        "requirements.txt": "rich\n",
        "uv.lock": UV_LOCK,
        "pylock.toml": PYLOCK,
    }
    for name, text in order.items():
        (tmp_path / name).write_text(text)
        assert read(tmp_path).kind == name


def test_packages_named_by_hand_are_added(tmp_path: Path) -> None:
    write(tmp_path, requirements__txt="rich\n")
    alone = read(tmp_path)
    both = read(tmp_path, "einops")
    assert both.requirements == ("einops",)
    assert both.digest != alone.digest
    assert read_inputs(None, ("b", "a")).digest == read_inputs(None, ("a", "b")).digest


def test_the_digest_does_not_know_where_the_project_lies(tmp_path: Path) -> None:
    digests = set()
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        digests.add(read(write(folder, requirements__txt="rich\n")).digest)
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "has none of"),
        ({"uv__lock": UV_LOCK}, "no pyproject.toml beside"),
        ({"pylock__toml": "lock-version = '9'"}, "lock-version"),
        ({"pylock__toml": "= nonsense"}, "pylock.toml"),
        ({"environment__yml": "- a\n"}, "not a conda environment file"),
        ({"environment__yml": "a: [\n"}, "environment.yml"),
        ({"environment__yml": "dependencies:\n- pip: ['-r more.txt']\n"}, "is an option of pip"),
        ({"requirements__txt": "-r gone.txt\n"}, "gone.txt"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, files: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says) as refused:
        read(write(tmp_path, **files))
    assert refused.value.hint


def test_extras_need_a_pyproject(tmp_path: Path) -> None:
    write(tmp_path, requirements__txt="rich\n")
    with pytest.raises(InputError, match="--extra and --group"):
        read_inputs(tmp_path, (), ("plots",))
    (tmp_path / "requirements.txt").unlink()
    write(tmp_path, pyproject__toml=PYPROJECT)
    inputs = read_inputs(tmp_path, (), ("plots",))
    assert [one.name for one in list_direct_requirements(inputs)] == ["rich", "matplotlib"]


def test_a_package_in_a_folder_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    text = PYLOCK.replace('path = "."', 'path = "../other"')
    with pytest.raises(InputError, match="mine is the folder .*/other, which does not exist"):
        read(write(tmp_path, pylock__toml=text))


def test_files_are_read_through_links(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("rich\n-c https://example.org/c.txt\n")
    (tmp_path / "requirements.txt").symlink_to("real.txt")
    assert [one.name for one in list_direct_requirements(read(tmp_path))] == ["rich"]


def test_what_a_dynamic_project_depends_on_is_part_of_the_digest(tmp_path: Path) -> None:
    dynamic = """\
[project]
name = "mine"
version = "0"
dynamic = ["dependencies"]
[tool.setuptools.dynamic]
dependencies = { file = ["base.txt"] }
"""
    write(tmp_path, pyproject__toml=dynamic, base__txt="rich\n")
    before = read(tmp_path).digest
    write(tmp_path, base__txt="rich>=13\n")
    assert read(tmp_path).digest != before
