"""Slurm's programs are asked in one place: what is asked, and how an answer is read."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import hpcstack
from hpcstack.core.errors import MissingToolError, SlurmError
from hpcstack.core.process import Completed, Runner
from hpcstack.slurm import client
from hpcstack.slurm.client import Client, QueuedJob, parse_queued
from hpcstack.slurm.state import JobState

SOURCES = Path(hpcstack.__file__).parent
SBATCH = """#!/bin/sh
env | sort >"${0%/*}/seen"
case $* in
*--test-only*) echo "sbatch: error: no such partition" >&2; exit 1 ;;
*refused*) echo "sbatch: error: no" >&2; exit 1 ;;
esac
echo "17;cluster"
"""


class Answering(Runner):
    """One program, which answers what a test says, with a status and on stderr too."""

    def __init__(self, stdout: str = "", status: int = 0, stderr: str = "") -> None:
        self.stdout, self.status, self.stderr = stdout, status, stderr
        self.asked: list[list[str]] = []

    def has(self, _tool: str) -> bool:
        return True

    def output(self, argv: Any, **_: Any) -> Completed:
        self.asked.append(list(argv))
        lines = (self.stdout + self.stderr).splitlines()
        return Completed(tuple(argv), self.status, tuple(lines), self.stdout)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sbatch").write_text(SBATCH)
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    inherited = {
        "SLURM_JOB_ID": "3",
        "SLURM_NNODES": "2",
        "SLURM_CONF": "/c",
        "SLURM_JWT": "t",
        "HPCSTACK_GRACE": "9",
        "SBATCH_ACCOUNT": "a",
    }
    for name, value in inherited.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def test_the_job_this_shell_is_in_is_left_out(tools: Path) -> None:
    job = Client(Runner()).submit_job(tools / "job.sh", env={"HPCSTACK_RUN": "/r"})
    assert job == "17"
    seen = dict(
        line.split("=", 1) for line in (tools / "seen").read_text().splitlines() if "=" in line
    )
    assert {"SLURM_CONF", "SLURM_JWT", "SBATCH_ACCOUNT", "HPCSTACK_RUN"} <= seen.keys()
    assert not {"SLURM_JOB_ID", "SLURM_NNODES", "HPCSTACK_GRACE"} & seen.keys()


def test_a_refusal_is_slurms_own(tools: Path) -> None:
    slurm = Client(Runner())
    with pytest.raises(SlurmError, match="sbatch refused: sbatch: error: no") as refused:
        slurm.submit_job(tools / "refused.sh", hint="do this")
    assert refused.value.hint == "do this"
    refusal = slurm.find_refusal(tools / "job.sh")
    assert refusal == "sbatch would refuse it: sbatch: error: no such partition"


def test_no_slurm_is_a_missing_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    slurm = Client(Runner())
    with pytest.raises(MissingToolError, match="sbatch is not installed"):
        slurm.submit_job(tmp_path / "job.sh")
    with pytest.raises(MissingToolError, match="squeue is not installed"):
        slurm.query_queue(["7"])


def test_without_slurm_its_answers_are_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    slurm = Client(Runner())
    assert slurm.query_partitions() == {}
    assert slurm.read_config() == {}
    assert slurm.list_options("srun", "sbatch") == frozenset()
    assert slurm.choose_pmi() == ""
    assert slurm.query_accounting(["7"], ["State"]) is None


@pytest.mark.parametrize(
    ("line", "job"),
    [
        (
            "7|7|RUNNING|2|gpu|ann|None",
            QueuedJob("7", "7", JobState("RUNNING"), 2, "gpu", "ann", "None"),
        ),
        (
            "7_3|9|PENDING|1|gpu|ann|(a|b)",
            QueuedJob("7_3", "9", JobState("PENDING"), 1, "gpu", "ann", "(a|b)"),
        ),
        ("slurm_load_jobs error: Unable to contact slurm controller", None),
        ("", None),
    ],
)
def test_a_job_in_the_queue(line: str, job: QueuedJob | None) -> None:
    assert parse_queued(line) == job


def test_a_forgotten_job_is_no_silence() -> None:
    forgotten = Answering(status=1, stderr="slurm_load_jobs error: Invalid job id specified\n")
    assert Client(forgotten).query_queue(["7"]) == []
    assert Client(forgotten).query_records("7") is None

    silent = Answering(status=1, stderr="slurm_load_jobs error: Unable to contact controller\n")
    assert Client(silent).query_queue(["7"]) is None
    with pytest.raises(SlurmError, match="scontrol does not answer: .*Unable to contact"):
        Client(silent).query_records("7")


def test_a_short_row_of_accounting_is_filled_up() -> None:
    sacct = Answering("7\x1fFAILED\n8\x1fCOMPLETED\x1f0:0\x1fmore\n")
    fields = ["JobID", "State", "ExitCode"]
    rows = [["7", "FAILED", ""], ["8", "COMPLETED", "0:0"]]
    assert Client(sacct).query_accounting(["7", "8"], fields) == rows
    assert sacct.asked[0][-2:] == ["--jobs", "7,8"]


def test_help_on_stderr_counts() -> None:
    """Slurm 20.11 prints `srun --mpi=list` on stderr."""
    srun = Answering(stderr="srun: MPI types are...\nsrun: none\nsrun: pmi2\n")
    assert Client(srun).list_pmi_types() == ("pmi2",)
    assert Client(srun).choose_pmi() == "pmi2"


def test_scancel_that_ends_well_and_names_an_error_has_refused() -> None:
    refusing = Answering(stderr="scancel: error: Kill job error on job id 7: Access denied\n")
    assert "Access denied" in Client(refusing).cancel("7")
    assert Client(Answering(stderr="scancel: Terminating job 7\n")).cancel("7") == ""


def test_a_step_that_has_ended_meanwhile_is_no_refusal() -> None:
    gone = Answering(
        stderr="scancel: error: Kill job error on job step id 7.0: already completed\n"
    )
    assert Client(gone).end_step("7.0", "TERM")
    assert gone.asked == [["scancel", "--signal=TERM", "7.0"]]
    assert not Client(Answering(status=1)).end_step("7.0")


def test_nodes_are_drained_with_a_reason_of_slurms_length() -> None:
    slurmctld = Answering()
    assert Client(slurmctld).drain("n1", "x" * 300) == ""
    assert slurmctld.asked[0][-1] == f"reason={'x' * 200}"
    refusing = Answering(status=1, stderr="slurm_update error: Invalid user id\n")
    assert Client(refusing).drain("n1", "slow") == "slurm_update error: Invalid user id"


def test_a_step_beside_a_job_takes_nothing_of_it() -> None:
    srun = Answering()
    Client(srun).run_beside("7", 2, "hang", ["true"], 60)
    argv = srun.asked[0]
    assert argv[:4] == ["timeout", "--kill-after=5", "60", "srun"]
    assert {"--overlap", "--jobid=7", "--nodes=2", "--mem=0", "--wait=0"} <= set(argv)
    assert argv[-2:] == ["--job-name=hang", "true"]


# What stands at the top of a job's template: people type it, hpcstack does not start it.
WRITES_A_LINE = ("launch/script.py",)
ASKED = {"sinfo", "squeue", "scontrol", "sacct", "scancel", "sbatch"}


def test_no_other_module_starts_slurms_programs() -> None:
    """`srun` and `salloc` also begin the lines that `launch` and `test` start; those are made there."""
    elsewhere = []
    for path in sorted(SOURCES.rglob("*.py")):
        if path.relative_to(SOURCES).as_posix() in ("slurm/client.py", *WRITES_A_LINE):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.List) or not node.elts:
                continue
            first = node.elts[0]
            if isinstance(first, ast.Constant) and first.value in ASKED:
                elsewhere.append(f"{path.relative_to(SOURCES)}:{node.lineno}")
    assert elsewhere == []


def test_what_is_written_as_a_directive_wins_over_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sbatch takes SBATCH_ACCOUNT rather than `#SBATCH --account`: the wrong one would be billed."""
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH '--constraint=a&b'\n#SBATCH --account=new  # asked for\n#SBATCH --time=60\n#SBATCH --cpus-per-task=4\n"
    )
    for name in ("CONSTRAINT", "ACCOUNT", "TIMELIMIT", "CPUS_PER_GPU", "QOS"):
        monkeypatch.setenv(f"SBATCH_{name}", "1")
    hidden = client._hide_variables_of(script)
    assert hidden[1::2] == [
        "SBATCH_CONSTRAINT", "SBATCH_ACCOUNT", "SBATCH_TIMELIMIT", "SBATCH_CPUS_PER_GPU",
    ]  # fmt: skip
