"""A test that fails says which thing was wrong."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_an_assertion_without_a_message_states_one_thing() -> None:
    """`assert a and b` does not say which of them failed."""
    wrong = []
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Assert) or node.msg is not None:
                continue
            if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And):
                wrong.append(f"{path.relative_to(TESTS)}:{node.lineno}")
    assert wrong == []
