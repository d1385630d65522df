"""images/conda.py with the real rattler and a real channel: solved, locked without the mirror,
installed by hash.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hpcstack.core import data
from support.conda import channel

SCRIPT = data.find_data_folder("images") / "conda.py"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A mirror of conda's host that has one channel, `hpc`."""
    top = tmp_path_factory.mktemp("mirror")
    channel(top / "hpc")
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(top)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def conda(folder: Path, mirror: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "HPCSTACK_CONDA_ALIAS": mirror,
    }
    argv = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, env=env, cwd=folder, check=False)


def solved(folder: Path, mirror: str, *packages: str) -> list[dict[str, Any]]:
    (folder / "want.json").write_text(json.dumps({"channels": ["hpc"], "packages": packages}))
    done = conda(folder, mirror, "solve", "want.json", "locked.json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads((folder / "locked.json").read_text())
    return found


def test_specs_are_solved_with_what_they_need(tmp_path: Path, mirror: str) -> None:
    rows = solved(tmp_path, mirror, "hello<2")
    assert [(row["name"], row["version"]) for row in rows] == [("hello", "1.0"), ("word", "2.1")]
    assert (
        rows[0]["url"] == "https://conda.anaconda.org/hpc/noarch/hello-1.0-0.tar.bz2"
    )  # not the mirror's address
    assert all(len(row["sha256"]) == 64 for row in rows)


def test_what_was_locked_is_installed_from_the_mirror_and_runs(tmp_path: Path, mirror: str) -> None:
    solved(tmp_path, mirror, "hello<2")
    prefix = tmp_path / "prefix"
    done = conda(tmp_path, mirror, "install", "locked.json", str(prefix))
    assert done.returncode == 0, done.stderr
    said = subprocess.run(
        [str(prefix / "bin/hello")], capture_output=True, text=True, check=True
    ).stdout
    assert said == f"hello 1.0 from {prefix}, word\n"


def test_other_bytes_than_were_locked_are_refused(tmp_path: Path, mirror: str) -> None:
    rows = solved(tmp_path, mirror, "hello")
    rows[0]["sha256"] = "0" * 64
    (tmp_path / "locked.json").write_text(json.dumps(rows))
    done = conda(tmp_path, mirror, "install", "locked.json", str(tmp_path / "prefix"))
    assert done.returncode != 0
    assert "hash" in done.stderr.lower() or "sha256" in done.stderr.lower()


def test_what_cannot_be_solved_is_said(tmp_path: Path, mirror: str) -> None:
    (tmp_path / "want.json").write_text(json.dumps({"channels": ["hpc"], "packages": ["hello>3"]}))
    done = conda(tmp_path, mirror, "solve", "want.json", "locked.json")
    assert done.returncode != 0
    assert "hello" in done.stderr
