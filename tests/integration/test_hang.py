"""A job that hangs: who is not where the others are, while it runs (hang) and when nothing is
written (--watchdog).

HPCSTACK_TIMES is how often each is tried.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import socket
import subprocess
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpcstack.launch.flights import read_flights
from hpcstack.launch.job_flights import Seen
from hpcstack.launch.wait_graph import diagnose_hang, summarise_diagnosis
from support.launching import launch
from support.testbed import REPO, Testbed

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.testbed, pytest.mark.jobs, pytest.mark.slurm]
TIMES = int(os.environ.get("HPCSTACK_TIMES", "1"))
EVERYTHING = os.environ.get("HPCSTACK_TABLE") == "all"
RUNTIMES = [
    pytest.param(one, marks=getattr(pytest.mark, one)) for one in ("apptainer", "pyxis", "enroot")
]
HANGS = """\
import os, signal, sys, time
import torch, torch.distributed as dist
print("begun", flush=True)
if sys.argv[1] == "leaves" and os.environ["RANK"] == "3":
    os._exit(0)
dist.init_process_group("gloo")
def sync(value):
    dist.all_reduce(value)
for step in range(5):
    odd = sys.argv[1] if step == 3 and dist.get_rank() == dist.get_world_size() - 1 else ""
    if odd == "sleeps":
        time.sleep(100)
    if odd == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    if odd == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if odd == "other":
        dist.broadcast(torch.ones(1), 0)
    if odd != "skips":
        sync(torch.ones(1))
    if dist.get_rank() == 0:
        print("step", step, flush=True)
dist.barrier()
"""
TWO_RANKS = "--mode task-per-gpu --nproc-per-node 1"  # and none of torch's launchers
WAITS = "while 3 ranks are in all_reduce"
SAYS = {
    "sleeps": "ODD: rank 3 on node2 is at {}/hangs.py:12, " + WAITS,
    "other": "ODD: rank 3 on node2 is in broadcast, called at {}/hangs.py:18, " + WAITS,
    "skips": "ODD: rank 3 on node2 is in barrier, called at {}/hangs.py:23, " + WAITS,
    "stops": "ODD: rank 3 on node2 is stopped by a signal at {}/hangs.py:14, " + WAITS,
    "leaves": "ODD: rank 3 is not there",  # it ended well, and torchrun waits for the others
}
# In each run of the tests one of each runtime; all of it in ci/soak
ALL = [
    pytest.param(runtime, fault, marks=getattr(pytest.mark, runtime))
    for runtime in ("apptainer", "pyxis", "enroot")
    for fault in SAYS
    if EVERYTHING
    or (runtime, fault)
    in (("apptainer", "other"), ("apptainer", "stops"), ("pyxis", "sleeps"), ("enroot", "skips"))
]


@pytest.fixture(scope="module")
def hangs(testbed: Testbed, built: dict[str, Any]) -> str:
    return str(testbed.give("tests/launching/hangs.py", HANGS))


@pytest.mark.soak("two ways to hang", but=lambda fault: fault in ("sleeps", "stops"))
@pytest.mark.parametrize(("runtime", "fault"), ALL)
def test_the_odd_rank_is_named_while_it_hangs(
    testbed: Testbed, hangs: str, runtime: str, fault: str
) -> None:
    for number in range(TIMES):
        words = (
            f"pytorch-24.11 -N2 --nproc-per-node 2 --runtime {runtime} --time 3 --batch -- "
            f"hangs.py {fault}"
        )
        job = testbed.bash(
            f"export XDG_STATE_HOME=$PWD/tests/launching/hang && cd tests/launching && "
            f"hpcstack launch {words}"
        ).stdout.strip()
        try:
            _until_it_hangs(testbed, job, fault)
            done = testbed.run("hpcstack", "hang", job)
            said = SAYS[fault].format(hangs.rpartition("/")[0])
            assert done.returncode == 1 and said in done.stdout, (number, done.stdout, done.stderr)
            assert testbed.bash(f"squeue -h --jobs {job} -o %T").stdout.strip() == "RUNNING", (
                "nothing happened to it"
            )
        finally:
            testbed.bash(
                f"scancel {job}; while squeue -h --jobs {job} 2>/dev/null | grep -q .; do "
                f"sleep 0.3; done"
            )


def _until_it_hangs(testbed: Testbed, job: str, fault: str) -> None:
    until = time.monotonic() + 90
    line, times = ("begun", 4) if fault == "leaves" else ("step 2", 1)
    while (
        testbed.bash(f"cat tests/launching/*-{job}.out 2>/dev/null || true").stdout.count(line)
        < times
    ):
        assert time.monotonic() < until, "it does not run"
        time.sleep(0.5)
    time.sleep(1.5)


@pytest.mark.apptainer
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may ask as another user")
@pytest.mark.soak(
    "asked by Slurm in place of the site's own shell",
    kept="tests/integration/test_hang.py::test_root_asks_by_the_sites_own_shell",
)
def test_root_asks_as_the_jobs_user(testbed: Testbed, hangs: str) -> None:
    """On call is not the user. Slurm lets nobody else start a step in a job, root included."""
    job = testbed.bash(
        "export XDG_STATE_HOME=$PWD/tests/launching/hang && cd tests/launching && hpcstack launch "
        f"pytorch-24.11 -N2 {TWO_RANKS} --runtime apptainer --time 3 --batch -- hangs.py sleeps"
    ).stdout.strip()

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        """As root, with what the testbed's users have in their environment."""
        profile = testbed.home.parent / "etc/profile.sh"
        asks = '. "$0"; exec hpcstack hang "$@"'
        return subprocess.run(
            ["bash", "-c", asks, str(profile), job, *words],
            capture_output=True,
            text=True,
            timeout=120,
        )

    try:
        _until_it_hangs(testbed, job, "sleeps")
        refused = ask()
        assert refused.returncode == 2, refused.stderr
        assert f"job {job} is hpcuser's" in refused.stderr
        assert f"sudo hpcstack hang {job} --as-user" in refused.stderr
        done = ask("--as-user", "--json")
        assert done.returncode == 1, done.stderr
        (step,) = json.loads(done.stdout)["steps"]
        assert step["odd"][0].startswith("rank 1 on node2 is at "), step
        # and nobody but root
        other = testbed.run("hpcstack", "hang", job, "--as-user")
        assert other.returncode == 2
        assert "--as-user is for root" in other.stderr
    finally:
        testbed.bash(
            f"scancel {job}; while squeue -h --jobs {job} 2>/dev/null | grep -q .; do sleep 0.3; done"
        )


