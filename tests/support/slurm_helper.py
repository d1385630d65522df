"""The helper of a node and the client of an image, as modules, and run beside each other."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hpcstack.core.data import find_data_folder
from hpcstack.runtimes.slurm_inside import COMMANDS
from hpcstack.slurm.options import load_getopt_options

LAUNCHERS = find_data_folder("launchers")
HELPER = LAUNCHERS / "on-node/slurm_helper.py"
CLIENT = LAUNCHERS / "in-image/slurm_client.py"
STEP: dict[str, Any] = {
    "commands": COMMANDS,
    "words": ["run", "image", "/inside"],
    "by_srun": False,
    "environment": {},
    "image": ["CUDA_HOME", "CUDA_VISIBLE_DEVICES"],
    "script": "/inside/script",
    "options": load_getopt_options(),
    "is_in_step": False,
}


def load_helper() -> ModuleType:
    """on-node/slurm_helper.py, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("slurm_helper", HELPER)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


@dataclass
class Served:
    """A helper that runs, and a folder whose `bin` has Slurm's programs for it: scripts."""

    folder: Path
    socket: str

    def put(self, name: str, script: str) -> None:
        """Make SCRIPT the node's program NAME."""
        path = self.folder / "bin" / name
        path.write_text(f'#!/bin/sh\n[ "$1" != --help ] || exit 0\n{script}\n')
        path.chmod(0o755)

    def command(self, *words: str) -> list[str]:
        """The line that types WORDS in the image."""
        link = self.folder / "inside" / words[0]
        if not link.is_symlink():
            link.symlink_to(CLIENT)
        return [sys.executable, "-I", "-S", str(link), *words[1:]]

    def type(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "HPCSTACK_SLURM_SOCKET": self.socket, **options.pop("env", {})}
        options = {"cwd": self.folder, "timeout": 60, "check": False, **options}
        return subprocess.run(
            self.command(*words), capture_output=True, text=True, env=env, **options
        )


@contextlib.contextmanager
def serve(folder: Path, more: str = "/usr/bin:/bin", **step: Any) -> Iterator[Served]:
    """A helper for the time of a test, and of a process that stands for the step.

    MORE are folders of programs besides the `bin` of FOLDER.
    """
    (folder / "bin").mkdir()
    (folder / "inside").mkdir()
    served = Served(folder, f"hpcstack-test-{uuid.uuid4()}")
    (folder / "step.json").write_text(json.dumps({**STEP, **step}))
    parent = subprocess.Popen(["sleep", "600"])
    argv = [sys.executable, "-I", "-S", "-B", str(HELPER), served.socket, str(parent.pid)]
    env = {**os.environ, "PATH": f"{folder / 'bin'}:{more}"}
    helper = subprocess.Popen([*argv, str(folder / "step.json")], env=env, cwd=folder)
    try:
        while f"@{served.socket}" not in Path("/proc/net/unix").read_text():
            time.sleep(0.02)
        yield served
    finally:
        parent.kill()
        parent.wait()
        helper.kill()
        helper.wait()
