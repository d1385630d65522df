"""Values of real boards, from two public corpora, through the suite's own checks of a node.

A healthy board gives no FAIL and no ERROR. The one that waits for a row to be remapped does. Each is
also kept as a capsule, and judged again.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcstack.report import Report
from hpcstack.suite.capsule import REPLAYED, Capsule, judge_capsule, rejudge_capsule
from hpcstack_smoke.agent import import_check
from hpcstack_smoke.node import inventory, machine
from hpcstack_smoke.node.recorder import Recorder
from hpcstack_smoke.request import Request
from hpcstack_smoke.result import run_check
from hpcstack_smoke.select import CHECKS

DATA = Path(__file__).parents[2] / "data/corpora.yaml"
GOLDEN = Path(__file__).parents[2] / "golden/corpora.txt"
CAPTURES = yaml.safe_load(DATA.read_text())["captures"]
LINKS = '18 links, each "Link N: 26.562 GB/s"'


class Board(machine.Machine):
    """The machine of a CAPTURE: nvidia-smi says what it said there, and nothing else is known."""

    def __init__(self, capture: dict[str, Any]) -> None:
        self.capture = capture
        common = {"driver_version": capture["driver"], **capture.get("common", {})}
        self.gpus = [
            {"index": str(number), **common, **gpu} for number, gpu in enumerate(capture["gpus"])
        ]

    @property
    def slices(self) -> int:
        """How many MIG devices there are."""
        return 7 if self.capture["mig"] else 0

    def line(self, name: str) -> str:
        if name.endswith("/max_link_width"):
            # the corpora do not have it: on a healthy board the link has all that its slot has
            return str(self.gpus[int(name.split("/")[1])]["pcie.link.width.current"])
        if name == "/proc/driver/nvidia/version":
            return f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {self.capture['driver']}  x"
        return ""

    def found(self, pattern: str) -> list[str]:
        if pattern.startswith("/dev/nvidia"):
            return [f"/dev/nvidia{number}" for number in range(len(self.gpus))]
        for gpu in self.gpus:
            if pattern.endswith(f"/{gpu['pci.bus_id'].lower()[-12:]}") and self.capture["healthy"]:
                return [f"slots/{gpu['index']}/gpu"]
        return []

    def exists(self, name: str) -> bool:
        return bool(self.line(name))

    def opens(self, name: str) -> bool:
        return name.startswith("/dev/nvidia")

    def kernel_log(self, seconds: float) -> list[str]:
        raise OSError(errno.EPERM, "not recorded")

    def ran(self, argv: list[str], seconds: float) -> tuple[int, str]:
        text = self.answer(argv[1:]) if argv[0] == "nvidia-smi" else ""
        return (0 if text else 1), text

    def answer(self, words: list[str]) -> str:
        """What `nvidia-smi WORDS` prints; empty where it refuses, or the corpus does not say."""
        if words == ["-L"]:
            return "".join(self.list_devices())
        if words == ["nvlink", "-s"]:
            return self.list_links()
        kind, _, fields = words[0].partition("=")
        if kind not in ("--query-gpu", "--query-remapped-rows"):
            return ""
        names = fields.replace("gpu_uuid", "uuid").split(",")
        if any(name not in gpu for name in names for gpu in self.gpus):
            return ""
        return "".join(f"{', '.join(gpu[name] for name in names)}\n" for gpu in self.gpus)

    def list_devices(self) -> list[str]:
        lines = []
        for gpu in self.gpus:
            lines.append(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})\n")
            lines += [
                f"  MIG 1g.10gb     Device  {number}: (UUID: MIG-{number})\n"
                for number in range(self.slices)
            ]
        return lines

    def list_links(self) -> str:
        said = self.capture.get("nvlink_s", "")
        if said != LINKS:
            return str(said)
        lines = []
        for gpu in self.gpus:
            lines.append(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})\n")
            lines += [f"\t Link {number}: 26.562 GB/s\n" for number in range(18)]
        return "".join(lines)


def run_checks(capture: dict[str, Any]) -> tuple[list[dict[str, Any]], Capsule]:
    """The rows of the checks of a node on the board of CAPTURE, and the capsule of that run."""
    board = Board(capture)
    recorder = Recorder(board)
    count = board.slices or len(board.gpus)
    request = Request("/nowhere", ",".join(sorted(REPLAYED)), gpus=count, ranks=1, node_gpus=count)
    before, machine.HERE = machine.HERE, recorder
    try:
        rows = [
            run_check(check.code, lambda check=check: import_check(check)(request), "board")  # type: ignore[misc]
            for check in CHECKS
            if check.code in REPLAYED
        ]
        made = inventory.make_inventory(request)
    finally:
        machine.HERE = before
    report = Report(
        stack="pytorch-24.11",
        image="x",
        image_sha256="0" * 64,
        suite="0",
        runtime="pyxis",
        world_size=1,
        started="2026-01-02T03:04:05+00:00",
        seconds=1.0,
        nodes=("board",),
    )
    documents = {
        "report.json": report.model_dump(mode="json"),
        "request.json": {**vars(request)},
        "node-board.json": {"host": "board", "inventory": made, "rows": rows},
        "machine-board.json": {"host": "board", "answers": recorder.answers},
        "verdicts.json": {},
    }
    capsule = Capsule(json.loads(json.dumps(documents)))
    verdicts = {one.code: one.status for one in judge_capsule(capsule).outcomes}
    return rows, Capsule({**capsule.documents, "verdicts.json": verdicts})


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda one: str(one["name"]))
def test_a_healthy_board_is_not_blamed(capture: dict[str, Any]) -> None:
    rows, _ = run_checks(capture)
    bad = {row["code"]: row["measured"] or row["evidence"] for row in rows if row["status"] in ("FAIL", "ERROR")}  # fmt: skip
    if capture["healthy"]:
        assert bad == {}
    else:
        assert set(bad) == {"node.ecc"}
        assert bad["node.ecc"] == "GPU 1: remapped_rows.pending Yes"


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda one: str(one["name"]))
def test_its_capsule_is_judged_alike(capture: dict[str, Any]) -> None:
    rows, capsule = run_checks(capture)
    assert rejudge_capsule(capsule) == []
    assert {row["code"]: row["status"] for row in rows}.items() <= capsule.verdicts.items()


def describe_verdicts() -> str:
    """A line for each capture and status: which checks have it. PASS stands for what is not named."""
    lines = []
    for capture in CAPTURES:
        rows, _ = run_checks(capture)
        for status in ("PASS", "WARN", "FAIL", "ERROR"):
            codes = [row["code"] for row in rows if row["status"] == status]
            if codes:
                lines.append(f"{capture['name']:<22} {status:<5} {' '.join(codes)}")
    return "\n".join(lines) + "\n"


def test_the_verdicts_of_the_corpora() -> None:
    found = describe_verdicts()
    print(found)
    if os.environ.get("HPCSTACK_GOLDEN") == "write":
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()
