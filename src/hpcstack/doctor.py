"""Doctor: what is wrong with a machine for running stacks, why it matters, and what to type. Judges of a probe's lines.

`launchers/doctor.sh` tells KEY=VALUE lines of the login node and of each compute node; nothing here starts a program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from hpcstack.site import NodeType

Status = Literal["OK", "WARN", "FAIL", "SKIP"]
SHM_GIB, TMP_GIB, DRIFT_S = 1.0, 20.0, 5.0
NOFILE = 4096


@dataclass(frozen=True)
class Finding:
    """One thing looked at on one machine."""

    code: str
    where: str
    status: Status
    found: str
    why: str = ""
    remedy: str = ""


def read(lines: str) -> dict[str, str]:
    """The probe's lines; what is none of them is left out."""
    found = {}
    for line in lines.splitlines():
        key, sign, value = line.partition("=")
        if sign and re.fullmatch(r"[a-z][A-Za-z0-9_.:/+-]*", key):
            found[key] = value.strip()
    return found


def machine(probe: Mapping[str, str], runtime: str, node: NodeType | None, *, compute: bool) -> list[Finding]:
    """What PROBE says of one machine. NODE is what the site promises of it, RUNTIME what steps are started with."""
    where = probe.get("host", "?")
    found = [*_runtime(probe, where, runtime, compute=compute), *_limits(probe, where, compute=compute)]
    if compute:
        found += [*_gpus(probe, where, node), *_fabric(probe, where, node)]
    found += _paths(probe, where)
    return found


def _runtime(probe: Mapping[str, str], where: str, runtime: str, *, compute: bool) -> Iterator[Finding]:
    works = probe.get("userns.works")
    if works == "no" and probe.get("apptainer.setuid") != "yes":
        said = ", ".join(
            f"{key.partition('.')[2]}={probe[key]}"
            for key in ("userns.max", "userns.clone", "userns.apparmor")
            if probe.get(key)
        )
        yield Finding(
            "userns",
            where,
            "FAIL",
            f"an ordinary user may make no user namespace ({said})",
            "Enroot, Pyxis and Apptainer without setuid start no container",
            "as root: sysctl -w user.max_user_namespaces=63556 kernel.apparmor_restrict_unprivileged_userns=0",
        )
    else:
        yield Finding("userns", where, "OK", "user namespaces work" if works == "yes" else "not looked at")
    fuse = probe.get("fuse", "missing")
    needs = runtime in ("apptainer", "enroot", "local") and probe.get("apptainer.setuid") != "yes"
    if fuse != "usable" and needs:
        yield Finding(
            "fuse",
            where,
            "FAIL",
            f"/dev/fuse: {fuse}",
            f"{runtime} mounts an image by FUSE where it has no setuid",
            "as root: modprobe fuse; chmod 666 /dev/fuse",
        )
    else:
        yield Finding("fuse", where, "OK" if fuse == "usable" else "SKIP", f"/dev/fuse: {fuse}")
    tool = {"pyxis": "enroot", "local": "apptainer"}.get(runtime, runtime)
    if compute and f"tool.{tool}" not in probe:
        yield Finding(
            "runtime",
            where,
            "FAIL",
            f"{tool} is not there",
            f"steps are started with {runtime}",
            f"install {tool} on every node, or name another runtime in site.yaml",
        )
    elif f"tool.{tool}" in probe:
        yield Finding("runtime", where, "OK", f"{tool} {probe.get(f'{tool}.version', '')}".strip())
    yield from _enroot(probe, where, runtime)


def _enroot(probe: Mapping[str, str], where: str, runtime: str) -> Iterator[Finding]:
    if runtime not in ("pyxis", "enroot") or "tool.enroot" not in probe:
        return
    hooks = probe.get("enroot.hooks", "")
    if "98-nvidia.sh" in hooks and "tool.nvidia-container-cli" not in probe and probe.get("gpus", "0") != "0":
        yield Finding(
            "enroot.nvidia",
            where,
            "FAIL",
            "Enroot's 98-nvidia.sh is there, nvidia-container-cli is not",
            "the hook stops the start of every image that asks for GPUs",
            "install libnvidia-container-tools",
        )
    if "50-slurm-pmi.sh" not in hooks:
        yield Finding(
            "enroot.pmi",
            where,
            "WARN",
            "Enroot's 50-slurm-pmi.sh hook is not enabled",
            "MPI programs in containers may not find Slurm's PMI",
            "copy it from Enroot's share/enroot/hooks.d",
        )
    version = re.match(r"(\d+)\.(\d+)", probe.get("enroot.version", ""))
    if version and int(version[1]) < 4:
        yield Finding(
            "enroot.version",
            where,
            "WARN",
            f"Enroot {version[0]}",
            "before 4.0 it takes no IMAGE:TAG@sha256:... (hpcstack hands it files, so its own steps run)",
            "update Enroot",
        )


