"""What the kernel says of InfiniBand and RoCE ports: Documentation/ABI/stable/sysfs-class-infiniband."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass

HCAS = "/sys/class/infiniband"
ERRORS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors",
    "local_link_integrity_errors", "excessive_buffer_overrun_errors", "VL15_dropped", "port_xmit_discards",
)  # fmt: skip
HW_ERRORS = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "roce_adp_retrans")


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
        """Whether the kernel says that there is no link; where it does not say, there should be one."""
        return bool(self.physical) and not self.physical.startswith("?") and "LinkUp" not in self.physical


def line(path: str) -> str:
    """The first line of PATH, or why it cannot be read."""
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError as error:
        return f"? ({error.strerror})"


def ports(root: str = "") -> list[Port]:
    """All ports of this machine."""
    out = []
    for path in sorted(glob.glob(f"{root or HCAS}/*/ports/*")):
        rate = line(f"{path}/rate").split()
        number = float(rate[0]) if rate and rate[0].replace(".", "", 1).isdigit() else 0.0
        hca, port = path.split("/")[-3], path.split("/")[-1]
        out.append(
            Port(
                hca,
                int(port),
                line(f"{path}/state"),
                number,
                line(f"{path}/link_layer"),
                path,
                line(f"{path}/phys_state"),
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


def active_ports(root: str = "") -> list[Port]:
    return [port for port in ports(root) if port.active]


def counters(root: str = "") -> dict[str, int]:
    """{HCA:PORT/COUNTER: value} of what counts errors."""
    out = {}
    for port in ports(root):
        for folder, names in (("counters", ERRORS), ("hw_counters", HW_ERRORS)):
            for name in names:
                path = os.path.join(port.path, folder, name)
                said = line(path)
                if said.isdigit():
                    out[f"{port.name}/{name}"] = int(said)
    return out


def gids(port: Port) -> dict[int, tuple[str, str]]:
    """{index: (GID, type)} of a port's non-empty GIDs; the type is `RoCE v2`, `IB/RoCE v1` or empty."""
    out = {}
    for path in glob.glob(f"{port.path}/gids/*"):
        index, gid = os.path.basename(path), line(path)
        if index.isdigit() and gid.strip("0:") and not gid.startswith("?"):
            kind = line(f"{port.path}/gid_attrs/types/{index}")
            out[int(index)] = (gid, "" if kind.startswith("?") else kind)
    return out
