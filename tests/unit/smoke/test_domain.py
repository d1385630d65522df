"""Whether two nodes meet by NVLink or by the network."""

from __future__ import annotations

import pytest

from hpcstack_smoke.collectives.domain import find_domain_of_node, pair_class
from hpcstack_smoke.node import machine

CLUSTER = "a1b2c3d4-0000-0000-0000-000000000001"


@pytest.mark.parametrize(
    ("first", "second", "by"),
    [
        ("rack-1/1", "rack-1/1", "nvlink"),
        ("rack-1/1", "rack-1/2", "network"),
        ("rack-1/1", "", "network"),
        ("", "", "network"),
    ],
)
def test_nodes_of_one_clique_meet_by_nvlink(first: str, second: str, by: str) -> None:
    assert pair_class(first, second) == by


@pytest.mark.parametrize(
    ("said", "domain"),
    [(f"0, Completed, Success, {CLUSTER}, 7", f"{CLUSTER}/7"), ("", "")],
)
def test_a_nodes_domain_is_its_gpus(
    monkeypatch: pytest.MonkeyPatch, said: str, domain: str
) -> None:
    monkeypatch.setattr(machine.HERE, "said", lambda *_, **__: said, raising=False)
    find_domain_of_node.cache_clear()
    assert find_domain_of_node() == domain
    find_domain_of_node.cache_clear()
