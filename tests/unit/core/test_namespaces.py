"""Which of the kernel's settings keep ordinary users from user namespaces."""

from __future__ import annotations

from pathlib import Path

from hpcstack.core.namespaces import closed_by


def test_each_setting_that_closes_them_is_named(tmp_path: Path) -> None:
    for folder in ("user", "kernel"):
        (tmp_path / folder).mkdir()
    assert closed_by(tmp_path) == []
    (tmp_path / "user/max_user_namespaces").write_text("63556\n")
    (tmp_path / "kernel/apparmor_restrict_unprivileged_userns").write_text("1\n")
    assert closed_by(tmp_path) == ["kernel.apparmor_restrict_unprivileged_userns=1"]
    (tmp_path / "user/max_user_namespaces").write_text("0\n")
    (tmp_path / "kernel/unprivileged_userns_clone").write_text("0\n")
    assert closed_by(tmp_path) == [
        "user.max_user_namespaces=0", "kernel.unprivileged_userns_clone=0",
        "kernel.apparmor_restrict_unprivileged_userns=1",
    ]  # fmt: skip
