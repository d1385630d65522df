"""Numbers of bytes, as people read them."""

from __future__ import annotations

MEGABYTE, GIGABYTE = 10**6, 10**9
# Below it sizes are shown in MB: two that differ must not look alike, as in "0.1 GB free, needs
# 0.1 GB".
IN_MEGABYTES = 10 * GIGABYTE


def show_bytes(count: int) -> str:
    """Return COUNT bytes in MB (10^6) or GB (10^9)."""
    if count < IN_MEGABYTES:
        return f"{count / MEGABYTE:.0f} MB"
    return f"{count / GIGABYTE:.1f} GB"
