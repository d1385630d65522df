"""What is known of a job once Slurm has forgotten it: our own records, accounting, and the script's
own words.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcstack.core.process import Completed, Runner
from hpcstack.launch import record
from hpcstack.launch.jobs import (
    JobPart,
    find_job_parts,
    find_logs,
    find_output,
    is_known_to_have_ended,
    list_task_states,
    make_part,
)
from hpcstack.slurm.job_record import read_job_records
from hpcstack.slurm.state import JobState

NO_JOB = "slurm_load_jobs error: Invalid job id specified"


class Cluster(Runner):
    """Slurm as a test says it: what scontrol and sacct answer; no answer from scontrol is a job
    that it forgot.
    """

    def __init__(self, scontrol: str = "", sacct: str | None = None) -> None:
        self.scontrol, self.sacct = scontrol, sacct

    def has(self, tool: str) -> bool:
        return tool != "sacct" or self.sacct is not None

    def output(self, argv: Any, **_: Any) -> Completed:
        if argv[0] == "sacct":
            return Completed(tuple(argv), 0, (), self.sacct or "")
        if not self.scontrol:
            return Completed(tuple(argv), 1, (NO_JOB,), "")
        return Completed(tuple(argv), 0, (), self.scontrol)


@pytest.fixture(autouse=True)
def launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("HPCSTACK_RUN", raising=False)
    return tmp_path / "state/hpcstack/launches"


def launch(
    launches: Path, name: str = "20260101T000000.0Z-aaaa", argv: tuple[str, ...] = (), **files: str
) -> Path:
    folder = launches / name
    folder.mkdir(parents=True)
    keys = dict.fromkeys(("stack", "started", "runtime", "mode", "image_sha256"), "")
    (folder / record.FILE).write_text(json.dumps({**keys, "command": [], "argv": list(argv)}))
    for file, text in files.items():
        (folder / file.replace("_", "-").replace("-log", ".log")).write_text(text)
    return folder


def accounted(*rows: tuple[str, ...]) -> str:
    return "".join("\x1f".join(row) + "\n" for row in rows)


def test_a_task_of_an_array_is_a_part_of_its_own() -> None:
    line = (
        "JobId=41 ArrayJobId=40 ArrayTaskId=3 JobName=x JobState=FAILED Reason=NonZeroExitCode "
        "ExitCode=7:0 "
        "RunTime=00:00:09 StdErr=/h/x-40_3.out StdIn=/dev/null StdOut=/h/x-40_3.out Power="
    )
    (record,) = read_job_records(line)
    assert make_part(record) == JobPart(
        "40_3",
        JobState("FAILED", 7),
        "NonZeroExitCode",
        (Path("/h/x-40_3.out"),),
        elapsed="00:00:09",
    )


def test_a_comment_of_the_users_is_no_field() -> None:
    (record,) = read_job_records(
        "JobId=41 JobState=RUNNING RunTime=01:00:00 StdOut=/h/x.out Comment=StdOut=/etc/passwd "
        "JobId=1"
    )
    found = make_part(record)
    assert (found.job, found.files) == ("41", (Path("/h/x.out"),))


@pytest.mark.parametrize(
    ("pattern", "job", "task", "files"),
    [
        ("x-%j.out", "7", "", ["x-7.out"]),
        ("x-%A_%a.out", "7", "3", ["x-7_3.out"]),
        ("x-%5a.out", "7", "3", ["x-00003.out"]),
        ("%x.out", "7", "", []),  # nothing of it is the job's own: it would be everybody's
        ("x-%j.out", "7", "3", []),  # a task's own number, which nobody has said
        ("x-%N-%j.out", "7", "", ["x-n1-7.out", "x-n2-7.out"]),  # a node's name: whatever is there
        ("x-[7].out", "7", "", ["x-[7].out"]),
        ("x-%%.out", "7", "", ["x-%.out"]),
    ],
)
def test_slurms_patterns(
    tmp_path: Path, pattern: str, job: str, task: str, files: list[str]
) -> None:
    for name in ("x-n1-7.out", "x-n2-7.out", "x-n1-8.out"):
        (tmp_path / name).touch()
    assert [path.name for path in find_output(f"{tmp_path}/{pattern}", job, task)] == files


def test_a_job_that_slurm_forgot_is_known_by_its_launch(launches: Path, tmp_path: Path) -> None:
    out = tmp_path / "x-7.out"
    out.write_text("it went wrong\n")
    launch(launches, began="7\n", output=f"{out}\n", ended="3\n")
    assert find_job_parts("7", Cluster()) == [JobPart("7", JobState("FAILED", 3), files=(out,))]
    assert find_logs("7", Cluster()) == [out]


def test_a_launch_that_was_waited_for_is_read_by_its_jobs_number(launches: Path) -> None:
    """Its job ran on a terminal: what it wrote to stderr was kept."""
    folder = launch(launches, began="7\n0\nn1\n", ended="3\n", stderr_log="it went wrong\n")
    terminal = "JobId=7 JobState=FAILED Reason=NonZeroExitCode ExitCode=3:0 RunTime=00:01:00 Power="
    for slurm in (Cluster(), Cluster(terminal)):
        assert find_logs("7", slurm) == [folder / "stderr.log"], slurm.scontrol


def test_every_task_of_an_array_is_known_without_slurm(launches: Path, tmp_path: Path) -> None:
    for task in range(3):
        (tmp_path / f"x-7_{task}.out").write_text(f"{task}\n")
    files = {f"ended_{task}": f"{status}\n" for task, status in enumerate((0, 3, 0))}
    launch(
        launches,
        argv=("srun", "--array=0-2"),
        began="7_2\n",
        output=f"{tmp_path}/x-%A_%a.out\n",
        **files,
    )
    parts = find_job_parts("7", Cluster())
    assert [(part.job, str(part.state)) for part in parts] == [
        ("7_0", "COMPLETED"), ("7_1", "FAILED, exit 3"), ("7_2", "COMPLETED"),
    ]  # fmt: skip
    assert [path.name for path in find_logs("7", Cluster())] == [
        "x-7_0.out",
        "x-7_1.out",
        "x-7_2.out",
    ]
    assert [path.name for path in find_logs("7_1", Cluster())] == ["x-7_1.out"]


@pytest.mark.parametrize(
    ("line", "script", "file"),
    [
        ("sbatch job.sh", "#!/bin/sh\n#SBATCH --output=said-%j.txt\n", "said-7.txt"),
        ("sbatch job.sh", "#!/bin/sh\n#SBATCH -o said-%j.txt\n", "said-7.txt"),
        (
            "sbatch job.sh -o results",
            '#SBATCH -J n -o "said-%j.txt"\n',
            "said-7.txt",
        ),  # -o is the program's
        ("sbatch job.sh", "#SBATCH --output=%x-%u.txt\n", "its-name-me.txt"),
        ("sbatch -o elsewhere.txt job.sh", "#SBATCH -o said-%j.txt\n", "elsewhere.txt"),
        ("sbatch --parsable --output=elsewhere.txt job.sh", "", "elsewhere.txt"),
        ("sbatch -N2 job.sh", "#!/bin/sh\ntrue\n", "slurm-7.out"),
        ("sbatch --wrap 'echo hello'", "", "slurm-7.out"),
    ],
)
def test_a_script_of_the_users_own_that_slurm_forgot(
    tmp_path: Path, line: str, script: str, file: str
) -> None:
    (tmp_path / "job.sh").write_text(script)
    (tmp_path / file).write_text("hello\n")
    slurm = Cluster(
        sacct=accounted(("7", "FAILED", "1:0", str(tmp_path), "its-name", "me", "7", line))
    )
    assert find_job_parts("7", slurm) == [
        JobPart("7", JobState("FAILED", 1), files=(tmp_path / file,))
    ]


def test_the_state_that_slurm_says_now_counts(launches: Path) -> None:
    launch(launches, began="7\n0\nn1\n", ended="3\n", stderr_log="x\n")
    (part,) = find_job_parts(
        "7",
        Cluster("JobId=7 JobState=TIMEOUT Reason=TimeLimit ExitCode=0:15 RunTime=00:01:00 Power="),
    )
    assert part.state == JobState("TIMEOUT", 3)
    assert part.describe() == "the time limit was reached"


def test_the_launch_that_one_asks_about(launches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This terminal's newest; where it has launched nothing, the newest that failed; else the
    newest.
    """
    terminal = record.digest_of_terminal(record.find_this_terminal())
    ends = ("aaaaaaaa", f"{terminal}aaaa", f"{terminal}aaab")  # the last one by chance
    names = [f"2026010{day}T000000.0Z-{end}" for day, end in zip((1, 2, 3), ends, strict=True)]
    for name, status in zip(names, ("3\n", "0\n", "0\n"), strict=True):
        launch(launches, name, ended=status)
    assert record.find_failed().folder.name == names[0]
    here = launches / names[1] / record.FILE
    here.write_text(
        json.dumps({**json.loads(here.read_text()), "terminal": record.find_this_terminal()})
    )
    assert record.find_failed().folder.name == names[1]
    monkeypatch.setenv("HPCSTACK_RUN", str(launches / names[2]))
    assert record.find_failed().folder.name == names[2]


