"""A report as JUnit XML. Pure.

Tested in tests/unit/report/test_report.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from hpcstack.report.text import list_details

if TYPE_CHECKING:
    from hpcstack.report.model import Outcome, Report

# what https://www.w3.org/TR/xml/#charsets does not allow, or advises against
# (compiled when it is used: that takes longer than all else that reports import)
NOT_XML = "[^\\t\\n\\x20-\\x7e\\xa0-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]"
ABOUT_RUN = (
    "image_sha256",
    "suite",
    "runtime",
    "backend",
    "world_size",
    "stand_in",
    "adopted",
    "virtual_nodes",
)


def render_junit(report: Report) -> str:
    """Return REPORT as JUnit XML: a test case for each check, properties for what was tested.

    FAIL, ERROR and SKIP are JUnit's failure, error and skipped; a WARN passes.
    """
    counts = report.counts()
    suite = ElementTree.Element(
        "testsuite",
        name=_clean(report.stack),
        timestamp=_clean(report.started),
        time=f"{report.seconds:.3f}",
        tests=str(len(report.outcomes)),
        failures=str(counts["FAIL"]),
        errors=str(counts["ERROR"]),
        skipped=str(counts["SKIP"]),
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name in ABOUT_RUN:
        value = _clean(str(getattr(report, name)))
        ElementTree.SubElement(properties, "property", name=name, value=value)
    for outcome in report.outcomes:
        _add_case(suite, outcome)

    ElementTree.indent(suite)
    text = ElementTree.tostring(suite, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _add_case(suite: ElementTree.Element, outcome: Outcome) -> None:
    """Add OUTCOME to SUITE as a test case."""
    family, _, name = _clean(outcome.code).partition(".")
    case = ElementTree.SubElement(
        suite, "testcase", classname=family, name=name, time=f"{outcome.seconds:.3f}"
    )
    message = _clean(outcome.measured or outcome.evidence)
    kind = {"FAIL": "failure", "ERROR": "error", "SKIP": "skipped"}.get(outcome.status)
    if kind:
        element = ElementTree.SubElement(case, kind, message=message)
        element.text = _clean("\n".join(line.strip() for line in list_details(outcome)))
    output = ElementTree.SubElement(case, "system-out")
    output.text = _clean(f"{outcome.status}: {message}\n{outcome.evidence}")


def _clean(text: str) -> str:
    """Return TEXT without the characters that XML 1.0 does not allow."""
    return re.sub(NOT_XML, "", text)
