"""The gate to production: which checks a node type requires, and what of a report keeps it shut."""

from __future__ import annotations

import grp
import os
import re
from pathlib import Path
from typing import Any

import pytest

from hpcstack.core.errors import AnswerIsNo
from hpcstack.core.sharing import Sharing, find_sharing
from hpcstack.publish import reports
from hpcstack.publish.gate import (
    describe_report,
    find_obstacles,
    list_required,
    list_required_own,
)
from hpcstack.recipe.own_checks import DEFINITION, OwnCheck
from hpcstack.site.model import Gpus, NodeType
from hpcstack.store.store import Store
from hpcstack_smoke.select import CHECKS
from support.modules import Place, report

PYTORCH = (
    "node",
    "fabric",
    "io",
    "tasks",
    "nccl",
    "ddp",
    "fsdp",
    "parallel",
    "train",
    "scaling",
    "deepspeed",
)
CPU = NodeType(virtual=True)
H100 = NodeType(gpus=Gpus(model="H100-SXM5-80GB", count=8), hcas=("mlx5_0",), hca_rate=400)


def test_an_image_is_proven_on_nodes_that_can_run_it(tmp_path: Path) -> None:
    """With a module tree for each architecture an arm64 image has no report of an x86_64 node, and
    never will.
    """
    kinds = {"dgx": {}, "grace": {"architecture": "aarch64"}}
    place = Place(tmp_path, node_types=kinds, modules={"prove_on": ["dgx", "grace"]})
    stack = place.stack()
    for platform, kind, other in (("linux/amd64", "dgx", "grace"), ("linux/arm64", "grace", "dgx")):
        artifact = place.artifact(stack, platform.encode(), platform=platform)
        with pytest.raises(AnswerIsNo) as shut_gate:
            reports.require_proof(stack, artifact, place.site, [], "")
        assert f"{kind}: there is no report" in shut_gate.value.message
        assert f"{other}:" not in shut_gate.value.message


@pytest.mark.parametrize("made_so", [False, True])
def test_a_warning_that_no_user_can_mend_does_not_shut_the_gate(
    place: Place, made_so: bool
) -> None:
    """A GPU in a narrow slot: its link has all that the slot has."""
    artifact = place.artifact(place.stack())
    tests = (*PYTORCH, "node.pcie")
    codes = dict.fromkeys(list_required(tests, "standard", H100), "PASS")
    found = report(artifact, {**codes, "node.pcie": "WARN"}, node_type="h100")
    outcomes = tuple(
        one.model_copy(update={"not_built_in": made_so}) if one.code == "node.pcie" else one
        for one in found.outcomes
    )
    found = found.model_copy(update={"outcomes": outcomes})
    obstacles = find_obstacles(tests, "standard", H100, found, artifact.sha256, artifact.suite, {})
    assert [str(one) for one in obstacles] == ([] if made_so else ["node.pcie is WARN: why"])
    notes = [value for what, value in describe_report(found) if what == "NOTE"]
    assert any(note.startswith("node.pcie is WARN on such nodes") for note in notes) == made_so


OWN = {
    "site.stream": OwnCheck(name="stream", command="stream"),
    "stack.step": OwnCheck(name="step", python="/opt/step.py", needs=("gpu",)),
    "stack.long": OwnCheck(name="long", command="long", tier="full"),
}


def test_own_checks_are_required_where_a_node_has_what_they_need() -> None:
    assert list_required_own(OWN, "standard", CPU) == ["site.stream"]
    assert list_required_own(OWN, "full", H100) == list(OWN)


@pytest.mark.parametrize(
    ("status", "definition", "says"),
    [
        ("PASS", OWN["site.stream"].digest(), []),
        ("FAIL", OWN["site.stream"].digest(), ["site.stream is FAIL: why"]),
        ("SKIP", OWN["site.stream"].digest(), ["site.stream is SKIP: why"]),
        (
            "PASS",
            "another",
            ["site.stream has been changed since that run: it checks something else now"],
        ),
        (
            "",
            "",
            ["site.stream was not run (the report's tier is standard, standard is required)"],
        ),
    ],
)
def test_an_own_check_keeps_the_gate_shut(
    place: Place, status: str, definition: str, says: list[str]
) -> None:
    artifact = place.artifact(place.stack())
    statuses = {**good(), **({"site.stream": status} if status else {})}
    found = report(artifact, statuses, node_type="cpu")
    outcomes = tuple(
        one.model_copy(update={"versions": {DEFINITION: definition}}) for one in found.outcomes
    )
    found = found.model_copy(update={"outcomes": outcomes})
    suite = artifact.suite
    obstacles = find_obstacles(PYTORCH, "standard", CPU, found, artifact.sha256, suite, OWN)
    assert [str(one) for one in obstacles] == says


