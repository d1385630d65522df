"""Nodes of one kind, held against each other: who lacks a port or a GPU, or has another driver or
firmware. Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip

HARD = (
    "GPUs",
    "ports",
    "port rates",
    "MTU",
    "driver",
)  # what breaks or slows a job; the rest may only explain it
COUNTED = ("ports",)
SHOWN = 60


def check(inventories: dict[str, dict[str, Any]]) -> Result:
    """{node: its inventory}, judged: each node by the majority of those with the same model of GPU.

    Two nodes that differ have no majority: both are named, as a WARN, or a FAIL where one has fewer
    of something.
    """
    kinds: dict[str, dict[str, dict[str, str]]] = defaultdict(dict)
    for host, found in inventories.items():
        have = {**found.get("alike", {}), "driver": str(found.get("driver", ""))}
        kinds[f"{found.get('gpu', '')} {found.get('arch', '')}"][host] = have
    compared = {kind: nodes for kind, nodes in kinds.items() if len(nodes) > 1}
    if not compared:
        raise Skip("one node of its kind: nothing to compare with")
    hard: list[str] = []
    soft: list[str] = []
    for nodes in compared.values():
        for name in sorted({one for have in nodes.values() for one in have}):
            said, bad = _odd(name, {host: have.get(name, "") for host, have in nodes.items()})
            (hard if bad else soft).extend(said)
    count = sum(map(len, compared.values()))
    status = PASS
    if hard:
        status = FAIL
    elif soft:
        status = WARN
    several = f", of {len(kinds)} kinds" if len(kinds) > 1 else ""
    measured = "; ".join([*hard, *soft]) or f"{count} nodes alike{several}"
    remedy = (
        "drain the node until it is as the others"
        if hard
        else "bring firmware and kernel to one version"
    )
    return Result(
        status,
        measured,
        "the same on all nodes of a kind",
        "the majority of nodes",
        remedy="" if status == PASS else remedy,
    )


def _odd(name: str, values: dict[str, str]) -> tuple[list[str], bool]:
    """(what is said of the nodes that have another NAME, whether that is a FAIL)."""
    counted = Counter(values.values()).most_common()
    if len(counted) == 1:
        return [], False
    majority = counted[0][1] > counted[1][1]
    usual = counted[0][0]
    if name in COUNTED and not majority:  # two nodes: the one with fewer lacks something
        usual, majority = (
            max(values.values(), key=lambda value: value.count(",") + bool(value)),
            True,
        )
    if not majority:
        shown = ", ".join(f"{host} {value[:SHOWN] or 'none'}" for host, value in values.items())
        return [f"{name}: {shown}"], False
    return [
        _said(host, name, value, usual) for host, value in values.items() if value != usual
    ], name in HARD


def _said(host: str, name: str, value: str, usual: str) -> str:
    if name in COUNTED:
        ports, want = (set(filter(None, one.split(","))) for one in (value, usual))
        if gone := sorted(want - ports):
            return f"{host} lacks {name} {', '.join(gone)}"
    if "; " in value + usual:  # of long ones only what differs
        have, others = value.split("; "), usual.split("; ")
        value = "; ".join(one for one in have if one not in others)
        usual = "; ".join(one for one in others if one not in have)
    return f"{host}: {name} {value[:SHOWN] or 'none'} (others: {usual[:SHOWN] or 'none'})"
