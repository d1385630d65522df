"""Seconds from `srun` to the first line of `python3 -c "import torch; print(...)"`, by each way to
start an image.

    HPCSTACK_TESTBED_NODES=32 ci/testbed up && ci/bench/first-line [--nodes 1,2,8,32] [--ranks
    1,4,8] [--rounds 3]
        [--image FILE] [--only ROW,ROW] [--most RANKS] [--cold] [--json]

The image of pytorch-24.11 (or FILE) on the testbed's virtual nodes, as its ordinary user, by lines
that people write: Pyxis that mounts (the testbed's use_squashfuse=1) and that unpacks (what a
--container-name makes it do), Enroot (`enroot start IMAGE`), Apptainer; podman and Charliecloud by
`hpcstack launch` (not with FILE); Apptainer in a folder that holds the image unpacked; and, with no
container, a virtual environment on the shared disk (this machine's Python and the image's
packages). `import` is the time that the slowest rank spent in it. What is not installed is left
out, as is what would take more than MOST ranks in all: every one of them is a torch in the memory
of this one machine. --cold: as root, with the page cache dropped before each line.

Bars, warm: Pyxis that mounts within 1.5 times `apptainer exec`; `import torch` from the mounted
image within 1.3 times of that from the unpacked one. All nodes share the cores of one machine: what
each does at once adds up here.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from testbed_user import REPO, on_testbed

from hpcstack.core.files import digest_of

STACK = "pytorch-24.11"
CODE = "import time; t = time.time(); import torch; print('imported', time.time() - t, flush=True)"
USER = (
    str(REPO / "ci/testbed"),
    "exec",
    "env",
    "NVIDIA_VISIBLE_DEVICES=void",
)  # the virtual nodes have no driver
UNPACK = """\
set -e
rm -rf "$2.part"
if [ ! -d "$2" ]; then
    unsquashfs -quiet -no-progress -no-xattrs -dest "$2.part" "$1" >&2
    mv "$2.part" "$2"
fi
if [ ! -f "$2.venv/whole" ]; then
    rm -rf "$2.venv"
    /usr/bin/python3 -m venv --without-pip "$2.venv"
    cp -a "$2"/usr/local/lib/python3*/dist-packages/. "$2".venv/lib/python3*/site-packages/
    touch "$2.venv/whole"
