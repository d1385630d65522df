"""Own checks: the acceptance tests that a recipe or a site adds to the smoke suite.

What a ReFrame test calls a sanity pattern is `expect` here, a performance pattern is the `pattern`
of one of `figures`, and a reference is its `gate`.

Each `description` and each class's docstring goes into the JSON Schema that `hpcstack schema`
prints: it explains its key to whoever writes the file.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from hpcstack.recipe.fields import ImagePath, Line, Model, Script, check_one_line

MOST_PATTERN = 500  # characters
# Families of the codes that own checks get: site.NAME and stack.NAME
OF_SITE, OF_STACK = "site", "stack"
# The version, in an outcome, of the definition by which it was made
DEFINITION = "definition"


def check_pattern(text: str) -> str:
    """Return TEXT, a regular expression of Python's. Raise ValueError where it is none."""
    if len(check_one_line(text)) > MOST_PATTERN:
        raise ValueError(f"longer than {MOST_PATTERN} characters")
    try:
        re.compile(text, re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a regular expression of Python's: {error}") from None
    return text


def check_figure_pattern(text: str) -> str:
    """Return TEXT, a pattern that finds one number. Raise ValueError where it does not say which.

    Its only group is the number, or else the group that is named `value`.
    """
    found = re.compile(check_pattern(text), re.MULTILINE)
    if found.groups != 1 and "value" not in found.groupindex:
        raise ValueError(
            f"put the number alone in parentheses, e.g. 'Triad: +([0-9.]+)'; {text!r} has "
            f"{found.groups} groups. (?P<value>...) says which one is meant"
        )
    return text


def _as_list(value: Any) -> Any:
    """Return VALUE, or a list of it where it is one text."""
    if isinstance(value, str):
        return [value]
    return value


Pattern = Annotated[str, Field(min_length=1), AfterValidator(check_pattern)]
FigurePattern = Annotated[str, AfterValidator(check_figure_pattern)]
Patterns = Annotated[
    tuple[Pattern, ...],
    BeforeValidator(_as_list, json_schema_input_type=str | tuple[str, ...]),
]
FigureName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]
Gate = Annotated[float, Field(allow_inf_nan=False)]


class OwnFigure(Model):
    """A figure that an own check measures: a performance pattern, and what it must reach."""

    pattern: FigurePattern = Field(
        description="Performance pattern: a regular expression of Python's that finds the figure "
        "in what the check prints. Its group is the number, e.g. 'Triad: +([0-9.]+)'."
    )
    unit: str = Field(
        "",
        pattern=r"^[A-Za-z%][A-Za-z0-9%/.*^-]*$|^$",
        max_length=20,
        description="The figure's unit, e.g. MB/s. The report calls the figure NAME_UNIT.",
    )
    better: Literal["higher", "lower"] = Field(
        description="Which is better. The gate, the history and the comparison of nodes go by it."
    )
    gate: Gate | dict[str, Gate] | None = Field(
        None,
        description="Reference: a figure that is worse fails the check. One number, or "
        "{NODE_TYPE: NUMBER} for each kind of node; other kinds then have none.",
    )
    take: Literal["last", "first", "highest", "lowest", "mean"] = Field(
        "last", description="Which one counts where the pattern is found more than once."
    )

    def gate_on(self, node_type: str) -> float | None:
        """Return the gate on nodes of NODE_TYPE; None where there is none."""
        if isinstance(self.gate, dict):
            return self.gate.get(node_type)
        return self.gate


