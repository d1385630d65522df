"""How a launch ends: with the status of the rank that failed first, whoever else fails of it, and
one line that names it.

HPCSTACK_TIMES is how often each is tried (ci/soak: 20); HPCSTACK_TABLE=all tries every runtime in
every mode.
"""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from support.launching import launch
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.jobs("second"), pytest.mark.slurm]
STATE = "export XDG_STATE_HOME=$HOME/tests/launching/statuses"
TIMES = int(os.environ.get("HPCSTACK_TIMES", "1"))
RUNTIMES = ("apptainer", "pyxis", "enroot", "podman", "charliecloud")
MODES = ("torchrun", "deepspeed", "task-per-gpu", "mpi", "plain")
FAULTS = {
    "exception": (1, "ValueError: bad sample 17 (/opt/"),
    "exit3": (3, "rank 1 on node2 failed first; exit 3"),
    "kill": (137, "rank 1 on node2 failed first: killed by SIGKILL; exit 137"),
}
# Where nothing but the job is looked at, ranks need no launcher of torch's; ci/soak has both.
PLAIN = "--mode plain --ntasks-per-node 1"
BY_TORCHRUN = "--nproc-per-node 1"
EACH = pytest.mark.parametrize("each", [PLAIN, BY_TORCHRUN], ids=["plain", "torchrun"])
ONE_IS_ENOUGH = pytest.mark.soak("the job is looked at", but=lambda each: each == PLAIN)
FAIL = """\
import os, sys, time
rank = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))
together = "RANK" in os.environ and "WORLD_SIZE" in os.environ
if together:
    import torch.distributed as dist
    dist.init_process_group("gloo")
    dist.barrier()
fault = [word for word in sys.argv[1:] if not word.startswith("--")][0]
if rank == 1:
    time.sleep(0.3)
    if fault == "exception":
        raise ValueError("bad sample 17")
    if fault == "exit3":
        sys.exit(3)
    if fault == "kill":
        os.kill(os.getpid(), 9)
if together:
    dist.barrier()
time.sleep(60)
"""
# In each run of the tests one of each; all of it in ci/soak
SOME = {
    ("torchrun", "exception"),
    ("deepspeed", "exit3"),
    ("task-per-gpu", "kill"),
    ("mpi", "exception"),
    ("plain", "exit3"),
}


def table() -> list[Any]:
    everything = os.environ.get("HPCSTACK_TABLE") == "all"
    out = []
    for runtime in RUNTIMES:
        for mode in MODES:
            for fault in FAULTS:
                some = (mode, fault) in SOME and runtime in ("apptainer", "pyxis")
                if everything or some:
                    out.append(
                        pytest.param(runtime, mode, fault, marks=getattr(pytest.mark, runtime))
                    )
    return out


@pytest.fixture(scope="module")
def fail(testbed: Testbed, built: dict[str, Any]) -> str:
    return str(testbed.give("tests/launching/fail.py", FAIL))


@pytest.mark.parametrize(("runtime", "mode", "fault"), table())
def test_the_first_failure_is_the_status(
    testbed: Testbed, fail: str, runtime: str, mode: str, fault: str
) -> None:
    status, said = FAULTS[fault]
    each = ("--ntasks-per-node", "1") if mode == "plain" else ("--nproc-per-node", "1")
    for number in range(TIMES):
        words = ("-N2", *each, "--mode", mode, "--runtime", runtime, "--", "fail.py", fault)
        done = launch(testbed, *words, XDG_STATE_HOME=f"{testbed.home}/tests/launching/statuses")
        last = done.stderr.rstrip().splitlines()[-1]
        assert done.returncode == status, (number, done.returncode, done.stderr[-3000:])
        assert last.startswith("hpcstack: rank 1 on node2 failed first") and said in last, (
            number,
            done.stderr[-3000:],
        )
        log = re.search(r"; log: (\S+)$", last)
        assert log
        assert "node2 ended with" in testbed.bash(f"cat {log[1]}").stdout


