"""Blobs, a manifest and a manifest list into a registry on loopback, by the distribution protocol."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
from pathlib import Path
from urllib.parse import urlsplit

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
MANIFEST_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


def descriptor(media_type: str, data: bytes) -> dict[str, object]:
    return {
        "mediaType": media_type,
        "size": len(data),
        "digest": f"sha256:{hashlib.sha256(data).hexdigest()}",
    }


def file_descriptor(path: Path) -> dict[str, object]:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {
        "mediaType": LAYER,
        "size": path.stat().st_size,
        "digest": f"sha256:{digest.hexdigest()}",
    }


class Target:
    """One repository of a registry at HOST:PORT, plain http. $STANDIN_LOGIN is its USER:PASSWORD."""

    def __init__(self, address: str, repository: str) -> None:
        self.address, self.repository = address, repository
        login = os.environ.get("STANDIN_LOGIN", "")
        basic = base64.b64encode(login.encode()).decode()
        self.login = {"Authorization": f"Basic {basic}"} if login else {}

    def _request(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None,
                 ok: tuple[int, ...] = (200, 201, 202)) -> http.client.HTTPResponse:  # fmt: skip
        connection = http.client.HTTPConnection(self.address, timeout=300)
        connection.request(method, path, body=body, headers={**self.login, **(headers or {})})  # type: ignore[arg-type]
        answer = connection.getresponse()
        text = answer.read()
        if answer.status not in ok:
            raise SystemExit(f"{method} {path}: {answer.status} {text[:300]!r}")
        return answer

    def has(self, kind: str, reference: str) -> bool:
        accept = {"Accept": f"{MANIFEST_LIST}, {MANIFEST}"}
        path = f"/v2/{self.repository}/{kind}/{reference}"
        return self._request("HEAD", path, headers=accept, ok=(200, 404)).status == 200

    def blob(self, digest: str, data: bytes | Path) -> None:
        if self.has("blobs", digest):
            return
        start = self._request("POST", f"/v2/{self.repository}/blobs/uploads/")
        where = urlsplit(start.headers["Location"])
        path = f"{where.path}?{where.query}&digest={digest}".replace("?&", "?")
        headers = {"Content-Type": "application/octet-stream"}
        if isinstance(data, bytes):
            self._request("PUT", path, data, headers)
            return
        with data.open("rb") as file:
            self._request("PUT", path, file, headers | {"Content-Length": str(data.stat().st_size)})

    def manifest(
        self, reference: str, media_type: str, document: dict[str, object]
    ) -> dict[str, object]:
        data = json.dumps(document, sort_keys=True).encode()
        path = f"/v2/{self.repository}/manifests/{reference}"
        self._request("PUT", path, data, {"Content-Type": media_type})
        return descriptor(media_type, data)
