"""No engine at all: user namespaces by bubblewrap over the mounted base. For machines that have nothing else.

Neither root nor an entry in /etc/subuid is needed: one id is mapped, and a seccomp filter lets changes of owner succeed
(seccomp.py). Steps are layers that are kept (overlay.py).
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.build.engines.base import Job, missing
from hpcstack.build.engines.enclosure import script
from hpcstack.build.engines.lowest import DNS, resolv_conf
from hpcstack.build.engines.overlay import Layered, Started, namespaces_refused, scratch
from hpcstack.build.engines.seccomp import ARCHITECTURES, program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.core.process import Completed, Runner

PLACES = ("/dev", "/proc", "/sys", "/mnt", "/tmp", "/var/tmp")
# https://github.com/opencontainers/runc/blob/main/libcontainer/specconv/example.go
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
MASKED = ("/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
          "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi")  # fmt: skip
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def contained(root: Path, job: Job, binds: dict[Path, str], command: list[str], descriptor: int) -> list[str]:
    """bwrap's argv: ROOT as /, nothing of the host but what the site lends, BINDS and the network.

    DESCRIPTOR holds the seccomp filter.
    """
    env = {
        "PATH": PATH,
        "HOME": "/root",
        "TERM": "dumb",
        **job.environment,
        "HPCSTACK_ONE_ID": "yes",
        "HPCSTACK_LAYERS": "yes",
    }
    argv = ["bwrap", "--bind", str(root), "/", "--dev", "/dev", "--proc", "/proc"]
    argv += ["--ro-bind", "/sys", "/sys", "--unshare-pid", "--unshare-uts", "--unshare-ipc", "--die-with-parent"]
    argv += _masks()
    argv += ["--cap-drop", "CAP_SYS_ADMIN"]  # with it a step mounts what it may only read so that it may write
    argv += [*_dns(job), "--ro-bind", str(job.lent), "/mnt", "--chdir", "/"]
    for source, target in (*binds.items(), (scratch(job), "/tmp"), (scratch(job), "/var/tmp")):
        argv += ["--bind", str(source), target]
    argv += ["--seccomp", str(descriptor), "--clearenv"]
    for name, value in env.items():
        argv += ["--setenv", name, value]
    return [*argv, "--", *command]


@contextlib.contextmanager
def started(job: Job, root: Path, binds: dict[Path, str], command: list[str]) -> Iterator[Started]:
    """COMMAND under bubblewrap, with the filter in a file that it reads from a descriptor."""
    with tempfile.TemporaryFile() as file:
        file.write(program(platform.machine()))
        file.flush()
        file.seek(0)
        places = [*PLACES, resolv_conf(job), *binds.values()]
        argv = [sys.executable, "-I", script("places.py"), str(root), *places, "--"]
        yield Started([*argv, *contained(root, job, binds, command, file.fileno())], {}, (file.fileno(),))


def _masks() -> list[str]:
    """Of /proc what runc masks and makes read-only, as far as this machine has it."""
    argv = []
    for path in READ_ONLY:
        argv += ["--ro-bind", path, path] if Path(path).exists() else []
    for path in MASKED:
        if Path(path).is_dir():
            argv += ["--tmpfs", path]
        elif Path(path).exists():
            argv += ["--ro-bind", "/dev/null", path]
    return argv


LAYERED = Layered("builtin", started)


@dataclass(frozen=True)
class Builtin:
    name: str = "builtin"
    tools: tuple[str, ...] = ("bwrap", "unshare", "mount", "sh", "unsquashfs", "mksquashfs")
    splices: bool = True

    def usable(self, runner: Runner) -> str:
        if reason := missing(self.tools, runner):
            return reason
        if platform.machine() not in ARCHITECTURES:
            return f"{platform.machine()} has no seccomp filter here"
        return namespaces_refused(runner)

    def build(self, job: Job, runner: Runner) -> Completed:
        return LAYERED.build(job, runner)

    def run_inside(self, name: str, folder: Path, job: Job, runner: Runner) -> Completed:
        return LAYERED.run_inside(name, folder, job, runner)


def _dns(job: Job) -> list[str]:
    """The machine's resolv.conf, where the base of JOB looks for it."""
    target = resolv_conf(job)
    own = ["--tmpfs", "/run"] if target.startswith("/run/") else []
    return [*own, "--ro-bind-try", os.path.realpath(DNS), target]


ENGINE = Builtin()
