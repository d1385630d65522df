"""The programs that pack a tar from their standard input into a squashfs.

They are in one table, PACKERS; the first one that is installed is used. zstd runs at level 1: a
base of 1.2 GB packs in a fifth of the time that gzip takes, into about the same size.

Tested in tests/unit/oci/test_importer.py and tests/hostile/test_layers.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import BuildError, MissingToolError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcstack.core.process import Runner

# The options of tar2sqfs (squashfs-tools-ng) and of mksquashfs for each compression.
NG = {"zstd": ("zstd", "level=1"), "gzip": ("gzip", ""), "xz": ("xz", ""), "lz4": ("lz4", "")}
SQUASH = {
    "zstd": ("-comp", "zstd", "-Xcompression-level", "1"),
    "gzip": ("-comp", "gzip"),
    "xz": ("-comp", "xz"),
    "lz4": ("-comp", "lz4"),
}
READERS = {"unsquashfs": ("unsquashfs", "-lln"), "rdsquashfs": ("rdsquashfs", "--describe")}
# Packers run without this variable: with it, mksquashfs refuses options for times, and tar2sqfs
# takes its default times from it.
OWN_TIMES = ("env", "-u", "SOURCE_DATE_EPOCH")
MEMORY = "192M"  # for mksquashfs, which takes a quarter of the machine's memory by default


@dataclass(frozen=True)
class PackedAs:
    """How an image is packed."""

    compression: str
    most: int = 0  # bytes that it may become; 0 for no limit

    def bounded(self, has: Callable[[str], bool]) -> list[str]:
        """Return words to put before a packer's argv, so that the kernel stops it at `most` bytes.

        They are empty if there is no limit, or no prlimit on this machine, which HAS tells.
        """
        if self.most and has("prlimit"):
            return ["prlimit", "--core=0", f"--fsize={self.most}", "--"]
        return []


def make_tar2sqfs_command(compression: str, output: Path, jobs: int) -> list[str]:
    """Return the argv of tar2sqfs, which packs into OUTPUT with JOBS threads."""
    name, extra = NG[compression]
    more = ["--comp-extra", extra] if extra else []
    return [
        "tar2sqfs",
        "--quiet",
        "--force",
        "--no-skip",
        "--compressor",
        name,
        *more,
        "--num-jobs",
        str(jobs),
        str(output),
    ]


def make_mksquashfs_command(compression: str, output: Path, jobs: int) -> list[str]:
    """Return the argv of mksquashfs, which reads tar since squashfs-tools 4.5."""
    return [
        "mksquashfs",
        "-",
        str(output),
        "-tar",
        "-noappend",
        "-quiet",
        "-no-progress",
        "-mem",
        MEMORY,
        "-processors",
        str(jobs),
        "-mkfs-time",
        "0",
        "-root-time",
        "0",
        "-root-mode",
        "755",
        "-root-uid",
        "0",
        "-root-gid",
        "0",
        *SQUASH[compression],
    ]


ROOTLESS = {"mksquashfs"}  # refuse a tar with the root as a member; the root's mode is an option
PACKERS: dict[str, Callable[[str, Path, int], list[str]]] = {
    "tar2sqfs": make_tar2sqfs_command,
    "mksquashfs": make_mksquashfs_command,
}


def pack_argv(has: Callable[[str], bool], compression: str, output: Path, jobs: int) -> list[str]:
    """Return the argv of the first packer that is installed, which HAS tells.

    Raise MissingToolError if there is none.
    """
    for name, argv in PACKERS.items():
        if has(name):
            return argv(compression, output, jobs)
    raise MissingToolError(
        "no packer is installed: tar2sqfs or mksquashfs",
        "install squashfs-tools-ng",
        page="choose-an-engine",
    )


def read_back(image: Path, runner: Runner) -> None:
    """Read every folder and every inode of the squashfs IMAGE. Raise BuildError if that fails."""
    argv = READERS["unsquashfs" if runner.has("unsquashfs") else "rdsquashfs"]
    try:
        with runner.read([*argv, str(image)]) as pipe:
            while pipe.read(1 << 20):
                pass
    except BuildError as error:
        raise BuildError(
            f"what was packed cannot be read back: {error.message}",
            "check whether the disk is damaged, and try again",
        ) from None
