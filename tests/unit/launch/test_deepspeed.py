"""The shell of mode deepspeed, by real shells. In the place of DeepSpeed's launcher.launch stands a
program that starts ranks as it does (launcher/launch.py of 0.16): slots become
CUDA_VISIBLE_DEVICES, --no_python and --no_local_rank.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcstack.render.launchers import render_inner

LAUNCHER = f"""#!{sys.executable}
import base64, json, os, subprocess, sys
words = sys.argv[1:]
if words[:2] != ["-m", "deepspeed.launcher.launch"]:
    os.execv({sys.executable!r}, [{sys.executable!r}, *words])
said = dict(word.lstrip("-").split("=", 1) for word in words if word.startswith("--") and "=" in word)
slots = json.loads(base64.b64decode(said["world_info"]))["n" + said["node_rank"]]
assert "--no_python" in words and "--no_local_rank" in words
rest = words[words.index("--no_local_rank") + 1:]
devices = ",".join(map(str, slots))
status = 0
for place, _ in enumerate(slots):
    env = {{**os.environ, "LOCAL_RANK": str(place), "RANK": str(place), "CUDA_VISIBLE_DEVICES": devices}}
    status |= subprocess.run(rest, env=env).returncode
sys.exit(status)
"""
SHOWS = (
    "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['CUDA_VISIBLE_DEVICES']]), "
    "flush=True)\n"
)


def ranks(folder: Path, shell: str, command: list[str], ranks: int = 2, **env: str) -> list[Any]:
    """[arguments, CUDA_VISIBLE_DEVICES] of each rank that SHELL starts for COMMAND."""
    fake = folder / "bin/python3"
    fake.parent.mkdir(exist_ok=True)
    fake.write_text(LAUNCHER)
    fake.chmod(0o755)
    base = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "CUDA_", "HPCSTACK_"))
    }
    argv = [shell, "-c", render_inner("deepspeed"), "deepspeed", str(ranks), "", "0", *command]
    done = subprocess.run(argv, env={**base, "PATH": f"{fake.parent}:{base['PATH']}", **env}, cwd=folder,
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize(("given", "seen"), [
    ("", "0,1"),
    ("4,5", "4,5"),  # Slurm's own, without ConstrainDevices
    ("4,5,6,7", "4,5"),
    ("GPU-1b-2c,GPU-3d", "GPU-1b-2c,GPU-3d"),
    ("MIG-1/2/3,5", "MIG-1/2/3,5"),
    ('0,1"$(id)', "0,1"),  # nothing that could be more than a name
])  # fmt: skip
def test_ranks_get_the_gpus_that_the_step_has(
    tmp_path: Path, shell: str, given: str, seen: str
) -> None:
    (tmp_path / "train.py").write_text(SHOWS)
    found = ranks(tmp_path, shell, ["train.py", "a b"], CUDA_VISIBLE_DEVICES=given)
    assert found == [[["--local_rank=0", "a b"], seen], [["--local_rank=1", "a b"], seen]]


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_cores_are_bound_and_the_program_gets_its_rank(tmp_path: Path, shell: str) -> None:
    (tmp_path / "train.py").write_text(
        SHOWS.replace("sys.argv[1:]", "[*sys.argv[1:], sorted(os.sched_getaffinity(0))]")
    )
    core = min(os.sched_getaffinity(0))
    found = ranks(tmp_path, shell, ["train.py"], HPCSTACK_CPUS=f"{core} {core}")
    assert [one[0][0] for one in found] == ["--local_rank=0", "--local_rank=1"]
    assert all(one[0][1] == [core] for one in found)
