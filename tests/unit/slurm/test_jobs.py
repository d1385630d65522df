"""Jobs are submitted in one place, outside the job that a shell may be in."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.core.errors import MissingToolError, SlurmError
from hpcstack.core.process import Runner
from hpcstack.slurm.jobs import find_refusal, submit_job

SBATCH = """#!/bin/sh
env | sort >"${0%/*}/seen"
case $* in
*--test-only*) echo "sbatch: error: no such partition" >&2; exit 1 ;;
*refused*) echo "sbatch: error: no" >&2; exit 1 ;;
esac
echo "17;cluster"
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sbatch").write_text(SBATCH)
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name, value in {"SLURM_JOB_ID": "3", "SLURM_NNODES": "2", "SLURM_CONF": "/c", "SLURM_JWT": "t",
                        "HPCSTACK_GRACE": "9", "SBATCH_ACCOUNT": "a"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return tmp_path


def test_the_job_this_shell_is_in_is_left_out(tools: Path) -> None:
    assert submit_job(tools / "job.sh", Runner(), env={"HPCSTACK_RUN": "/r"}) == "17"
    seen = dict(
        line.split("=", 1) for line in (tools / "seen").read_text().splitlines() if "=" in line
    )
    assert {"SLURM_CONF", "SLURM_JWT", "SBATCH_ACCOUNT", "HPCSTACK_RUN"} <= seen.keys()
    assert not {"SLURM_JOB_ID", "SLURM_NNODES", "HPCSTACK_GRACE"} & seen.keys()


def test_a_refusal_is_slurms_own(tools: Path) -> None:
    with pytest.raises(SlurmError, match="sbatch refused: sbatch: error: no") as refused:
        submit_job(tools / "refused.sh", Runner(), hint="do this")
    assert refused.value.hint == "do this"
    assert (
        find_refusal(tools / "job.sh", Runner())
        == "sbatch would refuse it: sbatch: error: no such partition"
    )


def test_no_slurm_is_a_missing_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingToolError, match="sbatch is not installed"):
        submit_job(tmp_path / "job.sh", Runner())
