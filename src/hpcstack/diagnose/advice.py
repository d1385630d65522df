"""Why each thing that the doctor finds wrong matters, and what to type: one table of all.

Tested in tests/unit/diagnose/test_checks.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Status = Literal["OK", "WARN", "FAIL", "SKIP"]


@dataclass(frozen=True)
class Finding:
    """What was found of one thing on one machine."""

    code: str
    where: str  # the machine
    status: Status
    found: str
    why: str = ""  # it matters
    remedy: str = ""  # what to type
    page: str = ""  # the how-to page about it


class Advice(NamedTuple):
    """What the table says of one kind of finding. {names} are filled in where it is found."""

    status: Status  # how bad it usually is
    why: str  # it matters
    remedy: str  # what to type
    page: str = ""  # the how-to page about it


# by the finding's code
TOLD: dict[str, Advice] = {
    "userns": Advice(
        "FAIL",
        "Enroot, Pyxis and Apptainer without setuid start no container",
        "as root: sysctl -w user.max_user_namespaces=63556 "
        "kernel.apparmor_restrict_unprivileged_userns=0",
        page="allow-user-namespaces",
    ),
    "fuse": Advice(
        "FAIL",
        "{runtime} mounts an image by FUSE where it has no setuid",
        "as root: modprobe fuse; chmod 666 /dev/fuse",
        page="allow-user-namespaces",
    ),
    "named": Advice(
        "WARN",
        "site.yaml names it, and verbs that use it fail",
        "make it, or correct `{key}` in site.yaml",
        page="describe-your-cluster",
    ),
    "filesystem": Advice(
        "FAIL",
        "publishers and builders on several machines may lose or mix up what they write",
        "move it to a filesystem that keeps them, or mount this one with other options",
        page="choose-a-filesystem",
    ),
    "runtime": Advice(
        "FAIL",
        "steps are started with {runtime}",
        "install {tool} on every node, or name another runtime in site.yaml",
        page="choose-a-runtime",
    ),
    "enroot.nvidia": Advice(
        "FAIL",
        "the hook stops the start of every image that asks for GPUs",
        "install libnvidia-container-tools",
    ),
    "enroot.pmi": Advice(
        "WARN",
        "MPI programs in containers may not find Slurm's PMI",
        "copy it from Enroot's share/enroot/hooks.d",
    ),
    "enroot.caps": Advice(
        "WARN",
        "`enroot import`, and with it srun --container-image of a registry's image, fails for "
        "ordinary users",
        "as root: setcap cap_sys_admin+pe $(command -v enroot-mksquashovlfs); "
        "setcap cap_sys_admin,cap_mknod+pe $(command -v enroot-aufs2ovlfs)",
    ),
    "subuid": Advice(
        "WARN",
        "podman has a single user id: it cannot represent files of other owners in an image",
        "as root: usermod --add-subuids 200000-265535 --add-subgids 200000-265535 {user}",
    ),
    "build.enclosure": Advice(
        "WARN",
        "nothing can be locked or built here: programs of a base are started in an enclosure or "
        "not at all",
        "build on another machine, e.g. on a node: hpcstack build --on slurm; or open it to user "
        "namespaces",
        page="allow-user-namespaces",
    ),
    "build.unconfined": Advice(
        "WARN",
        "programs of a base and of a recipe can read and write all that their user can: keys, "
        "tokens, homes",
        "lock and build on a machine where ordinary users can create user namespaces, and remove "
        "build.unconfined from site.yaml",
        page="allow-user-namespaces",
    ),
    "build.allowed": Advice(
        "WARN",
        "where no enclosure can be made, builds would run other people's programs with access to "
        "their user's files",
        "remove build.unconfined from site.yaml",
        page="choose-an-engine",
    ),
    "build.layers": Advice(
        "WARN",
        "each build unpacks its base and runs every step again",
        "a kernel of Linux 5.11 or newer on the machine that builds",
        page="choose-an-engine",
    ),
    "enroot.version": Advice(
        "WARN",
        "before 4.0 it takes no IMAGE:TAG@sha256:... (hpcstack hands it files, so its own steps "
        "run)",
        "update Enroot",
    ),
    "shm": Advice(
        "WARN",
        "NCCL and data loaders share memory there; they end with a bus error when it is full",
        "as root: mount -o remount,size=50% /dev/shm",
    ),
    "tmp": Advice("FAIL", "builds and runtimes unpack there", "set TMPDIR"),
    "tmp.room": Advice(
        "WARN",
        "a build of NVIDIA's PyTorch image takes more",
        "build.tmpdir in site.yaml, or make room",
        page="free-disk-space",
    ),
    "nofile": Advice(
        "WARN",
        "data loaders with many workers run out of them",
        "ulimit -n, or LimitNOFILE of slurmd",
    ),
    "gpu": Advice(
        "FAIL",
        "jobs land here and find fewer than they asked for",
        "nvidia-smi; dmesg | grep -i xid; drain the node",
        page="health-checks-for-nodes",
    ),
    "driver": Advice("FAIL", "nothing sees the GPUs", "as root: modprobe nvidia; dmesg | tail"),
    "driver.other": Advice(
        "WARN",
        "which images run is judged by what the site says",
        "node_types: {{...: {{driver: {driver}}}}} in site.yaml",
        page="describe-your-cluster",
    ),
    "hca": Advice(
        "FAIL",
        "NCCL silently falls back to sockets",
        "ibstat; lspci | grep -i mellanox; drain the node",
        page="health-checks-for-nodes",
    ),
    "hca.link": Advice(
        "FAIL", "these links carry nothing", "ibstat; the cable, the switch port, opensm"
    ),
    "hca.devices": Advice("FAIL", "no program can open an HCA", "as root: modprobe ib_uverbs"),
    "memlock": Advice(
        "FAIL",
        "RDMA pins memory: NCCL fails with 'Cannot allocate memory'",
        "LimitMEMLOCK=infinity for slurmd, and PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
    ),
    "gpudirect": Advice(
        "WARN",
        "without dma-buf, data between nodes goes through the host's memory",
        "as root: modprobe nvidia_peermem",
    ),
    "store": Advice(
        "FAIL",
        "images are there: without them no step starts",
        "is its filesystem mounted here? Are its folders r-x for all?",
    ),
    "clock": Advice(
        "FAIL",
        "munge rejects its messages, and builds and leases see wrong times",
        "chronyc tracking, on both",
    ),
    "slurm": Advice(
        "FAIL", "nothing can be launched", "systemctl status slurmctld munge; scontrol ping"
    ),
    "partition": Advice(
        "FAIL",
        "launches to it are refused",
        "Slurm has: {known}",
        page="describe-your-cluster",
    ),
    "partition.down": Advice("WARN", "jobs wait", "sinfo -p {partition}"),
    "nodes": Advice("WARN", "fewer nodes than the site has", "sinfo -R"),
    "health.once": Advice(
        "WARN",
        "{program} runs only when slurmd starts: later faults are not found",
        "HealthCheckNodeState=ANY,CYCLE in slurm.conf",
        page="health-checks-for-nodes",
    ),
    "domains": Advice(
        "WARN",
        "Slurm does not keep the parts of a job within NVLink domains",
        "TopologyPlugin=topology/block, and a block for each domain in topology.conf (Slurm 24.11)",
        page="use-nvlink-domains",
    ),
    "domains.size": Advice(
        "WARN",
        "a part of a job may lie in two NVLink domains",
        "a block for each domain in topology.conf, or another domain_nodes in site.yaml",
        page="use-nvlink-domains",
    ),
    "pmi": Advice(
        "WARN",
        "MPI programs would each be alone",
        "install Slurm's PMIx plugin and libpmix, restart slurmd",
        page="choose-a-mode",
    ),
    "pmi.pmix": Advice(
        "WARN",
        "in mode mpi, programs built with Open MPI 5 do not start: it needs PMIx",
        "install Slurm's PMIx plugin and libpmix, restart slurmd",
        page="choose-a-mode",
    ),
    "pyxis": Advice(
        "WARN",
        "users who write srun --container-image get an error",
        "plugstack.conf: required .../spank_pyxis.so",
        page="set-up-pyxis",
    ),
    "pyxis.unpacks": Advice(
        "WARN",
        "every step unpacks its image on every node before it starts: minutes with NVIDIA's",
        "plugstack.conf: use_squashfuse=1 behind spank_pyxis.so (Pyxis 0.22 or newer; squashfuse "
        "on every node)",
        page="set-up-pyxis",
    ),
    "mounting.squashfuse": Advice(
        "WARN",
        "many ranks wait for a single thread that decompresses",
        "on every node: hpcstack site squashfuse -o /usr/local/bin/squashfuse (before /usr/bin in "
        "slurmd's PATH)",
        page="set-up-pyxis",
    ),
    "mounting.one-thread": Advice(
        "WARN",
        "many ranks wait for a single thread that decompresses",
        "install squashfuse_ll on every node, then: hpcstack site squashfuse -o "
        "/usr/local/bin/squashfuse",
        page="set-up-pyxis",
    ),
    "image-cache": Advice(
        "FAIL",
        "each node imports each image for itself, and none is shared",
        "a folder of the account that image_cache in site.yaml names, which nobody else may write",
        page="set-up-the-image-cache",
    ),
    "image-cache.acl": Advice(
        "WARN",
        "only images that anybody may pull are shared; of others each node makes its own",
        "image_cache.folder in site.yaml on a filesystem with ACLs (on Lustre: mounted with acl)",
        page="set-up-the-image-cache",
    ),
    "registry": Advice(
        "FAIL",
        "no base can be looked up or fetched",
        "registries and build.proxy in site.yaml; curl -I https://.../v2/",
        page="mirror-a-registry",
    ),
    "registry.login": Advice(
        "WARN",
        "private images cannot be had, and public ones are asked for without it",
        "make a new key, and log in again: docker login HOST",
        page="mirror-a-registry",
    ),
    "registry.layers": Advice(
        "FAIL",
        "a base can be looked up, and no build or import can fetch it",
        "let this machine reach that host too: firewall, or build.proxy in site.yaml",
        page="mirror-a-registry",
    ),
    "place": Advice("WARN", "the first build or publish makes it", "mkdir -p {path}"),
    "place.closed": Advice("FAIL", "users cannot read what lies below", "chmod o+x {path}"),
    "place.room": Advice(
        "WARN",
        "an image of NVIDIA's PyTorch takes 10 to 20 GiB",
        "hpcstack gc --dry-run",
        page="free-disk-space",
    ),
    "lmod": Advice(
        "WARN",
        "publish cannot try a module before users see it",
        "install lmod, or set LMOD_CMD",
    ),
}


def report_wrong(
    code: str, where: str, found: str, status: Status | None = None, **names: str
) -> Finding:
    """Return the finding that something is wrong on the machine WHERE, with the table's advice.

    STATUS takes the place of the table's. NAMES are filled into the advice.
    """
    advice = TOLD[code]
    return Finding(
        code,
        where,
        status or advice.status,
        found,
        why=advice.why.format(**names),
        remedy=advice.remedy.format(**names),
        page=advice.page,
    )


def report_fine(code: str, where: str, found: str) -> Finding:
    """Return the finding that something is as it should be on the machine WHERE."""
    return Finding(code, where, "OK", found)


def report_skipped(code: str, where: str, found: str) -> Finding:
    """Return the finding that something was not looked at, or does not matter, on WHERE."""
    return Finding(code, where, "SKIP", found)
