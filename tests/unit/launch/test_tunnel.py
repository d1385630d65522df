"""The way to a page of a job: the line to type, its socket, and what a container may say."""

from __future__ import annotations

import os
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
from hpcstack.launch.stacks import RunningJob
from hpcstack.launch.tunnel import (
    OpenPage,
    find_socket,
    hold_tunnel,
    make_tunnel_line,
    wait_for_ranks,
)

JOB = RunningJob("7", "", "a test's")
RANK = EnterableRank("0", "node1", by_namespace=True, process="123")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is first on PATH; squeue there says that job 7 runs, and ssh-keygen is real."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write_tool(folder, "squeue", 'echo "7|7|RUNNING|1|debug|me|None"')
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
    socket = find_socket("7")
    line = make_tunnel_line("7", 8888, ["/opt/hpcstack/bin/hpcstack", "tunnel", "7"])
    words = line.split()
    assert words[:3] == ["ssh", "-L", f"8888:{socket}"]
    assert words[4:] == ["/opt/hpcstack/bin/hpcstack", "tunnel", "7"]
    assert socket.parent.stat().st_mode & 0o777 == 0o700

    odd = make_tunnel_line("7", 8888, ["/opt/my tools/hpcstack", "tunnel", "7"])
    assert odd.endswith("\"'/opt/my tools/hpcstack' tunnel 7\"") or "'\"'\"'" in odd


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
    there = "/proc/123/root/tmp/hpcstack-page-7/socket"
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
    write_tool(tools, "ssh", "echo 'bind [127.0.0.1]:8899: Address already in use' >&2; exit 255")
    with pytest.raises(SlurmError, match="Address already in use") as caught:
        hold([], port=8899)
    assert "--port" in str(caught.value.hint)


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
        "job, rank = RunningJob('7', '', ''), EnterableRank('0', 'node1', True, '1')\n"
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
    state.write_text("7|7|PENDING|1|debug|me|Priority\n")
    write_tool(tools, "squeue", f"cat {state}")
    write_tool(tools, "srun", "echo '0: hpcstack: rank 0 on node3: namespace 42'")
    said: list[str] = []

    def start() -> None:
        time.sleep(0.5)
        part = tmp_path / "part"
        part.write_text("7|7|RUNNING|1|debug|me|None\n")
        part.rename(state)

    starter = threading.Thread(target=start)
    starter.start()
    rank = wait_for_ranks(JOB, Runner(), said.append)  # type: ignore[arg-type]
    starter.join()
    assert rank == EnterableRank("0", "node3", by_namespace=True, process="42")
    assert said == ["job 7 waits: Priority"]


def test_a_job_that_is_over_is_not_waited_for(tools: Path) -> None:
    write_tool(tools, "squeue", 'echo "7|7|COMPLETED|1|debug|me|None"')
    with pytest.raises(SlurmError, match="does not run any more") as caught:
        wait_for_ranks(JOB, Runner(), print)  # type: ignore[arg-type]
    assert caught.value.hint == "hpcstack logs 7"
