"""How fast a node mounts and reads an image, by each program that it has: measured, since it cannot
be known.

squashfuse reads with one thread, squashfuse_ll with many; Enroot starts `squashfuse`, whatever that
is: https://github.com/apptainer/apptainer/issues/665,
https://github.com/NERSC/podman-hpc/issues/156.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.diagnose.advice import Finding, report_fine, report_skipped, report_wrong
from hpcstack.render.template import read_data_file
from hpcstack.store.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress
    from hpcstack.site.load import Site

LINE = re.compile(r"^([a-z_]+) (\d+) (\d+) (\d+)$", re.MULTILINE)
READERS = 8  # as many as a node has GPUs
SLOWER = 1.3  # times: less is noise
LIMIT_S = 290
NOW = ("--immediate=30", "--time=5")  # whoever asks waits for no busy node


@dataclass(frozen=True)
class MountSpeed:
    """What one program takes: seconds until the image is there, and MB/s of what READERS read of it
    at once.
    """

    program: str
    seconds: float
    rate: float


@dataclass(frozen=True)
class MountSpeeds:
    """Every program that could, and whether Enroot is there."""

    programs: tuple[MountSpeed, ...]
    enroot: bool
    why: str = ""  # nothing was measured

    def of(self, program: str) -> MountSpeed | None:
        return next((one for one in self.programs if one.program == program), None)


def smallest_image(site: Site) -> tuple[Path, int] | None:
    """The smallest image of the store, and its bytes."""
    images = sorted(open_store(site).images(), key=lambda one: one.size)
    return (images[0].image, images[0].size) if images else None


def measure_mounting(
    runner: Runner, site: Site, nodes: list[str], progress: Progress
) -> MountSpeeds | None:
    """With the smallest image of the store, on a node that srun's words NODES name, if it is free;
    None where nothing is to be measured: without an image, without a node, and beside a job, which
    it would disturb.
    """
    image = smallest_image(site)
    if not image or not nodes or "--jobid" in nodes:
        return None
    progress("measuring how a node mounts and reads an image")
    words = [word for word in nodes if not word.startswith("--time=")]
    argv = ["srun", *words, *NOW, "--nodes=1", "--ntasks=1", "/bin/sh", "-c"]
    argv += [
        read_data_file("launchers", "on-node/read-image.sh"),
        "read-image",
        str(image[0]),
        str(READERS),
    ]
    done = runner.output(argv, timeout=LIMIT_S)
    if done.status:
        return MountSpeeds(
            (), enroot=False, why=" ".join(done.tail[-1:]) or f"srun ended with {done.status}"
        )
    found = [
        MountSpeed(one[1], int(one[2]) / 1e3, int(one[4]) / 1e3 / max(1, int(one[3])))
        for one in LINE.finditer(done.stdout)
    ]
    why = "" if found else "no program on the node could mount and read it"
    return MountSpeeds(tuple(found), "enroot" in done.stdout.split("\n"), why)


def look_at_mounting(measured: MountSpeeds | None, where: str) -> Iterator[Finding]:
    """What was MEASURED of each program; a warning where Enroot starts the slower one."""
    if not measured:
        return
    if not measured.programs:
        yield report_skipped("mounting", where, f"not measured: {measured.why}")
        return
    said = "; ".join(
        f"{one.program} {one.seconds:.2f} s, {one.rate:.0f} MB/s" for one in measured.programs
    )
    yield report_fine("mounting", where, f"an image on a node, {READERS} read at once: {said}")
    slow, fast = measured.of("squashfuse"), measured.of("squashfuse_ll")
    if measured.enroot and slow and not fast:
        yield report_wrong(
            "mounting.one-thread", where, "Enroot mounts by squashfuse, which reads with one thread"
        )
    elif measured.enroot and slow and fast and fast.rate > SLOWER * slow.rate:
        yield report_wrong(
            "mounting.squashfuse",
            where,
            (
                f"Enroot mounts by squashfuse: {slow.rate:.0f} MB/s, where squashfuse_ll reads "
                f"{fast.rate:.0f}"
            ),
        )
