"""Kernels of a Jupyter outside the image, by jupyter_client: in a job, on a login node, without Slurm."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from support.launching import RUNTIMES, STACK
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.jobs("second"), pytest.mark.slurm]
TOP = "tests/kernels"
# What a notebook does with a kernel: a cell, an interrupt of what it has started, a restart, its end.
CELLS = """\
import json, subprocess, sys, threading, time
from jupyter_client.manager import start_new_kernel

manager, client = start_new_kernel(kernel_name=sys.argv[1], startup_timeout=60)

def run(code):
    printed = []
    def keep(message):
        content = message["content"]
        printed.append(content.get("text") or content.get("ename") or "")
    client.execute_interactive(code, output_hook=keep, timeout=60, allow_stdin=False)
    return "".join(printed)

said = {"where": json.loads(run(
    "import json, os, torch, einops; print(json.dumps({'torch': torch.__version__, 'folder': os.getcwd(),"
    "'job': os.environ.get('SLURM_JOB_ID'), 'step': os.environ.get('SLURM_STEP_ID')}))"
))}
said["processes"] = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
said["key"] = manager.session.key.decode()
threading.Timer(1, manager.interrupt_kernel).start()
began = time.monotonic()
said["interrupted"] = run("import subprocess; subprocess.run(['sleep', '50'])")
said["after"] = time.monotonic() - began
manager.restart_kernel()
client.wait_for_ready(timeout=60)
said["again"] = run("print('torch' in dir())")
began = time.monotonic()
manager.shutdown_kernel()
said["end"] = time.monotonic() - began
print(json.dumps(said))
"""


class Jupyter:
    """A user's own Jupyter: jupyter_client in a virtual environment, and the kernels it finds."""

    def __init__(self, testbed: Testbed) -> None:
        self.testbed = testbed
        self.enter = (
            f"mkdir -p ~/{TOP}/work; cd ~/{TOP}/work; "
            "export XDG_STATE_HOME=$PWD/../state XDG_DATA_HOME=$PWD/../share JUPYTER_DATA_DIR=$PWD/../jupyter; "
        )
        testbed.give(f"{TOP}/work/cells.py", CELLS)
        made = self.bash(
            "[ -e ../venv/done ] || { python3 -m venv ../venv && ../venv/bin/pip install -q jupyter-client && "
            "touch ../venv/done; }"
        )
        assert made.returncode == 0, made.stderr

    def bash(self, script: str) -> subprocess.CompletedProcess[str]:
        return self.testbed.bash(self.enter + script, check=False)

    def install(self, *words: str) -> dict[str, Any]:
        done = self.bash(f"hpcstack kernel install {STACK} --with einops --json {' '.join(words)}")
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def run_cells(self, name: str, *, before: str = "") -> dict[str, Any]:
        done = self.bash(f"{before} timeout 200 ../venv/bin/python cells.py {name}")
        assert done.returncode == 0, done.stdout + done.stderr
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert said["where"]["torch"].startswith("2.6")
        assert said["where"]["folder"].endswith(f"{TOP}/work")
        assert said["interrupted"] == "KeyboardInterrupt"
        assert said["after"] < 20
        assert said["again"] == "False\n"
        assert said["key"]
        assert said["key"] not in said["processes"]
        assert said["key"] not in self.bash("cat $(find ../state -type f)").stdout
        return said

    def wait_until_nothing_is_left(self) -> None:
        for _ in range(100):
            left = self._find_left()
            if not left:
                return
            time.sleep(0.3)
        self.testbed.bash(
            "pkill -KILL -f '[h]pcstack-kernel-'; scancel -n pytorch-24.11; rm -rf /tmp/hpcstack-kernel-*",
            check=False,
        )
        raise AssertionError(left)

    def _find_left(self) -> list[str]:
        lines = self.testbed.bash("squeue -h -o %j; ps -u $(id -u) -o args").stdout.splitlines()
        return [
            one for one in lines if re.search("ipykernel|kernel start|hpcstack-kernel", one)
        ] + (self.testbed.bash("ls -d /tmp/hpcstack-kernel-*", check=False).stdout.splitlines())


@pytest.fixture(scope="module")
def jupyter(testbed: Testbed, built: dict[str, Any]) -> Jupyter:
    return Jupyter(testbed)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_on_a_login_node_the_kernel_is_a_job_of_its_own(jupyter: Jupyter, runtime: str) -> None:
    made = jupyter.install("--runtime", runtime, "--name", f"own-{runtime}", "-t", "10")
    assert "--time=10" in made["argv"]
    said = jupyter.run_cells(f"own-{runtime}")
    assert said["where"]["job"]
    jupyter.wait_until_nothing_is_left()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_in_a_job_the_kernel_is_a_step_beside_jupyter(jupyter: Jupyter, runtime: str) -> None:
    """As in a job of Open OnDemand's or JupyterHub's. Its own options say nothing there."""
    name = f"step-{runtime}"
    jupyter.install("--runtime", runtime, "--name", name, "-t", "10", "-p", "debug")
    said = jupyter.run_cells(name, before="srun -N1 -n1 -c1")
    assert said["where"]["job"]
    assert said["where"]["step"] != "0"
    jupyter.wait_until_nothing_is_left()


