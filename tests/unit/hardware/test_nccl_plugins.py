"""Which network plugins an NCCL loads."""

from __future__ import annotations

import pytest

from hpcstack.hardware.nccl_plugins import list_loadable_interfaces


@pytest.mark.parametrize(
    ("nccl", "interfaces"),
    [
        ("2.4.1", set()),
        ("2.4.2", {2}),
        ("2.18.6", {4, 5, 6}),
        ("2.19.1", {5, 6, 7}),
        ("2.23.4", {5, 6, 7, 8}),
        ("2.27.7", {6, 7, 8, 9, 10}),
        ("2.30.7+cuda13.3", {6, 7, 8, 9, 10, 11, 12}),
        ("2.31.0", set()),
        ("", set()),
        ("unknown", set()),
    ],
)
def test_each_release_takes_what_its_sources_say(nccl: str, interfaces: set[int]) -> None:
    assert list_loadable_interfaces(nccl) == interfaces
