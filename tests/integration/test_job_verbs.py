"""`logs`, `hang` and `cancel` of a running job, as documents that scripts read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.jobs, pytest.mark.slurm, pytest.mark.apptainer]
ENTER = "mkdir -p tests/job-verbs && cd tests/job-verbs && export XDG_STATE_HOME=$PWD/state"
RUNS = "until squeue -h --states R --jobs {job} | grep -q .; do sleep 0.3; done; sleep 2"


def test_what_a_running_job_says_of_itself(testbed: Testbed, built: dict[str, Any]) -> None:
    def said(words: str) -> Any:
        return json.loads(testbed.bash(f"{ENTER} && {words}").stdout)

    launch = (
        "hpcstack launch pytorch-24.11 -N2 --ntasks-per-node 1 --mode plain --runtime apptainer "
        "--batch --json"
    )
    job = said(f"{launch} -- sh -c 'echo here; sleep 300'")["job"]
    try:
        testbed.bash(RUNS.format(job=job))
        logs = said(f"hpcstack logs {job} --json")
        assert logs["job"] == job
        assert "here" in testbed.bash(f"cat {logs['paths'][0]}").stdout
        [step] = said(f"hpcstack hang {job} --json")["steps"]
        assert (
            sorted(rank for group in step["groups"] for rank in group["ranks"]) == [0, 1]
            and step["odd"] == []
        ), step
        assert said(f"hpcstack cancel {job} --json") == {"cancelled": [job], "ended": []}
    finally:
        testbed.bash(f"scancel {job}", check=False)
