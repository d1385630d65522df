"""Bundles made for tests: good ones, and ones that say too much."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from hpcstack.build.base import base_name
from hpcstack.recipe.catalog import Catalog
from hpcstack.site.load import Site
from support.locks import base_lock

RECIPE = """\
apiVersion: hpcstack/v1
name: demo
version: "1"
summary: s
base: {image: "docker.io/library/debian:12"}
"""


def make_bundle(tmp_path: Path, site: Site, **changes: Any) -> Path:
    """A good bundle of demo-1, or with CHANGES: `files` {path: bytes}, `manifest` over its
    manifest, `without_base` what it says of a base that it lacks.
    """
    folder = tmp_path / "theirs"
    folder.mkdir(exist_ok=True)
    (folder / "demo-1.yaml").write_text(RECIPE)
    stack = Catalog([folder]).find("demo-1").stack
    lock = base_lock(stack)
    good = {
        f"base/{base_name(lock, 'linux/amd64', site)}": b"a base",
        "lock/demo-1.lock.json": lock.text().encode(),
        "recipes/demo-1.yaml": RECIPE.encode(),
        "packages/a_1_all.deb": b"deb",
    }
    if "without_base" in changes:
        good = {path: content for path, content in good.items() if not path.startswith("base/")}
    given: dict[str, bytes | None] = {**good, **changes.get("files", {})}
    held = {path: content for path, content in given.items() if content is not None}
    named = {
        path: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        for path, content in held.items()
    }
    manifest = {
        "format": "hpcstack/bundle/v1",
        "stack": "demo-1",
        "platform": "linux/amd64",
        "files": named,
    }
    manifest |= changes.get("manifest", {})
    if "without_base" in changes:
        manifest |= {"format": "hpcstack/bundle/v2", "base": changes["without_base"]}
    for path, entry in changes.get("named", {}).items():
        named[path] = entry
    out = tmp_path / "demo.tar"
    with tarfile.open(out, "w") as tar:
        for path, content in {"manifest.json": json.dumps(manifest).encode(), **held}.items():
            info = tarfile.TarInfo(path)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out
