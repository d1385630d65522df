"""A store in which the agents and tasks of a run leave values for each other.

The first node's agent holds the values. The agents of the other nodes each run a `Store` that
connects to the first one (its `upstream`); tasks ask the store of their own node. So the first
node has one connection for each node, not one for each task.

A connection begins with a line that is the run's token; whoever does not send it is cut off.
Then each line is a JSON document {id, op, key, rank, value, want, seconds}, where `op` is

- `put`: leave VALUE under KEY and RANK, which is done once; there is no answer
- `get`: wait for the value that RANK left under KEY
- `all`: wait until WANT ranks have left a value under KEY; the answer is all of them
- `count`: wait for the same; the answer is only how many there are

and is answered by {id, value}; by {id, missing}, a list of ranks, after SECONDS; or by {id,
error}.
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

LINE_MOST = 64 << 20  # bytes of one line
TOKEN_MOST = 256  # bytes of the first line, before the token is known
NAMED = 8  # so many missing ranks are named in an answer
POLL_S = 0.2
# a node's store waits so much longer than it was asked to: the first node's answer names who is
# missing, and comes about then
SILENT_S = 10.0
# connections that have not sent the token: so many at once, and so many seconds each
STRANGERS = 64
STRANGER_S = 10.0


@dataclass(eq=False)
class Peer:
    """One connection."""

    line: socket.socket
    known: bool = False  # whether it has sent the token
    since: float = field(default_factory=time.monotonic)
    got: bytearray = field(default_factory=bytearray)  # the beginning of a line
    unsent: bytearray = field(default_factory=bytearray)


@dataclass
class Waiting:
    """A question that has no answer yet, and who asked it."""

    request: dict[str, Any]
    until: float
    askers: list[tuple[Peer, int]]  # each with the id of its own request


class Store(threading.Thread):
    """The store of one node.

    The first node's holds the values. Those of the others pass on to `upstream` what their tasks
    put and ask.
    """

    def __init__(
        self, token: str, upstream: tuple[str, int] | None = None, seconds: float = 60.0
    ) -> None:
        """Listen at a free port at once; `start` then answers.

        OSError where UPSTREAM, an address and a port, cannot be reached in SECONDS.
        """
        super().__init__(daemon=True)
        self.token = token
        self.values: dict[str, dict[int, Any]] = {}  # {key: {rank: value}}
        self.waiting: dict[str, Waiting] = {}  # by the question, see `_name_question`
        self.peers: set[Peer] = set()
        self.selector = selectors.DefaultSelector()
        allow_many_files()

        # only the first node's store is reached from other nodes
        address = "127.0.0.1" if upstream else ""
        self.listener = socket.create_server((address, 0), backlog=4096)
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ)

        self.asked: dict[int, str] = {}  # {id of what was asked upstream: the question}
        self.counting: dict[str, set[str]] = {}  # {key: questions for several ranks' values}
        self.opened = 0  # connections accepted so far
        self.bytes = 0  # bytes received and sent so far
        self.upstream: Peer | None = None
        if upstream:
            self.upstream = self._join(upstream, seconds)

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def _join(self, place: tuple[str, int], seconds: float) -> Peer:
        """Connect to the first node's store at PLACE."""
        line = socket.create_connection(place, seconds)
        # a node that lost its power closes no connection: without these nobody would notice
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
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
        """Accept a connection. Too many that have not sent the token cost the oldest its place."""
        unknown = sorted((one for one in self.peers if not one.known), key=lambda one: one.since)
        if len(unknown) >= STRANGERS:
            self._close(unknown[0])
        try:
            line, _ = self.listener.accept()
        except OSError:
            # no file descriptor may be left: free one, and accept at the next turn
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
        """Read what PEER sent, and handle each line of it that is complete."""
        try:
            data = peer.line.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # as if it had closed the connection

        whole = b"\n" in data
        length = len(peer.got) + (data.find(b"\n") if whole else len(data))
        longest = LINE_MOST if peer.known else TOKEN_MOST
        if not data or length > longest:
            self._close(peer)
            return

        self.bytes += len(data)
        peer.got += data
        # a long line comes in many pieces: nothing is copied before its end is there
        if not whole:
            return
        *lines, rest = bytes(peer.got).split(b"\n")
        peer.got = bytearray(rest)
        for line in lines:
            # a bad line closes the connection: what came after it is not handled
            if peer in self.peers or peer is self.upstream:
                self._handle_line(peer, line)

    def _handle_line(self, peer: Peer, line: bytes) -> None:
        """Check the token of a new PEER, take an answer of upstream, or do what PEER asks."""
        if not peer.known:
            peer.known = hmac.compare_digest(line, self.token.encode())
            if not peer.known:
                self._close(peer)
            return
        try:
            document = json.loads(line)
            if peer is self.upstream:
                self._pass_on_answer(document)
            elif document["op"] == "put":
                self._put(document)
            else:
                self._ask(peer, document)
        except (ValueError, KeyError, TypeError, RecursionError):
            # not a line that this suite writes
            self._close(peer)

    def _put(self, document: dict[str, Any]) -> None:
        """Keep a value and answer the questions that waited for it; or pass it on upstream."""
        if self.upstream:
            self._send(self.upstream, document)
            return

        key = document["key"]
        rank = int(document["rank"])
        self.values.setdefault(key, {})[rank] = document["value"]
        for name in [_name_question("get", key, rank, 1), *self.counting.get(key, ())]:
            if name in self.waiting:
                self._try_to_answer(name)

    def _ask(self, peer: Peer, document: dict[str, Any]) -> None:
        """Take a question of PEER. If several tasks ask the same, it is asked upstream once."""
        name = _name_question(document["op"], document["key"], document["rank"], document["want"])
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
            self._try_to_answer(name)

    def _try_to_answer(self, name: str) -> None:
        """Answer the question NAME, if enough values are there."""
        request = self.waiting[name].request
        found = self.values.get(request["key"], {})
        if request["op"] == "get":
            if request["rank"] in found:
                self._answer(name, {"value": found[request["rank"]]})
        elif len(found) >= request["want"]:
            value: Any = len(found)
            if request["op"] == "all":
                value = [found[rank] for rank in sorted(found)]
            self._answer(name, {"value": value})

    def _answer(self, name: str, answer: dict[str, Any]) -> None:
        """Send ANSWER to all who asked the question NAME, which then waits no more."""
        for peer, number in self.waiting.pop(name).askers:
            self._send(peer, {"id": number, **answer})

    def _pass_on_answer(self, document: dict[str, Any]) -> None:
        """Send an answer of upstream to the tasks that asked."""
        name = self.asked.get(document.pop("id"), "")
        if name in self.waiting:
            self._answer(name, document)

    def _expire(self) -> None:
        """Close connections that sent no token in time; answer questions whose time is up."""
        now = time.monotonic()
        for peer in list(self.peers):
            if not peer.known and now - peer.since > STRANGER_S:
                self._close(peer)

        patience = SILENT_S if self.upstream else 0.0
        for name, waiting in list(self.waiting.items()):
            if waiting.until + patience >= now:
                continue
            request = waiting.request
            found = self.values.get(request["key"], {})
            wanted = [request["rank"]] if request["op"] == "get" else range(request["want"])
            missing = [rank for rank in wanted if rank not in found]
            self._answer(name, {"missing": missing[:NAMED]})

    def _send(self, peer: Peer, document: dict[str, Any]) -> None:
        peer.unsent += json.dumps(document).encode() + b"\n"
        self._flush(peer)

    def _flush(self, peer: Peer) -> None:
        """Send as much to PEER as it takes now; the selector tells when it takes more."""
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

        events = selectors.EVENT_READ
        if peer.unsent:
            events |= selectors.EVENT_WRITE
        with contextlib.suppress(KeyError, ValueError):
            self.selector.modify(peer.line, events, peer)

    def _close(self, peer: Peer) -> None:
        """Close the connection of PEER. Without upstream, all that waits for it is an error."""
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(peer.line)
        peer.line.close()
        self.peers.discard(peer)
        if peer is self.upstream:
            for name in list(self.waiting):
                self._answer(name, {"error": "the connection to the first node is gone"})


