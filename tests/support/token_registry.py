"""A registry that takes tokens only, and the server that gives them to who has a login: as nvcr.io
and Docker Hub have it.
"""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.private_registry import await_registry


@dataclass
class TokenRegistry:
    """Debian's docker-registry on PORT, and a token server on the next one; {user: password} get
    tokens of LIVES_S.
    """

    folder: Path
    storage: Path
    port: int
    logins: dict[str, str]
    lives_s: int = 60
    given: list[str] = field(default_factory=list)  # to whom, a user a token; nobody is ""
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    server: ThreadingHTTPServer | None = field(default=None, init=False)

    def start(self) -> TokenRegistry:
        run = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=tokens",
               "-keyout", str(self.folder / "key.pem"), "-out", str(self.folder / "cert.pem")]  # fmt: skip
        subprocess.run(run, check=True, capture_output=True)
        realm = f"http://127.0.0.1:{self.port + 1}/token"
        (self.folder / "tokens.yml").write_text(
            "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\n"
            f"storage: {{filesystem: {{rootdirectory: {self.storage}}}}}\nhttp: {{addr: "
            f"'127.0.0.1:{self.port}'}}\n"
            f"auth: {{token: {{realm: '{realm}', service: tests, issuer: tests, rootcertbundle: "
            f"{self.folder}/cert.pem}}}}\n"
        )
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port + 1), self._handler())
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        with (self.folder / "tokens.log").open("ab") as log:
            argv = ["docker-registry", "serve", str(self.folder / "tokens.yml")]
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
        await_registry(self.process, self.port, self.folder / "tokens.log")
        return self

    def stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
        if self.server:
            self.server.shutdown()
            self.server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None: ...

            def do_GET(self) -> None:
                user = registry.user(self.headers.get("Authorization", ""))
                if user is None:
                    self.send_response(401)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                registry.given.append(user)
                scope = parse_qs(urlsplit(self.path).query).get("scope", [""])[0] if user else ""
                data = json.dumps({"token": registry.token(user, scope)}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        return Handler

    def user(self, header: str) -> str | None:
        """Who that is; empty without a login, None with a wrong one."""
        if not header:
            return ""
        name, _, password = base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
        return name if self.logins.get(name) == password else None

    def token(self, user: str, scope: str) -> str:
        """A signed token; nobody's opens nothing."""
        kind, name, _ = scope.split(":") if scope else ("", "", "")
        access = [{"type": kind, "name": name, "actions": ["pull"]}] if scope else []
        now = int(time.time())
        pem = (self.folder / "cert.pem").read_text()
        header = {"typ": "JWT", "alg": "RS256", "x5c": ["".join(pem.splitlines()[1:-1])]}
        claims = {"iss": "tests", "sub": user, "aud": "tests", "iat": now, "nbf": now - 60, "exp": now + self.lives_s - 60,
                  "jti": secrets.token_hex(8), "access": access}  # fmt: skip
        text = f"{_coded(header)}.{_coded(claims)}"
        sign = ["openssl", "dgst", "-sha256", "-sign", str(self.folder / "key.pem")]
        done = subprocess.run(sign, input=text.encode(), capture_output=True, check=True)
        return f"{text}.{base64.urlsafe_b64encode(done.stdout).rstrip(b'=').decode()}"


def _coded(what: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(what).encode()).rstrip(b"=").decode()
