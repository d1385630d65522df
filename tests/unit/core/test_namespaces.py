"""Which of the kernel's settings keep ordinary users from user namespaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.core import namespaces
from hpcstack.core.namespaces import find_closing_settings


def test_each_setting_that_closes_them_is_named(tmp_path: Path) -> None:
    for folder in ("user", "kernel"):
        (tmp_path / folder).mkdir()
    assert find_closing_settings(tmp_path) == {}
    (tmp_path / "user/max_user_namespaces").write_text("63556\n")
    (tmp_path / "kernel/apparmor_restrict_unprivileged_userns").write_text("1\n")
    assert find_closing_settings(tmp_path) == {"kernel.apparmor_restrict_unprivileged_userns": "1"}
    (tmp_path / "user/max_user_namespaces").write_text("0\n")
    (tmp_path / "kernel/unprivileged_userns_clone").write_text("0\n")
    assert find_closing_settings(tmp_path) == {
        "user.max_user_namespaces": "0",
        "kernel.unprivileged_userns_clone": "0",
        "kernel.apparmor_restrict_unprivileged_userns": "1",
    }


def test_a_program_with_a_profile_of_its_own_is_not_kept_out_by_apparmor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "PROFILES", tmp_path)
    monkeypatch.setattr(namespaces, "find_closing_settings", lambda: {namespaces.BY_APPARMOR: "1"})
    assert "apparmor" in namespaces.explain_no_namespaces()
    assert "apparmor" in namespaces.explain_no_namespaces("enroot*")
    (tmp_path / "enroot").touch()
    assert "apparmor" in namespaces.explain_no_namespaces()
    assert namespaces.explain_no_namespaces("enroot*") == ""
    monkeypatch.setattr(
        namespaces, "find_closing_settings", lambda: {"user.max_user_namespaces": "0"}
    )
    assert namespaces.explain_no_namespaces("enroot*")