@pytest.mark.apptainer
def test_two_kernels_share_a_job(jupyter: Jupyter) -> None:
    jupyter.install("--runtime", "apptainer", "--name", "two")
    both = "for n in 1 2; do ../venv/bin/python cells.py two >said.$n & done; wait"
    done = jupyter.bash(f"srun -N1 -n1 -c1 bash -c '{both}'; tail -qn1 said.1 said.2")
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["where"]["job"] == second["where"]["job"]
    assert first["where"]["step"] != second["where"]["step"]
    assert {first["again"], second["again"]} == {"False\n"}
    jupyter.wait_until_nothing_is_left()


@pytest.mark.apptainer
@pytest.mark.soak(
    "another kernel",
    kept="tests/integration/test_kernels.py::test_on_a_login_node_the_kernel_is_a_job_of_its_own",
)
def test_without_slurm_the_kernel_runs_here(jupyter: Jupyter) -> None:
    jupyter.install("--runtime", "local", "--name", "here")
    said = jupyter.run_cells("here")
    assert not said["where"]["job"]
    jupyter.wait_until_nothing_is_left()


# As Jupyter kills a kernel that does not end: its whole process group; and as a Jupyter is killed
KILLED = """\
import os, signal, sys
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name=sys.argv[1], startup_timeout=60)
if sys.argv[2] == "kernel":
    manager.shutdown_kernel(now=True)
os._exit(0)
"""


@pytest.mark.apptainer
@pytest.mark.parametrize("runtime", ["apptainer", "local"])
@pytest.mark.parametrize("killed", ["kernel", "jupyter"])
def test_what_is_killed_leaves_no_job(jupyter: Jupyter, runtime: str, killed: str) -> None:
    jupyter.install("--runtime", runtime, "--name", "killed")
    jupyter.testbed.give(f"{TOP}/work/killed.py", KILLED)
    done = jupyter.bash(f"timeout 100 ../venv/bin/python killed.py killed {killed}")
    assert done.returncode == 0, done.stderr
    jupyter.wait_until_nothing_is_left()


@pytest.mark.apptainer
def test_a_kernel_that_cannot_be_reached_ends_with_the_reason(jupyter: Jupyter) -> None:
    """Its ports are somebody else's."""
    jupyter.install("--runtime", "apptainer", "--name", "taken")
    script = (
        "import json, socket, subprocess\n"
        "taken = socket.create_server(('127.0.0.1', 0))\n"
        "ports = ('shell_port', 'iopub_port', 'stdin_port', 'control_port', 'hb_port')\n"
        "about = dict.fromkeys(ports, taken.getsockname()[1])\n"
        "about.update(ip='127.0.0.1', transport='tcp', key='k', signature_scheme='hmac-sha256')\n"
        "json.dump(about, open('taken.json', 'w'))\n"
        f"done = subprocess.run(['hpcstack', 'kernel', 'start', '{STACK}', '--runtime', 'apptainer',"
        " '--with', 'einops', '-f', 'taken.json'], capture_output=True, text=True, timeout=150)\n"
        "print(done.returncode, done.stderr)\n"
    )
    jupyter.testbed.give(f"{TOP}/work/taken.py", script)
    said = jupyter.bash("../venv/bin/python taken.py").stdout
    assert "the kernel cannot be reached" in said
    assert "Address already in use" in said
    jupyter.wait_until_nothing_is_left()


@pytest.mark.apptainer
def test_a_kernel_of_somebody_elses_is_not_replaced(jupyter: Jupyter) -> None:
    jupyter.bash(
        "mkdir -p ../jupyter/kernels/mine; echo '{\"argv\": []}' >../jupyter/kernels/mine/kernel.json"
    )
    said = jupyter.bash(f"hpcstack kernel install {STACK} --runtime apptainer --name mine")
    assert said.returncode == 2
    assert "TIP: --name ANOTHER" in said.stderr


@pytest.mark.apptainer
def test_administrators_install_it_for_all(jupyter: Jupyter) -> None:
    made = jupyter.install("--runtime", "apptainer", "--prefix", "$PWD/prefix")
    path = Path(made["path"])
    assert path.parts[-5:] == ("share", "jupyter", "kernels", f"hpcstack-{STACK}", "kernel.json")
    assert json.loads(jupyter.bash(f"cat {path}").stdout)["display_name"] == f"{STACK} (hpcstack)"
