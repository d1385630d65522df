"""A client of OpenAI's API: a completion, a stream, several at once. Each right answer is known.

The model is that of alphabet.py. Only the standard library is used, and no proxy that the
environment names: the server is on the next node.

Tested in tests/unit/smoke/test_serving.py.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.apps import alphabet

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

ANSWER_S = 30.0  # for a whole answer
FIRST_S = 180.0  # for the first one
CLIENTS = 8  # at once
MOST = 1 << 20  # bytes of an answer


@dataclass(frozen=True)
class Target:
    """A server: its address, the model's name there, the key that it may require."""

    host: str
    port: int
    model: str = ""
    key: str = ""


class WrongAnswer(Exception):
    """A server answered wrongly, or not at all. The text says how, for people."""


@dataclass(frozen=True)
class Answer:
    """An answer of a server."""

    text: str
    pieces: int  # of the stream that it came in; 0: it was no stream
    first_s: float  # seconds until the first piece came
    seconds: float  # until the last one


@dataclass(frozen=True)
class Exercise:
    """What a server did right: in words, and in figures."""

    measured: str
    figures: dict[str, float]


def warm_completions(target: Target, seconds: float = 0.0) -> None:
    """Ask for the first completion, alone. WrongAnswer if it is not right, or too late.

    It may take SECONDS, or else FIRST_S: servers may load their model only now. Not every one can
    take a second request meanwhile: transformers 4.57 answers that with `Cannot copy out of meta
    tensor`.
    """
    answer = ask_completion(target, 0, stream=False, seconds=seconds or FIRST_S)
    _check_answer(0, answer, "the first completion")


def exercise_completions(target: Target) -> Exercise:
    """Ask for a completion, then a stream, then CLIENTS streams at once.

    WrongAnswer names the first thing that is not right.
    """
    whole = ask_completion(target, 1, stream=False)
    _check_answer(1, whole, "a completion")

    stream = ask_completion(target, 2, stream=True)
    _check_answer(2, stream, "a stream")
    if stream.pieces < 2:
        raise WrongAnswer(f"a stream came in {stream.pieces} piece: it is not streamed")

    together = at_once(target)
    slowest = max(one.seconds for one in together)
    figures = {
        "answer_s": whole.seconds,
        "first_token_s": statistics.median(one.first_s for one in together),
        "tokens_per_s": alphabet.TOKENS * CLIENTS / max(slowest, 1e-9),
    }
    measured = f"a completion in {whole.seconds:.2f} s, a stream of {stream.pieces} pieces"
    measured += f", {CLIENTS} clients at once"
    return Exercise(measured, {name: round(value, 4) for name, value in figures.items()})


def at_once(target: Target) -> list[Answer]:
    """Ask for CLIENTS streams at the same time, each with a prompt of its own.

    WrongAnswer where one is not right, such as the answer to another client's prompt.
    """
    numbers = range(3, 3 + CLIENTS)
    with ThreadPoolExecutor(CLIENTS) as pool:
        asked = [pool.submit(ask_completion, target, number, stream=True) for number in numbers]
    answers = []
    for number, one in zip(numbers, asked):
        answers.append(one.result())
        _check_answer(number, answers[-1], f"with {CLIENTS} clients at once, one")
    return answers


def _check_answer(number: int, found: Answer, what: str) -> None:
    """WrongAnswer where FOUND is not the answer to client NUMBER's prompt. WHAT it was is told."""
    want = alphabet.expect_answer(number)
    if found.text != want:
        raise WrongAnswer(f"{what} answered {found.text[:40]!r}, where the model says {want!r}")


