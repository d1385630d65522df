"""The suite on the testbed: planted bugs are caught through the launched job, every form of the
report, other stacks.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cached_property
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hpcstack_smoke.agent import START_S
from support.testbed import REPO, Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.suite,
    pytest.mark.slurm,
    pytest.mark.registry,
    pytest.mark.apptainer,
]
STACK = "pytorch-24.11"
PLANTS = REPO / "tests/plants"
BUGS = {
    "ddp.fp32": "spread 0.",  # no gradient sync: ranks drift apart
    "ddp.buckets": "off the reference by",  # the sum, not the mean
    "ddp.autocast": "off the reference by",  # the same data on all ranks
    "train.checkpointing": "spread 0.0",  # one wrong row of one rank's gradient
    "train.digits": "off one process by",
    "nccl.gloo": "wrong: all_reduce in float32",  # a corrupted all-reduce
    "nccl.transport": "1 pair(s) by Socket",  # sockets on nodes with InfiniBand
    "nccl.gloo-pairs": "slow: n2;",  # one node made slow
    "nccl.gloo-permutations": "wrong data: node1 from node2;",  # one wrong number from one rank
}


class OwnState(Testbed):
    """The testbed with reports and histories of this file's own: gates that other lanes ask read
    the user's.
    """

    @cached_property
    def state(self) -> str:
        return f"{self.home}/tests/suite"

    def run(
        self, *argv: str, timeout: float = 600, check: bool = False, **env: str
    ) -> subprocess.CompletedProcess[str]:
        if argv[0] == "hpcstack":
            env = {"XDG_STATE_HOME": self.state, **env}
        return super().run(*argv, timeout=timeout, check=check, **env)


@pytest.fixture(scope="session")
def testbed() -> Testbed:
    return OwnState()


@pytest.fixture(scope="module")
def plants(testbed: Testbed) -> Path:
    for path in PLANTS.iterdir():
        testbed.give(f"plants/{path.name}", path.read_text())
    return testbed.home / "plants"


def run(testbed: Testbed, *argv: str, **env: Any) -> tuple[int, dict[str, Any]]:
    done = testbed.run(
        "hpcstack", "test", STACK, "-N", "2", "--runtime", "apptainer", *argv, "--json", **env
    )
    return done.returncode, json.loads(done.stdout)


def test_every_planted_bug_is_caught_and_nothing_else(
    testbed: Testbed, built: dict[str, Any], plants: Path
) -> None:
    status, document = run(
        testbed,
        "--only",
        f"{','.join(BUGS)},fsdp.fsdp2",
        HPCSTACK_SMOKE_PLANT=str(plants / "bugs.py"),
    )
    found = {one["code"]: one for one in document["outcomes"]}
    assert status == 1
    assert document["verdict"] == "FAIL"
    assert document["planted"].endswith("bugs.py")
    for code, said in BUGS.items():
        assert found[code]["status"] == "FAIL" and said in found[code]["measured"], found[code]
        assert found[code]["remedy"]
    assert found["fsdp.fsdp2"]["status"] == "PASS"  # nothing was planted there


def test_a_rank_that_never_comes_is_named_in_time(
    testbed: Testbed, built: dict[str, Any], plants: Path
) -> None:
    status, document = run(
        testbed,
        "--nproc-per-node=1",
        "--only",
        "ddp.fp32",
        HPCSTACK_SMOKE_PLANT=str(plants / "never.py"),
        HPCSTACK_SMOKE_TIMEOUT="15",
        HPCSTACK_SMOKE_START="30",
    )
    (one,) = document["outcomes"]
    assert status == 1
    assert one["status"] == "ERROR"
    assert "never started: rank 1" in one["measured"]
    assert document["seconds"] < START_S, "it waited for the rank as long as it does unasked"


@pytest.mark.soak(
    "a run of the suite for its files",
    kept="tests/unit/suite/test_capsule.py::test_a_capsule_is_judged_as_its_run_was",
)
def test_a_run_leaves_a_capsule_that_is_judged_alike(
    testbed: Testbed, built: dict[str, Any]
) -> None:
    _, document = run(testbed, "--only", "node,fabric,ddp.placement")
    (folder,) = testbed.bash(
        f"ls -td {testbed.home}/tests/suite/hpcstack/tests/{STACK}/*/ | head -n 1"
    ).stdout.split()
    done = testbed.run("hpcstack", "report", "--rejudge", f"{folder}/capsule.tar.gz")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 verdicts differ" in done.stdout
    hidden = f"{testbed.home}/tests/suite/hidden.tar.gz"
    testbed.run("hpcstack", "report", folder, "--capsule", hidden, "--anonymous", check=True)
    names = testbed.bash(f"tar tzf {hidden}").stdout.split()
    assert {"machine-node2.json", "verdicts.json"} <= set(names)
    text = testbed.bash(f"tar xzOf {hidden}").stdout
    assert str(testbed.home) not in text
    assert testbed.run("hpcstack", "report", "--rejudge", hidden).returncode == 0
    assert document["nodes"] == ["node1", "node2"]


BREAKS = """\
from hpcstack_smoke.training import ddp, fsdp
from hpcstack_smoke import context
import os
def broken(context):
    if context.rank == 1:
        raise ValueError("planted")
    context.all(0)
    context.all(0)
