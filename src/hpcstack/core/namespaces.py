"""User namespaces: whether ordinary users may create them here, and what root becomes in ours."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

PROFILES = Path("/etc/apparmor.d")
# Settings of the kernel, and the value of each that closes user namespaces to ordinary users.
# https://docs.kernel.org/admin-guide/sysctl/user.html; Debian's and Ubuntu's own settings:
# https://ubuntu.com/blog/ubuntu-23-10-restricted-unprivileged-user-namespaces
BY_APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"
CLOSED = {
    "user.max_user_namespaces": "0",
    "kernel.unprivileged_userns_clone": "0",
    BY_APPARMOR: "1",
}


# What the machine's root becomes where programs of a base run. It is nobody's number: neither
# systemd's ranges (https://systemd.io/UIDS-GIDS) nor /etc/subuid reach there, and only what builds
# have left belongs to it.
ROOT_BECOMES = 2_000_000_001
WHOLE_RANGE = ["0", "0", "4294967295"]  # of /proc/self/uid_map, in the machine's own user namespace


def is_machines_root() -> bool:
    """Return whether this process is the machine's root, and not that of a rootless container."""
    return not os.geteuid() and is_machines_namespace()


def is_machines_namespace() -> bool:
    """Return whether this process is in the machine's own user namespace."""
    with contextlib.suppress(OSError):
        return Path("/proc/self/uid_map").read_text().split() == WHOLE_RANGE
    return True


def list_trusted_ids() -> tuple[int, ...]:
    """Return the user ids whose folders and links are trusted: root's and our own.

    In a user namespace the machine's root has no number of its own and appears as the overflow
    user. So does every other user who is not mapped; they cannot be told apart, and are trusted,
    too.
    """
    own = (0, os.geteuid())
    with contextlib.suppress(OSError):
        if Path("/proc/self/uid_map").read_text().split() == WHOLE_RANGE:
            return own
        return (*own, int(Path("/proc/sys/kernel/overflowuid").read_text()))
    return own


def explain_no_namespaces(profile: str = "") -> str:
    """Return which of the kernel's settings keep ordinary users from making user namespaces.

    Empty where they may make some. PROFILE is a pattern for the names of a program's AppArmor
    profiles, which would open namespaces to it (Enroot's packages bring one).
    """
    closed = find_closing_settings()
    if profile and any(PROFILES.glob(profile)):
        closed.pop(BY_APPARMOR, None)
    if not closed:
        return ""
    # As sysctl prints them.
    said = ", ".join(f"{name}={value}" for name, value in closed.items())
    return f"ordinary users may make no user namespaces: {said} (sysctl, by root)"


def find_closing_settings(settings: Path = Path("/proc/sys")) -> dict[str, str]:
    """Return the settings, {name: value}, that keep ordinary users from user namespaces.

    SETTINGS is where the kernel shows them.
    """
    out = {}
    for name, value in CLOSED.items():
        try:
            said = (settings / name.replace(".", "/", 1)).read_text().strip()
        except OSError:  # this kernel has no such setting
            continue
        if said == value:
            out[name] = value
    return out