def test_a_programs_own_option_makes_no_array(launches: Path) -> None:
    folder = launch(
        launches, argv=("srun", "train.py", "--array-size", "3"), began="7\n", ended="0\n"
    )
    (folder / record.FILE).write_text(
        json.dumps(
            {
                **json.loads((folder / record.FILE).read_text()),
                "command": ["train.py", "--array-size", "3"],
            }
        )
    )
    assert not record.find_launch("7").is_array


def test_an_older_slurm_keeps_no_line(launches: Path) -> None:
    """Before 21.08 sacct refuses a question about SubmitLine as a whole: its states count all the
    same.
    """

    class Older(Cluster):
        def output(self, argv: Any, **more: Any) -> Completed:
            if any("SubmitLine" in word for word in argv):
                return Completed(
                    tuple(argv), 1, ('sacct: fatal: Invalid field requested: "SubmitLine"',), ""
                )
            return super().output(argv, **more)

    assert find_job_parts("7", Older(sacct=accounted(("7", "FAILED", "1:0")))) == [
        JobPart("7", JobState("FAILED", 1))
    ]


def test_tasks_that_slurm_has_forgotten_count_as_they_were_recorded(launches: Path) -> None:
    """It forgets an array task by task: the last one alone is no array of one."""
    files = {f"ended_{task}": f"{status}\n" for task, status in enumerate((0, 3, 0))}
    launch(launches, argv=("srun", "--array=0-2"), began="7_2\n", **files)
    array = record.find_launch("7")
    known = {"7": JobState("COMPLETED"), "7_2": JobState("RUNNING"), "70_1": JobState("PENDING")}
    assert {task: str(state) for task, state in list_task_states(array, known).items()} == {
        "0": "COMPLETED",
        "1": "FAILED, exit 3",
        "2": "COMPLETED",
    }
    assert len(list_task_states(array, {})) == 3


