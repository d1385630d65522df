"""A base, layers of changes made in real overlays over it, and what every reader says of the
spliced image.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hpcstack.squashfs.splice import Result, splice_image
from support import trees

TIME = 1704067200
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--propagation",
             "private", "sh", "-euc")  # fmt: skip
WALK = f"{sys.executable} {trees.__file__}"
# Not -always-use-fragments: now and then (1 of 85 here) mksquashfs 4.5.1 writes a fragment then
# that unsquashfs cannot read either.
PACKED: dict[str, tuple[str, ...]] = {
    "gzip": ("-comp", "gzip"),
    "xz": ("-comp", "xz"),
    "lz4": ("-comp", "lz4"),
    "lzo": ("-comp", "lzo"),
    "zstd": ("-comp", "zstd", "-Xcompression-level", "1"),
    "small blocks": ("-comp", "zstd", "-b", "4096"),
    "large blocks": ("-comp", "zstd", "-b", "1048576"),
    "nothing compressed": ("-comp", "gzip", "-noI", "-noD", "-noF", "-noX"),
    "no fragments": ("-comp", "zstd", "-no-fragments"),
    "no export table": ("-comp", "zstd", "-no-exports"),
    "no attributes": ("-comp", "zstd", "-no-xattrs"),
}
Listing = dict[str, list[object]]


def need_overlay() -> None:
    """Skipped, or a failure where it is required, without overlays and squashfuse for ordinary
    users.
    """
    done = subprocess.run([*NAMESPACE, "test -r /dev/fuse && command -v squashfuse_ll && mkdir -p /tmp && "
                           "mount -t tmpfs none /mnt && cd /mnt && mkdir a b c d && "
                           "mount -t overlay none -o userxattr,lowerdir=a,upperdir=b,workdir=c d"],
                          capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode:
        why = f"no overlay over squashfuse here: {done.stderr.strip()}"
        if "squashfs" in os.environ.get("HPCSTACK_REQUIRE", "").split(","):
            pytest.fail(why)
        pytest.skip(why)


def run(script: str, folder: Path) -> str:
    done = subprocess.run(
        [*NAMESPACE, script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{script}\n{done.stderr}"
    return done.stdout


@dataclass
class Case:
    """In FOLDER: base.sqsh of the folder base, one layer-N.sqsh a change, and what they are
    together (`expected`).
    """

    folder: Path
    words: tuple[str, ...] = PACKED["zstd"]
    block: str = "131072"
    layers: list[Path] = field(default_factory=list)
    uppers: list[str] = field(default_factory=list)
    expected: Listing = field(default_factory=dict)

    def pack(self, source: str, output: str) -> Path:
        """The folder SOURCE as OUTPUT, as the base is packed."""
        path = self.folder / output
        path.unlink(missing_ok=True)
        layer = [*self.words] if "-b" in self.words else [*self.words, "-b", self.block]
        if output != "base.sqsh":  # an overlay's marks are attributes
            layer = [word for word in layer if word != "-no-xattrs"]
        subprocess.run(["mksquashfs", source, str(path), "-noappend", "-quiet", "-no-progress", "-mkfs-time", "0",
                        "-all-root", *layer], cwd=self.folder, check=True, capture_output=True)  # fmt: skip
        return path

    def make_base(self, seed: int, count: int) -> None:
        (self.folder / "base").mkdir()
        trees.change(self.folder / "base", seed, count)
        self.pack("base", "base.sqsh")

    def change(self, command: str, *, look: bool = True) -> None:
        """COMMAND in the tree as it is so far (its folder), as a layer of its own. `expected` is
        the tree then, if one wants to LOOK at it.
        """
        number = len(self.uppers)
        upper = f"upper-{number}"
        for name in ("lower", "merged", upper, f"work-{number}"):
            (self.folder / name).mkdir(exist_ok=True)
        lower = ":".join([*reversed(self.uppers), "lower"])
        said = run(
            f"squashfuse_ll base.sqsh lower; mount -t overlay overlay "
            f"-o userxattr,lowerdir={lower},upperdir={upper},workdir=work-{number} merged; "
            f"(cd merged; {command}) >&2; {f'{WALK} list merged' if look else 'echo {}'}",
            self.folder,
        )
        self.uppers.append(upper)
        self.layers.append(self.pack(upper, f"layer-{number}.sqsh"))
        self.expected = self._linked(json.loads(said)) if look else {}

    def change_by(self, seed: int, count: int) -> None:
        self.change(f"{WALK} change . {seed} {count}")

    def _linked(self, said: Listing) -> Listing:
        """SAID, with what is one file: an overlay takes names of a file of its lower folder for
        files of their own.
        """
        bodies = [trees.listing(self.folder / name) for name in [*reversed(self.uppers), "base"]]
        out = {}
        for path, about in said.items():
            found = next(number for number, body in enumerate(bodies) if path in body)
            out[path] = [*about[:-1], f"{found} {bodies[found][path][-1]}"]
        return grouped(out)

    def splice(self, name: str = "out.sqsh") -> Result:
        return splice_image(
            self.folder / "base.sqsh", self.layers, self.folder / name, TIME, always=True
        )


def grouped(listing: Listing) -> Listing:
    """LISTING, in which names of one file say the first of them."""
    first: dict[object, str] = {}
    return {
        path: [*about[:-1], first.setdefault(about[-1], path)]
        for path, about in sorted(listing.items())
    }


def mounted_by(tool: str, image: Path) -> Listing:
    """What IMAGE holds, by a mount of TOOL's."""
    (image.parent / "mounted").mkdir(exist_ok=True)
    listing: Listing = json.loads(run(f"{tool} {image} mounted; {WALK} list mounted", image.parent))
    return grouped(listing)


def unpacked_by(tool: str, image: Path) -> Listing:
    """What IMAGE holds, unpacked by TOOL."""
    target = image.parent / "unpacked"
    shutil.rmtree(target, ignore_errors=True)
    run(f"{tool} -quiet -no-progress -dest {target} {image} >&2", image.parent)
    listing: Listing = json.loads(run(f"{WALK} list {target}", image.parent))
    return grouped(listing)


def without_links(listing: Listing) -> Listing:
    """For readers that number files by themselves."""
    return {path: about[:-1] for path, about in listing.items()}


def judge(image: Path, expected: Listing) -> list[str]:
    """Every reader that is here says that IMAGE is what is EXPECTED; which they were.
    $HPCSTACK_UNSQUASHFS: more of them.
    """
    judges = ["squashfuse", "squashfuse_ll"]
    assert without_links(mounted_by("squashfuse", image)) == without_links(expected)
    assert mounted_by("squashfuse_ll", image) == expected
    for tool in ["unsquashfs", *filter(None, os.environ.get("HPCSTACK_UNSQUASHFS", "").split(":"))]:
        assert unpacked_by(tool, image) == expected, tool
        judges.append(tool)
    if os.geteuid() == 0 and (kernel := _kernel(image)) is not None:
        assert kernel == expected, "kernel"
        judges.append("kernel")
    return judges


def _kernel(image: Path) -> Listing | None:
    """What the kernel says, as root; None where there is no loop device."""
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-euc",
         f"mount -o loop,ro {image} mounted; {WALK} list mounted"],
        cwd=image.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode and "loop" in done.stderr:
        return None
    assert done.returncode == 0, done.stderr
    listing: Listing = json.loads(done.stdout)
    return grouped(listing)
