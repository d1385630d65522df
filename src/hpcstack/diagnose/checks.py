"""Doctor: what is wrong with a machine for running stacks, why it matters, and what to type. Judges
of a probe's lines.

`launchers/on-node/doctor.sh` tells KEY=VALUE lines of the login node and of each compute node;
nothing here starts a program.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpcstack.core.errors import format_count
from hpcstack.diagnose.advice import Finding, Status, report_fine, report_skipped, report_wrong
from hpcstack.runtimes import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpcstack.site.load import NodeType

SHM_GIB, TMP_GIB, DRIFT_S = 1.0, 20.0, 5.0
NOFILE = 4096


def parse_probe(lines: str) -> dict[str, str]:
    """The probe's lines; what is none of them is left out."""
    found = {}
    for line in lines.splitlines():
        key, sign, value = line.partition("=")
        if sign and re.fullmatch(r"[a-z][A-Za-z0-9_.:/+-]*", key):
            found[key] = value.strip()
    return found


def check_machine(
    probe: Mapping[str, str], runtime: str, node: NodeType | None, *, compute: bool
) -> list[Finding]:
    """What PROBE says of one machine.

    NODE is what the site promises of it, RUNTIME what steps are started with.
    """
    where = probe.get("host", "?")
    found = [
        *_runtime(probe, where, runtime, compute=compute),
        *_limits(probe, where, compute=compute),
    ]
    if compute:
        found += [*_gpus(probe, where, node), *_fabric(probe, where, node)]
    found += _paths(probe, where)
    return found


def _runtime(
    probe: Mapping[str, str], where: str, runtime: str, *, compute: bool
) -> Iterator[Finding]:
    works, setuid = probe.get("userns.works"), probe.get("apptainer.setuid") == "yes"
    if works == "no" and not setuid:
        limits = ("userns.max", "userns.clone", "userns.apparmor")
        said = ", ".join(
            f"{key.partition('.')[2]}={probe[key]}" for key in limits if probe.get(key)
        )
        yield report_wrong(
            "userns", where, f"ordinary users cannot create user namespaces ({said})"
        )
    else:
        yield report_fine(
            "userns", where, "user namespaces work" if works == "yes" else "not looked at"
        )
    fuse = probe.get("fuse", "missing")
    if fuse == "usable":
        yield report_fine("fuse", where, "/dev/fuse: usable")
    elif runtime in ("apptainer", "enroot", "local") and not setuid:
        yield report_wrong("fuse", where, f"/dev/fuse: {fuse}", runtime=runtime)
    else:
        yield report_skipped("fuse", where, f"/dev/fuse: {fuse}")
    if not compute or runtime == "podman":
        own = probe.get("subuid", "")
        many = own.isdigit() and int(own) > 0
        said = f"{own if many else 'no'} range(s) in /etc/subuid for {probe.get('user', '?')}"
        yield (
            report_fine("subuid", where, said)
            if many
            else report_wrong("subuid", where, said, user=probe.get("user", "USER"))
        )
    tool = RUNTIMES[runtime].tool if runtime in RUNTIMES else runtime
    if f"tool.{tool}" in probe:
        yield report_fine("runtime", where, f"{tool} {probe.get(f'{tool}.version', '')}".strip())
    elif compute:
        yield report_wrong("runtime", where, f"{tool} is missing", runtime=runtime, tool=tool)
    if runtime in ("pyxis", "enroot") and "tool.enroot" in probe:
        yield from _enroot(probe, where)


def _enroot(probe: Mapping[str, str], where: str) -> Iterator[Finding]:
    hooks = probe.get("enroot.hooks", "")
    if (
        "98-nvidia.sh" in hooks
        and "tool.nvidia-container-cli" not in probe
        and probe.get("gpus", "0") != "0"
    ):
        yield report_wrong(
            "enroot.nvidia", where, "Enroot's 98-nvidia.sh is there, nvidia-container-cli is not"
        )
    if "50-slurm-pmi.sh" not in hooks:
        yield report_wrong("enroot.pmi", where, "Enroot's 50-slurm-pmi.sh hook is not enabled")
    if probe.get("enroot.mksquashovlfs") == "":
        yield report_wrong("enroot.caps", where, "enroot-mksquashovlfs has no capability")
    version = re.match(r"(\d+)\.(\d+)", probe.get("enroot.version", ""))
    if version and int(version[1]) < 4:
        yield report_wrong("enroot.version", where, f"Enroot {version[0]}")


