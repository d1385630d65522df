"""A clock is handed in by Python alone, and given back."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from hpcstack.core.clock import read_clock, using_clock
from hpcstack.publish.publisher import stamp_now
from hpcstack.releases.inputs import stamp_today

THEN = datetime(2031, 5, 6, 7, 8, 9, tzinfo=timezone.utc)


def test_a_clock_is_handed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCSTACK_CLOCK", "2000-01-01")  # no variable does
    before = datetime.now(timezone.utc)
    assert timedelta(0) <= read_clock() - before < timedelta(minutes=1)
    with using_clock(lambda: THEN):
        assert read_clock() == THEN
        assert stamp_today() == "2031-05-06"
        assert stamp_now() == "2031-05-06T07:08:09+00:00"
    assert read_clock() >= before


def test_it_is_given_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), using_clock(lambda: THEN):
        raise ZeroDivisionError
    assert read_clock() != THEN
