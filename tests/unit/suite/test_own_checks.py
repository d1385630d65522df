"""Own checks: which a run has, what their output says, gates, nodes that lag, and old images."""

from __future__ import annotations

from typing import Any

import pytest

from hpcstack.recipe.own_checks import DEFINITION, OwnCheck
from hpcstack.report import Outcome, Report, merge_rows
from hpcstack.suite import own_checks
from hpcstack.suite.gates import judge_own_gates
from hpcstack.suite.history import name_past_figure
from hpcstack.suite.judge import judge_report
from hpcstack.suite.outcomes import judge_own_lag
from hpcstack.suite.own_checks import (
    OwnEvidence,
    find_all,
    make_own_rows,
    read_own_runs,
    select_own_checks,
    write_own_runs,
)
from hpcstack_smoke import own

STREAM = {
    "name": "stream",
    "command": "stream",
    "expect": "Solution Validates",
    "figures": {
        "triad": {"pattern": r"^Triad: +([0-9.,]+)", "unit": "MB/s", "better": "higher"},
        "time": {"pattern": r"took ([0-9.]+)", "unit": "s", "better": "lower", "take": "highest"},
    },
}
GOOD = "Triad:   12,000.5\ntook 1.5\ntook 2.5\nSolution Validates\n"


def check(**more: Any) -> OwnCheck:
    return OwnCheck.model_validate({**STREAM, **more})


def document(rank: int = 0, output: str = GOOD, **more: Any) -> dict[str, Any]:
    """What a process that ended with 0 leaves; MORE replaces some of it."""
    ended = own.Ended(output=output, seconds=2.0)
    run = own.OwnRun("stack.stream", "nodes", (), 1.0)
    return {**ended.document(run, f"node{rank + 1}", rank), **more}


def judge(one: OwnCheck, *documents: dict[str, Any], expected: int = 1, **more: Any) -> Outcome:
    rows = make_own_rows("stack.stream", one, expected, OwnEvidence(documents, **more))
    return judge_own_lag(judge_own_gates(merge_rows(rows)))


def test_a_good_run_passes_with_its_figures() -> None:
    outcome = judge(check(), document())
    assert outcome.status == "PASS"
    assert outcome.measured == "triad 12000.5 MB/s, time 2.5 s"
    assert outcome.figures == {"triad_MB_s": 12000.5, "time_s": 2.5}
    assert outcome.better == {"triad_MB_s": "higher", "time_s": "lower"}
    assert outcome.versions == {DEFINITION: check().digest()}
    assert outcome.expected == "'Solution Validates' is printed"


@pytest.mark.parametrize(
    ("output", "more", "status", "says"),
    [
        (GOOD, {"status": 3, "failed": True}, "FAIL", "exit status 3"),
        (GOOD, {"status": 139, "failed": True}, "FAIL", "ended by SIGSEGV"),
        (GOOD, {"ending": own.AT_TIME_LIMIT, "status": 143, "failed": True}, "FAIL", "ended after 300 s"),
        ("", {"ending": own.NOT_STARTED, "status": 127, "failed": True, "detail": "stream: No such file"}, "ERROR", "cannot be started"),
        (GOOD.replace("Solution", "No"), {}, "FAIL", "'Solution Validates' is not printed"),
        (GOOD.replace("Triad", "Copy"), {}, "FAIL", "no triad: '^Triad: +([0-9.,]+)' is not printed"),
        (GOOD.replace("12,000.5", "1.2.3"), {}, "FAIL", "triad is '1.2.3', which is no number"),
        ("", {"cut": 5}, "FAIL", "5 bytes of its output were not kept"),
    ],
)  # fmt: skip
def test_each_way_to_fail_is_told(
    output: str, more: dict[str, Any], status: str, says: str
) -> None:
    outcome = judge(check(), document(output=output, **more))
    assert outcome.status == status
    assert says in outcome.measured
    assert outcome.remedy


