"""The service as its clients meet it: who they are, what they may say, and that others go on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import make_site
from hpcstack.core.errors import LoginRefused, StoreError
from hpcstack.core.process import Runner
from hpcstack.core.progress import Progress
from hpcstack.imagecache import serve as service
from hpcstack.imagecache.ask import answer_challenge, answer_line, ask_service, make_step_name
from hpcstack.imagecache.counters import Counters, name_outcome
from hpcstack.imagecache.layout import ImageCache
from hpcstack.imagecache.messages import AskingRegistry, Line, Telling
from hpcstack.imagecache.refusals import HolderGone, NotShared
from hpcstack.oci.client import Registry
from hpcstack.oci.reference import parse_registry_image
from hpcstack.site.load import Site

BASE = parse_registry_image("nvcr.io/a/b:1")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return make_site(tmp_path, image_cache={"folder": str(tmp_path / "cache")})


def write_line(path: Path) -> Callable[[str], None]:
    def write(text: str) -> None:
        with path.open("a") as file:
            file.write(f"{text}\n")

    return write


@pytest.fixture
def running(tmp_path: Path, site: Site) -> Iterator[Path]:
    """The socket of a service in a process of its own."""
    path = tmp_path / "images.sock"
    cache = ImageCache(tmp_path / "cache")
    cache.prepare()
    listening = service.listen_on(path)
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            service.serve_socket(
                listening,
                lambda line, user: service.answer_request(
                    line, user, cache, site, Runner(), write_line(tmp_path / "log")
                ),
                Counters(tmp_path / "images.prom"),
            )
        os._exit(0)
    listening.close()
    yield path
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def said_to(path: Path, data: bytes) -> dict[str, object]:
    """What the service answers to DATA; nothing where it hangs up."""
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(20)
        one.connect(str(path))
        one.sendall(data)
        one.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # it has not read all that was said
            for text in one.makefile("rb"):
                found: dict[str, object] = json.loads(text)
                if "heard" not in found:
                    return found
    return {}


def test_nonsense_is_refused_and_the_service_goes_on(running: Path) -> None:
    good = {"image": "docker://localhost/a/b", "platform": "linux/amd64", "step": ""}
    for data in (
        b"\n", b"[]\n", b"{}\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n", b"x" * 400_000 + b"\n",
        json.dumps({**good, "image": 7}).encode() + b"\n",
        json.dumps({**good, "image": "a" * 5000}).encode() + b"\n",
        json.dumps({**good, "image": "/etc/passwd"}).encode() + b"\n",
        json.dumps({**good, "image": "oci:/etc"}).encode() + b"\n",
        json.dumps({**good, "platform": "../../x"}).encode() + b"\n",
        json.dumps({**good, "step": "a/../b"}).encode() + b"\n",
    ):  # fmt: skip
        assert said_to(running, data).get("kind") == "failed", data[:60]
    assert said_to(running, b"") == {}
    assert said_to(running, json.dumps(good).encode() + b"\n")["kind"] == "not shared"


def test_who_asks_is_known_by_the_kernel() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert service.find_peer(one) == os.getuid()


def test_a_second_service_does_not_take_the_socket_and_a_dead_ones_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "images.sock"
    first = service.listen_on(path)
    assert path.stat().st_mode & 0o777 == 0o777, "anybody may connect"
    with pytest.raises(StoreError, match="listens on"):
        service.listen_on(path)
    first.close()
    service.listen_on(path).close()
    with pytest.raises(StoreError, match="was not made"):
        service.listen_on(tmp_path / "missing/images.sock")


def test_without_a_service_an_image_is_not_shared(tmp_path: Path) -> None:
    def asked(name: str) -> None:
        own = {"folder": str(tmp_path / "cache"), "socket": str(tmp_path / name)}
        ask_service("nvcr.io/a/b:1", make_site(tmp_path, image_cache=own), Progress())

    with pytest.raises(NotShared, match="does not answer"):
        asked("nobody")
    with service.listen_on(tmp_path / "silent") as listening:
        threading.Thread(target=lambda: listening.accept()[0].close(), daemon=True).start()
        with pytest.raises(NotShared, match="does not answer"):
            asked("silent")


def send(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # as much as the other end wants to hear
        connection.sendall(data)


def answered(site: Site, answer: object) -> str:
    """The header that a service takes where the user's end says ANSWER to a challenge."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = Line(ours, 20)
        if answer is None:
            theirs.close()
        else:
            data = json.dumps(answer).encode() + b"\n"
            threading.Thread(target=send, args=(theirs, data), daemon=True).start()
        return (
            AskingRegistry(site, line)
            .authorization('Bearer realm="x"', "nvcr.io", BASE, "a/b")
            .header
        )


