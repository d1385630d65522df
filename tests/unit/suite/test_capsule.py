"""Capsules: what a run was judged by, judged again. Runs on the made-up clusters, healthy and with
each fault, leave one as a node's agent does; what it holds is their machines' answers.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcstack.core.errors import InputError
from hpcstack.recipe.own_checks import OwnCheck
from hpcstack.report import Outcome
from hpcstack.suite.capsule import (
    MOST,
    MOST_UNPACKED,
    REPLAYED,
    Capsule,
    hide_names,
    judge_capsule,
    pack_capsule,
    read_capsule,
    rejudge_capsule,
    write_capsule,
)
from hpcstack.suite.own_checks import write_own_runs
from hpcstack_smoke.collectives import transport
from hpcstack_smoke.node import machine
from hpcstack_smoke.node.recorder import Recorder, Replayed
from hpcstack_smoke.result import Result, run_check
from support import clusters
from support.capsules import run_nodes


@pytest.mark.parametrize("name", clusters.names())
def test_a_capsule_is_judged_as_its_run_was(name: str, tmp_path: Path) -> None:
    capsule = run_nodes(name, tmp_path)
    write_capsule(tmp_path / "capsule.tar.gz", capsule)
    assert (tmp_path / "capsule.tar.gz").stat().st_size < MOST
    again = read_capsule(tmp_path / "capsule.tar.gz")
    assert rejudge_capsule(again) == []
    statuses = {one.code: one.status for one in judge_capsule(again).outcomes}
    run = {one.code: one.status for one in again.report.outcomes if one.code in REPLAYED}
    assert {code: statuses[code] for code in run} == run


def test_each_fault_of_a_node_is_found_in_its_capsule(tmp_path: Path) -> None:
    tried = 0
    for number, fault in enumerate(clusters.faults()):
        name = next(iter(fault["on"]))
        codes = REPLAYED.intersection(fault["finds"])
        if not codes:
            continue
        (tmp_path / str(number)).mkdir()
        capsule = run_nodes(name, tmp_path / str(number), fault)
        run = {one.code: one.status for one in capsule.report.outcomes if one.code in codes}
        statuses = {one.code: one.status for one in judge_capsule(capsule).outcomes}
        assert {code: statuses[code] for code in run} == run, fault["name"]
        tried += 1
    assert tried > 10


@pytest.mark.parametrize("name", clusters.names())
def test_what_nccls_log_said_is_judged_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = clusters.Cluster(name)
    if "network" not in cluster.nodes[0].spec["nccl"]:
        return  # MIG: NCCL joins no such devices
    capsule = run_nodes(name, tmp_path)
    documents = dict(capsule.documents)
    kept = clusters.transport_documents(cluster)
    status = judge_kept_lines_safely(kept)
    for one in kept:
        row = {"code": "nccl.transport", "where": f"n:{one['rank']}", "status": status}
        documents[f"rank-{one['rank']}-1.json"] = {"rank": one["rank"], "rows": [row]}
        documents[f"transport-{one['rank']}.json"] = one
    request = {**capsule.documents["request.json"], "tests": "nccl.transport"}
    documents["request.json"] = request
    documents["verdicts.json"] = {"nccl.transport": status}
    capsule = Capsule(json.loads(json.dumps(documents)))
    assert rejudge_capsule(capsule) == []
    assert rejudge_capsule(hide_names(capsule)) == []

    monkeypatch.setattr(transport, "judge_transports", lambda *_: Result("ERROR", "judged anew"))
    (difference,) = rejudge_capsule(capsule)
    assert (difference.code, difference.after) == ("nccl.transport", "ERROR")


def judge_kept_lines_safely(kept: list[dict[str, Any]]) -> str:
    return str(run_check("nccl.transport", lambda: transport.judge_kept_lines(kept), "n")["status"])


def test_a_verdict_that_another_version_changes_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcstack_smoke.node import nvlink

    capsule = run_nodes("dgx-h100", tmp_path)
    monkeypatch.setitem(nvlink.LINKS, "H100 80GB HBM3", (20, 26.562))
    (difference,) = rejudge_capsule(capsule)
    assert (difference.code, difference.before, difference.after) == ("node.nvlink", "PASS", "FAIL")
    assert "18 active link(s)" in difference.why
    assert "expected: 20 links" in difference.why


def test_what_was_not_asked_then_is_unknown(tmp_path: Path) -> None:
    capsule = run_nodes("dgx-h100", tmp_path)
    documents = dict(capsule.documents)
    for name in [one for one in documents if one.startswith("machine-")]:
        documents[name] = json.loads(json.dumps(documents[name]))
        del documents[name]["answers"]["kernel_log"]
    (difference,) = rejudge_capsule(Capsule(documents))
    assert (difference.code, difference.before, difference.after) == ("node.xid", "PASS", "SKIP")
    assert difference.why.startswith("UNKNOWN: the capsule has no answer to kernel_log")


def test_an_anonymous_one_names_nobody_and_is_judged_alike(tmp_path: Path) -> None:
    capsule = run_nodes("dgx-h100", tmp_path)
    documents = json.loads(json.dumps(capsule.documents))
    secret = "user 10.20.30.40 0e:42:a1:55:00:01 /home/ann/model GPU-01234567-89ab-cdef-0123-456789abcdef"
    documents["node-dgx1.json"]["rows"][0]["evidence"] = f"on dgx1: {secret}"
    hidden = hide_names(Capsule(documents))
    text = json.dumps(hidden.documents)
    for name in ("dgx1", "10.20.30.40", "0e:42:a1", "/home/ann", "01234567-89ab"):
        assert name not in text
    assert "node-node1.json" in hidden.documents
    assert set(hidden.report.nodes) == {"node1", "node2", "node3", "node4"}
    assert rejudge_capsule(hidden) == []


@pytest.mark.soak("names are names", but=lambda name: name in ("nvl72", "mixed"))
@pytest.mark.parametrize("name", clusters.names())
def test_hiding_names_changes_no_verdict(name: str, tmp_path: Path) -> None:
    for number, fault in enumerate([None, *clusters.faults()]):
        if fault and (name not in fault["on"] or not REPLAYED.intersection(fault["finds"])):
            continue
        (tmp_path / str(number)).mkdir()
        hidden = hide_names(run_nodes(name, tmp_path / str(number), fault))
        assert rejudge_capsule(hidden) == [], fault


def test_a_large_one_leaves_out_what_the_report_has(tmp_path: Path) -> None:
    capsule = run_nodes("dgx-h100", tmp_path)
    noise = random.Random(3).randbytes(3 << 20).hex()
    documents = {
        **capsule.documents,
        "machine-x.json": {"host": "x", "answers": {"said": {"a": noise}}},
    }
    packed = pack_capsule(Capsule(documents))
    assert len(packed) <= MOST
    (tmp_path / "c").write_bytes(packed)
    kept = read_capsule(tmp_path / "c").documents
    assert not [name for name in kept if name.startswith("machine-")]
    assert "report.json" in kept
    assert rejudge_capsule(Capsule(kept)) == []


def test_what_ranks_wrote_may_be_left_out_and_no_verdict_changes(tmp_path: Path) -> None:
    """Thousands of ranks write more than a capsule holds; then the report's own verdicts count."""
    capsule = run_nodes("dgx-h100", tmp_path)
    request = {**capsule.documents["request.json"], "tests": "node.hbm,node.matmul,nccl.ring"}
    noise = random.Random(4).randbytes(3 << 20).hex()
    rows = [
        {
            "code": code,
            "where": f"dgx1:{rank}",
            "status": "PASS",
            "evidence": noise if not rank else "",
        }
        for code in ("node.hbm", "node.matmul", "nccl.ring")
        for rank in range(32)
    ]
    full = {**capsule.documents, "request.json": request, "rank-0-0.json": {"rows": rows}}
    (tmp_path / "c").write_bytes(pack_capsule(Capsule(full)))
    kept = read_capsule(tmp_path / "c")
    assert "rank-0-0.json" not in kept.documents
    assert kept.verdicts["node.hbm"] == "PASS"
    assert rejudge_capsule(kept) == []