def test_every_check_says_what_it_needs() -> None:
    assert {check.needs for check in CHECKS} == {"gpu", "no-gpu", "fabric", "named", "-"}


def test_a_node_type_requires_what_it_can_run() -> None:
    cpu, gpu = list_required(PYTORCH, "standard", CPU), list_required(PYTORCH, "standard", H100)
    assert {"ddp.fp32", "deepspeed.zero3", "nccl.gloo", "io.lock"} <= set(cpu)
    assert not {"nccl.exact", "node.ecc", "fabric.hcas", "node.hbm"} & set(cpu)
    assert {
        "nccl.exact",
        "nccl.bandwidth",
        "node.ecc",
        "fabric.hcas",
        "node.hbm",
        "ddp.scaler",
    } <= set(gpu)
    assert "nccl.gloo" not in gpu
    assert "fabric.gid" not in gpu
    assert "train.dali" not in gpu
    assert "nccl.bandwidth" not in list_required(PYTORCH, "quick", CPU)
    assert "mpi.cuda" in list_required(("mpi.cuda",), "standard", H100)
    assert "mpi.cuda" not in list_required(("mpi",), "standard", H100)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, node_types={"cpu": {"virtual": True}, "h100": {"gpus": {"model": "H100-SXM5-80GB", "count": 8}}},
                 partitions={"debug": {"node_type": "cpu", "default": True}})  # fmt: skip


def good() -> dict[str, str]:
    return dict.fromkeys(list_required(PYTORCH, "standard", CPU), "PASS")


@pytest.mark.parametrize(
    ("change", "more", "says"),
    [
        ({}, {}, []),
        ({"node.ecc": "SKIP", "train.dali": "SKIP"}, {}, []),
        ({"ddp.fp32": "SKIP"}, {}, ["ddp.fp32 is SKIP: why"]),
        ({"ddp.fp32": "WARN", "io.lock": "ERROR"}, {}, [("io.lock is ERROR: " "why"), ("ddp.fp32 is WARN: " "why")]),
        ({"train.dali": "FAIL"}, {}, ["train.dali is FAIL"]),
        ({"ddp.fp32": ""}, {"tier": "quick"}, [("ddp.fp32 was not run (the report's tier is quick, standard is " "required)")]),
        ({}, {"image_sha256": "1" * 64}, ["the report is of another image: sha256 111111111111"]),
        ({}, {"suite": "0.0.1"}, ["the report is of suite 0.0.1; the image's is 0.1.0"]),
        ({}, {"suite_from_host": True}, [("the report is of suite 0.1.0 (the host's); the image's is " "0.1.0")]),
        ({}, {"planted": "bugs.py"}, ["a bug was planted in that run"]),
    ],
)  # fmt: skip
def test_what_keeps_the_gate_shut(
    place: Place, change: dict[str, str], more: dict[str, Any], says: list[str]
) -> None:
    artifact = place.artifact(place.stack())
    statuses = {code: status for code, status in {**good(), **change}.items() if status}
    found = report(artifact, statuses, node_type="cpu", **more)
    obstacles = find_obstacles(PYTORCH, "standard", CPU, found, artifact.sha256, artifact.suite, {})
    assert [str(one) for one in obstacles] == says


