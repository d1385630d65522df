"""A check always leaves a result."""

from __future__ import annotations

from hpcstack_smoke.result import run_check


def test_a_check_that_breaks_is_an_error_and_not_a_crash() -> None:
    def broken() -> None:
        raise RuntimeError("no\nway")

    row = run_check("node.broken", broken, "n1")  # type: ignore[arg-type]
    assert row["status"] == "ERROR"
    assert row["evidence"].startswith("RuntimeError: no way (")