def ask_completion(target: Target, number: int, stream: bool, seconds: float = 0.0) -> Answer:
    """Return the answer to client NUMBER's prompt, as a STREAM or whole.

    WrongAnswer where it is no answer, or not all of it came within SECONDS or ANSWER_S.
    """
    seconds = seconds or ANSWER_S
    document = {
        "model": target.model,
        "messages": [{"role": "user", "content": alphabet.make_prompt(number)}],
        "max_tokens": alphabet.TOKENS,
        "temperature": 0.0,
        "stream": stream,
    }

    began = time.monotonic()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {target.key}"}
    with open_connection(target, seconds) as line:
        line.connect()
        sock = line.sock
        line.request("POST", "/v1/chat/completions", json.dumps(document), headers)
        answer = line.getresponse()
        lines = _Lines(answer, sock, began + seconds)
        if answer.status != 200:
            raise WrongAnswer(f"HTTP {answer.status}: {lines.rest()[:200]}")
        # some servers stream whatever they are asked for
        if "event-stream" in (answer.getheader("Content-Type") or ""):
            return _read_stream(lines, began)
        text = _take_text(_parse(lines.rest()), "message")
        took = time.monotonic() - began
        return Answer(text, 0, took, took)


@contextlib.contextmanager
def open_connection(target: Target, seconds: float) -> Iterator[http.client.HTTPConnection]:
    """Open a connection to TARGET on which nothing waits longer than SECONDS.

    WrongAnswer where it breaks or is silent for so long, also within the `with` block.
    """
    line = http.client.HTTPConnection(target.host, target.port, timeout=seconds)
    try:
        yield line
    except TimeoutError:
        raise WrongAnswer(f"no whole answer within {seconds:.0f} s") from None
    except (OSError, http.client.HTTPException) as error:
        said = f"the connection broke: {type(error).__name__} {error}"
        raise WrongAnswer(said.rstrip()) from None
    finally:
        line.close()


class _Lines:
    """The lines of an answer's body, until a moment and up to MOST bytes."""

    def __init__(self, answer: http.client.HTTPResponse, sock: socket.socket, until: float) -> None:
        self.answer = answer
        self.sock = sock
        self.until = until
        self.got = 0

    def next(self) -> bytes:
        """Return the next line; empty at the end. TimeoutError where the time is up."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        # a socket's timeout is for each read: a server that drips would never reach it
        self.sock.settimeout(left)
        line = self.answer.readline(MOST)
        self.got += len(line)
        if self.got > MOST:
            raise WrongAnswer(f"more than {MOST >> 20} MiB came for {alphabet.TOKENS} tokens")
        return line

    def rest(self) -> str:
        """Return all that is left, as text."""
        return b"".join(iter(self.next, b"")).decode(errors="replace")


def _read_stream(lines: _Lines, began: float) -> Answer:
    """Read server-sent events: `data: {...}` with a piece each, perhaps `data: [DONE]` at the end.

    WrongAnswer where the stream ends without a `finish_reason` and without [DONE].
    """
    pieces: list[str] = []
    first_s = 0.0
    ended_s = 0.0
    finished = False
    for raw in iter(lines.next, b""):
        line = raw.decode(errors="replace").strip()
        if not line.startswith("data:"):
            continue
        if line == "data: [DONE]":
            finished = True
            break

        document = _parse(line.removeprefix("data:"))
        piece = _take_text(document, "delta")
        if document["choices"] and document["choices"][0].get("finish_reason"):
            finished = True
        if piece:
            pieces.append(piece)
            ended_s = time.monotonic() - began
            first_s = first_s or ended_s

    text = "".join(pieces)
    if not finished:
        raise WrongAnswer(f"a stream broke off after {len(pieces)} pieces: {text[:40]!r}")
    return Answer(text, len(pieces), first_s, ended_s)


def _parse(text: str) -> dict[str, Any]:
    """Return the completion, or a piece of one, that TEXT is. WrongAnswer where it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise WrongAnswer(f"what came is no JSON: {text[:80]!r}") from None

    good = isinstance(found, dict) and "error" not in found
    if not good or not isinstance(found.get("choices"), list):
        raise WrongAnswer(f"what came is no completion: {text[:200]!r}")
    document: dict[str, Any] = found
    return document


def _take_text(document: dict[str, Any], name: str) -> str:
    """Return choices[0].NAME.content; empty where there is none, as in a stream's last event."""
    try:
        return str((document["choices"] or [{}])[0].get(name, {}).get("content") or "")
    except (AttributeError, TypeError):
        raise WrongAnswer(f"what came is no completion: {str(document)[:200]!r}") from None
