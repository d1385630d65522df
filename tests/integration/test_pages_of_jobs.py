"""JupyterLab and TensorBoard as jobs, reached through a tunnel, under every runtime.

A notebook's cell is run by Jupyter's own protocol, and by a person's way in a browser.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import websocket

from support.launching import RUNTIMES, STACK
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.jobs, pytest.mark.slurm]
TOP = "tests/pages"
WHERE = "import os, torch; print(torch.__version__, os.environ['SLURM_JOB_ID'], os.getcwd())"


class PageJob:
    """A job that serves a page, and a tunnel to it on a port of this machine."""

    def __init__(self, testbed: Testbed, runtime: str, *words: str, before: str = "") -> None:
        self.testbed = testbed
        self.name = f"{words[0]}-{runtime}"
        # One data folder for all: JupyterLab is installed once.
        self.enter = (
            f"mkdir -p ~/{TOP}/{self.name}; cd ~/{TOP}/{self.name}; "
            f"export XDG_STATE_HOME=$PWD/state XDG_DATA_HOME=$HOME/{TOP}/share; "
        )
        line = f"hpcstack {' '.join(words)} {STACK} --runtime {runtime} --json"
        started = self.bash(before + line)
        assert started.returncode == 0, started.stderr
        self.about: dict[str, Any] = json.loads(started.stdout)
        self.number = str(self.about["job"])
        self.tunnels: list[subprocess.Popen[str]] = []

    def bash(self, script: str) -> subprocess.CompletedProcess[str]:
        return self.testbed.bash(self.enter + script, check=False)

    def start(self, script: str) -> subprocess.Popen[str]:
        """SCRIPT as the user, beside the test."""
        command = [str(Path("ci/testbed").resolve()), "exec", "bash", "-c", self.enter + script]
        one = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )
        self.tunnels.append(one)
        return one

    def open_tunnel(self) -> str:
        """The address that `hpcstack tunnel` prints."""
        self.port = 21000 + int(self.number) % 8000
        self.tunnel = self.start(f"exec hpcstack tunnel {self.number} --port {self.port}")
        assert self.tunnel.stdout
        address = self.tunnel.stdout.readline().strip()
        if not address:
            assert self.tunnel.stderr
            raise AssertionError(self.tunnel.stderr.read() + self.log())
        return address

    def log(self) -> str:
        return self.bash(f"cat {self.about['output']}").stdout

    def find_processes(self, pattern: str) -> list[str]:
        """The user's processes whose command line PATTERN fits."""
        lines = self.testbed.bash("ps -u $(id -u) -o args").stdout.splitlines()
        return [line for line in lines if re.search(pattern, line)]

    def find_state(self) -> str:
        return self.bash(f"squeue -h -j {self.number} -o %T").stdout.strip()

    def interrupt_tunnel(self, words: str = "") -> str:
        """What the tunnel, which was started with WORDS, says at Ctrl-C."""
        subprocess.run(
            ["pkill", "-INT", "-f", f"^[^ ]*python[^ ]* [^ ]*hpcstack tunnel {self.number}{words}"],
            check=True,
        )
        return self.tunnel.communicate(timeout=30)[1]

    def end(self) -> None:
        self.bash(f"scancel {self.number}")
        for one in self.tunnels:
            one.kill()
            one.communicate()
        wait_until(lambda: not self.bash(f"squeue -h -j {self.number} 2>/dev/null").stdout.strip())


def wait_until(holds: Callable[[], bool], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.2)


@pytest.fixture
def start(testbed: Testbed, built: dict[str, Any]) -> Iterator[Callable[..., PageJob]]:
    started: list[PageJob] = []

    def call(runtime: str, *words: str) -> PageJob:
        started.append(PageJob(testbed, runtime, *words))
        return started[-1]

    yield call
    for one in started:
        one.end()


def ask(address: str, path: str, body: object = None) -> Any:
    """What Jupyter at ADDRESS, which ends in the token, answers about PATH of its API."""
    base, _, query = address.partition("/lab")
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(
        urllib.request.Request(f"{base}/api/{path}{query}", data), timeout=30
    ) as answer:
        return json.load(answer)


