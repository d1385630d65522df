"""The packages of an image, the order of their versions, and what a text asks of them.

    torch               any package of that name, of Debian, PyPI or conda
    deb:libssl3         of Debian alone
    'urllib3<2.8'       below a version; several conditions are separated by commas
    'libnccl*'          * and ? stand for other letters

Versions are ordered as their own archive orders them: of Debian by univers, of PyPI by packaging.
A snapshot such as 2.6.0a0 comes before its release: `torch<2.6` finds it. conda has an order of its
own; versions that are written as PyPI's are ordered as those, others are not decided.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hpcstack.core.errors import InputError, StoreError
from hpcstack.store.artifact_format import read_elsewhere

if TYPE_CHECKING:
    from packaging.version import Version

    from hpcstack.store.artifact import Artifact

Ecosystem = Literal["deb", "pypi", "conda", "other"]
QUESTION = re.compile(
    r"(?:(?P<ecosystem>deb|pypi|conda):)?(?P<name>[A-Za-z0-9*?][A-Za-z0-9._+*?-]*)"
    r"(?P<conditions>\s*[<>=!~].*)?"
)
CONDITION = re.compile(r"\s*(?P<operator><=|>=|==|!=|<|>)\s*(?P<version>[A-Za-z0-9][\w.+:~!-]*)\s*")


# What no hpcstack did before elsewhere.json was written.
NOT_LOOKED = (
    "Python packages beside those of its own python3 were not looked for when it was stored"
)


@dataclass(frozen=True, order=True)
class Package:
    """A package as it is installed."""

    ecosystem: Ecosystem
    name: str
    version: str
    folder: str = ""  # of a Python package that the image's own python3 does not see

    @property
    def where(self) -> str:
        """Where it lies, in words, for behind its name; empty where that needs no word."""
        return f" in {self.folder}" if self.folder else ""


@dataclass(frozen=True)
class Condition:
    """A version must be so: `<` VERSION."""

    operator: str
    version: str


@dataclass(frozen=True)
class Question:
    """Which packages are asked for. An empty ECOSYSTEM means any."""

    name: str
    ecosystem: str = ""
    conditions: tuple[Condition, ...] = ()


def list_packages(artifact: Artifact) -> list[Package]:
    """Return the packages of ARTIFACT, its base's among them, sorted.

    Those of Pythons that its own python3 does not see are in `list_packages_elsewhere`.
    """
    out = [Package("deb", name, version) for name, version in artifact.apt.items()]
    out += [Package("pypi", name, version) for name, version in artifact.pip.items()]
    out += [Package("conda", name, text.partition("=")[0]) for name, text in artifact.conda.items()]
    out += [Package("other", name, version) for name, version in artifact.other.items()]
    return sorted(out)


@dataclass(frozen=True)
class PackagesElsewhere:
    """The Python packages of an image that its own python3 does not see."""

    packages: list[Package]  # sorted
    doubt: str = ""  # why they are not known
    was_looked: bool = True  # an older hpcstack did not look for them when it stored the image


def list_packages_elsewhere(artifact: Artifact) -> PackagesElsewhere:
    """Return the Python packages of ARTIFACT that its own python3 does not see."""
    try:
        elsewhere = read_elsewhere(artifact)
    except StoreError as error:
        return PackagesElsewhere([], error.message)
    if elsewhere is None:
        return PackagesElsewhere([], NOT_LOOKED, was_looked=False)
    packages = [
        Package("pypi", name, version, folder)
        for folder, found in elsewhere.items()
        for name, version in found.items()
    ]
    return PackagesElsewhere(sorted(packages))


def parse_question(text: str) -> Question:
    """Return which packages TEXT asks for. InputError where it is no such text."""
    tip = "hpcstack find torch, 'urllib3<2.8', deb:libssl3, 'libnccl*' or file:libnccl.so.2"
    match = QUESTION.fullmatch(text.strip())
    if not match:
        raise InputError(f"{text!r} names no package", tip, page="find-what-is-inside")
    conditions = []
    if match["conditions"]:
        for part in match["conditions"].split(","):
            found = CONDITION.fullmatch(part)
            if not found:
                raise InputError(
                    f"{text!r}: {part.strip()!r} is no condition (<, <=, ==, !=, >= or > and a "
                    "version)",
                    tip,
                    page="find-what-is-inside",
                )
            conditions.append(Condition(found["operator"], found["version"]))
    return Question(match["name"], match["ecosystem"] or "", tuple(conditions))


def is_asked_for(package: Package, question: Question) -> bool | None:
    """Whether QUESTION asks for PACKAGE; None where its version cannot be compared."""
    if question.ecosystem and package.ecosystem != question.ecosystem:
        return False
    if not _has_name(package, question.name):
        return False
    undecided = False
    for condition in question.conditions:
        fits = fits_condition(package, condition)
        if fits is False:
            return False
        undecided = undecided or fits is None
    return None if undecided else True


def _has_name(package: Package, name: str) -> bool:
    """Whether NAME, which may have * and ?, is PACKAGE's. PyPI takes `-`, `_` and `.` for one."""
    if package.ecosystem == "pypi":
        return fnmatch.fnmatchcase(_canonical(package.name), _canonical(name))
    # dpkg's names may have an architecture: libc6:amd64
    return fnmatch.fnmatchcase(package.name.partition(":")[0], name.lower())


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def fits_condition(package: Package, condition: Condition) -> bool | None:
    """Whether the version of PACKAGE is as CONDITION says; None where that cannot be said."""
    order = compare_versions(package.ecosystem, package.version, condition.version)
    if order is None:
        return None
    return {
        "<": order < 0,
        "<=": order <= 0,
        "==": order == 0,
        "!=": order != 0,
        ">=": order >= 0,
        ">": order > 0,
    }[condition.operator]


def compare_versions(ecosystem: Ecosystem, left: str, right: str) -> int | None:
    """Return a number below, at or above 0, as LEFT comes before RIGHT, is equal, or comes after.

    None where one of them is no version of the ECOSYSTEM. What PyPI's versions have after a `+`
    counts only where RIGHT has it, too: https://packaging.python.org/specifications/version-specifiers/
    """
    if ecosystem == "deb":
        from univers import debian

        read: Any = debian.Version.from_string
        try:
            return int(read(left).compare(read(right)))
        except ValueError:
            return None

    if ecosystem == "other":
        return None  # rpm and apk have orders of their own
    first, second = _parse_pypi(left), _parse_pypi(right)
    if first is None or second is None:
        return None
    if not second.local and first.local:
        first = _parse_pypi(first.public)
        assert first
    return (first > second) - (first < second)


def _parse_pypi(text: str) -> Version | None:
    from packaging.version import Version

    try:
        return Version(text)
    except ValueError:  # it is none, or a number in it is longer than any
        return None