ddp.check_ddp_fp32 = broken
"""


@pytest.mark.soak(
    "a run of the suite for one exception",
    kept="tests/unit/smoke/test_result.py::test_a_check_that_breaks_is_an_error_and_not_a_crash",
)
def test_one_broken_check_hides_no_other(testbed: Testbed, built: dict[str, Any]) -> None:
    plant = testbed.give("plants/breaks.py", BREAKS)
    _, document = run(
        testbed,
        "--only",
        "ddp.fp32,fsdp.fsdp2",
        HPCSTACK_SMOKE_PLANT=str(plant),
        HPCSTACK_SMOKE_TIMEOUT="20",
    )
    found = {one["code"]: one for one in document["outcomes"]}
    assert found["ddp.fp32"]["status"] == "ERROR"
    assert found["fsdp.fsdp2"]["status"] == "PASS"


@pytest.mark.soak(
    "the standard tier has all of the quick one, and is run in test_chain",
    kept="tests/integration/test_chain.py::test_the_suite_proves_ddp_and_deepspeed_on_two_nodes",
)
@pytest.mark.parametrize("turn", range(2))  # and one of the standard tier in test_chain
def test_without_bugs_the_quick_tier_passes(
    testbed: Testbed, built: dict[str, Any], turn: int
) -> None:
    status, document = run(
        testbed,
        "--html",
        "h.html",
        "--junit",
        "j.xml",
        "--markdown",
        "m.md",
        "--prometheus",
        "p.prom",
    )
    assert (status, document["verdict"]) == (0, "PASS"), document
    assert document["tier"] == "quick"
    assert document["seconds"] < 120
    assert {one["status"] for one in document["outcomes"]} == {"PASS", "SKIP"}
    assert (
        ElementTree.fromstring((testbed.home / "j.xml").read_text().split("\n", 1)[1]).get(
            "failures"
        )
        == "0"
    )
    assert (testbed.home / "m.md").read_text().startswith(f"# {STACK}: PASS")
    assert 'code="ddp.fp32",status="PASS"} 1' in (testbed.home / "p.prom").read_text()


def test_json_into_a_file_and_the_history(testbed: Testbed, built: dict[str, Any]) -> None:
    testbed.hpcstack(
        "test", STACK, "--runtime", "apptainer", "--only", "node.shm", "--json", "r.json"
    )
    document = json.loads((testbed.home / "r.json").read_text())
    assert document["verdict"] == "PASS"
    assert document["format"] == "hpcstack/report/v2"
    runs = testbed.json("report", "--history", STACK)["runs"]
    assert runs[-1]["folder"] == document["folder"]
    assert "node.shm/shm_GB" in runs[-1]["figures"]
    page = testbed.hpcstack("report", "--history", STACK, "--html", "history.html")
    assert "node.shm/shm_GB" in page.stdout


@pytest.mark.soak(
    "a run of the suite for one page",
    kept="tests/unit/report/test_report_forms.py::test_the_page_is_whole_and_tells_all",
)
@pytest.mark.chromium
def test_a_browser_shows_the_page_whole(
    testbed: Testbed, built: dict[str, Any], tmp_path: Path
) -> None:
    """The page of a standard run: nothing is fetched, nothing sticks out, every figure is drawn."""
    testbed.hpcstack("test", STACK, "-N", "2", "--runtime", "apptainer", "--tier", "standard", "--only",
                     "nccl.gloo-bandwidth,scaling.strong,nccl.gloo-pairs", "--html", "shown.html")  # fmt: skip
    page = tmp_path / "page.html"
    shutil.copy(testbed.home / "shown.html", page)
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1100,2400"]
    shot = subprocess.run(
        [*browser, f"--screenshot={tmp_path}/shot.png", page.as_uri()],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (tmp_path / "shot.png").stat().st_size > 20_000, shot.stderr
    dom = subprocess.run(
        [*browser, "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    assert dom.count("<svg") == 4
    assert "VIRTUAL" in dom


@pytest.mark.pmix
def test_a_stack_without_torch_is_proven_by_its_own_check(testbed: Testbed, mpi_stack: str) -> None:
    document = testbed.json(
        "test", mpi_stack, "-N", "2", "--runtime", "apptainer", "--tier", "standard"
    )
    found = {one["code"]: one for one in document["outcomes"]}
    assert document["verdict"] == "PASS", document
    for code in ("mpi.world", "mpi.exact", "mpi.compile", "mpi.pi", "tasks.exchange", "io.shared"):
        assert found[code]["status"] == "PASS", found[code]
    assert "4 ranks on 2 host(s)" in found["mpi.world"]["measured"]


@pytest.mark.soak(
    "two runs of the suite for one table",
    kept="tests/unit/suite/test_compare.py::test_a_figure_has_both_values_and_their_ratio",
)
def test_two_stacks_are_compared_in_one_allocation(testbed: Testbed, built: dict[str, Any]) -> None:
    document = testbed.json(
        "test",
        STACK,
        "python-3.12-mpi",
        "-N",
        "2",
        "--runtime",
        "apptainer",
        "--only",
        "io.lock,node.shm,tasks",
    )
    assert document["verdicts"] == ["PASS", "PASS"]
    rows = {row["code"]: row for row in document["figures"]}
    assert rows["node.shm"]["figures"]["shm_GB"][2] == 1.0
    assert rows["tasks.exchange"]["statuses"] == ["PASS", "PASS"]


@pytest.mark.soak(
    "a run of the suite for one figure",
    kept="tests/unit/suite/test_sweep.py::test_a_slow_node_is_named_with_the_reason",
)
def test_a_sweep_measures_the_pair_and_blames_nobody(
    testbed: Testbed, built: dict[str, Any]
) -> None:
    document = testbed.json(
        "test", STACK, "--sweep", "--runtime", "apptainer", "--only", "nccl.gloo-bandwidth"
    )
    assert document["nodes"] == ["node1", "node2"]
    assert document["odd"] == {}
    assert document["pairs"][0]["busbw_GB_s"] > 0
    assert Path(document["folder"], "drain.txt").read_text() == ""


BURN = ("--tier", "burn", "--minutes", "0.2")


def test_a_burn_finds_one_wrong_bit(testbed: Testbed, built: dict[str, Any], plants: Path) -> None:
    """On the CPU, which computes the same product over and over, too."""
    # The wrong bit is in its 40th product.
    short = ("--tier", "burn", "--minutes", "0.1", "--nproc-per-node=1")
    status, document = run(testbed, *short, HPCSTACK_SMOKE_PLANT=str(plants / "bitflip.py"))
    found = {one["code"]: one for one in document["outcomes"]}
    one = found["burn.compute"]
    assert status == 1 and one["status"] == "FAIL" and "1 wrong: 1 value(s)" in one["measured"], one
    assert one["where"] == ["node2:1"]
    assert "drain the node" in one["remedy"]


@pytest.mark.soak(
    "with a wrong bit on one rank, the others are quiet",
    kept="tests/integration/test_smoke.py::test_a_burn_finds_one_wrong_bit",
)
def test_a_burn_is_quiet_without(testbed: Testbed, built: dict[str, Any]) -> None:
    status, document = run(testbed, *BURN)
    found = {one["code"]: one for one in document["outcomes"]}
    assert status == 0 and found["burn.compute"]["status"] == "PASS", found["burn.compute"]
    assert found["burn.compute"]["figures"]["products"] > 100
    assert found["burn.compute"]["informational"]


@pytest.mark.soak(
    "a minute of waiting; how stacks are asked for is seen in a launch",
    kept="tests/integration/test_hang.py::test_the_odd_rank_is_named_while_it_hangs",
)
def test_a_stalled_run_leaves_what_all_nodes_know(
    testbed: Testbed, built: dict[str, Any], plants: Path
) -> None:
    """The stacks of every rank before the ranks are ended, and a bundle of each node."""
    status, document = run(
        testbed, "--only", "ddp.fp32", HPCSTACK_SMOKE_PLANT=str(plants / "sleeper.py"), HPCSTACK_SMOKE_TIMEOUT="300",
        HPCSTACK_SMOKE_STALL="45",
    )  # fmt: skip
    (one,) = document["outcomes"]
    assert status == 1 and one["status"] == "ERROR" and "in the middle of it" in one["measured"], (
        one
    )
    folder = Path(document["folder"]) if "folder" in document else max(
        (testbed.home / f".local/state/hpcstack/tests/{STACK}").iterdir(), key=lambda path: path.stat().st_mtime
    )  # fmt: skip
    assert {path.name for path in (folder / "bundle").iterdir()} == {"node1", "node2"}
    stacks = {path.name: path.read_text() for path in folder.glob("stacks-*-1.txt")}
    assert "asleep_here" in stacks["stacks-3-1.txt"]
    assert "asleep_here" in stacks["stacks-0-1.txt"]
    assert "sleeper.py" in stacks["stacks-3-1.txt"]
    assert len(stacks) == 4
