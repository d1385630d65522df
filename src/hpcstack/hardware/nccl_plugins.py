"""Which network plugins an NCCL loads, from facts/nccl-net-plugins.yaml."""

from __future__ import annotations

from hpcstack.core.data import read_facts
from hpcstack.hardware.compatibility import parse_version


def list_loadable_interfaces(nccl: str) -> frozenset[int]:
    """Return each N of ncclNetPlugin_vN by which the NCCL of version NCCL loads a plugin.

    NCCL is such as `2.27.7` or `2.30.7+cuda13.3`. Empty where it is not known: the version says
    nothing, or is newer than what facts/nccl-net-plugins.yaml has read.
    """
    known = read_facts("nccl-net-plugins")
    version = parse_version(nccl)
    if not version or version > parse_version(known["last"]):
        return frozenset()
    rows = [row for row in known["releases"] if parse_version(row["first"]) <= version]
    if not rows:
        return frozenset()
    return frozenset(map(int, rows[-1]["interfaces"]))
