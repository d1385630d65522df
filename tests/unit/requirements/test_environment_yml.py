"""An environment.yml of conda's: what pip can install of it, and what is refused by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.core.data import read_facts
from hpcstack.core.errors import InputError
from hpcstack.requirements.environment_yml import CondaEnvironment, read_installable_environment

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


def read(folder: Path, dependencies: str | bytes) -> CondaEnvironment:
    path = folder / "environment.yml"
    if isinstance(dependencies, str):
        dependencies = dependencies.encode()
    path.write_bytes(dependencies)
    return read_installable_environment(path)


def asked(found: CondaEnvironment) -> list[str]:
    return [one.text for one in found.lines]


def test_an_environment_is_read_as_far_as_pypi_has_it(tmp_path: Path) -> None:
    found = read(tmp_path, ENVIRONMENT)
    assert asked(found) == [
        "torch==2.6.*", "pandas==2.2.*", "scipy>=1.10,<2", "tqdm==4.66.1", "rich==13.9.4",
    ]  # fmt: skip
    assert [one.text for one in found.of_the_image] == ["python=3.11", "pip"]
    assert asked(read(tmp_path, b"\xef\xbb\xbf" + ENVIRONMENT.encode())) == asked(found)


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ("numpy 1.26", "numpy==1.26"),  # with a blank it is that version alone
        ("numpy 1.26.*", "numpy==1.26.*"),
        ("numpy=1.26", "numpy==1.26.*"),
        ("numpy = 1.26", "numpy==1.26.*"),
        ("numpy==1.26.4", "numpy==1.26.4"),
        ("numpy=1.26.4=py312h_0", "numpy==1.26.4"),
        ("numpy 1.26.4 py312h_0", "numpy==1.26.4"),
        ("numpy >=1.26,<2", "numpy>=1.26,<2"),
        ("numpy >= 1.26 , <2", "numpy>=1.26,<2"),
        ("numpy=1.26,!=1.26.1", "numpy==1.26.*,!=1.26.1"),
        ("numpy[version='>=1,<2']", "numpy>=1,<2"),
        ("NumPy~=1.26", "numpy~=1.26"),
        ("conda-forge::librosa", "librosa"),
        ("conda-forge/linux-64::librosa", "librosa"),
        ("huggingface_hub", "huggingface_hub"),
        ("opencv", "opencv-python"),
    ],
)
def test_a_version_as_conda_writes_it(tmp_path: Path, entry: str, line: str) -> None:
    found = read(tmp_path, f'dependencies:\n- "{entry}"\n')
    assert asked(found) == [line]


# conda/grayskull#564, pixi#484: names that strangers have on PyPI, and names that nobody knows
OF_CONDA = [
    "gmp",
    "snappy",
    "icu",
    "freetype",
    "boost",
    "eigen",
    "fftw",
    "perl",
    "jpeg",
    "gsl",
    "expat",
    "glib",
    "redis",
    "pkg-config",
    "lz4-c",
    "zlib",
    "libgcc-ng",
    "libpng",
    "cudatoolkit=11.8",
    "gcc_linux-64",
    "openmpi",
    "libstdcxx-ng",
    "r-base",
    "mkl",
    "cmake",
    "ninja",
    "lmdb",
    "cuda-toolkit",
    "nccl",
    "hdf5",
    "no-such-package-of-anybody",
    "7",
    "none",
    "typing-inspect",
]


@pytest.mark.parametrize(
    "entry",
    [
        *OF_CONDA,
        "numpy 1.26|1.27",
        "numpy>=",
        "*",
        "https://h/numpy-1.26-0.conda",
        "numpy; python_version<'3'",
    ],
)
def test_what_only_conda_has_is_refused_by_line(tmp_path: Path, entry: str) -> None:
    with pytest.raises(InputError, match="only conda has") as refused:
        read(tmp_path, f'dependencies:\n- rich\n- "{entry}"\n')
    assert f"{entry} (line 3)" in refused.value.message
    assert "pip:" in refused.value.hint


@pytest.mark.parametrize(
    "items",
    [
        "  - # plots\n  - tomli\n",
        "  - pip:\n    -\n    - tomli\n",
        "  - ~\n  - tomli\n",
        "  - pip:\n  - tomli\n",
        "  - sel(linux): tomli\n  - sel(win): pywin32\n",
        "  - tomli  # [linux]\n  - pywin32  # [win]\n",
        "  - tomli # needed [not win]\n  - pip:\n    - appnope # [osx]\n",
    ],
)
def test_an_item_that_is_empty_or_not_for_nodes_asks_for_nothing(
    tmp_path: Path, items: str
) -> None:
    """pixi#4574, conda#5680, mamba#1788, pixi#830."""
    assert asked(read(tmp_path, f"dependencies:\n{items}")) == ["tomli"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- rich  # [aarch64]\n", ":2: the selector .aarch64. is not understood"),
        ("- sel(bsd): rich\n", ":2: the selector .bsd. is not understood"),
        ("- conda: [rich]\n", ":2: 'conda' is neither a package"),
        ("- [rich]\n", ":2: a package is a line of text"),
        ("- pip: rich\n", ":2: pip is a list"),
        ("- pip: [[rich]]\n", ":2: a package of pip's is a line"),
        ("- pip: ['-r more.txt']\n", ":2: .*is an option of pip"),
        ("- pip: ['-e ../core']\n", ":2: .*requirements.txt"),
        ("- pip: ['rich ==']\n", ":2: "),
        ("- rich\ndependencies: [tomli]\n", ":3:1: .*dependencies"),
    ],
)
def test_another_form_is_refused_by_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=f"environment.yml{says}"):
        read(tmp_path, f"dependencies:\n{text}")


def test_names_are_known_once() -> None:
    known = read_facts("conda-names")
    tables = [set(known["same"]), set(known["other"]), set(known["of_the_image"])]
    assert len(known["same"]) == len(tables[0])
    assert sum(map(len, tables)) == len(set.union(*tables))
