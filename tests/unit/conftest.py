"""What unit tests share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_module_systems(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with neither Lmod nor Environment Modules, but for tests that are marked.

    Each publish would load and unload its module by both, and rebuild Lmod's cache: a second for
    tests that ask what stands in a ledger.
    """
    if any(request.node.get_closest_marker(mark) for mark in ("lmod", "emodules")):
        return
    for module in ("load_test", "spider"):
        monkeypatch.setattr(f"hpcstack.publish.{module}.LMOD", ())
    monkeypatch.setattr("hpcstack.publish.load_test.TCL", ())
