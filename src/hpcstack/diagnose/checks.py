"""The doctor's checks of one machine, from what its probe printed.

The probe, launchers/on-node/doctor.sh, prints KEY=VALUE lines on the login node and on each compute
node. Nothing here starts a program.
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

# the least that is good enough
SHM_GIB = 1.0
TMP_GIB = 20.0
NOFILE = 4096  # open files of a process
DRIFT_S = 5.0  # the most that clocks may differ by


def parse_probe(lines: str) -> dict[str, str]:
    """Return {KEY: VALUE} of the probe's LINES. Other lines are left out."""
    found = {}
    for line in lines.splitlines():
        key, sign, value = line.partition("=")
        if sign and re.fullmatch(r"[a-z][A-Za-z0-9_.:/+-]*", key):
            found[key] = value.strip()
    return found


def check_machine(
    probe: Mapping[str, str], runtime: str, node: NodeType | None, *, compute: bool
) -> list[Finding]:
    """Return what PROBE says of one machine, which is a COMPUTE node or not.

    NODE is what the site promises of it, RUNTIME what steps are started with.
    """
    where = probe.get("host", "?")
    found = [
        *_check_runtime(probe, where, runtime, compute=compute),
        *_check_limits(probe, where, compute=compute),
    ]
    if compute:
        found += _check_gpus(probe, where, node)
        found += _check_fabric(probe, where, node)
    found += _check_paths(probe, where)
    return found


def _check_runtime(
    probe: Mapping[str, str], where: str, runtime: str, *, compute: bool
) -> Iterator[Finding]:
    """Check what containers need: user namespaces, FUSE, subordinate ids, and the runtime."""
    known = RUNTIMES.get(runtime)
    works = probe.get("userns.works")
    setuid = probe.get("apptainer.setuid") == "yes"  # then none of it is needed
    if works == "no" and not setuid:
        limits = ("userns.max", "userns.clone", "userns.apparmor")
        said = ", ".join(
            f"{key.partition('.')[2]}={probe[key]}" for key in limits if probe.get(key)
        )
        yield report_wrong(
            "userns", where, f"ordinary users cannot create user namespaces ({said})"
        )
    elif works == "yes":
        yield report_fine("userns", where, "user namespaces work")
    else:
        why = "not needed: apptainer is setuid" if setuid else "not looked at"
        yield report_skipped("userns", where, why)

    fuse = probe.get("fuse", "missing")
    if fuse == "usable":
        yield report_fine("fuse", where, "/dev/fuse: usable")
    elif known and known.mounts_by_fuse and not setuid:
        yield report_wrong("fuse", where, f"/dev/fuse: {fuse}", runtime=runtime)
    else:
        yield report_skipped("fuse", where, f"/dev/fuse: {fuse}")

    # builds on this machine may use podman, too
    if not compute or (known and known.needs_subuid):
        ranges = probe.get("subuid", "")
        has_ranges = ranges.isdigit() and int(ranges) > 0
        user = probe.get("user", "?")
        said = f"{ranges if has_ranges else 'no'} range(s) in /etc/subuid for {user}"
        if has_ranges:
            yield report_fine("subuid", where, said)
        else:
            yield report_wrong("subuid", where, said, user=probe.get("user", "USER"))

    tool = known.tool if known else runtime
    if f"tool.{tool}" in probe:
        version = probe.get(f"{tool}.version", "")
        yield report_fine("runtime", where, f"{tool} {version}".strip())
    elif compute:
        yield report_wrong("runtime", where, f"{tool} is missing", runtime=runtime, tool=tool)
    if tool == "enroot" and "tool.enroot" in probe:
        yield from _check_enroot(probe, where)


def _check_enroot(probe: Mapping[str, str], where: str) -> Iterator[Finding]:
    """Check Enroot's hooks, capabilities and version."""
    hooks = probe.get("enroot.hooks", "")
    has_gpus = probe.get("gpus", "0") != "0"
    if "98-nvidia.sh" in hooks and has_gpus and "tool.nvidia-container-cli" not in probe:
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


