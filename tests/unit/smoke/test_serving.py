"""What the suite's clients say of servers that are right, wrong, slow or gone. Each server here is a real one."""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from hpcstack_smoke.apps import alphabet, completions, kserve, servers
from hpcstack_smoke.apps.completions import WrongAnswer
from hpcstack_smoke.apps.serve import spread
from hpcstack_smoke.apps.servers import Server
from hpcstack_smoke.tasks import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ANSWERS = {alphabet.prompt(number): alphabet.answer(number) for number in range(alphabet.CLIENTS)}
SLOW_S = 0.6


class Handler(BaseHTTPRequestHandler):
    """OpenAI's API and KServe's, with the fault of its server: one of FAULTS, or `always`, which streams all it says."""

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
            text = alphabet.answer(4) if question["stream"] else text
        if fault == "nonsense":
            text = text[::-1]
        if question["stream"] or fault == "always":
            self._stream(text, fault)
        else:
            whole = {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "length"}]}
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
    monkeypatch.setattr(completions, "ANSWER_S", SLOW_S)
    monkeypatch.setattr(kserve, "ANSWER_S", SLOW_S)
    started = []

    def start(fault: str) -> int:
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
    completions.warm("127.0.0.1", port, "m", 5.0)
    found = completions.exercise("127.0.0.1", port, "m")
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
        completions.exercise("127.0.0.1", serving(fault), "m")


def test_the_first_completion_has_time_of_its_own(serving: Callable[[str], int]) -> None:
    completions.warm("127.0.0.1", serving("slow"), "m", 10 * SLOW_S)
    with pytest.raises(WrongAnswer, match="the first completion answered"):
        completions.warm("127.0.0.1", serving("nonsense"), "m", SLOW_S)


def test_nothing_listens() -> None:
    with pytest.raises(WrongAnswer, match="the connection broke: ConnectionRefusedError"):
        completions.ask("127.0.0.1", free_port(), "m", 0, stream=False)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("", ""),
        ("nonsense", "doubled are"),
        ("html", "no answer to a request"),
        ("error", "HTTP 500"),
        ("slow", "no answer within"),
        ("closes", "the connection broke"),
    ],
)
def test_numbers_doubled_by_triton(serving: Callable[[str], int], fault: str, says: str) -> None:
    if not says:
        assert "8 clients at once" in kserve.exercise("127.0.0.1", serving(fault)).measured
        return
    with pytest.raises(WrongAnswer, match=says):
        kserve.exercise("127.0.0.1", serving(fault))


def test_each_client_has_an_answer_of_its_own() -> None:
    assert len(set(ANSWERS.values())) == 11
    assert alphabet.answer(0) == "bcdefghijklm\nnopqrstuvwxyz abc"
    assert all(one == one.strip() for one in ANSWERS.values())


def test_a_proxy_of_the_environment_is_not_asked(
    serving: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    completions.ask("127.0.0.1", serving(""), "m", 0, stream=False)


def _server(tmp_path: Path, program: str) -> Server:
    return Server([sys.executable, "-c", program], str(tmp_path), str(tmp_path / "log"))


def test_a_server_that_ends_before_it_is_ready_says_its_last_line(tmp_path: Path) -> None:
    server = _server(tmp_path, "print('no such model'); raise SystemExit(3)")
    assert server.ready(free_port(), "/health", time.monotonic() + 20) == "it ended with exit 3: no such model"
    killed = _server(tmp_path, "import os; os.kill(os.getpid(), 9)")
    assert killed.ready(free_port(), "/health", time.monotonic() + 20).startswith("it was ended by SIGKILL: ")
    assert server.stop() == killed.stop() == ""


def test_a_server_that_never_gets_ready(tmp_path: Path) -> None:
    server = _server(tmp_path, "import time; print('loading', flush=True); time.sleep(60)")
    said = server.ready(free_port(), "/health", time.monotonic() + 1.5)
    assert said == "not ready in time: nothing listens; loading"
    assert server.stop() == "" and server.ended() == "it was ended by SIGTERM"


def test_what_does_not_end_is_counted_and_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "STOP_S", 1.0)
    child = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    server = _server(
        tmp_path,
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]); import time; time.sleep(60)",
    )
    while server.last_line() != "up":
        time.sleep(0.05)
    assert server.stop() == "1 of its processes had to be killed 1 s after TERM"


def test_a_server_is_no_rank_and_asks_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "SLURM_JOB_ID", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    found = servers.environment(str(tmp_path))
    assert not {"RANK", "SLURM_JOB_ID", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE"} & set(found)
    assert found["HF_HUB_OFFLINE"] == "1" and found["HF_HOME"] == str(tmp_path / "hf_home")


@pytest.mark.parametrize(("gpus", "over"), [(0, 1), (1, 1), (3, 2), (4, 4), (6, 4), (8, 8), (16, 8)])
def test_a_model_goes_over_as_many_gpus_as_divide_its_heads(gpus: int, over: int) -> None:
    assert spread(gpus) == over