def test_what_packs_well_is_bounded_too(tmp_path: Path) -> None:
    """Ranks that print the same line again and again pack into little."""
    capsule = run_nodes("dgx-h100", tmp_path)
    documents = dict(capsule.documents)
    for rank in range(70):
        documents[f"own-stack.x-{rank}.json"] = {"own": "stack.x", "output": "step\n" * 200_000}
    (tmp_path / "c").write_bytes(pack_capsule(Capsule(documents)))
    kept = read_capsule(tmp_path / "c").documents
    assert not [name for name in kept if name.startswith("own-")]


def test_a_file_that_unpacks_to_very_much_is_refused(tmp_path: Path) -> None:
    bomb = io.BytesIO()
    with tarfile.open(fileobj=bomb, mode="w:gz", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("x" * (MOST_UNPACKED + (1 << 20)) + ".json"))
    (tmp_path / "c").write_bytes(bomb.getvalue())
    with pytest.raises(InputError, match="it has more than 64 MiB"):
        read_capsule(tmp_path / "c")


def test_an_anonymous_one_has_nothing_that_own_checks_printed(tmp_path: Path) -> None:
    capsule = run_nodes("dgx-h100", tmp_path)
    check = OwnCheck(name="who", command="id; cat /secret", expect=("uid=",))
    codes = {"stack.who": check}
    documents = {
        **capsule.documents,
        "request.json": {**capsule.documents["request.json"], "own": list(write_own_runs(codes))},
        "own-stack.who-0.json": {
            "own": "stack.who", "where": "dgx1", "rank": 0, "status": 0, "ending": "", "detail": "",
            "output": "uid=1000(ann) HF_TOKEN=hf_secret", "failed": False,
        },
    }  # fmt: skip
    outcome = Outcome(code="stack.who", status="PASS", measured="exit status 0")
    report = {
        **documents["report.json"],
        "outcomes": [*documents["report.json"]["outcomes"], outcome.model_dump(mode="json")],
    }
    documents |= {"report.json": report}
    documents["verdicts.json"] = {**capsule.verdicts, "stack.who": "PASS"}
    hidden = hide_names(Capsule(json.loads(json.dumps(documents))))
    text = json.dumps(hidden.documents)
    for word in ("ann", "hf_secret", "/secret", "uid="):
        assert word not in text
    # The name of a site's own check is hidden, too.
    own = [one for one in judge_capsule(hidden).outcomes if one.code.startswith("stack.")]
    assert [one.status for one in own] == ["PASS"]
    assert rejudge_capsule(hidden) == []


