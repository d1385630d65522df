"""The way to a page of a job: the line to type, its socket, and what a container may say."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcstack.core.errors import InputError, SlurmError
from hpcstack.core.process import Runner
from hpcstack.launch import tunnel
from hpcstack.launch.enter import EnterableRank
from hpcstack.launch.stacks import RunningJob, name_account
from hpcstack.launch.tunnel import (
    OpenPage,
    find_page_job,
    find_socket,
    hold_tunnel,
    make_tunnel_line,
    wait_for_rank,
)

ME = name_account(os.geteuid())
JOB = RunningJob("7", "", "a test's")
SERVED = "/tmp/hpcstack-page-7-0123456789ab"
RANK = EnterableRank("0", "node1", by_namespace=True, process="123", served=SERVED)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is first on PATH; squeue there says that job 7 runs, and ssh-keygen is real."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write_tool(folder, "squeue", f'echo "7|7|RUNNING|1|debug|{ME}|None"')
    write_tool(folder, "scontrol", "echo ClusterName = test")
    yield folder


def write_tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def hold(said: list[str], port: int = 0) -> tuple[bool, list[OpenPage]]:
    pages: list[OpenPage] = []
    runs = hold_tunnel(JOB, RANK, ["proxy"], port, Runner(), said.append, pages.append)
    return runs, pages


def test_the_line_leads_to_a_socket_of_the_users_own(tools: Path) -> None:
    """What a login has set and a command of ssh's has not is in the script that it starts."""
    socket = find_socket("7")
    environ = {"PATH": "/a dir/bin", "SLURM_CONF": "/etc/x", "MY_TOKEN": "secret"}
    line = make_tunnel_line("7", 8888, ["/opt/my tools/hpcstack", "tunnel", "7"], environ)
    assert line.split()[:3] == ["ssh", "-L", f"8888:{socket}"]
    assert line.split()[4:] == ["sh", f"{socket}.sh"]
    assert socket.parent.stat().st_mode & 0o777 == 0o700
    script = Path(f"{socket}.sh").read_text()
    assert script == (
        "export PATH='/a dir/bin'\nexport SLURM_CONF=/etc/x\n"
        "exec '/opt/my tools/hpcstack' tunnel 7\n"
    )


def test_a_path_that_no_socket_may_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ("x" * 100)))
    with pytest.raises(InputError, match="longer than the path of a socket"):
        find_socket("7")


def test_the_page_is_named_and_the_tunnel_held_until_it_ends(tools: Path) -> None:
    write_tool(tools, "ssh", 'echo "$@" >"$0.said"; echo "jupyter /lab?token=ab12"; sleep 1')
    said: list[str] = []
    runs, pages = hold(said, port=8899)
    assert runs
    assert pages == [OpenPage("JupyterLab", 8899, "http://localhost:8899/lab?token=ab12")]
    words = (tools / "ssh.said").read_text()
    there = f"/proc/123/root{SERVED}/socket"
    assert f"-L {find_socket('7')}:{there} -L 127.0.0.1:8899:{there} hpcstack-7" in words
    assert "StreamLocalBindMask=0177" in words
    assert not find_socket("7").exists()


def test_without_a_port_the_usual_one_is_named(tools: Path) -> None:
    write_tool(tools, "ssh", "echo tensorboard /")
    assert hold([])[1] == [OpenPage("TensorBoard", 6006, "http://localhost:6006/")]


@pytest.mark.parametrize(
    "said",
    [
        "jupyter http://evil.example/",
        "jupyter /lab\\033]0;x\\007",
        "kernel /",
        "",
        "jupyter " + "/" * 5000,
    ],
)
def test_what_a_container_says_is_no_address_of_another_place(tools: Path, said: str) -> None:
    write_tool(tools, "ssh", f"printf '{said}\\n'")
    with pytest.raises(SlurmError, match="what it says is no page"):
        hold([])


