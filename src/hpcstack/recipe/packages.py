"""What is added to a base: packages of four kinds, files, and named steps."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field, StringConstraints, field_validator, model_validator

from hpcstack.recipe.fields import (
    AptPackage,
    Channel,
    Commit,
    CondaPackage,
    GitUrl,
    ImagePath,
    Line,
    Model,
    Prefix,
    Requirement,
    Script,
)
from hpcstack.recipe.guard import BUILT_AGAINST_TORCH, FAMILIES


class Conda(Model):
    """Conda packages, installed into one prefix whose bin comes first on PATH."""

    channels: tuple[Channel, ...] = Field(("conda-forge",), min_length=1, description="first wins")
    packages: tuple[CondaPackage, ...] = Field((), description="match specs, e.g. numpy=2.1")
    prefix: Prefix = Field("/opt/conda", description="where they are installed in the image")


class Source(Model):
    """A program that is built from git inside the image."""

    name: str = Field(pattern=r"^[a-z0-9]+(?:[._-][a-z0-9]+)*$", max_length=64)
    git: GitUrl = Field(description="https://HOST/PATH, without a password")
    commit: Commit = Field("", description="40 hex digits; else the lock asks what `ref` is")
    ref: str = Field(
        "", pattern=r"^[A-Za-z0-9._/+-]*$", description="a tag or branch, resolved by the lock"
    )
    submodules: bool = False
    build: Script = Field(description="lines of bash, run in the folder of the source")

    @model_validator(mode="after")
    def _pinned(self) -> Source:
        if not self.commit and not self.ref:
            raise ValueError("name a commit, or a ref (a tag) that the lock resolves to one")
        if self.ref.startswith("-"):
            raise ValueError("a ref does not begin with '-'")
        return self


Replaceable = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.+-]*$", max_length=100)]


class Packages(Model):
    """What is installed on top of the base, in this order."""

    apt: tuple[AptPackage, ...] = Field((), description="Debian or Ubuntu packages")
    conda: Conda = Conda.model_construct()
    pip: tuple[Requirement, ...] = Field((), description="pip requirements")
    source: tuple[Source, ...] = Field((), description="built from git in the image")
    allow_replace: tuple[Replaceable, ...] = Field(
        (),
        description=f"what a step may replace of what NVIDIA built: {', '.join(FAMILIES)}, or a package's "
        f"name",
    )

    no_build_isolation: tuple[Replaceable, ...] = Field(
        (),
        description="pip's projects whose source distributions are built with what the base has, as against its torch, "
        "and those of `pip` that ask for them; "
        f"{', '.join(BUILT_AGAINST_TORCH)} always are",
    )

    def built_with_base(self, name: str) -> bool:
        """Whether a source distribution of pip's project NAME is built with what the base has, in
        no environment of its own.
        """
        named = {normalize_project(one) for one in self.no_build_isolation}
        return normalize_project(name) in (named | set(BUILT_AGAINST_TORCH))

    @field_validator("pip", mode="after")
    @classmethod
    def _pip_once(cls, requirements: tuple[str, ...]) -> tuple[str, ...]:
        return _once(requirements, normalize_project)

    @field_validator("apt", mode="after")
    @classmethod
    def _apt_once(cls, packages: tuple[str, ...]) -> tuple[str, ...]:
        return _once(packages, lambda package: package.partition("=")[0])

    @field_validator("source", mode="after")
    @classmethod
    def _source_once(cls, sources: tuple[Source, ...]) -> tuple[Source, ...]:
        _once(tuple(source.name for source in sources), str)
        return sources


def normalize_project(requirement: str) -> str:
    """The canonical name of the project that a pip requirement names (PEP 503)."""
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    return re.sub(r"[-_.]+", "-", match[0] if match else requirement).lower()


def _once(entries: tuple[str, ...], name_of: Any) -> tuple[str, ...]:
    seen: dict[str, str] = {}
    for entry in entries:
        name = name_of(entry)
        if name in seen:
            hint = "write {replace: [...]} to drop what is inherited"
            raise ValueError(f"{name} is given twice, as {seen[name]!r} and {entry!r}; {hint}")
        seen[name] = entry
    return entries


class File(Model):
    """A text file that is copied into the image."""

    path: ImagePath = Field(description="where it goes in the image")
    content: Script = Field("", description="its text; or `source` names a file beside the recipe")
    source: Line = Field("", description="a file beside the recipe, relative to it")
    mode: str = Field("0644", pattern=r"^0?[0-7]{3}$", description="octal, e.g. 0755")


class Run(Model):
    """A named step: lines of bash, run as root of the image, ended by the first command that fails."""

    name: Line = Field(
        min_length=1, max_length=80, description="what the log and a failure call it"
    )
    command: Script = Field(min_length=1)
    network: bool = Field(
        True, description="whether it may use the network; engines that build in layers shut it out"
    )
