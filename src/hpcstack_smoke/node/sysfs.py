"""Read what the kernel says of InfiniBand and RoCE ports, and of Slingshot's adapters.

The files are those of Documentation/ABI/stable/sysfs-class-infiniband.

Tested in tests/unit/suite/test_clusters.py and tests/unit/smoke/test_fabric.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from hpcstack_smoke.node import machine

PCI = "/sys/bus/pci/devices"
HCAS = "/sys/class/infiniband"
CASSINI = "/sys/class/cxi"  # Slingshot's adapters
# PCI IDs: Mellanox's vendor and the class of InfiniBand adapters; EFA's vendor and its devices
MELLANOX = "0x15b3"
INFINIBAND_CLASS = "0x0207"
EFA = ("0x1d0f", ("0xefa0", "0xefa1", "0xefa2", "0xefa3"))
ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "VL15_dropped",
    "port_xmit_discards",
)
HW_ERRORS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
)
# Counters that stand still on a healthy node: EFA's retransmissions after a timeout and packets that
# it dropped (AWS's health check of a cluster warns of each: awsome-distributed-training, 2.gpu-
# cluster-healthcheck/checks/6-efa-loopback.sh), ...
EFA_ERRORS = ("retrans_timeout_events", "rx_drops")
# ... and Slingshot's network timeouts, such as at a link that flaps
# (https://docs.open-mpi.org/en/main/features/hwpc-cxi.html)
CASSINI_ERRORS = ("pct_sct_timeouts", "pct_spt_timeouts")


@dataclass(frozen=True)
class Port:
    """One port of one HCA; `rate` is in Gb/s, 0 where the kernel does not say.

    `state`, `layer` (of the link) and `physical` (state) are the kernel's words; `path` is the
    port's folder.
    """

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
        """Whether the kernel says that the port has no link.

        A port whose physical state is unknown does not count: it may well have a link.
        """
        return bool(self.physical) and "LinkUp" not in self.physical

    @property
    def ethernet(self) -> bool:
        return self.layer == "Ethernet"

    @property
    def mtu(self) -> int:
        """The MTU in bytes of the port's network interface, 0 where it has none or several."""
        found = machine.HERE.found(f"{HCAS}/{self.hca}/device/net/*/mtu")
        text = machine.HERE.line(found[0]) if len(found) == 1 else ""
        return int(text) if text.isdigit() else 0

    @property
    def firmware(self) -> str:
        """The HCA's firmware version, empty where the kernel does not say."""
        return machine.HERE.line(f"{HCAS}/{self.hca}/fw_ver")


def read_line(path: str) -> str:
    """Return the first line of PATH; empty where it cannot be read."""
    return machine.HERE.line(path)


def read_slot_width(address: str) -> str:
    """Return how many lanes the slot of the PCI device ADDRESS has; empty where it is unknown.

    ADDRESS is as nvidia-smi writes it, with a domain of eight digits. The kernel lists a device below
    the port that it hangs on, whose `max_link_width` is the slot's
    (https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-pci).
    """
    if address.count(":") != 2:
        return ""
    short = address.lower()[-12:]
    for path in machine.HERE.found(f"{PCI}/*/{short}"):
        width = read_line(f"{os.path.dirname(path)}/max_link_width")
        if width.isdigit():
            return width
    return ""


def list_ports() -> list[Port]:
    """Return all InfiniBand and Ethernet ports of this machine's HCAs."""
    out = []
    for path in machine.HERE.found(f"{HCAS}/*/ports/*"):
        # The rate reads like `400 Gb/sec (4X NDR)`
        words = read_line(f"{path}/rate").split()
        rate = 0.0
        if words and words[0].replace(".", "", 1).isdigit():
            rate = float(words[0])
        parts = path.split("/")
        port = Port(
            hca=parts[-3],
            number=int(parts[-1]),
            state=read_line(f"{path}/state"),
            rate=rate,
            layer=read_line(f"{path}/link_layer"),
            path=path,
            physical=read_line(f"{path}/phys_state"),
        )
        out.append(port)
    return out


def select_asked_for(found: list[Port]) -> list[Port]:
    """Return those of FOUND that NCCL_IB_HCA selects, all of them where it is not set.

    Its form is [^][=]NAME[:PORT],... (NCCL's documentation of its environment variables): `^`
    excludes what is listed; `=` compares whole names, which are prefixes otherwise.
    """
    setting = os.environ.get("NCCL_IB_HCA", "")
    excludes = setting.startswith("^")
    exact = setting.lstrip("^").startswith("=")
    words = [word for word in setting.lstrip("^").lstrip("=").split(",") if word]
    if not words:
        return found

    def is_listed(port: Port) -> bool:
        for word in words:
            hca, _, number = word.partition(":")
            same = port.hca == hca if exact else port.hca.startswith(hca)
            if same and number in ("", str(port.number)):
                return True
        return False

    return [port for port in found if is_listed(port) != excludes]


