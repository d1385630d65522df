"""A project's lock for one stack: pylock.STACK.toml, beside the project's own files.

It is a lock as PEP 751 describes it, without the packages that the image has, so that pip, uv and
people can read it. What hpcstack adds is in [tool.hpcstack].
https://packaging.python.org/en/latest/specifications/pylock-toml/
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import tomli_w

from hpcstack.core.errors import InputError
from hpcstack.requirements.project_files import read_toml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hpcstack.store.artifact import Artifact

FORMAT = "3"  # of what is packed; another one makes every project's packages anew
TOOL = "hpcstack"


def name_lock_file(stack: str) -> str:
    """Return the name of the lock for STACK. The specification allows no dot within it."""
    return f"pylock.{re.sub(r'[^A-Za-z0-9_-]', '_', stack)}.toml"


def digest_image(artifact: Artifact) -> str:
    """Return a digest of what a lock depends on in the image: its platform and its packages.

    An image that was built anew with the same packages has the same digest.
    """
    about = json.dumps([artifact.platform, sorted(artifact.pip.items())])
    return hashlib.sha256(about.encode()).hexdigest()


@dataclass(frozen=True)
class ProjectLock:
    """A lock: the document of a pylock.toml."""

    document: dict[str, Any]

    @property
    def packages(self) -> list[dict[str, Any]]:
        out: list[dict[str, Any]] = self.document.get("packages", [])
        return out

    @property
    def versions(self) -> dict[str, str]:
        """{package: its version}; of one that comes from elsewhere than an index, what it is."""
        return {one["name"]: _describe_version(one) for one in self.packages}

    @property
    def about(self) -> dict[str, Any]:
        """What hpcstack wrote of it: stack, image, inputs, python, of-the-image, instead."""
        out: dict[str, Any] = self.document.get("tool", {}).get(TOOL, {})
        return out

    def fits(self, inputs: str, image: str) -> bool:
        """Whether it was made for these digests of the project's files and of the image."""
        return (self.about.get("inputs"), self.about.get("image")) == (inputs, image)

    def render(self) -> str:
        """Return the text of the file."""
        return tomli_w.dumps(self.document)

    def name_contents(self, artifact: Artifact) -> str:
        """Return a name for what is installed by it: the same for all projects that are alike."""
        head, packages = self.list_contents(artifact)
        words = "\0".join([head, *sorted(packages)])
        return hashlib.sha256(words.encode()).hexdigest()[:32]

    def list_contents(self, artifact: Artifact) -> tuple[str, list[str]]:
        """Return (what it is installed for, each of its packages with its hashes).

        What has to be built has no hash of its own, and is another one with each image.
        """
        # What is packed is a virtual environment, which names the Python that it is for.
        python = [str(self.about.get(key, "")) for key in ("python", "python-path")]
        packages = []
        for one in self.packages:
            image = [] if one.get("wheels") else [artifact.sha256]
            packages.append(
                json.dumps([one["name"], one.get("version"), *_list_origins(one), *image])
            )
        return json.dumps([FORMAT, *python, artifact.platform]), packages


@dataclass(frozen=True)
class PackageChange:
    """A package that two locks differ in: its version `before` and `after`; empty where it is not."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        if not self.before:
            return f"+ {self.name} {self.after}".rstrip()
        if not self.after:
            return f"- {self.name} {self.before}".rstrip()
        return f"{self.name} {self.before} -> {self.after}"


def compare_locks(before: ProjectLock, after: ProjectLock) -> list[PackageChange]:
    """Return what is installed by AFTER in another version than by BEFORE, or by one of them alone."""
    old, new = before.versions, after.versions
    return [
        PackageChange(name, old.get(name, ""), new.get(name, ""))
        for name in sorted({**old, **new})
        if old.get(name) != new.get(name)
    ]


def _list_origins(package: dict[str, Any]) -> list[str]:
    """Return what identifies the files of PACKAGE: hashes, or the commit that it is."""
    out = [
        f"{kind}:{value}" for file in list_files(package) for kind, value in file["hashes"].items()
    ]
    if "vcs" in package:
        out.append(package["vcs"]["commit-id"])
    return sorted(out)


def _describe_version(package: dict[str, Any]) -> str:
    """Return the version of PACKAGE; else the commit or the archive that it comes from."""
    if "version" in package:
        return str(package["version"])
    if "vcs" in package:
        return str(package["vcs"].get("commit-id", ""))[:12]
    archive = package.get("archive", {})
    return str(archive.get("url") or archive.get("path") or "?")


def list_files(package: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the files that a lock names for PACKAGE: wheels, the source, an archive."""
    for file in (*package.get("wheels", []), package.get("sdist"), package.get("archive")):
        if file and "hashes" in file:
            yield file


def read_project_lock(path: Path) -> ProjectLock | None:
    """Return the lock in PATH, None where there is none. Raise InputError where it is unreadable."""
    if not path.is_file():
        return None
    lock = ProjectLock(read_toml(path))
    if any("name" not in one for one in lock.packages):
        raise InputError(
            f"{path}: a package has no name", f"rm {path}, and lock again", page="your-own-project"
        )
    return lock


def strip_url_logins(value: Any) -> Any:
    """Return VALUE, of TOML's types, without the logins in its URLs."""
    if isinstance(value, dict):
        return {key: strip_url_logins(item) for key, item in value.items()}
    if isinstance(value, list):
        return [strip_url_logins(item) for item in value]
    if isinstance(value, str) and "://" in value and "@" in value:
        parts = urlsplit(value)
        if parts.username or parts.password:
            return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return value
