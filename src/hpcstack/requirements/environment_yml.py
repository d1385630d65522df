"""Read an environment.yml of conda's as far as pip can install it.

conda brings a Python, compilers and CUDA of its own, and none of them can be put beside the
image's. What it calls by the name that PyPI has is installed from there; the rest is refused by
name.

Tested in tests/unit/requirements/test_inputs.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from hpcstack.core.errors import InputError
from hpcstack.core.files import read_text

if TYPE_CHECKING:
    from pathlib import Path

LARGEST = 1 << 20
# What conda-forge calls otherwise than PyPI does:
# https://github.com/conda-forge/pytorch-cpu-feedstock, opencv-feedstock, msgpack-python-feedstock,
# pytables-feedstock
OTHER_NAMES = {
    "pytorch": "torch",
    "opencv": "opencv-python",
    "py-opencv": "opencv-python",
    "msgpack-python": "msgpack",
    "pytables": "tables",
}
# What the image has in its own way, or conda needs for itself
OF_THE_IMAGE = ("python", "pip", "setuptools", "wheel", "pytorch-mutex", "pytorch-cuda")
# No package of Python's, or one that must be the system's. PyPI has other things of some of these
# names, so its index is no judge.
NOT_PYTHON = re.compile(
    r"""
    ( cuda.* | cudatoolkit.* | cudnn | nccl | openmpi.* | mpich.* | ucx | hdf5 | cmake | make | git
    | gcc.* | gxx.* | gfortran.* | binutils.* | clang.* | compilers | c-compiler | cxx-compiler
    | lib(gcc|stdcxx|gomp|blas|lapack|cblas|png|jpeg|tiff|webp|xml2|ffi|curl|uuid|zlib|cublas|cufft)
      ([-_].*|[0-9.]*) | libjpeg-turbo | libcu[a-z]+ | _.* | ffmpeg | openssl | zlib | bzip2 | sqlite
    | mkl.* | blas | openblas | r-.* | nodejs | conda.* | mamba | ca-certificates | ld_impl.*
    | readline | xz | tk | ncurses )
    """,
    re.VERBOSE,
)


def read_conda_environment(path: Path) -> tuple[str, ...]:
    """Return the requirements in the environment.yml PATH.

    Raise InputError where the file cannot be read, and for packages that only conda has.
    """
    document = _load(path)
    out: list[str] = []
    refused: list[str] = []
    for entry in document.get("dependencies") or []:
        if isinstance(entry, dict):
            lines = [str(line).strip() for line in entry.get("pip") or []]
            options = [line for line in lines if line.startswith("-")]
            if options:
                raise InputError(
                    f"{path}: {options[0]!r} is an option of pip",
                    "write the packages themselves below `pip:`, or a requirements.txt instead",
                    page="your-own-project",
                )
            out += lines
        else:
            line = _translate(str(entry))
            if line is None:
                refused.append(str(entry))
            elif line:
                out.append(line)
    if refused:
        raise InputError(
            f"{path}: only conda has {', '.join(refused)}",
            "take them out (the image has CUDA, MPI and compilers of its own), or write a recipe: "
            "packages: {conda: [...]}",
            page="your-own-project",
        )
    return tuple(out)


def _load(path: Path) -> dict[str, Any]:
    """Return the document in PATH. Raise InputError where it is none."""
    try:
        document = yaml.safe_load(read_text(path.resolve(), LARGEST))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{path}: {error}", "correct the file", page="your-own-project") from None
    if not isinstance(document, dict):
        raise InputError(
            f"{path} is not a conda environment file",
            "it begins with `name:`",
            page="your-own-project",
        )
    return document


def _translate(entry: str) -> str | None:
    """Return conda's ENTRY as pip writes it: empty where the image has it, None where only conda
    does.

    https://docs.conda.io/projects/conda/en/stable/user-guide/concepts/pkg-specs.html
    """
    text = entry.rpartition("::")[2].strip()
    found = re.match(r"([A-Za-z0-9._-]+)\s*(.*)", text)
    if not found:
        return None
    name = found[1].lower()
    version = found[2].strip()
    if name in OF_THE_IMAGE:
        return ""
    if NOT_PYTHON.fullmatch(name):
        return None
    name = OTHER_NAMES.get(name, name)
    parts = [_translate_version(one.strip()) for one in version.split(",")] if version else []
    if any(one is None for one in parts):
        return None
    return name + ",".join(one for one in parts if one)


def _translate_version(said: str) -> str | None:
    """Return conda's version SAID as pip writes it; None where pip has no such thing.

    `=1.26` and `1.26` are 1.26 and all below it; `=1.26=py312_0` names a build, which PyPI lacks.
    """
    exact = re.fullmatch(r"==\s*([\w.!+]+)(=.*)?", said)
    if exact:
        return f"=={exact[1]}"
    below = re.fullmatch(r"=?\s*(\d[\w.!+]*?)(\.?\*)?([ =]\S+)?", said)
    if below:
        return f"=={below[1]}" if below[3] and not below[2] else f"=={below[1]}.*"
    if re.fullmatch(r"(>=|<=|>|<|!=|~=)\s*[\w.!+]+(\.\*)?", said):
        return said.replace(" ", "")
    return None
