"""The lists of packages that a build leaves in its image (images/lib.sh): what cannot be read is said."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpcstack.core import data

LIST_OF = {"dpkg-query": "apt", "python3": "pip", "rpm": "rpm"}
LIB = (data.find_data_folder("images") / "lib.sh").read_text()


def run(name: str, folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The function NAME of lib.sh, with ARGUMENTS."""
    begin = LIB.index(f"\n{name}() {{")
    function = LIB[begin : LIB.index("\n}\n", begin) + 3]
    script = f"set -Eeuo pipefail\n{function}{name} {' '.join(arguments)}\n"
    return subprocess.run(
        ["bash", "-c", script],
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), **env},
        capture_output=True,
        text=True,
        check=False,
    )


def make_package(folder: Path, stem: str, content: bytes) -> None:
    (folder / f"{stem}.dist-info").mkdir()
    (folder / f"{stem}.dist-info/METADATA").write_bytes(content)


@pytest.mark.parametrize(
    ("content", "line", "is_said"),
    [
        (
            b"Metadata-Version: 2.1\nName: latin\nVersion: 1.0\nAuthor: Andr\xe9\n",
            "latin==1.0",
            False,
        ),
        (b"\xff\xfe\x00\n", "latin==1.0", True),
        (b"", "latin==1.0", True),
        (b"Name: Latin\nVersion: 2\n", "Latin==2", False),
    ],
)
def test_one_package_hides_no_other(
    tmp_path: Path, content: bytes, line: str, is_said: bool
) -> None:
    """pip#9866: with one Latin-1 METADATA the list was empty, and the audit of it clean."""
    site = tmp_path / "site"
    site.mkdir()
    make_package(site, "whole-3.1", b"Metadata-Version: 2.1\nName: whole\nVersion: 3.1\n")
    make_package(site, "latin-1.0", content)
    unread = tmp_path / "unread"
    done = run("hpcstack_python_packages", tmp_path, str(unread), PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    assert {"whole==3.1", line} <= set(done.stdout.splitlines())
    said = f"{site}/latin-1.0.dist-info: its METADATA cannot be read\n"
    assert unread.read_text() == (said if is_said else "")


def test_a_list_that_cannot_be_had_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "python3").chmod(0o755)
    done = run("hpcstack_python_packages", tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin")
    assert done.returncode == 3


def test_finish_says_what_could_not_be_listed() -> None:
    begin = LIB.index("\nhpcstack_finish() {")
    finish = LIB[begin : LIB.index("\n}\n", begin)]
    lists = finish[finish.index("packages") : finish.index("# A walk through an image")]
    assert "|| true" not in lists
    assert "2>/dev/null" not in lists
    for program in ("dpkg-query", "python3", "rpm"):
        assert f"hpcstack_list {LIST_OF[program]} {program} " in lists


@pytest.mark.parametrize(("status", "listed"), [(0, "a=1\nb=2\n"), (3, "")])
def test_a_program_that_fails_is_named_and_lists_nothing(
    tmp_path: Path, status: int, listed: str
) -> None:
    program = tmp_path / "lister"
    program.write_text(f"#!/bin/sh\nprintf 'b=2\\na=1\\n'\nexit {status}\n")
    program.chmod(0o755)
    begin = LIB.index("\nhpcstack_list() {")
    function = LIB[begin : LIB.index("\n}\n", begin) + 3]
    function = function.replace("/opt/hpcstack/packages", str(tmp_path))
    script = (
        f"set -Eeuo pipefail\nHPCSTACK_WORK={tmp_path}\n{function}hpcstack_list x lister lister\n"
    )
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["bash", "-c", script], env=env, check=True)
    assert (tmp_path / "x.txt").read_text() == listed
    assert (tmp_path / "asked.txt").read_text() == f"lister {'failed' if status else 'listed'}\n"
