"""What a project declares where its pyproject.toml has no [project] table: Poetry's own, setup.cfg's."""

from __future__ import annotations

import configparser
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

from hpcstack.core.errors import InputError
from hpcstack.core.files import read_text
from hpcstack.core.tables import take_table
from hpcstack.requirements.project_files import (
    LARGEST,
    PYPROJECT,
    SETUP_CFG,
    SETUP_PY,
    read_toml,
)

if TYPE_CHECKING:
    from pathlib import Path

OF_A_KEY = ("file:", "attr:")  # setuptools finds out what stands in a file, or in the code


def find_declaration(folder: Path) -> str:
    """Return the file in FOLDER that declares what the project needs; empty where none does.

    A pyproject.toml may have the settings of tools alone. What a setup.py computes only its build
    backend can say: it is named where no other file declares anything.
    """
    pyproject = folder / PYPROJECT
    if pyproject.is_file():
        document = read_toml(pyproject)
        if "project" in document or take_table(document, "tool", "poetry"):
            return PYPROJECT
    if _read_setup_cfg(folder).has_option("options", "install_requires"):
        return SETUP_CFG
    return SETUP_PY if (folder / SETUP_PY).is_file() else ""


def is_of_poetry(folder: Path) -> bool:
    """Return whether the pyproject.toml in FOLDER is Poetry's own form, without a [project] table."""
    return "project" not in read_toml(folder / PYPROJECT)


def read_poetry(folder: Path) -> tuple[str, ...]:
    """Return the requirements of [tool.poetry.dependencies] in FOLDER, as Poetry itself writes them.

    Raise InputError for what Poetry does not take, and for a folder.
    """
    from poetry.core.factory import Factory

    path = folder / PYPROJECT
    try:
        package = Factory().create_poetry(folder, with_groups=False).package
    except (ValueError, RuntimeError, OSError) as error:
        said = " ".join(str(error).split())
        raise InputError(f"{path}: {said}", "correct it", page="your-own-project") from None
    out = []
    for one in package.requires:
        if one.is_optional():
            continue
        if one.is_directory() or one.is_file():
            raise InputError(
                f"{path}: {one.name} is a path of your own, and only Poetry installs that from here",
                f"name it in {folder}/requirements.txt: -e PATH, with all other packages",
                page="your-own-project",
            )
        out.append(str(Requirement(one.to_pep_508())))
    return tuple(out)


def read_setup_cfg(folder: Path) -> tuple[str, ...]:
    """Return `install_requires` of the setup.cfg in FOLDER.

    Raise InputError where it is to be found elsewhere, and for what is no requirement.
    """
    path = folder / SETUP_CFG
    said = _read_setup_cfg(folder).get("options", "install_requires")
    if said.strip().startswith(OF_A_KEY):
        raise InputError(
            f"{path}: install_requires is read from elsewhere: {said.strip()}",
            f"write the packages into {folder}/requirements.txt",
            page="your-own-project",
        )
    # As setuptools takes it: a line each, else with semicolons between.
    lines = said.splitlines() if "\n" in said else said.split(";")
    out = []
    for line in map(str.strip, lines):
        if not line or line.startswith("#"):
            continue
        try:
            out.append(str(Requirement(line)))
        except InvalidRequirement as error:
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"{path}: install_requires: {line}: {reason}",
                "correct the line",
                page="your-own-project",
            ) from None
    return tuple(out)


def _read_setup_cfg(folder: Path) -> configparser.RawConfigParser:
    """Return the setup.cfg in FOLDER, empty where it has none. Raise InputError for another form."""
    path = folder / SETUP_CFG
    parser = configparser.RawConfigParser()
    if not path.is_file():
        return parser
    try:
        parser.read_string(read_text(path.resolve(), LARGEST))
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        said = " ".join(str(error).split())
        raise InputError(f"{path}: {said}", "correct the file", page="your-own-project") from None
    return parser
