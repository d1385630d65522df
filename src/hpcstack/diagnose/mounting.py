"""The doctor on mounting: measure how fast a node mounts and reads an image, by each program.

squashfuse reads with one thread, squashfuse_ll with many. Enroot starts the program that is named
`squashfuse`, whichever of them that is:
https://github.com/apptainer/apptainer/issues/665, https://github.com/NERSC/podman-hpc/issues/156.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.diagnose.advice import Finding, report_fine, report_skipped, report_wrong
from hpcstack.render.template import read_data_file
from hpcstack.slurm.client import Client
from hpcstack.store.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress
    from hpcstack.site.load import Site

# what on-node/read-image.sh prints: a program, ms to mount, ms to read, bytes that were read
LINE = re.compile(r"^([a-z_]+) (\d+) (\d+) (\d+)$", re.MULTILINE)
READERS = 8  # as many as a node has GPUs
SLOWER = 1.3  # times: less is noise
LIMIT_S = 290
NOW = ("--immediate=30", "--time=5")  # nobody should wait for a node that is busy


@dataclass(frozen=True)
class MountSpeed:
    """How fast one program is."""

    program: str
    seconds: float  # until the image is mounted
    rate: float  # MB/s that READERS together read of it at once


@dataclass(frozen=True)
class MountSpeeds:
    """How fast each program is that could mount and read the image."""

    programs: tuple[MountSpeed, ...]
    enroot: bool  # whether the node has Enroot
    why: str = ""  # why nothing was measured

    def of(self, program: str) -> MountSpeed | None:
        """Return how fast PROGRAM is; None where it was not measured."""
        return next((one for one in self.programs if one.program == program), None)


def find_smallest_image(site: Site) -> tuple[Path, int] | None:
    """Return the smallest image of the store, and its bytes; None where there is no image."""
    images = open_store(site).images()
    smallest = min(images, key=lambda one: one.size, default=None)
    if smallest is None:
        return None
    return smallest.image, smallest.size


def measure_mounting(
    runner: Runner, site: Site, nodes: list[str], progress: Progress
) -> MountSpeeds | None:
    """Measure on one of the nodes that srun's words NODES name, if one is free.

    The store's smallest image is mounted. None where nothing is to be measured: without an image,
    without a node, and beside a job, which it would disturb.
    """
    smallest = find_smallest_image(site)
    if not smallest or not nodes or "--jobid" in nodes:
        return None
    image, _ = smallest
    progress("measuring how a node mounts and reads an image")
    script = read_data_file("launchers", "on-node/read-image.sh")
    words = [word for word in nodes if not word.startswith("--time=")]
    command = ["/bin/sh", "-c", script, "read-image", str(image), str(READERS)]
    done = Client(runner).run_step([*words, *NOW, "--nodes=1", "--ntasks=1"], command, LIMIT_S)
    if done.status:
        why = " ".join(done.tail[-1:]) or f"srun ended with {done.status}"
        return MountSpeeds((), enroot=False, why=why)

    found = []
    for one in LINE.finditer(done.stdout):
        mounting_ms, reading_ms, read_bytes = int(one[2]), int(one[3]), int(one[4])
        rate = read_bytes / 1e3 / max(1, reading_ms)  # bytes a millisecond / 1,000 are MB/s
        found.append(MountSpeed(one[1], mounting_ms / 1e3, rate))
    why = "" if found else "no program on the node could mount and read it"
    return MountSpeeds(tuple(found), "enroot" in done.stdout.split("\n"), why)


def look_at_mounting(measured: MountSpeeds | None, where: str) -> Iterator[Finding]:
    """Report what was MEASURED; a warning where Enroot starts the slower program."""
    if not measured:
        return
    if not measured.programs:
        yield report_skipped("mounting", where, f"not measured: {measured.why}")
        return

    said = "; ".join(
        f"{one.program} {one.seconds:.2f} s, {one.rate:.0f} MB/s" for one in measured.programs
    )
    yield report_fine("mounting", where, f"an image on a node, {READERS} read at once: {said}")

    slow = measured.of("squashfuse")
    fast = measured.of("squashfuse_ll")
    if not measured.enroot or not slow:
        return
    if not fast:
        yield report_wrong(
            "mounting.one-thread", where, "Enroot mounts by squashfuse, which reads with one thread"
        )
    elif fast.rate > SLOWER * slow.rate:
        said = f"Enroot mounts by squashfuse: {slow.rate:.0f} MB/s, where squashfuse_ll reads "
        yield report_wrong("mounting.squashfuse", where, f"{said}{fast.rate:.0f}")
