"""What runs JupyterLab, TensorBoard and kernels inside the image: its folder, token and signals."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpcstack.core.errors import InputError
from hpcstack.launch.page import PAGES, check_served, wrap_served
from hpcstack.launch.request import LaunchRequest, Served
from hpcstack.launch.resources import Resources

# A `jupyter lab` that says what it was given, and waits.
JUPYTER = """\
#!{python}
import json, os, pathlib, sys, time
folder = os.environ["JUPYTER_RUNTIME_DIR"]
said = {{
    "arguments": sys.argv[1:],
    "config": json.loads(
        pathlib.Path(os.environ["JUPYTER_CONFIG_PATH"].split(":")[0], "jupyter_lab_config.json").read_text()
    ),
    "environment": dict(os.environ),
}}
pathlib.Path(sys.argv[0] + ".said").write_text(json.dumps(said))
time.sleep(60)
"""


class Server:
    """serve_page.py with a folder and a home of its own."""

    def __init__(self, tmp_path: Path) -> None:
        self.top = tmp_path
        self.job = uuid.uuid4().hex[:8]
        self.folder = Path(f"/tmp/hpcstack-page-{self.job}-a")
        self.home = tmp_path / "home"
        self.home.mkdir()
        self.jupyter = tmp_path / "bin/jupyter"
        self.jupyter.parent.mkdir()
        self.jupyter.write_text(JUPYTER.format(python=sys.executable))
        self.jupyter.chmod(0o755)
        self.said = tmp_path / "bin/jupyter.said"

    def install(self, **versions: str) -> None:
        """Packages of these versions, as far as Python's metadata tell."""
        for name, version in versions.items():
            about = self.top / f"packages/{name}-{version}.dist-info/METADATA"
            about.parent.mkdir(parents=True)
            about.write_text(
                f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
            )

    def install_jupyterlab(self) -> None:
        self.install(jupyterlab="4.6.6", jupyter_server="2.14.0")

    def start(self, served: Served, *command: str, **env: str) -> subprocess.Popen[str]:
        _, *words = wrap_served(served, command)
        given = {
            **os.environ,
            "PATH": f"{self.jupyter.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.top / "packages"),
            "SLURM_JOB_ID": self.job,
            "HPCSTACK_SERVED": "/tmp/hpcstack-page-JOB-a",
            "HOME": str(self.home),
            **env,
        }
        return subprocess.Popen(
            [sys.executable, *words], env=given, text=True, stderr=subprocess.PIPE
        )

    def wait_for(self, path: Path) -> None:
        for _ in range(200):
            if path.exists() and path.read_text():
                return
            time.sleep(0.05)
        raise AssertionError(f"{path} did not appear")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    subprocess.run(["rm", "-rf", str(made.folder)], check=True)


