"""What is judged of a GPU without one: which code runs on it."""

from __future__ import annotations

import pytest

from hpcstack_smoke.gpu.judge import runs_on


@pytest.mark.parametrize(
    ("target", "capability", "runs"),
    [
        ("sm_90", (9, 0), True),
        ("sm_80", (8, 6), True),  # a lower minor number of the same major one
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("compute_80", (9, 0), True),  # PTX of an older capability
        ("compute_120", (10, 0), False),
        ("sm_90a", (9, 0), True),
        ("compute_90a", (9, 0), True),
        ("compute_90a", (10, 0), False),  # of that capability alone
        ("compute_100f", (10, 3), True),  # of its family
        ("compute_100f", (12, 0), False),
    ],
)
def test_code_runs_on_what_it_was_compiled_for(
    target: str, capability: tuple[int, int], runs: bool
) -> None:
    assert runs_on(target, *capability) == runs
