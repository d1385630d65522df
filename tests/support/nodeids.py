"""Names of tests, as pytest writes them."""

from __future__ import annotations


def function_of(nodeid: str) -> str:
    """`tests/unit/test_a.py::test_b` of `tests/unit/test_a.py::test_b[parameter]`."""
    return nodeid.partition("[")[0]
