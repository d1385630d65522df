"""A server of an image as a process: started alone, asked whether it is ready, ended as Slurm ends
it.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import time

STOP_S = 30.0
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
OF_STEPS = ("SLURM_", "PMI_", "PMIX_", "OMPI_", "HYDRA_")
# Some make folders below HOME, which may be read-only, or one for all nodes
OWN_FOLDERS = ("HF_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "CUDA_CACHE_PATH",
               "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE")  # fmt: skip
MARK = "HPCSTACK_SERVER"  # in the environment of all that a server starts, in whatever session


class Server:
    """ARGV in a session of its own; what it says goes to LOG, what it keeps below FOLDER."""

    def __init__(self, argv: list[str], folder: str, log: str, key: str = "") -> None:
        """KEY: what clients must say, for servers that know VLLM_API_KEY."""
        self.log, self.folder, self.stopped = log, folder, False
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
        """Empty as soon as GET PATH answers 200; else why not, by UNTIL or when the server has
        ended.
        """
        said = "nothing listens"
        while time.monotonic() < until:
            if ended := self.ended():
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
        """How it ended; empty while it runs."""
        status = self.child.poll()
        if status is None:
            return ""
        return (
            f"it was ended by {signal.Signals(-status).name}"
            if status < 0
            else f"it ended with exit {status}"
        )

    def address_taken(self) -> bool:
        """Whether its port was another one's."""
        return any(words in self._tail().lower() for words in ADDRESS_TAKEN)

    def stop(self) -> str:
        """TERM, and STOP_S for it: empty where nothing of it is left then (or it was stopped
        before); else what had to be killed.
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
        return (
            f"{len(left)} of its processes had to be killed {STOP_S:.0f} s after TERM"
            if left
            else ""
        )

    def last_line(self) -> str:
        return (
            [line.strip() for line in self._tail().splitlines() if line.strip()]
            or ["it said nothing"]
        )[-1][:300]

    def _tail(self) -> str:
        with contextlib.suppress(OSError), open(self.log, "rb") as file:
            file.seek(max(0, os.path.getsize(self.log) - 20_000))
            return file.read().decode(errors="replace")
        return ""


def make_server_environment(folder: str, key: str = "") -> dict[str, str]:
    """This one's without what makes a server a rank, offline, with its home and caches below
    FOLDER.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in OF_RANKS and not name.startswith(OF_STEPS)
    }
    own = {name: os.path.join(folder, name.lower()) for name in OWN_FOLDERS}
    quiet = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    return {
        **kept,
        **own,
        **quiet,
        "HOME": folder,
        MARK: folder,
        **({"VLLM_API_KEY": key} if key else {}),
    }


def get_status(host: str, port: int, path: str, seconds: float = 5.0) -> int:
    """The status of GET PATH. OSError or HTTPException where there is none; no proxy is asked."""
    line = http.client.HTTPConnection(host, port, timeout=seconds)
    try:
        line.request("GET", path)
        return line.getresponse().status
    finally:
        line.close()


def find_members(folder: str) -> list[int]:
    """The living processes whose environment bears the mark of FOLDER's server; MPI gives some
    their own session.
    """
    out, mark = [], f"{MARK}={folder}".encode()
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            number = int(name)
            with open(f"/proc/{number}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    out.append(number)
    return out
