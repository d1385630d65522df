"""What --constraint says of a job's nodes, in the forms of srun(1)."""

from __future__ import annotations

import pytest

from hpcstack.slurm.features import list_feature_sets


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ("h100", [{"h100"}]),
        ("ib&h100", [{"ib", "h100"}]),
        (" ib & h100 ", [{"ib", "h100"}]),
        ("a100|h100", [{"a100"}, {"h100"}]),
        ("[rack1|rack2]", [{"rack1"}, {"rack2"}]),
        ("", None),
        ("graphics*4", None),
        ("[rack1*2&rack2*4]", None),
        ("ib&a100|h100", None),
        ("[a|b]&c", None),
        ("(a&b)", None),
        ("a&", None),
    ],
)
def test_features_that_each_node_has(constraint: str, expected: list[set[str]] | None) -> None:
    assert list_feature_sets(constraint) == expected