def run_cell(address: str, code: str) -> str:
    """What a new kernel of the Jupyter at ADDRESS prints for CODE."""
    kernel = ask(address, "kernels", {"name": "python3"})["id"]
    base, _, query = address.removeprefix("http").partition("/lab")
    stream = websocket.create_connection(f"ws{base}/api/kernels/{kernel}/channels{query}")
    message = {
        "header": {
            "msg_id": "1",
            "msg_type": "execute_request",
            "username": "",
            "session": uuid.uuid4().hex,
            "version": "5.3",
        },
        "parent_header": {},
        "metadata": {},
        "channel": "shell",
        "content": {"code": code, "silent": False, "allow_stdin": False},
    }
    stream.send(json.dumps(message))
    stream.settimeout(60)
    printed = ""
    while True:
        came = json.loads(stream.recv())
        if came["parent_header"].get("msg_id") != "1":
            continue
        if came["msg_type"] == "stream":
            printed += came["content"]["text"]
        if came["msg_type"] == "error":
            printed += came["content"]["evalue"]
        is_idle = came["msg_type"] == "status" and came["content"]["execution_state"] == "idle"
        if is_idle:
            stream.close()
            return printed


def list_listening(pattern: str) -> dict[str, list[str]]:
    """{process: ports} of what listens by TCP, of processes whose command line PATTERN fits."""
    found: dict[str, list[str]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes().decode().replace("\0", " ")
            if re.search(pattern, command):
                inodes = {}
                for table in (
                    "tcp",
                    "tcp6",
                ):  # as the process sees them: nodes have networks of their own
                    for line in (folder / "net" / table).read_text().splitlines()[1:]:
                        fields = line.split()
                        if fields[3] == "0A":
                            inodes[f"socket:[{fields[9]}]"] = fields[1]
                links = [str(one.readlink()) for one in (folder / "fd").iterdir()]
                found[folder.name] = [inodes[link] for link in links if link in inodes]
    return found


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_cell_of_a_notebook_runs_on_the_node(
    testbed: Testbed, start: Callable[..., PageJob], runtime: str
) -> None:
    job = start(runtime, "jupyter")
    address = job.open_tunnel()
    assert re.fullmatch(rf"http://localhost:{job.port}/lab\?token=[0-9a-f]{{48}}", address)
    assert job.number in run_cell(address, WHERE)
    version, number, folder = run_cell(address, WHERE).split()
    assert version.startswith("2.6")
    assert number == job.number
    assert folder.endswith(job.name)

    # Jupyter does not listen on the network, where others of the node could ask. A kernel takes what
    # its own programs print on one port, by a secret; its debugger would listen on more.
    server = list_listening(r"jupyter-lab .*hpcstack-page-")
    assert server
    assert set(map(len, server.values())) == {0}
    kernels = list_listening(r"ipykernel_launcher .*hpcstack-page-")
    assert set(map(len, kernels.values())) == {1}
    assert "hpcstack: debugpy is open to others" in run_cell(address, "import debugpy")
    token = address.partition("=")[2]
    everywhere = job.bash(
        f"cat {job.about['output']} $(find state -type f); ps -eo args; scontrol show job {job.number}; "
        f"scontrol write batch_script {job.number} -"
    ).stdout
    assert "hpcstack" in everywhere
    assert token not in everywhere
    with pytest.raises(urllib.error.HTTPError, match="403"):
        ask(address.replace(token, "x" * 48), "kernels")

    # A socket of another user's name would have to be opened by its user.
    socket = job.about["socket"]
    refused = subprocess.run(
        [
            "setpriv",
            "--reuid=65534",
            "--clear-groups",
            "curl",
            "--unix-socket",
            socket,
            "http://x/",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 7

    # The tunnel goes, the job stays; then the job goes, and nothing is left.
    assert "still runs" in job.interrupt_tunnel()
    assert job.bash(f"ls {socket}").returncode
    assert job.find_state() == "RUNNING"
    job.bash(f"hpcstack cancel {job.number}")
    wait_until(lambda: not job.find_processes(f"page-{job.number}-|--ssh {job.number}"))
    left = testbed.bash("find /tmp -maxdepth 1 -name 'hpcstack-page-*'", check=False)
    assert f"hpcstack-page-{job.number}-" not in left.stdout


SSHD = """\
HostKey {here}/host_key
AuthorizedKeysFile {here}/key.pub
StrictModes no
PidFile none
"""


@pytest.mark.apptainer
def test_the_printed_line_is_typed_on_another_machine(start: Callable[..., PageJob]) -> None:
    """The laptop is an ssh of the user's own, whose login node is this machine's sshd."""
    job = start("apptainer", "jupyter")
    port = 21000 + int(job.number) % 8000
    line = job.about["tunnel"]
    assert line.startswith(f"ssh -L 8888:{job.about['socket']} ")
    host = line.split()[3].partition("@")[2]
    job.bash(
        "rm -f key* host_key*; ssh-keygen -q -t ed25519 -N '' -f key; ssh-keygen -q -t ed25519 -N '' -f host_key"
    )
    here = job.bash("pwd").stdout.strip()
    job.testbed.give(f"{TOP}/{job.name}/sshd_config", SSHD.format(here=here))
    config = (
        f"Host {host}\n  ProxyCommand /usr/sbin/sshd -i -f {here}/sshd_config\n  IdentityFile {here}/key\n"
        "  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
    )
    job.testbed.give(f"{TOP}/{job.name}/config", config)
    # A command of ssh's has nothing of this session's variables.
    typed = line.replace("ssh -L 8888:", f"ssh -F config -L {port}:", 1)
    laptop = job.start(f"exec env -i HOME=$HOME PATH=/usr/bin:/bin {typed}")
    assert laptop.stdout
    address = laptop.stdout.readline().strip()
    assert address.startswith("http://localhost:8888/lab?token="), laptop.communicate()[1]
    version = ask(address.replace("8888", str(port)), "status")
    assert version["kernels"] == 0

    # The laptop is shut: what it has started on the login node ends by itself.
    subprocess.run(["pkill", "-KILL", "-f", f"ssh -F config -L {port}"], check=True)
    wait_until(lambda: not job.find_processes(f"hpcstack tunnel {job.number}"))
    wait_until(lambda: not job.find_processes(f"enter --ssh {job.number}"))
    assert job.bash(f"ls {job.about['socket']}").returncode
    assert job.find_state() == "RUNNING"


@pytest.mark.apptainer
def test_a_killed_tunnel_leaves_nothing_and_the_next_one_works(
    start: Callable[..., PageJob],
) -> None:
    job = start("apptainer", "jupyter")
    job.open_tunnel()
    subprocess.run(["pkill", "-KILL", "-f", f"hpcstack tunnel {job.number}"], check=True)
    job.tunnel.communicate()
    wait_until(lambda: not job.find_processes(f"enter --ssh {job.number}"))
    again = job.open_tunnel()
    assert ask(again, "status")["kernels"] == 0

    # A second tunnel beside it, to a port that the first one has
    other = job.bash(f"timeout 60 hpcstack tunnel {job.number} --port {job.port}")
    assert other.returncode == 2
    assert f"--port {job.port}: Address already in use" in other.stderr
    assert ask(again, "status")["kernels"] == 0  # the first one is as it was
    # A second one to the same socket takes over, and the first does not take that away at its end.
    second = job.start(f"exec hpcstack tunnel {job.number}")
    assert second.stdout
    newer = second.stdout.readline().strip()
    job.interrupt_tunnel(f" --port {job.port}")
    reached = job.bash(
        f"curl -s --unix-socket {job.about['socket']} '{newer}' -o /dev/null -w '%{{http_code}}'"
    )
    assert reached.stdout == "200"


@pytest.mark.apptainer
@pytest.mark.soak(
    "another JupyterLab",
    kept="tests/integration/test_pages_of_jobs.py::test_a_cell_of_a_notebook_runs_on_the_node",
)
def test_a_requeued_job_serves_again(testbed: Testbed, start: Callable[..., PageJob]) -> None:
    job = start("apptainer", "jupyter")
    first = job.open_tunnel()
    job.tunnel.kill()
    job.bash(f"scontrol requeue {job.number}")
    # Slurm lets it wait for two minutes, which is not what is tested.
    wait_until(lambda: job.find_state() == "PENDING", 60)

    def is_started() -> bool:
        job.bash(f"scontrol update JobId={job.number} StartTime=now")
        return job.find_state() == "RUNNING"

    wait_until(is_started, 60)
    again = job.open_tunnel()
    assert ask(again, "status")["kernels"] == 0
    assert again != first


CONFIG = """\
c.ServerApp.port = 9999
c.ServerApp.token = "mine"
c.ServerApp.ip = "0.0.0.0"
c.ServerApp.certfile = "/no/such/file"
c.IdentityProvider.token = "mine"
"""


@pytest.mark.apptainer
@pytest.mark.soak(
    "another JupyterLab",
    kept="tests/integration/test_pages_of_jobs.py::test_a_cell_of_a_notebook_runs_on_the_node",
)
def test_a_users_own_settings_of_a_server_on_a_port_are_no_obstacle(
    testbed: Testbed, built: dict[str, Any]
) -> None:
    top = f"$HOME/{TOP}/jupyter-apptainer"
    testbed.give(f"{TOP}/jupyter-apptainer/own/jupyter_lab_config.py", CONFIG)
    testbed.bash(f"cp {top}/own/jupyter_lab_config.py {top}/own/jupyter_server_config.py")
    job = PageJob(
        testbed,
        "apptainer",
        "jupyter",
        before=f"export JUPYTER_CONFIG_DIR={top}/own JUPYTER_TOKEN=mine JUPYTER_PORT=7777; ",
    )
    try:
        address = job.open_tunnel()
        assert ask(address, "status")["kernels"] == 0
    finally:
        job.end()


@pytest.mark.apptainer
def test_a_job_that_fails_is_told(start: Callable[..., PageJob]) -> None:
    job = start("apptainer", "jupyter")
    job.bash(f"scancel {job.number}")
    said = job.bash(f"timeout 100 hpcstack tunnel {job.number}")
    assert said.returncode == 6
    assert f"hpcstack logs {job.number}" in said.stderr


@pytest.mark.apptainer
def test_more_than_one_task_is_refused(testbed: Testbed, built: dict[str, Any]) -> None:
    said = testbed.run("hpcstack", "jupyter", STACK, "-N", "2", "--runtime", "apptainer")
    assert said.returncode == 2
    assert "JupyterLab runs as one task" in said.stderr
    for option in ("--check", "--template ddp"):
        asked = testbed.run("hpcstack", "jupyter", STACK, *option.split())
        assert asked.returncode == 2
        assert "is for hpcstack launch" in asked.stderr
    shown = testbed.run("hpcstack", "jupyter", STACK, "--dry-run", "--json")
    assert json.loads(shown.stdout)["mode"] == "plain", shown.stderr


@pytest.mark.apptainer
@pytest.mark.soak(
    "another JupyterLab",
    kept="tests/integration/test_pages_of_jobs.py::test_a_cell_of_a_notebook_runs_on_the_node",
)
def test_without_slurm_it_runs_here(testbed: Testbed, start: Callable[..., PageJob]) -> None:
    enter = f"cd ~/{TOP} && export XDG_DATA_HOME=$PWD/share XDG_STATE_HOME=$PWD/state; "
    # It ends as soon as it has said where it is: on a busy machine that takes a while.
    said = testbed.bash(
        f"{enter} timeout 120 hpcstack jupyter {STACK} --runtime local -- --port 23456 "
        ">here.log 2>&1 & starts=$!; "
        "while kill -0 $starts && ! grep -q http://localhost:23456/lab here.log; do sleep 0.3; done; "
        "kill $starts; wait $starts; cat here.log",
        check=False,
    )
    assert "http://localhost:23456/lab" in said.stdout


EVENTS = """\
from tensorboard.summary import Writer
writer = Writer("runs/one")
for step in range(20):
    writer.add_scalar("loss", 1 / (step + 1), step)
writer.close()
"""


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_tensorboard_shows_a_folder(
    testbed: Testbed, start: Callable[..., PageJob], runtime: str
) -> None:
    testbed.give(f"{TOP}/events.py", EVENTS)
    enter = f"cd ~/{TOP} && export XDG_DATA_HOME=$PWD/share XDG_STATE_HOME=$PWD/state; "
    testbed.bash(
        f"{enter}[ -d runs ] || hpcstack launch {STACK} --runtime local --with tensorboard --mode plain -- events.py"
    )
    job = start(runtime, "tensorboard", f"~/{TOP}/runs")
    address = job.open_tunnel()
    with urllib.request.urlopen(f"{address}data/plugin/scalars/tags", timeout=30) as answer:
        assert "loss" in json.load(answer)["one"]
    server = list_listening(r"(?s)^python3 -u -c .* tensorboard tensorboard ")
    assert server
    assert set(map(len, server.values())) == {0}
    job.bash(f"hpcstack cancel {job.number}")
    assert f"job {job.number} has ended" in job.tunnel.communicate(timeout=60)[1]
    assert job.tunnel.returncode == 0


# -- in a browser


class Browser:
    """Headless Chromium, told what to do by its own protocol.

    https://chromedevtools.github.io/devtools-protocol/
    """

    def __init__(self, folder: Path) -> None:
        log = folder / "log"
        with log.open("w") as said:
            self.process = subprocess.Popen(
                [
                    *("chromium", "--headless", "--no-sandbox", "--disable-gpu"),
                    *("--remote-debugging-port=0", "--remote-allow-origins=*"),
                    f"--user-data-dir={folder / 'profile'}",
                    "about:blank",
                ],
                stdout=said,
                stderr=said,
                env={**os.environ, "HOME": str(folder), "no_proxy": "localhost,127.0.0.1"},
            )
        found = folder / "profile/DevToolsActivePort"
        wait_until(lambda: found.exists() and bool(found.read_text()), 60)
        port = found.read_text().splitlines()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=30) as answer:
            page = next(one for one in json.load(answer) if one["type"] == "page")
        self.stream = websocket.create_connection(page["webSocketDebuggerUrl"], timeout=120)
        self.count = 0

    def tell(self, method: str, **parameters: object) -> Any:
        self.count += 1
        self.stream.send(json.dumps({"id": self.count, "method": method, "params": parameters}))
        while True:
            came = json.loads(self.stream.recv())
            if came.get("id") == self.count:
                return came["result"]

    def run(self, script: str) -> Any:
        """The value of SCRIPT in the page; of a promise, what it comes to."""
        done = self.tell(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    started = Browser(tmp_path)
    yield started
    started.stream.close()
    started.process.terminate()
    started.process.wait(30)


NOTEBOOK = """\
(async () => {
    const commands = window.jupyterapp.commands;
    await window.jupyterapp.restored;
    const made = await commands.execute("notebook:create-new", {kernelName: "python3"});
    await made.sessionContext.ready;
    made.content.activeCell.model.sharedModel.setSource(CODE);
    await commands.execute("notebook:run-cell");
    return made.context.path;
})()
"""
SHOWN = "document.querySelector('.jp-OutputArea-output')?.innerText ?? ''"


@pytest.mark.chromium
@pytest.mark.apptainer
@pytest.mark.soak(
    "another JupyterLab",
    kept="tests/integration/test_pages_of_jobs.py::test_a_cell_of_a_notebook_runs_on_the_node",
)
def test_a_notebook_in_a_browser(
    start: Callable[..., PageJob], browser: Browser, tmp_path: Path
) -> None:
    job = start("apptainer", "jupyter")
    job.end()
    started = job.bash(
        f"hpcstack jupyter {STACK} --runtime apptainer --json -- --LabApp.expose_app_in_browser=True"
    )
    job.about = json.loads(started.stdout)
    job.number = str(job.about["job"])
    address = job.open_tunnel()
    browser.tell("Page.enable")
    browser.tell("Page.navigate", url=address)
    wait_until(lambda: bool(browser.run("!!window.jupyterapp")), 120)
    code = "import os, torch\nprint('on', torch.__version__, os.environ['SLURM_JOB_ID'])"
    name = browser.run(NOTEBOOK.replace("CODE", json.dumps(code)))
    wait_until(lambda: "on 2.6" in browser.run(SHOWN), 60)
    assert job.number in browser.run(SHOWN)
    assert name.endswith(".ipynb")


@pytest.mark.chromium
@pytest.mark.apptainer
@pytest.mark.soak(
    "another TensorBoard",
    kept="tests/integration/test_pages_of_jobs.py::test_tensorboard_shows_a_folder",
)
def test_tensorboard_in_a_browser(
    testbed: Testbed, start: Callable[..., PageJob], browser: Browser
) -> None:
    testbed.give(f"{TOP}/events.py", EVENTS)
    enter = f"cd ~/{TOP} && export XDG_DATA_HOME=$PWD/share XDG_STATE_HOME=$PWD/state; "
    testbed.bash(
        f"{enter}[ -d runs ] || hpcstack launch {STACK} --runtime local --with tensorboard --mode plain -- events.py"
    )
    job = start("apptainer", "tensorboard", f"~/{TOP}/runs")
    browser.tell("Page.enable")
    browser.tell("Page.navigate", url=job.open_tunnel())
    wait_until(lambda: "loss" in (browser.run("document.body?.innerText") or ""), 90)


@pytest.mark.apptainer
@pytest.mark.parametrize("nth", range(int(os.environ.get("HPCSTACK_TIMES", "1"))))
def test_a_job_that_is_killed_at_any_moment_leaves_nothing(
    start: Callable[..., PageJob], nth: int
) -> None:
    """By ci/soak (HPCSTACK_TIMES), at any moment and without a signal that its server could answer.

    Else while it serves. Slurm's proctrack/linuxproc may lose what serves the image by FUSE when
    Apptainer is killed while it starts, and other tests look for such processes.
    """
    job = start("apptainer", "jupyter")
    tunnel = job.start(f"exec hpcstack tunnel {job.number}")
    if "HPCSTACK_TIMES" in os.environ:
        delay = random.Random(nth).uniform(0, 5)
        job.bash(f"sleep {delay:.2f}; scancel -s KILL {job.number}; sleep 1")
    else:
        assert tunnel.stdout
        assert tunnel.stdout.readline()
    job.bash(f"scancel {job.number}")
    tunnel.communicate(timeout=60)
    wait_until(lambda: not job.find_processes(f"page-{job.number}-|--ssh {job.number}"))
    assert job.bash(f"ls -d /tmp/hpcstack-page-{job.number}-* {job.about['socket']}").stdout == ""