fi
"""
CPUS = 4  # of a virtual node
SLOW = ("pyxis unpacks",)  # not beyond 2 nodes: minutes


def lines(image: str, tree: str, nodes: int, ranks: int, *, stack: bool) -> dict[str, list[str]]:
    """{what: the line}. Not a STACK: `hpcstack launch` does not know the image."""
    each = (
        [f"--ntasks-per-node={ranks}"]
        if ranks <= CPUS
        else ["--overcommit", "-n", str(nodes * ranks)]
    )
    srun = ["srun", "--mpi=none", "-N", str(nodes), *each]
    python = ["python3", "-c", CODE]
    launch = [
        "hpcstack",
        "launch",
        STACK,
        "-N",
        str(nodes),
        f"--ntasks-per-node={ranks}",
        "--mode",
        "plain",
    ]
    out = {
        "apptainer": [*srun, "apptainer", "exec", image, *python],
        "apptainer unpacked": [*srun, "apptainer", "exec", tree, *python],
        "venv": [*srun, f"{tree}.venv/bin/python", "-c", CODE],
    }
    if stack and ranks <= CPUS:  # launch refuses more ranks than a node has CPUs
        out["podman"] = [*launch, "--runtime", "podman", "--", *python]
        out["charliecloud"] = [*launch, "--runtime", "charliecloud", "--", *python]
    if shutil.which("enroot"):
        out["enroot"] = [*srun, "enroot", "start", image, *python]
    if "--container-image" in on_testbed("srun", "--help"):
        out["pyxis mounts"] = [*srun, f"--container-image={image}", *python]
        if nodes <= 2:
            name = f"bench{time.monotonic_ns()}"  # one that is there is not unpacked again
            out["pyxis unpacks"] = [
                *srun,
                f"--container-image={image}",
                f"--container-name={name}",
                *python,
            ]
    return out


def timed(argv: list[str]) -> tuple[float, float] | None:
    """Seconds until the last rank's line, and what the slowest import took; None where the line
    fails.
    """
    began, slowest, last = time.monotonic(), 0.0, 0.0
    with subprocess.Popen([*USER, *argv], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as process:  # fmt: skip
        assert process.stdout
        for line in process.stdout:
            if "imported" in line:
                last, slowest = time.monotonic() - began, max(slowest, float(line.split()[-1]))
        said = process.stderr.read() if process.stderr else ""
    for word in argv:
        if word.startswith("--container-name="):
            name = f"pyxis_{word.partition('=')[2]}"
            subprocess.run([*USER, *argv[:4], "--ntasks-per-node=1", "enroot", "remove", "--force", name],
                           capture_output=True, check=False)  # fmt: skip
    if process.returncode:
        print(f"{' '.join(argv[:6])} ...: {said[-300:]}", file=sys.stderr)
        return None
    return last, slowest


def drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def unpacked(image: str) -> str:
    """A folder with the image unpacked, of the testbed's user; beside it, as TREE.venv, a virtual
    environment.
    """
    home = on_testbed("sh", "-c", "echo ~").strip()
    tree = f"{home}/first-line-{digest_of(Path(image))[:16]}"
    on_testbed("sh", "-c", UNPACK, "sh", image, tree)
    return tree


def measure(
    argvs: dict[str, list[str]], rounds: int, cold: bool, only: Sequence[str], *, first: bool
) -> dict[str, dict[str, float]]:
    """Medians of ROUNDS of each line of ARGVS.

    The FIRST of all has a round more, which warms the caches.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for number in range(0 if first and not cold else 1, rounds + 1):
        for what, argv in argvs.items():
            if only and what not in only:
                continue
            if cold:
                drop_caches()
            elif number == 0 and what in SLOW:
                continue
            done = timed(argv)
            if done and number:
                found.setdefault(what, []).append(done)
    return {
        what: {
            "first line": statistics.median(one for one, _ in runs),
            "import": statistics.median(two for _, two in runs),
        }
        for what, runs in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", default="1,2,8,32")
    parser.add_argument("--ranks", default="1,4,8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--image", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--most", type=int, default=64)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    image = chosen.image or json.loads(on_testbed("hpcstack", "inspect", STACK, "--json"))["image"]
    tree = unpacked(image)
    only = [one for one in chosen.only.split(",") if one]
    rows: list[dict[str, object]] = []
    missed: list[str] = []
    for nodes in map(int, chosen.nodes.split(",")):
        for ranks in map(int, chosen.ranks.split(",")):
            if nodes * ranks > chosen.most:
                continue
            argvs = lines(image, tree, nodes, ranks, stack=not chosen.image)
            row = measure(argvs, chosen.rounds, chosen.cold, only, first=not rows)
            rows.append({"nodes": nodes, "ranks": ranks, "found": row})
            if not chosen.json:
                said = "; ".join(
                    f"{what} {one['first line']:.2f} ({one['import']:.2f})"
                    for what, one in row.items()
                )
                print(f"{nodes} x {ranks}: {said}", flush=True)
            missed += [] if chosen.cold or only else judge(nodes, ranks, row)
    if chosen.json:
        print(
            json.dumps(
                {"image": image, "cold": chosen.cold, "rows": rows, "missed": missed}, indent=1
            )
        )
    else:
        print("\n".join(missed) or "no bar was missed")
    sys.exit(1 if missed else 0)


def judge(nodes: int, ranks: int, row: dict[str, dict[str, float]]) -> list[str]:
    """The bars that ROW misses."""
    if "apptainer" not in row or "apptainer unpacked" not in row:
        return [f"MISSED at {nodes} x {ranks}: nothing was measured"]
    pairs = [
        ("pyxis mounts", "apptainer", "first line", 1.5),
        ("apptainer", "apptainer unpacked", "import", 1.3),
        ("pyxis mounts", "apptainer unpacked", "import", 1.3),
    ]
    out = []
    for one, other, what, bar in pairs:
        if one in row and other in row and row[one][what] > bar * row[other][what]:
            ratio = row[one][what] / row[other][what]
            out.append(
                f"MISSED at {nodes} x {ranks}: {what} of {one}, {ratio:.2f} times that of "
                f"{other} (bar {bar})"
            )
    return out


if __name__ == "__main__":
    main()
