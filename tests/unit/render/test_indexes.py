"""Which extra indexes of a base's pip are left out (R4), and what images/lib.sh tells pip."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hpcstack.core import data

LIB = (data.find_data_folder("images") / "lib.sh").read_text()
PROGRAM = (data.find_data_folder("images") / "live_indexes.py").read_text()


def look(folder: Path, *indexes: str, conf: str = "", **env: str) -> list[str]:
    """The lines that the program prints: the indexes that answer, then those that do not, and why;
    none where all do.
    """
    variables = {"PATH": os.environ["PATH"], "HOME": str(folder), **env}
    if indexes:
        variables["PIP_EXTRA_INDEX_URL"] = " ".join(indexes)
    if conf:
        (folder / ".config/pip").mkdir(parents=True)
        (folder / ".config/pip/pip.conf").write_text(conf)
    argv = [sys.executable, "-I", "-"] if not conf else [sys.executable, "-"]
    done = subprocess.run(
        argv, input=PROGRAM, env=variables, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.fixture
def alive() -> Iterator[str]:
    """A server that refuses everything: it is there."""

    class Refuses(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(403)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/simple"
    server.shutdown()
    server.server_close()


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes a connection and never says a word, as a firewall that drops."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"http://user:secret@127.0.0.1:{listening.getsockname()[1]}/simple"


def test_what_answers_or_is_no_server_is_left_in(tmp_path: Path, alive: str) -> None:
    with_login = alive.replace("://", "://user:secret@")
    assert (
        look(
            tmp_path,
            alive,
            with_login,
            "file:///opt/wheels/simple",
            alive.replace("http:", "https:"),
        )
        == []
    )
    assert look(tmp_path) == []


def test_what_does_not_answer_is_left_out_within_three_seconds(
    tmp_path: Path, alive: str, silent: str
) -> None:
    began = time.monotonic()
    live, *dead = look(tmp_path, "https://pypi.ngc.hpcstack.invalid", silent, alive, silent + "2")
    assert time.monotonic() - began < 4.5, "three seconds for all of them, and Python's start"
    assert live == alive
    assert dead[0].startswith("https://pypi.ngc.hpcstack.invalid: ")
    assert dead[1].endswith(": no answer within 3 s") or "timed out" in dead[1]
    assert not [line for line in dead if "secret" in line], (
        "a password stays out of the log and the lock"
    )


def test_where_none_is_left_pip_is_told_of_none(tmp_path: Path) -> None:
    """pip takes an empty variable for none at all, and reads its files; a blank is a list without a
    word.
    """
    conf = "[global]\nextra_index_url = https://a.hpcstack.invalid\n"
    blank, _ = look(tmp_path, conf=conf)
    assert blank.isspace()
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(tmp_path), "--index-url", "http://127.0.0.1:9",
         "--retries", "0", "hpcstack-no-such-project"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_EXTRA_INDEX_URL": blank}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert "127.0.0.1:9" in listed.stdout + listed.stderr
    assert "hpcstack.invalid" not in listed.stdout + listed.stderr


(PIP,) = re.findall(r"^(hpcstack_pip\(\) \{.*?^\}\n)", LIB, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("isolated", [True, False])
def test_r6_what_pip_is_told_and_what_its_build_environments_are(
    tmp_path: Path, isolated: bool
) -> None:
    """A base's constraints on the command line; to where source distributions are built only its
    torch, if there is a place of its own for that: pip 25.3 takes a build constraint without one
    for a mistake.
    """
    (tmp_path / "python3").write_text('#!/bin/sh\nenv | grep ^PIP_\necho "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    (tmp_path / "constraint.txt").write_text("numpy==1.26.4\ntorch==2.6.0a0+nv24.11\n")
    script = f"""set -Eeuo pipefail
