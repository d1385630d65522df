"""A pixi.lock: what the manifest asks for, by names that PyPI is known to have, as it was locked."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.core.errors import InputError
from hpcstack.requirements.for_recipe import read_project
from hpcstack.requirements.inputs import list_read_files, read_inputs
from hpcstack.requirements.pixi_lock import read_pixi_project

CONDA = "https://conda.anaconda.org/conda-forge"
WHEEL = "https://files.pythonhosted.org/packages/aa/bb/einops-0.8.0-py3-none-any.whl"
SHA = "9572fb63046264a862693b0a87088af3bdc8c068fde03de63453cbbde245465f"
X86 = ("numpy-1.26.4-py312h_0", "scipy-1.13.0-py312h_0", "python-3.12.3-h_0_cpython", "gmp-6.3-h_0")
ARM = ("numpy-1.26.3-py312h_0", "scipy-1.13.0-py312h_0")
MANIFEST = """\
[project]
channels = ["conda-forge"]
platforms = ["linux-64"]

[dependencies]
python = "3.12.*"
numpy = ">=1.26"

[target.linux-64.dependencies]
scipy = "*"

[pypi-dependencies]
einops = "==0.8.0"
"""


def write_project(
    folder: Path, manifest: str = MANIFEST, name: str = "pixi.toml", wheel: str = WHEEL
) -> Path:
    """A lock for two kinds of machines, version 6, and its manifest."""
    urls = {"linux-64": X86, "linux-aarch64": ARM}
    lines = [
        "version: 6",
        "environments:",
        "  default:",
        f"    channels: [{{url: {CONDA}/}}]",
        "    packages:",
    ]
    for platform, names in urls.items():
        lines.append(f"      {platform}:")
        lines += [f"      - conda: {CONDA}/{platform}/{one}.conda" for one in names]
        lines.append(f"      - pypi: {wheel}")
    lines.append("packages:")
    for platform, names in urls.items():
        for one in names:
            lines += [f"- conda: {CONDA}/{platform}/{one}.conda", f"  sha256: {SHA}"]
    lines += [f"- pypi: {wheel}", "  name: einops", "  version: 0.8.0", f"  sha256: {SHA}"]
    (folder / "pixi.lock").write_text("\n".join(lines) + "\n")
    (folder / name).write_text(manifest)
    return folder / "pixi.lock"


def test_what_was_asked_for_has_its_locked_version(tmp_path: Path) -> None:
    found = read_pixi_project(write_project(tmp_path))
    assert found.lines == (
        "numpy==1.26.4 ; platform_machine == 'x86_64'",
        "numpy==1.26.3 ; platform_machine == 'aarch64'",
        "scipy==1.13.0",
        "einops==0.8.0",
    )
    assert found.of_the_image == ("python",)
    [allowed] = found.allowed
    assert (allowed.name, allowed.hashes) == ("einops", frozenset({f"sha256:{SHA}"}))


def test_projects_and_recipes_read_it(tmp_path: Path) -> None:
    write_project(tmp_path)
    (tmp_path / "requirements.txt").write_text("six\n")  # comes after it
    inputs = read_inputs(tmp_path, ())
    assert inputs.kind == "pixi.lock"
    assert [path.name for path in list_read_files(inputs)] == ["pixi.lock", "pixi.toml"]
    project = read_project(tmp_path)
    assert "scipy" in project.requirements
    assert "einops==0.8.0" in project.pins
    before = project.sha256
    (tmp_path / "pixi.toml").write_text(MANIFEST + "# changed\n")
    assert read_project(tmp_path).sha256 != before


def test_a_manifest_in_pyproject_and_features_of_the_default_environment(tmp_path: Path) -> None:
    manifest = (
        '[project]\nname = "x"\nversion = "1"\n[tool.pixi.feature.more.dependencies]\nscipy = "*"\n'
        '[tool.pixi.feature.not.dependencies]\ngmp = "*"\n'
        '[tool.pixi.environments]\ndefault = {features = ["more"]}\nother = ["not"]\n'
    )
    found = read_pixi_project(write_project(tmp_path, manifest, "pyproject.toml"))
    assert found.lines == ("scipy==1.13.0", "einops==0.8.0")


def test_what_only_conda_has_is_refused_with_its_line(tmp_path: Path) -> None:
    path = write_project(tmp_path, MANIFEST.replace("[target", 'gmp = "*"\n[target'))
    with pytest.raises(InputError, match=r"only conda has gmp \(line 9\)"):
        read_pixi_project(path)


@pytest.mark.parametrize(
    "wheel", ["./mine", "git+https://example.org/a@1", "https://example.org/a"]
)
def test_what_is_no_file_of_an_index_is_refused(tmp_path: Path, wheel: str) -> None:
    with pytest.raises(InputError, match=r"comes from no package index|cannot be read"):
        read_pixi_project(write_project(tmp_path, wheel=wheel))


def test_what_cannot_be_read_says_what_to_do(tmp_path: Path) -> None:
    path = write_project(tmp_path)
    (tmp_path / "pixi.toml").unlink()
    with pytest.raises(InputError, match=r"has no pixi.toml beside it"):
        read_pixi_project(path)
    write_project(tmp_path)
    text = path.read_text().replace("linux-64", "osx-64").replace("linux-aarch64", "win-64")
    path.write_text(text)
    with pytest.raises(InputError, match="has nothing for linux-64 or linux-aarch64"):
        read_pixi_project(path)
    path.write_text("version: 99\n")
    with pytest.raises(InputError, match="cannot be read"):
        read_pixi_project(path)


def test_the_project_itself_is_no_package(tmp_path: Path) -> None:
    manifest = MANIFEST.replace('einops = "==0.8.0"', 'einops = {path = ".", editable = true}')
    found = read_pixi_project(write_project(tmp_path, manifest, wheel="./"))
    assert [line.partition("=")[0] for line in found.lines] == ["numpy", "numpy", "scipy"]


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        (MANIFEST + 'six = "*"\n', "has no six, which pixi.toml asks for"),
        (MANIFEST.replace("[target", 'tqdm = "*"\n[target'), "has no tqdm, which"),
        (
            MANIFEST.replace('"==0.8.0"', '{url = "https://example.org/einops.zip"}'),
            "comes from no package index",
        ),
    ],
    ids=["pypi", "conda", "url"],
)
def test_a_lock_of_another_manifest_is_refused(tmp_path: Path, manifest: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        read_pixi_project(write_project(tmp_path, manifest))


def test_names_in_capitals_and_other_machines(tmp_path: Path) -> None:
    manifest = MANIFEST.replace("numpy", "NumPy").replace("linux-64.dep", "osx-64.dep")
    found = read_pixi_project(write_project(tmp_path, manifest))
    assert [line.partition("=")[0] for line in found.lines] == ["numpy", "numpy", "einops"]


def test_what_one_machine_alone_has_is_for_that_one(tmp_path: Path) -> None:
    path = write_project(tmp_path)
    text = path.read_text()
    path.write_text(
        text.replace(f"      - conda: {CONDA}/linux-aarch64/scipy-1.13.0-py312h_0.conda\n", "")
    )
    assert "scipy==1.13.0 ; platform_machine == 'x86_64'" in read_pixi_project(path).lines


def test_a_file_without_a_hash_has_none(tmp_path: Path) -> None:
    path = write_project(tmp_path)
    path.write_text(path.read_text().removesuffix(f"  sha256: {SHA}\n"))
    assert read_pixi_project(path).allowed == ()
