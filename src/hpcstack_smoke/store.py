"""Where agents and tasks of a run leave values for each other: one store on the first node, one
connection a node.

A task asks its node's agent (`Store` with `upstream`), which asks the first node's: as many
connections as nodes. One JSON document a line: {id, op, key, rank, value, want, seconds}, answered
by {id, value}, {id, missing} or {id, error}. `put` leaves a value under a key and a rank; `get`
waits for one rank's, `all` for the values of WANT ranks, `count` only until there are as many. A
value never changes. Who has not the run's token is not listened to.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import resource
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

LINE_MOST, TOKEN_MOST, NAMED = 64 << 20, 256, 8
POLL_S, SILENT_S = 0.2, 10.0
STRANGERS, STRANGER_S = 64, 10.0  # who has not said the token: so many at once, so long


@dataclass(eq=False)
class Peer:
    """One connection; `known`: it has said the token."""

    line: socket.socket
    known: bool = False
    since: float = field(default_factory=time.monotonic)
    got: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)


@dataclass
class Waiting:
    """A question that has no answer yet, and who asked."""

    request: dict[str, Any]
    until: float
    askers: list[tuple[Peer, int]]


class Store(threading.Thread):
    """A store, or the part of a node that passes on to `upstream` what its tasks put and ask."""

    def __init__(
        self, token: str, upstream: tuple[str, int] | None = None, seconds: float = 60.0
    ) -> None:
        """Listen at once; OSError where UPSTREAM cannot be reached in SECONDS."""
        super().__init__(daemon=True)
        self.token = token
        self.values: dict[str, dict[int, Any]] = {}
        self.waiting: dict[str, Waiting] = {}
        self.peers: set[Peer] = set()
        self.selector = selectors.DefaultSelector()
        allow_many_files()
        self.listener = socket.create_server(("127.0.0.1" if upstream else "", 0), backlog=4096)
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.upstream: Peer | None = None
        self.asked: dict[int, str] = {}
        self.counting: dict[str, set[str]] = {}
        self.opened = self.bytes = 0
        if upstream:
            self.upstream = self._join(upstream, seconds)

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def _join(self, place: tuple[str, int], seconds: float) -> Peer:
        line = socket.create_connection(place, seconds)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # a first node without power says nothing any more
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000)
        line.sendall(f"{self.token}\n".encode())
        line.setblocking(False)
        peer = Peer(line, known=True)
        self.selector.register(line, selectors.EVENT_READ, peer)
        return peer

    def run(self) -> None:
        """Answer until the process ends."""
        while True:
            for key, events in self.selector.select(POLL_S):
                if key.data is None:
                    self._accept()
                    continue
                if events & selectors.EVENT_READ:
                    self._receive(key.data)
                if events & selectors.EVENT_WRITE:
                    self._flush(key.data)
            self._expire()

    def _accept(self) -> None:
        unknown = sorted((one for one in self.peers if not one.known), key=lambda one: one.since)
        if len(unknown) >= STRANGERS:
            self._close(unknown[0])
        try:
            line, _ = self.listener.accept()
        except OSError:  # no file is left: whoever has not said the token gives his
            if unknown:
                self._close(unknown[0])
            return
        with contextlib.suppress(OSError):
            line.setblocking(False)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = Peer(line)
            self.opened += 1
            self.peers.add(peer)
            self.selector.register(line, selectors.EVENT_READ, peer)

    def _receive(self, peer: Peer) -> None:
        try:
            data = peer.line.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        begun = len(peer.got) + (data.find(b"\n") if b"\n" in data else len(data))
        if not data or begun > (LINE_MOST if peer.known else TOKEN_MOST):
            self._close(peer)
            return
        self.bytes += len(data)
        peer.got += data
        *lines, rest = bytes(peer.got).split(b"\n") if b"\n" in data else (bytes(peer.got),)
        if b"\n" not in data:
            return
        peer.got = bytearray(rest)
        for line in lines:
            if peer in self.peers or peer is self.upstream:
                self._line(peer, line)

    def _line(self, peer: Peer, line: bytes) -> None:
        if not peer.known:
            peer.known = hmac.compare_digest(line, self.token.encode())
            if not peer.known:
                self._close(peer)
            return
        try:
            document = json.loads(line)
            if peer is self.upstream:
                self._answered(document)
            elif document["op"] == "put":
                self._put(document)
            else:
                self._ask(peer, document)
        except (ValueError, KeyError, TypeError, RecursionError):  # no line of ours
            self._close(peer)

    def _put(self, document: dict[str, Any]) -> None:
        if self.upstream:
            self._send(self.upstream, document)
            return
        key = document["key"]
        self.values.setdefault(key, {})[int(document["rank"])] = document["value"]
        for name in [_question("get", key, int(document["rank"]), 1), *self.counting.get(key, ())]:
            if name in self.waiting:
                self._try(name)

    def _ask(self, peer: Peer, document: dict[str, Any]) -> None:
        """A question of PEER: the same one of several tasks is asked upstream once."""
        name = _question(document["op"], document["key"], document["rank"], document["want"])
        if document["op"] != "get":
            self.counting.setdefault(document["key"], set()).add(name)
        until = time.monotonic() + float(document["seconds"])
        if name in self.waiting:
            self.waiting[name].askers.append((peer, document["id"]))
            self.waiting[name].until = max(until, self.waiting[name].until)
            return
        self.waiting[name] = Waiting(document, until, [(peer, document["id"])])
        if self.upstream:
            number = len(self.asked) + 1
            self.asked[number] = name
            self._send(self.upstream, {**document, "id": number})
        else:
            self._try(name)

    def _try(self, name: str) -> None:
        """Answer the question NAME, if that can be done now."""
        request = self.waiting[name].request
        found = self.values.get(request["key"], {})
        if request["op"] == "get":
            if request["rank"] in found:
                self._tell(name, {"value": found[request["rank"]]})
        elif len(found) >= request["want"]:
            value = (
                [found[rank] for rank in sorted(found)] if request["op"] == "all" else len(found)
            )
            self._tell(name, {"value": value})

    def _tell(self, name: str, answer: dict[str, Any]) -> None:
        for peer, number in self.waiting.pop(name).askers:
            self._send(peer, {"id": number, **answer})

    def _answered(self, document: dict[str, Any]) -> None:
        name = self.asked.get(document.pop("id"), "")
        if name in self.waiting:
            self._tell(name, document)

    def _expire(self) -> None:
        now = time.monotonic()
        for peer in [one for one in self.peers if not one.known and now - one.since > STRANGER_S]:
            self._close(peer)
        patience = (
            SILENT_S if self.upstream else 0.0
        )  # the first node says who is missing, if it still speaks
        for name in [name for name, one in self.waiting.items() if one.until + patience < now]:
            request = self.waiting[name].request
            found = self.values.get(request["key"], {})
            wanted = [request["rank"]] if request["op"] == "get" else range(request["want"])
            self._tell(name, {"missing": [rank for rank in wanted if rank not in found][:NAMED]})

    def _send(self, peer: Peer, document: dict[str, Any]) -> None:
        peer.unsent += json.dumps(document).encode() + b"\n"
        self._flush(peer)

    def _flush(self, peer: Peer) -> None:
        try:
            while peer.unsent:
                sent = peer.line.send(peer.unsent)
                self.bytes += sent
                del peer.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._close(peer)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        with contextlib.suppress(KeyError, ValueError):
            self.selector.modify(peer.line, events, peer)

    def _close(self, peer: Peer) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(peer.line)
        peer.line.close()
        self.peers.discard(peer)
        if peer is self.upstream:
            for name in list(self.waiting):
                self._tell(name, {"error": "the connection to the first node is gone"})


def allow_many_files() -> None:
    """As many open files as the hard limit lets: Slurm hands on the submitter's soft one, often
    1,024.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _question(op: str, key: str, rank: int, want: int) -> str:
    """What is alike for all who ask the same."""
    return json.dumps([op, key, rank, want])


