"""Packages that are named on the command line: `hpcstack launch --with einops`.

Tested in tests/unit/cli/test_first_day.py.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from hpcstack.core.errors import InputError
from hpcstack.recipe.fields import check_requirement
from hpcstack.requirements.pip_file import read_pip_file


def read_named_packages(said: tuple[str, ...]) -> tuple[str, ...]:
    """Return the requirements that the values SAID of --with stand for, sorted.

    A file of requirements stands for its lines. Raise InputError for what pip does not take as a
    requirement, and for what looks like another file or a folder: an index would be asked for a
    package of that name.
    """
    requirements = [line for one in said for line in _read_requirements(one)]
    for one in requirements:
        try:
            check_requirement(one)
        except ValueError as error:
            raise _explain_requirement(one, error) from None
    return tuple(sorted(requirements))


def _explain_requirement(said: str, error: ValueError) -> InputError:
    """Return the refusal of SAID, which is no requirement of pip's because of ERROR."""
    is_a_list = "," in said and not set("<>=!~[") & set(said)
    if is_a_list:
        each = " ".join(f"--with {name}" for name in said.split(","))
        return InputError(
            f"--with {said}: write --with before each package", each, page="add-a-pip-package"
        )
    if "://" in said:
        return InputError(
            f"--with {said}: a package is named, as the package index has it, not a URL",
            "git clone it, and export PYTHONPATH; or write a recipe",
            page="add-a-pip-package",
        )
    return InputError(
        f"--with {said!r}: {error}",
        "e.g. --with einops, --with 'einops==0.8.*'",
        page="add-a-pip-package",
    )


FILES = (".txt", ".yml", ".yaml", ".toml", ".lock", ".whl", ".zip", ".gz", ".cfg", ".py")


def _read_requirements(said: str) -> list[str]:
    """Return what SAID asks for: itself, or the lines of a file of requirements.

    Raise InputError for files of another kind, folders, and options of pip's.
    """
    editable = re.fullmatch(r"(?:-e|--editable)[ =]+(.+)", said)
    if said in ("-e", "--editable") or editable:
        raise make_own_package_error(Path(editable[1] if editable else "."), said)
    if said in ("-r", "--requirement"):
        raise InputError(
            "--with -r: name the file itself", "--with requirements.txt", page="add-a-pip-package"
        )

    looks_like_a_path = said.endswith(FILES) or "/" in said or said == "."
    is_a_url = " @ " in said or "://" in said
    if not looks_like_a_path or is_a_url:
        return [said]
    if said.endswith((".yml", ".yaml")):
        raise InputError(
            f"--with {said}: an environment of conda's belongs in an image",
            "a recipe: extends: STACK, packages: {conda: [...]}",
            page="write-a-recipe",
        )
    path = Path(said)
    if path.is_dir() or not said.endswith(".txt"):
        raise make_own_package_error(path, said)

    if not path.is_file():
        raise InputError(
            f"--with {said}: {'not an ordinary file' if path.exists() else 'No such file'}",
            "name a file of requirements that exists",
            page="add-a-pip-package",
        )
    found = read_pip_file(path)
    others = [option.text for option in found.options]
    others += [one.text for one in found.lines if one.folder or one.is_constraint or one.hashes]
    if others:
        raise InputError(
            f"--with {said}: {others[0]}: only packages are accepted, without options, hashes, "
            "constraints and folders",
            "pip.conf or site.yaml names the index; --project takes such a file",
            page="add-a-pip-package",
        )
    return [one.text for one in found.lines]


def make_own_package_error(path: Path, said: str) -> InputError:
    """Return the refusal of SAID, a package of the user's own in PATH, with what to type instead.

    The package may keep its modules below src/, which is then what PYTHONPATH names.
    """
    folder = path.resolve()
    modules = folder
    if (folder / "src").is_dir():
        modules = folder / "src"
    hint = f"--project {shlex.quote(str(path))}; or export PYTHONPATH={shlex.quote(str(modules))}"
    if not folder.is_relative_to(Path.cwd().resolve()):
        mount = shlex.quote(f"{folder}:{folder}")
        hint += f", and --mount {mount}"
    return InputError(
        f"--with {said}: a folder or file of your own is not on the package index",
        hint,
        page="add-a-pip-package",
    )