class Silent(Cluster):
    """A Slurm that does not answer."""

    def output(self, argv: Any, **_: Any) -> Completed:
        return Completed(tuple(argv), 1, ("Unable to contact slurm controller",), "")


@pytest.mark.parametrize(
    ("slurm", "files", "has_ended"),
    [
        (Cluster("JobId=7 JobState=RUNNING RunTime=01:00:00 Power="), {"began": "7\n"}, False),
        (Cluster("JobId=7 JobState=COMPLETED RunTime=01:00:00 Power="), {"began": "7\n"}, True),
        (Cluster(), {"began": "7\n", "ended": "3\n"}, True),
        (Cluster(), {"began": "7\n"}, True),  # Slurm has forgotten it, and nothing was recorded
        (Silent(), {"began": "7\n"}, False),
        (Silent(), {"began": "7\n", "ended": "3\n"}, True),
    ],
)
def test_a_slurm_that_does_not_answer_is_no_end(
    launches: Path, slurm: Cluster, files: dict[str, str], has_ended: bool
) -> None:
    folder = launch(launches)
    for name, text in files.items():
        (folder / name).write_text(text)
    parts = find_job_parts("7", slurm)
    assert is_known_to_have_ended("7", parts, slurm) is has_ended


def test_a_step_in_a_job_that_goes_on_ends_with_its_record(launches: Path) -> None:
    folder = launch(launches, began="7\n0\nn1\n")
    runs = Cluster("JobId=7 JobState=RUNNING RunTime=01:00:00 Power=")
    assert not is_known_to_have_ended(folder.name, [], runs)
    (folder / "ended").write_text("0\nCOMPLETED\n\n")
    assert is_known_to_have_ended(folder.name, [], runs)
