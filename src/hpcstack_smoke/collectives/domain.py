"""Find a node's NVLink domain, where one spans nodes: GB200 and GB300 in a rack."""

from __future__ import annotations

import functools

from hpcstack_smoke.node import nvlink


@functools.cache
def find_domain_of_node() -> str:
    """Return CLUSTER/CLIQUE of this node's GPUs, empty where their NVLink ends at the node."""
    return "/".join(next(iter(nvlink.read_domains().values()), ()))


def pair_class(first: str, second: str) -> str:
    """Return how nodes of the domains FIRST and SECOND connect: by `nvlink` or by the `network`."""
    return "nvlink" if first and first == second else "network"
