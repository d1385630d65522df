"""Ctrl-C on `hpcstack launch`, typed on a terminal: each rank is interrupted once, and ends in its
own time.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from support.launching import RUNTIMES, STACK
from support.terminal import press_ctrl_c
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.alone, pytest.mark.slurm]

FOLDER = "tests/interrupts"
# The second rank needs longer than the first, and the fourth longest: what ends the others with the
# first one is seen.
SAVES = """\
import os, time

rank = os.environ.get("RANK") or os.environ["SLURM_PROCID"]
count = 0
try:
    open(f"ready-{rank}", "w").close()
    time.sleep(300)
except KeyboardInterrupt:
    count += 1
    raise
finally:
    time.sleep(1 + int(rank))
    import xml.dom.minidom  # of the image, which is still there
    with open(f"saved-{rank}", "w") as file:
        file.write(str(count))
"""


@pytest.fixture
def saves(testbed: Testbed, built: dict[str, Any]) -> str:
    testbed.bash(f"rm -rf {FOLDER} && mkdir -p {FOLDER}")
    testbed.give(f"{FOLDER}/saves.py", SAVES)
    return FOLDER


def _saved(testbed: Testbed) -> str:
    return testbed.bash(f"cd {FOLDER} && grep -H . saved-* 2>/dev/null", check=False).stdout


def _line(*options: str, program: str = "saves.py") -> tuple[str, ...]:
    return ("hpcstack", "launch", STACK, "-N2", *options, "--", program)


ALL_READY = tuple(f"ready-{rank}" for rank in range(4))
ALL_SAVED = "".join(f"saved-{rank}:1\n" for rank in range(4))


def runtimes_and_modes() -> list[Any]:
    """Every mode by every runtime in ci/soak; else every runtime in one mode, and Apptainer in
    each.
    """
    found = []
    for one in RUNTIMES:
        (runtime,) = one.values
        for mode in ("torchrun", "task-per-gpu", "plain"):
            if (
                os.environ.get("HPCSTACK_TABLE") == "all"
                or runtime == "apptainer"
                or mode == "torchrun"
            ):
                found.append(pytest.param(runtime, mode, marks=one.marks, id=f"{runtime}-{mode}"))
    return found


@pytest.mark.parametrize(("runtime", "mode"), runtimes_and_modes())
@pytest.mark.soak(
    "ranks of a launcher, and ranks of Slurm's", but=lambda mode: mode != "task-per-gpu"
)
def test_each_rank_is_interrupted_once_and_ends_in_its_own_time(
    testbed: Testbed, saves: str, runtime: str, mode: str
) -> None:
    each = ("--ntasks-per-node=2",) if mode == "plain" else ("--nproc-per-node=2",)
    typed = press_ctrl_c(
        testbed, saves, _line(*each, "--mode", mode, "--runtime", runtime), ALL_READY
    )
    assert _saved(testbed) == ALL_SAVED, typed.screen
    assert typed.status == 130
    assert typed.seconds < 20
    assert typed.screen.splitlines()[-1] == "hpcstack: interrupted: 4 ranks ended; exit 130", (
        typed.screen
    )


@pytest.mark.apptainer
@pytest.mark.parametrize("where", ["a job of its own", "an allocation"])
@pytest.mark.soak("one script of two", but=lambda where: where == "an allocation")
def test_so_it_is_where_a_script_runs_the_step(testbed: Testbed, saves: str, where: str) -> None:
    """On a terminal salloc lets Ctrl-C reach the script alone, which tells hpcstack."""
    line = _line("--nproc-per-node=2", "--runtime=apptainer", "--grace=60", "--time=10")
    if where == "an allocation":
        line = ("salloc", "-N2", "--cpus-per-task=2", "--time=10", *line)
    typed = press_ctrl_c(testbed, saves, line, ALL_READY)
    assert _saved(testbed) == ALL_SAVED, typed.screen
    assert typed.status == 130
    said = [
        line
        for line in typed.screen.splitlines()
        if line.startswith(("hpcstack: ", "^Chpcstack: "))
    ]
    assert said[1:] == ["hpcstack: interrupted: 4 ranks ended; exit 130"], typed.screen


@pytest.mark.apptainer
def test_what_slurm_and_the_ranks_say_of_it_is_shown_once_and_explained(
    testbed: Testbed, saves: str
) -> None:
    typed = press_ctrl_c(
        testbed, saves, _line("--nproc-per-node=2", "--runtime=apptainer"), ALL_READY
    )
    shown = typed.screen.partition("^C")[2]
    assert "srun" not in shown
    assert "slurmstepd" not in shown
    assert shown.count("KeyboardInterrupt") == 1
    newest = testbed.json("jobs", "-n", "1")[0]
    assert newest["state"] == "CANCELLED by Ctrl-C, exit 130"
    found = testbed.json("explain", newest["job"])
    assert found["state"] == newest["state"]
    assert found["said"].startswith("it was cancelled by Ctrl-C")


@pytest.mark.apptainer
@pytest.mark.parametrize("pause", [0.4, 1.6])  # srun counts what comes within a second as one more
@pytest.mark.soak("srun does not see it where hpcstack does", but=lambda pause: pause < 1)
def test_a_second_one_waits_for_nobody(testbed: Testbed, saves: str, pause: float) -> None:
    line = _line("--nproc-per-node=2", "--runtime=apptainer")
    typed = press_ctrl_c(testbed, saves, line, ALL_READY, pauses=(pause,))
    assert typed.status == 130
    assert "saved-3" not in _saved(testbed), "the last rank needs four seconds"
    last = typed.screen.splitlines()[-1].removeprefix("^C")
    assert last.startswith(
        "hpcstack: interrupted twice: nobody waited for the ranks; exit 130; log: "
    )


TERMINATED = """\
cd "$1" && shift
salloc --quiet -N2 --time=10 --cpus-per-task=2 "$@" </dev/null >said 2>&1 &
until [ -e ready-3 ]; do sleep 0.2; done
pkill -TERM -P "$!"
wait $!
echo "exit $?" >>said
"""


@pytest.mark.apptainer
def test_a_term_for_hpcstack_alone_ends_what_a_script_runs(testbed: Testbed, saves: str) -> None:
    """The script waits for its step whatever it is told: it went on for as long as the step did."""
    testbed.give(f"{FOLDER}/saves.py", SAVES.replace("300", "60"))
    line = _line("--nproc-per-node=2", "--runtime=apptainer", "--grace=60")
    testbed.bash(TERMINATED, saves, *line, timeout=120)
    said = testbed.bash(f"cat {FOLDER}/said").stdout
    last, status = said.splitlines()[-2:]
    assert last.startswith("hpcstack: it was cancelled; exit 143; log: "), said
    assert status == "exit 143"
    assert "saved-3" not in _saved(testbed)


DEAF = """\
import os, signal, time

