"""How a build fetches locked source distributions: from where pip looks, by their hashes, each into
a folder of its own.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from hpcstack.core import data
from support.index import Quiet, add_sdist, serve_index

SCRIPT = str(data.find_data_folder("images") / "fetch_sources.py")
FILE = "My_Project-1.0.tar.gz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An index of one project."""
    top = tmp_path / "index"
    add_sdist(top, "my-project", "1.0", {"a.py": ""})
    (made,) = (top / "simple/my-project").iterdir()
    made.rename(made.with_name(FILE))
    return top


def fetch(
    tmp_path: Path, sha256: str, file: str = FILE, conf: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    """The script's own run, as a build has it; what it fetched is in tmp_path/out."""
    wanted = [
        {"name": "My.Project", "version": "1.0", "file": file, "hashes": [f"sha256:{sha256}"]}
    ]
    (tmp_path / "list.json").write_text(json.dumps(wanted))
    (tmp_path / "pip.conf").write_text(conf)
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"),
        **env,
    }
    argv = [sys.executable, SCRIPT, str(tmp_path / "list.json"), str(tmp_path / "out")]
    return subprocess.run(argv, env=variables, capture_output=True, text=True, check=False)


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "simple/my-project" / FILE).read_bytes()).hexdigest()


def is_fetched(tmp_path: Path, folder: Path) -> bool:
    got = tmp_path / "out/0" / FILE
    named = (tmp_path / "out/0/requirement.txt").read_text() if got.is_file() else ""
    return named == f"My.Project==1.0 --hash=sha256:{digest(folder)}\n"


def test_from_the_index(tmp_path: Path, folder: Path) -> None:
    with serve_index(folder) as url:
        done = fetch(tmp_path, digest(folder), PIP_INDEX_URL=f"{url}/")
    assert done.returncode == 0 and is_fetched(tmp_path, folder), done.stderr


def test_from_an_extra_index_where_the_first_has_no_such_project(
    tmp_path: Path, folder: Path
) -> None:
    empty = tmp_path / "empty"
    add_sdist(empty, "other", "1.0", {})
    with serve_index(folder) as url, serve_index(empty) as first:
        conf = f"[global]\nindex-url = {first}\nextra-index-url = {url}\n"
        done = fetch(tmp_path, digest(folder), conf=conf)
    assert done.returncode == 0 and is_fetched(tmp_path, folder), done.stderr


def test_a_site_without_an_index_asks_none(tmp_path: Path, folder: Path) -> None:
    """A private project's name is nobody's business: with no-index, PyPI is not asked."""
    links = folder / "simple/my-project"
    done = fetch(
        tmp_path, digest(folder), conf=f"[global]\nno-index = true\nfind-links = {links}\n"
    )
    assert done.returncode == 0 and is_fetched(tmp_path, folder), done.stderr
    (tmp_path / "again").mkdir()
    gone = fetch(tmp_path / "again", digest(folder), conf="[global]\nno-index = true\n")
    assert gone.returncode
    assert "nobody has" in gone.stderr
    assert "pypi" not in gone.stdout + gone.stderr


def test_an_index_that_is_a_folder(tmp_path: Path, folder: Path) -> None:
    done = fetch(tmp_path, digest(folder), PIP_INDEX_URL=f"file://{folder}/simple")
    assert done.returncode == 0 and is_fetched(tmp_path, folder), done.stderr


def test_other_bytes_are_refused(tmp_path: Path, folder: Path) -> None:
    with serve_index(folder) as url:
        done = fetch(tmp_path, "0" * 64, PIP_INDEX_URL=url)
    assert done.returncode
    assert "DO NOT MATCH THE HASHES" in done.stderr


class WithLogin(Quiet):
    """Wants a login, and answers with the newer form of a page."""

    def do_GET(self) -> None:
        if (
            self.headers.get("Authorization")
            != "Basic " + base64.b64encode(b"user:secret").decode()
        ):
            self.send_error(401)
        elif self.path.endswith("/my-project/"):
            body = json.dumps(
                {"files": [{"filename": FILE, "url": f"../../files/{FILE}"}]}
            ).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        else:
            super().do_GET()


@pytest.fixture
def with_login(folder: Path) -> Iterator[str]:
    (folder / "files").mkdir()
    (folder / "files" / FILE).write_bytes((folder / "simple/my-project" / FILE).read_bytes())
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(WithLogin, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_an_index_with_a_login(tmp_path: Path, folder: Path, with_login: str) -> None:
    done = fetch(tmp_path, digest(folder), PIP_INDEX_URL=f"http://user:secret@{with_login}/simple")
    assert done.returncode == 0 and is_fetched(tmp_path, folder), done.stderr


def test_a_login_is_in_no_log(tmp_path: Path, folder: Path, with_login: str) -> None:
    done = fetch(
        tmp_path, digest(folder), PIP_INDEX_URL=f"http://user:wrong-secret@{with_login}/simple"
    )
    assert done.returncode
    assert "wrong-secret" not in done.stdout + done.stderr


def test_a_name_that_leads_out_of_its_folder_stays_in_it(tmp_path: Path, folder: Path) -> None:
    with serve_index(folder) as url:
        done = fetch(tmp_path, digest(folder), file=f"../../{FILE}", PIP_INDEX_URL=url)
    assert done.returncode
    assert not (tmp_path / FILE).exists()