def _limits(probe: Mapping[str, str], where: str, *, compute: bool) -> Iterator[Finding]:
    shm = _number(probe.get("shm.kb", "")) / (1 << 20)
    if compute and shm < SHM_GIB:
        yield Finding(
            "shm",
            where,
            "WARN",
            f"/dev/shm has {shm:.1f} GiB",
            "NCCL and data loaders share memory there; they end with a bus error when it is full",
            "as root: mount -o remount,size=50% /dev/shm",
        )
    elif compute:
        yield Finding("shm", where, "OK", f"/dev/shm has {shm:.1f} GiB")
    free = _number(probe.get("tmp.kb", "")) / (1 << 20)
    place = probe.get("tmp", "/tmp")
    if probe.get("tmp.writable") == "no":
        yield Finding(
            "tmp", where, "FAIL", f"{place} is not writable", "builds and runtimes unpack there", "set TMPDIR"
        )
    elif free < TMP_GIB:
        yield Finding(
            "tmp",
            where,
            "WARN",
            f"{place} has {free:.1f} GiB free",
            "a build of NVIDIA's PyTorch image takes more",
            "build.tmpdir in site.yaml, or make room",
        )
    else:
        yield Finding("tmp", where, "OK", f"{place} has {free:.0f} GiB free")
    files = _number(probe.get("nofile", ""))
    if compute and 0 < files < NOFILE:
        yield Finding(
            "nofile",
            where,
            "WARN",
            f"{files:.0f} open files a process",
            "data loaders with many workers run out of them",
            "ulimit -n, or LimitNOFILE of slurmd",
        )


def _gpus(probe: Mapping[str, str], where: str, node: NodeType | None) -> Iterator[Finding]:
    have, promised = int(_number(probe.get("gpus", "0"))), node.real_gpus if node else 0
    driver = probe.get("driver", "")
    if not promised and not have:
        yield Finding("gpu", where, "SKIP", "no GPU, and the site promises none")
        return
    if have < promised:
        yield Finding(
            "gpu",
            where,
            "FAIL",
            f"{have} of {promised} GPUs that the site promises",
            "jobs land here and find fewer than they asked for",
            "nvidia-smi; dmesg | grep -i xid; drain the node",
        )
    else:
        yield Finding("gpu", where, "OK", probe.get("gpu.names") or f"{have} GPUs")
    if not driver:
        yield Finding(
            "driver",
            where,
            "FAIL",
            "no driver is loaded",
            "nothing sees the GPUs",
            "as root: modprobe nvidia; dmesg | tail",
        )
    elif node and node.driver and node.driver != driver:
        yield Finding(
            "driver",
            where,
            "WARN",
            f"driver {driver}, the site says {node.driver}",
            "which images run is judged by what the site says",
            f"node_types: {{...: {{driver: {driver}}}}} in site.yaml",
        )
    else:
        yield Finding("driver", where, "OK", f"driver {driver}")


def _fabric(probe: Mapping[str, str], where: str, node: NodeType | None) -> Iterator[Finding]:
    ports = {key.removeprefix("hca."): value for key, value in probe.items() if key.startswith("hca.")}
    promised = set(node.hcas) if node else set()
    missing = promised - {name.rpartition(".")[0] for name in ports}
    if missing:
        yield Finding(
            "hca",
            where,
            "FAIL",
            f"not there: {', '.join(sorted(missing))}",
            "NCCL falls back to sockets without a word",
            "ibstat; lspci | grep -i mellanox; drain the node",
        )
    down = [name for name, value in ports.items() if "ACTIVE" not in value]
    if down:
        status: Status = "FAIL" if any(name.rpartition(".")[0] in promised for name in down) else "WARN"
        yield Finding(
            "hca",
            where,
            status,
            "; ".join(f"{name}: {ports[name]}" for name in down),
            "these links carry nothing",
            "ibstat; the cable, the switch port, opensm",
        )
    if ports and not missing and not down:
        yield Finding("hca", where, "OK", f"{len(ports)} port(s) active")
    if not ports and not promised:
        yield Finding("hca", where, "SKIP", "no HCA, and the site promises none")
        return
    if ports and probe.get("infiniband.devices") == "no":
        yield Finding(
            "hca.devices",
            where,
            "FAIL",
            "/dev/infiniband is not there",
            "no program can open an HCA",
            "as root: modprobe ib_uverbs",
        )
    lock = probe.get("memlock.kb", "")
    if ports and lock != "unlimited":
        yield Finding(
            "memlock",
            where,
            "FAIL",
            f"ulimit -l is {lock} kB",
            "RDMA pins memory: NCCL fails with 'Cannot allocate memory'",
            "LimitMEMLOCK=infinity for slurmd, and PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
        )
    if ports and _number(probe.get("gpus", "0")) and probe.get("gpudirect") == "none":
        yield Finding(
            "gpudirect",
            where,
            "WARN",
            "neither nvidia_peermem nor nv_peer_mem is loaded",
            "without dma-buf, data between nodes goes through the host's memory",
            "as root: modprobe nvidia_peermem",
        )


def _paths(probe: Mapping[str, str], where: str) -> Iterator[Finding]:
    for key, value in probe.items():
        if key.startswith("readable."):
            path = key.removeprefix("readable.")
            if value == "yes":
                yield Finding("store", where, "OK", f"{path} is readable")
            else:
                yield Finding(
                    "store",
                    where,
                    "FAIL",
                    f"{path} is not readable",
                    "images lie there: no step starts",
                    "is its filesystem mounted here? Are its folders r-x for all?",
                )


def clocks(probes: list[Mapping[str, str]], spent: float) -> Iterator[Finding]:
    """Whether the machines agree on the time, beyond the SPENT seconds in which they were asked."""
    times = {probe.get("host", "?"): _number(probe.get("epoch", "")) for probe in probes}
    if len(times) < 2 or not all(times.values()):
        return
    early, late = min(times, key=lambda host: times[host]), max(times, key=lambda host: times[host])
    apart = times[late] - times[early]
    if apart > spent + DRIFT_S:
        yield Finding(
            "clock",
            late,
            "FAIL",
            f"{apart - spent:.0f} s ahead of {early}",
            "munge refuses its messages, builds and leases see times that are wrong",
            "chronyc tracking, on both",
        )
    else:
        yield Finding("clock", "all", "OK", f"{len(times)} machines agree")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("inf") if text == "unlimited" else 0.0
