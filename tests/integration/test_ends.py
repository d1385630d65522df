"""However a job ends or stands, `jobs`, `logs` and `explain` say one word of it: Slurm's.

HPCSTACK_TABLE=all (ci/soak): also what needs a minute, the time limit.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from support.launching import STACK
from support.testbed import Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.jobs("second"),
    pytest.mark.slurm,
    pytest.mark.apptainer,
]
FOLDER = "tests/ends"
LAUNCH = f"hpcstack launch {STACK} -N1 --mode plain --runtime apptainer"
SLEEPS = "sh -c 'echo here; sleep 300'"
AGAIN = "sh -c '[ ! -e again ] || exit 0; touch again; sleep 300'"
REFUSED = r"#!/bin/bash\n#SBATCH -N1\nhpcstack launch no-such-stack -- true\n"


@dataclass(frozen=True)
class End:
    """An end: the shell's words that bring it about, the state, and what `explain` says of it.

    If `is_waited_for`, they are a launch on this terminal, which ends with `status`; else they print
    the number of a job, and `then` is what becomes of that once it runs.
    """

    words: str
    state: str
    said: str
    then: str = ""
    is_waited_for: bool = False
    status: int = 0


ENDS = {
    "completed": End(f"{LAUNCH} --batch -- true", "COMPLETED", "it ended with 0"),
    "failed": End(
        f"{LAUNCH} --batch -- sh -c 'exit 3'", "FAILED, exit 3", "rank 0 on node1 failed first"
    ),
    "cancelled": End(
        f"{LAUNCH} --batch -- {SLEEPS}",
        "CANCELLED by you, exit 143",
        "it was cancelled by you, after 00:0",
        then="hpcstack cancel {job}",
    ),
    "cancelled in the queue": End(
        f"{LAUNCH} --batch --begin=now+1hour -- true",
        "CANCELLED by you",
        "it was cancelled by you before it started",
        then="scancel {job}",
    ),
    "put back into the queue": End(
        f"{LAUNCH} --batch --requeue -- {AGAIN}",
        "PENDING",
        "it waits in the queue to start again (BeginTime)",
        then="scontrol requeue {job}",
    ),
    "running": End(f"{LAUNCH} --batch -- {SLEEPS}", "RUNNING", "it runs", then="true"),
    "waiting": End(
        f"{LAUNCH} --batch --begin=now+1hour -- true",
        "PENDING",
        "it waits in the queue (BeginTime)",
        then="true",
    ),
    "refused by hpcstack": End(
        f"printf '{REFUSED}' >own.sbatch; sbatch --parsable own.sbatch",
        "FAILED, exit 2",
        "there is no stack 'no-such-stack'",
    ),
    "Ctrl-C": End(
        f"timeout --signal=INT 8 {LAUNCH} -- {SLEEPS}",
        "CANCELLED by Ctrl-C, exit 130",
        "it was cancelled by Ctrl-C",
        is_waited_for=True,
        status=130,
    ),
    "a closed terminal": End(
        f"timeout --signal=HUP 8 {LAUNCH} -- {SLEEPS}",
        "CANCELLED by a closed terminal, exit 129",
        "it was cancelled by a closed terminal",
        is_waited_for=True,
        status=129,
    ),
    "started again by torchrun": End(
        f"{LAUNCH} --mode torchrun --restarts 1 -- sh -c '[ -e second ] || {{ touch second; exit 3; }}'",
        "COMPLETED",
        "it ended with 0",
        is_waited_for=True,
    ),
}
SLOW = {
    "the time limit": End(
        f"{LAUNCH} --batch --time=1 -- {SLEEPS}",
        "TIMEOUT, exit 143",
        "the time limit was reached: 00:01:00",
    ),
    "the time limit of a launch that is waited for": End(
        f"{LAUNCH} --time=1 -- {SLEEPS}",
        "TIMEOUT, exit 143",
        "the time limit was reached: 00:01:00",
        is_waited_for=True,
        status=143,
    ),
}
ALL = {**ENDS, **SLOW} if os.environ.get("HPCSTACK_TABLE") == "all" else ENDS


class User:
    """A user who has launched nothing else."""

    def __init__(self, testbed: Testbed) -> None:
        self.testbed = testbed
        self.enter = f"cd {FOLDER} && export XDG_STATE_HOME=$PWD/state"
        self.jobs: list[str] = []

    def submit(self, words: str) -> str:
        """The job that WORDS submit; it is ended with the test."""
        done = self.bash(words)
        job = str(done.stdout.strip())
        assert job.isdigit(), done.stderr
        self.jobs.append(job)
        return job

    def end_jobs(self) -> None:
        for job in self.jobs:
            self.bash(f"scancel {job}")
            self.wait_for(job, HAS_ENDED)

    def bash(self, words: str) -> Any:
        return self.testbed.bash(f"{self.enter} && {words}", check=False, timeout=300)

    def json(self, words: str) -> Any:
        return json.loads(self.bash(f"hpcstack {words} --json").stdout)

    def wait_for(self, job: str, words: str) -> None:
        """Wait until WORDS, of which {job} is JOB, end well."""
        until = time.monotonic() + 150
        while self.bash(words.format(job=job)).returncode:
            assert time.monotonic() < until, f"job {job}: {words}"
            time.sleep(0.5)


@pytest.fixture
def user(testbed: Testbed, built: dict[str, Any]) -> Iterator[User]:
    testbed.bash(f"rm -rf {FOLDER} && mkdir -p {FOLDER}")
    user = User(testbed)
    yield user
    user.end_jobs()


IS_RUNNING = "squeue -h --states R --jobs {job} | grep -q ."
HAS_ENDED = "! squeue -h --jobs {job} 2>/dev/null | grep -q ."


@pytest.mark.parametrize("name", ALL)
def test_all_verbs_say_one_word(name: str, user: User) -> None:
    end = ALL[name]
    if end.is_waited_for:
        done = user.bash(end.words)
        assert done.returncode in (end.status, 124), done.stderr  # 124: timeout(1)'s own
        job = user.json("jobs -n 1")[0]["job"]
        last = done.stderr.splitlines()[-1]
        assert f"; exit {end.status}" in last if end.status else "hpcstack: " not in last
    else:
        job = user.submit(end.words)
    if end.then:
        if "--begin" not in end.words:
            user.wait_for(job, IS_RUNNING)
            user.wait_for(job, f"grep -q 'step\\|here' {STACK}-{{job}}.out || [ -e again ]")
        user.bash(end.then.format(job=job))
        if "scontrol" in end.then:
            user.wait_for(job, "squeue -h --states PD --jobs {job} | grep -q .")
    if not end.is_waited_for and end.state.partition(",")[0] not in ("RUNNING", "PENDING"):
        user.wait_for(job, HAS_ENDED)

    word = end.state.partition(" by ")[0].partition(",")[0]
    found = user.json(f"explain {job}")
    assert (found["state"], found["said"][: len(end.said)]) == (end.state, end.said), found
    assert found["findings"] == [] or word == "FAILED", found
    assert found["clues"] == [], found
    shown = user.bash(f"hpcstack explain {job}")
    assert shown.stdout.startswith(word), shown
    logs = user.bash(f"hpcstack logs {job}")
    has_log = "in the queue" not in name and name != "waiting"
    assert not has_log or logs.stderr.startswith(f"* {job} {end.state}: /"), logs
    if "own.sbatch" not in end.words:  # no launch was made
        assert user.json("jobs -n 1")[0]["state"] == end.state
        newest = user.json("explain")
        assert (newest["state"], newest["said"][: len(end.said)]) == (end.state, end.said), newest


def test_a_log_is_followed_from_the_queue_to_the_end(user: User) -> None:
    """researcher 5: it returned at once for a job that waited, and never after the job's end."""
    script = "sh -c 'echo one; sleep 3; echo two; sleep 3; echo three'"
    job = user.submit(f"{LAUNCH} --batch --begin=now+8 -- {script}")
    began = time.monotonic()
    done = user.bash(f"timeout 120 hpcstack logs {job} --follow")
    assert done.returncode == 0, done
    assert done.stdout.split() == ["one", "two", "three"]
    assert f"job {job} has not started yet" in done.stderr
    assert done.stderr.splitlines()[-1] == f"* {job} COMPLETED: hpcstack explain {job}"
    assert time.monotonic() - began < 90


def test_ctrl_c_on_a_log_that_is_followed_prints_nothing_again(user: User) -> None:
    job = user.submit(f"{LAUNCH} --batch -- {SLEEPS}")
    user.wait_for(job, f"grep -q here {STACK}-{{job}}.out")
    done = user.bash(f"timeout --signal=INT 5 hpcstack logs {job} --follow")
    assert done.stdout.split() == ["here"], done
