"""Render the srun and sbatch scripts that users copy, and the scripts that nodes run.

Tested in tests/unit/launch/test_plan.py and tests/unit/render/test_health.py.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.names import STARTED_IN_IMAGE
from hpcstack.core.quote import quote_sh
from hpcstack.render.template import fill_template, read_data_file
from hpcstack.runtimes import RUNTIMES
from hpcstack.site.model import NodeType
from hpcstack_smoke.node.gpu import BAD_XIDS, EVER_MAX, RESET_XIDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcstack.recipe.model import Stack
    from hpcstack.site.load import Site

SIGNER = "hpcstack"  # the identity of signers, as in store/signing.py
COMPAT = 'if [ -r /opt/hpcstack/compat.sh ]; then . /opt/hpcstack/compat.sh; fi; exec "$@"'

# A shell command that adds folders to the loader's search path. $1: the folders, which the loader
# searches first, joined by colons; then the command to run.
HOST_LIBRARIES = (
    'export LD_LIBRARY_PATH="$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"; shift; exec "$@"'
)


def with_host_libraries(folders: Sequence[str], command: tuple[str, ...]) -> tuple[str, ...]:
    """Return COMMAND, for which the loader searches FOLDERS of the container before all others."""
    if not folders:
        return command
    return ("/bin/sh", "-c", HOST_LIBRARIES, "host-libraries", ":".join(folders), *command)


def with_compat(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return COMMAND, run after images/compat.sh, which prepares the image for the node's driver.

    Pyxis runs no entrypoint, so the command has to do it.
    """
    return ("/bin/sh", "-c", COMPAT, "compat", *command)


# What the head of a script that users copy says of its launch mode.
ABOUT = {
    "torchrun": "one task per node, which starts torchrun there",
    "deepspeed": "one task per node, which starts DeepSpeed's own launcher there",
    "task-per-gpu": "a task per GPU, with torch's variables made of Slurm's",
    "mpi": "a task per rank, which MPI knows by PMIx or PMI-2",
    "plain": "the command as it is, in Slurm's own tasks",
}


def render_inner(mode: str, *, label: bool = False) -> str:
    """Return the POSIX shell script that each task runs inside the image for MODE.

    It is empty where a task runs the command itself. Its arguments: ranks per node, MIN:MAX nodes
    of an elastic step or nothing, restarts, the command. With LABEL, each rank begins its lines with
    its number.
    """
    if mode not in STARTED_IN_IMAGE:
        return ""
    labels = ""
    if label:
        program = read_data_file("launchers", "in-image/label.py")
        labels = f"HPCSTACK_LABEL={quote_sh(program)}\nexport HPCSTACK_LABEL\n"
    parts = ("order.sh", "rendezvous.sh", "rank.sh", f"{mode}.sh")
    return labels + "".join(read_data_file("launchers", f"in-image/{part}") for part in parts)


