"""What the kernel says of InfiniBand and RoCE ports:
Documentation/ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from hpcstack_smoke.node import machine

HCAS = "/sys/class/infiniband"
CASSINI = "/sys/class/cxi"  # Slingshot's
MELLANOX, INFINIBAND_CLASS, EFA = (
    "0x15b3",
    "0x0207",
    ("0x1d0f", ("0xefa0", "0xefa1", "0xefa2", "0xefa3")),
)
ERRORS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors",
    "local_link_integrity_errors", "excessive_buffer_overrun_errors", "VL15_dropped", "port_xmit_discards",
)  # fmt: skip
HW_ERRORS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
)


@dataclass(frozen=True)
class Port:
    """One port of one HCA; `rate` in Gb/s, 0 where the kernel does not say."""

    hca: str
    number: int
    state: str
    rate: float
    layer: str
    path: str
    physical: str = ""

    @property
    def name(self) -> str:
        return f"{self.hca}:{self.number}"

    @property
    def active(self) -> bool:
        return "ACTIVE" in self.state

    @property
    def unplugged(self) -> bool:
        """Whether the kernel says that there is no link; where it does not say, there should be
        one.
        """
        return (
            bool(self.physical)
            and not self.physical.startswith("?")
            and "LinkUp" not in self.physical
        )

    @property
    def ethernet(self) -> bool:
        return self.layer == "Ethernet"

    @property
    def mtu(self) -> int:
        """Bytes of the network interface behind it; 0 where it has none or several."""
        found = machine.HERE.found(f"{HCAS}/{self.hca}/device/net/*/mtu")
        said = machine.HERE.line(found[0]) if len(found) == 1 else ""
        return int(said) if said.isdigit() else 0

    @property
    def firmware(self) -> str:
        said = machine.HERE.line(f"{HCAS}/{self.hca}/fw_ver")
        return "" if said.startswith("?") else said


def read_line(path: str) -> str:
    """The first line of PATH, or why it cannot be read."""
    return machine.HERE.line(path)


def list_ports() -> list[Port]:
    """All ports of this machine."""
    out = []
    for path in machine.HERE.found(f"{HCAS}/*/ports/*"):
        rate = read_line(f"{path}/rate").split()
        number = float(rate[0]) if rate and rate[0].replace(".", "", 1).isdigit() else 0.0
        hca, port = path.split("/")[-3], path.split("/")[-1]
        out.append(
            Port(
                hca,
                int(port),
                read_line(f"{path}/state"),
                number,
                read_line(f"{path}/link_layer"),
                path,
                read_line(f"{path}/phys_state"),
            )
        )
    return out


def asked_for(found: list[Port]) -> list[Port]:
    """Those of FOUND that NCCL_IB_HCA leaves: [^][=]NAME[:PORT],... (NCCL's environment variables)."""
    said = os.environ.get("NCCL_IB_HCA", "")
    without, exact = said.startswith("^"), said.lstrip("^").startswith("=")
    words = [word for word in said.lstrip("^").lstrip("=").split(",") if word]
    if not words:
        return found

    def named(port: Port) -> bool:
        for word in words:
            hca, _, number = word.partition(":")
            same = port.hca == hca if exact else port.hca.startswith(hca)
            if same and number in ("", str(port.number)):
                return True
        return False

    return [port for port in found if named(port) != without]


def active_ports() -> list[Port]:
    return [port for port in list_ports() if port.active]


def of_fabric(found: list[Port], kind: str = "", hcas: tuple[str, ...] = ()) -> list[Port]:
    """Those of FOUND that carry the fabric: HCAS where a site promises them, else what NCCL_IB_HCA
    leaves.

    On a fabric of InfiniBand (of KIND, or because one port is) Ethernet ports are the node's
    network cards.
    """
    if hcas:
        return [port for port in found if port.hca in hcas or port.name in hcas]
    left = asked_for(found)
    if kind == "infiniband" or (not kind and any(port.layer == "InfiniBand" for port in left)):
        return [port for port in left if not port.ethernet]
    return left


def only_cards(found: list[Port], kind: str = "", hcas: tuple[str, ...] = ()) -> bool:
    """Whether FOUND are Ethernet ports that nobody promises: network cards, for all that one knows."""
    return not kind and not hcas and all(port.ethernet for port in found)


def adapters_without_driver() -> list[str]:
    """PCI addresses of InfiniBand or EFA adapters, where the kernel shows no such device: no module
    is loaded.
    """
    if list_ports():
        return []
    out = []
    for path in machine.HERE.found("/sys/bus/pci/devices/*/vendor"):
        folder = os.path.dirname(path)
        vendor, kind = read_line(path), read_line(f"{folder}/class")
        if (vendor == MELLANOX and kind.startswith(INFINIBAND_CLASS)) or (
            vendor == EFA[0] and read_line(f"{folder}/device") in EFA[1]
        ):
            out.append(os.path.basename(folder))
    return out


def read_cassini() -> dict[str, bool]:
    """{cxi0: whether its network interface is up} of Slingshot's adapters."""
    out = {}
    for place in machine.HERE.found(f"{CASSINI}/*"):
        states = [
            machine.HERE.line(path)
            for path in machine.HERE.found(f"{place}/device/net/*/operstate")
        ]
        out[os.path.basename(place)] = not states or "up" in states
    return out


def read_error_counters(of: list[Port] | None = None) -> dict[str, int]:
    """{HCA:PORT/COUNTER: value} of what counts errors, of all ports or OF some."""
    out = {}
    for port in list_ports() if of is None else of:
        for folder, names in (("counters", ERRORS), ("hw_counters", HW_ERRORS)):
            for name in names:
                path = os.path.join(port.path, folder, name)
                said = read_line(path)
                if said.isdigit():
                    out[f"{port.name}/{name}"] = int(said)
    return out


def read_gids(port: Port) -> dict[int, tuple[str, str]]:
    """{index: (GID, type)} of a port's non-empty GIDs; the type is `RoCE v2`, `IB/RoCE v1` or
    empty.
    """
    out = {}
    for path in machine.HERE.found(f"{port.path}/gids/*"):
        index, gid = os.path.basename(path), read_line(path)
        if index.isdigit() and gid.strip("0:") and not gid.startswith("?"):
            kind = read_line(f"{port.path}/gid_attrs/types/{index}")
            out[int(index)] = (gid, "" if kind.startswith("?") else kind)
    return out
