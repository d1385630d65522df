"""What a recipe adds to its base: packages of four kinds, files, and named steps.

Tested in tests/unit/resolve/test_packages.py and tests/unit/recipe/test_model.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints, field_validator, model_validator

from hpcstack.recipe.fields import (
    AptPackage,
    Channel,
    Commit,
    CondaPackage,
    DnfPackage,
    GitUrl,
    ImagePath,
    Line,
    Model,
    Prefix,
    Requirement,
    Script,
)
from hpcstack.recipe.guard import BUILT_AGAINST_TORCH, FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable


class Conda(Model):
    """Conda packages, installed into one prefix whose bin comes first on PATH."""

    channels: tuple[Channel, ...] = Field(
        ("conda-forge",),
        min_length=1,
        description="Channels, by name or URL. A package comes from the first that has it.",
    )
    packages: tuple[CondaPackage, ...] = Field(
        (), description="Packages as conda's match specs: numpy, numpy=2.1, numpy>=2,<3."
    )
    prefix: Prefix = Field(
        "/opt/conda", description="Folder of the image in which they are installed."
    )


class Source(Model):
    """A program that is built from git inside the image."""

    name: str = Field(
        pattern=r"^[a-z0-9]+(?:[._-][a-z0-9]+)*$",
        max_length=64,
        description="A name of your choice, which logs and the lock use.",
    )
    git: GitUrl = Field(
        description="URL of the repository: https://HOST/PATH, ssh://HOST/PATH or file:///PATH, "
        "without a password or token."
    )
    commit: Commit = Field(
        "",
        description="The commit to build: all 40 hex digits. Without it the lock holds the commit "
        "that `ref` is when the lock is made.",
    )
    ref: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._/+-]*$",
        description="A tag or branch. `hpcstack lock` resolves it to a commit.",
    )
    submodules: bool = Field(False, description="Fetch the repository's submodules, too.")
    build: Script = Field(
        description="Lines of bash that build and install it, run in the folder of the source. The "
        "first command that fails ends them."
    )

    @model_validator(mode="after")
    def _check_pinned(self) -> Source:
        if not self.commit and not self.ref:
            raise ValueError("name a commit, or a ref (a tag) that the lock resolves to one")
        if self.ref.startswith("-"):  # git would take it for an option
            raise ValueError("a ref must not begin with '-'")
        return self


Replaceable = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.+-]*$", max_length=100)]


class Project(Model):
    """A project of Python's whose requirements are installed in the image."""

    folder: Line = Field(
        min_length=1,
        description="Folder of the project, in the recipe's folder or below. The first of "
        "pylock.toml, uv.lock with pyproject.toml, pixi.lock with its manifest, requirements.txt, "
        "pyproject.toml and environment.yml that it has is read.",
    )
    extras: tuple[Line, ...] = Field(
        (), description="Optional dependencies of its pyproject.toml that are wanted, too."
    )
    groups: tuple[Line, ...] = Field(
        (), description="Dependency groups of its pyproject.toml that are wanted, too."
    )


def _as_project(value: Any) -> Any:
    """Return VALUE, or {folder: VALUE} where it is text."""
    if isinstance(value, str):
        return {"folder": value}
    return value


class Packages(Model):
    """What is installed on top of the base: apt's or dnf's packages, then conda's, pip's, and sources."""

    apt: tuple[AptPackage, ...] = Field(
        (),
        description="Debian or Ubuntu packages, e.g. infiniband-diags, or infiniband-diags=50.0-2 "
        "for a certain version.",
    )
    dnf: tuple[DnfPackage, ...] = Field(
        (),
        description="Packages of rpm, for bases such as NVIDIA's of Rocky Linux, e.g. git, or "
        "git=2.43.5-1.el9 for a certain version.",
    )
    conda: Conda = Conda.model_construct()
    pip: tuple[Requirement, ...] = Field(
        (),
        description="Requirements as pip takes them, e.g. deepspeed==0.19.8. A URL is refused: "
        "`source` builds from git.",
    )
    project: Annotated[
        Project | None, BeforeValidator(_as_project, json_schema_input_type=str | Project)
    ] = Field(
        None,
        description="A project of Python's: what it asks for is added to `pip`, and what its lock "
        "pins to `constraints`. Its own code is not installed. DIR is short for {folder: DIR}.",
    )
    constraints: tuple[Requirement, ...] = Field(
        (),
        description="Versions that hold for whatever pip installs, e.g. numpy==1.26.4. Where the "
        "base has a package itself, the base's version holds instead.",
    )
    source: tuple[Source, ...] = Field(
        (), description="Programs that are built from git inside the image."
    )
    allow_replace: tuple[Replaceable, ...] = Field(
        (),
        description="Packages that NVIDIA built or chose for the base, and that a step may replace "
        "nevertheless; without this the build fails. Each is the name of a package, or of a "
        f"family: {', '.join(FAMILIES)}.",
    )
    no_build_isolation: tuple[Replaceable, ...] = Field(
        (),
        description="pip projects whose source distributions are built with what the base has "
        "installed, such as its torch, instead of in an isolated environment. Name those that "
        "import torch without declaring it as a build requirement. "
        f"{', '.join(BUILT_AGAINST_TORCH)} are always built so.",
    )

    def built_with_base(self, name: str) -> bool:
        """Return whether a source distribution of project NAME is built with the base's packages.

        Else pip builds it in an environment of its own.
        """
        named = {normalize_project(one) for one in self.no_build_isolation}
        return normalize_project(name) in (named | set(BUILT_AGAINST_TORCH))

    @field_validator("pip", mode="after")
    @classmethod
    def _check_pip(cls, requirements: tuple[str, ...]) -> tuple[str, ...]:
        return _refuse_duplicates(requirements, normalize_project)

    @field_validator("apt", "dnf", mode="after")
    @classmethod
    def _check_apt(cls, packages: tuple[str, ...]) -> tuple[str, ...]:
        return _refuse_duplicates(packages, lambda package: package.partition("=")[0])

    @field_validator("source", mode="after")
    @classmethod
    def _check_sources(cls, sources: tuple[Source, ...]) -> tuple[Source, ...]:
        _refuse_duplicates(tuple(source.name for source in sources), str)
        return sources


def normalize_project(requirement: str) -> str:
    """Return the canonical name (PEP 503) of the project that a pip REQUIREMENT names."""
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    return re.sub(r"[-_.]+", "-", match[0] if match else requirement).lower()


def _refuse_duplicates(entries: tuple[str, ...], name_of: Callable[[str], str]) -> tuple[str, ...]:
    """Return ENTRIES. Raise ValueError where two of them have one name, by NAME_OF.

    What a recipe extends may have one of them already.
    """
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

    path: ImagePath = Field(description="Absolute path of the file in the image.")
    content: Script = Field("", description="The file's text. Give either this or `source`.")
    source: Line = Field(
        "",
        description="File whose text is taken: a path relative to the recipe's folder, in it or "
        "below.",
    )
    mode: str = Field(
        "0644", pattern=r"^0?[0-7]{3}$", description="The file's mode in octal, e.g. 0755."
    )


class Run(Model):
    """A named step of the build.

    It is lines of bash, run as root of the image. The first command that fails ends it.
    """

    name: Line = Field(
        min_length=1,
        max_length=80,
        description="What the step does, as the build's log and messages call it.",
    )
    command: Script = Field(min_length=1, description="Lines of bash.")
    network: bool = Field(
        True,
        description="The step may use the network. Write false to shut it out. The engine docker "
        "cannot, nor can Apptainer and Enroot where they build unconfined.",
    )
