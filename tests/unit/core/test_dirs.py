"""The user's own folders: a home is looked for only where XDG says nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcstack.core import dirs
from hpcstack.core.errors import InputError


def nobody(_: int) -> None:
    raise KeyError


def test_xdg_needs_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert dirs.find_data_home({"XDG_DATA_HOME": "/d"}) == Path("/d")
    with pytest.raises(InputError, match="no home directory"):
        dirs.find_data_home({})


@pytest.mark.parametrize("home", [{"HOME": ""}, {}])
def test_an_empty_home_is_none(home: dict[str, str]) -> None:
    import pwd

    assert dirs.find_config_home(home) == Path(pwd.getpwuid(os.getuid()).pw_dir) / ".config"


def test_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert dirs.find_state_folder() == Path("/h/.local/state/hpcstack")
