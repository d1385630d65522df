"""A server of an image as a process: start it, ask whether it is ready, end it as Slurm would.

Tested in tests/unit/smoke/test_serving.py.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import time

STOP_S = 30.0  # for a server to end after SIGTERM; Slurm's default KillWait
# what servers say when their port is another program's
ADDRESS_TAKEN = ("already in use", "errno 98")
# torchrun's, Slurm's and MPI's variables would make a server believe that it is a rank of theirs
OF_RANKS = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "GROUP_RANK",
)
OF_STEPS = ("SLURM_", "PMI_", "PMIX_", "OMPI_", "HYDRA_")  # prefixes
# variables that name folders; by default these lie below HOME, which may be read-only, or shared by
# all nodes
OWN_FOLDERS = (
    "HF_HOME",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "VLLM_CACHE_ROOT",
    "VLLM_CONFIG_ROOT",
    "CUDA_CACHE_PATH",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "FLASHINFER_WORKSPACE_BASE",
)
MARK = "HPCSTACK_SERVER"  # in the environment of all that a server starts, in whatever session


class Server:
    """A server that runs: ARGV in a session of its own, with its output in LOG."""

    def __init__(self, argv: list[str], folder: str, log: str, key: str = "") -> None:
        """Start it in FOLDER, which is also its home and holds its caches.

        KEY is what clients must send, for servers that know VLLM_API_KEY.
        """
        self.log = log
        self.folder = folder
        self.stopped = False
        with open(log, "wb") as file:
            self.child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=make_server_environment(folder, key),
                start_new_session=True,
            )

    def ready(self, host: str, port: int, path: str, until: float) -> str:
        """Wait until GET PATH answers 200. Return an empty text, or why the server is not ready.

        The wait ends at the time UNTIL, or when the server has ended.
        """
        said = "nothing listens"
        while time.monotonic() < until:
            ended = self.ended()
            if ended:
                return f"{ended}: {self.last_line()}"
            try:
                status = get_status(host, port, path)
            except (OSError, http.client.HTTPException):
                time.sleep(0.5)
                continue
            if status == 200:
                return ""
            said = f"GET {path} is answered by {status}"
            time.sleep(0.5)
        return f"not ready in time: {said}; {self.last_line()}"

    def ended(self) -> str:
        """Return how the server ended, in words; empty while it runs."""
        status = self.child.poll()
        if status is None:
            return ""
        if status < 0:
            return f"it was ended by {signal.Signals(-status).name}"
        return f"it ended with exit {status}"

    def address_taken(self) -> bool:
        """Whether the server said that its port is another program's."""
        return any(words in self._tail().lower() for words in ADDRESS_TAKEN)

    def stop(self) -> str:
        """Send SIGTERM, and kill what is left after STOP_S.

        Return how much had to be killed, in words; empty if nothing, or if it was stopped before.
        """
        if self.stopped:
            return ""
        self.stopped = True
        began = time.monotonic()
        self.child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(STOP_S)

        left = find_members(self.folder)
        while left and time.monotonic() - began < STOP_S:
            time.sleep(0.2)
            left = find_members(self.folder)
        for one in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(STOP_S)
        if not left:
            return ""
        return f"{len(left)} of its processes had to be killed {STOP_S:.0f} s after TERM"

    def last_line(self) -> str:
        """Return the last line of the log that is not blank, or a text that there is none."""
        lines = [line.strip() for line in self._tail().splitlines() if line.strip()]
        if not lines:
            return "it said nothing"
        return lines[-1][:300]

    def _tail(self) -> str:
        """Return the end of the log; empty where it cannot be read."""
        with contextlib.suppress(OSError), open(self.log, "rb") as file:
            file.seek(max(0, os.path.getsize(self.log) - 20_000))
            return file.read().decode(errors="replace")
        return ""


def make_server_environment(folder: str, key: str = "") -> dict[str, str]:
    """Return the environment for a server whose home and caches are below FOLDER.

    It is this process's without what would make the server a rank, and it keeps servers offline.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in OF_RANKS and not name.startswith(OF_STEPS)
    }
    for name in OWN_FOLDERS:
        environment[name] = os.path.join(folder, name.lower())
    # no model and no statistics go over the network
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"):
        environment[name] = "1"
    environment["HOME"] = folder
    environment[MARK] = folder
    if key:
        environment["VLLM_API_KEY"] = key
    return environment


def get_status(host: str, port: int, path: str, seconds: float = 5.0) -> int:
    """Return the HTTP status of GET PATH, without any proxy.

    OSError or HTTPException where there is no answer.
    """
    line = http.client.HTTPConnection(host, port, timeout=seconds)
    try:
        line.request("GET", path)
        return line.getresponse().status
    finally:
        line.close()


def find_members(folder: str) -> list[int]:
    """Return the ids of the processes that belong to FOLDER's server.

    They are known by the mark in their environment, since MPI gives some a session of their own.
    """
    out = []
    mark = f"{MARK}={folder}".encode()
    for name in os.listdir("/proc"):
        # not a process, ended meanwhile, or another user's
        with contextlib.suppress(OSError, ValueError):
            number = int(name)
            with open(f"/proc/{number}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    out.append(number)
    return out
