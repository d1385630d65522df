"""Reports: one versioned document, and the text and JUnit that come from it. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal
from xml.etree import ElementTree

from pydantic import Field

from hpcstack.spec.text import Model

FORMAT = "hpcstack/report/v1"
Status = Literal["PASS", "FAIL", "SKIP", "WARN", "ERROR"]
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


class Report(Model):
    """What one run of the suite found, on what, and on what kind of machine."""

    format: str = FORMAT
    stack: str
    image: str
    image_sha256: str
    suite: str
    runtime: str
    backend: str = ""
    nodes: tuple[str, ...] = ()
    world_size: int = 0
    started: str
    seconds: float
    stand_in: str = ""
    virtual_nodes: bool = False
    step_status: int = 0
    outcomes: tuple[Outcome, ...] = Field(())

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
        if self.virtual_nodes:
            out.append("the nodes are VIRTUAL: they share one machine, so times and bandwidths say nothing")
        return out


def text(report: Report, *, strict: bool = False) -> str:
    """The report for a terminal."""
    lines = [
        f"{report.stack}  image sha256:{report.image_sha256[:12]}  suite {report.suite}",
        f"{len(report.nodes)} node(s): {', '.join(report.nodes)}; {report.world_size} ranks, "
        f"{report.backend or 'no'} backend, runtime {report.runtime}; {report.seconds:.0f} s",
        *(f"NOTE {caveat}" for caveat in report.caveats()),
        "",
    ]
    shown: list[str] = []
    for outcome in report.outcomes:
        lines.append(f"{outcome.status:<5} {outcome.code:<24} {outcome.measured or outcome.evidence}".rstrip())
        if outcome.status in ("FAIL", "WARN", "ERROR"):
            details = _details(outcome)
            lines += details if details != shown else ["        as above"]
            shown = details
    counts = report.counts()
    tally = ", ".join(
        f"{counts[status]} {status}" for status in ("PASS", "FAIL", "ERROR", "WARN", "SKIP") if counts[status]
    )
    return "\n".join([*lines, "", f"{report.verdict(strict=strict)}: {tally or 'no check ran'}"]) + "\n"


def _details(outcome: Outcome) -> list[str]:
    shown = {
        "expected": f"{outcome.expected} ({outcome.source})" if outcome.source else outcome.expected,
        "on": ", ".join(outcome.where),
        "seen": outcome.evidence,
        "remedy": outcome.remedy,
    }
    return [f"        {name}: {value}" for name, value in shown.items() if value]


def junit(report: Report) -> str:
    """JUnit XML: skipped and error are real, figures are properties."""
    counts = report.counts()
    suite = ElementTree.Element(
        "testsuite", name=report.stack, timestamp=report.started, time=f"{report.seconds:.3f}",
        tests=str(len(report.outcomes)), failures=str(counts["FAIL"]), errors=str(counts["ERROR"]),
        skipped=str(counts["SKIP"]),
    )  # fmt: skip
    properties = ElementTree.SubElement(suite, "properties")
    for name in ("image_sha256", "suite", "runtime", "backend", "world_size", "stand_in", "virtual_nodes"):
        ElementTree.SubElement(properties, "property", name=name, value=str(getattr(report, name)))
    for outcome in report.outcomes:
        _case(suite, outcome)
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, outcome: Outcome) -> None:
    family, _, name = outcome.code.partition(".")
    case = ElementTree.SubElement(suite, "testcase", classname=family, name=name, time=f"{outcome.seconds:.3f}")
    message = _clean(outcome.measured or outcome.evidence)
    kind = {"FAIL": "failure", "ERROR": "error", "SKIP": "skipped"}.get(outcome.status)
    if kind:
        element = ElementTree.SubElement(case, kind, message=message)
        element.text = _clean("\n".join(line.strip() for line in _details(outcome)))
    output = ElementTree.SubElement(case, "system-out")
    output.text = _clean(f"{outcome.status}: {message}\n{outcome.evidence}")


def _clean(text: str) -> str:
    """Without the characters that XML 1.0 does not know."""
    return "".join(char for char in text if char in "\t\n" or (ord(char) >= 32 and not 0xD800 <= ord(char) <= 0xDFFF))


def worst(rows: list[dict[str, Any]]) -> Outcome:
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
    fields = {
        name: first.get(name, "") for name in ("code", "status", "measured", "expected", "source", "evidence", "remedy")
    }
    return Outcome(**fields, seconds=max(row.get("seconds", 0.0) for row in rows), where=tuple(where))