# An SSH server for root, whose keys lie in a /root of its own
SSHD = """\
set -e
mount -t tmpfs -o mode=700 tmpfs /root
mkdir -m 700 /root/.ssh
cp "$1/key.pub" /root/.ssh/authorized_keys
exec dropbear -F -E -s -j -k -p 127.0.0.1:"$2" -r "$1/host" -P "$1/pid"
"""


@pytest.fixture
def shell_on_nodes(tmp_path: Path) -> Iterator[str]:
    """A line of site.yaml by which root's shell runs on a node: this machine is all of them."""
    keys = tmp_path / "ssh"
    keys.mkdir(mode=0o700)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / "key")], check=True
    )
    subprocess.run(
        ["dropbearkey", "-t", "ed25519", "-f", str(keys / "host")], check=True, capture_output=True
    )
    server = subprocess.Popen(
        ["unshare", "--mount", "bash", "-c", SSHD, "sshd", str(keys), port],
        stderr=subprocess.PIPE,
    )
    options = [
        *("-p", port, "-i", str(keys / "key"), "-F", "none"),
        *("-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"),
        *("-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"),
        *("-o", "HostKeyAlias={node}", "root@127.0.0.1"),
    ]
    try:
        _until_it_listens(int(port))
        yield f"hang: {json.dumps({'command': ['ssh', *options]})}\n"
    finally:
        server.kill()
        server.wait()


def _until_it_listens(port: int) -> None:
    until = time.monotonic() + 20
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert time.monotonic() < until, "the SSH server does not listen"
        time.sleep(0.2)


