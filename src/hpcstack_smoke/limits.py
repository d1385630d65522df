"""Find what a collective can reach at most: through NVLink, PCIe and the fabric's ports.

Each limit is a count that was read on the node, times what NCCL or a specification says of one
link, lane or port. No figure is of a model of GPU, so a model that nobody has measured has limits
too. They are upper ones: a healthy node reaches 80 % and more (`hpcstack` tests them against
facts/gates.yaml), and below 75 % somebody should look.

Tested in tests/unit/smoke/test_limits.py.
"""

from __future__ import annotations

from dataclasses import dataclass

# GB/s each way through one NVLink that NCCL reckons with, from each compute capability on. Before
# NCCL's protocol a link carries more: 25 GB/s of NVLink 2 to 4
NCCL_LINKS = ((10.0, 40.1), (9.0, 20.6), (8.7, 20.0), (8.6, 12.0), (7.0, 20.0), (6.0, 18.0))
NCCL_LINKS_SOURCE = "nccl src/graph/topo.h"
# The share of that which NVLink SHARP reaches. NCCL reckons with 0.85 on Hopper and 0.74 on
# Blackwell, where eight B200 were seen to reach 0.75: the larger one holds for both
NVLS_SHARE = 0.85
NVLS_SOURCE = "nccl src/graph/tuning.cc, nvlsEfficiency"
# From this capability on GPUs have NVLink SHARP
NVLS_CAPABILITY = 9.0
# GT/s of a lane by generation of PCIe, each with 130 bits for 128; 2 and 1 with 10 for 8
PCIE_LANES = {1: 2.5 * 8 / 10, 2: 5.0 * 8 / 10, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
PCIE_ENCODING = 128 / 130
# Bytes that a packet carries on servers, and the least that it has around them: five words
PCIE_PAYLOAD, PCIE_OVERHEAD = 256, 20
PCIE_SOURCE = "PCI Express Base Specification; Intel AN 708, protocol overhead"
# Below this share of its limit a figure is a WARN: others' healthy figures are all above 0.8
HEALTHY_SHARE = 0.75
# Bytes of the buffer from which on a limit counts: rings show it earlier than NVLink SHARP
RING_BYTES, NVLS_BYTES = 1 << 30, 8 << 30


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
        return "; ".join(f"{term.name}: {term.rate:.3g} GB/s" for term in self.terms)

    def name_bottleneck(self) -> str:
        """Return `NVLink limits the ring`, empty where there is one term alone."""
        if len(self.terms) < 2:
            return ""
        return f"{self.narrowest.name} limit {self.what}"

    def name_sources(self) -> str:
        return "; ".join(dict.fromkeys(term.source for term in self.terms))


def find_link_figure(capability: str) -> float:
    """Return the GB/s of one NVLink of a GPU of CAPABILITY (`9.0`), as NCCL reckons; 0 unknown."""
    try:
        own = float(capability)
    except ValueError:
        return 0.0
    return next((rate for first, rate in NCCL_LINKS if own >= first), 0.0)


def make_nvlink_term(capability: str, links: int) -> Term | None:
    """Return what LINKS NVLinks of a GPU carry by rings; None where that is not known."""
    one = find_link_figure(capability)
    if not one or links < 1:
        return None
    return Term(f"{links} NVLinks of {one:g}", links * one, NCCL_LINKS_SOURCE)


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
    ring = make_nvlink_term(capability, links)
    if ring is None or gpus < 2:
        return None
    if not switched or float(capability) < NVLS_CAPABILITY:
        return Limit("all_reduce", (ring,))

    # busbw = 2(n-1)/n of the buffer in that time, by nccl-tests' definition; 1 + 1/n was sent
    factor = 2 * (gpus - 1) / (gpus + 1) * NVLS_SHARE
    if factor <= 1:
        return Limit("all_reduce", (ring,))
    name = f"{ring.name}, NVLink SHARP over {gpus}"
    sharp = Term(name, ring.rate * factor, f"{NCCL_LINKS_SOURCE}; {NVLS_SOURCE}")
    return Limit("all_reduce", (sharp,), NVLS_BYTES)
