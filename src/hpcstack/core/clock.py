"""What time it is, for all that is dated: releases, days of retirement, ages.

Whoever calls hpcstack from Python may hand in another clock, such as a test that lives through a
year in an hour. No option and no variable does: a day that decides what users may load is not a
user's to choose.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def _read_machines_clock() -> datetime:
    return datetime.now(timezone.utc)


_clock: ContextVar[Callable[[], datetime]] = ContextVar("clock", default=_read_machines_clock)


def read_clock() -> datetime:
    """Return the time now, in UTC."""
    return _clock.get()()


@contextlib.contextmanager
def using_clock(clock: Callable[[], datetime]) -> Iterator[None]:
    """Take the time from CLOCK, which returns it in UTC, for the time of the block."""
    token = _clock.set(clock)
    try:
        yield
    finally:
        _clock.reset(token)
