"""How the suite in an image is asked: by request.json."""

from __future__ import annotations

import json
from pathlib import Path

from hpcstack_smoke.request import FILE, Request, read_request, write_request


def test_a_request_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Also where a newer host wrote more, and wherever the folder is mounted."""
    request = Request(str(tmp_path), "nccl,ddp", "standard", nodes=2, fabric_rate=400.0)
    write_request(request)
    assert read_request(str(tmp_path)) == request
    document = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(
        json.dumps({**document, "of_a_newer_host": 1, "output": "/elsewhere"})
    )
    assert read_request(str(tmp_path)) == request
    assert [check.code for check in request.checks("node")] == []
    assert {check.family for check in request.checks("ranks")} == {"nccl", "ddp"}
