"""An image of real CUDA libraries for the benchmarks: NVIDIA's own wheels, unpacked into layers, as
an OCI layout.

At least 2 GB compressed, made once below FOLDER and used again. Its top layer removes and replaces
files of the lower ones, so that merging is part of what is measured; its lowest holds the thousands
of small files of a Python library.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PREFIX = "usr/local/lib/python3/dist-packages"
LAYERS = (
    ("nvidia-nccl-cu12", "nvidia-cufft-cu12"),
    ("nvidia-cusolver-cu12", "nvidia-cusparse-cu12"),
    ("nvidia-cublas-cu12",),
    ("nvidia-cudnn-cu12",),
)
EPOCH = 1_700_000_000
GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"


def image(folder: Path, kind: str = "cuda") -> Path:
    """The OCI layout below FOLDER, made if it is not there: of CUDA libraries, or (`small`) of
    300,000 small files.
    """
    layout = folder / ("layout" if kind == "cuda" else f"layout-{kind}")
    if (layout / "index.json").exists():
        return layout
    part = folder / "layout.part"
    shutil.rmtree(part, ignore_errors=True)
    (part / "blobs/sha256").mkdir(parents=True)
    if kind == "cuda":
        wheels = download(folder / "wheels")
        sets = [
            small_files(),
            *(unpacked([wheels[name] for name in names]) for names in LAYERS),
            changes(),
        ]
    else:
        sets = [many_files(number) for number in range(3)]
    layers = [layer(part, members) for members in sets]
    write_layout(part, layers)
    part.rename(layout)
    return layout


def download(folder: Path) -> dict[str, Path]:
    """{name: wheel} of NVIDIA's wheels, from PyPI or the index that pip is told."""
    names = [name for group in LAYERS for name in group]
    argv = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
    ]
    subprocess.run([*argv, "--dest", str(folder), *names], check=True, stdout=sys.stderr)
    return {name: next(folder.glob(f"{name.replace('-', '_')}-*.whl")) for name in names}


Member = tuple[tarfile.TarInfo, Any]


def info(
    name: str, size: int = 0, mode: int = 0o644, kind: bytes = tarfile.REGTYPE
) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.type, member.mtime = size, mode, kind, EPOCH
    return member


def unpacked(wheels: list[Path]) -> Iterator[Member]:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    with archive.open(entry) as body:
                        yield info(f"{PREFIX}/{entry.filename}", entry.file_size, 0o755), body


def small_files() -> Iterator[Member]:
    """Python's own library, and the few folders that every runtime mounts over."""
    for name in ("dev", "proc", "sys", "tmp", "etc", "bin", "root", "home", "var", "run"):
        yield info(name, mode=0o755, kind=tarfile.DIRTYPE), None
    top = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(top.rglob("*")):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            yield info(f"usr/lib/python3/{path.relative_to(top)}", len(data)), io.BytesIO(data)


def many_files(number: int) -> Iterator[Member]:
    """100,000 files of Python source in 5,000 folders: 2.5 kB each in the middle, the same ones
    each time.
    """
    lines = [f"def function_{n}(value):\n    return value + {n}\n\n".encode() for n in range(500)]
    drawn = random.Random(number)
    for folder in range(5000):
        path = f"{PREFIX}/package{number}_{folder % 300}/sub{folder}"
        yield info(path, mode=0o755, kind=tarfile.DIRTYPE), None
        for file in range(20):
            data = b"".join(drawn.choices(lines, k=drawn.randrange(1, 120)))
            yield info(f"{path}/module_{file}.py", len(data)), io.BytesIO(data)


def changes() -> Iterator[Member]:
    """A top layer that removes, replaces and adds."""
    yield info("usr/lib/python3/.wh.turtle.py"), io.BytesIO()
    yield info("usr/lib/python3/this.py", 5), io.BytesIO(b"pass\n")
    yield info("etc/made-for", 16), io.BytesIO(b"ci/bench/import\n")


def layer(layout: Path, members: Iterator[Member]) -> tuple[dict[str, object], str]:
    """One gzip layer among the blobs; its descriptor, and the digest of its tar."""
    part = layout / "layer.part"
    program = ["pigz", "-c"] if shutil.which("pigz") else ["gzip", "-c"]
    plain = hashlib.sha256()
    with (
        part.open("wb") as sink,
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=sink) as gzip,
    ):
        assert gzip.stdin

        class Tee(io.RawIOBase):
            def writable(self) -> bool:
                return True

            def write(self, data: Any) -> int:
                plain.update(data)
                assert gzip.stdin
                return gzip.stdin.write(data)

        with tarfile.open(fileobj=Tee(), mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for member, body in members:
                tar.addfile(member, body)
        gzip.stdin.close()
    digest = adopt(layout, part)
    return {
        "mediaType": GZIP,
        "digest": digest,
        "size": blob(layout, digest).stat().st_size,
    }, plain.hexdigest()


def write_layout(layout: Path, layers: list[tuple[dict[str, object], str]]) -> None:
    config = {
        "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/bin:/bin", "CUDA_VERSION=12.9"],
            "Cmd": ["/bin/sh"],
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{plain}" for _, plain in layers]},
        "history": [{"created_by": "ci/bench/cuda_image.py"} for _ in layers],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **text(layout, config)},
        "layers": [descriptor for descriptor, _ in layers],
    }
    top = {"mediaType": manifest["mediaType"], **text(layout, manifest)}
    top["annotations"] = {"org.opencontainers.image.ref.name": "latest"}
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [top]}))


def text(layout: Path, document: object) -> dict[str, object]:
    part = layout / "text.part"
    part.write_text(json.dumps(document))
    size = part.stat().st_size
    return {"digest": adopt(layout, part), "size": size}


def adopt(layout: Path, part: Path) -> str:
    with part.open("rb") as file:
        found = hashlib.sha256()
        while block := file.read(1 << 20):
            found.update(block)
    digest = f"sha256:{found.hexdigest()}"
    part.rename(blob(layout, digest))
    return digest


def blob(layout: Path, digest: str) -> Path:
    return layout / "blobs/sha256" / digest.removeprefix("sha256:")
