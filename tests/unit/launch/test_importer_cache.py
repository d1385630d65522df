"""The importer of a site that has an image cache: what it asks the node's service, and what it
makes of the answer.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import make_site
from hpcstack.render.launchers import render_image_service, render_importer

URI = "docker://nvcr.io#nvidia/pytorch:24.11-py3"


class Place:
    """An importer, an enroot that writes down what it was asked, an hpcstack that answers, and a
    service.
    """

    def __init__(self, top: Path, shell: str) -> None:
        self.top, self.shell = top, shell
        self.says: list[dict[str, object]] = []
        self.heard: list[dict[str, object]] = []
        site = make_site(top, image_cache={"folder": str(top / "cache"), "socket": str(top / "s")})
        (top / "run").mkdir()
        (top / "bin").mkdir()
        self.program("enroot", 'echo "$@" >>"$ASKED"\necho imported >"$3"')
        self.program(
            "hpcstack", 'cat >>"$ASKED.challenge"\necho \'{"authorization": "Bearer abc"}\''
        )
        (top / "importer.sh").write_text(render_importer(site, "full", str(top / "bin/hpcstack")))

    def program(self, name: str, text: str) -> None:
        (self.top / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.top / "bin" / name).chmod(0o755)

    def listen(self) -> socket.socket:
        found = socket.socket(socket.AF_UNIX)
        found.bind(str(self.top / "s"))
        found.listen()
        threading.Thread(target=self.serve, args=(found,), daemon=True).start()
        return found

    def serve(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as file:
                self.heard.append(json.loads(file.readline()))
                for one in self.says:
                    connection.sendall(json.dumps(one).encode() + b"\n")
                    if "challenge" in one:
                        self.heard.append(json.loads(file.readline()))

    def get(self, uri: str = URI, **variables: str) -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": f"{self.top / 'bin'}:{os.environ['PATH']}", "PYXIS_RUNTIME_PATH": str(self.top / "run"),
            "SLURM_JOB_UID": str(os.getuid()), "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "ASKED": str(self.top / "asked"),
            **variables,
        }  # fmt: skip
        argv = [self.shell, str(self.top / "importer.sh"), "get", uri]
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)

    @property
    def imported_itself(self) -> bool:
        return (self.top / "asked").exists()


@pytest.fixture(params=["sh", "bash"])
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    return Place(tmp_path, request.param)


@pytest.fixture
def served(place: Place) -> Iterator[Place]:
    with place.listen():
        yield place


def test_the_services_image_is_taken(served: Place) -> None:
    served.says = [
        {"says": "importing for all"},
        {"done": 1, "total": 2},
        {"path": "/cache/image.sqsh", "how": "there"},
    ]
    done = served.get(SLURM_STEP_NUM_NODES="2")
    assert done.returncode == 0
    assert done.stdout == "/cache/image.sqsh\n"
    assert "importing for all" in done.stderr
    asked = served.heard[0]
    assert asked["image"] == URI
    assert asked["step"] == "7+0+"
    assert str(asked["platform"]).startswith("linux/")
    assert not served.imported_itself


def test_a_challenge_is_answered_by_hpcstack(served: Place) -> None:
    challenge: dict[str, object] = {
        "challenge": 'Bearer realm="x"',
        "host": "nvcr.io",
        "image": "nvcr.io/a/b:1",
        "repository": "a/b",
    }
    served.says = [challenge, {"path": "/cache/image.sqsh"}]
    assert served.get().stdout == "/cache/image.sqsh\n"
    assert served.heard[1] == {"authorization": "Bearer abc"}
    assert json.loads((served.top / "asked.challenge").read_text()) == challenge
    served.program("hpcstack", "exit 1")
    served.get()
    assert served.heard[-1] == {}


def test_what_the_registry_refuses_is_told_and_not_tried_by_every_node(served: Place) -> None:
    served.says = [{"error": "refuses your login", "hint": "log in", "kind": "registry"}]
    done = served.get()
    assert done.returncode == 1
    assert done.stdout == ""
    assert "refuses your login" in done.stderr
    assert "log in" in done.stderr
    assert not served.imported_itself


def test_what_the_service_cannot_do_is_told_and_the_node_does_it(served: Place) -> None:
    served.says = [{"error": "the disk is full", "hint": "make room", "kind": "failed"}]
    done = served.get()
    assert done.returncode == 0
    assert "the disk is full" in done.stderr
    assert served.imported_itself


@pytest.mark.parametrize("how", ["not shared", "hangs up", "no service", "no python"])
def test_what_is_not_shared_is_imported_as_before(place: Place, how: str) -> None:
    if how == "no python":
        script = place.top / "importer.sh"
        script.write_text(script.read_text().replace(sys.executable, "/no/python"))
    place.says = (
        [{"error": "mine", "hint": "", "kind": "not shared"}] if how == "not shared" else []
    )
    listening = place.listen() if how in ("not shared", "hangs up") else None
    done = place.get()
    assert done.returncode == 0
    assert Path(done.stdout.strip()).read_text() == "imported\n"
    assert "imports docker://nvcr.io#nvidia/pytorch:24.11-py3 for itself" in done.stderr
    assert place.imported_itself
    if listening:
        listening.close()


def test_another_transport_is_not_asked_of_the_service(served: Place) -> None:
    assert served.get("dockerd://mine").returncode == 0
    assert served.heard == []
    assert served.imported_itself


def test_the_unit_runs_the_service_as_its_account(tmp_path: Path) -> None:
    site = make_site(tmp_path, image_cache={"folder": "/shared/images", "account": "images"})
    text = render_image_service(site, "/opt/hpcstack/bin/hpcstack", "/etc/hpcstack/site.yaml")
    for line in ("User=images", ("ExecStart=/opt/hpcstack/bin/hpcstack cache " "serve"), "RequiresMountsFor=/shared/images",
                 "Environment=HPCSTACK_SITE=/etc/hpcstack/site.yaml", "RuntimeDirectory=hpcstack"):  # fmt: skip
        assert line in text.splitlines()
    limits = dict(
        line.split("=")
        for line in text.splitlines()
        if line.startswith(("MemoryMax=", "TasksMax="))
    )
    assert limits.keys() == {"MemoryMax", "TasksMax"} and "infinity" not in limits.values(), "N18"
