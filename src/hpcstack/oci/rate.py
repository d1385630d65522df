"""Give up on a registry that sends too little: it would keep an import going for ever.

Tested in tests/unit/oci/test_download.py.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hpcstack.core.errors import RegistryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PERIOD_S, LEAST = 60.0, 64 << 10  # seconds, and bytes: about a kilobyte a second


class TooSlow(RegistryError):
    """A registry has sent less in a minute than any registry that works."""


def watch_rate(read: Callable[[], bytes], host: str) -> Iterator[bytes]:
    """Yield what READ returns, until that is empty.

    Raise TooSlow if less than LEAST bytes came in PERIOD_S seconds of waiting for READ. The time
    that the caller takes for a piece does not count.
    """
    waited = 0.0
    received = 0
    while True:
        began = time.monotonic()
        block = read()
        waited += time.monotonic() - began
        received += len(block)
        if not block:
            return
        if waited >= PERIOD_S:
            if received < LEAST:
                raise TooSlow(
                    f"{host} sent {received} bytes in {waited:.0f} seconds",
                    "try again later, what was received is kept; or check the network between here "
                    "and that host",
                )
            waited = 0.0
            received = 0
        yield block
