"""The spec of one stack, as a recipe states it: what, never where."""

from __future__ import annotations

import re
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_serializer, model_validator

from hpcstack.core.characters import VARIABLE
from hpcstack.core.names import MODES
from hpcstack.recipe.fields import LABEL as LABEL_NAME
from hpcstack.recipe.fields import (
    NAME,
    REPOSITORY,
    VARIANT,
    VERSION,
    Command,
    Label,
    Line,
    Model,
    Mount,
    Part,
    Value,
)
from hpcstack.recipe.packages import File, Packages, Run
from hpcstack_smoke.select import FAMILIES, GROUPS, list_names

IMAGE = re.compile(
    rf"^(?P<registry>[A-Za-z0-9.-]+(?::[0-9]+)?)/(?P<repository>{REPOSITORY})"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?$"
)

Platform = Literal["linux/amd64", "linux/arm64"]
if TYPE_CHECKING:
    Mode = str
else:
    Mode = Literal[MODES]


def known_tests() -> tuple[str, ...]:
    """Every group, family and check of the suite."""
    return list_names()


class Base(Model):
    """The image that a stack starts from."""

    image: str = Field(description="REGISTRY/REPOSITORY:TAG, e.g. nvcr.io/nvidia/pytorch:24.11-py3")
    platforms: tuple[Platform, ...] = Field(
        ("linux/amd64",), min_length=1, description="platforms to lock"
    )

    @field_validator("image")
    @classmethod
    def _image(cls, text: str) -> str:
        match = IMAGE.fullmatch(text)
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


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Values = Annotated[
    tuple[Part, ...], BeforeValidator(_listed, json_schema_input_type=str | tuple[str, ...])
]


class Setting(Model):
    """What becomes of one variable: a value of its own, or parts before and after what the base
    has.
    """

    set: Value | None = Field(None, description="the value itself")
    prepend: Values = Field((), description="put before the base's value, first to last")
    append: Values = Field((), description="put after the base's value")
    separator: Line = Field(":", min_length=1, max_length=3)

    @model_validator(mode="after")
    def _one_way(self) -> Setting:
        if self.set is not None and (self.prepend or self.append):
            raise ValueError("`set` replaces the value: it does not go with prepend or append")
        if self.set is None and not self.prepend and not self.append:
            raise ValueError("say set, prepend or append")
        return self

    @model_serializer(mode="wrap")
    def _short(self, as_it_is: Any) -> Any:
        return self.set if self.set is not None else as_it_is(self)

    def value(self, had: str | None) -> str:
        """The variable's value, where the base HAD one (or None)."""
        if self.set is not None:
            return self.set
        return self.separator.join([*self.prepend, *([had] if had else []), *self.append])


def _setting(value: Any) -> Any:
    return {"set": value} if isinstance(value, str) else value


Variable = Annotated[Setting, BeforeValidator(_setting, json_schema_input_type=str | Setting)]


class AdoptedImage(Model):
    """The image that a stack is, where hpcstack did not build it: nothing says how to make it
    again.
    """

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="of the file that was taken over")
    source: Line = Field(
        min_length=1, description="where it was taken from: a file, or a registry's image"
    )


class ModuleSpec(Model):
    """What the stack's module offers."""

    commands: tuple[Command, ...] = Field(
        (), description="programs of the image that get a wrapper on PATH"
    )
    python: bool = Field(
        False, description="also the image's python and python3, which then hide the host's own"
    )
    environment: dict[str, Variable] = Field(
        {},
        description="variables that loading the module sets outside of containers: NAME: value, or "
        "prepend, append",
    )

    @field_validator("environment")
    @classmethod
    def _names(cls, environment: dict[str, Setting]) -> dict[str, Setting]:
        for name in environment:
            if not VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} is not a variable's name")
            if name.startswith("HPCSTACK_"):
                raise ValueError(f"{name} is hpcstack's own")
        return environment

    @property
    def wrapped(self) -> tuple[str, ...]:
        """Every command that gets a wrapper."""
        return (*self.commands, *(("python", "python3") if self.python else ()))


class LaunchSpec(Model):
    """How a command of the stack is started on many nodes."""

    mode: Mode = Field(
        "torchrun",
        description="torchrun, deepspeed: one task per node starts the ranks; task-per-gpu, mpi: one per "
        "rank; plain",
    )
    mounts: tuple[Mount, ...] = Field(
        (), description="SOURCE:TARGET, bound into every job step of this stack"
    )


