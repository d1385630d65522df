"""Each command of the two pages for people in a hurry is run, in its order, in one shell."""

from __future__ import annotations

import json
import re
import time
from datetime import date
from pathlib import Path

import pytest

from hpcstack.core.usage_line import LoggedUse, format_use
from support.osv import make_record
from support.testbed import REPO, Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.slurm, pytest.mark.lmod, pytest.mark.apptainer]


def commands(page: str) -> list[str]:
    """What follows `$ ` in the page's console blocks, each with the lines of its here-document."""
    text = (REPO / "docs" / page).read_text()
    out: list[str] = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                out.append(line[2:])
            else:
                out[-1] += f"\n{line}"
    return out


def script(page: str, **other: str) -> str:
    """The page as a script that ends at the first command whose status is not as the page says."""
    lines = []
    for number, command in enumerate(commands(page)):
        for old, new in other.items():
            command = re.sub(rf"(?<![\w/-]){old}(?![\w])", new, command)
        head = command.partition("\n")[0]
        expected = re.search(r"# (?:(any) exit|exit (\d+))$", head)
        wanted = "" if expected and expected[1] else (expected[2] if expected else "0")
        lines.append(f"echo '== {number}' >&2\n{command}\nstatus=$?")
        if wanted:
            lines.append(
                f'[ "$status" = {wanted} ] || {{ echo "command {number} ended with $status" '
                f">&2; exit 99; }}"
            )
    return "\n".join(lines)


def run(testbed: Testbed, folder: str, text: str) -> str:
    path = testbed.give(f"tests/{folder}/page.sh", text)
    done = testbed.bash(f"cd tests/{folder} && . {path}", check=False)
    numbers = re.findall(r"^== (\d+)$", done.stderr, re.MULTILINE)
    assert done.returncode == 0, (
        f"after command {numbers[-1:]}:\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
    )
    return done.stdout + done.stderr


def test_the_first_hour(testbed: Testbed, published: dict[str, str]) -> None:
    said = run(testbed, "first-hour", script("tutorials/first-hour.md"))
    for part in (("4 ranks, sum 4 ['--epochs', " "'1']"), "it could start", ("rank 1 on node2 failed first: ValueError: bad sample " "17"),
                 "OMP_NUM_THREADS=", "cancelled: ", "ODD: rank 1 on node2 is at /"):  # fmt: skip
        assert part in said, (part, said[-3000:])


@pytest.mark.soak(
    "the page's steps are those of test_projects",
    kept="tests/integration/test_projects.py::test_a_project_runs_under_every_runtime",
)
def test_your_own_project(testbed: Testbed, published: dict[str, str]) -> None:
    testbed.bash("rm -rf tests/own-project")
    said = run(testbed, "own-project", script("tutorials/your-own-project.md"))
    assert said.count("the sum is 2,001,000 on 2 ranks") == 3
    assert "/opt/hpcstack/own/bin/shapes-train" in said
    assert "failed first: ValueError: rank 1 on node2 met a bad sample" in said
    assert "I am rank 1; there are 2000 files" in said
    assert "of the image: 1" in said
    assert "(1, 2001000)" in said
    assert "hpcstack tunnel" in said
    assert re.search(r"^node1$", said, re.MULTILINE)
    assert re.search(r"^node2$", said, re.MULTILINE)


@pytest.mark.soak(
    "the verbs of the page, one after the other",
    kept="tests/unit/cli/test_admins_day.py::test_undo_takes_back_what_was_named_and_a_withdrawn_image_is_not_published_unseen",
)
def test_three_in_the_morning(testbed: Testbed, mpi_stack: str) -> None:
    testbed.unpublish("python")
    for why in ("first", "second"):
        testbed.hpcstack("publish", mpi_stack, "--channel", "production", "--override", why)
    testbed.hpcstack("default", "python/3.12-mpi", "--reason", "what is undone")
    text = script(
        "how-to/on-call.md",
        **{"pytorch/24.11": "python/3.12-mpi", "pytorch-24.11": mpi_stack, "pytorch": "python"},
    )
    said = run(testbed, "three", text)
    assert "this would change:" in said
    reasons = [event["reason"] for event in testbed.json("history", "python")["events"]]
    assert any("CVE-2026-0001" in one for one in reasons)
    assert "fixed in the driver" in reasons
    assert testbed.json("status", "--check")["wrong"] == []


def test_what_is_inside_is_found_and_audited(testbed: Testbed, mpi_stack: str) -> None:
    testbed.unpublish("python")
    testbed.hpcstack("publish", mpi_stack, "--channel", "production", "--override", "for a page")
    pages = [script(f"how-to/{page}.md") for page in ("find-what-is-inside", "audit-images")]
    text = (
        "\n".join(pages)
        .replace("pytorch/24.11", "python/3.12-mpi")
        .replace("find torch", "find mpi4py")
    )

    # what the image has of pip and of Debian, each with a hole and one that is mended
    held = {one["name"]: one["version"] for one in testbed.json("find", "pypi:mpi4py")["hits"]}
    rows = [
        {"ecosystem": "PyPI", "name": "mpi4py", "fixed": "99", "word": "HIGH"},
        {"ecosystem": "PyPI", "name": "mpi4py", "fixed": held["mpi4py"], "word": "LOW"},
        {"ecosystem": "Debian:12", "name": "glibc", "fixed": "99", "word": "LOW"},
        {"ecosystem": "Ubuntu:24.04:LTS", "name": "glibc", "fixed": "99", "word": "LOW"},
    ]
    today = date.today().isoformat()
    for number, row in enumerate(rows):
        record = make_record({"id": f"X-{number}", "published": today, **row})
        testbed.give(f"tests/inside/osv/{row['ecosystem']}/{number}.json", json.dumps(record))
    said = run(testbed, "inside", text.replace("/opt/osv", "osv"))
    assert "python/3.12-mpi-r" in said
    assert "/etc/os-release" in said
    assert "known vulnerabilities: 1 high, " in said
    assert "X-0" in said
    assert "X-1" not in said
    assert "libc6" in said  # of glibc, its source


def test_who_uses_what_is_shown(testbed: Testbed) -> None:
    now = int(time.time())
    uses = [
        LoggedUse("load", "pytorch/24.11-r1", "ann", "-", now - 3600),
        LoggedUse("launch", "pytorch/24.11-r1", "bob", "12", now - 86400),
    ]
    lines = [f"Nov 26 09:00:00 login1 hpcstack-usage: {format_use(use)}\n" for use in uses]
    testbed.give("tests/usage/usage.log", "".join(lines))
    said = run(testbed, "usage", script("how-to/see-who-uses-what.md"))
    assert "pytorch/24.11-r1  1      1         2" in said
    assert "pytorch/24.11-r1: ann (1), bob (1)" in said


def test_each_page_is_named_by_the_readme() -> None:
    readme = (REPO / "README.md").read_text()
    for page in ("tutorials/first-hour.md", "how-to/on-call.md"):
        assert f"docs/{page}" in readme
        assert len(commands(page)) > 10
        assert Path(REPO / "docs" / page).exists()
