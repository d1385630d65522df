"""Wrap a squashfs in a SIF, and take it out of one. Nothing is compressed again.

Layout and numbers: https://github.com/apptainer/sif (a primary system partition, squashfs, of one
architecture).

Apptainer reads and writes the format.

Tested in tests/integration/test_images.py and tests/integration/test_adopting.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from hpcstack.core.errors import BuildError, InputError
from hpcstack.core.files import copy_range
from hpcstack.core.outputs import new_file
from hpcstack.core.replacing import replace_file

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.process import Runner

SIF_SUFFIX = ".sif"
ARCHITECTURES = {"linux/amd64": "2", "linux/arm64": "4"}  # SIF's own numbers
# A partition (4), the primary system partition (2), with squashfs (1).
NEW_PARTITION = ("--datatype", "4", "--parttype", "2", "--partfs", "1", "--partarch")
# In what `apptainer sif list` and `apptainer sif info` print.
SYSTEM = re.compile(r"^(\d+)\s*\|.*\|FS \((.+)/\*System/", re.MULTILINE)
OFFSET = re.compile(r"Offset:\s*(\d+)")
SIZE = re.compile(r"Size:\s*(\d+)")
SQUASHFS = "Squashfs"


class SystemPartition(NamedTuple):
    """The system partition of a SIF: where its squashfs begins, and its bytes."""

    offset: int
    size: int


def find_system_partition(sif: Path, runner: Runner) -> SystemPartition:
    """Return where the squashfs of SIF lies. Raise InputError where it has none.

    Raise MissingToolError where there is no Apptainer.
    """
    listing = _ask_apptainer(["list"], sif, runner)
    system = SYSTEM.search(listing)
    if not system:
        raise InputError(f"{sif} has no system partition", "apptainer sif list shows what it has")
    if system[2] != SQUASHFS:
        raise InputError(
            f"the system partition of {sif} is {system[2]}, and no squashfs",
            "build it anew from its definition, without --encrypt",
        )
    about = _ask_apptainer(["info", system[1]], sif, runner)
    offset, size = OFFSET.search(about), SIZE.search(about)
    if not offset or not size:
        raise InputError(f"{sif}: apptainer sif info does not say where partition {system[1]} lies")
    return SystemPartition(int(offset[1]), int(size[1]))


def extract_squashfs(sif: Path, output: Path, runner: Runner) -> None:
    """Copy the squashfs of SIF to the file OUTPUT, byte by byte."""
    partition = find_system_partition(sif, runner)
    copy_range(sif, output, partition.offset, partition.size)


def _ask_apptainer(words: list[str], sif: Path, runner: Runner) -> str:
    """Return what `apptainer sif` answers to WORDS about SIF. InputError where it fails."""
    done = runner.output(["apptainer", "sif", *words, str(sif.absolute())])
    if done.status:
        said = next((line for line in reversed(done.tail) if "error" in line.lower()), "")
        raise InputError(
            f"{sif} cannot be read as a SIF: {said or f'apptainer ended with {done.status}'}",
            "is it whole? apptainer inspect shows what it is",
        )
    return done.stdout


def assemble_sif(
    image: Path, platform: str, sif: Path, runner: Runner, *, force: bool = False
) -> Path:
    """Write the file SIF around IMAGE, a squashfs for PLATFORM, and return its path.

    It is there only when it is whole. BuildError where Apptainer fails.
    """
    sif = new_file(sif, force=force)
    with replace_file(sif) as part:
        new = ["apptainer", "sif", "new", str(part)]
        options = [*NEW_PARTITION, ARCHITECTURES[platform], "--filename", "image"]
        add = ["apptainer", "sif", "add", *options, str(part), str(image)]
        for argv in (new, add):
            done = runner.output(argv, timeout=3600)
            if done.status:
                said = "\n".join(f"  < {line}" for line in done.tail[-5:])
                raise BuildError(
                    f"the SIF was not assembled\n  > {done.command()}  (exit {done.status})\n{said}"
                )
    return sif
