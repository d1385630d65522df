"""What ci/soak runs and ci/test leaves out: a pytest plugin, which tests/conftest.py loads.

A test, or one of its parameters, is marked

    soak("one runtime shows the fault")               # other parameters of the test stay in ci/test
    soak("a wait of a minute", kept="tests/unit/launch/test_plan.py::test_the_end")
    soak("one engine shows it", but=lambda engine, uid: engine == "builtin")

The last one is for all parameters of a test but those for which the function holds. The text says why ci/test has enough without it. Where nothing of a test is left in ci/test, `kept`
names what holds the promise there. A mark without a text, one that leaves nothing, or one whose
`kept` is not there ends the run.

`--soak no` (the default) leaves these tests out, `only` runs nothing else, `all` makes no
difference. A test that is asked for by its name runs at all events.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from inspect import signature
from pathlib import Path

import pytest

from support.nodeids import function_of

REPO = Path(__file__).resolve().parents[2]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak", choices=("no", "only", "all"), default="no", help="tests that ci/test leaves out"
    )


def find_mark(item: pytest.Item) -> pytest.Mark | None:
    """The mark that leaves ITEM to ci/soak; None where it stays in ci/test."""
    for mark in item.iter_markers("soak"):
        but = mark.kwargs.get("but")
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if but is None or not but(**{name: parameters[name] for name in signature(but).parameters}):
            return mark
    return None


def find_wrong_marks(items: Iterable[pytest.Item]) -> list[str]:
    """What is wrong with the marks of ITEMS, which are all tests of their files."""
    marks: dict[str, list[pytest.Mark | None]] = defaultdict(list)
    for item in items:
        marks[function_of(item.nodeid)].append(find_mark(item))

    wrong = []
    for function, own in marks.items():
        soaked = [mark for mark in own if mark]
        if any(not mark.args for mark in soaked):
            wrong.append(f'{function}: soak("why ci/test has enough without it")')
        if soaked and len(soaked) == len(own):
            wrong += _judge_kept(function, soaked)
    return wrong


def _judge_kept(function: str, marks: Sequence[pytest.Mark]) -> list[str]:
    """What is wrong with FUNCTION, all of whose tests have MARKS: each names what ci/test keeps."""
    wrong = []
    for kept in dict.fromkeys(mark.kwargs.get("kept", "") for mark in marks):
        if not kept:
            wrong.append(f"{function}: nothing of it is left in ci/test, and it has no `kept`")
        elif not _is_there(kept):
            wrong.append(f"{function}: kept={kept!r} is not there")
    return wrong


def _is_there(kept: str) -> bool:
    path, _, name = kept.partition("::")
    file = REPO / path
    return bool(name) and file.exists() and f"def {name}(" in file.read_text(encoding="utf-8")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked_for = [word for word in config.args if "::" in word]
    if not asked_for:
        wrong = find_wrong_marks(items)
        if wrong:
            raise pytest.UsageError("\n".join(wrong))

    which = config.getoption("--soak")
    if which == "all" or (asked_for and which == "no"):
        return
    want = which == "only"
    kept = [item for item in items if bool(find_mark(item)) is want]
    left = [item for item in items if bool(find_mark(item)) is not want]
    items[:] = kept
    if left:
        config.hook.pytest_deselected(items=left)
