"""The spec of one stack, as a recipe states it: what, never where."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from hpcstack.yamlfile import CONTROL
from hpcstack_smoke.select import CODES

NAME = r"^[a-z0-9]+(?:[._+-][a-z0-9]+)*$"
VERSION = r"^[A-Za-z0-9]+(?:[._+-][A-Za-z0-9]+)*$"
VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
APT = re.compile(r"^[a-z0-9][a-z0-9+.-]+(?::[a-z0-9]+)?(?:=[A-Za-z0-9.+:~-]+)?$")
COMMAND = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")
IMAGE = re.compile(
    r"^(?P<registry>[A-Za-z0-9.-]+(?::[0-9]+)?)/(?P<repository>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?$"
)
SHADOWS = {"python", "python3", "pip", "sh", "bash", "env", "srun", "sbatch", "apptainer", "enroot"}
FAMILIES = tuple(dict.fromkeys(code.partition(".")[0] for codes in CODES.values() for code in codes))

Platform = Literal["linux/amd64", "linux/arm64"]
Mode = Literal["torchrun", "plain"]


def known_tests() -> tuple[str, ...]:
    """Every family and every check of the suite."""
    return (*FAMILIES, *(code for codes in CODES.values() for code in codes))


def one_line(text: str) -> str:
    """TEXT, refused if it holds a newline or a control character: it goes into shells and modulefiles."""
    if CONTROL.search(text):
        raise ValueError("newlines and control characters are not allowed here")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half a character (a lone surrogate) is not allowed here") from None
    return text


def value_of_variable(text: str) -> str:
    """TEXT as a variable's value that every runtime takes as it is."""
    if found := re.search(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}", one_line(text)):
        raise ValueError(f"Enroot would replace {found[0]} when the container starts; write the value itself")
    return text


Line = Annotated[str, AfterValidator(one_line)]
Value = Annotated[str, AfterValidator(value_of_variable)]


class Model(BaseModel):
    """Frozen, and without a place for keys that nobody knows."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Base(Model):
    """The image that a stack starts from."""

    image: str = Field(description="REGISTRY/REPOSITORY:TAG, e.g. nvcr.io/nvidia/pytorch:24.11-py3")
    platforms: tuple[Platform, ...] = Field(("linux/amd64",), min_length=1, description="platforms to lock")

    @field_validator("image")
    @classmethod
    def _image(cls, text: str) -> str:
        match = IMAGE.match(text)
        if not match or not re.search(r"[.:]|^localhost$", match["registry"]):
            raise ValueError("write REGISTRY/REPOSITORY:TAG, e.g. nvcr.io/nvidia/pytorch:24.11-py3")
        if not match["tag"] and not match["digest"]:
            raise ValueError("name a tag: an image without one changes under you")
        return text

    @property
    def registry(self) -> str:
        return self._match("registry")

    @property
    def repository(self) -> str:
        return self._match("repository")

    @property
    def tag(self) -> str:
        return self._match("tag")

    @property
    def digest(self) -> str:
        return self._match("digest")

    def _match(self, group: str) -> str:
        match = IMAGE.match(self.image)
        return (match[group] or "") if match else ""


def _requirement(text: str) -> str:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        Requirement(one_line(text))
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"not a pip requirement, e.g. deepspeed==0.16.2: {reason}") from None
    return text


def _apt(text: str) -> str:
    if not APT.match(text):
        raise ValueError("not an apt package, e.g. infiniband-diags or infiniband-diags=50.0-2")
    return text


def _command(text: str) -> str:
    if not COMMAND.match(text):
        raise ValueError("not a command's name: letters, digits and . _ + -")
    if text in SHADOWS:
        raise ValueError(f"a wrapper named {text} would shadow the host's own {text}")
    return text


class Packages(Model):
    """What is installed on top of the base."""

    apt: tuple[Annotated[str, AfterValidator(_apt)], ...] = Field((), description="Debian or Ubuntu packages")
    pip: tuple[Annotated[str, AfterValidator(_requirement)], ...] = Field((), description="pip requirements")


class ModuleSpec(Model):
    """What the stack's module offers."""

    commands: tuple[Annotated[str, AfterValidator(_command)], ...] = Field(
        (), description="programs of the image that get a wrapper on PATH"
    )


class LaunchSpec(Model):
    """How a command of the stack is started on many nodes."""

    mode: Mode = Field("torchrun", description="torchrun: one task a node, the launcher starts torchrun; plain: srun")


class Stack(Model):
    """A validated recipe. Its full name is NAME-VERSION."""

    api_version: Literal["hpcstack/v1"] = Field(alias="apiVersion", description="the format of this file")
    name: str = Field(pattern=NAME, max_length=64)
    version: str = Field(pattern=VERSION, max_length=64)
    summary: Line = Field(max_length=100, min_length=1, description="one line: what the stack is for")
    base: Base
    packages: Packages = Packages()
    environment: dict[str, Value] = Field({}, description="variables set in the image")
    module: ModuleSpec = ModuleSpec()
    launch: LaunchSpec = LaunchSpec()
    tests: tuple[str, ...] = Field((), description=f"checks or families of the smoke suite: {', '.join(FAMILIES)}")

    @field_validator("environment")
    @classmethod
    def _names(cls, environment: dict[str, str]) -> dict[str, str]:
        for name in environment:
            if not VARIABLE.match(name):
                raise ValueError(f"{name!r} is not a variable's name")
            if name.startswith(("APPTAINER", "SINGULARITY", "ENROOT_", "SLURM_")):
                raise ValueError(f"{name} belongs to the container runtime or to Slurm")
        return environment

    @field_validator("tests")
    @classmethod
    def _tests(cls, tests: tuple[str, ...]) -> tuple[str, ...]:
        from hpcstack.errors import did_you_mean

        known = known_tests()
        for test in tests:
            if test not in known:
                raise ValueError(
                    f"no check or family {test!r}{did_you_mean(test, known)}; known: {', '.join(FAMILIES)}"
                )
        return tests

    @property
    def full_name(self) -> str:
        return f"{self.name}-{self.version}"

    def checksum(self) -> str:
        """sha256 over the spec's meaning: comments and order of keys do not count."""
        return hashlib.sha256(self.model_dump_json(by_alias=True).encode()).hexdigest()
