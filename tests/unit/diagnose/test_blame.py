"""Which nodes a failure is blamed on, and when none is."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcstack.core.errors import InputError, SlurmError
from hpcstack.core.process import Completed, Runner
from hpcstack.diagnose.blame import (
    FAILURE,
    HANG,
    HEALTH,
    Blamed,
    _blame_by_file,
    blame_by_health,
    blame_by_log,
    blame_by_stacks,
    choose_blamed,
)
from hpcstack.diagnose.examine_log import examine_text
from hpcstack.launch import requeue
from hpcstack.launch.requeue import find_requeueable, requeue_without
from hpcstack.site.load import load_site

GPUS = """\
node_types: {h100: {gpus: {model: H100, count: 8, nvlink: true}}}
health: {ignore: [own-slow]}
"""
NODES = ("n1", "n2", "n3", "n4")
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


class Says(Runner):
    """A cluster that answers what `said` has for the first words that a command line begins with."""

    def __init__(self, **said: str) -> None:
        self.said = said
        self.asked: list[tuple[str, ...]] = []

    def has(self, tool: str) -> bool:
        return True

    def output(self, argv: Sequence[str], **_: object) -> Completed:
        words = tuple(argv)
        self.asked.append(words)
        for key, said in self.said.items():
            if key in words:
                status = int(said.startswith("error"))
                return Completed(words, status, tuple(said.splitlines()), said)
        return Completed(words, 0, (), "")


def answer_health(**unfit: str) -> str:
    """What srun prints of the health checks of NODES but n4, labelled."""
    lines = []
    for number, node in enumerate(NODES[:3]):
        why = unfit.get(node, "")
        failed = [{"why": why}] if why else []
        said = json.dumps({"node": node, "healthy": not why, "failed": failed})
        lines.append(f"{number}: {said}")
    return "\n".join([*lines, "0: noise", "1: [1, 2]"])


def test_a_node_that_is_unfit_or_silent_is_blamed(tmp_path: Path) -> None:
    site = load_site("", {"HOME": str(tmp_path)}).site
    silent = Blamed("n4", HEALTH, "it does not answer")
    runner = Says(srun=answer_health(n2="an Xid"))
    found = blame_by_health("7", NODES, site, runner, whole=True)
    assert found == [Blamed("n2", HEALTH, "an Xid"), silent]
    nobody = blame_by_health("7", NODES, site, Says(), whole=True)
    assert nobody == [], "where nobody answers, nobody is blamed"


def test_what_the_job_itself_may_have_done_is_not_asked(tmp_path: Path) -> None:
    """Its files may fill /dev/shm, and of the GPUs it may see a part."""
    (tmp_path / "site.yaml").write_text(GPUS)
    site = load_site(str(tmp_path / "site.yaml"), {"HOME": str(tmp_path)}).site
    for whole, left_out in ((True, "shm tmp"), (False, "shm tmp gpus nvlink")):
        runner = Says(srun=answer_health(n2="/data is not here"))
        found = blame_by_health("7", NODES[:3], site, runner, whole=whole)
        assert found == [Blamed("n2", HEALTH, "/data is not here")]
        (asked,) = (words for words in runner.asked if "srun" in words)
        assert f"ignored='own-slow {left_out}'" in asked[-1]
    full = {"node": "n1", "healthy": False, "failed": [{"check": "shm", "why": "full"}]}
    runner = Says(srun=f"0: {json.dumps(full)}")
    assert blame_by_health("7", ("n1",), site, runner, whole=True) == []


def test_the_whole_node_is_known_by_the_gpus_of_the_job() -> None:
    fields = "JobId=7 JobState=RUNNING NumNodes=2 AllocTRES=cpu=8,gres/gpu=16,gres/gpu:h100=16"
    assert find_requeueable("7", Says(show=fields, hostnames="n1\nn2")).gpus == 8


def test_ranks_whose_stacks_nobody_can_read_blame_no_node() -> None:
    text = "".join(
        f"{number}: hpcstack: rank {number} of 4 on n{number + 1} is process 7 of step 0, state S: "
        f"python\n{number}:   threads: {13 - (number == 2)} python, state S, waits in futex\n"
        for number in range(4)
    )
    assert blame_by_stacks(text) == []
    busy = "".join(rank(number, f"f{number} (/home/me/train.py:{number})") for number in range(4))
    assert blame_by_stacks(busy) == [], "nobody waits for anybody"


def test_what_was_written_before_the_last_start_does_not_count() -> None:
    first = "hpcstack: rank 5 on n3 ended with 1 [0 5.0]"
    log = f"{ECC}\n{first}\nhpcstack: start 2 of job 7\nValueError: x\n"
    assert (
        blame_by_log(examine_text(log + "hpcstack: rank 1 on n4 ended with 1 [0 9.0]\n"), NODES)
        == []
    )
    again = f"{log}{ECC}\nhpcstack: rank 1 on n4 ended with 1 [0 9.0]\n"
    assert [one.node for one in blame_by_log(examine_text(again), NODES)] == ["n4"]


def test_a_message_about_a_machine_blames_the_node_that_it_names_or_that_failed_first() -> None:
    first = "hpcstack: rank 5 on n3 ended with 1 [0 5.0]"
    assert [one.node for one in blame_by_log(examine_text(f"{ECC}\n{first}\n"), NODES)] == ["n3"]
    named = "salloc: error: Node failure on n2"
    found = blame_by_log(examine_text(named), NODES)
    assert [(one.node, one.by) for one in found] == [("n2", FAILURE)]
    assert blame_by_log(examine_text("salloc: error: Node failure on n22"), NODES) == []
    assert (
        blame_by_log(examine_text(f"ModuleNotFoundError: No module named 'x'\n{first}\n"), NODES)
        == []
    )


def rank(number: int, place: str) -> str:
    host = f"n{number + 1}"
    return (
        f"{number}: hpcstack: rank {number} of 4 on {host} is process 7 of step 0, state S: python\n"
        f'{number}:   Thread 7 (idle): "MainThread"\n{number}:       {place}\n'
    )


WAITS = "all_reduce (/usr/lib/torch/distributed/distributed_c10d.py:5)"
SLEEPS = "sleeps (/home/me/train.py:9)"


def test_the_rank_that_stands_out_in_a_hang_blames_its_node() -> None:
    text = "".join(rank(number, SLEEPS if number == 2 else WAITS) for number in range(4))
    (one,) = blame_by_stacks(text)
    assert (one.node, one.by) == ("n3", HANG)
    asked = "hpcstack: silent for 60 s: the ranks are asked what they do\n"
    log = f"{asked}{text}hpcstack: nothing was written for 60 s: it is ended\n"
    assert [one.node for one in blame_by_log(examine_text(log), NODES)] == ["n3"]
    assert blame_by_log(examine_text(text), NODES) == [], "stacks alone end no job"


def test_a_log_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Its user chose where the log is, and root may ask."""
    os.mkfifo(tmp_path / "pipe")
    assert _blame_by_file(tmp_path / "pipe", NODES) == []
    assert _blame_by_file(tmp_path / "none", NODES) == []
    (tmp_path / "log").write_text(f"{ECC}\nhpcstack: rank 5 on n3 ended with 1 [0 5.0]\n")
    assert [one.node for one in _blame_by_file(tmp_path / "log", NODES)] == ["n3"]


