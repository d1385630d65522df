"""Layers, layouts and archives made for tests, and what a packed image holds."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "Env": ["PATH=/usr/bin:/bin", "A=1"],
    "Cmd": ["/bin/sh"],
    "WorkingDir": "/work",
}


def member(name: str, data: bytes = b"", **values: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    for key, value in values.items():
        setattr(info, key, value)
    return info, data


def folder(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.DIRTYPE, mode=mode)


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.SYMTYPE, linkname=target, mode=0o777)


def hard(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.LNKTYPE, linkname=target)


def tar(members: Iterable[tuple[tarfile.TarInfo, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as file:
        for info, data in members:
            file.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zipped(data: bytes) -> bytes:
    return gzip.compress(data, 1, mtime=0)


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def layout(
    top: Path,
    layers: Iterable[bytes],
    config: Mapping[str, Any] = CONFIG,
    plain: Iterable[bytes] = (),
) -> Path:
    """An OCI layout of LAYERS, oldest first, as they are to be stored."""
    (top / "blobs/sha256").mkdir(parents=True)

    def put(data: bytes) -> dict[str, Any]:
        (top / "blobs" / sha(data).replace(":", "/")).write_bytes(data)
        return {"digest": sha(data), "size": len(data)}

    stored = list(layers)
    document = {"os": "linux", "architecture": "amd64", "config": dict(config),
                "rootfs": {"type": "layers", "diff_ids": [sha(data) for data in plain or stored]}}  # fmt: skip
    manifest = {
        "schemaVersion": 2,
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            **put(json.dumps(document).encode()),
        },
        "layers": [
            {"mediaType": "application/vnd.oci.image.layer.v1.tar", **put(data)} for data in stored
        ],
    }
    index = {"schemaVersion": 2, "manifests": [put(json.dumps(manifest).encode())]}
    (top / "index.json").write_text(json.dumps(index))
    return top


def archive(path: Path, layers: Iterable[bytes], config: Mapping[str, Any] = CONFIG) -> Path:
    """What `docker save` writes, of plain LAYERS."""
    stored = list(layers)
    document = {"os": "linux", "architecture": "amd64", "config": dict(config),
                "rootfs": {"type": "layers", "diff_ids": [sha(data) for data in stored]}}  # fmt: skip
    names = [f"{number}/layer.tar" for number, _ in enumerate(stored)]
    manifest = [{"Config": "config.json", "RepoTags": ["demo:1"], "Layers": names}]
    members = [
        member("config.json", json.dumps(document).encode()),
        member("manifest.json", json.dumps(manifest).encode()),
    ]
    path.write_bytes(
        tar([*members, *(member(name, data) for name, data in zip(names, stored, strict=True))])
    )
    return path


def held(image: Path) -> dict[str, tuple[str, bytes]]:
    """{path: (kind, content or target)} of a squashfs, read by squashfs-tools-ng; hard links as the
    file they name.
    """
    data = subprocess.run(["sqfs2tar", str(image)], check=True, capture_output=True).stdout
    out: dict[str, tuple[str, bytes]] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as file:
        for info in file:
            name = info.name.strip("/").removeprefix("./")
            if info.isdir():
                out[name] = ("dir", b"")
            elif info.issym():
                out[name] = ("link", info.linkname.encode())
            elif info.islnk():
                out[name] = out[info.linkname.strip("/").removeprefix("./")]
            else:
                body = file.extractfile(info)
                out[name] = ("file", body.read() if body else b"")
    return out