if os.environ["RANK"] == "3":
    signal.signal(signal.SIGINT, lambda *_: None)  # where it is ignored the rank gets a TERM
open("ready-" + os.environ["RANK"], "w").close()
time.sleep(300)
"""


@pytest.mark.apptainer
def test_a_rank_that_does_not_end_is_killed_and_named(testbed: Testbed, saves: str) -> None:
    testbed.give(f"{FOLDER}/deaf.py", DEAF)
    line = _line("--nproc-per-node=2", "--runtime=apptainer", program="deaf.py")
    typed = press_ctrl_c(testbed, saves, line, ALL_READY)
    assert typed.status == 130
    assert 30 <= typed.seconds < 60
    last = "hpcstack: interrupted; rank 3 was killed: it had not ended after 30 s; exit 130; log: "
    assert typed.screen.splitlines()[-1].startswith(last)


WRONG = SAVES.replace(
    "    time.sleep(1 + int(rank))\n", "    time.sleep(1 + int(rank))\n    assert rank != '2'\n"
)


@pytest.mark.apptainer
def test_a_rank_that_fails_as_it_ends_is_named(testbed: Testbed, saves: str) -> None:
    testbed.give(f"{FOLDER}/wrong.py", WRONG)
    line = _line("--nproc-per-node=2", "--runtime=apptainer", program="wrong.py")
    typed = press_ctrl_c(testbed, saves, line, ALL_READY)
    assert typed.status == 130
    assert _saved(testbed) == ALL_SAVED.replace("saved-2:1\n", "")
    assert "hpcstack: interrupted; rank 2 on node" in typed.screen.splitlines()[-1], typed.screen
    assert "AssertionError" in typed.screen.splitlines()[-1]


@pytest.mark.apptainer
def test_while_it_waits_for_nodes_it_ends_at_once(testbed: Testbed, saves: str) -> None:
    hold = "srun -N2 --exclusive --job-name=holds sleep 60 & sleep 2; touch holds; wait"
    line = (
        "bash",
        "-c",
        f'{hold} & "$@"; scancel --name=holds',
        "bash",
        *_line("--runtime=apptainer", "--exclusive"),
    )
    typed = press_ctrl_c(testbed, saves, line, ("holds",), delay=2)
    assert typed.seconds < 10
    assert "hpcstack: interrupted; exit 130" in typed.screen, typed.screen
