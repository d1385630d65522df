"""The table of checks, and which of them a run asks for."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import hpcstack_smoke
from hpcstack_smoke.select import BURN, CHECKS, FAMILIES, SCOPES, TIERS, list_names, select_checks

PACKAGE = Path(hpcstack_smoke.__file__).parent


def codes(*args: str) -> list[str]:
    return [check.code for check in select_checks(*args)]


def test_every_check_has_a_function_and_a_known_tier() -> None:
    assert len({check.code for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        module, _, function = check.where.partition(":")
        tree = ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (
            check
        )
        assert check.tier in (*TIERS, BURN)
        assert check.scope in SCOPES
        assert check.about
    assert set(FAMILIES) < set(list_names())


def test_a_tier_holds_the_ones_below_it() -> None:
    quick, standard, full = (set(codes("", "ranks", tier)) for tier in TIERS)
    assert quick < standard < full


def test_a_code_runs_at_any_tier_and_a_family_up_to_the_tier() -> None:
    assert codes("deepspeed", "ranks", "quick") == []
    assert codes("deepspeed.zero1", "ranks", "quick") == ["deepspeed.zero1"]
    assert "fsdp.fsdp2" in codes("training", "ranks", "standard")


def test_skip_wins_and_what_was_done_is_not_done_again() -> None:
    assert codes("ddp", "ranks", "standard", "ddp.scaler", "ddp.fp32,ddp.placement") == [
        "ddp.buckets",
        "ddp.autocast",
    ]


def test_every_check_stands_in_the_docs() -> None:
    docs = (PACKAGE.parents[1] / "docs/reference/test-suite.md").read_text()
    for check in CHECKS:
        assert f"| `{check.code}` | {check.tier} | {check.about} |" in docs, check.code


def test_a_burn_is_a_tier_of_its_own() -> None:
    """Whatever the recipe's tests are; and no other tier burns unasked."""
    assert codes("deepspeed", "ranks", "burn") == [
        "node.same",
        "node.arch",
        "fabric.injected",
        "burn.compute",
    ]
    assert "node.counters" in codes("deepspeed", "after", "burn")
    assert codes("", "tasks", "burn") == []
    assert not {"burn.compute"} & set(codes("", "ranks", "full"))
    assert codes("burn", "ranks", "standard") == ["burn.compute"]


def test_a_checks_function_is_named_by_its_code() -> None:
    """So that who reads one finds the other."""
    for check in CHECKS:
        function = check.where.partition(":")[2]
        assert function == "check_" + re.sub(r"[.-]", "_", check.code), check
