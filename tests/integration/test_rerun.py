"""A sweep as an array: one table of it, and its failed tasks once more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.jobs, pytest.mark.slurm, pytest.mark.apptainer]
ENTER = "mkdir -p tests/rerun && cd tests/rerun && export XDG_STATE_HOME=$PWD/state"
# Tasks 1 and 3 fail until there is a file `fixed`
TASK = (
    "echo start $SLURM_ARRAY_TASK_ID; [ -e fixed ] || [ $((SLURM_ARRAY_TASK_ID % 2)) = 0 ] || exit 3; "
    "echo loss=0.$SLURM_ARRAY_TASK_ID"
)
ENDS = "until ! squeue -h --jobs {job} 2>/dev/null | grep -q .; do sleep 0.3; done"


def test_a_sweep_is_one_table_and_what_failed_runs_again(
    testbed: Testbed, built: dict[str, Any]
) -> None:
    def said(words: str) -> Any:
        return json.loads(testbed.bash(f"{ENTER} && {words}").stdout)

    testbed.bash(f"{ENTER} && rm -f fixed")
    options = "-n 1 -c 1 --mode plain --runtime apptainer --batch --array=0-3 --json"
    job = said(f"hpcstack launch pytorch-24.11 {options} -- sh -c '{TASK}'")["job"]
    testbed.bash(ENDS.format(job=job))

    rows = said(rf"hpcstack jobs {job} --match 'loss=(\S+)' --json")
    assert [(row["job"], row["state"], row["found"]) for row in rows] == [
        (f"{job}_0", "COMPLETED", ["0.0"]),
        (f"{job}_1", "FAILED, exit 3", []),
        (f"{job}_2", "COMPLETED", ["0.2"]),
        (f"{job}_3", "FAILED, exit 3", []),
    ]
    assert [row["said"] for row in rows if row["found"] == []] == ["start 1", "start 3"]

    shown = testbed.bash(f"{ENTER} && hpcstack rerun {job} --dry-run").stdout
    assert "task 1: FAILED, exit 3" in shown
    assert "--array=1,3" in shown
    again = said(f"touch fixed; hpcstack rerun {job} --json")
    assert again["tasks"] == [1, 3]
    testbed.bash(ENDS.format(job=again["job"]))
    rows = said(f"hpcstack jobs {again['job']} --json")
    assert [(row["job"], row["state"], row["said"]) for row in rows] == [
        (f"{again['job']}_1", "COMPLETED", "loss=0.1"),
        (f"{again['job']}_3", "COMPLETED", "loss=0.3"),
    ]
    refused = testbed.bash(f"{ENTER} && hpcstack rerun {again['job']}", check=False)
    assert refused.returncode == 1, refused.stderr
    assert "none of its 2 tasks is known to have failed" in refused.stderr