def allow_many_files() -> None:
    """Raise the soft limit of open files to the hard one.

    Slurm hands on the submitter's soft limit, which is often 1,024; the first node's store has a
    connection for each node.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _name_question(op: str, key: str, rank: int, want: int) -> str:
    """Return a text that is equal for all who ask the same."""
    return json.dumps([op, key, rank, want])


def find_address() -> str:
    """Return the IPv4 address by which other nodes reach this host.

    The address of the host's own name will do unless it is a loopback address, as Debian's
    /etc/hosts has it. Then it is the one from which this host would send to the host on which
    srun was started; nothing is sent.
    """
    with contextlib.suppress(OSError):
        found = socket.gethostbyname(socket.gethostname())
        if not found.startswith("127."):
            return found

    # connecting a UDP socket only chooses its own address; 192.0.2.1 is reserved for documentation
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
        """Leave VALUE under KEY and RANK."""
        self._send({"op": "put", "key": key, "rank": rank, "value": value})

    def get(self, key: str, rank: int, seconds: float) -> Any:
        """Return what RANK put under KEY. TimeoutError where it puts nothing within SECONDS."""
        return self._ask({"op": "get", "key": key, "rank": rank, "want": 1, "seconds": seconds})

    def all(self, key: str, want: int, seconds: float) -> list[Any]:
        """Return the values under KEY once WANT ranks have put one, in the order of ranks.

        TimeoutError names who is missing after SECONDS.
        """
        found: list[Any] = self._ask(
            {"op": "all", "key": key, "rank": -1, "want": want, "seconds": seconds}
        )
        return found

    def wait(self, key: str, want: int, seconds: float) -> None:
        """Wait until WANT ranks have put something under KEY. TimeoutError names who is missing."""
        self._ask({"op": "count", "key": key, "rank": -1, "want": want, "seconds": seconds})

    def _send(self, document: dict[str, Any]) -> None:
        self.number += 1
        self.line.settimeout(60.0)
        self.line.sendall(json.dumps({"id": self.number, **document}).encode() + b"\n")

    def _ask(self, document: dict[str, Any]) -> Any:
        """Send the question DOCUMENT and return the value that is answered.

        TimeoutError where ranks are missing, ConnectionError where a store is gone.
        """
        self._send(document)
        # the store itself answers when the time is up
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
