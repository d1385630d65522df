"""Wraps an existing squashfs in a SIF. Nothing is compressed again.

Layout and numbers: https://github.com/apptainer/sif (a primary system partition, squashfs, of one
architecture).

Tested in tests/integration/test_images.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.core.errors import BuildError
from hpcstack.core.outputs import new_file
from hpcstack.core.replacing import replace_file

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.core.process import Runner

ARCHITECTURES = {"linux/amd64": "2", "linux/arm64": "4"}  # SIF's own numbers
# A partition (4), the primary system partition (2), with squashfs (1).
PARTITION = ("--datatype", "4", "--parttype", "2", "--partfs", "1", "--partarch")


def assemble_sif(
    image: Path, platform: str, sif: Path, runner: Runner, *, force: bool = False
) -> Path:
    """Write the file SIF around IMAGE, a squashfs for PLATFORM, and return its path.

    It is there only when it is whole. BuildError where Apptainer fails.
    """
    sif = new_file(sif, force=force)
    with replace_file(sif) as part:
        new = ["apptainer", "sif", "new", str(part)]
        options = [*PARTITION, ARCHITECTURES[platform], "--filename", "image"]
        add = ["apptainer", "sif", "add", *options, str(part), str(image)]
        for argv in (new, add):
            done = runner.output(argv, timeout=3600)
            if done.status:
                said = "\n".join(f"  < {line}" for line in done.tail[-5:])
                raise BuildError(
                    f"the SIF was not assembled\n  > {done.command()}  (exit {done.status})\n{said}"
                )
    return sif
