"""Known failures: every signature finds its own line, says where it comes from, and is ranked
before its echoes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcstack.core.yaml import parse_yaml
from hpcstack.diagnose.examine_log import NEVER, examine_text, explain_log
from hpcstack.diagnose.signatures import list_literals, read_signatures
from support.clock import processor_seconds

DATA = Path(__file__).parents[2] / "data"
LINES = {
    id_: line
    for name in sorted(path.name for path in DATA.glob("log-lines*.yaml"))
    for id_, line in parse_yaml((DATA / name).read_text(), name).value.items()
}
IDS = [signature.id for signature in read_signatures()]


def test_every_signature_has_a_source_and_a_line_and_no_line_is_left() -> None:
    assert len(IDS) == len(set(IDS)) >= 60
    assert set(LINES) == set(IDS)
    for signature in read_signatures():
        assert signature.source.startswith("https://")
        assert 1 <= signature.rank <= 100
        assert signature.id.startswith(signature.family)
        assert signature.cause
        assert signature.remedy


@pytest.mark.parametrize(
    ("line", "is_slurms"),
    [
        ("[2026-11-26T12:48:15.248] error: write /var/spool/slurmd: No space left on device", True),
        ("0: [2026-11-26T12:48:15.248] error: write /var/spool: No space left on device", True),
        ("[Nov 26 12:48:15] error: write /var/spool: No space left on device", True),
        ("[main] error: failed to write /var/tmp/ckpt.pt: No space left on device", False),
        ("[rank0] error: /scratch/var/spool: No space left on device", False),
    ],
)
def test_a_disk_is_slurms_own_where_slurmstepd_says_so(line: str, is_slurms: bool) -> None:
    found = {finding.signature.id for finding in explain_log(line)}
    assert ("slurm-spool-full" in found) is is_slurms


def test_what_slurmstepd_writes_from_25_05_on_is_recognized_too() -> None:
    """Where it said `slurmstepd-node1: `, it now says what time it is: slurm/step_messages.py."""
    by_slurmstepd = {
        id_: line for id_, line in LINES.items() if re.search(r"slurmstepd\S*: ", line)
    }
    missed = []
    for id_, line in by_slurmstepd.items():
        newer = re.sub(r"slurmstepd\S*: ", "[2026-11-26T12:48:15.248] ", line)
        if id_ not in {finding.signature.id for finding in explain_log(newer)}:
            missed.append(id_)
    assert missed == []
    assert len(by_slurmstepd) > 40


def describe_miss(id_: str) -> str:
    """What is wrong with how the line of the signature ID_ is explained; empty where all is well."""
    found = {
        finding.signature.id: finding for finding in explain_log(f"before\n{LINES[id_]}\nafter\n")
    }
    if id_ not in found:
        return f"{id_} is not among {sorted(found)}"

    finding = found[id_]
    if (finding.number, finding.count) != (2, 1):
        return f"{id_} is found {finding.count} times, first in line {finding.number}"
    if "{" in re.sub(r"\{line\}", "", finding.cause + finding.remedy):
        return f"{id_} has a group that is not filled"
    return ""


def test_its_own_line_is_explained() -> None:
    assert [missed for id_ in IDS if (missed := describe_miss(id_))] == []


def test_no_signature_slows_down_on_a_hostile_line() -> None:
    for line in (
        "error: " * 4000,
        "a" * 30000,
        "NCCL WARN " + "(" * 20000,
        "srun: error: " + "x:" * 10000,
    ):
        began = processor_seconds()
        explain_log(line)
        assert processor_seconds() - began < 2


def test_many_lines_are_searched_in_seconds() -> None:
    text = (
        "step 1000 loss 2.71828 lr 0.0001 tokens/s 123456\n" * 300_000 + LINES["slurm-time-limit"]
    )
    began = processor_seconds()
    assert [finding.signature.id for finding in explain_log(text)] == ["slurm-time-limit"]
    assert processor_seconds() - began < 20


def test_why_a_message_is_about_a_machine_is_written_down() -> None:
    why = parse_yaml((DATA / "of-node.yaml").read_text(), "of-node.yaml").value
    of_node = {signature.id for signature in read_signatures() if signature.of_node}
    assert set(why["of_node"]) == of_node
    assert set(why["of_none"]) <= set(IDS) - of_node
    assert all(reason.endswith((".", ")")) for reason in why["of_node"].values())


def test_the_root_comes_before_its_echoes() -> None:
    log = "\n".join(
        LINES[id_] for id_ in ("slurm-step-cancelled", "slurm-task-exit-code", "slurm-oom-kill")
    )
    assert explain_log(log)[0].signature.id == "slurm-oom-kill"


@pytest.mark.parametrize(
    ("pattern", "literal"),
    [
        (r"error: (?P<x>\d+) of it failed", (" of it failed",)),
        (r"abc?defgh", ("defgh",)),
        (r"a\.b\d+ cdefg", (" cdefg",)),
        (r"one|two", ()),
        (r"first|second", ("first", "second")),
        (r"(?:one|two) three", (" three",)),
        (r"[a-z)(]+ kill event", (" kill event",)),
        (r"x{2,3} yyyy", (" yyyy",)),
        (r"(?i)LOUDER", ("louder",)),
        (r"(?i:is \(not\) loud)", ("is (not) loud",)),
        (r"(?:is loud|is (?P<x>\w+) quiet)", ("is loud", " quiet")),
        (r"(?:one two) three (?:four five)", (" three ",)),
    ],
)
def test_the_literals_of_a_pattern(pattern: str, literal: tuple[str, ...]) -> None:
    assert list_literals(pattern) == literal


def test_no_signature_needs_a_look_at_every_line() -> None:
    assert [signature.id for signature in read_signatures() if not signature.literals] == []


def test_terminals_commands_are_not_passed_on() -> None:
    finding = explain_log("\x1b]0;title\x07" + LINES["slurm-oom-kill"] + "\x1b[2J")[0]
    assert "\x1b" not in finding.line


def verb(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "hpcstack", "explain", *words]
    return subprocess.run(argv, input=given, capture_output=True, text=True, check=False)


def test_the_verb(tmp_path: Path) -> None:
    log = tmp_path / "slurm-1.out"
    log.write_text(
        "\n".join(["all is well", LINES["slurm-oom-kill"], LINES["slurm-task-exit-code"]])
    )
    done = verb(str(log))
    assert done.returncode == 0
    assert "line 2" in done.stdout
    assert "seen in https://" in done.stdout
    assert "1 more" in done.stdout
    assert (
        json.loads(verb("--json", "-", given=log.read_text()).stdout)["findings"][0]["id"]
        == "slurm-oom-kill"
    )
    log.write_text("all is well\n")
    assert verb(str(log)).returncode == 1
    assert verb(str(tmp_path / "none")).returncode == 2


def test_what_srun_says_of_others_counts_until_the_step_is_ended() -> None:
    """A task that is killed before is a cause, and one that is killed because of the end is none."""
    rank = "hpcstack: rank 0 on n1 ended with 1 [0 5.0]\n"
    killed, end = (
        "srun: error: n2: task 1: Killed\n",
        "slurmstepd: error: *** STEP 5.0 ON n CANCELLED AT 2026 ***\n",
    )
    for text, there in (
        (killed + rank + end, True),
        (rank + killed, True),
        (rank + end + killed, False),
        (killed, True),
    ):
        ids = [one.signature.id for one in examine_text(text).list_causes()]
        assert ("slurm-task-killed" in ids) is there, text
    # a bus error of the launcher on the other node, whose image went away: an echo, in whatever
    # words
    python = "Fatal Python error: Bus error\n"
    bus = "srun: error: n1: task 0: Bus error\n"
    # all that srun says of it at times
    terminates = "srun: launch/slurm: _step_signal: Terminating StepId=815.0\n"
    for text, there in (
        (rank + end + python + bus, False),
        (rank + terminates + bus, False),
        (python + rank + end, True),
        (python + end, True),
    ):
        ids = [one.signature.id for one in examine_text(text).list_causes()]
        assert ("system-bus-error" in ids) is there and "slurm-task-bus-error" not in ids, text
    # memory is what Slurm speaks of when all is over
    text = rank.replace("with 1", "with 137") + end + LINES["slurm-oom-kill"]
    assert examine_text(text).list_causes()[0].signature.id == "slurm-oom-kill"
    assert [
        examine_text(text).step_ends
        for text in (end, "a\n" + end, "a\nb\n", "hpcstack: nothing was written for 9 s: x\n")
    ] == [
        1,
        2,
        NEVER,
        1,
    ]


def test_what_another_rank_says_is_an_echo() -> None:
    closed = LINES["nccl-remote-error"]
    for rank, there in ((0, True), (1, False)):
        text = f"[rank{rank}]: {closed}\nhpcstack: rank 0 on n1 ended with 1 [0 5.0]\n"
        assert bool(examine_text(text).list_causes()) is there, text


def test_why_slurm_ended_it_stands_in_the_line_that_says_so() -> None:
    for known in ("slurm-preempted", "slurm-time-limit", "slurm-cancelled-node-failure"):
        text = LINES[known] + "\nRuntimeError: Connection closed by peer\n"
        ids = [one.signature.id for one in examine_text(text).list_causes()]
        assert known in ids, known


def test_a_progress_bar_does_not_shift_the_lines() -> None:
    text = (
        "1%\r2%\r3%\nhpcstack: rank 0 on n1 ended with 1 [0 5.0]\nFatal Python error: Bus error\n"
    )
    assert not examine_text(text).list_causes()


def test_pips_isolated_builds_are_named_where_pip_ran() -> None:
    line = "ModuleNotFoundError: No module named 'torch'\n"
    for text, first in (
        (line, "pip-module-missing"),
        (f"Building wheel for x\n{line}", "pip-build-module-missing"),
    ):
        assert examine_text(text).list_causes()[0].signature.id == first


def test_r9_what_nvidias_scripts_say_on_every_start_is_not_blamed() -> None:
    """Each bash of an image of NVIDIA's tries to remove a link, which a read-only root refuses:
    nothing comes of it.
    """
    harmless = "rm: cannot remove '/usr/local/cuda/compat/lib': Read-only file system"
    assert explain_log(f"{harmless}\n" * 8) == ()
    (found,) = explain_log(f"{harmless}\n{LINES['cuda-ptx-unsupported-toolchain']}\n")
    assert found.signature.id == "cuda-ptx-unsupported-toolchain"
    assert {
        found.number for found in explain_log(f"{harmless}\n{LINES['apptainer-read-only']}\n")
    } == {2}
