"""The spec of one stack, as a recipe states it: what it is, never where it goes.

Each `description` and each class's docstring goes into the JSON Schema that `hpcstack schema`
prints: it explains its key to whoever writes the file.
"""

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
from hpcstack.recipe.module_values import explain_changed_part, explain_changed_value
from hpcstack.recipe.own_checks import OF_SITE, OF_STACK, OwnCheck, check_unique_names
from hpcstack.recipe.packages import File, Packages, Run
from hpcstack_smoke.select import FAMILIES, GROUPS, list_names

IMAGE = re.compile(
    rf"^(?P<registry>[A-Za-z0-9.-]+(?::[0-9]+)?)/(?P<repository>{REPOSITORY})"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?$"
)

# Variables that a container runtime or Slurm sets; each name begins so.
OF_RUNTIMES = ("APPTAINER", "SINGULARITY", "ENROOT_", "SLURM_")

Platform = Literal["linux/amd64", "linux/arm64"]
# pydantic wants a Literal of all names; mypy takes no Literal made from a variable.
if TYPE_CHECKING:
    Mode = str
else:
    Mode = Literal[MODES]


def list_test_names() -> tuple[str, ...]:
    """Return the names of every group, family and check of the suite."""
    return list_names()


class Base(Model):
    """The image that a stack starts from."""

    image: str = Field(
        description="Image of a registry: REGISTRY/REPOSITORY:TAG, e.g. "
        "nvcr.io/nvidia/pytorch:24.11-py3, also with @sha256:DIGEST."
    )
    platforms: tuple[Platform, ...] = Field(
        ("linux/amd64",),
        min_length=1,
        description="Platforms that the stack is locked and built for.",
    )

    @field_validator("image")
    @classmethod
    def _check_image(cls, text: str) -> str:
        match = IMAGE.fullmatch(text)
        # A first part with neither a dot nor a port is a user of Docker Hub's, and no registry.
        if not match or not re.search(r"[.:]|^localhost$", match["registry"]):
            raise ValueError("write REGISTRY/REPOSITORY:TAG, e.g. nvcr.io/nvidia/pytorch:24.11-py3")
        if not match["tag"] and not match["digest"]:
            raise ValueError("name a tag: an image without one changes under you")
        return text

    @property
    def registry(self) -> str:
        """HOST[:PORT] of the image's registry."""
        return self._part_of_image("registry")

    @property
    def repository(self) -> str:
        """The image's repository within its registry."""
        return self._part_of_image("repository")

    @property
    def tag(self) -> str:
        """The image's tag; empty where only a digest is named."""
        return self._part_of_image("tag")

    @property
    def digest(self) -> str:
        """The image's digest, sha256:...; empty where only a tag is named."""
        return self._part_of_image("digest")

    def _part_of_image(self, group: str) -> str:
        """Return the part GROUP of the image's name; empty where it has none."""
        return read_image_part(self.image, group)


def read_image_part(image: str, group: str) -> str:
    """Return the part GROUP (registry, repository, tag, digest) of IMAGE; empty where it has none.

    IMAGE is HOST/REPOSITORY[:TAG][@DIGEST]; of any other text every part is empty.
    """
    match = IMAGE.match(image)
    if not match:
        return ""
    return match[group] or ""


def _as_list(value: Any) -> Any:
    """Return VALUE, or a list of it where it is one text."""
    if isinstance(value, str):
        return [value]
    return value


Values = Annotated[
    tuple[Part, ...], BeforeValidator(_as_list, json_schema_input_type=str | tuple[str, ...])
]


class Setting(Model):
    """What becomes of one variable: a new value, or parts before and after the base's value.

    NAME: value is short for NAME: {set: value}.
    """

    set: Value | None = Field(
        None, description="The value. It replaces the base's, so it excludes prepend and append."
    )
    prepend: Values = Field(
        (), description="One part or a list of parts, put before the base's value in this order."
    )
    append: Values = Field(
        (), description="One part or a list of parts, put after the base's value in this order."
    )
    separator: Line = Field(
        ":", min_length=1, max_length=3, description="What stands between the parts."
    )

    @model_validator(mode="after")
    def _check_one_way(self) -> Setting:
        """Refuse a setting that says nothing, or both a value and parts."""
        if self.set is not None and (self.prepend or self.append):
            raise ValueError("`set` replaces the value: it does not go with prepend or append")
        if self.set is None and not self.prepend and not self.append:
            raise ValueError("give `set`, `prepend` or `append`")
        return self

    @model_serializer(mode="wrap")
    def _write_short(self, as_it_is: Any) -> Any:
        """Write {set: value} as value: both forms are one spec, with one checksum."""
        if self.set is not None:
            return self.set
        return as_it_is(self)

    def explain_change_by_modules(self) -> str:
        """Return what a module system would make of it, in words; empty if it stays as it is."""
        if self.set is not None:
            return explain_changed_value(self.set)
        return explain_changed_part((*self.prepend, *self.append), self.separator)

    def value(self, had: str | None) -> str:
        """Return the variable's value, where the base HAD one (None: it had none)."""
        if self.set is not None:
            return self.set
        middle = [had] if had else []
        return self.separator.join([*self.prepend, *middle, *self.append])


