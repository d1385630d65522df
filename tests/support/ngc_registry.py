"""A registry that behaves as public sources say that nvcr.io does: PLAYED, never recorded from
NVIDIA's.

    python3 tests/support/ngc_registry.py FOLDER UPSTREAM STORAGE PORT

stands before the docker-registry at UPSTREAM, as the testbed has it, on PORT and the two behind it.

Three hosts, as a pull from NGC meets them: the registry, which also gives tokens; the server of
layers, to which it sends on; and the server that a token which has run out is referred to. Each
speaks TLS by a certificate authority of the stand-in's own.

- A cold 401 names https://REGISTRY/proxy_auth, with the scope in the realm's URL (Apache Mesos,
  MESOS-9968).
- A 401 to a token that has run out names https://AUTHN/token, service="registry",
  error="invalid_token", and that server gives tokens to nobody without a login
  (NVIDIA/nvidia-container-toolkit 1945).
- Tokens live for 600 s (sapcc/keppel PR 731), here for as long as a test says.
- A blob is a 307 to the server of layers, with a signature in the URL that runs out.
- Lists of manifests hold attestations, lists of tags signatures, and come in pages.

NgcRegistry makes its images up. NgcFront stands before a docker-registry, which keeps them: what is
asked about them is handed on to it, and bytes of blobs come from its storage, as from the object
store behind NVIDIA's server of layers. Standard library and openssl only: the testbed runs this
file by the system's Python.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.client
import io
import json
import os
import re
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qs, urlsplit

REGISTRY, LAYERS, AUTHN = "nvcr.io", "layers.nvcr.io", "authn.nvidia.com"
INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
OCI = ("application/vnd.oci.image.index.v1+json", "application/vnd.oci.image.manifest.v1+json")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
PAGE = 100
PIECE = 1 << 20
# The testbed's names (ci/testbed.d/registry.sh makes them known): nothing asked for by them is
# taken for NVIDIA's own.
TESTBED_HOSTS = {
    REGISTRY: "nvcr.testbed",
    LAYERS: "layers.nvcr.testbed",
    AUTHN: "authn.nvidia.testbed",
}
MAX_TOKENS = 10_000


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class NgcRegistry:
    """The three hosts on loopback, while the block of `running` lasts.

    What a test may change has a default.
    """

    folder: Path
    token_lives_s: float = 600
    token_says_s: float | None = None  # how long a token says that it lives, where that is not true
    token_serves: int | None = None  # how many requests a token is good for; None: any number
    served: dict[str, int] = field(default_factory=dict)  # {token: requests}
    pause_s: float = 0  # before each answer of the server of layers
    keys: dict[str, set[str]] = field(
        default_factory=dict
    )  # {key: the private repositories that it opens}
    private: set[str] = field(default_factory=set)
    terms: set[str] = field(default_factory=set)  # repositories whose terms nobody has accepted
    # As the registry says them; {registry}, {authn}: its and the refusing server's HOST:PORT,
    # {name}: the repository.
    cold_challenge: str = (
        'Bearer realm="https://{registry}/proxy_auth?scope=repository:{name}:pull,push"'
    )
    stale_challenge: str = (
        'Bearer realm="https://{authn}/token",service="registry",error="invalid_token"'
    )
    token_reply: dict[str, Any] = field(
        default_factory=lambda: {"token": "", "expires_in": 0}
    )  # filled as it is given
    remembers: bool = True  # whether who asked what is kept, in `asked`
    busy: int = 0  # so many requests are answered 429 first
    cut_after: int = 0  # bytes of each answer of the server of layers
    layers_down: bool = False
    down_for_nobody: bool = False  # who has no login gets a 503 for a token
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[tuple[str, str], tuple[str, bytes]] = field(
        default_factory=dict
    )  # {(repository, tag or digest)}
    tags: dict[str, list[str]] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(
        default_factory=list
    )  # (host, method and path, who it was asked by)
    tokens: dict[str, tuple[str, float]] = field(
        default_factory=dict
    )  # {token: (repository, good until)}
    hosts: dict[str, str] = field(
        default_factory=lambda: {name: name for name in (REGISTRY, LAYERS, AUTHN)}
    )
    stale: int = 0  # requests with a token that had run out
    ports: dict[str, int] = field(
        default_factory=dict
    )  # those that are not named are any that are free

    def add_image(
        self, repository: str, tag: str, layers: list[bytes], env: list[str] | None = None,
        config: dict[str, Any] | None = None,
    ) -> str:  # fmt: skip
        """An image of gzipped tars, with an attestation beside it; the digest of its list.

        CONFIG: one of its own.
        """
        made = {
            "os": "linux",
            "architecture": "amd64",
            "config": {"Env": env or ["CUDA_VERSION=12.6.3"]},
        }
        rootfs = {
            "type": "layers",
            "diff_ids": [digest_of(gzip.decompress(layer)) for layer in layers],
        }
        config = {**(config or made), "rootfs": rootfs}
        manifest = {
            "schemaVersion": 2, "mediaType": MANIFEST, "config": self._blob(json.dumps(config).encode()),
            "layers": [{"mediaType": LAYER, **self._blob(layer)} for layer in layers],
        }  # fmt: skip
        described = self._manifest(repository, json.dumps(manifest).encode(), MANIFEST)
        attestation = self._manifest(
            repository, json.dumps({**manifest, "layers": []}).encode(), MANIFEST
        )
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

    def sign(self, repository: str, digest: str, key: Path, *, about: str = "") -> None:
        """A signature of the image DIGEST by KEY, a private one, as cosign puts it there. ABOUT:
        another digest that the statement names.
        """
        image = {"docker-manifest-digest": about or digest}
        identity = {"docker-reference": f"nvcr.io/{repository}"}
        kind = "cosign container image signature"
        payload = json.dumps(
            {"critical": {"identity": identity, "image": image, "type": kind}, "optional": None}
        ).encode()
        sign = ["openssl", "dgst", "-sha256", "-sign", str(key)]
        signature = subprocess.run(sign, input=payload, capture_output=True, check=True).stdout
        annotations = {"dev.cosignproject.cosign/signature": base64.b64encode(signature).decode()}
        layer = {
            "mediaType": "application/vnd.dev.cosign.simplesigning.v1+json",
            **self._blob(payload),
            "annotations": annotations,
        }
        config = {"mediaType": "application/vnd.oci.image.config.v1+json", **self._blob(b"{}")}
        manifest = {"schemaVersion": 2, "mediaType": OCI[1], "config": config, "layers": [layer]}
        found = self._manifest(repository, json.dumps(manifest).encode(), OCI[1])
        self.manifests[repository, f"{digest.replace(':', '-')}.sig"] = self.manifests[
            repository, found["digest"]
        ]

    def _blob(self, data: bytes) -> dict[str, Any]:
        self.blobs[digest_of(data)] = data
        return {"digest": digest_of(data), "size": len(data)}

    def _manifest(self, repository: str, data: bytes, kind: str) -> dict[str, Any]:
        self.manifests[repository, digest_of(data)] = (kind, data)
        return {"mediaType": kind, "digest": digest_of(data), "size": len(data)}

    @contextmanager
    def running(self) -> Iterator[NgcRegistry]:
        make_certificates(self.folder, list(self.hosts.values()))
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
        """HOST:PORT of REGISTRY, LAYERS or AUTHN."""
        return f"{self.hosts[name]}:{self.ports[name]}"

    def find_manifest(self, repository: str, reference: str) -> tuple[str, bytes] | None:
        """(media type, bytes) of what REFERENCE, a tag or a digest, means in REPOSITORY."""
        return self.manifests.get((repository, reference))

    def open_blob(self, digest: str) -> tuple[BinaryIO, int] | None:
        """The blob DIGEST to read, and its bytes."""
        data = self.blobs.get(digest)
        return None if data is None else (io.BytesIO(data), len(data))

    def list_tags(self, repository: str) -> list[str]:
        return self.tags.get(repository, [])

    def _serve(self, name: str) -> ThreadingHTTPServer:
        server = ThreadingHTTPServer(("127.0.0.1", self.ports.get(name, 0)), handler(self, name))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "server.pem", self.folder / "server.key")
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.ports[name] = server.server_port
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def give_token(self, repository: str) -> dict[str, Any]:
        """A token for REPOSITORY, which says itself how long it is good."""
        now = time.time()
        says = self.token_lives_s if self.token_says_s is None else self.token_says_s
        claims = {"iat": int(now), "exp": int(now + says), "jti": secrets.token_hex(8)}
        token = f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b'=').decode()}.c2ln"
        if len(self.tokens) > MAX_TOKENS:
            self.tokens.clear()  # who has one is told that it has run out
        self.tokens[token] = (repository, now + self.token_lives_s)
        filled = {"token": token, "access_token": token, "expires_in": says}
        return {name: filled.get(name, value) for name, value in self.token_reply.items()}

    def is_good(self, token: str, repository: str) -> bool:
        """Whether TOKEN still opens REPOSITORY; asking is a request."""
        allowed, until = self.tokens.get(token, ("", 0.0))
        self.served[token] = self.served.get(token, 0) + 1
        used_up = self.token_serves is not None and self.served[token] > self.token_serves
        return allowed == repository and time.time() <= until and not used_up

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

        def note(self, shown: str) -> None:
            if ngc.remembers:
                ngc.asked.append((name, f"{self.command} {self.path}", shown))

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            shown = self.headers.get("Authorization", "")
            self.note(shown)
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
            self.note("")
            if form.get("grant_type") != ["refresh_token"] or name != REGISTRY:
                self.refuse(400)
                return
            self.token(form, form["refresh_token"][0])

        def token(self, query: dict[str, list[str]], key: str) -> None:
            # Clients that know of no scope in the realm add theirs behind it: the last one counts.
            repository = query.get("scope", ["::"])[-1].split(":")[1]
            if ngc.down_for_nobody and not key:
                self.refuse(503)
            elif (key and key not in ngc.keys) or (repository in ngc.private and not key):
                self.refuse(401)
            elif repository in ngc.private and repository not in ngc.keys[key]:
                self.refuse(403)
            else:
                self.answer(
                    200,
                    json.dumps(ngc.give_token(repository)).encode(),
                    {"Content-Type": "text/plain"},
                )

        def registry(self, path: str, query: dict[str, list[str]], shown: str) -> None:
            words = path.removeprefix("/v2/").split("/")
            if words == [""]:
                self.challenge("")
                return
            kind = next(word for word in ("manifests", "blobs", "tags") if word in words)
            repository, what = "/".join(words[: words.index(kind)]), words[-1]
            if not shown:
                self.challenge(repository)
            elif not ngc.is_good(shown.removeprefix("Bearer "), repository):
                self.stale(repository)
            elif repository in ngc.terms:
                self.refuse(403)
            elif kind == "manifests":
                self.manifest(ngc.find_manifest(repository, what))
            elif kind == "tags":
                self.list_tags(path, ngc.list_tags(repository), int(query.get("page", ["0"])[0]))
            elif found := ngc.open_blob(what):
                found[0].close()
                signed = f"https://{ngc.address(LAYERS)}/{what}?expires={time.time() + 30:.0f}&signature=abc"
                self.answer(307, b"", {"Location": signed})
            else:
                self.refuse(404)

        def challenge(self, repository: str) -> None:
            said = self.said(ngc.cold_challenge, repository)
            self.answer(401, b'{"errors":[]}', {"WWW-Authenticate": said})

        def said(self, challenge: str, repository: str) -> str:
            hosts = {"registry": ngc.address(REGISTRY), "authn": ngc.address(AUTHN)}
            return challenge.format(name=repository, **hosts)

        def stale(self, repository: str) -> None:
            ngc.stale += 1
            said = self.said(ngc.stale_challenge, repository)
            self.answer(401, b'{"errors":[]}', {"WWW-Authenticate": said})

        def manifest(self, found: tuple[str, bytes] | None) -> None:
            if found is None:
                self.refuse(404)
                return
            kind, data = found
            self.answer(200, data, {"Content-Type": kind, "Docker-Content-Digest": digest_of(data)})

        def list_tags(self, path: str, tags: list[str], page: int) -> None:
            here = tags[page * PAGE : (page + 1) * PAGE]
            more = (
                {"Link": f'<{path}?page={page + 1}>; rel="next"'}
                if tags[(page + 1) * PAGE :]
                else {}
            )
            self.answer(200, json.dumps({"name": "x", "tags": here}).encode(), more)

        def layer(self, path: str, query: dict[str, list[str]]) -> None:
            """A piece of a blob from where it is asked for; cut, if the test wants that."""
            # Clients of Go's send their login to a subdomain, too, and get what they ask for: skopeo
            # pulls from NVIDIA. Ours must not; requests drops it on the way to another host.
            of_ours = "python-requests" in self.headers.get("User-Agent", "")
            told = of_ours and self.headers.get("Authorization")
            if told or float(query["expires"][0]) < time.time():
                self.refuse(403)
                return
            found = ngc.open_blob(path.strip("/"))
            if found is None:
                self.refuse(404)
                return
            time.sleep(ngc.pause_s)
            blob, size = found
            with blob:
                asked = self.headers.get("Range", "")
                first, _, last = asked.removeprefix("bytes=").partition("-")
                start, end = (int(first), int(last or size - 1) + 1) if asked else (0, size)
                end = min(end, size)
                self.send_response(206 if asked else 200)
                self.send_header("Content-Length", str(end - start))
                if asked:
                    self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
                self.end_headers()
                if self.command == "HEAD":
                    return
                left = min(end - start, ngc.cut_after or end - start)
                blob.seek(start)
                while left and (piece := blob.read(min(PIECE, left))):
                    self.wfile.write(piece)
                    left -= len(piece)
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


@dataclass
class NgcFront(NgcRegistry):
    """The three hosts before the docker-registry at UPSTREAM, whose blobs lie in STORAGE."""

    upstream: str = ""
    storage: Path = Path()

    def find_manifest(self, repository: str, reference: str) -> tuple[str, bytes] | None:
        status, headers, content = self._ask(
            f"/v2/{repository}/manifests/{reference}", ", ".join((INDEX, MANIFEST, *OCI))
        )
        return (headers["Content-Type"], content) if status == 200 else None

    def open_blob(self, digest: str) -> tuple[BinaryIO, int] | None:
        if not DIGEST.fullmatch(digest):
            return None
        name = digest.removeprefix("sha256:")
        try:
            file = (self.storage / f"docker/registry/v2/blobs/sha256/{name[:2]}/{name}/data").open(
                "rb"
            )
        except FileNotFoundError:
            return None
        return file, os.fstat(file.fileno()).st_size

    def list_tags(self, repository: str) -> list[str]:
        status, _, content = self._ask(f"/v2/{repository}/tags/list", "*/*")
        return list(json.loads(content)["tags"] or []) if status == 200 else []

    def _ask(self, path: str, accept: str) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection(self.upstream, timeout=30)
        try:
            connection.request("GET", path, headers={"Accept": accept})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()


# What RFC 5280 wants of a server's certificate: Python 3.13 and newer refuse one without
# (ssl.VERIFY_X509_STRICT).
OF_A_SERVER = """\
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
"""


def make_certificates(folder: Path, names: list[str]) -> None:
    """FOLDER/ca.pem, and server.pem with its key for NAMES, by openssl. What is there is kept."""
    if (folder / "server.pem").exists():
        return
    said = "subjectAltName=" + ",".join(f"DNS:{name}" for name in names)
    (folder / "names").write_text(f"{said}\n{OF_A_SERVER}")
    for words in (
        f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 365 -subj "
        f"/CN=stand-in "
        f"-addext keyUsage=critical,keyCertSign,cRLSign "
        f"-keyout {folder}/ca.key -out {folder}/ca.pem",
        f"req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN={names[0]} "
        f"-keyout {folder}/server.key -out {folder}/server.csr",
        f"x509 -req -in {folder}/server.csr -CA {folder}/ca.pem -CAkey {folder}/ca.key "
        f"-CAcreateserial -days 365 "
        f"-extfile {folder}/names -out {folder}/server.part",
    ):
        subprocess.run(["openssl", *words.split()], check=True, capture_output=True)
    (folder / "server.part").rename(folder / "server.pem")


def resolve_here(ngc: NgcRegistry, real: Any = socket.getaddrinfo) -> Any:
    """A getaddrinfo for which the three hosts are this machine; the server of layers is nobody's
    where it is down.
    """

    def getaddrinfo(host: Any, port: Any, *more: Any, **named: Any) -> Any:
        if host == LAYERS and ngc.layers_down:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real("127.0.0.1" if host in ngc.ports else host, port, *more, **named)

    return getaddrinfo


def main(folder: Path, upstream: str, storage: Path, port: int) -> None:
    """The testbed's three hosts, until this process is ended."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    ports = {name: port + place for place, name in enumerate(TESTBED_HOSTS)}
    front = NgcFront(
        folder,
        hosts=dict(TESTBED_HOSTS),
        ports=ports,
        upstream=upstream,
        storage=storage,
        remembers=False,
    )
    with front.running():
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