def find_address() -> str:
    """This host's address, as the others reach it: Debian's /etc/hosts gives the host's own name a
    loopback address.

    A UDP socket is not used, only asked which address it would send from.
    """
    with contextlib.suppress(OSError):
        found = socket.gethostbyname(socket.gethostname())
        if not found.startswith("127."):
            return found
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect((os.environ.get("SLURM_LAUNCH_NODE_IPADDR") or "192.0.2.1", 9))
        return str(one.getsockname()[0])
    return "127.0.0.1"


class Client:
    """One process's connection to a store. Not for several threads at once."""

    def __init__(self, address: str, port: int, token: str, seconds: float = 60.0) -> None:
        self.line = socket.create_connection((address, port), seconds)
        self.token = token
        self.line.sendall(f"{token}\n".encode())
        self.reader = self.line.makefile("rb")
        self.number = 0

    def put(self, key: str, rank: int, value: Any) -> None:
        """VALUE of RANK, under KEY."""
        self._send({"op": "put", "key": key, "rank": rank, "value": value})

    def get(self, key: str, rank: int, seconds: float) -> Any:
        """What RANK put under KEY. TimeoutError says that it did not."""
        return self._asked({"op": "get", "key": key, "rank": rank, "want": 1, "seconds": seconds})

    def all(self, key: str, want: int, seconds: float) -> list[Any]:
        """The values of WANT ranks, by rank. TimeoutError names who is missing."""
        found: list[Any] = self._asked(
            {"op": "all", "key": key, "rank": -1, "want": want, "seconds": seconds}
        )
        return found

    def wait(self, key: str, want: int, seconds: float) -> None:
        """Wait until WANT ranks have put something under KEY. TimeoutError names who is missing."""
        self._asked({"op": "count", "key": key, "rank": -1, "want": want, "seconds": seconds})

    def _send(self, document: dict[str, Any]) -> None:
        self.number += 1
        self.line.settimeout(60.0)
        self.line.sendall(json.dumps({"id": self.number, **document}).encode() + b"\n")

    def _asked(self, document: dict[str, Any]) -> Any:
        self._send(document)
        self.line.settimeout(document["seconds"] + 30.0)
        line = self.reader.readline()
        if not line:
            raise ConnectionError("the node's agent is gone")
        answer = json.loads(line)
        if "missing" in answer:
            who = ", ".join(map(str, answer["missing"]))
            raise TimeoutError(
                f"{who} said nothing of {document['key']} in {document['seconds']:.0f} s"
            )
        if "error" in answer:
            raise ConnectionError(answer["error"])
        return answer["value"]

    def close(self) -> None:
        self.reader.close()
        self.line.close()
