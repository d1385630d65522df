"""Find what a collective can reach at most: through NVLink, PCIe and the fabric's ports.

Each limit is a count that was read on the node, times what NCCL or a specification says of one
link, lane or port. No figure is of a model of GPU, so a model that nobody has measured has limits
too. They are upper ones: all that is published (facts/gates.yaml) is between 80 and 100 % of them,
and below 75 % somebody should look.
"""

from __future__ import annotations

from dataclasses import dataclass

# GB/s each way through one NVLink by rings, from each compute capability on: what NCCL reckons
# with, after its protocol. But for Volta: NCCL's 20 is less than eight V100 were seen to reach
NCCL_TOPOLOGY = "nccl src/graph/topo.h"
RING_LINKS = (
    (10.0, 40.1, NCCL_TOPOLOGY),
    (9.0, 20.6, NCCL_TOPOLOGY),
    (8.7, 20.0, NCCL_TOPOLOGY),
    (8.6, 12.0, NCCL_TOPOLOGY),
    (8.0, 20.0, NCCL_TOPOLOGY),
    (7.0, 23.95, "Dell PowerEdge C4130, 143.7 GB/s of a V100's six links"),
    (6.0, 18.0, NCCL_TOPOLOGY),
)
# The share of that which NVLink SHARP reaches. Hopper's is NCCL's own. Of Blackwell NCCL reckons
# with 0.74, and eight B200 were seen to reach 0.753
NVLS_SHARES = (
    (10.0, 0.77, "stas00/ml-engineering, eight B200"),
    (9.0, 0.85, "nccl src/graph/tuning.cc, nvlsEfficiency"),
)
# The share of an NVLink's rate, as nvidia-smi shows it, that a GPU's copy engine reaches: NVLink 4
# and 5, and those before. H200 NVL, six links: 133.3 of 159.4; A100, twelve: 277 of 300
COPY_SOURCE = "nvbandwidth and p2pBandwidthLatencyTest of others"
COPY_SHARES = ((9.0, 0.84, COPY_SOURCE), (6.0, 0.95, COPY_SOURCE))
# GT/s of a lane by generation of PCIe, each with 130 bits for 128; 2 and 1 with 10 for 8
PCIE_LANES = {1: 2.5 * 8 / 10, 2: 5.0 * 8 / 10, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
PCIE_ENCODING = 128 / 130
# Bytes that a packet carries on servers, and the least that it has around them: five words
PCIE_PAYLOAD, PCIE_OVERHEAD = 256, 20
PCIE_SOURCE = "PCI Express Base Specification; Intel AN 708, protocol overhead"
# Below this share of its limit a figure is a WARN: others' healthy figures are all above 0.8
HEALTHY_SHARE = 0.75
# Bytes of the buffer from which on a limit counts: rings show it earlier than NVLink SHARP, which
# needs more where it adds up more GPUs than these
RING_BYTES, NVLS_BYTES, NVLS_GPUS = 1 << 30, 8 << 30, 32


@dataclass(frozen=True)
class Term:
    """One thing that all data goes through: its name, its GB/s each way, and who says so."""

    name: str
    rate: float
    source: str


@dataclass(frozen=True)
class Limit:
    """What a figure can reach at most, in GB/s: that of the narrowest of TERMS.

    WHAT names the figure: `the ring`. From `min_bytes` of the buffer on the limit counts.
    """

    what: str
    terms: tuple[Term, ...]
    min_bytes: int = RING_BYTES

    @property
    def narrowest(self) -> Term:
        return min(self.terms, key=lambda term: term.rate)

    @property
    def rate(self) -> float:
        return self.narrowest.rate

    def describe(self) -> str:
        """Return `8 ports, 3200 Gb/s: 400 GB/s; 18 NVLinks of 20.6: 371 GB/s`."""
        return "; ".join(f"{term.name}: {format_rate(term.rate)}" for term in self.terms)

    def name_bottleneck(self) -> str:
        """Return `NVLink limits the ring`, empty where there is one term alone."""
        if len(self.terms) < 2:
            return ""
        return f"{self.narrowest.name} limit {self.what}"

    def name_sources(self) -> str:
        return "; ".join(dict.fromkeys(term.source for term in self.terms))


def format_rate(rate: float) -> str:
    """Return `46.5 GB/s`, `1044 GB/s`."""
    return f"{rate:.0f} GB/s" if rate >= 100 else f"{rate:.3g} GB/s"


def find_figure(table: tuple[tuple[float, float, str], ...], capability: str) -> tuple[float, str]:
    """Return (the figure of a GPU of CAPABILITY, such as `9.0`, in TABLE; who says so).

    The figure is 0 where none is known: TABLE begins with a newer architecture's.
    """
    try:
        own = float(capability)
    except ValueError:
        return 0.0, ""
    rows = ((figure, source) for first, figure, source in table if own >= first)
    return next(rows, (0.0, ""))


def make_ring_term(capability: str, links: int) -> Term | None:
    """Return what LINKS NVLinks of a GPU carry by rings; None where that is not known."""
    one, source = find_figure(RING_LINKS, capability)
    if not one or links < 1:
        return None
    return Term(f"{links} NVLinks of {one:g}", links * one, source)


def make_copy_term(capability: str, links: int, rate: float) -> Term | None:
    """Return what a copy reaches through LINKS NVLinks of RATE GB/s each; None if unknown.

    RATE is the one that nvidia-smi shows.
    """
    share, source = find_figure(COPY_SHARES, capability)
    if not share or links < 1 or rate <= 0:
        return None
    name = f"{share:.0%} of {links} NVLinks of {rate:g}"
    return Term(name, share * links * rate, source)


def make_pcie_term(generation: int, width: int) -> Term | None:
    """Return what a PCIe link of WIDTH lanes carries each way; None where that is not known."""
    lane = PCIE_LANES.get(generation, 0.0)
    if not lane or width < 1:
        return None
    if generation >= 3:
        lane *= PCIE_ENCODING
    payload_share = PCIE_PAYLOAD / (PCIE_PAYLOAD + PCIE_OVERHEAD)
    rate = lane / 8 * width * payload_share
    return Term(f"PCIe {generation} x{width}", rate, PCIE_SOURCE)


def limit_ring(between: Term, within: Term | None) -> Limit:
    """Return the limit of a ring over nodes: of what is BETWEEN them, and WITHIN each of them."""
    terms = (between,) if within is None else (between, within)
    return Limit("the ring", terms)


def limit_all_reduce(capability: str, links: int, gpus: int, *, switched: bool) -> Limit | None:
    """Return the limit of all_reduce's bus bandwidth over GPUS that NVLink joins; None if unknown.

    LINKS is how many NVLinks of each GPU lead to the others. Where they are SWITCHED the switch can
    add, by NVLink SHARP: then each GPU sends its buffer once, and the nth part of the sums. Of that
    and of rings, the faster one counts.
    """
    ring = make_ring_term(capability, links)
    if ring is None or gpus < 2:
        return None
    share, source = find_figure(NVLS_SHARES, capability)
    # busbw = 2(n-1)/n of the buffer in that time, by nccl-tests' definition; 1 + 1/n was sent
    factor = 2 * (gpus - 1) / (gpus + 1) * share
    if not switched or factor <= 1:
        return Limit("all_reduce", (ring,))

    min_bytes = NVLS_BYTES
    while min_bytes < NVLS_BYTES * gpus / NVLS_GPUS:
        min_bytes *= 2
    name = f"{ring.name}, NVLink SHARP over {gpus}"
    sharp = Term(name, ring.rate * factor, f"{ring.source}; {source}")
    return Limit("all_reduce", (sharp,), min_bytes)
