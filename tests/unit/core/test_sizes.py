"""Bytes as people read them."""

from __future__ import annotations

from hpcstack.core.sizes import show_bytes


def test_two_sizes_that_differ_do_not_look_alike() -> None:
    """admin 22-32: "0.1 GB free, needs 0.1 GB more"."""
    assert (show_bytes(95_000_000), show_bytes(127_000_000)) == ("95 MB", "127 MB")
    assert (show_bytes(9_400_000_000), show_bytes(23_560_000_000)) == ("9400 MB", "23.6 GB")
