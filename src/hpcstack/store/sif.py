"""A SIF around a squashfs that is there: nothing is compressed again.

Layout and numbers: https://github.com/apptainer/sif (a primary system partition, squashfs, of one
architecture).
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
PARTITION = ("--datatype", "4", "--parttype", "2", "--partfs", "1", "--partarch")


def assemble_sif(
    image: Path, platform: str, sif: Path, runner: Runner, *, force: bool = False
) -> Path:
    """IMAGE (a squashfs for PLATFORM) as the file SIF, there only when it is whole."""
    sif = new_file(sif, force=force)
    with replace_file(sif, shared=False) as part:
        add = [
            "apptainer",
            "sif",
            "add",
            *PARTITION,
            ARCHITECTURES[platform],
            "--filename",
            "image",
            str(part),
            str(image),
        ]
        for argv in (["apptainer", "sif", "new", str(part)], add):
            done = runner.output(argv, timeout=3600)
            if done.status:
                said = "\n".join(f"  < {line}" for line in done.tail[-5:])
                raise BuildError(
                    f"the SIF was not assembled\n  > {done.command()}  (exit {done.status})\n{said}"
                )
    return sif
