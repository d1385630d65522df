"""A registry that behaves as public sources say that nvcr.io does: PLAYED, never recorded from NVIDIA's.

Three hosts, as a pull from NGC meets them: the registry, which also gives tokens; the server of layers, to which it
sends on; and the server that a token which has run out is referred to. Each speaks TLS by a certificate authority of
the stand-in's own.

- A cold 401 names https://REGISTRY/proxy_auth, with the scope in the realm's URL (Apache Mesos, MESOS-9968).
- A 401 to a token that has run out names https://AUTHN/token, service="registry", error="invalid_token", and that server
  gives tokens to nobody without a login (NVIDIA/nvidia-container-toolkit 1945).
- Tokens live for 600 s (sapcc/keppel PR 731), here for as long as a test says.
- A blob is a 307 to the server of layers, with a signature in the URL that runs out.
- Lists of manifests hold attestations, lists of tags signatures, and come in pages.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

REGISTRY, LAYERS, AUTHN = "nvcr.io", "layers.nvcr.io", "authn.nvidia.com"
INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
PAGE = 100


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class NgcRegistry:
    """The three hosts on loopback, while the block of `running` lasts. What a test may change has a default."""

    folder: Path
    token_lives_s: float = 600
    keys: dict[str, set[str]] = field(default_factory=dict)  # {key: the private repositories that it opens}
    private: set[str] = field(default_factory=set)
    terms: set[str] = field(default_factory=set)  # repositories whose terms nobody has accepted
    busy: int = 0  # so many requests are answered 429 first
    cut_after: int = 0  # bytes of each answer of the server of layers
    layers_down: bool = False
    down_for_nobody: bool = False  # who has no login gets a 503 for a token
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[tuple[str, str], tuple[str, bytes]] = field(default_factory=dict)  # {(repository, tag or digest)}
    tags: dict[str, list[str]] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # (host, method and path, who it was asked by)
    tokens: dict[str, tuple[str, float]] = field(default_factory=dict)  # {token: (repository, good until)}
    ports: dict[str, int] = field(default_factory=dict)

    def add_image(self, repository: str, tag: str, layers: list[bytes], env: list[str] | None = None) -> str:
        """An image of gzipped tars, with an attestation beside it; the digest of its list."""
        config = {"os": "linux", "architecture": "amd64", "config": {"Env": env or ["CUDA_VERSION=12.6.3"]},
                  "rootfs": {"type": "layers", "diff_ids": [digest_of(layer) for layer in layers]}}  # fmt: skip
        manifest = {
            "schemaVersion": 2, "mediaType": MANIFEST, "config": self._blob(json.dumps(config).encode()),
            "layers": [{"mediaType": LAYER, **self._blob(layer)} for layer in layers],
        }  # fmt: skip
        described = self._manifest(repository, json.dumps(manifest).encode(), MANIFEST)
        attestation = self._manifest(repository, json.dumps({**manifest, "layers": []}).encode(), MANIFEST)
        unknown = {"os": "unknown", "architecture": "unknown"}
        notes = {"vnd.docker.reference.type": "attestation-manifest"}
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [
            {**described, "platform": {"os": "linux", "architecture": "amd64"}},
            {**attestation, "platform": unknown, "annotations": notes},
        ]}  # fmt: skip
        found = self._manifest(repository, json.dumps(index).encode(), INDEX)
        self.manifests[repository, tag] = self.manifests[repository, found["digest"]]
        signature = found["digest"].replace(":", "-") + ".sig"
        self.tags.setdefault(repository, []).extend([tag, signature])
        return str(found["digest"])

    def _blob(self, data: bytes) -> dict[str, Any]:
        self.blobs[digest_of(data)] = data
        return {"digest": digest_of(data), "size": len(data)}

    def _manifest(self, repository: str, data: bytes, kind: str) -> dict[str, Any]:
        self.manifests[repository, digest_of(data)] = (kind, data)
        return {"mediaType": kind, "digest": digest_of(data), "size": len(data)}

    @contextmanager
    def running(self) -> Iterator[NgcRegistry]:
        make_certificates(self.folder)
        servers = [self._serve(name) for name in (REGISTRY, LAYERS, AUTHN)]
        try:
            yield self
        finally:
            for server in servers:
                server.shutdown()
                server.server_close()

    @property
    def ca(self) -> Path:
        """The certificate of who vouches for the three hosts."""
        return self.folder / "ca.pem"

    def address(self, name: str) -> str:
        return f"{name}:{self.ports[name]}"

    def _serve(self, name: str) -> ThreadingHTTPServer:
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler(self, name))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "server.pem", self.folder / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        self.ports[name] = server.server_port
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def give_token(self, repository: str) -> dict[str, Any]:
        """A token for REPOSITORY, which says itself how long it is good."""
        now = time.time()
        claims = {"iat": int(now), "exp": int(now + self.token_lives_s), "jti": secrets.token_hex(8)}
        token = f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b'=').decode()}.c2ln"
        self.tokens[token] = (repository, now + self.token_lives_s)
        return {"token": token, "expires_in": self.token_lives_s}

    def key_of(self, header: str) -> str:
        """The key that a basic login shows; empty for none."""
        if not header.startswith("Basic "):
            return ""
        return base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")[2]


def handler(ngc: NgcRegistry, name: str) -> type[BaseHTTPRequestHandler]:
    """Answers of the host NAME."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            shown = self.headers.get("Authorization", "")
            ngc.asked.append((name, f"{self.command} {self.path}", shown))
            parts = urlsplit(self.path)
            if name == AUTHN:
                self.refuse(401)
            elif name == LAYERS:
                self.layer(parts.path, parse_qs(parts.query))
            elif ngc.busy > 0:
                ngc.busy -= 1
                self.answer(429, b"", {"Retry-After": "0"})
            elif parts.path == "/proxy_auth":
                self.token(parse_qs(parts.query), ngc.key_of(shown))
            else:
                self.registry(parts.path, parse_qs(parts.query), shown)

        def do_POST(self) -> None:
            """An identity token in the place of a user and a password."""
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            ngc.asked.append((name, f"POST {self.path}", ""))
            if form.get("grant_type") != ["refresh_token"] or name != REGISTRY:
                self.refuse(400)
                return
            self.token(form, form["refresh_token"][0])

        def token(self, query: dict[str, list[str]], key: str) -> None:
            repository = query.get("scope", ["::"])[0].split(":")[1]
            if ngc.down_for_nobody and not key:
                self.refuse(503)
            elif (key and key not in ngc.keys) or (repository in ngc.private and not key):
                self.refuse(401)
            elif repository in ngc.private and repository not in ngc.keys[key]:
                self.refuse(403)
            else:
                self.answer(200, json.dumps(ngc.give_token(repository)).encode(), {"Content-Type": "text/plain"})

        def registry(self, path: str, query: dict[str, list[str]], shown: str) -> None:
            words = path.removeprefix("/v2/").split("/")
            if words == [""]:
                self.challenge("")
                return
            kind = next(word for word in ("manifests", "blobs", "tags") if word in words)
            repository, what = "/".join(words[: words.index(kind)]), words[-1]
            allowed, until = ngc.tokens.get(shown.removeprefix("Bearer "), ("", 0.0))
            if not shown:
                self.challenge(repository)
            elif allowed != repository or time.time() > until:
                self.stale()
            elif repository in ngc.terms:
                self.refuse(403)
            elif kind == "manifests":
                self.manifest(ngc.manifests.get((repository, what)))
            elif kind == "tags":
                self.list_tags(path, ngc.tags.get(repository, []), int(query.get("page", ["0"])[0]))
            elif what in ngc.blobs:
                signed = f"https://{ngc.address(LAYERS)}/{what}?expires={time.time() + 30:.0f}&signature=abc"
                self.answer(307, b"", {"Location": signed})
            else:
                self.refuse(404)

        def challenge(self, repository: str) -> None:
            realm = f"https://{ngc.address(REGISTRY)}/proxy_auth?scope=repository:{repository}:pull,push"
            self.answer(401, b'{"errors":[]}', {"WWW-Authenticate": f'Bearer realm="{realm}"'})

        def stale(self) -> None:
            said = f'Bearer realm="https://{ngc.address(AUTHN)}/token",service="registry",error="invalid_token"'
            self.answer(401, b'{"errors":[]}', {"WWW-Authenticate": said})

        def manifest(self, found: tuple[str, bytes] | None) -> None:
            if found is None:
                self.refuse(404)
                return
            kind, data = found
            self.answer(200, data, {"Content-Type": kind, "Docker-Content-Digest": digest_of(data)})

        def list_tags(self, path: str, tags: list[str], page: int) -> None:
            here = tags[page * PAGE : (page + 1) * PAGE]
            more = {"Link": f'<{path}?page={page + 1}>; rel="next"'} if tags[(page + 1) * PAGE :] else {}
            self.answer(200, json.dumps({"name": "x", "tags": here}).encode(), more)

        def layer(self, path: str, query: dict[str, list[str]]) -> None:
            """A piece of a blob from where it is asked for; cut, if the test wants that."""
            if self.headers.get("Authorization") or float(query["expires"][0]) < time.time():
                self.refuse(403)  # signed requests take no other login
                return
            data = ngc.blobs[path.strip("/")]
            asked = self.headers.get("Range", "")
            start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
            piece = data[start:]
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(len(piece)))
            self.end_headers()
            self.wfile.write(piece[: ngc.cut_after] if ngc.cut_after else piece)
            if ngc.cut_after:
                self.close_connection = True

        def refuse(self, status: int) -> None:
            self.answer(status, b'{"errors":[]}')

        def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler


def make_certificates(folder: Path) -> None:
    """FOLDER/ca.pem, and server.pem with its key, by openssl."""
    names = ",".join(f"DNS:{name}" for name in (REGISTRY, LAYERS, AUTHN))
    (folder / "names").write_text(f"subjectAltName={names}\n")
    for words in (
        f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=stand-in -keyout {folder}/ca.key -out {folder}/ca.pem",
        f"req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN={REGISTRY} -keyout {folder}/server.key -out {folder}/server.csr",
        f"x509 -req -in {folder}/server.csr -CA {folder}/ca.pem -CAkey {folder}/ca.key -CAcreateserial -days 2 "
        f"-extfile {folder}/names -out {folder}/server.pem",
    ):
        subprocess.run(["openssl", *words.split()], check=True, capture_output=True)


def resolve_here(ngc: NgcRegistry, real: Any = socket.getaddrinfo) -> Any:
    """A getaddrinfo for which the three hosts are this machine; the server of layers is nobody's where it is down."""

    def getaddrinfo(host: Any, port: Any, *more: Any, **named: Any) -> Any:
        if host == LAYERS and ngc.layers_down:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real("127.0.0.1" if host in ngc.ports else host, port, *more, **named)

    return getaddrinfo
