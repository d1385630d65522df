"""The report of a test run: the one versioned document that every other form comes from. Pure.

Tested in tests/unit/report/test_report.py and tests/unit/report/test_report_forms.py.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from hpcstack.recipe.fields import Model

if TYPE_CHECKING:
    from collections.abc import Mapping

# v2 added tier, inventory, planted, and each outcome's figures, series and peers
FORMAT: Literal["hpcstack/report/v2"] = "hpcstack/report/v2"
Status = Literal["PASS", "FAIL", "SKIP", "WARN", "ERROR"]
# what an Outcome takes over from the row of a rank
KEPT = (
    "code",
    "status",
    "measured",
    "expected",
    "source",
    "evidence",
    "remedy",
    "figures",
    "series",
    "informational",
    "versions",
    "needs_root",
    "not_built_in",
    "better",
    "gates",
)
WHEN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.]{5,15}(Z|[+-][0-9:]{5})?")
MOST_POINTS = 100_000  # of one line
MOST_LABELS = 2048  # of one matrix
WORST: tuple[Status, ...] = ("ERROR", "FAIL", "WARN", "PASS", "SKIP")  # the worst comes first


class Outcome(Model):
    """The result of one check over all ranks: that of the worst one, with its evidence."""

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
    not_built_in: bool = Field(
        False, description="this hardware was made so: it was skipped, or is less than could be"
    )
    peers: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="{node or rank: its own figures}"
    )
    better: dict[str, Literal["higher", "lower"]] = Field(
        default_factory=dict,
        description="{figure of an own check: which is better}; of others the unit says it",
    )
    gates: dict[str, float] = Field(
        default_factory=dict, description="{figure of an own check: what it must reach}"
    )

    @field_validator("figures", mode="before")
    @classmethod
    def _figures(cls, given: Any) -> Any:
        return drop_infinite(given) if isinstance(given, dict) else given

    @field_validator("series", mode="before")
    @classmethod
    def _series(cls, given: Any) -> Any:
        """Keep only what can be drawn, since a rank or a file may have written anything."""
        if not isinstance(given, list | tuple):
            return ()
        return tuple(one for one in given if is_drawable(one))

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
        """Check that this is a time of ISO 8601.

        Histories are sorted by it, and Prometheus gets it as a number.
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
        """The suite's version, marked where it was not the image's own suite."""
        return f"{self.suite} (the host's)" if self.suite_from_host else self.suite

    def counts(self) -> Counter[str]:
        """Return how many outcomes have each status."""
        return Counter(outcome.status for outcome in self.outcomes)

    def verdict(self, *, strict: bool = False) -> Status:
        """Return ERROR or FAIL if any outcome is one, PASS if any passed, else SKIP.

        STRICT: an outcome that was skipped is a FAIL, too.
        """
        counts = self.counts()
        if counts["ERROR"]:
            return "ERROR"
        if counts["FAIL"] or (strict and counts["SKIP"]):
            return "FAIL"
        return "PASS" if counts["PASS"] else "SKIP"

    def caveats(self) -> list[str]:
        """Return what a reader must know before believing a figure, a sentence each."""
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
    """Return one Outcome of what several ranks or nodes say of one check: that of the worst.

    A check that passes on some and is skipped on others is a WARN: something is missing there.
    `peers` has each one's figures, unless these are all the same.
    """
    first = dict(min(rows, key=lambda row: WORST.index(row["status"])))
    where = sorted({row["where"] for row in rows if row["status"] == first["status"]})
    skipped = [row for row in rows if row["status"] == "SKIP"]
    if first["status"] == "PASS" and skipped:
        reason = skipped[0]["evidence"]
        first |= {"status": "WARN", "evidence": f"passes on {', '.join(where)} but: {reason}"}
        where = sorted({row["where"] for row in skipped})

    fields = {name: first[name] for name in KEPT if first.get(name)}
    peers = {row["where"]: drop_infinite(row["figures"]) for row in rows if row.get("figures")}
    if "figures" in fields:
        better = fields.get("better", {})
        fields["figures"] = find_slowest(fields["figures"], list(peers.values()), better)
        fields["series"] = tuple(
            one for one in fields.get("series", ()) if all(map(is_number, one.get("y", ())))
        )
    kinds = {tuple(sorted(one.items())) for one in peers.values()}
    return Outcome(
        **fields,
        seconds=max(row.get("seconds", 0.0) for row in rows),
        where=tuple(where),
        peers=peers if len(kinds) > 1 else {},
    )


def is_drawable(one: Any) -> bool:
    """Whether ONE is a line of points, or a square of values with its labels."""
    if not isinstance(one, dict) or not isinstance(one.get("name"), str):
        return False
    if not all(isinstance(one.get(unit, ""), str) for unit in ("x_unit", "y_unit")):
        return False
    return _is_square(one) if "kind" in one else _is_line(one)


def _is_square(one: dict[str, Any]) -> bool:
    """Whether ONE has labels, and as many rows and columns of numbers (or words) or nothing."""
    kind, labels, values = one["kind"], one.get("labels"), one.get("values")
    if kind not in ("matrix", "words"):
        return False
    if not isinstance(labels, list | tuple) or not 0 < len(labels) <= MOST_LABELS:
        return False
    if not isinstance(values, list | tuple) or len(values) != len(labels):
        return False
    if not all(isinstance(row, list | tuple) and len(row) == len(labels) for row in values):
        return False

    types: tuple[type, ...] = (int, float, type(None))
    if kind == "words":
        types += (str,)
    return all(
        isinstance(value, types) and (not isinstance(value, float) or math.isfinite(value))
        for row in values
        for value in row
    )


def _is_line(one: dict[str, Any]) -> bool:
    """Whether ONE has as many numbers x as y, and what else it may have to draw is numbers, too."""
    lists: list[Any] = [one.get("x"), one.get("y"), one.get("ideal") or ()]
    return (
        all(isinstance(points, list | tuple) and all(map(is_number, points)) for points in lists)
        and len(lists[0]) == len(lists[1]) <= MOST_POINTS
        and is_number(one.get("gate") or 0)
    )


def is_number(value: Any) -> bool:
    """Whether VALUE is a finite number, which can be drawn and compared."""
    try:
        return isinstance(value, (int, float)) and math.isfinite(float(value))
    except OverflowError:  # an integer of hundreds of digits
        return False


def drop_infinite(figures: dict[str, Any]) -> dict[str, float]:
    """Return FIGURES without those that are no finite numbers, such as a loss that exploded.

    What was measured says so in words.
    """
    return {name: float(value) for name, value in figures.items() if is_number(value)}


def find_slowest(
    figures: dict[str, Any], peers: list[dict[str, float]], better: Mapping[str, str]
) -> dict[str, float]:
    """Return FIGURES as the slowest of PEERS has them: the smallest rate, the longest time.

    BETTER is as in Outcome.
    """
    out = drop_infinite(figures)
    for name in out:
        values = [out[name], *(one[name] for one in peers if name in one)]
        out[name] = max(values) if is_lower_better(name, better) else min(values)
    return out


def is_lower_better(name: str, better: Mapping[str, str]) -> bool:
    """Whether a smaller value of the figure NAME is better: as BETTER says, else of times."""
    if name in better:
        return better[name] == "lower"
    return name.endswith("us")
