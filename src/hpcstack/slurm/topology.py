"""Blocks of nodes, such as NVLink domains, as Slurm's topology/block has them. Pure.

`client` asks for the text that `scontrol show topology` prints
(https://slurm.schedmd.com/topology.html#block).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpcstack.slurm.nodelist import expand_nodelist

BLOCK = re.compile(r"^BlockName=\S+ BlockIndex=\d+ Nodes=(\S+) BlockSize=(\d+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """The nodes that are in a block, and how many of them Slurm plans with (BlockSizes).

    A block may have more nodes than that: 18, say, of which two stand by.
    """

    nodes: frozenset[str]
    size: int


def read_blocks(text: str) -> list[Block]:
    """Return the base blocks in TEXT, of `scontrol show topology`; none for other topologies.

    Raise NodelistError for nodes that are not understood.
    Slurm prints BlockSize from 24.11 on. Of an older one nothing is returned: 23.11 has blocks and no
    --segment, and which of the two 24.05 is cannot be seen.
    """
    out = []
    for nodelist, size in BLOCK.findall(text):
        nodes = frozenset(expand_nodelist(nodelist))
        if nodes:
            out.append(Block(nodes, int(size)))
    return out