@pytest.mark.parametrize("speaker", ["slurmstepd-n3: ", "[2026-01-02T03:04:05.123] ", ""])
def test_what_slurm_put_back_does_not_count_either(speaker: str) -> None:
    first = "hpcstack: rank 5 on n3 ended with 1 [0 5.0]"
    put_back = (
        f"{speaker}error: *** JOB 7 ON n3 CANCELLED AT 2026-01-02T03:04:05 DUE TO JOB REQUEUE ***"
    )
    assert blame_by_log(examine_text(f"{ECC}\n{first}\n"), NODES)
    assert blame_by_log(examine_text(f"{ECC}\n{first}\n{put_back}\nValueError: x\n"), NODES) == []


def test_none_is_blamed_where_most_stand_out() -> None:
    one, two, three = (Blamed(node, HEALTH, "why") for node in NODES[:3])
    assert choose_blamed([one, one, two], NODES) == ([one, two], "")
    assert choose_blamed([], NODES) == ([], "no node stands out")
    assert choose_blamed([one, two, three], NODES)[0] == []
    assert choose_blamed([Blamed("other", HEALTH, "x")], NODES)[0] == []
    assert choose_blamed([one], ("n1",)) == ([one], "")


JOB = (
    "JobId=7 JobState={state} Requeue=1 BatchFlag=1 NodeList=n[1-2] "
    "ReqNodeList={required} ExcNodeList={excluded}"
)


