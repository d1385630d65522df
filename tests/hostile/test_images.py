"""What programs of an image can leave behind for what its user runs elsewhere: row T21."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hpcstack.project.inside import open_uv_cache
from support.modules import Place


def test_t21_an_image_writes_to_no_cache_but_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel that one image put there was installed by the next, and by the user's own uv."""
    monkeypatch.delenv("UV_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = Place(tmp_path)
    one, other = place.artifact(place.stack(), b"one"), place.artifact(place.stack(), b"other")
    mine, theirs = open_uv_cache(one), open_uv_cache(other)
    users_own = tmp_path / "cache/uv"
    for cache in (mine, theirs):
        assert not users_own.is_relative_to(cache)
        assert not cache.is_relative_to(users_own)
    assert mine != theirs
    assert open_uv_cache(one) == mine, "and again the same one"


def test_t21_a_cache_that_the_user_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "named"))
    place = Place(tmp_path)
    cache = open_uv_cache(place.artifact(place.stack()))
    assert cache.parent == tmp_path / "named/hpcstack"
    old = cache.with_name("of an image long gone")
    old.mkdir()
    (old / "link").symlink_to(tmp_path)
    os.utime(old, (time.time() - 90 * 86400,) * 2)
    open_uv_cache(place.artifact(place.stack()))
    assert not old.exists()
    assert tmp_path.exists()
