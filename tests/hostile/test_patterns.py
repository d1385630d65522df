"""Whoever sends a log chooses what patterns are tried on: row T15 of what once got through."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

import pytest

from hpcstack.core import data
from hpcstack.core.yaml import parse_yaml
from support.adversarial import LARGE, LINEAR, SMALL, find_growth, make_strings, sample_parts

READERS = (
    "hpcstack.diagnose.examine_log",
    "hpcstack.diagnose.signatures",
    "hpcstack.diagnose.speakers",
    "hpcstack.core.usage_line",
    "hpcstack.core.errors",
)
KEYS = ("pattern", "words", "match", "regex")


def list_patterns_of_facts() -> Iterator[tuple[str, str, int]]:
    """(where, pattern, flags) of each pattern in facts/."""
    for path in sorted(data.find_data_folder("facts").glob("*.yaml")):
        for name, rows in parse_yaml(path.read_text(), path.name).value.items():
            if not isinstance(rows, list):
                continue
            for number, row in enumerate(rows):
                for key in KEYS:
                    if isinstance(row, dict) and key in row:
                        where = f"{path.name}: {name}: {row.get('id', number)}"
                        # as diagnose/speakers.py and diagnose/signatures.py compile them
                        flags = {"words": re.IGNORECASE}.get(key, 0)
                        yield where, row[key], flags | re.MULTILINE * (name == "harmless")


def list_patterns_of_readers() -> Iterator[tuple[str, str, int]]:
    """(where, pattern, flags) of each pattern by which code reads a whole log."""
    for module in READERS:
        for name, value in vars(importlib.import_module(module)).items():
            if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                yield f"{module}.{name}", value.pattern, value.flags


@pytest.mark.parametrize("source", [list_patterns_of_facts, list_patterns_of_readers])
def test_t15_no_text_costs_a_pattern_more_than_its_length(source: object) -> None:
    """From 4,096 to 16,384 characters, in processor time: four-fold is linear."""
    patterns = list(source())  # type: ignore[operator]
    assert len(patterns) > (5 if source is list_patterns_of_readers else 1500)
    slow = []
    for where, pattern, flags in patterns:
        growth, text = find_growth(pattern, flags)
        if growth >= LINEAR:
            slow.append(f"{where}: {growth:.0f} times: {pattern} on {text!r}")
    assert slow == []


def test_the_test_finds_a_slow_one() -> None:
    assert find_growth(r"(?P<n>\S+)\[\d+\]: segfault")[0] > LINEAR


def test_the_strings_are_made_of_the_pattern() -> None:
    assert sample_parts(r"ab\d+(?:cc|[d-f])\s") == ["ab", "7", "cc", "d", " "]
    strings = make_strings(r"ab\d+", SMALL)
    assert all(len(text) == SMALL for text in strings)
    assert ("ab7" * LARGE)[:SMALL] in strings
