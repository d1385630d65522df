"""Packers: a tar on their input becomes a squashfs. One visible table, the first that is there is
taken.

zstd at level 1: a base of 1.2 GB packs in a fifth of the time that gzip takes, into about the same
size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstack.core.errors import BuildError, MissingToolError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcstack.core.process import Runner

NG = {"zstd": ("zstd", "level=1"), "gzip": ("gzip", ""), "xz": ("xz", ""), "lz4": ("lz4", "")}
SQUASH = {
    "zstd": ("-comp", "zstd", "-Xcompression-level", "1"),
    "gzip": ("-comp", "gzip"),
    "xz": ("-comp", "xz"),
    "lz4": ("-comp", "lz4"),
}
READERS = {"unsquashfs": ("unsquashfs", "-lln"), "rdsquashfs": ("rdsquashfs", "--describe")}
OWN_TIMES = (
    "env",
    "-u",
    "SOURCE_DATE_EPOCH",
)  # mksquashfs takes no times beside it, and tar2sqfs takes its own from it
MEMORY = "192M"  # mksquashfs takes a quarter of the machine's by default


@dataclass(frozen=True)
class PackedAs:
    """How an image is packed: its compression, and the bytes that it may become at most (0: no
    bound).
    """

    compression: str
    most: int = 0

    def bounded(self, has: Callable[[str], bool]) -> list[str]:
        """What a packer is started by, so that the kernel ends it where it writes more."""
        return (
            ["prlimit", "--core=0", f"--fsize={self.most}", "--"]
            if self.most and has("prlimit")
            else []
        )


def make_tar2sqfs_command(compression: str, output: Path, jobs: int) -> list[str]:
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
    """Needs squashfs-tools 4.5, which reads tar."""
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


ROOTLESS = {"mksquashfs"}  # refuses a tar whose member is the root: that has mode 755 then
PACKERS: dict[str, Callable[[str, Path, int], list[str]]] = {
    "tar2sqfs": make_tar2sqfs_command,
    "mksquashfs": make_mksquashfs_command,
}


def pack_argv(has: Callable[[str], bool], compression: str, output: Path, jobs: int) -> list[str]:
    """The argv of the first packer that is there."""
    for name, argv in PACKERS.items():
        if has(name):
            return argv(compression, output, jobs)
    raise MissingToolError(
        "no packer is installed: tar2sqfs or mksquashfs", "install squashfs-tools-ng"
    )


def read_back(image: Path, runner: Runner) -> None:
    """BuildError unless IMAGE, a squashfs, can be read again: every folder and every inode of it."""
    argv = READERS["unsquashfs" if runner.has("unsquashfs") else "rdsquashfs"]
    try:
        with runner.read([*argv, str(image)]) as pipe:
            while pipe.read(1 << 20):
                pass
    except BuildError as error:
        raise BuildError(
            f"what was packed cannot be read back: {error.message}", "is the disk damaged?"
        ) from None