@pytest.mark.parametrize(("needs_root", "opens"), [(True, True), (False, False)])
def test_what_only_root_may_read_opens_the_gate(
    place: Place, needs_root: bool, opens: bool
) -> None:
    """On a site with dmesg_restrict nobody can make node.xid pass."""
    artifact = place.artifact(place.stack())
    statuses = dict.fromkeys(list_required(PYTORCH, "standard", H100), "PASS")
    found = report(artifact, {**statuses, "node.xid": "SKIP"}, node_type="h100")
    outcomes = [
        one.model_copy(update={"needs_root": needs_root}) if one.code == "node.xid" else one
        for one in found.outcomes
    ]
    found = found.model_copy(update={"outcomes": tuple(outcomes)})
    assert (
        not find_obstacles(PYTORCH, "standard", H100, found, artifact.sha256, artifact.suite, {})
    ) is opens
    assert any("node.xid was not read" in value for _, value in describe_report(found)) is opens


def test_a_perfect_report_of_one_node_opens_the_gate(place: Place) -> None:
    """Pairs and permutations of nodes are a SKIP there."""
    for node, kind in ((H100, "h100"), (CPU, "cpu")):
        required = list_required(PYTORCH, "standard", node)
        of_several = (
            "nccl.pairs",
            "nccl.permutations",
            "nccl.gloo-pairs",
            "nccl.gloo-permutations",
        )
        assert not set(of_several) & set(required)
        artifact = place.artifact(place.stack())
        statuses = {**dict.fromkeys(of_several, "SKIP"), **dict.fromkeys(required, "PASS")}
        found = report(artifact, statuses, node_type=kind)
        digest, suite = artifact.sha256, artifact.suite
        assert find_obstacles(PYTORCH, "standard", node, found, digest, suite, {}) == []
    assert "nccl.permutations" in list_required(("nccl.permutations",), "standard", H100)


def test_hardware_that_was_made_without_what_is_checked_opens_the_gate(place: Place) -> None:
    """GeForce has no ECC: without this no recipe could be promoted at such a site."""
    artifact = place.artifact(place.stack())
    statuses = dict.fromkeys(list_required(PYTORCH, "standard", H100), "PASS")
    found = report(artifact, {**statuses, "node.ecc": "SKIP"}, node_type="h100")
    digest, suite = artifact.sha256, artifact.suite
    assert find_obstacles(PYTORCH, "standard", H100, found, digest, suite, {})
    outcomes = [
        one.model_copy(update={"not_built_in": one.code == "node.ecc"}) for one in found.outcomes
    ]
    found = found.model_copy(update={"outcomes": tuple(outcomes)})
    assert find_obstacles(PYTORCH, "standard", H100, found, digest, suite, {}) == []
    notes = [value for name, value in describe_report(found) if name == "NOTE"]
    assert any(note.startswith("node.ecc has nothing to read") for note in notes)


def test_a_check_is_told_beside_one_whose_name_begins_alike(place: Place) -> None:
    """A FAIL of nccl.gloo went unsaid where nccl.gloo-bandwidth was said."""
    artifact = place.artifact(place.stack())
    statuses = dict.fromkeys(list_required(PYTORCH, "standard", H100), "PASS")
    found = report(
        artifact, {**statuses, "nccl.gloo": "FAIL", "nccl.gloo-bandwidth": "FAIL"}, node_type="h100"
    )
    obstacles = find_obstacles(
        PYTORCH, "standard", H100, found, artifact.sha256, artifact.suite, {}
    )
    assert [str(one) for one in obstacles] == ["nccl.gloo is FAIL", "nccl.gloo-bandwidth is FAIL"]


def test_without_a_report_it_is_shut_and_says_what_to_type(place: Place) -> None:
    stack = place.stack()
    artifact = place.artifact(stack)
    with pytest.raises(AnswerIsNo, match="there is no report of this image") as refused:
        reports.require_proof(stack, artifact, place.site, [], "")
    assert re.search("hpcstack test [0-9a-f]{12} -N 2 --tier standard", refused.value.hint)
    assert reports.require_proof(stack, artifact, place.site, [], "because") == (None, "because")


def test_each_node_type_that_the_site_names_must_be_proven(tmp_path: Path, place: Place) -> None:
    stack = place.stack()
    artifact = place.artifact(stack)
    proven = report(artifact, good(), node_type="cpu")
    assert reports.require_proof(stack, artifact, place.site, [proven], "not needed") == (
        proven,
        "",
    )
    strict = place.site.model_copy(
        update={"modules": place.site.modules.model_copy(update={"prove_on": ("cpu", "h100")})}
    )
    with pytest.raises(AnswerIsNo, match="h100: there is no report of this image"):
        reports.require_proof(stack, artifact, strict, [proven], "")


