"""A front that requires a key, for servers that require none.

The server listens on the node's loopback address, the front on an address that other nodes reach.
A connection whose first request has the header `Authorization: Bearer KEY` is handed through byte
by byte; any other is answered by 401 and closed.

Tested in tests/unit/smoke/test_serving.py.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import threading

MOST_HEAD = 64 << 10  # bytes of the first request's header
HEAD_S = 30.0  # for it to come
PIECE = 64 << 10
REFUSED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Front:
    """The front of one server: it listens at `port` until `stop`."""

    def __init__(self, host: str, port: int, key: str) -> None:
        """Listen on HOST, at a free port, for the server at PORT of this machine's loopback."""
        self.behind = ("127.0.0.1", port)
        self.key = key
        self.listening = socket.create_server((host, 0))
        self.port = int(self.listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        """Accept no further connection. Those that are open end with their server."""
        with contextlib.suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Let CLIENT in if it sends the key, and hand its connection through; else refuse it."""
        with contextlib.suppress(OSError), client:
            client.settimeout(HEAD_S)
            head = read_head(client)
            if not has_key(head, self.key):
                client.sendall(REFUSED)
                return
            with socket.create_connection(self.behind, HEAD_S) as server:
                client.settimeout(None)
                server.settimeout(None)
                server.sendall(head)
                back = threading.Thread(target=hand_on, args=(server, client), daemon=True)
                back.start()
                hand_on(client, server)
                back.join()


def read_head(client: socket.socket) -> bytes:
    """Return what CLIENT sends first: the whole header of its request, and what came with it.

    Empty where the connection ends before that, or the header is too long.
    """
    head = b""
    while b"\r\n\r\n" not in head:
        piece = client.recv(PIECE)
        if not piece or len(head) > MOST_HEAD:
            return b""
        head += piece
    return head


def has_key(head: bytes, key: str) -> bool:
    """Whether the request's header HEAD has KEY, in its only Authorization line.

    With two such lines the server could read another one than this function does.
    """
    lines = head.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    values = []
    for line in lines:
        name, _, value = line.partition(b":")
        if name.lower() == b"authorization":
            values.append(value.strip())
    return len(values) == 1 and hmac.compare_digest(values[0], b"Bearer " + key.encode())


def hand_on(source: socket.socket, target: socket.socket) -> None:
    """Send all that comes from SOURCE to TARGET, and its end, too."""
    with contextlib.suppress(OSError):
        while piece := source.recv(PIECE):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