def test_what_is_forbidden_is_shown() -> None:
    one = check(forbid=["nan", "ERR.*"], expect=[], figures={})
    outcome = judge(one, document(output="step 1\nERROR 17 in line 3\n"))
    assert outcome.status == "FAIL"
    assert outcome.measured == "printed: 'ERROR 17 in line 3', which 'ERR.*' forbids"


@pytest.mark.parametrize(
    ("take", "value"), [("last", 2), ("first", 4), ("highest", 6), ("lowest", 2), ("mean", 4)]
)
def test_which_of_many_figures_counts(take: str, value: float) -> None:
    figures = {"rate": {"pattern": "rate ([0-9]+)", "better": "higher", "take": take}}
    outcome = judge(check(expect=[], figures=figures), document(output="rate 4\nrate 6\nrate 2\n"))
    assert outcome.figures == {"rate": value}


@pytest.mark.parametrize(
    ("gate", "node_type", "status"),
    [
        (12000.5, "", "PASS"),
        (12001, "", "FAIL"),
        ({"genoa": 20000}, "genoa", "FAIL"),
        ({"genoa": 20000}, "rome", "PASS"),
    ],
)
def test_a_gate_is_of_its_kind_of_nodes(gate: Any, node_type: str, status: str) -> None:
    triad = {**STREAM["figures"]["triad"], "gate": gate}  # type: ignore[index]
    outcome = judge(check(figures={"triad": triad}), document(), node_type=node_type)
    assert outcome.status == status
    if status == "FAIL":
        assert outcome.measured == "triad_MB_s 12000.5"
        assert "triad_MB_s >= " in outcome.expected


def test_the_node_below_the_gate_is_named_and_less_may_be_better() -> None:
    figures = {
        "time": {"pattern": r"took ([0-9.]+)", "unit": "s", "better": "lower", "gate": 3},
    }
    one = check(figures=figures)
    slow = document(1, GOOD.replace("2.5", "9"))
    outcome = judge(one, document(), slow, expected=2)
    assert outcome.status == "FAIL"
    assert outcome.measured == "time_s 9 on node2"
    assert outcome.expected.endswith("time_s <= 3")


@pytest.mark.parametrize(
    ("name", "slow"), [("triad", ("12,000.5", "9,000")), ("time", ("2.5", "3.5"))]
)
def test_a_node_that_lags_behind_is_a_warning(name: str, slow: tuple[str, str]) -> None:
    documents = [document(rank) for rank in range(4)]
    documents.append(document(4, GOOD.replace(*slow)))
    outcome = judge(check(), *documents, expected=5)
    assert outcome.status == "WARN"
    assert "node5" in outcome.measured
    assert name in outcome.measured
    assert judge(check(), *documents[:4], expected=4).status == "PASS"


def test_every_node_must_pass_and_the_one_that_left_nothing_is_an_error() -> None:
    bad = judge(check(), document(), document(1, "no"), expected=2)
    assert (bad.status, bad.where) == ("FAIL", ("node2",))
    gone = judge(check(), document(), expected=2, lost={"stack.stream": "node2: killed"})
    assert (gone.status, gone.measured) == ("ERROR", "1 of 2 nodes left no result")
    assert gone.evidence == "node2: killed"


def test_output_of_all_ranks_is_taken_together() -> None:
    one = check(on="ranks")
    split = GOOD.splitlines(keepends=True)
    halves = [document(0, "".join(split[:2])), document(1, "".join(split[2:]))]
    outcome = judge(one, *halves, expected=2)
    assert (outcome.status, outcome.where) == ("PASS", ("all ranks",))
    assert judge(one, halves[0], expected=2).status == "ERROR"


def test_the_rank_that_failed_first_is_named_and_not_its_victims() -> None:
    victim = document(0, status=143, failed=True, ending=own.AFTER_ANOTHER)
    culprit = document(1, status=1, failed=True)
    # rank 2 was ended before it could write anything
    outcome = judge(check(on="ranks"), victim, culprit, expected=3)
    assert (outcome.status, outcome.measured) == ("FAIL", "exit status 1")
    assert outcome.where == ("node2",)


