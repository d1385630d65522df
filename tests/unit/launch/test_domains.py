"""How a job is shared out among NVLink domains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.core.process import Runner
from hpcstack.launch.domains import Domains, Placement, choose_segment, place_nodes
from hpcstack.launch.resources import Resources
from hpcstack.site.model import Gpus, NodeType
from hpcstack.slurm.client import Client
from hpcstack.slurm.options import SlurmOptions
from hpcstack.slurm.topology import Block

NVL72 = NodeType(gpus=Gpus(model="GB200", count=4, nvlink=True, domain_nodes=18))


def make_blocks(*sizes: int, planned: int = 18) -> list[Block]:
    return [
        Block(frozenset(f"r{rack}n{node}" for node in range(size)), planned)
        for rack, size in enumerate(sizes)
    ]


class Slurm(Client):
    """A Slurm with BLOCKS, whose partition has all of their nodes, and `beside` that are in none."""

    def __init__(self, blocks: list[Block], beside: int = 0) -> None:
        super().__init__(Runner())
        self.blocks = blocks
        self.nodes = frozenset[str]().union(*(block.nodes for block in blocks))
        self.nodes |= {f"other{number}" for number in range(beside)}

    def query_blocks(self) -> list[Block]:
        return self.blocks

    def query_partition_nodes(self, partition: str) -> frozenset[str]:
        return self.nodes


class Never(Slurm):
    """A Slurm that must not be asked."""

    def query_blocks(self) -> list[Block]:
        raise AssertionError("nobody needs to know")


def place(
    nodes: int,
    client: Client,
    node: NodeType | None = NVL72,
    *,
    spare: int = 0,
    segment: str = "",
    inside: Mapping[str, str] | None = None,
    nodelist: str = "",
    elastic: str = "",
) -> Placement:
    extra = SlurmOptions.parse([f"--segment={segment}"] if segment else [])
    resources = Resources(nodes=nodes, nodelist=nodelist, elastic=elastic, extra=extra)
    return place_nodes(resources, spare, node, inside or {}, client)


FOUR_RACKS = Slurm(make_blocks(18, 18, 18, 18))


@pytest.mark.parametrize(
    ("nodes", "segment"),
    [(2, 2), (16, 16), (18, 18), (20, 10), (32, 16), (34, 17), (36, 18), (48, 16), (64, 16), (72, 18)],
)  # fmt: skip
def test_a_job_gets_the_largest_equal_parts(nodes: int, segment: int) -> None:
    placement = place(nodes, FOUR_RACKS)
    assert placement.segment is not None
    assert placement.segment.words == (f"--segment={segment}",)
    assert placement.spans == (segment < nodes)
    assert not placement.warning
    assert placement.refusal is None


def test_the_reason_names_the_parts() -> None:
    one, two = place(16, FOUR_RACKS).segment, place(32, FOUR_RACKS).segment
    assert one
    assert one.why == "all nodes in one NVLink domain"
    assert two
    assert two.why == (
        "2 parts of 16 nodes, each in one NVLink domain, of which a job may have 18 nodes"
    )


@pytest.mark.parametrize(
    ("nodes", "fits"),
    [
        (19, "18 (one domain) or 20 (2 x 10)"),  # a prime
        (37, "36 (2 x 18) or 39 (3 x 13)"),
        (38, "36 (2 x 18) or 39 (3 x 13)"),  # 19 x 2: worse than none
        (71, "70 (5 x 14) or 72 (4 x 18)"),
        (73, "72 (4 x 18)"),  # more than there are
    ],
)
def test_a_misfit_is_told_with_what_fits(nodes: int, fits: str) -> None:
    racks = Slurm(make_blocks(18, 18, 18, 18, 18)) if "5 x" in fits else FOUR_RACKS
    placement = place(nodes, racks)
    assert placement.segment is None
    assert placement.spans
    assert placement.warning == (
        f"{nodes} nodes cannot be shared out evenly among NVLink domains of 18 nodes, and no "
        f"--segment is asked for; {fits} can"
    )


def test_slurm_may_plan_with_fewer_nodes_than_a_domain_has() -> None:
    """Two of the 18 stand by."""
    placement = place(32, Slurm(make_blocks(18, 18, planned=16)))
    assert placement.segment
    assert placement.segment.value == "16"
    placement = place(18, Slurm(make_blocks(18, 18, planned=16)))
    assert placement.segment
    assert placement.segment.value == "9"


def test_there_must_be_room_in_enough_domains() -> None:
    """Seen on Slurm 24.11.5: `-N 33 --segment=11` is refused where two domains have 18 nodes."""
    assert place(33, Slurm(make_blocks(18, 18))).segment is None
    assert place(33, Slurm(make_blocks(18, 18, 18))).segment is not None
    # A partition that has a part of each domain
    part = Slurm(make_blocks(12, 12))
    assert [place(nodes, part).segment.value for nodes in (20, 16, 12)] == ["10", "8", "12"]  # type: ignore[union-attr]
    assert "among NVLink domains of 12 nodes" in place(13, part).warning


def test_spare_nodes_are_of_the_job_too() -> None:
    placement = place(34, FOUR_RACKS, spare=2)
    assert placement.segment
    assert placement.segment.value == "18"
    said = place(36, FOUR_RACKS, spare=1).warning
    assert said.startswith("37 nodes, 1 of them to spare, cannot be shared out evenly")


@pytest.mark.parametrize(
    ("nodes", "asked", "said", "hint"),
    [
        (20, "7", "20 nodes cannot be shared out in parts of 7", "--segment 10, or leave it out"),
        (37, "5", "37 nodes cannot be shared out in parts of 5", "-N 35, or leave out --segment"),
        (33, "11", "3 parts of 11 nodes are needed, and the NVLink domains of this partition have room for 2", "leave it out"),
    ],
)  # fmt: skip
def test_what_slurm_can_never_place_is_refused(
    nodes: int, asked: str, said: str, hint: str
) -> None:
    refusal = place(nodes, Slurm(make_blocks(18, 18)), segment=asked).refusal
    assert refusal is not None
    assert str(refusal.message) == f"--segment {asked}: {said}"
    assert str(refusal.hint).startswith(hint)


@pytest.mark.parametrize("asked", ["0", "20", "18x", "²"])
def test_a_segment_of_the_users_own_stands(asked: str) -> None:
    racks = Slurm(make_blocks(18, 18))
    assert place(20, racks, segment=asked) == Placement(spans=True)
    assert place(16, racks, segment=asked) == Placement(spans=False)


def test_nothing_is_asked_where_it_does_not_matter() -> None:
    nothing = Placement()
    pair = NodeType(gpus=Gpus(model="GB200", count=4, domain_nodes=1))
    blocks = make_blocks(18)
    assert place(1, Never(blocks)) == nothing
    assert place(4, Never(blocks), None) == place(4, Never(blocks), pair) == nothing
    assert place(4, Never(blocks), nodelist="r0n1") == nothing
    assert place(4, Never(blocks), elastic="2:4") == nothing
    assert place(4, Slurm([])) == nothing


def test_inside_a_job_the_order_is_left() -> None:
    inside = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "r0n[0-3],r1n[0-3]"}
    assert place(8, FOUR_RACKS, inside=inside) == Placement(spans=True)
    inside["SLURM_JOB_NODELIST"] = "r1n[0-7]"
    assert place(8, FOUR_RACKS, inside=inside) == Placement()
    assert place(8, FOUR_RACKS, inside={"SLURM_JOB_ID": "7"}) == Placement()


def test_excluded_nodes_do_not_count() -> None:
    """One of each of two racks: only the third still has 18."""
    extra = SlurmOptions.parse(["--exclude=r0n1,r1n[1-2]"])
    asked = Resources(nodes=36, extra=extra)
    placement = place_nodes(asked, 0, NVL72, {}, Slurm(make_blocks(18, 18, 18)))
    assert placement.segment
    assert placement.segment.value == "12"


@pytest.mark.parametrize(
    "narrowed",
    [{"constraint": "a&b"}, {"reservation": "maintenance"}, {"partition": "a,b"}],
)
def test_nothing_is_asked_for_where_nobody_knows_which_nodes_are_left(
    narrowed: dict[str, str],
) -> None:
    asked = Resources(nodes=36, **narrowed)  # type: ignore[arg-type]
    assert place_nodes(asked, 0, NVL72, {}, FOUR_RACKS) == Placement(spans=True)


def test_a_job_that_starts_again_without_a_node_has_no_segments() -> None:
    asked = Resources(nodes=36)
    placement = place_nodes(asked, 0, NVL72, {}, FOUR_RACKS, may_lose_nodes=True)
    assert placement == Placement(spans=True)


def test_slurms_own_variable_for_segments_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_SEGMENT_SIZE", "9")
    assert place(36, FOUR_RACKS) == Placement(spans=True)


def test_a_partition_without_blocks_of_its_own() -> None:
    slurm = Slurm(make_blocks(18), beside=40)
    slurm.nodes = frozenset(name for name in slurm.nodes if name.startswith("other"))
    assert place(20, slurm) == Placement()


@given(st.integers(2, 400), st.integers(2, 36), st.lists(st.integers(1, 36), min_size=1))
def test_what_is_chosen_can_be_placed(nodes: int, most: int, rooms: list[int]) -> None:
    domains = Domains(most, tuple(rooms))
    segment = choose_segment(nodes, domains)
    if segment:
        assert nodes % segment == 0
        assert 1 < segment <= most
        assert sum(room // segment for room in rooms) >= nodes // segment
        assert choose_segment(nodes, replace(domains, rooms=(*rooms, 36))) >= segment