@EACH
@ONE_IS_ENOUGH
@pytest.mark.apptainer
@pytest.mark.parametrize("runtime", ["apptainer", pytest.param("pyxis", marks=pytest.mark.pyxis)])
def test_a_job_ends_alike(testbed: Testbed, fail: str, runtime: str, each: str) -> None:
    words = f"pytorch-24.11 -N2 {each} --runtime {runtime} --batch -- fail.py exit3"
    job = testbed.bash(f"{STATE} && cd tests/launching && hpcstack launch {words}").stdout.strip()
    testbed.bash(
        f'until [ -z "$(squeue --noheader --jobs {job} 2>/dev/null)" ]; do sleep 0.5; done'
    )
    state = testbed.bash(f"sacct -nPX --format=State,ExitCode --jobs {job}").stdout.strip()
    assert state == "FAILED|3:0", state
    log = testbed.bash(f"cat tests/launching/*-{job}.out").stdout.rstrip().splitlines()
    assert re.fullmatch(
        r"hpcstack: rank 1 on node2 failed first; exit 3; log: /\S+\.out", log[-1]
    ), log[-5:]


LIMIT = "scontrol update jobid=$(squeue -h -n {name} -o %A) timelimit=0"
CANCEL = "scancel --name={name}"


def ends() -> list[Any]:
    """In each run of the tests one of each; all in ci/soak."""
    out = []
    for runtime in RUNTIMES:
        for mode in MODES:
            for end, says in ((CANCEL, "it was cancelled"), (LIMIT, "the time limit was reached")):
                if os.environ.get("HPCSTACK_TABLE") == "all" or (runtime, mode) == (
                    "apptainer",
                    "plain",
                ):
                    marks = [getattr(pytest.mark, runtime)]
                    out.append(
                        pytest.param(
                            runtime,
                            mode,
                            end,
                            says,
                            marks=marks,
                            id=f"{runtime}-{mode}-{end.split()[0]}",
                        )
                    )
    return out


@pytest.mark.parametrize(("runtime", "mode", "end", "says"), ends())
def test_what_ends_a_launch_is_told(
    testbed: Testbed, fail: str, runtime: str, mode: str, end: str, says: str
) -> None:
    each = "--ntasks-per-node 1" if mode == "plain" else "--nproc-per-node 1"
    for number in range(TIMES):
        name = f"ends-{os.getpid()}-{runtime}-{mode}-{number}"
        running = (
            f"until squeue -h --states R --name {name} | grep -q .; do sleep 0.3; done; sleep 2"
        )
        script = f"({running}; {end.format(name=name)}) >/dev/null 2>&1 & cd tests/launching && {STATE} && " \
            f"hpcstack launch pytorch-24.11 --srun=--job-name={name} -N2 {each} --runtime {runtime} --mode {mode} -- fail.py none"  # fmt: skip
        done = testbed.bash(script, check=False)
        last = done.stderr.rstrip().splitlines()[-1]
        assert done.returncode == 143 and last.startswith(f"hpcstack: {says}; exit 143"), (
            number,
            done.stderr[-3000:],
        )


@EACH
@ONE_IS_ENOUGH
@pytest.mark.apptainer
@pytest.mark.parametrize("runtime", ["apptainer", pytest.param("pyxis", marks=pytest.mark.pyxis)])
def test_a_cancelled_job_says_so_in_its_log(
    testbed: Testbed, fail: str, runtime: str, each: str
) -> None:
    words = f"pytorch-24.11 -N2 {each} --runtime {runtime} --batch -- fail.py none"
    job = testbed.bash(f"{STATE} && cd tests/launching && hpcstack launch {words}").stdout.strip()
    testbed.bash(
        f"until squeue -h --states R --jobs {job} | grep -q .; do sleep 0.3; done; sleep 4; "
        f"hpcstack cancel {job}"
    )
    testbed.bash(
        f'until [ -z "$(squeue --noheader --jobs {job} 2>/dev/null)" ]; do sleep 0.5; done'
    )
    log = testbed.bash(f"cat tests/launching/*-{job}.out").stdout.rstrip().splitlines()
    assert any(line.startswith("hpcstack: it was cancelled; exit 143") for line in log[-3:]), log[
        -8:
    ]


@pytest.mark.apptainer
def test_a_program_that_is_not_there_is_refused_before_slurm(
    testbed: Testbed, built: dict[str, Any]
) -> None:
    for command, says in (
        (("trian.py",), ("trian.py: no such " "file")), (("python3", "trian.py"), ("trian.py: no such " "file")),
        (("./train.sh",), "train.sh: no such file"), (("pyhton3", "x.py"), "no command 'pyhton3'"),
    ):  # fmt: skip
        done = launch(testbed, "-N2", "--", *command)
        assert done.returncode == 2 and says in done.stderr, done.stderr
