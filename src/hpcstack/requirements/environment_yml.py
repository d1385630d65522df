"""An environment.yml of conda's, as far as pip can install it.

conda brings a Python, compilers and CUDA of its own, and none of them can be put beside the image's.
What conda and PyPI have by names that are known to mean the same is installed from PyPI
(facts/conda-names.yaml); all else is refused by line. Packages are read by rattler, conda's own form:
https://docs.conda.io/projects/conda/en/stable/user-guide/concepts/pkg-specs.html
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from hpcstack.core.errors import InputError, ProblemsError
from hpcstack.core.files import read_text
from hpcstack.core.yaml import Document, parse_yaml
from hpcstack.requirements.conda_names import find_name_on_pypi, is_of_the_image
from hpcstack.requirements.pip_file import PipLine, read_pip_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from hpcstack.core.yaml import Path as Place

LARGEST = 1 << 20
# Platforms as conda-lock (`# [linux]` behind an entry) and mamba (`sel(linux): ENTRY`) name them, and
# whether nodes are of them. What names processors, too, is not decided here.
SELECTORS = {
    "linux": True,
    "unix": True,
    "not win": True,
    "not osx": True,
    "win": False,
    "osx": False,
    "not linux": False,
    "not unix": False,
    "win-64": False,
    "win64": False,
    "osx-64": False,
    "osx-arm64": False,
    "osx64": False,
}
BEHIND = re.compile(r"\s#.*?\[([^\]]*)\]\s*$")  # a selector in the comment behind an entry
HINT = (
    "take them out (the image has CUDA, MPI and compilers of its own), or put those that PyPI has below "
    "`pip:`, by PyPI's names; or write a recipe: packages: {conda: [...]}"
)


@dataclass(frozen=True)
class CondaEntry:
    """One package of a list: TEXT in line NUMBER; IS_PIPS if it stands below `pip:`."""

    text: str
    number: int
    is_pips: bool = False


@dataclass(frozen=True)
class CondaEnvironment:
    """What an environment.yml asks for: LINES as pip takes them, what the image has in its own way,
    and what only conda has.
    """

    lines: tuple[PipLine, ...]
    of_the_image: tuple[CondaEntry, ...]
    only_conda: tuple[CondaEntry, ...]
    variables: Mapping[str, str] = field(default_factory=dict)  # of `variables:`


def read_conda_environment(path: Path) -> CondaEnvironment:
    """Return what the environment.yml PATH asks for. InputError where the file cannot be read."""
    text, document = _load(path)
    lines: list[PipLine] = []
    left_out: list[CondaEntry] = []
    only_conda: list[CondaEntry] = []
    for entry in _list_entries(path, text.splitlines(), document):
        if entry.is_pips:
            lines.append(_read_pips(path, entry))
            continue
        name, line = _translate(entry.text)
        if is_of_the_image(name):
            left_out.append(entry)
        elif line:
            lines.append(read_pip_line(line, path, entry.number))
        else:
            only_conda.append(entry)
    return CondaEnvironment(
        tuple(lines), tuple(left_out), tuple(only_conda), _read_variables(document)
    )


def _read_variables(document: Document) -> dict[str, str]:
    """Return what `variables:` sets; nothing where it is no mapping."""
    said = document.value.get("variables")
    if not isinstance(said, dict):
        return {}
    return {str(name): str(value) for name, value in said.items()}


def read_installable_environment(path: Path) -> CondaEnvironment:
    """Return what the environment.yml PATH asks for. InputError for packages that only conda has."""
    found = read_conda_environment(path)
    if found.only_conda:
        named = ", ".join(f"{one.text} (line {one.number})" for one in found.only_conda)
        raise InputError(f"{path}: only conda has {named}", HINT, page="your-own-project")
    return found


def _load(path: Path) -> tuple[str, Document]:
    """Return the text of PATH and its document. Raise InputError where it is no environment file."""
    try:
        text = read_text(path.resolve(), LARGEST)
        document = parse_yaml(text, str(path))
    except ProblemsError as error:
        raise InputError(error.message, "correct the file", page="your-own-project") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}", "correct the file", page="your-own-project") from None
    if not isinstance(document.value, dict) or not document.value.keys() & {"name", "dependencies"}:
        raise InputError(
            f"{path} is not a conda environment file",
            "it begins with `name:`",
            page="your-own-project",
        )
    return text, document


def _list_entries(path: Path, lines: list[str], document: Document) -> Iterator[CondaEntry]:
    """Yield the packages of `dependencies` that are meant for nodes, and those below `pip:`.

    An item that is empty asks for nothing. Raise InputError for what is no package.
    """
    for item, place in _list_items(path, document, ("dependencies",)):
        number = document.mark(place).line
        if isinstance(item, str):
            if _is_for_nodes(path, lines, number):
                yield CondaEntry(item.strip(), number)
            continue
        if not isinstance(item, dict):
            raise _make_refusal(path, number, "a package is a line of text")
        for key, value in item.items():
            selector = re.fullmatch(r"sel\((.*)\)", key)
            if key == "pip":
                for one, inner in _list_items(path, document, (*place, key)):
                    at = document.mark(inner).line
                    if not isinstance(one, str):
                        raise _make_refusal(path, at, "a package of pip's is a line of text")
                    if _is_for_nodes(path, lines, at):
                        yield CondaEntry(one.strip(), at, is_pips=True)
            elif selector and isinstance(value, str):
                if _judge(path, number, selector[1]):
                    yield CondaEntry(value.strip(), number)
            else:
                raise _make_refusal(
                    path, number, f"{key!r} is neither a package, nor `pip:`, nor sel(PLATFORM)"
                )


def _list_items(path: Path, document: Document, place: Place) -> Iterator[tuple[Any, Place]]:
    """Yield (item, its place) of the list at PLACE that are not empty; none where there is no list."""
    found: Any = document.value
    for part in place:
        found = found.get(part) if isinstance(found, dict) else found[part]
        if found is None:
            return
    if not isinstance(found, list):
        number = document.mark(place).line
        raise _make_refusal(path, number, f"{place[-1]} is a list, one package a line")
    yield from ((item, (*place, index)) for index, item in enumerate(found) if item)


def _is_for_nodes(path: Path, lines: list[str], number: int) -> bool:
    """Return whether the entry in line NUMBER is meant for nodes, by the comment behind it."""
    selector = BEHIND.search(lines[number - 1])
    return _judge(path, number, selector[1]) if selector else True


def _judge(path: Path, number: int, selector: str) -> bool:
    """Return whether SELECTOR means nodes. Raise InputError where nobody knows."""
    is_meant = SELECTORS.get(" ".join(selector.split()))
    if is_meant is None:
        raise _make_refusal(
            path, number, f"the selector [{selector}] is not understood, only [linux] and its like"
        )
    return is_meant


def _read_pips(path: Path, entry: CondaEntry) -> PipLine:
    """Return ENTRY of `pip:`. Raise InputError for a folder: that is no package of an index."""
    line = read_pip_line(entry.text, path, entry.number)
    if line.folder or line.is_editable:
        raise _make_refusal(
            path, entry.number, f"{entry.text}: a folder of your own goes into a requirements.txt"
        )
    return line


def _translate(text: str) -> tuple[str, str]:
    """Return (conda's name, the requirement for pip) of the package TEXT.

    The requirement is empty where pip has nothing that is known to be the same. A build of conda's
    (`=1.26=py312_0`) is that of its version: PyPI has no builds.
    """
    from rattler import MatchSpec
    from rattler.exceptions import InvalidMatchSpecError

    try:
        spec = MatchSpec(text)
    except InvalidMatchSpecError:
        return "", ""
    name = getattr(spec.name, "normalized", "")
    of_pypi = find_name_on_pypi(name)
    version = _translate_version(str(spec.version or ""))
    if not of_pypi or version is None or "://" in text:
        return name, ""
    return name, f"{of_pypi}{version}"


def _translate_version(said: str) -> str | None:
    """Return conda's versions SAID, in rattler's one form, as pip writes them; None where it has none.

    `1.26.*` is 1.26 and all below it; pip has no `|`.
    """
    parts = [part for part in said.split(",") if part]
    written = [f"=={part}" if part[0].isalnum() else part for part in parts]
    try:
        SpecifierSet(",".join(written))
    except InvalidSpecifier:
        return None
    return ",".join(written)


def _make_refusal(path: Path, number: int, why: str) -> InputError:
    return InputError(f"{path}:{number}: {why}", "correct the line", page="your-own-project")