def cluster(**fields: str) -> Says:
    values = {"state": "RUNNING", "required": "(null)", "excluded": "(null)", **fields}
    answers = {"hostnames": "n1\nn2", "show": JOB.format(**values)}
    return Says(**answers)


def test_what_is_excluded_already_stays_excluded() -> None:
    runner = cluster(excluded="n9")
    requeue_without(find_requeueable("7", runner), ["n2"], runner)
    assert runner.asked[-2:] == [
        ("scontrol", "requeue", "7"),
        ("scontrol", "update", "JobId=7", "ExcNodeList=n9,n2"),
    ]


def test_a_jobs_comment_does_not_name_another_job() -> None:
    runner = cluster()
    runner.said["show"] += " Comment=x JobId=999 JobState=PENDING"
    assert find_requeueable("7", runner).job == "7"
    with pytest.raises(InputError, match="Slurm knows no job '999'"):
        find_requeueable("999", runner)


def test_a_task_of_an_array_is_meant_alone() -> None:
    record = JOB.format(state="RUNNING", required="(null)", excluded="(null)")
    tasks = [f"{record} ArrayJobId=7 ArrayTaskId={task}" for task in (3, 1)]
    runner = Says(hostnames="n1\nn2", show="\n".join(tasks))
    assert find_requeueable("7_1", runner).job == "7_1"
    with pytest.raises(InputError, match="name a task of the array, 7_3"):
        find_requeueable("7", runner)


def test_a_heterogeneous_job_is_meant_by_its_first_part() -> None:
    first = JOB.format(state="RUNNING", required="(null)", excluded="(null)")
    second = first.replace("JobId=7", "JobId=8", 1)
    records = [f"{first} HetJobId=7 HetJobOffset=0", f"{second} HetJobId=7 HetJobOffset=1"]
    runner = Says(hostnames="n1\nn2", show="\n".join(records))
    assert find_requeueable("7", runner).job == "7"


def test_what_cannot_start_again_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="job 7 is PENDING"):
        find_requeueable("7", cluster(state="PENDING"))
    with pytest.raises(InputError, match="Slurm knows no job"):
        find_requeueable("x", cluster())
    runner = cluster(required="n[1-2]")
    with pytest.raises(InputError, match="asks for n1, n2 by name"):
        requeue_without(find_requeueable("7", runner), ["n1", "n2"], runner)

    monkeypatch.setattr(requeue, "TRIES", 2)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    runner = cluster()
    found = find_requeueable("7", runner)
    runner.said = {"update": "error: busy"}
    with pytest.raises(SlurmError, match="is requeued, but Slurm does not exclude n2: error: busy"):
        requeue_without(found, ["n2"], runner)
    runner.said = {"requeue": "error: disabled"}
    with pytest.raises(SlurmError, match="error: disabled"):
        requeue_without(found, ["n2"], runner)