def _limits(probe: Mapping[str, str], where: str, *, compute: bool) -> Iterator[Finding]:
    shm, free = (_number(probe.get(key, "")) / (1 << 20) for key in ("shm.kb", "tmp.kb"))
    place, files = probe.get("tmp", "/tmp"), _number(probe.get("nofile", ""))
    if compute:
        yield (report_wrong if shm < SHM_GIB else report_fine)(
            "shm", where, f"/dev/shm has {shm:.1f} GiB"
        )
    if probe.get("tmp.writable") == "no":
        yield report_wrong("tmp", where, f"{place} is not writable")
    elif free < TMP_GIB:
        yield report_wrong("tmp.room", where, f"{place} has {free:.1f} GiB free")
    else:
        yield report_fine("tmp", where, f"{place} has {free:.0f} GiB free")
    if compute and 0 < files < NOFILE:
        yield report_wrong("nofile", where, f"{files:.0f} open files a process")


def _gpus(probe: Mapping[str, str], where: str, node: NodeType | None) -> Iterator[Finding]:
    have, promised = int(_number(probe.get("gpus", "0"))), node.real_gpus if node else 0
    driver = probe.get("driver", "")
    if not promised and not have:
        yield report_skipped("gpu", where, "no GPU, and the site promises none")
        return
    if have < promised:
        yield report_wrong("gpu", where, f"{have} of {promised} GPUs that the site promises")
    else:
        yield report_fine("gpu", where, probe.get("gpu.names") or f"{have} GPUs")
    if not driver:
        yield report_wrong("driver", where, "no driver is loaded")
    elif node and node.driver and node.driver != driver:
        yield report_wrong(
            "driver.other", where, f"driver {driver}, the site says {node.driver}", driver=driver
        )
    else:
        yield report_fine("driver", where, f"driver {driver}")


def _fabric(probe: Mapping[str, str], where: str, node: NodeType | None) -> Iterator[Finding]:
    ports = {
        key.removeprefix("hca."): value for key, value in probe.items() if key.startswith("hca.")
    }
    promised = set(node.hcas) if node else set()
    if not ports and not promised:
        yield report_skipped("hca", where, "no HCA, and the site promises none")
        return
    missing = promised - {_card(port) for port in ports}
    down = {port: value for port, value in ports.items() if "ACTIVE" not in value}
    if missing:
        yield report_wrong("hca", where, f"not there: {', '.join(sorted(missing))}")
    if down:
        status: Status = "FAIL" if promised & {_card(port) for port in down} else "WARN"
        yield report_wrong(
            "hca.link", where, "; ".join(f"{port}: {value}" for port, value in down.items()), status
        )
    if not missing and not down:
        yield report_fine("hca", where, f"{format_count(len(ports), 'port')} active")
    if ports:
        yield from _rdma(probe, where)


def _card(port: str) -> str:
    return port.rpartition(".")[0]


def _rdma(probe: Mapping[str, str], where: str) -> Iterator[Finding]:
    """What a node with HCAs needs so that programs can use them."""
    lock = probe.get("memlock.kb", "")
    if probe.get("infiniband.devices") == "no":
        yield report_wrong("hca.devices", where, "/dev/infiniband does not exist")
    if lock != "unlimited":
        yield report_wrong("memlock", where, f"ulimit -l is {lock} kB")
    if _number(probe.get("gpus", "0")) and probe.get("gpudirect") == "none":
        yield report_wrong("gpudirect", where, "neither nvidia_peermem nor nv_peer_mem is loaded")


def _paths(probe: Mapping[str, str], where: str) -> Iterator[Finding]:
    for key, value in probe.items():
        if key.startswith("readable."):
            path = key.removeprefix("readable.")
            good = value == "yes"
            yield (report_fine if good else report_wrong)(
                "store", where, f"{path} is {'' if good else 'not '}readable"
            )


def check_clocks(probes: list[Mapping[str, str]], spent: float) -> Iterator[Finding]:
    """Whether the machines agree on the time, beyond the SPENT seconds in which they were asked."""
    times = {probe.get("host", "?"): _number(probe.get("epoch", "")) for probe in probes}
    if len(times) < 2 or not all(times.values()):
        return
    early, late = min(times, key=lambda host: times[host]), max(times, key=lambda host: times[host])
    apart = times[late] - times[early]
    if apart > spent + DRIFT_S:
        yield report_wrong("clock", late, f"{apart - spent:.0f} s ahead of {early}")
    else:
        yield report_fine("clock", "all", f"{len(times)} machines agree")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("inf") if text == "unlimited" else 0.0