@pytest.mark.apptainer
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may ask another user's job")
def test_root_asks_by_the_sites_own_shell(
    testbed: Testbed, hangs: str, shell_on_nodes: str, tmp_path: Path
) -> None:
    """Slurm starts no step of root's in another user's job. The site's SSH does not ask Slurm."""
    job = testbed.bash(
        "export XDG_STATE_HOME=$PWD/tests/launching/hang && cd tests/launching && hpcstack launch "
        f"pytorch-24.11 -N2 {TWO_RANKS} --runtime apptainer --time 3 --batch -- hangs.py sleeps"
    ).stdout.strip()
    (tmp_path / "site.yaml").write_text(shell_on_nodes)
    profile = testbed.home.parent / "etc/profile.sh"
    asks = '. "$0"; exec hpcstack --site "$1" hang "$2" --json'
    line = ["bash", "-c", asks, str(profile), str(tmp_path / "site.yaml"), job]
    try:
        _until_it_hangs(testbed, job, "sleeps")
        done = subprocess.run(line, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1, done.stderr
        assert f"job {job}: every step of it; hpcuser's, asked by ssh" in done.stderr
        (step,) = json.loads(done.stdout)["steps"]
        assert step["odd"][0].startswith("rank 1 on node2 is at "), step
        hosts = {host for group in step["groups"] for host in group["hosts"]}
        assert hosts == {"node1", "node2"}
    finally:
        testbed.bash(
            f"scancel {job}; while squeue -h --jobs {job} 2>/dev/null | grep -q .; do sleep 0.3; done"
        )


@pytest.mark.parametrize("runtime", RUNTIMES if EVERYTHING else RUNTIMES[:1])
def test_a_rank_that_is_killed_does_not_hang_but_is_named(
    testbed: Testbed, hangs: str, runtime: str
) -> None:
    for _ in range(TIMES):
        done = launch(
            testbed, "-N2", *TWO_RANKS.split(), "--runtime", runtime, "--", "hangs.py", "dies"
        )
        assert done.returncode == 137, done.stderr[-3000:]
        assert "hpcstack: rank 1 on node2" in done.stderr.rstrip().splitlines()[-1], done.stderr[
            -3000:
        ]


# By Apptainer, too, docs/tutorials/first-hour.md is run by test_pages
@pytest.mark.parametrize("runtime", RUNTIMES if EVERYTHING else RUNTIMES[1:])
def test_a_launch_that_writes_nothing_is_ended_and_says_why(
    testbed: Testbed, hangs: str, runtime: str
) -> None:
    for _ in range(TIMES):
        state = f"tests/launching/watchdog-{runtime}"
        words = (
            "-N2",
            "--nproc-per-node",
            "2",
            "--runtime",
            runtime,
            "--watchdog",
            "12",
            "--",
            "hangs.py",
            "sleeps",
        )
        done: subprocess.CompletedProcess[str] = launch(
            testbed, *words, XDG_STATE_HOME=f"{testbed.home}/{state}"
        )
        assert done.returncode == 124, done.stderr[-3000:]
        last = done.stderr.rstrip().splitlines()[-1]
        assert last.startswith("hpcstack: nothing was written for 12 s; exit 124; log: "), last
        told = testbed.bash(f"XDG_STATE_HOME=$PWD/{state} hpcstack explain").stdout
        assert (
            told.startswith("FAILED, exit 124: nothing was written for 12 s\n")
            and "ODD: rank 3 on node2 is at" in told
        ), told


# A pipeline with data and tensor parallelism (tests/support/hang_program.py), one rank at fault in
# each dimension. One case in each run of the tests, on 8 ranks; all on 16 and four on 64 in ci/soak
SKIPS = (((2, 2, 2), "tp", "skips"),)
EACH = tuple(
    ((2, 2, 4), dimension, fault)
    for dimension in ("tp", "dp", "pp")
    for fault in ("sleeps", "skips", "other", "nobody", "dies", "stops", "size")
    if (dimension, fault) != ("pp", "size")
)
LARGE = tuple(
    ((4, 4, 4), dimension, fault)
    for dimension, fault in (("tp", "sleeps"), ("pp", "skips"), ("dp", "other"), ("tp", "dies"))
)


@pytest.mark.soak(
    "eight ranks of torch on two cores: recorded files of four show the same",
    kept="tests/unit/launch/test_wait_graph.py::test_the_rank_at_fault_is_named_first",
)
@pytest.mark.apptainer
@pytest.mark.parametrize(
    ("shape", "dimension", "fault"), SKIPS + ((EACH + LARGE) if EVERYTHING else ())
)
def test_the_root_of_a_pipeline_that_hangs_is_named_first(
    testbed: Testbed,
    built: dict[str, Any],
    tmp_path: Path,
    shape: tuple[int, int, int],
    dimension: str,
    fault: str,
) -> None:
    program = testbed.give(
        "tests/hanging/program.py", (REPO / "tests/support/hang_program.py").read_text()
    )
    folder = f"{program.parent}/{'-'.join(map(str, shape))}-{dimension}-{fault}"
    words = " ".join(map(str, shape))
    testbed.bash(
        f"rm -rf {folder} && mkdir {folder} && OMP_NUM_THREADS=1 apptainer --quiet exec "
        f"{built['image']} timeout 400 python3 {program} {words} {fault} {dimension} {folder}"
    )
    # The recorders' files are the user's that ran it, and hpcstack reads no other's
    packed = testbed.bash(f"cd {folder} && tar cz flight-* | base64 -w0").stdout
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packed))) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            (tmp_path / member.name).write_bytes(content.read())
    case = json.loads(testbed.bash(f"cat {folder}/case.json").stdout)
    flights = read_flights(tmp_path, "flight-")
    seen = Seen(
        world=case["world"],
        stopped=frozenset(case["stopped"]),
        absent=frozenset(case["absent"]),
    )
    for about in (seen, Seen(world=case["world"])):  # with what stacks tell, and without
        diagnosis = diagnose_hang(flights, about)
        said = summarise_diagnosis(flights, diagnosis)
        assert diagnosis.roots[0].ranks == (case["odd"],), said
    theirs = testbed.bash(
        f"cd {folder} && apptainer --quiet exec {built['image']} "
        "torchfrtrace . -p flight- --allow-incomplete-ranks 2>&1 || true"
    ).stdout
    missing = re.search(r"missing ranks: (\{[^}]*\})", theirs)
    print(f"{dimension} {fault}: {said[1]}; torchfrtrace: missing {missing[1] if missing else '-'}")
