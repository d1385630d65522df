"""A /dev/log of a test's own, in a mount namespace: what programs tell syslog is kept."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# a folder that stands for /dev, with the devices that shells and Lmod need and the socket as `log`
ENTER = """
dev=$1 socket=$2; shift 2
mkdir -p "$dev"; mount -t tmpfs none "$dev"
for name in null zero full random urandom tty; do touch "$dev/$name"; mount --bind "/dev/$name" "$dev/$name"; done
ln -s /proc/self/fd "$dev/fd"; touch "$dev/log"; mount --bind "$socket" "$dev/log"
mount --rbind "$dev" /dev
exec "$@"
"""


@dataclass
class Syslog:
    """What listens in place of the system's syslog."""

    folder: Path
    listener: socket.socket

    def run(
        self, *argv: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """ARGV, whose /dev/log is this one."""
        inside = ["bash", "-euc", ENTER, "bash", str(self.folder / "dev"), str(self.folder / "log")]
        return subprocess.run(
            ["unshare", "--user", "--map-root-user", "--mount", *inside, *argv],
            env=dict(env) if env else None,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def take(self, wait: float = 0.5) -> list[str]:
        """What was said since the last call, once nothing has come for WAIT seconds."""
        out = []
        while select.select([self.listener], [], [], wait)[0]:
            out.append(self.listener.recv(65536).decode())
        return out


@contextlib.contextmanager
def listen_to_syslog(folder: Path) -> Iterator[Syslog]:
    """A syslog below FOLDER, whose path must be short: it is a socket's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(folder / "log"))
        yield Syslog(folder, listener)
