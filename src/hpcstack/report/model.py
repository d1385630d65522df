"""Reports: the one versioned document that every other form comes from. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from datetime import datetime
from typing import Any, Literal

from pydantic import Field, field_validator

from hpcstack.recipe.fields import Model

FORMAT: Literal["hpcstack/report/v2"] = (
    # v2: tier, inventory, planted, and each outcome's figures, series and peers
    "hpcstack/report/v2"
)
Status = Literal["PASS", "FAIL", "SKIP", "WARN", "ERROR"]
KEPT = (
    "code", "status", "measured", "expected", "source", "evidence", "remedy", "figures", "series", "informational",
    "versions", "needs_root",
)  # fmt: skip
WHEN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.]{5,15}(Z|[+-][0-9:]{5})?")
MOST_POINTS, MOST_LABELS = 100_000, 2048  # of one line, of one matrix
WORST: tuple[Status, ...] = ("ERROR", "FAIL", "WARN", "PASS", "SKIP")


class Outcome(Model):
    """The result of one check over all ranks: the worst of them, with its evidence."""

    code: str
    status: Status
    measured: str = ""
    expected: str = ""
    source: str = ""
    evidence: str = ""
    remedy: str = ""
    seconds: float = 0.0
    where: tuple[str, ...] = ()
    figures: dict[str, float] = Field(
        default_factory=dict, description="{name with its unit: number}"
    )
    series: tuple[dict[str, Any], ...] = Field(
        (), description="what is drawn: {name, x, y, x_unit, y_unit} or a matrix"
    )
    informational: bool = Field(
        False, description="the figures say nothing of what the hardware can do"
    )
    versions: dict[str, str] = Field(default_factory=dict, description="{what: its version}")
    needs_root: bool = Field(
        False, description="it was skipped: only root may read that on this machine"
    )
    peers: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="{node or rank: its own figures}"
    )

    @field_validator("figures", mode="before")
    @classmethod
    def _figures(cls, given: Any) -> Any:
        return drop_infinite(given) if isinstance(given, dict) else given

    @field_validator("series", mode="before")
    @classmethod
    def _series(cls, given: Any) -> Any:
        """What can be drawn; a rank or a file may have written anything."""
        return (
            tuple(one for one in given if is_drawable(one))
            if isinstance(given, list | tuple)
            else ()
        )

    @property
    def family(self) -> str:
        return self.code.partition(".")[0]


class Report(Model):
    """What one run of the suite found, on what, and on what kind of machine."""

    format: Literal["hpcstack/report/v2"] = FORMAT
    stack: str
    image: str
    image_sha256: str
    suite: str = Field(description="the suite's version")
    suite_from_host: bool = Field(False, description="it was not the image's own suite that ran")
    runtime: str
    tier: str = "quick"
    backend: str = ""
    nodes: tuple[str, ...] = ()
    node_type: str = Field("", description="the site's name for this kind of node")
    world_size: int = 0
    started: str
    seconds: float
    stand_in: str = ""
    adopted: str = Field(
        "", description="where the image was taken from, if hpcstack did not build it"
    )
    virtual_nodes: bool = False
    planted: str = Field("", description="the file that planted a bug, in the suite's own tests")
    inventory: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="{node: what it is made of}"
    )
    promised: dict[str, Any] = Field(
        default_factory=dict, description="what the site says of such nodes"
    )
    step_status: int = 0
    outcomes: tuple[Outcome, ...] = Field(())

    @field_validator("started")
    @classmethod
    def _started(cls, text: str) -> str:
        """A time as ISO 8601 has it: histories are sorted by it, and Prometheus gets it as a
        number.
        """
        if not WHEN.fullmatch(text):
            raise ValueError("not a time such as 2026-01-31T12:00:00+00:00")
        datetime.fromisoformat(text).timestamp()
        return text

    @field_validator("seconds")
    @classmethod
    def _seconds(cls, value: float) -> float:
        if not math.isfinite(value):
            raise ValueError("a number of seconds is finite")
        return value

    @property
    def suite_name(self) -> str:
        """The suite's version, and whose it is."""
        return f"{self.suite} (the host's)" if self.suite_from_host else self.suite

    def counts(self) -> Counter[str]:
        return Counter(outcome.status for outcome in self.outcomes)

    def verdict(self, *, strict: bool = False) -> Status:
        """PASS only if something passed and nothing failed; SKIP if nothing at all was proven."""
        counts = self.counts()
        for bad in ("ERROR", "FAIL"):
            if counts[bad]:
                return "ERROR" if bad == "ERROR" else "FAIL"
        if strict and counts["SKIP"]:
            return "FAIL"
        return "PASS" if counts["PASS"] else "SKIP"

    def caveats(self) -> list[str]:
        """What a reader must know before believing a figure."""
        out = []
        if self.stand_in:
            out.append(f"the image is built on a STAND-IN: {self.stand_in}")
        if self.adopted:
            out.append(f"the image is ADOPTED, hpcstack did not build it: {self.adopted}")
        if self.virtual_nodes:
            out.append(
                "the nodes are VIRTUAL: they share one machine, so times and bandwidths say nothing"
            )
        if self.planted:
            out.append(f"a bug was PLANTED on purpose: {self.planted}")
        return out