def wrap_rank(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return COMMAND as a rank that reports its failure (launchers/in-image/rank.sh)."""
    parts = (read_data_file("launchers", f"in-image/{part}") for part in ("order.sh", "rank.sh"))
    script = "".join(parts) + 'eval "$HPCSTACK_RANK"\n'
    return ("/bin/sh", "-c", script, "rank", *command)


def render_launcher_files(stack: Stack, site: Site, image: Mapping[str, str]) -> dict[str, str]:
    """Return `srun.sh` and `sbatch.sh` for STACK at SITE; IMAGE are its image's variables."""
    node = site.node_type() or NodeType()
    runtime = RUNTIMES.get(site.runtime)
    brought = site.fabric.bring(site.kinds(), image)
    between_nodes = site.fabric.settings_for(2, {})

    # Variables that win over the image's own.
    forced: list[str] = []
    if not node.real_gpus:
        forced.append("NVIDIA_VISIBLE_DEVICES")
    forced += between_nodes
    for one in brought:
        forced += one.settings

    values = {
        "stack": stack.full_name,
        "name": stack.name,
        "version": stack.release_version,
        "mode": stack.launch.mode,
        "about": ABOUT[stack.launch.mode],
        "one_task": stack.launch.mode in ("torchrun", "deepspeed"),
        "inner": render_inner(stack.launch.mode),
        "ranks": max(node.real_gpus, 1),
        "gpus": node.gpus.count if node.gpus else 0,
        "cpus": node.cpus,
        "real_gpus": bool(node.real_gpus),
        "compat": COMPAT,
        "fabric": site.fabric.settings,
        "between_nodes": {
            name: row for name, row in between_nodes.items() if name not in site.fabric.settings
        },
        "forced": list(dict.fromkeys(forced)),
        "brought": brought,
        "searched": ":".join(folder for one in brought for folder in one.folders),
        "host_libraries": HOST_LIBRARIES,
        "runtime": runtime.name if runtime and runtime.in_scripts else "auto",
        "mounts": "".join(f"{mount}," for mount in site.mounts),
    }
    return {
        name: fill_template("launchers", f"to-copy/{name}.j2", **values)
        for name in ("srun.sh", "sbatch.sh")
    }


# Seconds that one question to a node may take: nvidia-smi took 25 to 40 s without persistence mode
# (Azure/AgentBaker 2897), 2 and 5 s were too short on busy nodes (NordicHPC/sonar 92), and gpud
# waits 30 s.
HEALTH_LIMIT = 90
# Seconds to wait until Slurm shows what other nodes have done at the same moment.
HEALTH_SETTLE = 3
# Nodes that are drained in an hour, at most, because one and the same question got no answer.
MOST_MISSED = 2
# Tenths of a second that the script waits for answers by hand, and for `launch --spare`.
HEALTH_WAIT_TENTHS = 50
TMP_MIB = 512  # MiB that /tmp should have left
SELF_EXPLAINING = 154  # an Xid whose own message says what is to be done


def render_health(site: Site) -> str:
    """Return a script for Slurm's HealthCheckProgram and Prolog.

    It checks that a node has what SITE says of nodes of its type.
    """
    types = {name: _health_checks(node) for name, node in site.node_types.items()}
    numbers = {name: number for number, name in enumerate(types, 1)}
    xids = [str(number) for number in BAD_XIDS if number != SELF_EXPLAINING]

    return fill_template(
        "launchers",
        "on-node/health.sh.j2",
        site=site.name,
        types=types or {"any": []},
        partitions={
            name: [(_match_node(site.node_types[kind]), numbers[kind]) for kind in one.kinds]
            for name, one in site.partitions.items()
        },
        kind_of_node=KIND_OF_NODE,
        folders=_health_folders(site),
        limit_seconds=HEALTH_LIMIT,
        wait_tenths=HEALTH_WAIT_TENTHS,
        settle_seconds=HEALTH_SETTLE,
        tmp_mib=TMP_MIB,
        sram_ever=EVER_MAX,
        xids="|".join(xids),
        xids_reset="|".join(map(str, RESET_XIDS)),
        decision=read_data_file("launchers", "on-node/health.awk"),
        misses=site.health.misses,
        clean=site.health.clean,
        undrains=site.health.undrains,
        ignore=site.health.ignore,
        own=site.health.folder,
        max_drains=site.health.max_drains,
        max_drained=site.health.max_drained,
        most_missed=MOST_MISSED,
        boot_minutes=site.health.boot_minutes,
    )


# Makes ` MODEL COUNT CPUS` of `%c|%G`, for whole GPUs, in small letters: ` h100 8 96`, ` - 8 96` where
# Slurm names no model, ` none 0 64` without any. Places, `(S:0-1)`, and other resources are left out.
KIND_OF_NODE = r"""
{
    cpus = $1; text = tolower($2); gsub(/\([^()]*\)/, "", text)
    model = "none"; count = 0
    for (n = split(text, entries, ","); n; n--) {
        words = split(entries[n], word, ":")
        if (word[1] != "gpu" || word[words] !~ /^[0-9]+$/) continue
        if (words > 2 && word[2] ~ /(^|[_-])[0-9]+g[._][0-9]+gb/) continue
        model = words > 2 ? word[2] : "-"; count += word[words]
    }
    sub(/[^0-9].*/, "", cpus)
    print " " model " " count " " cpus
}
"""


def _match_node(node: NodeType) -> str:
    """Return the pattern of a shell's `case` for what KIND_OF_NODE says of nodes like NODE."""
    cpus = str(node.cpus) if node.cpus else "*"
    count = node.gpus.count if node.gpus else 0
    end = f'" {count} "{cpus}'
    if not count:
        return f'" none"{end}'
    if node.gpus is None or node.has_virtual_gpus:
        return f"*{end}"
    words = re.sub(r"[^a-z0-9]+", " ", node.gpus.model.lower()).split()
    model = "[!a-z0-9]".join(words).replace("xx", "[0-9][0-9]")
    return f'*[!a-z0-9]{model}{end}|*[!a-z0-9]{model}[!a-z0-9]*{end}|" -"{end}'


def list_health_checks(site: Site) -> tuple[int, int]:
    """Return how many checks a node of SITE has at most, and how many of them ask file servers."""
    folders = len(_health_folders(site))
    of_a_type = max((len(_health_checks(node)) for node in site.node_types.values()), default=0)
    return 3 + folders + of_a_type, folders


def _health_folders(site: Site) -> list[str]:
    """Return the folders that jobs need from file servers: the store, and what SITE mounts.

    A store that site.yaml does not name is the caller's own, below their home: other users' jobs do
    not need it, and nodes need not see it.
    """
    folders = [Path(mount.partition(":")[0]) for mount in site.mounts]
    if site.has_shared_store:
        folders.insert(0, site.store)
    return list(dict.fromkeys(map(str, folders)))


def _health_checks(node: NodeType) -> list[tuple[str, list[str]]]:
    """Return (name, command) of each check that nodes like NODE get."""
    out = []
    if node.real_gpus:
        out.append(("gpus", ["gpus", str(node.real_gpus), node.driver]))
        if node.gpus and node.gpus.nvlink:
            out.append(("nvlink", ["nvlinks"]))
    for number, hca in enumerate(node.hcas, 1):
        out.append((f"port-{number}", ["port", hca, str(node.hca_rate)]))
    return out


def render_importer(site: Site, check: str, command: str = "hpcstack", site_file: str = "") -> str:
    """Return Pyxis's importer for SITE, a POSIX shell script.

    CHECK is `full`, to check the sha256 of an image, or `none`. COMMAND is hpcstack on the nodes;
    the importer asks it where the site has an image cache. SITE_FILE is its site.yaml.
    """
    signers: list[str] = []
    if site.signatures.required:
        signers = [f"{SIGNER} {key}" for key in site.signatures.keys]

    return fill_template(
        "launchers",
        "on-node/importer.sh.j2",
        name=site.name,
        store=str(site.store),
        modules=str(site.module_root),
        by_architecture=site.modules.by_architecture,
        check=check,
        signers=signers,
        cache=bool(site.image_cache.folder),
        command=command,
        site_file=site_file,
        python=sys.executable,
        ask=read_data_file("launchers", "on-node/ask.py"),
        socket=site.image_cache.socket,
    )


def render_image_service(site: Site, command: str, site_file: str) -> str:
    """Return the systemd unit of the service that fills SITE's image cache.

    It runs COMMAND, hpcstack on the node, with SITE_FILE as its site.yaml.
    """
    return fill_template(
        "launchers",
        "on-node/hpcstack-images.service.j2",
        account=site.image_cache.account,
        command=command,
        folder=site.image_cache.folder,
        socket=site.image_cache.socket,
        site_file=site_file,
    )