class OwnCheck(Model):
    """An acceptance test of your own.

    It is a command in the image. It passes if the command ends with 0 within its time limit, prints
    what is expected, and reaches the gates of its figures.
    """

    # ReFrame's words for these keys
    ELSEWHERE: ClassVar[dict[str, str]] = {
        "executable": "`command`",
        "executable_opts": "`command`",
        "sanity_patterns": "`expect`",
        "sanity": "`expect`",
        "perf_patterns": "`figures`, each with its `pattern`",
        "perf_variables": "`figures`, each with its `pattern`",
        "performance": "`figures`, each with its `pattern`",
        "reference": "`gate` of a figure",
        "num_tasks": "`on: ranks`",
        "num_nodes": "`min_nodes`",
        "valid_systems": "`needs`",
        "tags": "`tier`",
        "descr": "`about`",
    }

    name: str = Field(
        pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$",
        max_length=40,
        description="The check's name. Its code in reports is stack.NAME for a recipe's check, and "
        "site.NAME for a site's.",
    )
    about: Line = Field("", max_length=100, description="What it tests, in one line.")
    command: Script = Field(
        "",
        description="Lines of sh, run in the image. The first command that fails ends them. Give "
        "either this or `python`.",
    )
    python: ImagePath | Literal[""] = Field(
        "", description="Absolute path of a Python file in the image, run by its python3."
    )
    arguments: tuple[Line, ...] = Field((), description="Arguments of the Python file.")
    on: Literal["nodes", "ranks", "mpi"] = Field(
        "nodes",
        description="nodes: once on each node; every node must pass by itself. ranks: a process "
        "for each rank, with the variables that torch reads (RANK, LOCAL_RANK, WORLD_SIZE, "
        "MASTER_ADDR, ...). mpi: a process for each rank, started by Slurm's PMI for MPI. For ranks "
        "and mpi, what all ranks print is taken together.",
    )
    expect: Patterns = Field(
        (),
        description="Sanity pattern or a list of them: regular expressions of Python's. Each must "
        "be found in what the check prints.",
    )
    forbid: Patterns = Field(
        (), description="Patterns likewise, none of which may be found in what the check prints."
    )
    figures: dict[FigureName, OwnFigure] = Field(
        {}, description="Figures that the check measures, each under a name of your choice."
    )
    needs: tuple[Literal["gpu", "fabric"], ...] = Field(
        (),
        description="What a node must have: gpu, fabric (an active port of InfiniBand, RoCE, EFA or "
        "Slingshot). "
        "Elsewhere the check is a SKIP.",
    )
    min_nodes: int = Field(
        1, ge=1, description="Nodes that a run must have. With fewer the check is a SKIP."
    )
    tier: Literal["quick", "standard", "full"] = Field(
        "quick", description="The lowest tier that runs it."
    )
    time_limit: int = Field(
        300, ge=1, le=86400, description="Seconds after which it is ended, and fails."
    )

    @model_validator(mode="after")
    def _check_program(self) -> OwnCheck:
        """Refuse a check that has no program, or two."""
        if bool(self.command) == bool(self.python):
            raise ValueError("give either `command` or `python`")
        if self.arguments and not self.python:
            raise ValueError("`arguments` go with `python`; write those of `command` into it")
        names = [self.name_figure(name) for name in self.figures]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"with their units two figures are named {twice[0]!r}")
        return self

    @property
    def argv(self) -> tuple[str, ...]:
        """The words of the command that is run in the image."""
        if self.python:
            return ("python3", self.python, *self.arguments)
        return ("/bin/sh", "-ec", self.command)

    def name_figure(self, name: str) -> str:
        """Return what reports call the figure NAME: with its unit, as in triad_MB_s."""
        unit = re.sub(r"[^A-Za-z0-9%]+", "_", self.figures[name].unit)
        return f"{name}_{unit}" if unit else name

    def digest(self) -> str:
        """Return a digest, of 12 hex digits, of what the check does and demands."""
        import hashlib  # loads OpenSSL, which most verbs have no use for

        said = self.model_dump_json(exclude={"about", "tier", "stacks"}, exclude_defaults=True)
        return hashlib.sha256(said.encode()).hexdigest()[:12]


class SiteCheck(OwnCheck):
    """An acceptance test of the site's, for the images of all stacks or of some."""

    stacks: Annotated[
        tuple[Annotated[Line, Field(min_length=1)], ...],
        BeforeValidator(_as_list, json_schema_input_type=str | tuple[str, ...]),
    ] = Field(
        ("*",), description="Stacks that it is for, as patterns of full names, e.g. pytorch-*."
    )


def check_unique_names(checks: tuple[OwnCheck, ...]) -> None:
    """Raise ValueError where two of CHECKS have one name."""
    names = [check.name for check in checks]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two checks are named {twice[0]!r}: their codes would be one")
