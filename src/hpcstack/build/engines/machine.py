"""What this machine lets builds do: tried with trees of our own.

A base would choose by what it lacks.
"""

from __future__ import annotations

import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.build.engines.base import explain_missing
from hpcstack.build.engines.enclosure import find_script
from hpcstack.build.engines.seccomp import ARCHITECTURES
from hpcstack.core.namespaces import no_namespaces

if TYPE_CHECKING:
    from hpcstack.core.process import Runner

UNSHARE = ("unshare", "--user", "--map-root-user", "--mount", "--propagation", "private")


def enclosure_refused(runner: Runner) -> str:
    """Why no enclosure can be made here; empty where one can."""
    if lacking := explain_missing(("unshare", "mount", "sh"), runner):
        return lacking
    if platform.machine() not in ARCHITECTURES:
        return f"{platform.machine()} has no seccomp filter here"
    done = runner.output([*UNSHARE, "true"])
    if done.status:
        said = done.tail[-1] if done.tail else f"exit {done.status}"
        return no_namespaces() or f"this kernel lets ordinary users make no name spaces: {said}"
    if runner.output([*UNSHARE, "--pid", "--fork", "--mount-proc", "true"]).status:
        return (
            "/proc is masked here, as in a container: no other one can be mounted (podman: "
            "--security-opt unmask=ALL)"
        )
    return ""


def overlay_refused(runner: Runner) -> str:
    """Why this kernel lets ordinary users mount no overlay; empty where it does."""
    with tempfile.TemporaryDirectory(prefix="hpcstack-") as name:
        for folder in ("a", "b", "merged"):
            (Path(name) / folder).mkdir()
        options = f"ro,userxattr,lowerdir={name}/a:{name}/b"
        done = runner.output(
            [*UNSHARE, "sh", find_script("overlay.sh"), name, f"{name}/merged", options, "true"]
        )
    if not done.status:
        return ""
    if closed := no_namespaces():
        return closed
    said = done.tail[-1] if done.tail else f"exit {done.status}"
    return (
        f"this kernel does not let ordinary users mount an overlay, as Linux 5.11 or newer does: "
        f"{said}"
    )
