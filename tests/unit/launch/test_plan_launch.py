"""What a launch says of its image. The whole is tested in tests/unit/cli/test_site_signatures.py and
tests/integration/test_launching.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcstack.launch.plan_launch import _note_own_image
from support.modules import Place


def test_only_ones_own_image_is_pointed_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who has built a stack that the site publishes wonders which one runs."""
    place = Place(tmp_path)
    place.publish(content=b"published", channel="production")
    assert _note_own_image(place.names().find_image("pytorch-24.11")) == ""
    mine = place.artifact(place.stack(), b"mine")
    chosen = place.names().find_image("pytorch-24.11")
    assert f"{mine.key[:12]}: pytorch-24.11@built means that one" in _note_own_image(chosen)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert _note_own_image(chosen) == ""