def _day(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
        raise ValueError("input should be a valid date: YYYY-MM-DD")
    return value


Day = Annotated[date, BeforeValidator(_day)]


class Lifecycle(Model):
    """When users are warned, and when the stack goes."""

    deprecate: Day | None = Field(
        None, description="from this day on its users are warned: YYYY-MM-DD"
    )
    remove: Day | None = Field(None, description="from this day on it may be retired: YYYY-MM-DD")
    successor: str = Field(
        "", pattern=r"^[A-Za-z0-9._+-]*$", description="the full name of what to use instead"
    )

    @model_validator(mode="after")
    def _order(self) -> Lifecycle:
        if self.deprecate and self.remove and self.remove < self.deprecate:
            raise ValueError("`remove` lies before `deprecate`")
        return self


class Stack(Model):
    """A validated recipe. Its full name is NAME-VERSION[-VARIANT]."""

    api_version: Literal["hpcstack/v1"] = Field(
        alias="apiVersion", description="the format of this file"
    )
    name: str = Field(pattern=NAME, max_length=64)
    version: str = Field(pattern=VERSION, max_length=64)
    variant: str = Field(
        "", pattern=VARIANT, max_length=32, description="a third part of the name, e.g. vision"
    )
    summary: Line = Field(
        max_length=100, min_length=1, description="one line: what the stack is for"
    )
    base: Base
    adopted: AdoptedImage | None = Field(
        None, description="written by hpcstack adopt: an image that is not built here"
    )
    packages: Packages = Packages.model_construct()
    files: tuple[File, ...] = Field(
        (), description="text files copied into the image, after packages"
    )
    run: tuple[Run, ...] = Field((), description="named steps, in order, after files")
    environment: dict[str, Variable] = Field(
        {}, description="variables of the image: NAME: value, or prepend, append"
    )
    labels: dict[str, Label] = Field({}, description="labels of the image")
    entrypoint: tuple[Line, ...] = Field((), description="replaces the base's entrypoint")
    module: ModuleSpec = ModuleSpec.model_construct()
    launch: LaunchSpec = LaunchSpec.model_construct()
    lifecycle: Lifecycle = Lifecycle.model_construct()
    tests: tuple[str, ...] = Field(
        (),
        description=f"checks, families or groups of the smoke suite: "
        f"{', '.join((*GROUPS, *FAMILIES))}",
    )

    @field_validator("environment")
    @classmethod
    def _names(cls, environment: dict[str, Setting]) -> dict[str, Setting]:
        for name in environment:
            if not VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} is not a variable's name")
            if name.startswith(("APPTAINER", "SINGULARITY", "ENROOT_", "SLURM_")):
                raise ValueError(f"{name} belongs to the container runtime or to Slurm")
        return environment

    @field_validator("labels")
    @classmethod
    def _labels(cls, labels: dict[str, str]) -> dict[str, str]:
        for name in labels:
            if not LABEL_NAME.fullmatch(name) or name.startswith("org.hpcstack."):
                raise ValueError(
                    f"{name!r} is not a label's name, e.g. org.example.contact; org.hpcstack.* "
                    f"is ours"
                )
        return labels

    @field_validator("tests")
    @classmethod
    def _tests(cls, tests: tuple[str, ...]) -> tuple[str, ...]:
        from hpcstack.core.errors import did_you_mean

        known = known_tests()
        for test in tests:
            if test not in known:
                raise ValueError(
                    f"no check or family {test!r}{did_you_mean(test, known)}; known: "
                    f"{', '.join(FAMILIES)}"
                )
        return tests

    @model_validator(mode="after")
    def _adopted_as_it_is(self) -> Stack:
        packages = self.packages
        added = {
            "packages": packages.apt or packages.pip or packages.conda.packages or packages.source,
            "files": self.files,
            "run": self.run,
        }
        named = [key for key, value in added.items() if value]
        if self.adopted and named:
            raise ValueError(
                f"an adopted image is taken as it is: drop `{named[0]}`, or drop `adopted` and say "
                f"what to build on in "
                "`base.image`"
            )
        return self

    @property
    def full_name(self) -> str:
        return f"{self.name}-{self.release_version}"

    @property
    def release_version(self) -> str:
        """VERSION[-VARIANT]: what stands behind the slash of a module."""
        return f"{self.version}-{self.variant}" if self.variant else self.version

    def variables(self, base: dict[str, str]) -> dict[str, str]:
        """The values of the variables that the stack sets, over those of its BASE."""
        path = self.packages.conda
        out = (
            {"PATH": f"{path.prefix}/bin:{base.get('PATH', '')}".rstrip(":")}
            if path.packages
            else {}
        )
        for name, setting in self.environment.items():
            out[name] = setting.value(out.get(name, base.get(name)))
        return out

    def checksum(self) -> str:
        """sha256 over the spec's meaning: comments, order of keys, what is left at its default, and
        from which file a text came do not count.
        """
        import hashlib  # loads OpenSSL, which most verbs have no use for

        said = self.model_dump_json(
            by_alias=True, exclude_defaults=True, exclude={"files": {"__all__": {"source"}}}
        )
        return hashlib.sha256(said.encode()).hexdigest()
