"""Why ordinary users may make no user namespaces on this machine."""

from __future__ import annotations

from pathlib import Path

# https://docs.kernel.org/admin-guide/sysctl/user.html; Debian's and Ubuntu's own settings:
# https://ubuntu.com/blog/ubuntu-23-10-restricted-unprivileged-user-namespaces
CLOSED = {
    "user.max_user_namespaces": "0",
    "kernel.unprivileged_userns_clone": "0",
    "kernel.apparmor_restrict_unprivileged_userns": "1",
}


def no_namespaces(*, profiles: bool = True) -> str:
    """Why ordinary users may make no user namespaces, as the kernel's settings say; empty where they may. Without
    PROFILES of a program that has one of AppArmor's own, which opens them to it (Enroot's packages bring one)."""
    closed = [said for said in closed_by() if profiles or "apparmor" not in said]
    return f"ordinary users may make no user namespaces: {', '.join(closed)} (sysctl, by root)" if closed else ""


def closed_by(settings: Path = Path("/proc/sys")) -> list[str]:
    """The kernel's settings that keep ordinary users from user namespaces, as sysctl writes them."""
    out = []
    for name, value in CLOSED.items():
        try:
            said = (settings / name.replace(".", "/", 1)).read_text().strip()
        except OSError:  # this kernel has no such setting
            continue
        if said == value:
            out.append(f"{name}={value}")
    return out
