"""DCGM's diagnostics in the forms of its releases (one of DCGM's own tests' text)."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack_smoke.node.dcgm import judge_diagnostics
from hpcstack_smoke.result import Skip


def third(**status: str) -> str:
    """DCGM up to 3: categories, gpu_ids, a null among the tests."""
    tests: list[Any] = [
        {"name": name, "results": [{"gpu_ids": "0,1", "status": one}]}
        for name, one in status.items()
    ]
    return "WARNING: THIS SHOULD NOT HAPPEN\n" + json.dumps(
        {
            "DCGM GPU Diagnostic": {
                "test_categories": [{"category": "Deployment", "tests": [None, *tests]}],
                "version": "3.2",
            }
        }
    )


def test_all_pass() -> None:
    result = judge_diagnostics(0, third(Denylist="PASS", Memory="Pass", PCIe="Skip"))
    assert (result.status, result.measured) == ("PASS", "2 passed, 0 failed, 1 skipped")


def test_a_failure_is_named_with_its_gpu_and_reason() -> None:
    warnings = [{"warning": "GPU 3 has uncorrectable memory errors", "error_id": 8}]
    rows = [
        {
            "entity_group": "GPU",
            "entity_id": n,
            "status": "Fail" if n == 3 else "Pass",
            "warnings": warnings if n == 3 else [],
        }
        for n in range(8)
    ]
    result = judge_diagnostics(226, json.dumps({"tests": [{"name": "memory", "results": rows}]}))
    assert result.status == "FAIL"
    assert result.remedy
    assert result.measured.startswith(
        "memory on GPU 3: GPU 3 has uncorrectable memory errors; 7 passed, 1 failed"
    )


@pytest.mark.parametrize("word", ["Warn", "Not Run", "Frobnicated"])
def test_what_is_no_pass_is_no_pass(word: str) -> None:
    assert judge_diagnostics(0, third(Memory="Pass", PCIe=word)).status == "WARN"


def test_what_cannot_be_asked_is_skipped_and_what_broke_is_an_error() -> None:
    with pytest.raises(Skip, match="no dcgmi"):
        judge_diagnostics(127, "")
    with pytest.raises(Skip, match="does not answer"):
        judge_diagnostics(
            1, "Error: unable to establish a connection to the specified host: localhost"
        )
    with pytest.raises(Skip, match="skipped every test"):
        judge_diagnostics(0, third(Memory="Skip"))
    assert judge_diagnostics(124, "").status == judge_diagnostics(1, "segfault {").status == "ERROR"
    assert judge_diagnostics(0, '{"DCGM GPU Diagnostic": {"version": "4.2.3"}}').status == "ERROR"


@given(
    st.integers(0, 255),
    st.text(max_size=60)
    | st.recursive(
        st.none() | st.text(max_size=4),
        lambda one: (
            st.lists(one, max_size=3)
            | st.dictionaries(
                st.sampled_from(["name", "results", "status", "tests", "warnings"]), one, max_size=4
            )
        ),
        max_leaves=9,
    ).map(json.dumps),
)
def test_any_text_gets_a_verdict(status: int, text: str) -> None:
    with contextlib.suppress(Skip):
        assert judge_diagnostics(status, text).status in ("PASS", "FAIL", "WARN", "ERROR")
