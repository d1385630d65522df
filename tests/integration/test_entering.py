"""Into a running job: a shell in the very container of a rank, and SSH, under every runtime."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.launching import RUNTIMES, STACK
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.jobs, pytest.mark.slurm]
WAIT = """\
import os, time
secret = os.environ.get("MY_TOKEN", "")
print("up", os.environ.get("RANK"), flush=True)
time.sleep(600)
"""
TOP = "tests/entering"


class Job:
    """A running launch of two ranks on two nodes, by default without a launcher of torch's."""

    def __init__(self, testbed: Testbed, runtime: str, mode: str = "task-per-gpu") -> None:
        self.testbed = testbed
        self.runtime = runtime
        self.state = f"export XDG_STATE_HOME=$HOME/{TOP}/state-{runtime}; cd {TOP}; "
        testbed.give(f"{TOP}/wait.py", WAIT)
        started = self.bash(
            f"export MY_TOKEN=s3cret MULTI=$'one\\ntwo' QUOTED=\"it's\"; hpcstack launch {STACK} --batch -N2 "
            f"--nproc-per-node 1 --mode {mode} --runtime {runtime} --mount $PWD:/opt/mine --json -- wait.py"
        )
        assert started.returncode == 0, started.stderr
        document = json.loads(started.stdout)
        self.number, self.output = str(document["job"]), document["output"]
        self.wait_for_ranks()

    def wait_for_ranks(self) -> None:
        for _ in range(600):
            if self.bash(f"grep -c '^up ' {self.output}").stdout.strip() == "2":
                return
            time.sleep(0.2)
        raise AssertionError(self.bash(f"cat {self.output}").stdout)

    def bash(self, script: str) -> subprocess.CompletedProcess[str]:
        return self.testbed.bash(self.state + script, check=False)

    def enter(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.bash(f"timeout 120 hpcstack enter {self.number} {' '.join(words)}")

    def end(self) -> None:
        self.bash(f"scancel {self.number}")
        for _ in range(100):
            if not self.bash(f"squeue -h -j {self.number} 2>/dev/null").stdout.strip():
                return
            time.sleep(0.2)


@pytest.fixture(params=RUNTIMES)
def job(testbed: Testbed, built: dict[str, Any], request: pytest.FixtureRequest) -> Iterator[Job]:
    started = Job(testbed, request.param)
    yield started
    started.end()


@pytest.fixture(params=RUNTIMES)
def job_of_torchrun(
    testbed: Testbed, built: dict[str, Any], request: pytest.FixtureRequest
) -> Iterator[Job]:
    started = Job(testbed, request.param, "torchrun")
    yield started
    started.end()


LOOK = """\
import json, os, pwd
print(json.dumps({"rank": os.environ["RANK"], "token": os.environ["MY_TOKEN"], "multi": os.environ["MULTI"],
  "quoted": os.environ["QUOTED"], "cwd": os.getcwd(), "uid": os.getuid(), "mine": os.listdir("/opt/mine"),
  "library": os.environ.get("LD_LIBRARY_PATH", ""), "cuda": os.environ.get("CUDA_VERSION")}))
"""


def test_a_command_runs_where_the_rank_runs(job_of_torchrun: Job) -> None:
    job = job_of_torchrun
    job.testbed.give(f"{TOP}/look.py", LOOK)
    seen = {}
    for rank in ("0", "1"):
        done = job.enter("--rank", rank, "--", "python3", "/opt/mine/look.py")
        assert done.returncode == 0, done.stderr
        seen[rank] = json.loads(done.stdout)
    for rank, found in seen.items():
        assert found["rank"] == rank
        assert (found["token"], found["quoted"]) == ("s3cret", "it's")
        if job.runtime != "enroot":  # it hands on the first line of a variable
            assert found["multi"] == "one\ntwo"
        assert found["cwd"].endswith(TOP)
        assert "wait.py" in found["mine"]
        assert found["uid"] > 0
        assert found["cuda"]

    told = job.enter("--", "sh", "-c", "'exit 7'")
    assert told.returncode == 7
    namespaces = job.enter("--rank", "0", "--", "readlink", "/proc/self/ns/mnt").stdout
    again = job.enter("--rank", "0", "--", "readlink", "/proc/self/ns/mnt").stdout
    assert namespaces == again
    assert "argument" not in job.enter("--", "true").stderr


def test_ssh_scp_sftp_and_a_forwarded_port(job: Job) -> None:
    config = job.bash(f"hpcstack enter {job.number} --ssh-config >config; cat config")
    assert config.returncode == 0, config.stderr
    name = f"hpcstack-{job.number}"
    ssh = f"timeout 120 ssh -F config -o BatchMode=yes {name}"
    said = job.bash(
        f"{ssh} 'echo $RANK $MY_TOKEN; python3 -c \"import torch; print(torch.__version__)\"; exit 5'"
    )
    assert said.returncode == 5, said.stderr
    assert said.stdout.splitlines()[0] == "0 s3cret"
    assert said.stdout.splitlines()[1].startswith("2.6")

    data = job.bash(
        f"head -c 3000000 /dev/urandom >blob; scp -q -F config blob {name}:/tmp/hpcstack-blob-{job.number} && "
        f"{ssh} sha256sum </dev/null /tmp/hpcstack-blob-{job.number} | cut -c1-64; sha256sum blob | cut -c1-64; "
        f"echo 'ls /opt/mine' | sftp -q -b - -F config {name}; {ssh} rm -f /tmp/hpcstack-blob-{job.number}"
    )
    there, here, *listed = data.stdout.splitlines()
    assert there == here, data.stderr
    assert any("wait.py" in line for line in listed), data.stdout

    piped = job.bash(f"head -c 20000000 /dev/zero | {ssh} cat | wc -c")
    assert piped.stdout.strip() == "20000000", piped.stderr

    job.testbed.give(f"{TOP}/serve.py", SERVE)
    inner, outer = (f"{start}{int(job.number) % 1000:03}" for start in (18, 19))
    forwarded = job.bash(
        f"ssh -n -F config -o BatchMode=yes {name} python3 /opt/mine/serve.py {inner} & s=$!; "
        f"ssh -n -F config -o BatchMode=yes -N -L {outer}:127.0.0.1:{inner} {name} & p=$!; "
        "for i in $(seq 120); do sleep 0.5; "
        f"said=$(exec 3<>/dev/tcp/127.0.0.1/{outer} && cat <&3) 2>/dev/null; "
        '[ -z "$said" ] || break; done; echo "$said"; kill $p; wait $s'
    )
    assert "in the container 2.6" in forwarded.stdout, forwarded.stderr


SERVE = """\
import socket, sys, torch
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
server.settimeout(30)
client, _ = server.accept()
client.sendall(f"in the container {torch.__version__}".encode())
client.close()
"""


def test_nothing_is_left_of_it(testbed: Testbed, built: dict[str, Any]) -> None:
    """The job ends while a shell and an SSH server are in it: their processes and folders go."""
    job = Job(testbed, "apptainer")
    job.bash(f"hpcstack enter {job.number} --ssh-config >config-left")
    shell = job.bash(
        f"hpcstack enter {job.number} -- sleep 4711 & "
        f"ssh -F config-left -o BatchMode=yes hpcstack-{job.number} sleep 4711 & "
        f"for i in $(seq 300); do sleep 0.2; [ $(pgrep -fc '^sleep 4711') = 2 ] && break; done; "
        f"pgrep -fc '^sleep 4711'; scancel {job.number}; wait; for i in $(seq 100); do sleep 0.2; pgrep -f '^sleep 4711' >/dev/null || break; done; pgrep -fc '^sleep 4711'; "
        "ls -d /tmp/hpcstack-ssh.* 2>/dev/null; pgrep -fa '[s]shd -i'"
    )
    assert shell.stdout.split() == ["2", "0"], shell.stderr
    job.end()
    other = Job(testbed, "apptainer")
    try:
        other.bash(f"hpcstack enter {other.number} --ssh-config")
        assert other.bash("ls $XDG_STATE_HOME/hpcstack/enter/*").stdout.split() == [other.number]
    finally:
        other.end()


def test_what_cannot_be_entered_is_said(testbed: Testbed, built: dict[str, Any]) -> None:
    job = Job(testbed, "apptainer")
    try:
        no_rank = job.enter("--rank", "7")
        assert no_rank.returncode == 2
        assert "it has rank 0 on node" in no_rank.stderr
        assert ", 1 on node" in no_rank.stderr
    finally:
        job.end()
    gone = job.enter()
    assert gone.returncode == 6
    assert "TIP" in gone.stderr


ASK = """\
import json, subprocess, sys
def frame(message):
    text = json.dumps({"jsonrpc": "2.0", **message})
    return f"Content-Length: {len(text)}\\r\\n\\r\\n{text}".encode()

server = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def ask(number, method, parameters):
    server.stdin.write(frame({"id": number, "method": method, "params": parameters}))
    server.stdin.flush()
    while True:
        length = 0
        for line in iter(server.stdout.readline, b"\\r\\n"):
            name, _, value = line.decode().partition(":")
            length = int(value) if name == "Content-Length" else length
        said = json.loads(server.stdout.read(length))
        if said.get("id") == number:
            return said["result"]

able = ask(1, "initialize", {"processId": None, "rootUri": None, "capabilities": {}})
server.stdin.write(frame({"method": "initialized", "params": {}}))
text = "import torch\\ntorch.__ver"
document = {"uri": "file:///tmp/x.py", "languageId": "python", "version": 1, "text": text}
server.stdin.write(frame({"method": "textDocument/didOpen", "params": {"textDocument": document}}))
found = ask(2, "textDocument/completion",
            {"textDocument": {"uri": document["uri"]}, "position": {"line": 1, "character": 11}})
print(able["serverInfo"]["name"], [one["insertText"] for one in found["items"]])
ask(3, "shutdown", None)
server.stdin.write(frame({"method": "exit"}))
server.stdin.close()
print("ended", server.wait(30))
"""


@pytest.mark.apptainer
def test_a_language_server_over_ssh(testbed: Testbed, built: dict[str, Any]) -> None:
    """As an editor's remote side starts one: it knows the image's own torch."""
    testbed.give(f"{TOP}/wait.py", WAIT)
    testbed.give(f"{TOP}/ask.py", ASK)
    enter = f"export XDG_STATE_HOME=$HOME/{TOP}/state-lsp; cd {TOP}; "
    job = testbed.bash(
        f"{enter}hpcstack launch {STACK} --batch --mode plain --runtime apptainer "
        "--with python-lsp-server -- wait.py"
    ).stdout.strip()
    try:
        for _ in range(300):
            config = testbed.bash(f"{enter}hpcstack enter {job} --ssh-config >lsp", check=False)
            if config.returncode == 0:
                break
            time.sleep(0.3)
        ssh = f"ssh -F lsp -o BatchMode=yes hpcstack-{job} python3 -m pylsp"
        said = testbed.bash(f"{enter}timeout 100 python3 ask.py {ssh}", check=False)
        assert "pylsp" in said.stdout, said.stderr
        assert "__version__" in said.stdout
        assert "ended 0" in said.stdout
    finally:
        testbed.run("scancel", job)
