"""An index of Python packages on this machine, as pip asks one (PEP 503), and small projects to put
into it.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@contextmanager
def serve_index(folder: Path, address: str = "127.0.0.1") -> Iterator[str]:
    """FOLDER, of the projects' own folders, as an index at ADDRESS of this machine; its URL."""
    for project in (folder / "simple").iterdir():
        links = "".join(
            f'<a href="{path.name}">{path.name}</a><br>' for path in sorted(project.iterdir())
        )
        (project / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    server = ThreadingHTTPServer((address, 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://{address}:{server.server_port}/simple"
    finally:
        server.shutdown()
        server.server_close()


def add_sdist(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    """The source distribution of NAME with FILES."""
    project = folder / "simple" / name
    project.mkdir(parents=True, exist_ok=True)
    top = f"{name.replace('-', '_')}-{version}"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with tarfile.open(project / f"{top}.tar.gz", "w:gz") as tar:
        for path, text in {"PKG-INFO": about, **files}.items():
            entry = tarfile.TarInfo(f"{top}/{path}")
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))


def add_wheel(
    folder: Path, name: str, version: str, files: dict[str, str], requires: Sequence[str] = ()
) -> None:
    """A wheel of NAME, pure Python, with FILES, that REQUIRES others."""
    wanted = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    project = folder / "simple" / name
    project.mkdir(parents=True, exist_ok=True)
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{wanted}",
        f"{info}/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    rows = []
    with zipfile.ZipFile(
        project / f"{name.replace('-', '_')}-{version}-py3-none-any.whl", "w"
    ) as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
            digest = (
                base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
                .rstrip(b"=")
                .decode()
            )
            rows.append(f"{path},sha256={digest},{len(text.encode())}")
        wheel.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,"]) + "\n")
