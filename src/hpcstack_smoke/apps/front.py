"""The front of a server that asks nobody for a key: it listens on the node's address, and lets in
who knows the key.

The server itself listens on the node's loopback address. A connection whose first request says
`Authorization: Bearer KEY` is handed through byte by byte; every other one is answered 401 and
closed.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import threading

MOST_HEAD, HEAD_S, PIECE = 64 << 10, 30.0, 64 << 10
REFUSED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Front:
    """Listens on HOST, at a `port` of its own, before the server at PORT of this machine's
    loopback; until `stop`.
    """

    def __init__(self, host: str, port: int, key: str) -> None:
        self.behind, self.key = ("127.0.0.1", port), key
        self.listening = socket.create_server((host, 0))
        self.port = int(self.listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        """No further connection is taken; those that there are end with their server."""
        with contextlib.suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
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
    """The first request of CLIENT as far as the end of its header, and what came with it; empty
    where it has none.
    """
    head = b""
    while b"\r\n\r\n" not in head:
        piece = client.recv(PIECE)
        if not piece or len(head) > MOST_HEAD:
            return b""
        head += piece
    return head


def has_key(head: bytes, key: str) -> bool:
    """Whether the header HEAD says KEY, and nothing that another reader of it could take for one."""
    lines = head.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    said = [
        value.strip()
        for name, _, value in (line.partition(b":") for line in lines)
        if name.lower() == b"authorization"
    ]
    return len(said) == 1 and hmac.compare_digest(said[0], b"Bearer " + key.encode())


def hand_on(source: socket.socket, target: socket.socket) -> None:
    """All that comes from SOURCE to TARGET; its end, too."""
    with contextlib.suppress(OSError):
        while piece := source.recv(PIECE):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