HPCSTACK_CONSTRAINT={tmp_path}/constraint.txt HPCSTACK_OF_BASE={tmp_path}/of-base HPCSTACK_AGAINST={tmp_path}/against.txt
hpcstack_offer_base_to_builds() {{ echo "torch==2.6.0a0+nv24.11" >"$HPCSTACK_AGAINST"; }}
export PIP_CONSTRAINT=/etc/pip/constraint.txt PIP_BUILD_CONSTRAINT=/etc/pip/build.txt
{PIP}
hpcstack_pip install {"" if isolated else "--no-build-isolation"} einops
"""
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "-c", script], env=env, capture_output=True, text=True, check=True
    )
    *variables, argv = done.stdout.splitlines()
    against = f"{tmp_path}/against.txt"
    assert sorted(variables) == (
        [f"PIP_BUILD_CONSTRAINT={against}", f"PIP_CONSTRAINT={against}"] if isolated else []
    )
    assert "--constraint /etc/pip/constraint.txt" in argv
    assert f"--constraint {tmp_path}/constraint.txt" in argv
    assert (f"--find-links {tmp_path}/of-base" in argv) == isolated


(GREP,) = re.findall(r"^(hpcstack_grep\(\) \{.*?^\}\n)", LIB, re.DOTALL | re.MULTILINE)
(OFFER,) = re.findall(
    r"^(hpcstack_offer_base_to_builds\(\) \{.*?^\}\n)", LIB, re.DOTALL | re.MULTILINE
)


def test_r7_a_build_environment_is_offered_the_bases_torch(tmp_path: Path) -> None:
    """As pip makes a build environment: the wheel in a folder that is added to a Python without the
    base's packages.
    """
    base = tmp_path / "base/site-packages"
    (base / "torch").mkdir(parents=True)
    (base / "torch/__init__.py").write_text("__version__ = '2.6.0a0+nv24.11'\n")
    (tmp_path / "constraint.txt").write_text("numpy==1.26.4\ntorch==2.6.0a0+nv24.11\n")
    script = f"""set -Eeuo pipefail
HPCSTACK_CONSTRAINT={tmp_path}/constraint.txt HPCSTACK_OF_BASE={tmp_path}/of-base HPCSTACK_AGAINST={tmp_path}/against.txt
HPCSTACK_BUILT_AGAINST='^(torch|jax)=='
{GREP}{OFFER}
hpcstack_offer_base_to_builds
"""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(base)}
    subprocess.run(["bash", "-c", script], env=env, check=True)
    assert (tmp_path / "against.txt").read_text() == "torch==2.6.0a0+nv24.11\n"
    (wheel,) = (tmp_path / "of-base").iterdir()
    assert wheel.name == "torch-2.6.0a0+nv24.11-py3-none-any.whl"

    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--find-links",
        str(wheel.parent),
    ]
    subprocess.run(
        [*pip, "--target", str(tmp_path / "built"), "torch==2.6.0a0+nv24.11"], check=True
    )
    say = (
        f"import site; site.addsitedir({str(tmp_path / 'built')!r}); import torch; "
        f"print(torch.__version__)"
    )
    said = subprocess.run(
        [sys.executable, "-I", "-S", "-c", say], capture_output=True, text=True, check=True
    )
    assert said.stdout == "2.6.0a0+nv24.11\n"


(NETWORK,) = re.findall(r"^(hpcstack_has_network\(\) \{.*?^\}\n)", LIB, re.DOTALL | re.MULTILINE)
HEAD = "Iface Destination Gateway Flags\n"
DEFAULT = "0" * 32
ROUTE = (
    "{} {} 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 "
    "00000000 00000003 {}\n"
)


@pytest.mark.parametrize(
    ("ipv4", "ipv6", "there"),
    [
        (HEAD, ROUTE.format(DEFAULT, "00", "lo"), False),
        (HEAD + "eth0 00000000 0100A8C0 0003\n", "", True),
        (HEAD, ROUTE.format(DEFAULT, "00", "eth0") + ROUTE.format(DEFAULT, "00", "lo"), True),
        (HEAD, ROUTE.format("fe80" + "0" * 28, "40", "eth0"), False),
        (HEAD, None, False),
    ],
    ids=["none", "ipv4", "ipv6-alone", "a-link-and-no-way-out", "a-kernel-without-ipv6"],
)
def test_whether_a_step_has_a_network(
    tmp_path: Path, ipv4: str, ipv6: str | None, there: bool
) -> None:
    (tmp_path / "route").write_text(ipv4)
    if ipv6 is not None:
        (tmp_path / "ipv6_route").write_text(ipv6)
    done = subprocess.run(
        ["bash", "-c", f"{NETWORK}\nhpcstack_has_network {tmp_path}"], check=False
    )
    assert (done.returncode == 0) == there