def test_ssh_says_why_there_is_no_way(tools: Path) -> None:
    said = "hpcstack: node1 has no sshd\\nkex_exchange_identification: Connection closed"
    write_tool(tools, "ssh", f"printf '{said}\\n' >&2; exit 255")
    with pytest.raises(SlurmError, match="node1 has no sshd") as caught:
        hold([])
    assert caught.value.hint == "hpcstack logs 7"


def test_a_tunnel_that_ends_before_its_page_answers_leaves_no_socket(tools: Path) -> None:
    path = find_socket("7")
    binds = "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])"
    write_tool(tools, "ssh", f'{sys.executable} -c "{binds}" {path}; exit 255')
    with pytest.raises(SlurmError):
        hold([])
    assert not path.exists()


def test_a_port_that_is_taken_is_refused_before_anything_starts(tools: Path) -> None:
    """ssh would have put its socket in the place of another tunnel's by then."""
    write_tool(tools, "ssh", 'touch "$0.started"; echo tensorboard /')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"--port {port}: Address already in use"):
            hold([], port=port)
    assert not (tools / "ssh.started").exists()


def test_the_socket_of_a_newer_tunnel_stays(tools: Path) -> None:
    """A laptop that slept: its old tunnel notices late that somebody has opened it anew."""
    path = find_socket("7")
    own = "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])"
    bind = f'rm -f {path}; {sys.executable} -c "{own}" {path}'
    write_tool(tools, "ssh", f"{bind}; echo tensorboard /; sleep 1; {bind}")
    assert hold([])[0] is True
    assert path.exists()
    write_tool(tools, "ssh", f"{bind}; echo tensorboard /; sleep 1")
    hold([])
    assert not path.exists()