KEPT = Path(__file__).parents[2] / "data/capsules"


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.tar.gz")), ids=lambda path: path.name)
def test_no_verdict_changes_unless_it_is_written_down(path: Path) -> None:
    meant = yaml.safe_load((KEPT / "changes.yaml").read_text()).get(path.name, {})
    found = {one.code: one for one in rejudge_capsule(read_capsule(path))}
    assert set(found) == set(meant), found
    for code, change in meant.items():
        assert (found[code].before, found[code].after) == (change["before"], change["after"])
        assert change["reason"]


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08torn"])
def test_what_is_no_capsule_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(InputError, match="is not a capsule of a run"):
        read_capsule(tmp_path / "c")


@pytest.mark.parametrize("name", ["../evil.json", "/etc/x.json", "a/b.json", "program.sh"])
def test_an_archive_with_anything_else_in_it_is_refused(name: str, tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = 2
        archive.addfile(entry, io.BytesIO(b"{}"))
    (tmp_path / "c").write_bytes(out.getvalue())
    with pytest.raises(InputError, match="does not belong into one"):
        read_capsule(tmp_path / "c")


def test_a_recorded_machine_answers_as_it_did(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("first\nsecond\n")
    here = machine.Machine()
    recorder = Recorder(here)
    name = str(tmp_path / "a")
    asked: list[Callable[[machine.Machine], Any]] = [
        lambda it: it.line(name), lambda it: it.found(f"{tmp_path}/*"), lambda it: it.exists(name),
        lambda it: it.said(["echo", "hello"]), lambda it: it.ran(["false"], 5.0), lambda it: it.opens("/none"),
    ]  # fmt: skip
    given = [ask(recorder) for ask in asked]
    (tmp_path / "a").unlink()
    replayed = Replayed(json.loads(json.dumps(recorder.answers)))
    assert [tuple(one) if isinstance(one, list) else one for one in given] == [
        tuple(one) if isinstance(one, list) else one for one in (ask(replayed) for ask in asked)
    ]


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("machine-dgx1.json", []),
        ("machine-dgx1.json", {"host": "dgx1"}),
        ("machine-dgx1.json", {"host": "dgx1", "answers": {"said": 3}}),
        ("node-dgx1.json", 7),
        ("node-dgx1.json", {"host": ["x"], "inventory": 3, "rows": [1]}),
        ("request.json", {"nodes": "many"}),
        ("request.json", []),
        ("verdicts.json", 3),
        ("report.json", {}),
    ],
)
def test_a_capsule_that_somebody_has_changed_is_refused_or_judged(
    name: str, document: Any, tmp_path: Path
) -> None:
    """It may be anybody's: no traceback, and nothing of it is run."""
    capsule = run_nodes("dgx-h100", tmp_path)
    changed = Capsule({**capsule.documents, name: document})
    (tmp_path / "c").write_bytes(pack_capsule(changed))
    with contextlib.suppress(InputError):
        rejudge_capsule(read_capsule(tmp_path / "c"))


def test_a_document_that_nests_without_end_is_refused(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        entry = tarfile.TarInfo("report.json")
        entry.size = 1 << 20
        archive.addfile(entry, io.BytesIO(b"[" * (1 << 20)))
    (tmp_path / "c").write_bytes(out.getvalue())
    with pytest.raises(InputError, match="is not a capsule"):
        read_capsule(tmp_path / "c")
