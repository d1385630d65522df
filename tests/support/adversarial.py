"""Strings that are made to cost a pattern much: of its own parts, again and again."""

from __future__ import annotations

import itertools
import math
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

try:
    from re import _parser as parser
except ImportError:  # Python 3.10
    import sre_parse as parser

SMALL, LARGE = 4096, 16384  # characters
LINEAR = 6.0  # the growth of the time from SMALL to LARGE: 4 where it is linear, 16 where quadratic
MOST_S = 2.0
QUICK_S, MEASURED_S = 0.002, 0.02  # below the first nothing is measured; what one measurement takes
COSTLIEST = 2  # strings of a pattern whose growth is measured


def sample_parts(pattern: str) -> list[str]:
    """A text for each atom of PATTERN, in their order, and for each run of literals one."""
    out: list[str] = []
    run = ""
    for operation, argument in _list_atoms(parser.parse(pattern)):
        text = _sample(operation, argument)
        if operation is parser.LITERAL:
            run += text
            continue
        if run:
            out.append(run)
        run = ""
        if text:
            out.append(text)
    if run:
        out.append(run)
    return out


REPEATS = tuple(
    getattr(parser, name)
    for name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")  # the last: Python 3.11
    if hasattr(parser, name)
)


def _list_atoms(parsed: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the atoms of PARSED: what is repeated or in a group is named once."""
    for operation, argument in parsed:
        if operation in REPEATS:
            yield (parser.FAILURE, None)  # parts the literals around it
            yield from _list_atoms(argument[2])
            yield (parser.FAILURE, None)
        elif operation is parser.SUBPATTERN:
            yield from _list_atoms(argument[3])
        elif operation is parser.BRANCH:
            for branch in argument[1]:
                yield (parser.FAILURE, None)
                yield from _list_atoms(branch)
        elif operation in (parser.ASSERT, parser.ASSERT_NOT):
            yield from _list_atoms(argument[1])
        elif operation is getattr(parser, "ATOMIC_GROUP", None):
            yield from _list_atoms(argument)
        else:
            yield operation, argument


SAMPLES = {
    parser.CATEGORY_DIGIT: "7",
    parser.CATEGORY_SPACE: " ",
    parser.CATEGORY_WORD: "a",
    parser.CATEGORY_NOT_SPACE: "a",
    parser.CATEGORY_NOT_DIGIT: "a",
    parser.CATEGORY_NOT_WORD: "-",
}


def _sample(operation: Any, argument: Any) -> str:
    """A character that the atom matches; empty for one that matches no character."""
    if operation is parser.LITERAL:
        return chr(argument)
    if operation is parser.ANY:
        return "a"
    if operation is parser.NOT_LITERAL:
        return "b" if argument == ord("a") else "a"
    if operation is parser.IN:
        return _sample_class(argument)
    return ""


def _sample_class(items: Any) -> str:
    if items[0][0] is parser.NEGATE:
        compiled = [_sample(*item) if item[0] is parser.LITERAL else "" for item in items[1:]]
        return next(sign for sign in "a7-_/.: x" if sign not in compiled)
    operation, argument = items[0]
    if operation is parser.LITERAL:
        return chr(argument)
    if operation is parser.RANGE:
        return chr(argument[0])
    return SAMPLES.get(argument, "a")


def make_strings(pattern: str, length: int) -> list[str]:
    """Strings of LENGTH made of PATTERN, in an order that is the same for each length.

    Single parts, pairs of neighbours, all parts; and what begins as a match does, and then goes on
    and on.
    """
    parts = sample_parts(pattern)
    pairs = [first + second for first, second in itertools.pairwise(parts)]
    bases = dict.fromkeys((*parts, *pairs, "".join(parts), "a", "7", " ", "a ", "a:"))
    heads = [("", base) for base in bases if base]
    for number in range(1, len(parts)):
        head = "".join(parts[:number])
        heads += [(head, parts[number - 1]), (head, parts[number])]
    return [(head + base * (length // len(base) + 1))[:length] for head, base in heads]


def find_growth(pattern: str, flags: int = 0) -> tuple[float, str]:
    """How many times as long the costliest of the strings takes at LARGE as at SMALL, and which.

    1.0 where none takes QUICK_S: what is quadratic takes longer.
    """
    compiled = re.compile(pattern, flags)
    took: list[tuple[float, str, str]] = []
    for small, large in zip(
        make_strings(pattern, SMALL), make_strings(pattern, LARGE), strict=True
    ):
        began = time.perf_counter()
        try:
            _search(compiled, large)
        except TimeoutError:
            return math.inf, small[:60]
        took.append((time.perf_counter() - began, small, large))

    worst = (1.0, "")
    for seconds, small, large in sorted(took, reverse=True)[:COSTLIEST]:
        if seconds < QUICK_S:
            break
        growth = math.inf
        for longer in (1, 4, 16):  # other processes can only add to it
            if growth >= LINEAR:
                growth = min(growth, _grow(compiled, small, large, MEASURED_S * longer))
        worst = max(worst, (growth, small[:60]))
    return worst


def _grow(compiled: re.Pattern[str], small: str, large: str, seconds: float) -> float:
    """How many times as long LARGE takes as SMALL, each measured for SECONDS."""
    return _measure(compiled, large, seconds) / _measure(compiled, small, seconds)


def _measure(compiled: re.Pattern[str], text: str, seconds: float) -> float:
    """Processor seconds that COMPILED takes to search TEXT. The clock may tick in 4 ms."""
    count = 0
    began = time.process_time()
    while (spent := time.process_time() - began) < seconds:
        _search(compiled, text)
        count += 1
    return spent / count


def _search(compiled: re.Pattern[str], text: str) -> None:
    """Search TEXT. Raise TimeoutError where that takes MOST_S."""

    def give_up(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_S)
    try:
        compiled.search(text)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
