"""One node of a made-up cluster: its files, what its programs print, what NCCL writes there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.node import nvidia

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.clusters import Cluster, Modelled

# What nvidia-smi says of GPUs none of whose links is up (utkuozdemir/nvidia_gpu_exporter)
ALL_INACTIVE = "NVML: Unable to retrieve Nvlink information as all links are inActive"
CLOSED = "[Insufficient Permissions]"
NO_ANSWER = "[GPU requires reset]"


class Node:
    """`spec` is the cluster's description of such a node, with what is broken here."""

    def __init__(self, host: str, place: int, spec: dict[str, Any]) -> None:
        self.host, self.place, self.spec = host, place, spec
        self.gained = False
        self._files: dict[str, str] = {}

    @property
    def machine(self) -> Modelled:
        from support.clusters import Modelled

        return Modelled(self)

    @property
    def gpu(self) -> dict[str, Any]:
        found: dict[str, Any] = self.spec["gpu"]
        return found

    @property
    def measured(self) -> dict[str, Any]:
        found: dict[str, Any] = self.spec["measured"]
        return found

    def figures(self, local: int) -> dict[str, float]:
        """What a GPU reaches; a broken one's own figures win."""
        return {**self.measured, **self.spec.get("slow_gpu", {}).get(local, {})}

    def rail_share(self, rail: int) -> float:
        return float(self.spec.get("rail_shares", {}).get(rail, 1.0))

    def runs_on(self) -> dict[str, str]:
        """What gpu.same reads in a rank's process."""
        return {
            "torch": "2.6.0",
            "nccl": "2.23.4",
            "gpu": self.gpu["name"],
            "driver": self._driver_line(),
        }

    # files

    def files(self) -> dict[str, str]:
        """{path: first line} of all that the checks may read."""
        if self._files and not self.gained:
            return self._files
        out = {
            "/proc/driver/nvidia/version": self._driver_line(),
            "/sys/class/dmi/id/bios_version": "1.2.3",
        }
        out |= {
            f"/dev/nvidia{n}": ""
            for n in range(self.gpu["count"])
            if n != self.spec.get("lost_gpu")
        }
        if self.spec.get("peermem"):
            out["/sys/module/nvidia_peermem/version"] = "1.0"
        if self.spec.get("efa_peermem"):
            out["/sys/module/efa_nv_peermem/version"] = "1.2.0"
        if self.spec.get("efa_gdr"):
            out["/sys/class/infiniband/rdmap79s0/gdr"] = "1"
        if self.spec.get("imex"):
            out["/dev/nvidia-caps-imex-channels/channel0"] = ""
        for number in range(self.spec.get("cxi", 0)):
            up = "down" if number in self.spec.get("cxi_down", ()) else "up"
            out[f"/sys/class/cxi/cxi{number}/device/net/hsn{number}/operstate"] = up
        for name, port in self._ports().items():
            out |= self._port(name, port)
        if self.spec.get("unloaded"):
            out = {
                path: text
                for path, text in out.items()
                if not path.startswith("/sys/class/infiniband")
            }
        self._files = out
        return out

    def _driver_line(self) -> str:
        driver = self.spec["driver"]
        kind = (
            "NVIDIA UNIX Open Kernel Module for x86_64"
            if driver["open"]
            else "NVIDIA UNIX x86_64 Kernel Module"
        )
        return f"NVRM version: {kind}  {driver['version']}  Release Build"

    def _ports(self) -> dict[str, dict[str, Any]]:
        efa = {
            "rate": "100 Gb/sec (4X EDR)",
            "layer": "Unknown",
            "vendor": "0x1d0f",
            "device": "0xefa1",
        }
        return {
            **self.spec.get("ports", {}),
            **{f"rdmap{79 + n}s0": efa for n in range(self.spec.get("efa", 0))},
        }

    def _port(self, name: str, port: dict[str, Any]) -> dict[str, str]:
        folder = f"/sys/class/infiniband/{name}"
        one = f"{folder}/ports/1"
        out = {
            f"{one}/state": port.get("state", "4: ACTIVE"), f"{one}/phys_state": port.get("physical", "5: LinkUp"),
            f"{one}/rate": port["rate"], f"{one}/link_layer": port["layer"], f"{folder}/fw_ver": "28.39.1002",
        }  # fmt: skip
        for counter, value in {
            "symbol_error": 3,
            "link_downed": 0,
            **(port.get("gained", {}) if self.gained else {}),
        }.items():
            out[f"{one}/counters/{counter}"] = str(value)
        if "mtu" in port:
            out[f"{folder}/device/net/{name}np0/mtu"] = str(port["mtu"])
        if port["layer"] == "Ethernet":
            out[f"{one}/gids/0"] = "fe80:0000:0000:0000:0e42:a1ff:fe55:0001"
            out[f"{one}/gid_attrs/types/0"] = "RoCE v2"
        if port.get("gid"):
            out[f"{one}/gids/3"] = "0000:0000:0000:0000:0000:ffff:0a00:0001"
            out[f"{one}/gid_attrs/types/3"] = "RoCE v2"
        address = f"/sys/bus/pci/devices/0000:{len(name):02x}:{sum(map(ord, name)) % 32:02x}.0"
        kind = "0x020700" if port["layer"] == "InfiniBand" else "0x020000"
        out |= {f"{address}/vendor": port.get("vendor", "0x15b3"), f"{address}/class": kind,
                f"{address}/device": port.get("device", "0x1021")}  # fmt: skip
        return out

    # programs

    def said(self, argv: list[str]) -> str:
        if argv[0] == "nvidia-imex-ctl":
            return str(self.spec.get("imex_says", ""))
        if argv[0] != "nvidia-smi":
            return ""
        if argv[1].startswith("--query-remapped-rows="):
            return self._csv(argv[1])
        if argv[1].startswith("--query-gpu="):
            return self._csv(argv[1])
        forms: dict[str, Callable[[], str]] = {
            "nvlink -s": self._links,
            "nvlink -e": self._link_errors,
            "-q": self._everything,
            "-L": self._list,
            "topo -m": self._topology,
        }
        return forms[" ".join(argv[1:])]() if " ".join(argv[1:]) in forms else ""

    def _topology(self) -> str:
        """`nvidia-smi topo -m`: GPU n is beside the nth of the InfiniBand ports, but for those
        `moved`.
        """
        ports = [name for name, port in self._ports().items() if port["layer"] == "InfiniBand"]
        gpus = range(self.gpu["count"])
        rows = [
            "\t"
            + "\t".join(
                [
                    *(f"GPU{n}" for n in gpus),
                    *(f"NIC{n}" for n in range(len(ports))),
                    "CPU Affinity",
                ]
            )
        ]
        for n in gpus:
            near = self.spec.get("moved", {}).get(n, "PIX")
            nics = [
                near if k == n else "NODE" if k // 4 == n // 4 else "SYS" for k in range(len(ports))
            ]
            path = f"NV{self.gpu.get('joined', self.gpu['links'])}" if self.gpu["links"] else "SYS"
            rows.append(
                "\t".join([f"GPU{n}", *("X" if k == n else path for k in gpus), *nics, "0-55"])
            )
        legend = "".join(f"  NIC{n}: {name}\n" for n, name in enumerate(ports))
        return "\n".join(rows) + "\n\nNIC Legend:\n\n" + legend

    def _csv(self, query: str) -> str:
        rows = [self._gpu(n) for n in range(self.gpu["count"]) if n != self.spec.get("lost_gpu")]
        fields = query.partition("=")[2].split(",")
        if any(field not in row for row in rows for field in fields):
            return ""  # a driver that lacks one field refuses the whole query
        return "".join(", ".join(row[field] for field in fields) + "\n" for row in rows)

    def _gpu(self, number: int) -> dict[str, str]:
        """What nvidia-smi says of one GPU at rest, by field."""
        gpu, domain = self.gpu, self.domain()
        generation = str(gpu["generation"])
        counts = "[N/A]" if gpu.get("no_ecc_counts") else CLOSED if gpu.get("closed") else "0"
        out = {
            "index": str(number), "name": gpu["name"], "uuid": f"GPU-{self.host}-{number}", "gpu_uuid": f"GPU-{number}",
            "pci.bus_id": f"00000000:{0x18 + number:02X}:00.0", "driver_version": self.spec["driver"]["version"],
            "memory.total": str(gpu["memory"]), "compute_cap": gpu["cc"], "vbios_version": "96.00.74.00.01",
            "inforom.image": "G520.0200.00.05", "persistence_mode": "Enabled",
            "mig.mode.current": "Enabled" if gpu.get("slices") else "Disabled", "ecc.mode.current": "Enabled",
            "pcie.link.gen.current": str(gpu.get("resting", generation)), "pcie.link.gen.max": generation,
            "pcie.link.width.current": "16", "pcie.link.width.max": "16", "clocks.sm": "1980", "clocks.max.sm": "1980",
            "power.draw": "95.10", "enforced.power.limit": "700.00", "temperature.gpu": "31",
            "fabric.state": "Completed" if gpu["fabric"] != "none" else "[N/A]",
            "fabric.status": "Success" if gpu["fabric"] != "none" else "[N/A]",
            "fabric.clusterUuid": domain["uuid"] if domain else "00000000-0000-0000-0000-000000000000",
            "fabric.cliqueId": str(domain["clique"]) if domain else "0",
            **dict.fromkeys(nvidia.ECC[1:], counts), **dict.fromkeys(nvidia.THROTTLE, "Not Active"),
            **dict.fromkeys(nvidia.REMAPPED, "0"),
        }  # fmt: skip
        own: dict[str, str] = self.spec.get("gpus", {}).get(number, {})
        return out | own

    def under_load(self, local: int) -> list[dict[str, str]]:
        """What nvidia-smi says of a GPU while it works."""
        row = self._gpu(local) | {
            "pcie.link.gen.current": str(self.gpu["generation"]),
            "power.draw": "690.00",
        }
        return [row | self.spec.get("loaded", {}).get(local, {})]

    def _links(self) -> str:
        gpu = self.gpu
        if gpu.get("slices"):
            return "Nvlink queries are not supported for Devices in MIG mode\n"
        if not gpu["links"] and not gpu.get("link_rate"):
            return "Device does not have or support Nvlink\n"
        if not gpu["links"]:
            return f"{ALL_INACTIVE}\n"
        down = self.spec.get("links_down", {})
        out = []
        for number in range(gpu["count"]):
            if number == self.spec.get("lost_gpu"):
                continue
            out.append(f"GPU {number}: {gpu['name']} (UUID: GPU-{number})")
            for link in range(gpu["links"]):
                state = "<inactive>" if link in down.get(number, ()) else f"{gpu['link_rate']} GB/s"
                out.append(f"\t Link {link}: {state}")
        return "\n".join(out) + "\n"

    def _link_errors(self) -> str:
        if not self.gpu["links"]:
            return ""
        gained = self.spec.get("link_errors", {}) if self.gained else {}
        out = []
        for number in range(self.gpu["count"]):
            out.append(f"GPU {number}: {self.gpu['name']} (UUID: GPU-{number})")
            for link in range(self.gpu["links"]):
                for name in self._link_counters():
                    out.append(
                        f"\t Link {link}: {name}: "
                        f"{gained.get(name, 0) if link == number == 0 else 0}"
                    )
        return "\n".join(out) + "\n"

    def _link_counters(self) -> tuple[str, ...]:
        """Other names since Blackwell."""
        if self.gpu["cc"] < "9.9" and not self.gpu["cc"].startswith("1"):
            return "Replay Errors", "Recovery Errors", "CRC Errors"
        return (
            "Link recovery successful events",
            "Link recovery failed events",
            "Symbol Errors",
            "FEC Errors - 0",
        )

    def _everything(self) -> str:
        """`nvidia-smi -q`, as far as the checks read it."""
        out = [
            "",
            "==============NVSMI LOG==============",
            "",
            f"Attached GPUs                             : {self.gpu['count']}",
        ]
        gained = self.spec.get("counted", {}) if self.gained else {}
        for number in range(self.gpu["count"]):
            if number == self.spec.get("lost_gpu"):
                continue
            row, own = self._gpu(number), gained.get(number, {})
            health = self.spec.get("health", "Healthy" if self.gpu["fabric"] != "none" else "N/A")
            out += [
                f"GPU {row['pci.bus_id']}", f"    Product Name                          : {row['name']}",
                "    PCI", f"        Replays Since Reset               : {own.get('Replays', 0)}",
                "    Clocks Event Reasons Counters",
                f"        SW Power Capping                  : {9000 + number} us",
                f"        HW Thermal Slowdown               : {own.get('HW Thermal Slowdown', 0)} us",
                "    ECC Errors", "        Volatile",
                f"            SRAM Correctable              : {own.get('SRAM Correctable', 0)}",
                f"            DRAM Uncorrectable            : {own.get('DRAM Uncorrectable', 0)}",
                "    Fabric", f"        State                             : {row['fabric.state'].strip('[]')}",
                f"        Status                            : {row['fabric.status'].strip('[]')}",
                f"        CliqueId                          : {row['fabric.cliqueId']}",
                f"        ClusterUUID                       : {row['fabric.clusterUuid']}",
                "        Health", f"            Summary                       : {health}",
                f"            Bandwidth                     : {'Full' if health == 'Healthy' else 'N/A'}",
            ]  # fmt: skip
        return "\n".join(out) + "\n"

    def _list(self) -> str:
        out = []
        for number in range(self.gpu["count"]):
            out.append(f"GPU {number}: {self.gpu['name']} (UUID: GPU-{number})")
            out += [
                f"  MIG 1g.5gb      Device  {n}: (UUID: MIG-{n})"
                for n in range(self.gpu.get("slices", 0))
            ]
        return "\n".join(out) + "\n"

    # the kernel's log and NCCL's

    def kernel_log(self) -> list[str]:
        if self.spec.get("dmesg_restrict"):
            raise PermissionError(1, "Operation not permitted")
        boot = (
            "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link "
            "DLREQ interrupt"
        )
        return ["usb 1-1: new device", boot, *self.spec.get("kernel", [])]

    def domain(self) -> dict[str, Any] | None:
        """The NVLink domain that the GPUs have joined."""
        found: dict[str, Any] | None = self.spec.get("domain")
        return found if self.gpu["fabric"] == "rack" else None

    def domain_name(self) -> str:
        """What collectives.domain says here."""
        from hpcstack_smoke.node import nvlink
        from support.clusters import on

        with on(self):
            return "/".join(next(iter(nvlink.read_domains().values()), ()))

    def by_nvlink(self, other: Node) -> bool:
        """Whether NCCL goes to OTHER by NVLink."""
        return not self.spec["nccl"].get("imex_down") and not other.spec["nccl"].get("imex_down")

    def nccl_log(self, rank: int, local: int, cluster: Cluster) -> list[str]:
        """What NCCL writes in one rank: a ring, and the rail to the next node."""
        nccl, world, each = self.spec["nccl"], cluster.world, cluster.ranks
        head = f"{self.host}:{1000 + local}:{2000 + local} [{local}] NCCL INFO "
        out = [f"{head}NCCL version 2.23.4+cuda12.6", f"{head}Using network {nccl['network']}"]
        if nccl["network"] == "IB":
            hcas = " ".join(f"[{n}]{name}:1/IB" for n, name in enumerate(sorted(self._ports())))
            out.append(f"{head}NET/IB : Using {hcas} [RO]; OOB eth0:10.0.0.{self.place}<0>")
        if not nccl.get("nvls", True):
            out.append(f"{head}NVLS multicast support is not available on dev {local}")
        for peer in {
            (rank + 1) % world,
            (rank + each) % world,
            (rank - 1) % world,
            (rank - each) % world,
        } - {rank}:
            other = cluster.nodes[peer // each]
            out.append(
                f"{head}Channel 00/0 : {rank}[{local}] -> "
                f"{peer}[{peer % each}]{self._via(other, local)}"
            )
        return out

    def _via(self, other: Node, local: int) -> str:
        nccl = self.spec["nccl"]
        if other is self:
            return f" via {nccl['within']}"
        same = self.domain() and other.domain() and self.domain() == other.domain()
        if same and self.by_nvlink(other):
            return f" via {nccl['domain']}"
        between = other.spec["nccl"].get("falls_to") or nccl.get("falls_to") or nccl["between"]
        return " [send] via " + re.sub(r"\{rail\}", str(local), between)