@pytest.mark.parametrize(
    ("versions", "app"),
    [
        ({"jupyterlab": "4.6.6", "jupyter_server": "2.14.0"}, "ServerApp"),
        ({"jupyterlab": "2.3.2", "notebook": "6.4.10"}, "NotebookApp"),
    ],
)
def test_jupyter_listens_on_a_socket_that_its_user_alone_can_reach(
    server: Server, versions: dict[str, str], app: str
) -> None:
    server.install(**versions)
    running = server.start(
        Served("jupyter"),
        *("jupyter", "lab", "--LabApp.x=1"),
        JPY_PARENT_PID="7",
        JUPYTER_TOKEN="mine",
        JUPYTER_PORT="9999",
    )
    server.wait_for(server.said)
    said = json.loads(server.said.read_text())
    assert stat.S_IMODE(server.folder.stat().st_mode) == 0o700
    config = server.folder / "config/jupyter_server_config.json"
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    arguments = said["arguments"]
    assert f"--{app}.sock={server.folder}/socket" in arguments
    assert "--KernelManager.transport=ipc" in arguments
    assert arguments[0] == "lab"
    assert arguments[-1] == "--LabApp.x=1"

    token = said["config"][app]["token"]
    assert said["config"]["IdentityProvider"]["token"] == token
    assert len(token) == 48
    assert (server.folder / "page").read_text() == f"jupyter /lab?token={token}\n"
    # The token is neither in an argument nor in a variable, which every kernel would inherit.
    assert not any(token in word for word in (*arguments, *said["environment"].values()))
    assert not {"JPY_PARENT_PID", "JUPYTER_TOKEN", "JUPYTER_PORT"} & set(said["environment"])
    # debugpy would listen on a port that everybody on the node can use.
    imported = subprocess.run(
        [sys.executable, "-c", "import debugpy"],
        env=said["environment"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "hpcstack: debugpy is open to others" in imported.stderr

    running.terminate()
    assert running.wait(20) == 143
    assert not server.folder.exists()


def test_a_signal_ends_the_program_and_its_folder(server: Server) -> None:
    server.install_jupyterlab()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        server.said.unlink(missing_ok=True)
        running = server.start(Served("jupyter"), "jupyter", "lab")
        server.wait_for(server.said)
        running.send_signal(number)
        assert running.wait(20) == 143
        assert not server.folder.exists()


def test_what_a_killed_job_has_left_is_in_nobodys_way(server: Server) -> None:
    server.install_jupyterlab()
    server.folder.mkdir()
    (server.folder / "page").write_text("old")
    running = server.start(Served("jupyter"), "jupyter", "lab")
    server.wait_for(server.said)
    assert (server.folder / "page").read_text() != "old"
    running.terminate()
    running.wait(20)


def test_a_folder_of_somebody_else_is_not_used(server: Server) -> None:
    if os.geteuid():
        pytest.skip("needs root, to make a folder another user's")
    server.folder.mkdir()
    os.chown(server.folder, 65534, 65534)
    running = server.start(Served("jupyter"), "jupyter", "lab")
    _, said = running.communicate(timeout=20)
    assert running.returncode == 1
    assert f"{server.folder} cannot be made: File exists" in said


def test_a_link_in_its_place_is_neither_followed_nor_emptied(
    server: Server, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "file").write_text("kept")
    server.folder.symlink_to(mine)
    running = server.start(Served("jupyter"), "jupyter", "lab")
    running.communicate(timeout=20)
    assert running.returncode == 1
    assert (mine / "file").read_text() == "kept"
    server.folder.unlink()


@pytest.mark.parametrize(
    ("versions", "says"),
    [
        ({"jupyterlab": "2.3.2", "notebook": "6.0.3"}, "needs notebook 6.1 or newer"),
        ({"jupyterlab": "3.0.0", "jupyter_server": "1.6.4"}, "needs jupyter-server 1.7 or newer"),
    ],
)
def test_what_would_listen_on_a_port_does_not_start(
    server: Server, versions: dict[str, str], says: str
) -> None:
    server.install(**versions)
    running = server.start(Served("jupyter"), "jupyter", "lab")
    _, said = running.communicate(timeout=20)
    assert (running.returncode, server.said.exists()) == (127, False)
    assert says in said


def test_a_home_that_cannot_be_written_stays_the_home(server: Server) -> None:
    """What a notebook writes there fails, and is not lost with the folder."""
    server.install_jupyterlab()
    running = server.start(Served("jupyter"), "jupyter", "lab", HOME="/proc/1")
    server.wait_for(server.said)
    environ = json.loads(server.said.read_text())["environment"]
    assert environ["HOME"] == "/proc/1"
    assert environ["JUPYTER_DATA_DIR"].startswith(str(server.folder))
    running.terminate()
    running.wait(20)


def test_a_program_that_is_not_there(server: Server) -> None:
    running = server.start(Served("jupyter"), "jupyter", "lab")
    _, said = running.communicate(timeout=20)
    assert running.returncode == 127
    assert "hpcstack: jupyter:" in said
    assert not server.folder.exists()


def test_a_kernel_gets_its_connection_by_a_file(server: Server, tmp_path: Path) -> None:
    shows = 'cat "$3"; env | grep -c HPCSTACK_KERNEL_KEY; ps -o pgid= $$; echo $$; stat -c %a "$3"'
    name = f"/tmp/hpcstack-kernel-{server.job}"
    _, *words = wrap_served(Served("kernel", name), ("sh", "-c", shows, "kernel", "-m"))
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "HPCSTACK_KERNEL_KEY": '{"key": "k"}', "HPCSTACK_SERVED": name},
        capture_output=True,
        text=True,
        check=False,
    )
    shown, count, group, process, mode = done.stdout.replace("}", "}\n").split()[-5:]
    assert done.stdout.startswith('{"key": "k"}')
    assert shown
    assert count == "0"
    assert group == process  # it leads its group, so it interrupts what a cell has started
    assert mode == "600"
    assert not Path(name).exists()


def test_one_task_and_no_debugger() -> None:
    one = LaunchRequest(("jupyter", "lab"), Resources(), serves=Served("jupyter"))
    check_served(one)
    for wrong in (
        replace(one, resources=Resources(nodes=2)),
        replace(one, resources=Resources(ntasks=3)),
        replace(one, debug=0),
    ):
        with pytest.raises(InputError, match=PAGES["jupyter"].name):
            check_served(wrong)
    with pytest.raises(InputError, match="a kernel runs as one task"):
        check_served(replace(one, serves=Served("kernel", "x"), resources=Resources(nodes=2)))
