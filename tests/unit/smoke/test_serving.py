"""What the suite's clients say of servers that are right, wrong, slow or gone.

Each server here is a real one.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import tempfile
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hpcstack_smoke.apps import alphabet, completions, kserve, serve, servers
from hpcstack_smoke.apps.completions import Target, WrongAnswer
from hpcstack_smoke.apps.front import Front
from hpcstack_smoke.apps.serve import count_gpus_of_model
from hpcstack_smoke.apps.servers import Server
from hpcstack_smoke.tasks import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ANSWERS = {
    alphabet.make_prompt(number): alphabet.expect_answer(number)
    for number in range(alphabet.CLIENTS)
}
SLOW_S = 0.6


class Handler(BaseHTTPRequestHandler):
    """OpenAI's API and KServe's, with the fault of its server: one of FAULTS, or `always`, which
    streams all it says.
    """

    protocol_version = "HTTP/1.0"

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        fault = getattr(self.server, "fault", "")
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if fault == "closes":
            return
        if fault == "slow":
            time.sleep(2 * SLOW_S)
        if self.path.startswith("/v2/"):
            data = question["inputs"][0]["data"]
            doubled = data if fault == "nonsense" else [2 * one for one in data]
            self._say(json.dumps({"outputs": [{"name": "OUT", "data": doubled}]}), fault=fault)
            return
        text = ANSWERS[question["messages"][0]["content"]]
        if fault == "another":  # with several at once, one gets what another asked for
            text = alphabet.expect_answer(4) if question["stream"] else text
        if fault == "nonsense":
            text = text[::-1]
        if question["stream"] or fault == "always":
            self._stream(text, fault)
        else:
            whole = {
                "choices": [
                    {"message": {"role": "assistant", "content": text}, "finish_reason": "length"}
                ]
            }
            self._say(json.dumps(whole), fault=fault)

    def _say(self, text: str, kind: str = "application/json", fault: str = "") -> None:
        self.send_response(500 if fault == "error" else 200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(("<html>" if fault == "html" else text).encode())

    def _stream(self, text: str, fault: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.end_headers()
        for piece in [text] if fault == "whole" else [text[:5], text[5:]]:
            self._event({"choices": [{"delta": {"content": piece}, "finish_reason": None}]})
            if fault == "torn":
                return
            while fault == "drips":
                time.sleep(0.1)
                self._event({"choices": []})
        self._event({"choices": [{"delta": {}, "finish_reason": "length"}]})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, document: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(document)}\n\n".encode())
        self.wfile.flush()


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], int]]:
    """Starts a server with a fault; its port."""
    started = []

    def start(fault: str) -> int:
        if fault in ("slow", "drips"):  # the others have all the time of a busy machine
            monkeypatch.setattr(completions, "ANSWER_S", SLOW_S)
            monkeypatch.setattr(kserve, "ANSWER_S", SLOW_S)
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.fault = fault  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        started.append(server)
        return server.server_port

    yield start
    for one in started:
        one.shutdown()
        one.server_close()


@pytest.mark.parametrize("kind", ["", "always"])
def test_a_server_that_is_right(serving: Callable[[str], int], kind: str) -> None:
    port = serving(kind)
    completions.warm_completions(Target("127.0.0.1", port, "m"), 30.0)
    found = completions.exercise_completions(Target("127.0.0.1", port, "m"))
    assert "a stream of 2 pieces, 8 clients at once" in found.measured
    assert set(found.figures) == {"answer_s", "first_token_s", "tokens_per_s"}


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("nonsense", "a completion answered "),
        ("another", "a stream answered "),
        ("html", "no JSON: '<html>'"),
        ("error", "HTTP 500"),
        ("torn", "a stream broke off after 1 pieces"),
        ("whole", "a stream came in 1 piece"),
        ("drips", "no whole answer within 1 s"),
        ("slow", "no whole answer within 1 s"),
        ("closes", "the connection broke: "),
    ],
)
def test_a_server_that_is_wrong(serving: Callable[[str], int], fault: str, says: str) -> None:
    with pytest.raises(WrongAnswer, match=says):
        completions.exercise_completions(Target("127.0.0.1", serving(fault), "m"))


def test_the_first_completion_has_time_of_its_own(serving: Callable[[str], int]) -> None:
    completions.warm_completions(Target("127.0.0.1", serving("slow"), "m"), 30.0)
    with pytest.raises(WrongAnswer, match="the first completion answered"):
        completions.warm_completions(Target("127.0.0.1", serving("nonsense"), "m"), 30.0)


def test_nothing_listens() -> None:
    with pytest.raises(WrongAnswer, match="the connection broke: ConnectionRefusedError"):
        completions.ask_completion(Target("127.0.0.1", free_port(), "m"), 0, stream=False)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("", ""),
        ("nonsense", "doubled are"),
        ("html", "no answer to a request"),
        ("error", "HTTP 500"),
        ("slow", "no whole answer within 1 s"),
        ("closes", "the connection broke"),
    ],
)
def test_numbers_doubled_by_triton(serving: Callable[[str], int], fault: str, says: str) -> None:
    if not says:
        assert (
            "8 clients at once"
            in kserve.exercise_inference(Target("127.0.0.1", serving(fault))).measured
        )
        return
    with pytest.raises(WrongAnswer, match=says):
        kserve.exercise_inference(Target("127.0.0.1", serving(fault)))


def test_each_client_has_an_answer_of_its_own() -> None:
    assert len(set(ANSWERS.values())) == 11
    assert alphabet.expect_answer(0) == "bcdefghijklm\nnopqrstuvwxyz abc"
    assert all(one == one.strip() for one in ANSWERS.values())


def test_a_proxy_of_the_environment_is_not_asked(
    serving: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    completions.ask_completion(Target("127.0.0.1", serving(""), "m"), 0, stream=False)


def _server(tmp_path: Path, program: str) -> Server:
    return Server([sys.executable, "-c", program], str(tmp_path), str(tmp_path / "log"))


def test_a_server_that_ends_before_it_is_ready_says_its_last_line(tmp_path: Path) -> None:
    server = _server(tmp_path, "print('no such model'); raise SystemExit(3)")
    assert (
        server.ready("127.0.0.1", free_port(), "/health", time.monotonic() + 60)
        == "it ended with exit 3: no such model"
    )
    killed = _server(tmp_path, "import os; os.kill(os.getpid(), 9)")
    assert killed.ready("127.0.0.1", free_port(), "/health", time.monotonic() + 60).startswith(
        "it was ended by SIGKILL: "
    )
    assert server.stop() == killed.stop() == ""


def test_a_server_that_never_gets_ready(tmp_path: Path) -> None:
    server = _server(tmp_path, "import time; print('loading', flush=True); time.sleep(60)")
    said = server.ready("127.0.0.1", free_port(), "/health", time.monotonic() + 1.5)
    assert said == "not ready in time: nothing listens; loading"
    assert server.stop() == ""
    assert server.ended() == "it was ended by SIGTERM"


def test_what_does_not_end_is_counted_and_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "STOP_S", 1.0)
    child = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); "
        "time.sleep(60)"
    )
    server = _server(
        tmp_path,
        (
            f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]); import "
            f"time; time.sleep(60)"
        ),
    )
    while server.last_line() != "up":
        time.sleep(0.05)
    assert server.stop() == "1 of its processes had to be killed 1 s after TERM"


def test_a_server_is_no_rank_and_asks_no_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "SLURM_JOB_ID", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    found = servers.make_server_environment(str(tmp_path))
    assert not {"RANK", "SLURM_JOB_ID", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE"} & set(found)
    assert found["HF_HUB_OFFLINE"] == "1"
    assert found["HF_HOME"] == str(tmp_path / "hf_home")


@pytest.mark.parametrize(
    ("gpus", "over"), [(0, 1), (1, 1), (3, 2), (4, 4), (6, 4), (8, 8), (16, 8)]
)
def test_a_model_goes_over_as_many_gpus_as_divide_its_heads(gpus: int, over: int) -> None:
    assert count_gpus_of_model(gpus) == over


class Tasks:
    """Tasks of one run in threads, with a store of their own."""

    def __init__(self, world: int, nodes: int, output: str) -> None:
        self.world, self.nodes, self.output = world, nodes, output
        self.values: dict[tuple[str, int], Any] = {}
        self.changed = threading.Condition()

    def task(self, rank: int) -> Any:
        return SimpleNamespace(
            rank=rank, world=self.world, nodes=self.nodes, output=self.output, code="serve.demo", named=False,
            all=lambda name, value: self.all(rank, name, value),
            post=lambda name, value: self.post(rank, name, value), read=self.read,
        )  # fmt: skip

    def all(self, rank: int, name: str, value: Any) -> list[Any]:
        self.post(rank, name, value)
        return [self.read(name, one) for one in range(self.world)]

    def post(self, rank: int, name: str, value: Any) -> None:
        with self.changed:
            self.values[name, rank] = value
            self.changed.notify_all()

    def read(self, name: str, rank: int, seconds: float = 60.0) -> Any:
        with self.changed:
            if not self.changed.wait_for(lambda: (name, rank) in self.values, min(seconds, 60.0)):
                raise TimeoutError(f"task {rank} did not say {name}")
            return self.values[name, rank]


SERVES = """\
import sys, time
sys.path[:0] = {path!r}
from test_serving import Handler, ThreadingHTTPServer
Handler.do_GET = lambda self: self._say("ok")
server = ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler)
server.fault = {fault!r}
server.serve_forever()
"""


def serve_on_nodes(tmp_path: Path, faults: tuple[str, ...], each: int = 2) -> list[Any]:
    """What each task of a run says whose nodes' servers have FAULTS."""
    tasks = Tasks(len(faults) * each, len(faults), str(tmp_path))
    out: dict[int, Any] = {}
    paths = [str(Path(__file__).parent), *sys.path]

    def one(rank: int) -> None:
        fault = faults[rank // each]
        program = (
            SERVES.format(path=paths, fault=fault)
            if fault != "dies"
            else "raise SystemExit('no such model')"
        )
        kind = serve.Serving(
            "sh", lambda folder: True, lambda folder, host, port, gpus: [sys.executable, "-c", program, host, str(port)],
            "/health", completions.warm_completions, completions.exercise_completions,
        )  # fmt: skip
        try:
            out[rank] = serve.serve_model(tasks.task(rank), kind)
        except Exception as error:
            out[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(tasks.world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive(), "a task waits for ever"
    return [out[rank] for rank in range(tasks.world)]


def test_servers_of_two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "find_address", lambda: "127.0.0.1")
    assert [one.status for one in serve_on_nodes(tmp_path, ("", ""))] == ["PASS"] * 4
    assert not list(Path(tempfile.gettempdir()).glob("hpcstack-serve-*/hf_home"))


def test_one_that_does_not_start_and_one_that_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "find_address", lambda: "127.0.0.1")
    said = serve_on_nodes(tmp_path, ("", "dies"))
    assert [one.status for one in said] == ["SKIP", "SKIP", "FAIL", "PASS"]
    assert said[2].measured.endswith("it ended with exit 1: no such model")
    said = serve_on_nodes(tmp_path, ("nonsense", ""))
    assert said[0].status == "FAIL"
    assert "the first completion answered" in said[0].measured


def test_where_one_task_cannot_none_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        serve, "count_gpus_here", lambda: 8 if threading.current_thread().name == "with" else 0
    )
    tasks, said = Tasks(2, 2, str(tmp_path)), []

    def one(rank: int) -> None:
        try:
            serving = serve.Serving("sh", bool, list, "/", print, print)  # type: ignore[arg-type]
            serve.serve_model(tasks.task(rank), serving, gpus=True)
        except Exception as error:
            said.append(str(error))

    threads = [
        threading.Thread(target=one, args=(0,), name="with"),
        threading.Thread(target=one, args=(1,)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(said) == 2
    assert all(one.endswith(": sh is not started without one") for one in said)


def test_a_server_ends_with_a_client_that_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is raised on the way, nothing of the server is left."""
    tasks = Tasks(1, 1, str(tmp_path))
    program = SERVES.format(path=[str(Path(__file__).parent), *sys.path], fault="")
    pids: list[int] = []

    def broken(target: Any) -> Any:
        pids.extend(servers.find_members(target.model))
        raise RuntimeError("planted")

    kind = serve.Serving(
        "sh", lambda folder: True, lambda folder, host, port, gpus: [sys.executable, "-c", program, host, str(port)],
        "/health", completions.warm_completions, broken,
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="planted"):
        serve.serve_model(tasks.task(0), kind)
    assert pids
    assert not any(
        Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes()
        for pid in pids
    )


@pytest.mark.parametrize(
    ("visible", "open_", "count"), [(None, 8, 8), ("0,1", 8, 2), ("", 8, 0), ("0,1,2,3", 2, 2)]
)
def test_the_gpus_of_this_step(
    visible: str | None, open_: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "open_gpus", lambda: [str(n) for n in range(open_)])
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert serve.count_gpus_here() == count


@pytest.fixture
def front(serving: Callable[[str], int]) -> Iterator[Target]:
    """The front of a server that is right and asks nobody for a key."""
    made = Front("127.0.0.1", serving(""), "a-key")
    yield Target("127.0.0.1", made.port, "m", "a-key")
    made.stop()


def test_a_front_lets_in_who_knows_the_key(front: Target) -> None:
    """N22: servers of the suite listened on the node's address without a key."""
    assert completions.exercise_completions(front).figures["tokens_per_s"] > 0
    for key in ("", "another", "a-key2", "A-KEY"):
        with pytest.raises(WrongAnswer, match="HTTP 401"):
            completions.ask_completion(replace(front, key=key), 0, stream=False)


@pytest.mark.parametrize(
    "head",
    [
        b"", b"\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nX: Authorization: Bearer a-key\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\nAuthorization: Bearer a-key\r\n\r\n", b"x" * (200 << 10), b"GET /Authorization: Bearer a-key",
        b"GET / HTTP/1.1\r\nAuthorization: Bearer no\r\nAuthorization: Bearer a-key\r\n\r\n",
    ],
)  # fmt: skip
def test_a_front_takes_nothing_else_for_a_key(front: Target, head: bytes) -> None:
    with (
        socket.create_connection((front.host, front.port), 10) as line,
        contextlib.suppress(OSError),
    ):
        # A front that has refused may have closed the line before all of HEAD is sent.
        line.sendall(head)
        line.shutdown(socket.SHUT_WR)
        assert line.recv(4096).startswith(b"HTTP/1.1 401")


def test_a_front_that_has_stopped_takes_nobody(serving: Callable[[str], int]) -> None:
    made = Front("127.0.0.1", serving(""), "a-key")
    made.stop()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", made.port), 5).close()
