"""Which tests may run beside which, for pytest-xdist: a pytest plugin (`-p support.lanes`).

Tests of one lane run one after another, in one worker. What uses the testbed's own site is one
lane, and so are the suite's runs, whose reports are kept apart. The jobs that keep to themselves
are two, by file: `jobs`, and `jobs("second")`. Of all else a file is a lane, so that what its tests
share is made once. Long lanes begin first.

xdist's own `loadgroup` marks a test by changing its name, which pytest 9.2 does not let it: each
test would be a lane of its own, and nothing would say so. So workers write down the lanes that they
have found, and the scheduler reads them.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

WORKER = "PYTEST_XDIST_WORKER"
NICE = {0: -10, 1: -5}  # by turn
FILE = "lanes_file"  # in what a worker is given by the controller
FOLDER = Path(tempfile.mkdtemp(prefix="lanes-")) if WORKER not in os.environ else Path()


class LaneScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist's types say Any
    """Gives each worker one lane after another, in the order in which the tests were collected."""

    lanes: dict[str, str] | None = None

    def _split_scope(self, nodeid: str) -> str:
        if self.lanes is None:
            self.lanes = json.loads((FOLDER / "lanes.json").read_text(encoding="utf-8"))
        return self.lanes[nodeid]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LaneScheduling:
    return LaneScheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[FILE] = str(FOLDER / "lanes.json")


def lane_of(item: pytest.Item) -> tuple[int, str]:
    """(turn, name) of the lane of ITEM. Lanes of a lower turn begin first."""
    file = item.path.stem
    for name in ("jobs", "suite"):
        if mark := item.get_closest_marker(name):
            return 1, " ".join((name, *mark.args))
    for turn, name in enumerate(("faults", "builds"), 2):
        if item.get_closest_marker(name):
            return turn, f"{name} {file}"
    if item.get_closest_marker("testbed"):
        return 0, "cluster"
    return 9, file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    lanes = {item: lane_of(item) for item in items}
    items.sort(key=lambda item: lanes[item][0])  # a stable sort: within a lane the order stays


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Write the lanes down before xdist's own hook says that this worker is ready: when the last
    one has said so, the scheduler reads the file. (Written afterwards, it was once missing, and
    tests of one lane ran beside each other.)
    """
    given = getattr(session.config, "workerinput", {})
    if FILE not in given:
        return
    target = Path(given[FILE])
    part = target.with_name(f"{os.environ[WORKER]}.part")
    part.write_text(
        json.dumps({item.nodeid: lane_of(item)[1] for item in session.items}), encoding="utf-8"
    )
    part.replace(target)  # what each worker writes is the same


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What only computes lets those tests go first that wait for a cluster's answers, and the
    longest lane goes before all others: a run ends when that one does.

    As root; others keep what is.
    """
    if WORKER in os.environ:
        turn, _ = lane_of(item)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, NICE.get(turn, 5))
