"""What a folder of 120,000 files costs an import and a splice: `ci/bench/import --image wide`.

The same files are imported from three images: in 1,000 folders, in one folder, and in one folder in
the order of a hash. The peer is mksquashfs of the unpacked folder. Bars: within 2 times of the
1,000 folders, and within 2 times of mksquashfs. A splice lays the folder over a small base. A
million files in 10,000 folders are measured, without a bar.
"""

from __future__ import annotations

import hashlib
import io
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cuda_image

from hpcstack.squashfs.splice import splice_image

FILES = 120_000
MANY = 1_000_000
SPREAD = "1,000 folders"
SORTED = "one folder, sorted"
SHUFFLED = "one folder, by hash"
MKSQUASHFS = "mksquashfs of one folder"
SPLICE_SPREAD = "splice of 1,000 folders"
SPLICE_ONE = "splice of one folder"
MILLION = "a million files in 10,000 folders"
MOST = 2.0


@dataclass(frozen=True)
class Tree:
    """COUNT files in FOLDERS folders; SHUFFLED says that they come in the order of a hash."""

    count: int
    folders: int
    shuffled: bool = False

    def list_members(self) -> Iterator[cuda_image.Member]:
        """Yield the members of the layer: each file has up to 4 kB of its own."""
        yield cuda_image.info("data", mode=0o755, kind=tarfile.DIRTYPE), None
        each = self.count // self.folders
        for number in range(self.folders):
            name = f"data/{number:06d}"
            yield cuda_image.info(name, mode=0o755, kind=tarfile.DIRTYPE), None

        paths = [f"data/{number // each:06d}/{number:07d}.json" for number in range(self.count)]
        if self.shuffled:
            paths.sort(key=lambda path: hashlib.md5(path.encode()).digest())
        for path in paths:
            digest = hashlib.md5(path.encode()).hexdigest()
            data = (digest * 128)[: 1 + int(digest[:4], 16) % 4096].encode()
            yield cuda_image.info(path, len(data)), io.BytesIO(data)


TREES = {
    SPREAD: Tree(FILES, 1000),
    SORTED: Tree(FILES, 1),
    SHUFFLED: Tree(FILES, 1, shuffled=True),
    MILLION: Tree(MANY, 10_000),
}


def make_image(folder: Path, tree: Tree) -> Path:
    """Return the OCI layout of TREE below FOLDER, made if it is not there."""
    order = "hash" if tree.shuffled else "sorted"
    layout = folder / f"layout-wide-{tree.count}-{tree.folders}-{order}"
    if (layout / "index.json").exists():
        return layout
    part = folder / "layout.part"
    (part / "blobs/sha256").mkdir(parents=True, exist_ok=True)
    cuda_image.write_layout(part, [cuda_image.layer(part, tree.list_members())])
    return part.rename(layout)


def import_layout(layout: Path, output: Path) -> None:
    """Import LAYOUT as OUTPUT, by the command line."""
    argv = [sys.executable, "-m", "hpcstack", "import", f"oci:{layout}:latest", "-o", str(output)]
    subprocess.run([*argv, "--force"], check=True, stdout=subprocess.DEVNULL)


def pack_folder(folder: Path, output: Path) -> None:
    """Pack FOLDER into OUTPUT as hpcstack packs a layer."""
    options = ["-quiet", "-no-progress", "-noappend", "-comp", "zstd", "-Xcompression-level", "1"]
    subprocess.run(["mksquashfs", str(folder), str(output), *options], check=True)


def measure(folder: Path, rounds: int) -> dict[str, float]:
    """Return {what: median seconds} of ROUNDS alternating rounds."""
    layouts = {what: make_image(folder, tree) for what, tree in TREES.items()}
    images = {what: folder / f"{number}.sqsh" for number, what in enumerate(TREES)}
    seconds: dict[str, list[float]] = {}

    def timed(what: str, act: Callable[[], object]) -> None:
        began = time.monotonic()
        act()
        seconds.setdefault(what, []).append(time.monotonic() - began)
        print(f"{what:36} {seconds[what][-1]:6.1f} s", file=sys.stderr, flush=True)

    small = folder / "small"
    (small / "etc").mkdir(parents=True, exist_ok=True)
    (small / "etc/file").write_text("x\n")
    base = folder / "base.sqsh"
    pack_folder(small, base)

    for _ in range(rounds):
        for what, layout in layouts.items():
            timed(what, lambda: import_layout(layout, images[what]))  # noqa: B023

        unpacked = folder / "unpacked"
        subprocess.run(["rm", "-rf", str(unpacked)], check=True)
        subprocess.run(
            ["unsquashfs", "-quiet", "-no-progress", "-dest", str(unpacked), str(images[SORTED])],
            check=True,
        )
        timed(MKSQUASHFS, lambda: pack_folder(unpacked, folder / "peer.sqsh"))  # noqa: B023

        for what, layer in ((SPLICE_SPREAD, images[SPREAD]), (SPLICE_ONE, images[SORTED])):
            output = folder / "spliced.sqsh"
            timed(what, lambda: splice_image(base, [layer], output, 0, always=True))  # noqa: B023
    return {what: statistics.median(each) for what, each in seconds.items()}


def list_bars(medians: dict[str, float]) -> list[tuple[str, float, str, bool]]:
    """Return (what, value, bar, whether it is met)."""
    pairs = [
        (SORTED, SPREAD), (SHUFFLED, SPREAD), (SORTED, MKSQUASHFS), (SHUFFLED, MKSQUASHFS),
        (SPLICE_ONE, SPLICE_SPREAD),
    ]  # fmt: skip
    out = []
    for what, against in pairs:
        ratio = medians[what] / medians[against]
        out.append((f"{what}, times {against}", ratio, f"<= {MOST:.0f}", ratio <= MOST))
    return out