def active_ports() -> list[Port]:
    """Return the ports of this machine whose state is ACTIVE."""
    return [port for port in list_ports() if port.active]


def select_fabric_ports(
    found: list[Port], kind: str = "", hcas: tuple[str, ...] = ()
) -> list[Port]:
    """Return those of FOUND that carry the fabric.

    They are HCAS where a site promises them, else what NCCL_IB_HCA selects. On InfiniBand (by KIND
    or, without a KIND, because one of the ports is InfiniBand) Ethernet ports are left out: they
    are the node's network cards.
    """
    if hcas:
        return [port for port in found if port.hca in hcas or port.name in hcas]
    left = select_asked_for(found)
    if kind == "infiniband" or (not kind and any(port.layer == "InfiniBand" for port in left)):
        return [port for port in left if not port.ethernet]
    return left


def are_only_cards(found: list[Port], kind: str = "", hcas: tuple[str, ...] = ()) -> bool:
    """Return whether FOUND are Ethernet ports of which the site says nothing.

    They could do RoCE, but nothing says that they are a fabric: they count as network cards.
    """
    return not kind and not hcas and all(port.ethernet for port in found)


def find_adapters_without_driver() -> list[str]:
    """Return the PCI addresses of InfiniBand and EFA adapters, where the kernel shows no port.

    Then no driver is loaded for them. Where there are ports, nothing is returned.
    """
    if list_ports():
        return []
    out = []
    for path in machine.HERE.found(f"{PCI}/*/vendor"):
        folder = os.path.dirname(path)
        vendor = read_line(path)
        kind = read_line(f"{folder}/class")
        is_infiniband = vendor == MELLANOX and kind.startswith(INFINIBAND_CLASS)
        is_efa = vendor == EFA[0] and read_line(f"{folder}/device") in EFA[1]
        if is_infiniband or is_efa:
            out.append(os.path.basename(folder))
    return out


def read_cassini() -> dict[str, bool]:
    """Return {adapter, such as cxi0: whether its network interface is up} of Slingshot's adapters.

    An adapter without a network interface counts as up.
    """
    out = {}
    for place in machine.HERE.found(f"{CASSINI}/*"):
        paths = machine.HERE.found(f"{place}/device/net/*/operstate")
        states = [machine.HERE.line(path) for path in paths]
        out[os.path.basename(place)] = not states or "up" in states
    return out


def read_error_counters(of: list[Port] | None = None) -> dict[str, int]:
    """Return {HCA:PORT/COUNTER: value} of the error counters of all ports, or of those in OF.

    Those of Slingshot's adapters are always among them.
    """
    ports = list_ports() if of is None else of
    out = read_cassini_errors()
    for port in ports:
        for folder, names in (("counters", ERRORS), ("hw_counters", (*HW_ERRORS, *EFA_ERRORS))):
            for name in names:
                text = read_line(os.path.join(port.path, folder, name))
                if text.isdigit():
                    out[f"{port.name}/{name}"] = int(text)
    return out


def read_cassini_errors() -> dict[str, int]:
    """Return {adapter/COUNTER: value} of the error counters of Slingshot's adapters.

    A telemetry file reads `VALUE@SECONDS.NANOSECONDS` (libfabric, prov/cxi/src/cxip_telemetry.c).
    """
    out = {}
    for place in machine.HERE.found(f"{CASSINI}/*"):
        for name in CASSINI_ERRORS:
            value = machine.HERE.line(f"{place}/device/telemetry/{name}").partition("@")[0]
            if value.isdigit():
                out[f"{os.path.basename(place)}/{name}"] = int(value)
    return out


def read_gids(port: Port) -> dict[int, tuple[str, str]]:
    """Return {index: (GID, type)} of PORT's non-empty GIDs.

    The type is `RoCE v2`, `IB/RoCE v1`, or empty where the kernel does not say.
    """
    out = {}
    for path in machine.HERE.found(f"{port.path}/gids/*"):
        index = os.path.basename(path)
        gid = read_line(path)
        if index.isdigit() and gid.strip("0:"):
            out[int(index)] = (gid, read_line(f"{port.path}/gid_attrs/types/{index}"))
    return out
