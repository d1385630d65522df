"""What `hpcstack launch` adds to a hand-written `srun apptainer exec`, from 1 to 32 virtual nodes.

    HPCSTACK_TESTBED_NODES=32 ci/testbed up && ci/bench/launch [--nodes 1,2,4,8,16,32] [--rounds 7]
    [--json]

Both lines run `true` in the same image, alternating, as the testbed's ordinary user. Bars: the
median of what is added is under 0.25 s at every number of nodes, and a line through the medians
rises by less than 4 ms a node. Then how often the shared image is opened (by fanotify, which needs
root) and the registry asked, for each way of staging. All nodes share the cores of one machine, so
what each does at the same time adds up here, the mount of the folder too.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed_user import on_testbed

TESTBED = Path(os.environ.get("HPCSTACK_TESTBED", "/opt/hpcstack-testbed"))
STACK = "pytorch-24.11"
ADDED_S, SLOPE_S = 0.25, 0.004
FAN_CLASS_NOTIF, FAN_CLOEXEC, FAN_NONBLOCK, FAN_MARK_ADD, FAN_OPEN, AT_FDCWD = (
    0,
    1,
    2,
    1,
    0x20,
    -100,
)
EVENT = struct.Struct(
    "IBBHQii"
)  # fanotify(7): length, version, reserved, metadata's length, mask, descriptor, pid
# Runs on the testbed: one process times both lines, so that becoming that user is not in the times.
TIMED = """\
import json, subprocess, sys, time
lines, rounds = json.loads(sys.argv[1]), int(sys.argv[2])
out = {name: [] for name in lines}
for number in range(rounds + 1):
    for name, argv in lines.items():
        began = time.perf_counter()
        done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"{name}: {done.stderr}")
        if number:  # the first one warms the caches
            out[name].append(time.perf_counter() - began)
print(json.dumps(out))
"""


def timed(nodes: int, image: str, rounds: int) -> dict[str, list[float]]:
    lines = {
        "by hand": ["srun", "-N", str(nodes), "--ntasks-per-node=1", "apptainer", "exec", image, "true"],
        "hpcstack": ["hpcstack", "launch", STACK, "-N", str(nodes), "--ntasks-per-node=1", "--mode", "plain",
                     "--runtime", "apptainer", "--", "true"],
    }  # fmt: skip
    found: dict[str, list[float]] = json.loads(
        on_testbed("python3", "-c", TIMED, json.dumps(lines), str(rounds)).splitlines()[-1]
    )
    return found


@contextmanager
def opens(path: str) -> Iterator[list[int]]:
    """How many processes open PATH's file meanwhile: fanotify watches the inode, in whatever mount
    namespace.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.fanotify_init(FAN_CLASS_NOTIF | FAN_CLOEXEC | FAN_NONBLOCK, os.O_RDONLY)
    open_ = ctypes.c_uint64(FAN_OPEN)
    if (
        watch < 0
        or libc.fanotify_mark(watch, FAN_MARK_ADD, open_, ctypes.c_int(AT_FDCWD), path.encode()) < 0
    ):
        sys.exit(
            f"fanotify: {os.strerror(ctypes.get_errno())}: this part of the benchmark needs root"
        )
    count, done, seen = [0], threading.Event(), set()

    def read() -> None:
        while not done.wait(0.02):
            try:
                events = os.read(watch, 1 << 16)
            except BlockingIOError:
                continue
            for *_, descriptor, pid in EVENT.iter_unpack(events):
                os.close(descriptor)
                seen.add(pid)
                count[0] = len(seen)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield count
    finally:
        done.set()
        reader.join()
        os.close(watch)


def asked() -> int:
    """How many requests the registry has written down."""
    return (TESTBED / "log/registry.log").read_text(errors="replace").count('"GET /v2/')


def staged(nodes: int, image: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for how in ("none", "copy", "sbcast"):
        for folder in (TESTBED / "nodes").glob("*/tmp/hpcstack-staged-*"):
            subprocess.run(["rm", "-rf", str(folder)], check=True)
        for what in ("first", "again"):
            before = asked()
            with opens(image) as count:
                on_testbed("hpcstack", "launch", STACK, "-N", str(nodes), "--ntasks-per-node=2", "--mode", "plain",
                           "--stage", how, "--runtime", "apptainer", "--", "true")  # fmt: skip
            rows.append(
                {
                    "stage": how,
                    "launch": what,
                    "nodes": nodes,
                    "opens": count[0],
                    "registry": asked() - before,
                }
            )
    for folder in (TESTBED / "nodes").glob("*/tmp/hpcstack-staged-*"):
        subprocess.run(["rm", "-rf", str(folder)], check=True)
    return rows


def slope(points: list[tuple[int, float]]) -> float:
    """Of the line through POINTS with the least squares."""
    x, y = zip(*points, strict=True)
    return statistics.linear_regression(x, y).slope if len(points) > 1 else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", default="1,2,4,8,16,32")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    said = parser.parse_args()
    on_testbed("hpcstack", "build", STACK)
    plan = on_testbed(
        "hpcstack", "launch", STACK, "--dry-run", "--json", "--runtime", "apptainer", "--", "true"
    )
    image = str(
        json.loads(plan)["image"]
    )  # what is published, which need not be what was built last
    rows = []
    for nodes in map(int, said.nodes.split(",")):
        times = timed(nodes, image, said.rounds)
        pairs = [
            ours - theirs for ours, theirs in zip(times["hpcstack"], times["by hand"], strict=True)
        ]
        row = {name: statistics.median(one) for name, one in times.items()}
        rows.append(
            {
                "nodes": nodes,
                **row,
                "added": statistics.median(pairs),
                "from": min(pairs),
                "to": max(pairs),
            }
        )
        if not said.json:
            print(f"{nodes:3} nodes: by hand {row['by hand']:.2f} s, hpcstack {row['hpcstack']:.2f} s, added "
                  f"{rows[-1]['added']:.3f} s ({min(pairs):.3f} to {max(pairs):.3f})", flush=True)  # fmt: skip
    rises = slope([(int(row["nodes"]), row["added"]) for row in rows])
    reads = staged(min(8, max(int(row["nodes"]) for row in rows)), image)
    good = all(row["added"] < ADDED_S for row in rows) and rises < SLOPE_S
    if said.json:
        print(json.dumps({"rows": rows, "slope": rises, "reads": reads, "good": good}, indent=1))
    else:
        verdict = "good" if good else "OVER THE BAR"
        print(f"a node more adds {rises * 1000:.2f} ms (bar {SLOPE_S * 1000:.0f}); {verdict}")
        for one in reads:
            print(f"stage {one['stage']:6} {one['launch']}: {one['nodes']} nodes: processes that open the image "
                  f"{one['opens']}, requests to the registry {one['registry']}")  # fmt: skip
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
