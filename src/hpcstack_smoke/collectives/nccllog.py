"""Read NCCL's log: its version, networks, HCAs, and the transport of each pair of ranks.

Lines are those of NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,ENV,NET,GRAPH(,TUNING), from NCCL 2.4
to 2.30. A connection reads `Channel 00/0 : 0[0] -> 1[1] via ...` since 2.12, `Channel 00 : 0[1a000]
-> 1[1c000] via ...` before, and `Ring 00 : 0[0] -> 1[1] via ...` in 2.4. Whatever a launcher puts
before a line is skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+\S*?)\+cuda(\d+\.\d+)")
CHANNEL = re.compile(
    r"(?:Channel|Ring) (\d+)(?:/(\d+))? : "
    r"(\d+)(?:\[(\w+)\])? -> (\d+)(?:\[(\w+)\])?(?: \[(send|receive)\])?"
    r" via (P2P/[^\s]+(?: pointer(?:/\w+)?)?|SHM(?:/\S+)?|direct shared memory|NET/.+?/\d+\S*)"
    r"(?=\s|$)"
)
HCAS = re.compile(r"NET/IB : Using (.*?)\s*(?:\[RO\])?; OOB ([^:]+):(\S+)")
NO_IB = re.compile(r"NET/IB : No device found")
NETWORK = re.compile(r"Using network (.+?)\s*$")
PLUGIN = re.compile(r"NET/Plugin: Loaded net plugin (.+?) \((v\d+)\)")
GDR = re.compile(r"(?:NET/)?(\S+) : GPU Direct RDMA (Enabled|Disabled) for HCA (\d+) '([^']+)'")
NVLS = re.compile(r"NVLS multicast support is (not )?available on dev (\d+)")
CHANNELS = re.compile(
    r"(\d+) coll channels, (?:(\d+) collnet channels, )?(\d+) nvls channels, (\d+) p2p channels"
)
ALGORITHM = re.compile(r"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+)")
INIT = re.compile(r"comm (0x[0-9a-f]+) rank (\d+) .*?Init (START|COMPLETE)")
IB_ERROR = re.compile(
    r"NET/IB ?: ?Got completion from peer (\S+) with "
    r"(?:status|error)[= ](?:([A-Za-z_ ]+)\()?(\d+)\)?"
    r"(?:.*?vendor[_ ]err[= ](\d+))?(?:.*?hca (\S+))?"
)
# One device in the list of HCAS, `[0]mlx5_0:1/IB`: its number, name, port and link layer
HCA = re.compile(r"\[(\d+)\]([^\s:]+):(\d+)/(\S+)")


@dataclass
class Log:
    """What NCCL said of one run.

    `pairs`: {(lower rank, higher rank): its transports}, as `name_transport` names them. `gdr`:
    {HCA: whether NCCL uses GPUDirect RDMA with it}. `nvls`: whether the GPUs can multicast, None
    where the log does not say. `algorithms`: {COLLECTIVE ALGORITHM/PROTOCOL: most bytes}. `began`,
    `done`: (communicator, rank) of each initialization that began and that completed.
    """

    version: str = ""
    cuda: str = ""
    network: str = ""
    plugin: str = ""
    hcas: list[str] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)
    no_ib: bool = False
    pairs: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    gdr: dict[str, bool] = field(default_factory=dict)
    nvls: bool | None = None
    nvls_channels: int = 0
    algorithms: dict[str, int] = field(default_factory=dict)
    began: set[tuple[str, int]] = field(default_factory=set)
    done: set[tuple[str, int]] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    def kinds(self) -> dict[str, int]:
        """Return {transport: how many pairs of ranks use it}."""
        out: dict[str, int] = {}
        for kinds in self.pairs.values():
            for kind in sorted(kinds):
                out[kind] = out.get(kind, 0) + 1
        return out

    def hung(self) -> list[int]:
        """Return the ranks that began to initialize a communicator and never finished."""
        return sorted({rank for _, rank in self.began - self.done})


DIRECT = "+GDR"  # GPUDirect RDMA: the network card reads and writes GPU memory


def name_transport(via: str) -> str:
    """Return the transport VIA in one word: P2P, SHM, Socket, IB, or a plugin's own name.

    One that reads GPU memory itself has a mark: IB+GDR. VIA is what follows `via` in the log.
    """
    if via.startswith("P2P"):
        return "P2P"
    if via.startswith("SHM") or via == "direct shared memory":
        return "SHM"

    name = via.removeprefix("NET/")
    direct = "GDRDMA" in name
    # Without the device's number, and what follows it
    name = re.sub(r"/\d+.*$", "", name)
    if name == "Socket":
        return "Socket"
    if re.fullmatch(r"IB(ext)?(_v\d+)?", name):
        name = "IB"
    return name + DIRECT if direct else name


def uses_gpudirect(transport: str) -> bool:
    """Return whether TRANSPORT, as `name_transport` names it, is GPUDirect RDMA."""
    return transport.endswith(DIRECT)


def parse_log(lines: Iterable[str]) -> Log:
    """Return the Log of LINES, which one or more ranks wrote."""
    log = Log()
    for line in lines:
        _read_line(log, line.rstrip("\n"))
    return log


def select_lines(lines: Iterable[str]) -> list[str]:
    """Return those of LINES that say something new to `parse_log`.

    A connection has a line for each of its channels, of which one is enough.
    """
    out = []
    seen = {repr(Log())}
    for line in lines:
        said = repr(parse_log([line]))
        if said not in seen:
            seen.add(said)
            out.append(line.rstrip("\n"))
    return out


def _read_line(log: Log, line: str) -> None:
    """Put into LOG what LINE says.

    The most frequent lines, those of connections, are tried first.
    """
    if match := CHANNEL.search(line):
        pair = (int(match[3]), int(match[5]))
        log.pairs.setdefault((min(pair), max(pair)), set()).add(name_transport(match[8]))
    elif match := VERSION.search(line):
        log.version = match[1]
        log.cuda = match[2]
    elif match := HCAS.search(line):
        found = HCA.findall(match[1])
        log.hcas = list(dict.fromkeys([*log.hcas, *(name for _, name, _, _ in found)]))
        log.layers = list(dict.fromkeys([*log.layers, *(layer for _, _, _, layer in found)]))
    elif NO_IB.search(line):
        log.no_ib = True
    elif match := NETWORK.search(line):
        log.network = match[1]
    elif match := PLUGIN.search(line):
        log.plugin = f"{match[1]} {match[2]}"
    else:
        _read_detail(log, line)


def _read_detail(log: Log, line: str) -> None:
    """Put into LOG what LINE says of GPUDirect, NVLS, algorithms, initialization and errors."""
    if match := GDR.search(line):
        log.gdr[match[4]] = match[2] == "Enabled"
    elif match := NVLS.search(line):
        log.nvls = not match[1]
    elif match := CHANNELS.search(line):
        log.nvls_channels = max(log.nvls_channels, int(match[3]))
    elif match := ALGORITHM.search(line):
        name = f"{match[1]} {match[3]}/{match[4]}"
        log.algorithms[name] = max(log.algorithms.get(name, 0), int(match[2]))
    elif match := INIT.search(line):
        step = log.began if match[3] == "START" else log.done
        step.add((match[1], int(match[2])))
    elif IB_ERROR.search(line):
        log.errors.append(line.strip()[:300])