@given(text=st.text())
def test_only_a_header_is_taken_for_one(text: str) -> None:
    site = make_site(Path("/nowhere"))
    try:
        assert answered(site, {"authorization": text}) == text
        assert text.startswith(("Basic ", "Bearer "))
        assert "\n" not in text
        assert "\r" not in text
    except NotShared:
        return


def test_a_user_who_is_gone_or_has_no_login_is_told_apart(site: Site) -> None:
    assert answered(site, {"authorization": "Bearer abc"}) == "Bearer abc"
    with pytest.raises(HolderGone):
        answered(site, None)
    with pytest.raises(LoginRefused, match="no login") as refused:
        answered(site, {"refused": "no login\x1b[2J", "hint": "docker login"})
    assert "\x1b" not in refused.value.message
    for text in ("Bearer a\r\nHost: evil", "Digest x", "", "Basic " + "a" * 70_000):
        with pytest.raises(NotShared):
            answered(site, {"authorization": text})
    answers: list[object] = [{"cannot": "password $(command)"}, {}, [], 7, "x" * 300_000]
    for words in answers:
        with pytest.raises(NotShared):
            answered(site, words)


def test_who_answers_a_byte_at_a_time_or_does_not_listen_holds_nobody_up(site: Site) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = Line(ours, 0.5)
        ended = threading.Event()

        def drip() -> None:
            while not ended.wait(0.1):
                with contextlib.suppress(OSError):
                    theirs.send(b"x")

        threading.Thread(target=drip, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(HolderGone):
            AskingRegistry(site, line).authorization('Bearer realm="x"', "nvcr.io", BASE, "a/b")
        ended.set()
        telling = Telling(line)
        for number in range(10_000):
            telling.amount("import", number, 10_000)
        assert time.monotonic() - began < 10
        assert line.gone


def test_a_challenge_of_another_host_gets_no_login(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ENROOT_CONFIG_PATH", str(tmp_path))
    monkeypatch.setattr(Registry, "wants_basic", lambda *_: True)
    (tmp_path / ".credentials").write_text("machine nvcr.io login me password secret\n")
    good = {
        "challenge": "Basic realm=x",
        "host": "nvcr.io",
        "image": "nvcr.io/a/b:1",
        "repository": "a/b",
    }
    assert answer_challenge(good, "nvcr.io", site)["authorization"].startswith("Basic ")
    for change in (
        {"host": "evil.example"},
        {"image": "evil.example/a/b:1", "host": "evil.example"},
    ):
        answer = answer_challenge({**good, **change}, "nvcr.io", site)
        assert "authorization" not in answer
        assert "secret" not in json.dumps(answer)
    monkeypatch.setattr(Registry, "wants_basic", lambda *_: False)
    answer = answer_challenge(good, "nvcr.io", site)
    assert "a password was asked for" in answer["cannot"], (
        "a registry that gives tokens gets no password"
    )
    line = json.dumps(good).encode()
    assert "cannot" in json.loads(answer_line(line, "docker://ubuntu", site)), (
        "the user asked for another registry's image"
    )
    (tmp_path / ".credentials").write_text("machine nvcr.io login me password $(cat secret)\n")
    monkeypatch.setattr(Registry, "wants_basic", lambda *_: True)
    assert "is a command" in answer_challenge(good, "nvcr.io", site)["cannot"]


def test_progress_to_who_is_gone_is_nobodys_trouble() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    telling = Telling(Line(ours))
    telling("importing")
    telling.amount("import", 1, 2)
    ours.close()


def test_a_step_is_named_where_it_has_several_nodes() -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    assert (
        make_step_name({})
        == make_step_name(job)
        == make_step_name({**job, "SLURM_STEP_NUM_NODES": "1"})
        == ""
    )
    assert make_step_name({**job, "SLURM_STEP_NUM_NODES": "2"}) == "7+0+"
    again = make_step_name({**job, "SLURM_JOB_NUM_NODES": "2", "SLURM_RESTART_COUNT": "1"})
    assert again == "7+0+1"
    assert service.STEP.fullmatch(again)
    assert service.STEP.fullmatch(
        make_step_name({**job, "SLURM_JOB_ID": "a/../b", "SLURM_JOB_NUM_NODES": "2"})
    )


def served(path: Path) -> bool:
    """Whether a new connection is kept."""
    with socket.socket(socket.AF_UNIX) as late:
        late.connect(str(path))
        late.settimeout(0.5)
        try:
            return late.recv(1) != b""
        except TimeoutError:
            return True


def wait_a_minute(connection: socket.socket, _user: int) -> str:
    """A request that takes long, where something was asked."""
    if connection.recv(1):
        time.sleep(60)
    return "gone"


def counted(metrics: Path, outcome: str) -> int:
    """How many requests METRICS says have ended in OUTCOME."""
    if not metrics.exists():
        return 0
    found = re.search(
        rf'^hpcstack_image_requests_total{{outcome="{outcome}"}} (\d+)\.0$',
        metrics.read_text(),
        re.M,
    )
    assert found
    return int(found[1])


def wait_for_count(metrics: Path, outcome: str, count: int) -> None:
    until = time.monotonic() + 30
    while counted(metrics, outcome) != count:
        assert time.monotonic() < until, (
            metrics.read_text() if metrics.exists() else "nothing is counted"
        )
        time.sleep(0.1)


def test_each_request_is_a_line_and_a_count(running: Path, tmp_path: Path) -> None:
    good = {"image": "docker://localhost/a/b", "platform": "linux/amd64", "step": "7.0"}
    forged = {**good, "image": "localhost/a\nuser 0: all is well"}
    for asked in (good, forged, {"image": 7}):
        said_to(running, json.dumps(asked).encode() + b"\n")
    said_to(running, b"")  # who hangs up before he has said what he wants

    user = os.getuid()
    metrics = tmp_path / "images.prom"
    wait_for_count(metrics, "not shared", 1)
    wait_for_count(metrics, "gone", 1)
    wait_for_count(metrics, "failed", 2)
    assert counted(metrics, "imported") == 0, "a rate begins with a zero"
    shared, injected, unknown = (tmp_path / "log").read_text().splitlines()
    assert shared.startswith(
        f"user {user}: docker://localhost/a/b (linux/amd64, step 7.0): not shared, 0."
    )
    assert injected.startswith(
        f"user {user}: localhost/a user 0: all is well (linux/amd64, step 7.0): failed"
    )
    assert unknown.startswith(f"user {user}: a request that was not understood: failed")


def test_a_process_that_dies_has_failed() -> None:
    counters = Counters()
    for status in (signal.SIGKILL, 1 << 8, 0, name_outcome("imported") << 8):
        counters.count_ended(status)
    assert (counters.counts["failed"], counters.counts["imported"]) == (3, 1)


def test_a_disk_that_is_full_ends_no_service(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    counters = Counters(tmp_path / "file/images.prom")
    counters.count("there")
    counters.write()
    assert not counters.is_written


def test_one_user_cannot_have_all_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "CLIENTS_OF_ONE", 2)
    monkeypatch.setattr(service, "find_peer", lambda _: 61001)
    path = tmp_path / "s"
    listening = service.listen_on(path)
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            service.serve_socket(listening, wait_a_minute, Counters(tmp_path / "images.prom"))
        os._exit(0)
    found = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    try:
        for one in found:
            one.settimeout(20)
            one.connect(str(path))
        assert found[2].recv(1) == b"", "the third is hung up on"
        wait_for_count(tmp_path / "images.prom", "turned away", 1)
        found[0].close()
        until = time.monotonic() + 20
        while not served(path):
            assert time.monotonic() < until, "who has gone makes room"
            time.sleep(0.1)
    finally:
        for one in found:
            one.close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        listening.close()
