"""Bytes as people read them."""

from __future__ import annotations

MEGABYTE, GIGABYTE = 10**6, 10**9
IN_MEGABYTES = (
    10 * GIGABYTE
)  # below it two sizes that differ must not look alike: "0.1 GB free, needs 0.1 GB"


def show_bytes(count: int) -> str:
    """COUNT bytes in MB or GB, of a thousand each."""
    return f"{count / MEGABYTE:.0f} MB" if count < IN_MEGABYTES else f"{count / GIGABYTE:.1f} GB"
