"""A real srun judges a line, with a slurm.conf of its own and no controller.

srun looks at its options before it asks for anything. What it refuses ends it there with a message;
what it takes leads it to the controller's port, on which we listen. So no time decides, and a line
costs a few milliseconds.

HPCSTACK_SRUNS names more of them, with colons between: those of other releases, built by hand.
"""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

CONF = """\
ClusterName=alpha
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/none
CredType=cred/none
GresTypes=gpu
SelectType=select/cons_tres
NodeName=n[1-4] CPUs=96 Gres=gpu:h100:8
PartitionName=gpu Nodes=n[1-4] Default=YES
"""
ANSWER_S = 30


def find_sruns() -> list[str]:
    """The programs that judge here: that of this machine, and those that a person names."""
    named = os.environ.get("HPCSTACK_SRUNS", "").split(":")
    return [one for one in (shutil.which("srun") or "", *named) if one]


class SrunJudge:
    """What PROGRAM, an srun, says of a line; FOLDER gets its slurm.conf."""

    def __init__(self, program: str, folder: Path) -> None:
        self.program = program
        self.known: dict[str, bool] = {}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.conf = folder / "slurm.conf"
        self.conf.write_text(CONF.format(port=self.listener.getsockname()[1]))

    def close(self) -> None:
        self.listener.close()

    def knows(self, word: str) -> bool:
        """Whether this release has the option WORD at all: no --help names all of them."""
        name = word.partition("=")[0]
        if name not in self.known:
            self.known[name] = "unrecognized option" not in self.judge([word], {})
        return self.known[name]

    def judge(self, options: Sequence[str], variables: Mapping[str, str]) -> str:
        """Return why OPTIONS are refused in a shell with VARIABLES; empty where they are taken."""
        process = subprocess.Popen(
            [self.program, *options, "true"],
            env=self._environment(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr
        with process, selectors.DefaultSelector() as waiting:
            waiting.register(self.listener, selectors.EVENT_READ)
            waiting.register(process.stderr, selectors.EVENT_READ)
            said = ""
            while True:
                ready = [key.fileobj for key, _ in waiting.select(ANSWER_S)]
                assert ready, f"no answer to {options}"
                if self.listener in ready:
                    self.listener.accept()[0].close()
                    process.kill()
                    return ""
                line = process.stderr.readline()
                if not line:
                    return said or f"it ended with {process.wait()}"
                said += line

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        own = {"PATH": os.environ["PATH"], "HOME": "/", "SLURM_CONF": str(self.conf)}
        return {**own, **variables}
