"""From a build to production and back, by the command line on the testbed: the gate with a real
report.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.testbed import Testbed

STACK, NAME = "python-3.12-mpi", "python/3.12-mpi"
pytestmark = [pytest.mark.testbed, pytest.mark.slurm, pytest.mark.lmod, pytest.mark.apptainer]


def loaded(testbed: Testbed, what: str) -> str:
    return testbed.bash(f"module load {what} && echo $HPCSTACK_RELEASE", check=False).stdout.strip()


def drop_images_without_lock(testbed: Testbed) -> None:
    """Of STACK, on a testbed that an earlier hpcstack built on; other tests run from the images of
    other stacks.
    """
    images = testbed.folder / "site/store/images"
    for record in images.glob("*/artifact.json"):
        if (
            json.loads(record.read_text())["stack"] == STACK
            and not (record.parent / "lock.json").exists()
        ):
            testbed.bash('rm -rf "$1"', str(record.parent))


@pytest.mark.pmix
def test_a_stack_is_proven_promoted_rolled_back_and_retired(
    testbed: Testbed, tmp_path: Path
) -> None:
    testbed.unpublish("python")
    drop_images_without_lock(testbed)
    testbed.json("build", STACK)
    testbed.bash(f"rm -rf ~/.local/state/hpcstack/tests/{STACK}")
    first = testbed.json("publish", STACK)
    assert testbed.hpcstack("publish", STACK, "--dry-run").stdout.strip() == "nothing would change"
    shut = testbed.hpcstack("promote", NAME, check=False)
    assert shut.returncode == 1
    assert "there is no report of this image" in shut.stderr
    assert re.search("hpcstack test [0-9a-f]{12} -N 2 --tier standard", shut.stderr)
    quick = testbed.json(
        "test",
        STACK,
        "-N",
        "2",
        "--runtime",
        "apptainer",
        "--only",
        "node.image,io.lock",
        "--tier",
        "quick",
    )
    assert quick["verdict"] == "PASS"
    shut = testbed.hpcstack("promote", NAME, check=False)
    assert shut.returncode == 1
    assert "mpi.exact was not run" in shut.stderr
    assert (
        testbed.json("test", STACK, "-N", "2", "--runtime", "apptainer", "--tier", "standard")[
            "verdict"
        ]
        == "PASS"
    )
    short = testbed.hpcstack("promote", NAME, "--dry-run").stdout
    assert (
        len(short.splitlines()) < 10 and f"{NAME}: {first['release'][7:]} (testing) -> " in short
    ), short
    change = testbed.hpcstack("promote", NAME, "--diff").stdout
    second = (
        first["release"].rpartition("-r")[0] + f"-r{int(first['release'].rpartition('-r')[2]) + 1}"
    )
    assert f'+module_version("{second}", "3.12-mpi")' in change
    assert loaded(testbed, NAME) == first["release"]

    done = testbed.json("promote", NAME)
    assert (done["release"], done["channel"], done["takes_alias"]) == (second, "production", True)
    assert loaded(testbed, NAME) == second
    assert loaded(testbed, "python") == second
    said = testbed.bash(f"module help {NAME} 2>&1").stdout
    for part in ("production", "PASS (", "standard tier", "node1, node2", "VIRTUAL", "STAND-IN"):
        assert part in said, said
    folder = testbed.folder / "site/store/releases" / second
    assert {"release.json", "report.json", "sbom.json", "lock.json", "bin", "libexec"} <= {
        path.name for path in folder.iterdir()
    }
    again = testbed.hpcstack("promote", NAME, check=False)
    assert again.returncode == 0
    assert "was already published" in again.stdout

    refused = testbed.hpcstack("rollback", NAME, "--reason", "it was slow", check=False)
    assert refused.returncode == 2
    assert "which is in testing" in refused.stderr
    assert loaded(testbed, NAME) == second
    dry = testbed.hpcstack(
        "rollback", NAME, "--reason", "it was slow", "--force", "--dry-run"
    ).stdout
    assert dry.startswith("this would change:")
    assert loaded(testbed, NAME) == second
    back = testbed.json("rollback", NAME, "--reason", "it was slow", "--force")
    assert back["release"] == first["release"]
    assert loaded(testbed, NAME) == first["release"]
    assert testbed.json("rollback", second)["release"] == second
    events = testbed.json("history", NAME)["events"]
    assert [one["verb"] for one in events][-4:] == ["publish", "promote", "rollback", "rollback"]
    assert events[-2]["reason"] == "it was slow"
    assert events[-2]["alias"] == f"{second[7:]} -> {first['release'][7:]}"

    assert testbed.hpcstack("undo", "python", check=False).returncode == 2, (
        "production would mean what is in testing"
    )
    undone = testbed.json("undo", "python", "--force", "--reason", "to see")
    assert undone["undone"]["verb"] == "rollback"
    assert loaded(testbed, NAME) == first["release"]
    assert "taken back: undo" in testbed.hpcstack("undo", "python").stdout
    assert loaded(testbed, NAME) == second
    status = testbed.json("status")
    row = next(one for one in status["releases"] if one["release"] == second)
    assert row["channel"] == "production"
    assert row["alias"] == NAME
    assert not row["wrong"]
    goes_and_comes_back(testbed, second)


def goes_and_comes_back(testbed: Testbed, release: str) -> None:
    """NAME is retired, with notice and at once, and taken back; then it means RELEASE again."""
    warned = testbed.json("retire", NAME, "--on", "2099-01-01", "--reason", "old")
    assert warned["remove"] == "2099-01-01"
    assert "has been deprecated since" in testbed.bash(f"module load {NAME}").stderr
    shut = testbed.hpcstack("retire", NAME, "--now", check=False)
    assert shut.returncode == 2
    assert f"{NAME} is in production and would be gone" in shut.stderr
    testbed.hpcstack("retire", NAME, "--now", "--force", "--reason", "CVE")
    for what in (release, NAME):
        refused = testbed.bash(f"module load {what}", check=False)
        assert (
            refused.returncode and "was retired on" in refused.stderr and "CVE" in refused.stderr
        ), refused.stderr
    assert testbed.hpcstack("publish", STACK, check=False).returncode == 2
    testbed.hpcstack("retire", NAME, "--cancel")
    assert loaded(testbed, NAME) == release
    testbed.hpcstack("catalog", "-o", "site")
    assert json.loads((testbed.home / "site/catalog.json").read_text())["stacks"]


@pytest.fixture(scope="module")
def in_testing(testbed: Testbed) -> dict[str, Any]:
    """The artifact of STACK, which is published."""
    built: dict[str, Any] = testbed.json("build", STACK)
    testbed.json("publish", STACK)
    return built


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("promote", "nothing"), 2, "nothing is published as 'nothing'"),
        (("rollback", f"{NAME}-r99"), 2, "is not published"),
        (("retire", NAME, "--on", "soon"), 2, "'soon' is not a date"),
        (("retire", NAME, "--now", "--on", "2099-01-01"), 2, ("--now and --cancel take only a " "--reason")),
        (("retire", "python", "--now"), 2, "retire wants a version; python has"),
        (("rollback", "python"), 2, "rollback wants a version; python has"),
        (("retire", NAME, "--successor", "pytorch/99.99"), 2, "--successor"),
        (("undo", "python", "--force"), 2, "--force needs a reason"),
        (("remove",), 2, "name what is to go"),
        (("retire", NAME, "--reason", "a\nb"), 2, "without control characters"),
        (("catalog", "-o", "/etc"), 2, "something other than a catalogue"),
        (("default", "python/9"), 2, "is not published"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(
    testbed: Testbed, in_testing: dict[str, Any], words: tuple[str, ...], status: int, says: str
) -> None:
    done = testbed.hpcstack(*words, check=False)
    assert done.returncode == status and says in done.stderr, done.stderr


def test_an_override_is_written_down(testbed: Testbed, in_testing: dict[str, Any]) -> None:
    done = testbed.json(
        "publish", STACK, "--channel", "production", "--override", "the cluster opens today"
    )
    assert done["image"] == in_testing["image"]
    events = testbed.json("history", NAME)["events"]
    assert any(one["reason"] == "the cluster opens today" for one in events) or not done["new"]