def _as_setting(value: Any) -> Any:
    """Return VALUE, or {set: VALUE} where it is text."""
    if isinstance(value, str):
        return {"set": value}
    return value


Variable = Annotated[Setting, BeforeValidator(_as_setting, json_schema_input_type=str | Setting)]


class AdoptedImage(Model):
    """The image that a stack is, where hpcstack did not build it.

    Nothing says how to make it again. `hpcstack adopt` writes this.
    """

    sha256: str = Field(
        pattern=r"^[0-9a-f]{64}$", description="SHA-256, in hex, of the file that was taken over."
    )
    source: Line = Field(
        min_length=1, description="Where it was taken from: a file, or a registry's image."
    )


class ModuleSpec(Model):
    """What the stack's module offers outside of containers."""

    commands: tuple[Command, ...] = Field(
        (),
        description="Programs of the image that users may call by name once the module is loaded. "
        "Each gets a wrapper on PATH that runs it in the image.",
    )
    python: bool = Field(
        False,
        description="The image's python and python3 get wrappers, too. They then hide the host's "
        "own.",
    )
    environment: dict[str, Variable] = Field(
        {},
        description="Variables that loading the module sets outside of containers: {NAME: value}, "
        "or {NAME: {prepend: part}} and {NAME: {append: part}} for parts around the value that is "
        "there.",
    )

    @field_validator("environment")
    @classmethod
    def _check_names(cls, environment: dict[str, Setting]) -> dict[str, Setting]:
        for name in environment:
            if not VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} is not a variable's name")
            if name.startswith("HPCSTACK_"):
                raise ValueError(f"{name} is reserved: HPCSTACK_ variables are hpcstack's own")
            if change := environment[name].explain_change_by_modules():
                raise ValueError(f"{name}: {change}")
        return environment

    @property
    def wrapped(self) -> tuple[str, ...]:
        """Every command that gets a wrapper."""
        if not self.python:
            return self.commands
        return (*self.commands, "python", "python3")


class LaunchSpec(Model):
    """How a command of the stack becomes ranks on several nodes."""

    mode: Mode = Field(
        "torchrun",
        description="How ranks are started, unless launch is told otherwise. torchrun: one task "
        "per node, which starts torchrun there. deepspeed: one task per node, which starts "
        "DeepSpeed's own launcher there. task-per-gpu: one task per GPU, with the variables that "
        "torch reads. mpi: one task per rank, which MPI knows by PMIx or PMI-2. plain: the command "
        "as it is, in Slurm's own tasks.",
    )
    mounts: tuple[Mount, ...] = Field(
        (),
        description="Folders that every job step of this stack sees: SOURCE:TARGET, e.g. "
        "/data:/data.",
    )
    slurm: bool = Field(
        False,
        description="Slurm's commands, such as srun and squeue, can be typed in the containers of "
        "this stack, unless launch is told otherwise (--no-slurm).",
    )


def _check_day(value: Any) -> Any:
    """Return VALUE. Raise ValueError for text but YYYY-MM-DD: pydantic takes numbers as well."""
    if isinstance(value, str) and not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
        raise ValueError("input should be a valid date: YYYY-MM-DD")
    return value


Day = Annotated[date, BeforeValidator(_check_day)]


class Lifecycle(Model):
    """When users are warned, and when the stack goes. It is never inherited by `extends`."""

    deprecate: Day | None = Field(
        None, description="From this day on users of the stack are warned: YYYY-MM-DD."
    )
    remove: Day | None = Field(
        None,
        description="From this day on the stack may be retired: YYYY-MM-DD, not before "
        "`deprecate`.",
    )
    successor: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._+-]*$",
        description="Full name of the stack to use instead, e.g. pytorch-25.10.",
    )

    @model_validator(mode="after")
    def _check_order(self) -> Lifecycle:
        if self.deprecate and self.remove and self.remove < self.deprecate:
            raise ValueError("`remove` lies before `deprecate`")
        return self