@pytest.mark.parametrize("state", ["SUSPENDED", "COMPLETING", "REQUEUED", "SIGNALING"])
def test_a_job_in_between_has_not_ended(
    tools: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(tunnel, "COMPLETES_S", 0.6)
    write_tool(tools, "ssh", "echo tensorboard /; sleep 0.2; exit 255")
    write_tool(tools, "squeue", f'echo "7|7|{state}|1|debug|{ME}|None"')
    assert hold([])[0] is True


def test_a_job_of_somebody_else_is_not_waited_for(tools: Path) -> None:
    write_tool(tools, "squeue", 'echo "7|7|RUNNING|1|debug|somebody|None"')
    with pytest.raises(InputError, match="job 7 is somebody's"):
        wait_for_rank(JOB, Runner(), print)  # type: ignore[arg-type]


def test_a_job_that_lets_nobody_in_is_said(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "SLOW_S", 0.5)
    monkeypatch.setattr(tunnel, "LOOK_S", 0.1)
    write_tool(tools, "srun", "echo 'srun: error: no steps today' >&2; exit 1")
    with pytest.raises(SlurmError, match="no steps today"):
        wait_for_rank(JOB, Runner(), print)  # type: ignore[arg-type]


def test_which_job_is_meant(tools: Path, tmp_path: Path) -> None:
    def keep(name: str, job: str, serves: str) -> None:
        folder = tmp_path / f"state/hpcstack/launches/2026{name}"
        folder.mkdir(parents=True)
        about: dict[str, object] = dict.fromkeys(
            ("stack", "started", "runtime", "mode", "image_sha256"), ""
        )
        (folder / "launch.json").write_text(json.dumps({**about, "command": [], "serves": serves}))
        (folder / "began").write_text(f"{job}\n3\nnode1\n{job}\n")

    with pytest.raises(InputError, match="no launch here serves a page"):
        find_page_job("")
    keep("1", "11", "jupyter")
    keep("2", "12", "")
    keep("3", "13", "kernel")
    assert (find_page_job("").job, find_page_job("").step) == ("11", "3")
    assert find_page_job("11").step == "3"
    with pytest.raises(InputError, match="job 12 serves no page"):
        find_page_job("12")
    assert find_page_job("99").job == "99"  # of another machine's, perhaps


def test_a_job_that_has_ended_is_told_from_a_lost_connection(tools: Path) -> None:
    write_tool(tools, "ssh", "echo tensorboard /; sleep 0.5; exit 255")
    write_tool(tools, "squeue", "exit 0")
    assert hold([])[0] is False


def test_a_slow_page_is_said(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "SLOW_S", 0.1)
    monkeypatch.setattr(tunnel, "LOOK_S", 0.2)
    write_tool(tools, "ssh", "sleep 1; echo tensorboard /")
    said: list[str] = []
    hold(said)
    assert said == ["it has not answered yet; what it says: hpcstack logs 7"]


def test_it_ends_when_nobody_reads_what_it_prints(tools: Path) -> None:
    """As for a program on the far side of an ssh that was closed, which gets no signal."""
    write_tool(tools, "ssh", 'echo tensorboard /; echo $$ >"$0.pid"; exec sleep 60')
    program = (
        "import sys\n"
        "from hpcstack.core.process import Runner\n"
        "from hpcstack.launch.enter import EnterableRank\n"
        "from hpcstack.launch.stacks import RunningJob\n"
        "from hpcstack.launch.tunnel import hold_tunnel\n"
        "job, rank = RunningJob('7', '', ''), EnterableRank('0', 'node1', True, '1', '/tmp/x')\n"
        "print(hold_tunnel(job, rank, ['p'], 0, Runner(), print, lambda page: print(page.name, flush=True)),"
        " file=sys.stderr)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout
        assert running.stderr
        assert running.stdout.readline() == "TensorBoard\n"
        running.stdout.close()
        assert running.stderr.read().splitlines()[0] == "True"
        running.wait(20)
    process = int((tools / "ssh.pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_job_is_waited_for(tools: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tunnel, "LOOK_S", 0.1)
    state = tmp_path / "queue"
    state.write_text(f"7|7|PENDING|1|debug|{ME}|Priority\n")
    write_tool(tools, "squeue", f"cat {state}")
    write_tool(tools, "srun", f"echo '0: hpcstack: rank 0 on node3: namespace 42 {SERVED}'")
    said: list[str] = []

    def start() -> None:
        time.sleep(0.5)
        part = tmp_path / "part"
        part.write_text(f"7|7|RUNNING|1|debug|{ME}|None\n")
        part.rename(state)

    starter = threading.Thread(target=start)
    starter.start()
    rank = wait_for_rank(JOB, Runner(), said.append)  # type: ignore[arg-type]
    starter.join()
    assert rank == EnterableRank("0", "node3", by_namespace=True, process="42", served=SERVED)
    assert said == ["job 7 waits: Priority"]


def test_who_has_left_is_not_waited_for(tools: Path) -> None:
    """A laptop that was shut while the job still waited, and a kernel, whose output nobody reads."""
    write_tool(tools, "squeue", f'echo "7|7|PENDING|1|debug|{ME}|None"')
    program = (
        "import sys\n"
        "from hpcstack.core.process import Runner\n"
        "from hpcstack.core.progress import Progress\n"
        "from hpcstack.launch import tunnel\n"
        "from hpcstack.launch.stacks import RunningJob\n"
        "tunnel.LOOK_S = 0.1\n"
        "tunnel.wait_for_rank(RunningJob('7', '', ''), Runner(), Progress(), for_reader=sys.argv[1] == 'yes')\n"
    )

    def wait(for_reader: str, seconds: float) -> int | None:
        with subprocess.Popen(
            [sys.executable, "-c", program, for_reader],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as running:
            assert running.stdout
            running.stdout.close()
            try:
                return running.wait(seconds)
            except subprocess.TimeoutExpired:
                running.kill()
                return None

    assert wait("yes", 30) is not None
    assert wait("no", 3) is None


def test_a_job_that_is_over_is_not_waited_for(tools: Path) -> None:
    write_tool(tools, "squeue", f'echo "7|7|COMPLETED|1|debug|{ME}|None"')
    with pytest.raises(SlurmError, match="does not run any more") as caught:
        wait_for_rank(JOB, Runner(), print)  # type: ignore[arg-type]
    assert caught.value.hint == "hpcstack logs 7"
