"""What a node's agent says of checks that an image has nothing for."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hpcstack_smoke.agent import Agent
from hpcstack_smoke.request import Request
from hpcstack_smoke.result import ERROR, SKIP, write_document
from hpcstack_smoke.select import CHECKS


@dataclass
class Asked:
    tests: str = ""


@dataclass
class Listening(Agent):
    """An agent that only writes down what it would say."""

    request: Any
    host: str = "node1"
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)


@pytest.mark.parametrize(
    ("tests", "code", "status"),
    [
        (
            "node,fabric,io,tasks,jax",
            "fabric.injected",
            SKIP,
        ),  # a recipe of JAX: its fabric is tested, torch is not there
        ("node,fabric,io,tasks,jax", "node.same", SKIP),
        ("node,fabric,nccl", "nccl.exact", ERROR),
        ("node,fabric.injected", "fabric.injected", ERROR),  # somebody wants this one
        ("", "nccl.exact", SKIP),
    ],
)
def test_what_needs_torch_in_an_image_without(tests: str, code: str, status: str) -> None:
    agent = Listening(Asked(tests))
    checks = [check for check in CHECKS if check.code == code]
    assert agent._without("no_such_torch", checks) == (1 if status == ERROR else 2)
    assert [(row["code"], row["status"]) for row in agent.rows] == [(code, status)]


def test_a_node_whose_neighbour_has_ended_its_ranks_ends_its_own(tmp_path: Path) -> None:
    """What the neighbour writes counts as a movement: this node waited as long again, and its ranks
    told of closed connections as if they were the cause.
    """
    agent = Agent(Request(str(tmp_path), nodes=2))
    (tmp_path / "joined-1").touch()
    agent.round = 1
    now = time.monotonic()
    assert agent._find_reason_to_end(now, since=now, broken=0.0) == ""
    write_document(str(tmp_path), "ended-node2-1.json", {"host": "node2", "why": "a stall"})
    why = agent._find_reason_to_end(now, since=now, broken=0.0)
    assert why == "the ranks of another node were ended"
    agent.round = 2
    assert agent._find_reason_to_end(now, since=now, broken=0.0) == "", "that was an earlier round"
