"""What the tests of launching share: a script whose ranks say what they see, and a launch of it."""

from __future__ import annotations

import subprocess

import pytest

from support.testbed import Testbed

STACK = "pytorch-24.11"
ALIKE = pytest.mark.soak("Apptainer shows the fault; launches by each runtime stand in ci/test")
RUNTIMES = [
    pytest.param("pyxis", marks=[pytest.mark.pyxis, pytest.mark.enroot]),
    pytest.param("apptainer", marks=pytest.mark.apptainer),
    pytest.param("enroot", marks=pytest.mark.enroot),
    pytest.param("podman", marks=[pytest.mark.podman, ALIKE]),
    pytest.param("charliecloud", marks=[pytest.mark.charliecloud, ALIKE]),
]
# For what each runtime has a line of its own for
EVERY_RUNTIME = [
    *RUNTIMES[:3],
    pytest.param("podman", marks=pytest.mark.podman),
    pytest.param("charliecloud", marks=pytest.mark.charliecloud),
]
SHOW = """\
import json, os, socket, sys
shown = "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT PMIX_RANK SLURM_PROCID CUDA_VERSION PYTHONNOUSERSITE".split()
line = {"host": socket.gethostname(), "cwd": os.getcwd(), "arguments": sys.argv[1:],
        "environment": {name: os.environ[name] for name in shown if name in os.environ}}
os.write(1, (json.dumps(line) + "\\n").encode())
"""


def launch_apart(testbed: Testbed, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Launch with a state folder of one's own: the newest launch of other tests stays theirs."""
    state = {"XDG_STATE_HOME": f"{testbed.home}/tests/launching/state"}
    return launch(testbed, *words, **{**state, **env})


def launch(testbed: Testbed, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    pairs = [f"{name}={value}" for name, value in env.items()]
    script = 'cd tests/launching && exec "$@"'
    return testbed.run(
        "bash", "-c", script, "bash", "env", *pairs, "hpcstack", "launch", STACK, *words
    )
