"""Names of public functions: a verb and its object, each in one module of the project."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from hpcstack_smoke.select import CHECKS

SOURCE = Path(__file__).resolve().parents[2] / "src"
# `command` is each verb's, behind the command line's table; the suite's checks are behind
# select.py's.
BEHIND_A_TABLE = {"command", "main"}
# Standard words of their fields, each a verb whose object is its argument
ONE_WORD = {"say", "answer", "echo", "advise", "main", "command"}


def _public_functions() -> dict[str, list[str]]:
    """{name: the modules that define it} of public functions, without the checks of the suite."""
    checks = {f"hpcstack_smoke.{check.where.replace(':', '.')}" for check in CHECKS}
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            is_a_verbs_own = module.startswith("hpcstack.cli.") and bool(node.decorator_list)
            if f"{module}.{node.name}" not in checks and not is_a_verbs_own:
                found[node.name].append(module)
    return found


def test_a_public_name_is_defined_once() -> None:
    twice = {name: modules for name, modules in _public_functions().items() if len(modules) > 1}
    assert {name: modules for name, modules in twice.items() if name not in BEHIND_A_TABLE} == {}


def test_a_public_function_is_a_verb_and_its_object() -> None:
    assert {name for name in _public_functions() if "_" not in name} - ONE_WORD == set()