def merge_rows(rows: list[dict[str, Any]]) -> Outcome:
    """One Outcome from what several ranks or nodes say of one check: the worst of them.

    A check that passes on some and is skipped on others is a WARN: something is missing there.
    """
    order = {status: place for place, status in enumerate(WORST)}
    first = dict(min(rows, key=lambda row: order[row["status"]]))
    where = sorted({row["where"] for row in rows if row["status"] == first["status"]})
    skipped = sorted({row["where"] for row in rows if row["status"] == "SKIP"})
    if first["status"] == "PASS" and skipped:
        reason = next(row["evidence"] for row in rows if row["status"] == "SKIP")
        first |= {"status": "WARN", "evidence": f"passes on {', '.join(where)} but: {reason}"}
        where = skipped
    fields = {name: first[name] for name in KEPT if first.get(name)}
    peers = {row["where"]: drop_infinite(row["figures"]) for row in rows if row.get("figures")}
    if "figures" in fields:
        fields["figures"] = find_slowest(fields["figures"], list(peers.values()))
        fields["series"] = tuple(
            one for one in fields.get("series", ()) if all(map(is_number, one.get("y", ())))
        )
    distinct = peers if len({tuple(sorted(one.items())) for one in peers.values()}) > 1 else {}
    return Outcome(
        **fields,
        seconds=max(row.get("seconds", 0.0) for row in rows),
        where=tuple(where),
        peers=distinct,
    )


def is_drawable(one: Any) -> bool:
    """Whether ONE is a line of points, or a square of values with its labels."""
    if not isinstance(one, dict) or not isinstance(one.get("name"), str):
        return False
    if not all(isinstance(one.get(unit, ""), str) for unit in ("x_unit", "y_unit")):
        return False
    if "kind" in one:
        labels, values = one.get("labels"), one.get("values")
        kinds = (
            (int, float, str, type(None)) if one["kind"] == "words" else (int, float, type(None))
        )
        return (
            one["kind"] in ("matrix", "words")
            and isinstance(labels, list | tuple)
            and 0 < len(labels) <= MOST_LABELS
            and isinstance(values, list | tuple)
            and len(values) == len(labels)
            and all(isinstance(row, list | tuple) and len(row) == len(labels) for row in values)
            and all(
                isinstance(value, kinds) and (not isinstance(value, float) or math.isfinite(value))
                for row in values
                for value in row
            )
        )
    lists: list[Any] = [one.get("x"), one.get("y"), one.get("ideal") or ()]
    return (
        all(isinstance(points, list | tuple) and all(map(is_number, points)) for points in lists)
        and len(lists[0]) == len(lists[1]) <= MOST_POINTS
        and is_number(one.get("gate") or 0)
    )


def is_number(value: Any) -> bool:
    """Whether VALUE can be drawn and compared."""
    try:
        return isinstance(value, (int, float)) and math.isfinite(float(value))
    except OverflowError:  # an integer of hundreds of digits
        return False


def drop_infinite(figures: dict[str, Any]) -> dict[str, float]:
    """FIGURES without what is not a number: a loss that exploded is told in words."""
    return {name: float(value) for name, value in figures.items() if is_number(value)}


def find_slowest(figures: dict[str, Any], peers: list[dict[str, float]]) -> dict[str, float]:
    """Each figure as its slowest rank or node has it: the smallest rate, the longest time."""
    out = drop_infinite(figures)
    for name in out:
        values = [one[name] for one in peers if name in one]
        out[name] = (max if name.endswith("us") else min)([out[name], *values])
    return out
