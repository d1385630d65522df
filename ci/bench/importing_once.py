"""Seconds and registry bytes of `srun --container-image=REGISTRY#IMAGE true`: one import for all,
or each its own.

    HPCSTACK_TESTBED_NODES=32 ci/testbed up && ci/bench/importer [--nodes 2,8,32] [--rounds 3]
    [--image NAME:TAG]

Wants Pyxis and Enroot on the testbed, and root. A registry over the testbed's own images, which
wants a login, counts what it sends. `once` is hpcstack's importer with its image service, cold and
then warm; `each` is what Pyxis does without (`enroot import` on each node, at most on 2: the
importer leaves a registry to it that site.yaml does not name); `by path` mounts the same file
without any importer, and `srun` runs no container: what the other rows cost beyond.

All virtual nodes share the cores, the disk and the one service of a machine: what each does at once
adds up here. A row says how much later the last of N nodes starts than the last of 2, for each node
more.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from testbed_user import REPO, on_testbed

sys.path.insert(0, str(REPO / "tests"))

from support.private_registry import PrivateRegistry

TESTBED = Path(os.environ.get("HPCSTACK_TESTBED", "/opt/hpcstack-testbed"))
USER = [
    str(REPO / "ci/testbed"),
    "exec",
    "env",
    "NVIDIA_VISIBLE_DEVICES=void",
    "ENROOT_ALLOW_HTTP=y",
]


class Bench:
    """The registry, and the testbed's user with a login to it."""

    def __init__(self, folder: Path, image: str) -> None:
        self.image, self.folder = image, folder
        self.address = PrivateRegistry.address(TESTBED)
        self.unnamed = f"{socket.gethostname().partition('.')[0]}:{self.address.rpartition(':')[2]}"
        folder.chmod(0o755)
        storage = TESTBED / "state/registry"
        self.registry = PrivateRegistry(
            folder,
            storage,
            int(self.address.rpartition(":")[2]),
            {"bench": "word", "other": "word"},
        ).start()
        self.configs = {name: self._config(name) for name in ("bench", "other")}

    def _config(self, name: str) -> Path:
        hosts = [address.partition(":")[0] for address in (self.address, self.unnamed)]
        config = self.folder / f"enroot-{name}"
        config.mkdir()
        lines = [f"machine {host} login {name} password word\n" for host in hosts]
        (config / ".credentials").write_text("".join(lines))
        return config

    def run(self, nodes: int, image: str = "", config: str = "bench") -> tuple[float, int]:
        """Seconds of one srun, and the bytes that the registry sent meanwhile."""
        self.registry.forget()
        container = [f"--container-image={image}"] if image else []
        began = time.monotonic()
        argv = [
            *USER,
            f"ENROOT_CONFIG_PATH={self.configs[config]}",
            "srun",
            "--mpi=none",
            "-N",
            str(nodes),
            *container,
            "true",
        ]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        took = time.monotonic() - began
        if done.returncode:
            raise SystemExit(f"{argv}: {done.stderr}")
        return took, self.registry.blob_bytes()

    def forget(self) -> None:
        """Nothing is in the image cache, nor in Enroot's own."""
        for folder in ("images", "partial", "steps", "failed", "grants"):
            for one in (TESTBED / "images" / folder).iterdir():
                shutil.rmtree(one) if one.is_dir() else one.unlink()
        for cache in (TESTBED / "nodes").glob("*/tmp/enroot/cache-*"):
            shutil.rmtree(cache)

    def rows(self, nodes: int) -> dict[str, tuple[float, int]]:
        """One round: {row: (seconds, bytes)}."""
        named = f"{self.address}#{self.image}"
        out = {"srun": self.run(nodes)}
        if nodes <= 2:
            self.forget()
            out["each"] = self.run(nodes, f"{self.unnamed}#{self.image}")
        self.forget()
        out["once, cold"] = self.run(nodes, named)
        out["once, warm"] = self.run(nodes, named)
        path = next((TESTBED / "images/images").glob("*/image.sqsh"))
        copy = self.folder / "copy.sqsh"
        shutil.copyfile(path, copy)
        copy.chmod(0o644)
        out["by path"] = self.run(nodes, str(copy))
        return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", default="2,8,32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--image", default="nvidia/pytorch:24.11-py3")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    counts = [int(word) for word in asked.nodes.split(",")]
    if "--container-image" not in on_testbed("srun", "--help") or not shutil.which("enroot"):
        raise SystemExit("this needs Pyxis and Enroot on the testbed")
    found: dict[int, dict[str, tuple[float, int]]] = {}
    with tempfile.TemporaryDirectory(dir=TESTBED) as folder:
        bench = Bench(Path(folder), asked.image)
        try:
            for nodes in counts:
                rounds = [bench.rows(nodes) for _ in range(asked.rounds)]
                found[nodes] = {
                    row: (statistics.median(one[row][0] for one in rounds), rounds[-1][row][1])
                    for row in rounds[0]
                }
        finally:
            bench.registry.stop()
            bench.forget()
    print(json.dumps(found) if asked.json else "\n".join(table(found)))


def table(found: dict[int, dict[str, tuple[float, int]]]) -> list[str]:
    lines = [
        "| nodes | row | s | MB from the registry | x 'once, cold' |",
        "| --- | --- | --- | --- | --- |",
    ]
    for nodes, rows in found.items():
        cold = rows["once, cold"][0]
        lines += [
            f"| {nodes} | {row} | {s:.2f} | {size / 1e6:.0f} | {s / cold:.2f} |"
            for row, (s, size) in rows.items()
        ]
    few, many = min(found), max(found)
    for row in found[many] if many > few else ():
        growth = (found[many][row][0] - found[few][row][0]) / (many - few)
        lines.append(f"{row}: {growth * 1000:.0f} ms a node more")
    return lines


if __name__ == "__main__":
    main()
