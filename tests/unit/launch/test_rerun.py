"""Which tasks of a batch job are submitted again, and how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcstack.core.errors import AnswerIsNo, InputError
from hpcstack.core.process import Completed, Runner
from hpcstack.launch import record, rerun
from hpcstack.launch.rerun import plan_rerun, submit_again
from hpcstack.slurm.state import JobState

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=pytorch-24.11
#SBATCH --array=0-4%2
#SBATCH --output=%x-%A_%a.out
true
"""


class Sbatch(Runner):
    """A Slurm that takes what is submitted, and has forgotten all jobs."""

    def __init__(self) -> None:
        self.lines: list[list[str]] = []

    def has(self, tool: str) -> bool:
        return True

    def which(self, tool: str) -> str:
        return f"/usr/bin/{tool}"

    def output(self, argv: Any, **_: Any) -> Completed:
        if "sbatch" not in argv:
            return Completed(tuple(argv), 1)
        self.lines.append(list(argv)[list(argv).index("sbatch") :])
        return Completed(tuple(argv), 0, (), "99\n")


@pytest.fixture(autouse=True)
def launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("HPCSTACK_RUN", raising=False)
    return tmp_path / "state/hpcstack/launches"


def make_launch(launches: Path, *, job: str = "7", **about: Any) -> Path:
    """A launch of an array, of whose tasks 0 ended well, 1 and 4 failed, and 3 has recorded nothing."""
    folder = launches / "20260101T000000.0Z-aaaaaaaa"
    folder.mkdir(parents=True)
    image = launches.parent / "image.sqsh"
    image.touch()
    keys = dict.fromkeys(("stack", "started", "runtime", "mode", "image_sha256"), "")
    document = {
        **keys,
        "stack": "pytorch-24.11",
        "command": ["train.py"],
        "image": str(image),
        "folder": str(launches),
        "batch": True,
        "array": True,
        **about,
    }
    (folder / record.FILE).write_text(json.dumps(document))
    (folder / record.SCRIPT).write_text(SCRIPT)
    (folder / record.BEGAN).write_text(f"{job}\n\n\n")
    for task, end in ((0, "0\nCOMPLETED\n"), (1, "3\nFAILED\n"), (4, "143\nCANCELLED\nme\n")):
        (folder / f"{record.ENDED}-{task}").write_text(end)
    return folder


@pytest.fixture
def going(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm still has task 2, which runs."""
    states = {"7_2": JobState("RUNNING")}
    monkeypatch.setattr(rerun, "find_states", lambda *_: states)


@pytest.mark.usefixtures("going")
def test_the_tasks_that_failed_are_submitted_again(launches: Path) -> None:
    folder = make_launch(launches)
    slurm = Sbatch()
    found = plan_rerun("7", "", slurm)
    assert found.tasks == (1, 4)
    assert found.unknown == (3,)
    assert {task: str(state) for task, state in found.states.items()} == {
        1: "FAILED, exit 3", 4: "CANCELLED by me, exit 143",
    }  # fmt: skip

    job, new, output = submit_again(found, slurm)
    assert job == "99"
    assert slurm.lines == [
        ["sbatch", "--parsable", f"--chdir={launches}", "--array=1,4%2", str(new / record.SCRIPT)]
    ]
    assert output == f"{launches}/pytorch-24.11-99_%a.out"
    assert new != folder
    again = record.find_launch("99")
    assert (again.folder, again.command, again.is_array) == (new, ("train.py",), True)
    assert again.document["again"] == "7"
    assert again.document["array_option"] == "1,4%2"


@pytest.mark.usefixtures("going")
@pytest.mark.parametrize(
    ("tasks", "chosen", "refused"),
    [
        ("3", (3,), ""),
        ("0-1,3", (0, 1, 3), ""),
        ("2", (), "2 wait or run"),
        ("1,9", (), "has no task 9"),
        ("x", (), "is not understood"),
        ("0-4000000000", (), "is not understood"),
    ],
)
def test_tasks_can_be_named(
    launches: Path, tasks: str, chosen: tuple[int, ...], refused: str
) -> None:
    make_launch(launches)
    if refused:
        with pytest.raises(InputError, match=refused):
            plan_rerun("7", tasks, Sbatch())
        return
    assert plan_rerun("7", tasks, Sbatch()).tasks == chosen


@pytest.mark.usefixtures("going")
def test_a_task_may_be_named_by_its_job(launches: Path) -> None:
    make_launch(launches)
    assert plan_rerun("7_1", "", Sbatch()).tasks == (1,)
    for job, tasks in (("7.0", ""), ("7+1", ""), ("7_1", "2"), ("7", "3%9")):
        with pytest.raises(InputError):
            plan_rerun(job, tasks, Sbatch())


@pytest.mark.usefixtures("going")
def test_what_nobody_knows_has_not_failed(launches: Path) -> None:
    folder = make_launch(launches)
    for task in (1, 4):
        (folder / f"{record.ENDED}-{task}").unlink()
    with pytest.raises(AnswerIsNo, match="none of its 5 tasks is known to have failed") as no:
        plan_rerun("7", "", Sbatch())
    assert "--tasks 1,3-4" in no.value.hint


@pytest.mark.parametrize(
    ("end", "failed"), [("1\nFAILED\n", True), ("0\nCOMPLETED\n", False), ("", False)]
)
def test_a_single_job_is_submitted_again_if_it_failed(
    launches: Path, end: str, failed: bool
) -> None:
    folder = make_launch(launches, array=False)
    (folder / record.ENDED).write_text(end)
    if failed:
        assert plan_rerun("7", "", Sbatch()).options == (f"--chdir={launches}",)
    else:
        with pytest.raises(AnswerIsNo, match="nobody knows|it is COMPLETED"):
            plan_rerun("7", "", Sbatch())


@pytest.mark.parametrize("about", [{"batch": False}, {"allocation": "7"}, {"image": "/no/image"}])
def test_what_cannot_be_done_again_is_refused(launches: Path, about: dict[str, Any]) -> None:
    make_launch(launches, **about)
    with pytest.raises(InputError, match="was not submitted by|is gone"):
        plan_rerun("7", "", Sbatch())


def test_of_a_script_of_the_users_own_sbatchs_line_is_said(
    launches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcstack.launch.jobs import Accounted

    line = "sbatch --comment=it's -a 0-3 my.sh"
    states = ("COMPLETED", "FAILED", "TIMEOUT", "RUNNING")
    known = {f"8_{n}": Accounted(JobState(word), line=line) for n, word in enumerate(states)}
    monkeypatch.setattr(rerun, "query_accounting", lambda *_: known)
    with pytest.raises(InputError, match="was not submitted by") as refused:
        plan_rerun("8", "", Sbatch())
    assert refused.value.hint == f"with --array=1-2 in place of its own: {line}"