def test_the_newest_report_that_ran_the_checks_decides(place: Place) -> None:
    stack = place.stack()
    artifact = place.artifact(stack)
    old = report(artifact, good(), node_type="cpu")
    bad = report(
        artifact,
        {**good(), "ddp.fp32": "FAIL"},
        node_type="cpu",
        started="2026-12-01T00:00:00+00:00",
    )
    part = report(
        artifact, {"io.lock": "PASS"}, node_type="cpu", started="2026-12-02T00:00:00+00:00"
    )
    assert reports.require_proof(stack, artifact, place.site, [part, old], "") == (old, ""), (
        "a run of one check says nothing"
    )
    with pytest.raises(AnswerIsNo, match="ddp.fp32 is FAIL"):
        reports.require_proof(stack, artifact, place.site, [part, bad, old], "")
    assert reports.require_proof(stack, artifact, place.site, [bad, old], "", named=True) == (
        old,
        "",
    )


@pytest.mark.parametrize("kind", ["", "retired-type"])
def test_a_report_of_no_known_node_type_proves_nothing(place: Place, kind: str) -> None:
    stack = place.stack()
    artifact = place.artifact(stack)
    with pytest.raises(AnswerIsNo, match="and site.yaml knows cpu, h100"):
        reports.require_proof(
            stack, artifact, place.site, [report(artifact, good(), node_type=kind)], ""
        )


def test_nothing_that_can_be_required_keeps_shut_and_no_tests_mean_the_node() -> None:
    assert list_required(("fabric",), "standard", CPU) == []
    assert {"node.image", "io.lock", "tasks.exchange"} <= set(list_required((), "standard", CPU))
    assert not {"jax.psum", "serve.vllm"} & set(list_required((), "standard", CPU))


def test_what_a_release_says_of_its_report(place: Place) -> None:
    artifact = place.artifact(place.stack())
    found = report(
        artifact, {"ddp.fp32": "PASS", "node.ecc": "SKIP"}, node_type="cpu", virtual_nodes=True
    )
    said = dict(describe_report(found))
    assert said["verdict"] == "PASS (1 PASS, 1 SKIP)"
    assert said["date"] == "2026-11-20"
    assert said["on"] == "2 nodes of type cpu: node1, node2; 4 ranks by apptainer"
    assert "VIRTUAL" in said["NOTE"]


def test_the_newest_report_of_this_image_is_taken(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    artifact = place.artifact(place.stack())
    for number, more in enumerate(
        ({}, {"started": "2026-11-21T00:00:00+00:00"}, {"image_sha256": "1" * 64})
    ):
        folder = tmp_path / "state/hpcstack/tests/pytorch-24.11" / str(number)
        folder.mkdir(parents=True)
        (folder / "report.json").write_text(report(artifact, good(), **more).model_dump_json())
    (folder.parent / "torn").mkdir()
    (folder.parent / "torn/report.json").write_text('{"format":')
    found = reports.find_reports("pytorch-24.11", artifact.sha256, place.store)
    assert [one.started[:10] for one in found] == ["2026-11-21", "2026-11-20"]


def test_one_tests_and_a_colleague_promotes(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """admin 9: "there is no report", which lay in the tester's home."""
    artifact = place.artifact(place.stack())
    made = report(artifact, good())
    assert reports.share_report(made, place.store) is None, "a store that no group shares"
    group = grp.getgrgid(os.getegid()).gr_name
    store = Store(place.store.top, sharing=find_sharing(group, ()))
    shared = reports.share_report(made, store)
    assert shared
    assert shared.stat().st_mode & 0o020
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "the colleague"))
    assert reports.find_reports("pytorch-24.11", artifact.sha256, store) == [made]
    monkeypatch.setattr(Sharing, "is_publisher", lambda _sharing, _number: False)
    assert reports.find_reports("pytorch-24.11", artifact.sha256, store) == [], (
        "of somebody who is no publisher"
    )
