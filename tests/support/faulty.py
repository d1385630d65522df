"""A registry that fails as it is told: an OCI layout over HTTP, for faults that a real one cannot
be made to have.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STALL_S = 30
DRIP_S = 0.02


@dataclass
class Faults:
    """What happens to the first requests for a blob, in order: a status, or `cut`, `wrong`,
    `stall`, `drip`, `no range`.
    """

    coming: list[str] = field(default_factory=list)
    always: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)  # (digest, its Range)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self, digest: str, ranges: str) -> str:
        with self.lock:
            self.asked.append((digest, ranges))
            return self.coming.pop(0) if self.coming else self.always


def handler(top: Path, faults: Faults) -> type[BaseHTTPRequestHandler]:
    index = json.loads((top / "index.json").read_text())
    manifest = index["manifests"][0]["digest"]
    small = {manifest, json.loads(blob(top, manifest))["config"]["digest"]}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            kind, _, reference = self.path.rpartition("/")
            digest = manifest if kind.endswith("manifests") else reference
            data = blob(top, digest)
            ranges = self.headers.get("Range", "")
            fault = "" if digest in small else faults.next(digest, ranges)
            if fault.isdigit():
                self.send_response(int(fault))
                self.send_header("Retry-After", "0")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            start = (
                int(ranges.removeprefix("bytes=").rstrip("-"))
                if ranges and fault != "no range"
                else 0
            )
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            self.body(data[start:], fault)

        def body(self, data: bytes, fault: str) -> None:
            half = len(data) // 2
            if fault == "wrong":
                data = data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :]
            with contextlib.suppress(OSError):
                if fault == "drip":
                    for at in range(len(data)):
                        self.wfile.write(data[at : at + 1])
                        time.sleep(DRIP_S)
                self.wfile.write(data[:half])
                self.wfile.flush()
                if fault == "stall":
                    time.sleep(STALL_S)
                if fault in ("cut", "stall"):
                    self.close_connection = True
                    return
                self.wfile.write(data[half:])

    return Handler


def blob(top: Path, digest: str) -> bytes:
    return (top / "blobs" / digest.replace(":", "/")).read_bytes()


@contextlib.contextmanager
def serving(top: Path, faults: Faults) -> Iterator[str]:
    """HOST:PORT of a registry that has the image of the layout TOP under every name."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(top, faults))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
