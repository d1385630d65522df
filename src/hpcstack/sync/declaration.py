"""What a folder of declared releases says: which versions, in which channel, proven where, told to
whom.

Each `description` and each class's docstring goes into the JSON Schema that `hpcstack schema
--releases` prints: it explains its key to whoever writes the file.

Tested in tests/unit/sync/test_folder.py.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from hpcstack.recipe.fields import NAME, REPOSITORY, Line, Model

SHORT_NEWEST = re.compile(r"newest ([1-9][0-9]{0,2})")


def _check_day(text: str) -> str:
    return date.fromisoformat(text).isoformat()  # ValueError for the 31st of February


Day = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"),
    AfterValidator(_check_day),
]
# The words of a command stand behind it, so it must not look like an option.
Address = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*(@[A-Za-z0-9][A-Za-z0-9.-]*)?$")
]
ModuleName = Annotated[str, StringConstraints(pattern=NAME, max_length=64)]
# A version, or a pattern of versions as a shell's
VersionPattern = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9*?\[][A-Za-z0-9._+*?\[\]!-]*$")
]
VersionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Patterns = Annotated[
    tuple[VersionPattern, ...],
    BeforeValidator(_as_list, json_schema_input_type=str | tuple[str, ...]),
]


class Proof(Model):
    """Where the smoke suite must have passed before a version goes into production."""

    partitions: tuple[Line, ...] = Field(
        (),
        description="Partitions that must each prove it. By default Slurm's default partition. The "
        "site's modules.prove_on counts as well.",
    )
    nodes: int = Field(2, ge=1, description="How many nodes the suite runs on.")
    tier: Literal["quick", "standard", "full"] | None = Field(
        None,
        description="The tier of the suite. By default, and at least, the site's modules.tier.",
    )
    time: Line = Field("", description="Time limit of the job, as srun's --time takes it.")
    wait: int = Field(
        60, ge=1, description="Minutes to wait for nodes. After that the next sync tries again."
    )
    again: int = Field(
        7, ge=1, description="Days after which a test that did not pass is run again."
    )


class Gate(Model):
    """What a version waits for in testing, beside its proof."""

    days: int = Field(0, ge=0, description="Days that a release stays in testing at least.")
    not_before: Day | None = Field(None, description="No promotion before this day.")


class RetirementRule(Model):
    """How a version leaves that is not declared any more."""

    days: int = Field(
        30, ge=0, description="Days from the warning to the day from which it is refused."
    )
    notify: bool = Field(
        False,
        description="Write to those who used it, by usage.mail and usage.files of site.yaml.",
    )
    reason: Line = Field("", description="What users read as the reason.")


class VersionDates(Model):
    """The days of one version."""

    warn: Day | None = Field(None, description="Users are warned from this day on.")
    refuse: Day | None = Field(None, description="It is refused from this day on.")
    successor: Line = Field("", description="What to load instead, as pytorch/25.10.")
    reason: Line = Field("", description="What users read as the reason.")

    @model_validator(mode="after")
    def _check_order(self) -> VersionDates:
        if not (self.warn or self.refuse):
            raise ValueError("give `warn`, `refuse` or both")
        if self.warn and self.refuse and self.refuse < self.warn:
            raise ValueError("`refuse` is before `warn`")
        return self


class Declared(Model):
    """What is published under one name.

    In `releases`, `newest 3` is short for {newest: 3}, and a list of versions for {versions: [...]}.
    """

    versions: Patterns = Field(
        (), description="Versions, or patterns of versions such as '25.*'. By default all."
    )
    newest: int = Field(
        0,
        ge=0,
        description="Only the newest of these, counted by what stands before the first hyphen: "
        "25.10 and 25.10-deepspeed are one. 0 for all.",
    )
    without: Patterns = Field((), description="Versions, or patterns, that are left out.")
    channel: Literal["testing", "production"] = Field(
        "production", description="The channel that they shall reach."
    )
    default: Literal["newest"] | VersionName | None = Field(
        None,
        description="The version that the bare name loads, or `newest`: the newest in production. "
        "By default sync leaves it as it is.",
    )
    prove: Proof = Field(default_factory=Proof)
    gate: Gate = Field(default_factory=Gate)
    retire: RetirementRule = Field(default_factory=RetirementRule)
    dates: dict[VersionName, VersionDates] = Field(
        default_factory=dict, description="{version: its days}."
    )
    hold: Line = Field(
        "", description="Why nothing of this name is changed for now. Damage is still repaired."
    )
    pull_from: str = Field(
        "",
        alias="from",
        pattern=rf"^([A-Za-z0-9.-]+(:[0-9]+)?/{REPOSITORY})?$",
        description="REGISTRY/NAME from which images are pulled, in place of building them. The "
        "tag is the version. The registry's signature_key in site.yaml must have signed them.",
    )
    tell: tuple[Address, ...] = Field(
        (), description="Who is told of changes and failures, by usage.mail of site.yaml."
    )


def _expand_short_form(value: Any) -> Any:
    """Return VALUE as a mapping, where it is `newest 3` or a list of versions."""
    match = SHORT_NEWEST.fullmatch(value) if isinstance(value, str) else None
    if match:
        return {"newest": match[1]}
    if isinstance(value, list) and value:
        return {"versions": value}
    if not isinstance(value, dict):
        raise ValueError("write `newest 3`, a list of versions, or a mapping")
    return value


DeclaredName = Annotated[
    Declared,
    BeforeValidator(
        _expand_short_form, json_schema_input_type=str | tuple[VersionPattern, ...] | Declared
    ),
]


class Builds(Model):
    """Where images are built."""

    on: Literal["slurm", "here"] = Field("slurm", description="As jobs, or by sync itself.")
    partition: Line = Field("", description="Partition of the jobs. By default as `build` chooses.")
    limit: int = Field(4, ge=1, description="How many jobs build at once.")


class Prune(Model):
    """What is removed in the end, as `hpcstack gc` does."""

    days: float = Field(
        14, ge=0, description="Images and caches that are younger than this are kept."
    )


class Declaration(Model):
    """All that a folder declares."""

    apiVersion: Literal["hpcstack/v1"] = Field(
        "hpcstack/v1", description="The format of this file."
    )
    defaults: Declared = Field(
        default_factory=Declared, description="What each name has that says nothing else."
    )
    build: Builds = Field(default_factory=Builds, description="How images are built.")
    prune: Prune | None = Field(None, description="By default nothing is removed.")
    releases: dict[ModuleName, DeclaredName] = Field(
        default_factory=dict, description="{name of a module: what is published of it}."
    )


def fill_in_defaults(given: Model, defaults: Model) -> Model:
    """Return GIVEN, with the values of DEFAULTS for what it does not say itself."""
    changes: dict[str, Any] = {}
    for name in type(given).model_fields:
        own, other = getattr(given, name), getattr(defaults, name)
        if name not in given.model_fields_set:
            changes[name] = other
        elif isinstance(own, Model) and isinstance(other, Model):
            changes[name] = fill_in_defaults(own, other)
    return given.model_copy(update=changes)