class Stack(Model):
    """A validated recipe. Its full name is NAME-VERSION[-VARIANT]."""

    api_version: Literal["hpcstack/v1"] = Field(
        alias="apiVersion", description="The format of this file."
    )
    name: str = Field(
        pattern=NAME,
        max_length=64,
        description="First part of the full name, e.g. pytorch. The file is named after it.",
    )
    version: str = Field(
        pattern=VERSION, max_length=64, description="Second part of the full name, e.g. 24.11."
    )
    variant: str = Field(
        "",
        pattern=VARIANT,
        max_length=32,
        description="Third part of the full name, e.g. vision. Most stacks have none.",
    )
    summary: Line = Field(
        max_length=100, min_length=1, description="One line that says what the stack is for."
    )
    base: Base
    adopted: AdoptedImage | None = Field(
        None,
        description="Written by hpcstack adopt: the stack is an image that hpcstack did not build.",
    )
    packages: Packages = Packages.model_construct()
    files: tuple[File, ...] = Field(
        (), description="Text files copied into the image, after `packages` are installed."
    )
    run: tuple[Run, ...] = Field(
        (), description="Named steps that run in the image, in this order, after `files`."
    )
    environment: dict[str, Variable] = Field(
        {},
        description="Variables of the image: {NAME: value}, or {NAME: {prepend: part}} and {NAME: "
        "{append: part}} for parts around the base's value.",
    )
    labels: dict[str, Label] = Field(
        {}, description="Labels of the image, e.g. {org.example.contact: hpc-help}."
    )
    entrypoint: tuple[Line, ...] = Field(
        (), description="The image's entrypoint, as a list of words. By default the base's."
    )
    module: ModuleSpec = ModuleSpec.model_construct()
    launch: LaunchSpec = LaunchSpec.model_construct()
    lifecycle: Lifecycle = Lifecycle.model_construct()
    tests: tuple[str, ...] = Field(
        (),
        description="What `hpcstack test` runs for the stack, and what it must pass before it gets "
        "into production: groups, families or single checks of the smoke suite. Without it all "
        "checks run, and node, fabric, io and tasks must pass. Known groups and families: "
        f"{', '.join((*GROUPS, *FAMILIES))}.",
    )
    checks: tuple[OwnCheck, ...] = Field(
        (),
        description="Acceptance tests of your own, which `hpcstack test` runs besides `tests`, and "
        "which the stack must pass before it gets into production.",
    )

    @field_validator("environment")
    @classmethod
    def _check_names(cls, environment: dict[str, Setting]) -> dict[str, Setting]:
        for name in environment:
            if not VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} is not a variable's name")
            if name.startswith(OF_RUNTIMES):
                raise ValueError(f"{name} belongs to the container runtime or to Slurm")
        return environment

    @field_validator("labels")
    @classmethod
    def _check_labels(cls, labels: dict[str, str]) -> dict[str, str]:
        for name in labels:
            if not LABEL_NAME.fullmatch(name) or name.startswith("org.hpcstack."):
                raise ValueError(
                    f"{name!r} is not a label's name, e.g. org.example.contact; "
                    "org.hpcstack.* is ours"
                )
        return labels

    @field_validator("tests")
    @classmethod
    def _check_tests(cls, tests: tuple[str, ...]) -> tuple[str, ...]:
        from hpcstack.core.errors import did_you_mean

        known = list_test_names()
        for test in tests:
            if test.partition(".")[0] in (OF_SITE, OF_STACK):
                continue  # own checks: `_check_own_checks` looks at these
            if test not in known:
                near = did_you_mean(test, known)
                families = ", ".join(FAMILIES)
                raise ValueError(f"no check or family {test!r}{near}; known: {families}")
        return tests

    @model_validator(mode="after")
    def _check_own_checks(self) -> Stack:
        """Refuse two checks of one name, and a check in `tests` that `checks` does not have."""
        check_unique_names(self.checks)
        known = (OF_STACK, *(f"{OF_STACK}.{check.name}" for check in self.checks))
        for test in self.tests:
            if test.partition(".")[0] == OF_STACK and test not in known:
                raise ValueError(f"`tests` names {test}, and `checks` has {', '.join(known[1:])}")
        return self

    @model_validator(mode="after")
    def _check_nothing_added(self) -> Stack:
        """Refuse an adopted image that anything would have to be built into."""
        packages = self.packages
        added = {
            "packages": (
                packages.apt
                or packages.dnf
                or packages.pip
                or packages.conda.packages
                or packages.source
            ),
            "files": self.files,
            "run": self.run,
        }
        named = [key for key, value in added.items() if value]
        if self.adopted and named:
            raise ValueError(
                f"an adopted image is taken as it is: drop `{named[0]}`, "
                "or drop `adopted` and name what to build on in `base.image`"
            )
        return self

    @property
    def full_name(self) -> str:
        """NAME-VERSION[-VARIANT]."""
        return f"{self.name}-{self.release_version}"

    @property
    def release_version(self) -> str:
        """VERSION[-VARIANT]: what stands behind the slash of a module."""
        if not self.variant:
            return self.version
        return f"{self.version}-{self.variant}"

    def variables(self, base: dict[str, str]) -> dict[str, str]:
        """Return the variables that the stack sets, {name: value}, over those of its BASE."""
        out = {}
        conda = self.packages.conda
        if conda.packages:
            out["PATH"] = f"{conda.prefix}/bin:{base.get('PATH', '')}".rstrip(":")
        for name, setting in self.environment.items():
            out[name] = setting.value(out.get(name, base.get(name)))
        return out

    def checksum(self) -> str:
        """Return the sha256 over what the spec means, in hex.

        Comments, the order of keys, values that are the default, and the file that a text came from
        do not count. Nor do own checks: they are not in the image, so that a change of one calls
        for no other lock and no other image.
        """
        import hashlib  # loads OpenSSL, which most verbs have no use for

        said = self.model_dump_json(
            by_alias=True,
            exclude_defaults=True,
            exclude={
                "files": {"__all__": {"source"}},
                "checks": True,
                "packages": {"project"},  # what it asks for is among `pip` and `constraints`
            },
        )
        return hashlib.sha256(said.encode()).hexdigest()
