"""Place the data of a spliced image's new files behind the base's data.

Only files that are in the image count. Their blocks are taken over compressed, as they are. The end
of a file, its tail, shares a compressed fragment with other tails. The fragments of a layer are
taken over, too, if all its files are in the image. If a later layer has deleted some of them, the
other tails are packed anew, in the order of their names: so the deleted data are nowhere in the
file, and do not influence its bytes.

Tested in tests/unit/squashfs/test_splice.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.inode import NONE, STORED

if TYPE_CHECKING:
    from hpcstack.squashfs.table import Rows
    from hpcstack.squashfs.tree import Leaf, Merged

KEPT = 16  # uncompressed fragments in memory, of at most 1 MiB each
Piece = tuple[int, int, int] | bytes  # (layer, start in its file, size), or bytes that are new


class Data:
    """The new data of MERGED, whose new fragments are numbered from FIRST on."""

    def __init__(self, merged: Merged, first: int) -> None:
        self.merged, self.first = merged, first
        self.end = merged.base.super.inode_table  # where the next piece goes
        self.pieces: list[Piece] = []  # what follows the base's data, in this order
        self.blocks: dict[tuple[int, int], int] = {}  # (layer, start in it): start in the image
        self.tails: dict[int, tuple[int, int]] = {}  # leaf's number: (fragment, offset in it)
        self.fragments: list[tuple[int, int]] = []  # (start, size) of the new ones

        sizes: dict[tuple[int, int], int] = {}
        for leaf in sorted(merged.files, key=lambda one: (one.layer, one.inode.start)):
            key = (leaf.layer, leaf.inode.start)
            size = leaf.inode.stored
            if size and key not in self.blocks:  # files with the same content share their data
                self.blocks[key] = self._take(leaf.layer, leaf.inode.start, size)
                sizes[key] = size
            elif size and sizes[key] != size:
                raise Unreadable("two files of a layer share a part of their data")
        self._place_tails()

    def _take(self, layer: int, start: int, size: int) -> int:
        """Take over SIZE bytes of a layer, from START on. Return where they go in the image."""
        last = self.pieces[-1] if self.pieces else b""
        if not isinstance(last, bytes) and last[0] == layer and last[1] + last[2] == start:
            self.pieces[-1] = layer, last[1], last[2] + size  # one longer piece: fewer copies
        else:
            self.pieces.append((layer, start, size))
        self.end += size
        return self.end - size

    def _place_tails(self) -> None:
        """Find a fragment for the tail of each file: its layer's own, or a new one."""
        known = [layer.fragments() for layer in self.merged.layers]
        # Layers of which a later one has deleted or replaced something.
        torn = {layer for (layer, _), leaf in self.merged.leaves.items() if not leaf.links}
        taken: dict[tuple[int, int], int] = {}  # {(layer, its fragment): the image's fragment}
        rest: list[Leaf] = []
        for leaf in self.merged.files:
            layer, number = leaf.layer, leaf.inode.fragment
            if number == NONE:
                continue
            if number >= len(known[layer]):
                raise Unreadable("a file's tail is in a fragment that is not there")
            if layer in torn:
                rest.append(leaf)
                continue
            if (layer, number) not in taken:
                start, size, _ = known[layer][number]
                place = self._take(layer, start, size & ~STORED)
                taken[layer, number] = self._add_fragment(place, size)
            self.tails[leaf.number] = taken[layer, number], leaf.inode.offset
        self._pack(rest, known)

    def _add_fragment(self, start: int, size: int) -> int:
        """Add a fragment that lies at START, with SIZE as a data block's. Return its number."""
        self.fragments.append((start, size))
        return self.first + len(self.fragments) - 1

    def _pack(self, rest: list[Leaf], known: list[Rows]) -> None:
        """Pack the tails of REST into new fragments; a tail that files share, only once.

        KNOWN are the fragments of each layer.
        """
        whole = self.merged.base.super.block_size
        full = bytearray()  # the new fragment that is being filled
        waiting: list[tuple[Leaf, int]] = []  # (file, number of the file whose tail it shares)
        placed: dict[tuple[int, int, int, int], Leaf] = {}  # {tail's place in its layer: first}
        expanded: dict[tuple[int, int], bytes] = {}
        for leaf in rest:
            inode, length = leaf.inode, leaf.inode.size % whole
            key = leaf.layer, inode.fragment, inode.offset, length
            if key in placed:
                waiting.append((leaf, placed[key].number))
                continue
            placed[key] = leaf

            if key[:2] not in expanded:
                if len(expanded) > KEPT:
                    expanded.clear()
                start, size, _ = known[leaf.layer][inode.fragment]
                expanded[key[:2]] = self.merged.layers[leaf.layer].fragment(start, size)
            tail = expanded[key[:2]][inode.offset : inode.offset + length]
            if len(tail) < length:
                raise Unreadable("a file's tail reaches beyond its fragment")

            if len(full) + length > whole:
                self._write_fragment(full)
                full = bytearray()
            self.tails[leaf.number] = self.first + len(self.fragments), len(full)
            full += tail

        if full:
            self._write_fragment(full)
        for leaf, number in waiting:
            self.tails[leaf.number] = self.tails[number]

    def _write_fragment(self, data: bytearray) -> None:
        """Add DATA as a new fragment, compressed if that makes it smaller."""
        packed = self.merged.base.codec.pack(bytes(data))
        if len(packed) < len(data):
            self._add_fragment(self.end, len(packed))
        else:
            packed = bytes(data)
            self._add_fragment(self.end, len(packed) | STORED)
        self.pieces.append(packed)
        self.end += len(packed)
