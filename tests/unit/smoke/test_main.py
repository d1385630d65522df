"""`python3 -m hpcstack_smoke` on one machine: what it is asked, and what it says in the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hpcstack_smoke.__main__ import parse_options, show_results, write_given_request
from hpcstack_smoke.request import read_request
from hpcstack_smoke.result import write_document
from hpcstack_smoke.select import CHECKS


def leave(folder: Path, *statuses: str) -> None:
    rows = [
        {"code": f"node.c{n}", "where": "n1", "status": status, "evidence": f"saw {n}"}
        for n, status in enumerate(statuses)
    ]
    write_document(str(folder), "node-n1.json", {"rows": rows})


def test_the_launchers_words_are_not_ours() -> None:
    options, launcher = parse_options(["--tier", "full", "--", "torchrun", "--tier", "x"])
    assert options.tier == "full"
    assert launcher == ["torchrun", "--tier", "x"]


def test_what_was_asked_is_written_where_ranks_read_it(tmp_path: Path) -> None:
    options, _ = parse_options(["--output", str(tmp_path), "--only", "node", "--ranks", "4"])
    made = write_given_request(options)
    assert read_request(str(tmp_path)) == made
    assert (made.tests, made.ranks) == ("node", 4)


def test_the_folder_of_an_earlier_run_is_refused(tmp_path: Path) -> None:
    options, _ = parse_options(["--output", str(tmp_path)])
    write_given_request(options)
    with pytest.raises(SystemExit, match="holds an earlier run"):
        write_given_request(options)


@pytest.mark.parametrize(
    ("statuses", "passed"),
    [
        (("PASS", "SKIP"), True),
        (("PASS", "WARN"), True),
        (("PASS", "FAIL"), False),
        (("PASS", "ERROR"), False),
        (("SKIP",), False),
        ((), False),
    ],
)
def test_a_run_passes_where_something_did_and_nothing_failed(
    tmp_path: Path, statuses: tuple[str, ...], passed: bool
) -> None:
    leave(tmp_path, *statuses)
    assert show_results(str(tmp_path)) is passed


def test_what_is_not_good_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave(tmp_path, "PASS", "FAIL")
    show_results(str(tmp_path))
    said = capsys.readouterr().out
    assert "node.c1" in said
    assert "saw 1" in said
    assert "node.c0" not in said
    assert "1 PASS, 1 FAIL" in said


def test_the_list_has_every_check() -> None:
    argv = [sys.executable, "-m", "hpcstack_smoke", "--list"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in said.splitlines()] == [check.code for check in CHECKS]


def test_it_runs_on_this_machine_alone(tmp_path: Path) -> None:
    output = tmp_path / "run"
    output.mkdir()
    argv = [sys.executable, "-m", "hpcstack_smoke", "--only", "io.lock", "--output", str(output)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [
        row for path in output.glob("node-*.json") for row in json.loads(path.read_text())["rows"]
    ]
    assert [(row["code"], row["status"]) for row in rows] == [("io.lock", "PASS")]
