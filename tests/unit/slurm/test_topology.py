"""Blocks of nodes, as Slurm prints them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcstack.slurm.topology import Block, read_blocks

# As Slurm 24.11.5 printed it on 36 virtual nodes, and with what src/plugins/topology/block adds for
# BlockSizes=2,4
BLOCKS = """\
BlockName=rack1 BlockIndex=0 Nodes=node[1-2],node9 BlockSize=2
BlockName=rack2 BlockIndex=1 Nodes=node[3-5] BlockSize=2
AggregatedBlock=rack[1-2] BlockIndex=2 Nodes=node[1-5,9] BlockSize=4
"""
# As 23.11 prints them
OLD = "BlockName=rack1 BlockIndex=0 Nodes=node[1-2]\n"
TREE = "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=node[1-2]\n"


def test_base_blocks_are_read_and_nothing_else() -> None:
    assert read_blocks(BLOCKS) == [
        Block(frozenset({"node1", "node2", "node9"}), 2),
        Block(frozenset({"node3", "node4", "node5"}), 2),
    ]
    assert read_blocks(OLD) == read_blocks(TREE) == read_blocks("") == []


@given(st.text())
def test_no_answer_is_too_strange(text: str) -> None:
    read_blocks(text)
