"""What this machine lets builds do.

It is tried with trees of our own, never with a base's: otherwise what a base lacks would decide.

Tested in tests/unit/build/test_engines.py.
"""

from __future__ import annotations

import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.build.engines.base import explain_missing
from hpcstack.build.engines.enclosure import find_script
from hpcstack.build.engines.seccomp import ARCHITECTURES
from hpcstack.core.namespaces import explain_no_namespaces

if TYPE_CHECKING:
    from hpcstack.core.process import Completed, Runner

UNSHARE = ("unshare", "--user", "--map-root-user", "--mount", "--propagation", "private")


def explain_refused_enclosure(runner: Runner) -> str:
    """Return why no enclosure can be made here; empty where one can."""
    lacking = explain_missing(("unshare", "mount", "sh"), runner)
    if lacking:
        return lacking

    if platform.machine() not in ARCHITECTURES:
        return f"hpcstack has no seccomp filter for {platform.machine()}"

    done = runner.output([*UNSHARE, "true"])
    if done.status:
        return (
            explain_no_namespaces()
            or f"this kernel lets ordinary users make no namespaces: {_last_line(done)}"
        )

    # A container's /proc has paths masked, and the kernel then refuses to mount an unmasked one.
    if runner.output([*UNSHARE, "--pid", "--fork", "--mount-proc", "true"]).status:
        return (
            "/proc is masked here, as in a container, so that no new one can be mounted (podman: "
            "--security-opt unmask=ALL)"
        )
    return ""


def explain_refused_overlay(runner: Runner) -> str:
    """Return why ordinary users cannot mount an overlay on this kernel; empty where they can."""
    with tempfile.TemporaryDirectory(prefix="hpcstack-") as name:
        for folder in ("a", "b", "merged"):
            (Path(name) / folder).mkdir()
        options = f"ro,userxattr,lowerdir={name}/a:{name}/b"
        done = runner.output(
            [*UNSHARE, "sh", find_script("overlay.sh"), name, f"{name}/merged", options, "true"]
        )
    if not done.status:
        return ""

    closed = explain_no_namespaces()
    if closed:
        return closed
    return (
        f"this kernel does not let ordinary users mount an overlay, as Linux 5.11 or newer does: "
        f"{_last_line(done)}"
    )


def _last_line(done: Completed) -> str:
    """Return the last line that the program printed; its exit status where it printed none."""
    if done.tail:
        return done.tail[-1]
    return f"exit {done.status}"
