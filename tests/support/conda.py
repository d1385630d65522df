"""A conda channel made by hand: real packages with a placeholder for the prefix, indexed by
rattler.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import tarfile
from pathlib import Path


def package(
    channel: Path, name: str, version: str, subdir: str, depends: tuple[str, ...], text: str
) -> None:
    """NAME-VERSION-0.tar.bz2 with one program bin/NAME; /PLACEHOLDER in TEXT becomes the prefix."""
    path, data = f"bin/{name}", text.encode()
    entry = {
        "_path": path, "path_type": "hardlink", "sha256": hashlib.sha256(data).hexdigest(), "size_in_bytes": len(data),
        **({"file_mode": "text", "prefix_placeholder": "/PLACEHOLDER"} if b"/PLACEHOLDER" in data else {}),
    }  # fmt: skip
    index = {
        "name": name, "version": version, "build": "0", "build_number": 0, "depends": list(depends), "subdir": subdir,
        "arch": None, "platform": None, "timestamp": 1700000000000,
    }  # fmt: skip
    files = {
        "info/index.json": json.dumps(index),
        "info/paths.json": json.dumps({"paths_version": 1, "paths": [entry]}),
        "info/files": f"{path}\n",
        path: text,
    }
    (channel / subdir).mkdir(parents=True, exist_ok=True)
    with tarfile.open(channel / subdir / f"{name}-{version}-0.tar.bz2", "w:bz2") as tar:
        for where, what in files.items():
            info = tarfile.TarInfo(where)
            info.size, info.mode = len(what.encode()), 0o755 if where == path else 0o644
            tar.addfile(info, io.BytesIO(what.encode()))


def channel(folder: Path) -> Path:
    """A channel with hello 1.0 and 2.0, which need word."""
    from rattler.index import index_fs

    for version in ("1.0", "2.0"):
        text = f"#!/bin/sh\necho hello {version} from /PLACEHOLDER, $(/PLACEHOLDER/bin/word)\n"
        package(folder, "hello", version, "noarch", ("word >=2",), text)
    package(folder, "word", "2.1", "linux-64", (), "#!/bin/sh\necho word\n")
    asyncio.run(index_fs(folder))
    return folder
