"""Where the data of a spliced image's new files go: behind the base's, only of files that are in
the image.

Blocks are taken as they are, and so are the fragments of a layer of which everything lives. Of
another layer all tails that live are packed anew, in the order of their names: what a later step
deleted is nowhere in the file then, and the bytes do not hang on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.squashfs.codec import Unreadable
from hpcstack.squashfs.inode import NONE, STORED

if TYPE_CHECKING:
    from hpcstack.squashfs.table import Rows
    from hpcstack.squashfs.tree import Leaf, Merged

KEPT = 16  # fragments that are kept uncompressed, of at most 1 MiB
Piece = tuple[int, int, int] | bytes  # (layer, start, size) of its file, or what is new


class Data:
    """`pieces` follow the base's data in this order. `blocks` says where (layer, start) of a file
    went, `tails` in which fragment, and where in it, a leaf's tail is, by number; `fragments` are
    the new ones, from number FIRST on.
    """

    def __init__(self, merged: Merged, first: int) -> None:
        self.merged, self.first = merged, first
        self.end = merged.base.super.inode_table
        self.pieces: list[Piece] = []
        self.blocks: dict[tuple[int, int], int] = {}
        self.tails: dict[int, tuple[int, int]] = {}
        self.fragments: list[tuple[int, int]] = []
        sizes: dict[tuple[int, int], int] = {}
        for leaf in sorted(merged.files, key=lambda one: (one.layer, one.inode.start)):
            key, size = (leaf.layer, leaf.inode.start), leaf.inode.stored
            if size and key not in self.blocks:
                self.blocks[key] = self._take(leaf.layer, leaf.inode.start, size)
                sizes[key] = size
            elif size and sizes[key] != size:
                raise Unreadable("two files of a layer share a part of their data")
        self._place_tails()

    def _take(self, layer: int, start: int, size: int) -> int:
        """SIZE bytes of a layer's file, as they are. Where they go."""
        last = self.pieces[-1] if self.pieces else b""
        if not isinstance(last, bytes) and last[0] == layer and last[1] + last[2] == start:
            self.pieces[-1] = layer, last[1], last[2] + size
        else:
            self.pieces.append((layer, start, size))
        self.end += size
        return self.end - size

    def _place_tails(self) -> None:
        known = [layer.fragments() for layer in self.merged.layers]
        torn = {layer for (layer, _), leaf in self.merged.leaves.items() if not leaf.links}
        taken: dict[tuple[int, int], int] = {}  # {(layer, its fragment): ours}
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
                taken[layer, number] = self._fragment(
                    self._take(layer, start, size & ~STORED), size
                )
            self.tails[leaf.number] = taken[layer, number], leaf.inode.offset
        self._pack(rest, known)

    def _fragment(self, start: int, size: int) -> int:
        self.fragments.append((start, size))
        return self.first + len(self.fragments) - 1

    def _pack(self, rest: list[Leaf], known: list[Rows]) -> None:
        """The tails of REST in new fragments; those that two files share are one."""
        whole = self.merged.base.super.block_size
        full = bytearray()
        waiting: list[tuple[Leaf, int]] = []
        placed: dict[
            tuple[int, int, int, int], Leaf
        ] = {}  # {(layer, fragment, offset, length): who came first}
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
                self._close(full)
                full = bytearray()
            self.tails[leaf.number] = self.first + len(self.fragments), len(full)
            full += tail
        if full:
            self._close(full)
        for leaf, number in waiting:
            self.tails[leaf.number] = self.tails[number]

    def _close(self, data: bytearray) -> None:
        packed = self.merged.base.codec.pack(bytes(data))
        stored = packed if len(packed) < len(data) else bytes(data)
        self._fragment(self.end, len(stored) | (0 if len(packed) < len(data) else STORED))
        self.pieces.append(stored)
        self.end += len(stored)