def test_of_several_ranks_that_failed_the_first_is_named() -> None:
    late = document(0, status=1, failed=True, ended=12.3)
    early = document(1, status=139, failed=True, ended=12.0)
    outcome = judge(check(on="mpi"), late, early, expected=2)
    assert (outcome.where, outcome.measured) == (("node2",), "ended by SIGSEGV")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1.3e+12", 1.3e12), ("-4.5", -4.5), ("12,000", 12000), ("1,234,567.5", 1234567.5), ("12,5", None)],
)  # fmt: skip
def test_what_a_number_is(text: str, value: float | None) -> None:
    figures = {"a": {"pattern": r"a ([-+0-9.,eE]+)", "better": "lower"}}
    outcome = judge(check(expect=[], figures=figures), document(output=f"a {text}\n"))
    assert outcome.figures.get("a") == value
    assert outcome.status == ("PASS" if value is not None else "FAIL")


def test_a_pattern_that_takes_a_part_of_a_number_fails() -> None:
    figures = {"loss": {"pattern": "loss ([0-9.]+)", "better": "lower", "gate": 2}}
    outcome = judge(check(expect=[], figures=figures), document(output="loss 1.3e+12\n"))
    assert outcome.status == "FAIL"
    assert "takes a part of a number" in outcome.measured


def test_what_stood_in_the_part_that_was_not_kept_is_unknown() -> None:
    one = check(forbid="loss nan", figures={}, expect=[])
    outcome = judge(one, document(cut=9))
    assert outcome.status == "SKIP"
    assert outcome.evidence.startswith("UNKNOWN: 9 bytes")
    assert judge(check(figures={}), document(cut=9)).status == "PASS", "what is expected was found"


def test_a_node_below_its_gate_fails_also_where_another_was_skipped() -> None:
    triad = {**STREAM["figures"]["triad"], "gate": 1e6}  # type: ignore[index]
    run = own.OwnRun("stack.stream", "nodes", (), 1.0, ("gpu",))
    skip = own.make_skip(run, "node2", 1, "it needs a GPU")
    outcome = judge(check(figures={"triad": triad}), document(), skip, expected=2)
    assert outcome.status == "FAIL"


def test_energies_below_zero_do_not_all_lag() -> None:
    figures = {"energy": {"pattern": "E (-?[0-9.]+)", "better": "higher"}}
    one = check(expect=[], figures=figures)
    documents = [document(rank, f"E -4.7{rank}\n") for rank in range(4)]
    assert judge(one, *documents, expected=4).status == "PASS"
    documents[3] = document(3, "E -9.9\n")
    assert judge(one, *documents, expected=4).status == "WARN"


def test_a_kind_of_node_without_a_gate_is_said() -> None:
    triad = {**STREAM["figures"]["triad"], "gate": {"gneoa": 5}}  # type: ignore[index]
    outcome = judge(check(figures={"triad": triad}), document(), node_type="genoa")
    assert "no gate of triad for node type genoa" in outcome.expected


def test_on_virtual_nodes_gates_without_a_time_in_them_count() -> None:
    figures = {
        "loss": {"pattern": "took ([0-9.]+)", "better": "lower", "gate": 1},
        "speed": {**STREAM["figures"]["triad"], "gate": 1e9},  # type: ignore[index]
    }
    rows = make_own_rows("stack.stream", check(figures=figures), 1, OwnEvidence([document()]))
    report = make_report(merge_rows(rows), virtual_nodes=True)
    (outcome,) = judge_report(report, [], {}).outcomes
    assert outcome.status == "FAIL"
    assert outcome.measured.startswith("loss 2.5")
    assert "speed" not in outcome.measured
    assert outcome.informational


def test_a_check_that_measures_something_else_now_has_a_history_of_its_own() -> None:
    rows = make_own_rows("stack.stream", check(), 1, OwnEvidence([document()]))
    outcome = merge_rows(rows)
    other = outcome.model_copy(update={"versions": {DEFINITION: "another"}})
    names = {name_past_figure(one, "triad_MB_s") for one in (outcome, other)}
    assert len(names) == 2


