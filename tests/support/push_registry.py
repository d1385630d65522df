"""A registry that takes pushes, PLAYED: for what a real one cannot be made to do (be busy, send an
upload to another host, know the referrers API or not, grant less than was asked).

https://github.com/opencontainers/distribution-spec/blob/main/spec.md
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFESTS = re.compile(r"/v2/(.+)/manifests/([^/]+)")
BLOBS = re.compile(r"/v2/(.+)/blobs/(sha256:[0-9a-f]{64})")
UPLOADS = re.compile(r"/v2/(.+)/blobs/uploads/([0-9a-f]*)")
REFERRERS = re.compile(r"/v2/(.+)/referrers/(sha256:[0-9a-f]{64})")


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class PushedTo:
    """The registry, while the block of `running` lasts. What a test may change has a default."""

    blobs: dict[tuple[str, str], bytes] = field(default_factory=dict)  # {(repository, digest)}
    manifests: dict[tuple[str, str], tuple[str, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)  # (method, path with query)
    scopes: list[list[str]] = field(default_factory=list)  # of each token that was asked for
    has_referrers_api: bool = False
    mounts: bool = True  # whether it mounts blobs of other repositories
    wants_token: bool = False
    busy: int = 0  # so many uploads are answered 503 first, and their sessions forgotten
    keeps_elsewhere: bool = False  # whether it sends who asks for a blob to another host
    unknown_api: int = 404  # what it answers where it has no referrers API
    refuses: tuple[int, bytes] = (0, b"")  # what it answers to each request to change something
    location_host: str = ""  # where uploads go on; empty: here
    stored_as: str = ""  # the digest that it says it stored a manifest as; empty: the right one
    address: str = ""
    sessions: set[str] = field(default_factory=set)

    @contextmanager
    def running(self) -> Iterator[PushedTo]:
        registry = self

        class Handler(_Handler):
            owner = registry

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()

    def manifest(self, repository: str, reference: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.manifests[repository, reference][1])
        return found


class _Handler(BaseHTTPRequestHandler):
    owner: PushedTo
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        where = urlsplit(self.path)
        query = parse_qs(where.query)
        if where.path == "/token":
            self.owner.scopes.append(query["scope"])
            self._reply(200, json.dumps({"token": "t"}).encode())
            return
        self.owner.asked.append((self.command, self.path))
        if self.owner.wants_token and self.headers.get("Authorization") != "Bearer t":
            realm = f'Bearer realm="http://{self.owner.address}/token",service="s"'
            self._reply(401, b"", {"WWW-Authenticate": realm})
            return

        if self.owner.refuses[0] and self.command in ("POST", "PUT"):
            self._reply(*self.owner.refuses)
            return
        for pattern, act in ((UPLOADS, self._upload), (BLOBS, self._blob),
                             (MANIFESTS, self._manifest), (REFERRERS, self._referrers)):  # fmt: skip
            if found := pattern.fullmatch(where.path):
                act(found[1], found[2], query, body)
                return
        self._reply(404)

    def _upload(self, name: str, upload: str, query: dict[str, list[str]], body: bytes) -> None:
        owner = self.owner
        if self.command == "DELETE":
            self._reply(204)
        elif self.command == "POST":
            mounted = (query.get("from", [""])[0], query.get("mount", [""])[0])
            if owner.mounts and mounted in owner.blobs:
                owner.blobs[name, mounted[1]] = owner.blobs[mounted]
                self._reply(201)
                return
            host = owner.location_host or owner.address
            session = secrets.token_hex(8)
            owner.sessions.add(session)
            place = f"http://{host}/v2/{name}/blobs/uploads/{session}?state=x"
            self._reply(202, b"", {"Location": place})
        elif upload not in owner.sessions:
            self._reply(404)
        elif owner.busy:
            owner.busy -= 1
            owner.sessions.discard(upload)
            self._reply(503)
        else:
            digest = query["digest"][0]
            assert digest_of(body) == digest
            assert query["state"] == ["x"], "what the Location had is lost"
            owner.blobs[name, digest] = body
            self._reply(201)

    def _blob(self, name: str, digest: str, _query: object, _body: bytes) -> None:
        found = self.owner.blobs.get((name, digest))
        if found is not None and self.owner.keeps_elsewhere and self.command == "HEAD":
            self._reply(307, b"", {"Location": "http://elsewhere.invalid/x"})
            return
        self._reply(404) if found is None else self._reply(200, found)

    def _manifest(self, name: str, reference: str, _query: object, body: bytes) -> None:
        owner = self.owner
        if self.command != "PUT":
            found = owner.manifests.get((name, reference))
            if found is None:
                self._reply(404)
            else:
                self._reply(200, found[1], {"Content-Type": found[0]})
            return
        digest = digest_of(body)
        kind = self.headers["Content-Type"]
        owner.manifests[name, digest] = owner.manifests[name, reference] = (kind, body)
        more = {"Docker-Content-Digest": owner.stored_as or digest}
        subject = json.loads(body).get("subject")
        if subject and owner.has_referrers_api:
            more["OCI-Subject"] = subject["digest"]
        self._reply(201, b"", more)

    def _referrers(self, name: str, digest: str, _query: object, _body: bytes) -> None:
        if not self.owner.has_referrers_api:
            self._reply(self.owner.unknown_api)
            return
        found = {}
        for (repository, reference), (kind, data) in self.owner.manifests.items():
            document = json.loads(data)
            subject = (document.get("subject") or {}).get("digest")
            if repository == name and reference.startswith("sha256:") and subject == digest:
                found[reference] = {
                    "mediaType": kind, "digest": reference, "size": len(data),
                    "artifactType": document.get("artifactType", ""),
                }  # fmt: skip
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": list(found.values())}
        self._reply(200, json.dumps(index).encode(), {"Content-Type": INDEX})

    def _reply(self, status: int, body: bytes = b"", more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (more or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
