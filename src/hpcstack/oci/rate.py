"""The least that a registry must send: one that gives a byte now and then would keep an import for
ever.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hpcstack.core.errors import RegistryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PERIOD_S, LEAST = 60.0, 64 << 10  # a kilobyte a second: a modem's tenth


class TooSlow(RegistryError):
    """In a minute less has come than of any registry that works."""


def not_too_slow(read: Callable[[], bytes], host: str) -> Iterator[bytes]:
    """What READ gives until it gives nothing. TooSlow where that is less than LEAST in PERIOD_S
    seconds of waiting: who takes the pieces may take his time.
    """
    waited, come = 0.0, 0
    while True:
        began = time.monotonic()
        block = read()
        waited, come = waited + time.monotonic() - began, come + len(block)
        if not block:
            return
        if waited >= PERIOD_S:
            if come < LEAST:
                raise TooSlow(
                    f"{host} sent {come} bytes in {waited:.0f} seconds",
                    "try again later: what has come is kept; or look at the network's way to it",
                )
            waited, come = 0.0, 0
        yield block