def _check_limits(probe: Mapping[str, str], where: str, *, compute: bool) -> Iterator[Finding]:
    """Check /dev/shm, the folder for temporary files, and the limit of open files."""
    shm = _parse_number(probe.get("shm.kb", "")) / (1 << 20)
    free = _parse_number(probe.get("tmp.kb", "")) / (1 << 20)
    files = _parse_number(probe.get("nofile", ""))
    place = probe.get("tmp", "/tmp")
    if compute:
        judge = report_wrong if shm < SHM_GIB else report_fine
        yield judge("shm", where, f"/dev/shm has {shm:.1f} GiB")
    if probe.get("tmp.writable") == "no":
        yield report_wrong("tmp", where, f"{place} is not writable")
    elif free < TMP_GIB:
        yield report_wrong("tmp.room", where, f"{place} has {free:.1f} GiB free")
    else:
        yield report_fine("tmp", where, f"{place} has {free:.0f} GiB free")
    if compute and 0 < files < NOFILE:
        yield report_wrong("nofile", where, f"{files:.0f} open files a process")


def _check_gpus(probe: Mapping[str, str], where: str, node: NodeType | None) -> Iterator[Finding]:
    """Check the GPUs and their driver against what the site promises of NODE."""
    have = int(_parse_number(probe.get("gpus", "0")))
    promised = node.real_gpus if node else 0
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


def _check_fabric(probe: Mapping[str, str], where: str, node: NodeType | None) -> Iterator[Finding]:
    """Check the ports of HCAs against what the site promises of NODE.

    A link that is down is a FAIL on an HCA that is promised, else a WARN.
    """
    # {CARD.NUMBER of a port: its state}
    ports = {
        key.removeprefix("hca."): value for key, value in probe.items() if key.startswith("hca.")
    }
    promised = set(node.hcas) if node else set()
    if not ports and not promised:
        yield report_skipped("hca", where, "no HCA, and the site promises none")
        return

    missing = promised - {_name_card(port) for port in ports}
    down = {port: value for port, value in ports.items() if "ACTIVE" not in value}
    if missing:
        yield report_wrong("hca", where, f"not there: {', '.join(sorted(missing))}")
    if down:
        status: Status = "FAIL" if promised & {_name_card(port) for port in down} else "WARN"
        said = "; ".join(f"{port}: {value}" for port, value in down.items())
        yield report_wrong("hca.link", where, said, status)
    if not missing and not down:
        yield report_fine("hca", where, f"{format_count(len(ports), 'port')} active")
    if ports:
        yield from _check_rdma(probe, where)


def _name_card(port: str) -> str:
    """Return the HCA that PORT, CARD.NUMBER, is of."""
    return port.rpartition(".")[0]


def _check_rdma(probe: Mapping[str, str], where: str) -> Iterator[Finding]:
    """Check what a node with HCAs needs so that programs can use them."""
    lock = probe.get("memlock.kb", "")
    if probe.get("infiniband.devices") == "no":
        yield report_wrong("hca.devices", where, "/dev/infiniband does not exist")
    if lock != "unlimited":
        yield report_wrong("memlock", where, f"ulimit -l is {lock} kB")
    if _parse_number(probe.get("gpus", "0")) and probe.get("gpudirect") == "none":
        yield report_wrong("gpudirect", where, "neither nvidia_peermem nor nv_peer_mem is loaded")


def _check_paths(probe: Mapping[str, str], where: str) -> Iterator[Finding]:
    """Check that the folders which the probe was given can be read."""
    for key, value in probe.items():
        if not key.startswith("readable."):
            continue
        path = key.removeprefix("readable.")
        if value == "yes":
            yield report_fine("store", where, f"{path} is readable")
        else:
            yield report_wrong("store", where, f"{path} is not readable")


def check_clocks(probes: list[Mapping[str, str]], spent: float) -> Iterator[Finding]:
    """Check whether the machines of PROBES agree on the time.

    The clocks were read one after another within SPENT seconds, so that much is allowed.
    """
    times = {probe.get("host", "?"): _parse_number(probe.get("epoch", "")) for probe in probes}
    if len(times) < 2 or not all(times.values()):
        return
    early = min(times, key=lambda host: times[host])
    late = max(times, key=lambda host: times[host])
    apart = times[late] - times[early]
    if apart > spent + DRIFT_S:
        yield report_wrong("clock", late, f"{apart - spent:.0f} s ahead of {early}")
    else:
        yield report_fine("clock", "all", f"{len(times)} machines agree")


def _parse_number(text: str) -> float:
    """Return TEXT as a number: infinity for `unlimited`, 0 for what is no number."""
    try:
        return float(text)
    except ValueError:
        return float("inf") if text == "unlimited" else 0.0