def make_report(outcome: Outcome, **more: Any) -> Report:
    return Report(
        stack="demo-1", image="x", image_sha256="0" * 64, suite="0", runtime="apptainer",
        started="2026-01-02T03:04:05+00:00", seconds=1.0, outcomes=(outcome,), **more,
    )  # fmt: skip


def test_what_is_missing_on_the_nodes_is_a_skip() -> None:
    run = own.OwnRun("stack.stream", "nodes", (), 1.0, ("gpu",), 2)
    assert "needs 2 nodes, and this run has 1" in own.find_missing(run, 1, {"gpus": 8})
    reason = own.find_missing(run, 2, {"gpus": 0})
    skip = own.make_skip(run, "node1", 0, reason)
    outcome = judge(check(), skip)
    assert (outcome.status, outcome.evidence) == ("SKIP", "it needs a GPU, and the node has none")
    assert judge(check(on="mpi"), skip, expected=4).status == "SKIP"
    assert own.find_missing(run, 2, {"gpus": 1}) == ""


@pytest.mark.parametrize(
    ("inventory", "there"),
    [
        ({"ports": 8, "alike": {"ports": "mlx5_0:1"}}, True),
        ({"ports": 0, "alike": {"ports": "cxi0,cxi1"}}, True),  # Slingshot
        ({"ports": 0, "alike": {}}, False),
        ({}, False),
    ],
)
def test_a_fabric_is_what_the_node_has_of_any_kind(inventory: dict[str, Any], there: bool) -> None:
    run = own.OwnRun("stack.stream", "nodes", (), 1.0, ("fabric",))
    assert (own.find_missing(run, 1, inventory) == "") == there


def test_an_image_with_an_older_suite_is_a_skip_that_says_what_to_do() -> None:
    outcome = judge(check(), able=False)
    assert outcome.status == "SKIP"
    assert "--suite-from-host" in outcome.evidence
    assert judge(check()).status == "ERROR"


def test_a_pattern_that_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_checks, "PATTERN_S", 0.2)
    one = check(expect=["^(a+)+$"], figures={})
    outcome = judge(one, document(output="a" * 60 + "b"))
    assert outcome.status == "ERROR"
    assert "took more than 0.2 s" in outcome.measured
    assert find_all("b", "abc")


@pytest.mark.parametrize(
    ("only", "tier", "skip", "codes"),
    [
        ((), "quick", (), ["site.a", "stack.b"]),
        ((), "full", (), ["site.a", "stack.b", "stack.c"]),
        ((), "full", ("stack",), ["site.a"]),
        ((), "full", ("site.a", "stack.c"), ["stack.b"]),
        ((), "burn", (), []),
        (("nccl",), "full", (), []),
        (("stack.c",), "quick", (), ["stack.c"]),
        (("stack",), "quick", (), ["stack.b"]),
        (("site.a", "nccl"), "burn", (), ["site.a"]),
    ],
)
def test_which_checks_a_run_has(
    only: tuple[str, ...], tier: str, skip: tuple[str, ...], codes: list[str]
) -> None:
    checks = {
        "site.a": OwnCheck(name="a", command="a"),
        "stack.b": OwnCheck(name="b", command="b"),
        "stack.c": OwnCheck(name="c", command="c", tier="full"),
    }
    assert list(select_own_checks(checks, only, tier, skip)) == codes


def test_the_request_has_the_definition_and_what_the_image_must_know() -> None:
    checks = {"stack.stream": check(on="ranks", needs=["gpu"], min_nodes=2, time_limit=9)}
    written = write_own_runs(checks)
    assert own.parse_own_run(written[0]) == own.OwnRun(
        "stack.stream", "ranks", ("/bin/sh", "-ec", "stream"), 9.0, ("gpu",), 2
    )
    assert read_own_runs(written) == checks
