"""Checks of the filesystem of a run's folder, on this machine's own."""

from __future__ import annotations

from pathlib import Path

from hpcstack_smoke.node import io
from hpcstack_smoke.request import Request
from hpcstack_smoke.result import PASS


def test_the_filesystem_gives_back_what_was_written_and_nothing_is_left(tmp_path: Path) -> None:
    request = Request(output=str(tmp_path))
    for check in (
        io.check_io_bandwidth,
        io.check_io_staging,
        io.check_io_metadata,
        io.check_io_small,
        io.check_io_lock,
    ):
        assert check(request).status == PASS
    assert list(tmp_path.iterdir()) == []
