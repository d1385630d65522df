"""Compare nodes of one kind: which one lacks a port or a GPU, or has another driver or firmware.

Nothing here looks at a machine; the nodes' inventories are all it reads.

Tested in tests/unit/smoke/test_topology.py.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from hpcstack_smoke.result import FAIL, PASS, WARN, Result, Skip

# What breaks or slows a job where it differs; all else may only explain a difference
HARD = ("GPUs", "ports", "port rates", "MTU", "driver")
# What is a list with commas, of which a node can have fewer than another
COUNTED = ("ports",)
# So many characters of a value are shown
SHOWN = 60


def check_node_alike(inventories: dict[str, dict[str, Any]]) -> Result:
    """Judge {node: its inventory}: hold each node against the majority of its kind.

    A kind is the nodes with the same model of GPU and architecture. Two nodes that differ have no
    majority. Then both are named, as a WARN; where one has fewer ports, it is a FAIL of that one.
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
            values = {host: have.get(name, "") for host, have in nodes.items()}
            differences, is_hard = _find_differences(name, values)
            if is_hard:
                hard += differences
            else:
                soft += differences

    measured = "; ".join([*hard, *soft])
    if not measured:
        measured = f"{sum(map(len, compared.values()))} nodes alike"
        if len(kinds) > 1:
            measured += f", of {len(kinds)} kinds"
    expected = "the same on all nodes of a kind"
    source = "the majority of nodes"
    if hard:
        remedy = "drain the node until it matches the others"
        return Result(FAIL, measured, expected, source, remedy=remedy)
    if soft:
        remedy = "bring firmware and kernel to one version"
        return Result(WARN, measured, expected, source, remedy=remedy)
    return Result(PASS, measured, expected, source)


def _find_differences(name: str, values: dict[str, str]) -> tuple[list[str], bool]:
    """Return (what is said of the nodes whose NAME differs, whether that is a FAIL).

    VALUES: {node: its value}.
    """
    counted = Counter(values.values()).most_common()
    if len(counted) == 1:
        return [], False

    usual = counted[0][0]
    has_majority = counted[0][1] > counted[1][1]
    if name in COUNTED and not has_majority:
        # The longest list is the standard: a node with a shorter one lacks something
        usual = max(values.values(), key=lambda value: value.count(",") + bool(value))
        has_majority = True
    if not has_majority:
        shown = ", ".join(f"{host} {value[:SHOWN] or 'none'}" for host, value in values.items())
        return [f"{name}: {shown}"], False

    said = []
    for host, value in values.items():
        if value != usual:
            said.append(_describe_difference(host, name, value, usual))
    return said, name in HARD


def _describe_difference(host: str, name: str, value: str, usual: str) -> str:
    """Return how VALUE of HOST's NAME differs from USUAL, which the other nodes have."""
    if name in COUNTED:
        have = set(filter(None, value.split(",")))
        want = set(filter(None, usual.split(",")))
        gone = sorted(want - have)
        if gone:
            return f"{host} lacks {name} {', '.join(gone)}"
    if "; " in value + usual:
        # Of long values, only the parts that differ
        parts, others = value.split("; "), usual.split("; ")
        value = "; ".join(one for one in parts if one not in others)
        usual = "; ".join(one for one in others if one not in parts)
    return f"{host}: {name} {value[:SHOWN] or 'none'} (others: {usual[:SHOWN] or 'none'})"
