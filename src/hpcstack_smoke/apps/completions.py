"""OpenAI's API as a client: a completion, a stream, several at once. Each answer is known
(alphabet.py).

The standard library alone, and no proxy of the environment: a server of the next node is not behind
one.
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

ANSWER_S, FIRST_S, CLIENTS, MOST = 30.0, 180.0, 8, 1 << 20


@dataclass(frozen=True)
class Target:
    """A server: its address, the model's name there, the key that it may want."""

    host: str
    port: int
    model: str = ""
    key: str = ""


class WrongAnswer(Exception):
    """What a server did that it must not do, in words for people."""


@dataclass(frozen=True)
class Answer:
    """What came: the text, how many pieces a stream had (0: it was whole), seconds to the first and
    to the end.
    """

    text: str
    pieces: int
    first_s: float
    seconds: float


@dataclass(frozen=True)
class Exercise:
    """What a server did right."""

    measured: str
    figures: dict[str, float]


def warm_completions(target: Target, seconds: float = 0.0) -> None:
    """The first completion, alone: servers may load their model then, and not every one stands two
    at once.

    (transformers 4.57 answers the second one with `Cannot copy out of meta tensor`.) WrongAnswer as
    in `exercise_completions`.
    """
    _is_right(
        0,
        ask_completion(target, 0, stream=False, seconds=seconds or FIRST_S),
        "the first completion",
    )


def exercise_completions(target: Target) -> Exercise:
    """A completion, a stream, CLIENTS at once. WrongAnswer: the first thing that is not right."""
    whole = ask_completion(target, 1, stream=False)
    _is_right(1, whole, "a completion")
    stream = ask_completion(target, 2, stream=True)
    _is_right(2, stream, "a stream")
    if stream.pieces < 2:
        raise WrongAnswer(f"a stream came in {stream.pieces} piece: it is not streamed")
    together = at_once(target)
    tokens = alphabet.TOKENS * CLIENTS / max(max(one.seconds for one in together), 1e-9)
    first = statistics.median(one.first_s for one in together)
    said = (
        f"a completion in {whole.seconds:.2f} s, a stream of {stream.pieces} pieces, {CLIENTS} "
        f"clients at once"
    )
    figures = {"answer_s": whole.seconds, "first_token_s": first}
    return Exercise(
        said, {name: round(value, 4) for name, value in {**figures, "tokens_per_s": tokens}.items()}
    )


def at_once(target: Target) -> list[Answer]:
    """CLIENTS streams at the same time, each with a prompt of its own: none gets another one's
    answer.
    """
    numbers = range(3, 3 + CLIENTS)
    with ThreadPoolExecutor(CLIENTS) as pool:
        asked = [pool.submit(ask_completion, target, number, stream=True) for number in numbers]
    answers = []
    for number, one in zip(numbers, asked, strict=True):
        answers.append(one.result())
        _is_right(number, answers[-1], f"with {CLIENTS} clients at once, one")
    return answers


def _is_right(number: int, found: Answer, what: str) -> None:
    want = alphabet.expect_answer(number)
    if found.text != want:
        raise WrongAnswer(f"{what} answered {found.text[:40]!r}, where the model says {want!r}")


def ask_completion(target: Target, number: int, stream: bool, seconds: float = 0.0) -> Answer:
    """The answer to client NUMBER's prompt, whole within SECONDS (else ANSWER_S).

    WrongAnswer: what came instead.
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
        if "event-stream" in (answer.getheader("Content-Type") or ""):
            return _streamed(lines, began)
        text = _text(_parsed(lines.rest()), "message")
        took = time.monotonic() - began
        return Answer(text, 0, took, took)


@contextlib.contextmanager
def open_connection(target: Target, seconds: float) -> Iterator[http.client.HTTPConnection]:
    """A connection to TARGET, of which nothing waits longer than SECONDS.

    WrongAnswer where it breaks or is silent.
    """
    line = http.client.HTTPConnection(target.host, target.port, timeout=seconds)
    try:
        yield line
    except TimeoutError:
        raise WrongAnswer(f"no whole answer within {seconds:.0f} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise WrongAnswer(
            f"the connection broke: {type(error).__name__} {error}".rstrip()
        ) from None
    finally:
        line.close()


class _Lines:
    """The body of an answer, until a moment, of a size that a server of ours may send."""

    def __init__(self, answer: http.client.HTTPResponse, sock: socket.socket, until: float) -> None:
        self.answer, self.sock, self.until, self.got = answer, sock, until, 0

    def next(self) -> bytes:
        """The next line; nothing at the end."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.sock.settimeout(left)
        line = self.answer.readline(MOST)
        self.got += len(line)
        if self.got > MOST:
            raise WrongAnswer(f"more than {MOST >> 20} MiB came for {alphabet.TOKENS} tokens")
        return line

    def rest(self) -> str:
        return b"".join(iter(self.next, b"")).decode(errors="replace")


def _streamed(lines: _Lines, began: float) -> Answer:
    """Server-sent events: `data: {...}` with a piece each, perhaps `data: [DONE]` at the end."""
    pieces: list[str] = []
    first = ended = 0.0
    finished = False
    for raw in iter(lines.next, b""):
        line = raw.decode(errors="replace").strip()
        if not line.startswith("data:"):
            continue
        if line == "data: [DONE]":
            finished = True
            break
        document = _parsed(line.removeprefix("data:"))
        piece = _text(document, "delta")
        finished = finished or bool(
            document["choices"] and document["choices"][0].get("finish_reason")
        )
        if piece:
            pieces.append(piece)
            ended = time.monotonic() - began
            first = first or ended
    if not finished:
        raise WrongAnswer(
            f"a stream broke off after {len(pieces)} pieces: {''.join(pieces)[:40]!r}"
        )
    return Answer("".join(pieces), len(pieces), first, ended)


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise WrongAnswer(f"what came is no JSON: {text[:80]!r}") from None
    if (
        not isinstance(found, dict)
        or "error" in found
        or not isinstance(found.get("choices"), list)
    ):
        raise WrongAnswer(f"what came is no completion: {text[:200]!r}")
    return found


def _text(document: dict[str, Any], name: str) -> str:
    """choices[0].NAME.content; a last event may have no choice, or no content."""
    try:
        return str((document["choices"] or [{}])[0].get(name, {}).get("content") or "")
    except (AttributeError, TypeError):
        raise WrongAnswer(f"what came is no completion: {str(document)[:200]!r}") from None
