"""The srun and sbatch scripts that users copy."""

from __future__ import annotations

import re
import shlex
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.names import STARTED_IN_IMAGE
from hpcstack.core.quote import check_unbroken, quote_sh
from hpcstack.render.template import fill_template, read_data_file
from hpcstack.runtimes import RUNTIMES
from hpcstack.site.model import NodeType
from hpcstack_smoke.node.gpu import BAD_XIDS, EVER_MAX, RESET_XIDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcstack.recipe.model import Stack
    from hpcstack.site.load import Site

REPEATED = (
    "--with",
    "--mount",
    "--stage-in",
    "--srun",
)  # the template's own, and those that were asked for
SIGNER = "hpcstack"  # as store/signing.py calls whoever signs
COMPAT = 'if [ -r /opt/hpcstack/compat.sh ]; then . /opt/hpcstack/compat.sh; fi; exec "$@"'


# $1: folders of the node's own libraries, which the loader searches first; then the command.
HOST_LIBRARIES = (
    'export LD_LIBRARY_PATH="$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"; shift; exec "$@"'
)


def with_host_libraries(folders: Sequence[str], command: tuple[str, ...]) -> tuple[str, ...]:
    """COMMAND with FOLDERS of the container before all others that the loader searches."""
    return (
        ("/bin/sh", "-c", HOST_LIBRARIES, "host-libraries", ":".join(folders), *command)
        if folders
        else command
    )


def with_compat(command: tuple[str, ...]) -> tuple[str, ...]:
    """COMMAND behind the image's own look at the node's driver (images/compat.sh): Pyxis runs no
    entrypoint.
    """
    return ("/bin/sh", "-c", COMPAT, "compat", *command)


ABOUT = {
    "torchrun": "one task per node, which starts torchrun there",
    "deepspeed": "one task per node, which starts DeepSpeed's own launcher there",
    "task-per-gpu": "a task per GPU, with torch's variables made of Slurm's",
    "mpi": "a task per rank, which MPI knows by PMIx or PMI-2",
    "plain": "the command as it is, in Slurm's own tasks",
}


def render_inner(mode: str) -> str:
    """What each task runs inside the image, as a POSIX shell script; empty where it runs the
    command itself.

    Its arguments: ranks per node, MIN:MAX nodes of an elastic step or nothing, restarts, the
    command.
    """
    parts = ("rendezvous.sh", "rank.sh", f"{mode}.sh") if mode in STARTED_IN_IMAGE else ()
    return "".join(read_data_file("launchers", f"in-image/{part}") for part in parts)


def wrap_rank(command: tuple[str, ...]) -> tuple[str, ...]:
    """COMMAND as a rank whose failure is said: see launchers/in-image/rank.sh."""
    return (
        "/bin/sh",
        "-c",
        read_data_file("launchers", "in-image/rank.sh") + 'eval "$HPCSTACK_RANK"\n',
        "rank",
        *command,
    )


def launcher_files(stack: Stack, site: Site, image: Mapping[str, str]) -> dict[str, str]:
    """`srun.sh` and `sbatch.sh` for STACK at SITE, whose IMAGE has these variables."""
    node = site.node_type() or NodeType()
    brought = site.fabric.bring(site.kind(), image)
    void = [] if node.real_gpus else ["NVIDIA_VISIBLE_DEVICES"]
    told = [name for one in brought for name in one.settings]
    runtime = RUNTIMES.get(site.runtime)
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
            name: row
            for name, row in site.fabric.settings_for(2, {}).items()
            if name not in site.fabric.settings
        },
        "forced": list(dict.fromkeys([*void, *site.fabric.settings_for(2, {}), *told])),
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


def job_template(
    kind: str,
    stack: str,
    site: Site,
    asked: Mapping[str, str | None],
    words: Sequence[str] = (),
    command: Sequence[str] = (),
) -> str:
    """A job script for STACK that users copy: launchers/to-copy/templates/KIND, with what was ASKED
    for of sbatch's options (None: that line goes), WORDS for `hpcstack launch`, and the COMMAND
    that it runs where sbatch gets none.
    """
    node = site.node_type() or NodeType()
    default = next((name for name, partition in site.partitions.items() if partition.default), "")
    text = fill_template(
        "launchers",
        f"to-copy/templates/{kind}.sbatch.j2",
        stack=stack,
        partition=default,
        gpus=node.gpus.count if node.gpus else 0,
        cpus=node.cpus,
    )
    lines = text.splitlines()
    for option, value in asked.items():
        line = []
        if value is not None:
            given = f"={quote_sh(check_unbroken(value))}" if value else ""
            line.append(f"#SBATCH --{option}{given}")
        place = next(
            (n for n, one in enumerate(lines) if one.startswith(f"#SBATCH --{option}=")), 0
        )
        if place or line:
            lines[place or 2 : (place or 1) + 1] = line
    if command:
        begin = lines.index("set -euo pipefail") + 1
        lines.insert(
            begin,
            (
                f"[ $# -gt 0 ] || set -- {shlex.join(command)} # what it runs, unless sbatch is "
                f"told otherwise"
            ),
        )
    said = "".join(f" {shlex.quote(word)}" for word in words)
    once = (word for word in words if word.startswith("--") and word not in REPEATED)
    for option in once:  # asked for: not the template's own value, too
        lines = [
            re.sub(rf"(hpcstack launch .*?) {re.escape(option)} \S+", r"\1", line) for line in lines
        ]
    packages = "".join(
        f" --with {shlex.quote(value)}" for word, value in pairwise(words) if word == "--with"
    )
    shown = []
    for one in lines:
        is_comment = one.startswith("#")
        if (
            is_comment and "hpcstack launch" in one and " --with " in one
        ):  # what is to be made on the login node
            shown.append(one.replace(" --mode ", f"{packages} --mode ", 1))
        elif not is_comment and f"hpcstack launch {stack}" in one:
            shown.append(one.replace(" -- ", f"{said} -- ", 1))
        else:
            shown.append(one)
    return "\n".join(shown) + "\n"


# Seconds that one question to a node may take: nvidia-smi took 25 to 40 s without persistence mode
# (Azure/AgentBaker 2897), 2 and 5 s were too short on busy nodes (NordicHPC/sonar 92), and gpud
# waits 30 s.
HEALTH_LIMIT = 90
HEALTH_SETTLE = 3  # until Slurm says what other nodes have done at the same moment
MOST_MISSED = 2  # nodes an hour that are drained for one and the same answer that did not come
HEALTH_WAIT_TENTHS, TMP_MIB = (
    50,
    512,
)  # how long whoever looks by hand waits; what /tmp should have left
SELF_EXPLAINING = 154  # an Xid that says itself what it wants


def render_health(site: Site) -> str:
    """A script for Slurm's HealthCheckProgram and Prolog: whether a node has what SITE says of its
    kind.
    """
    types = {name: _health_checks(node) for name, node in site.node_types.items()}
    numbers = {name: number for number, name in enumerate(types, 1)}
    return fill_template(
        "launchers",
        "on-node/health.sh.j2",
        site=site.name,
        types=types or {"any": []},
        partitions={name: numbers[one.node_type] for name, one in site.partitions.items()},
        folders=_health_folders(site),
        limit_seconds=HEALTH_LIMIT,
        wait_tenths=HEALTH_WAIT_TENTHS,
        settle_seconds=HEALTH_SETTLE,
        tmp_mib=TMP_MIB,
        sram_ever=EVER_MAX,
        xids="|".join(str(number) for number in BAD_XIDS if number != SELF_EXPLAINING),
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


def list_health_checks(site: Site) -> tuple[int, int]:
    """How many checks a node of SITE has at most, and how many of them ask file servers."""
    folders = len(_health_folders(site))
    return 3 + folders + max(
        (len(_health_checks(node)) for node in site.node_types.values()), default=0
    ), folders


def _health_folders(site: Site) -> list[str]:
    """What jobs find on file servers."""
    folders = [site.store, *(Path(mount.partition(":")[0]) for mount in site.mounts)]
    return list(dict.fromkeys(map(str, folders)))


def _health_checks(node: NodeType) -> list[tuple[str, list[str]]]:
    """(name, command) of each check of one kind of node."""
    out = []
    if node.real_gpus:
        out.append(("gpus", ["gpus", str(node.real_gpus), node.driver]))
        if node.gpus and node.gpus.nvlink:
            out.append(("nvlink", ["nvlinks"]))
    return out + [
        (f"port-{n}", ["port", hca, str(node.hca_rate)]) for n, hca in enumerate(node.hcas, 1)
    ]


def render_importer(site: Site, check: str, command: str = "hpcstack", site_file: str = "") -> str:
    """Pyxis's importer for SITE, a POSIX shell script. CHECK: `full` for the image's sha256,
    `none`. COMMAND: hpcstack on the nodes, asked where the site has an image cache, with SITE_FILE
    as its site.yaml.
    """
    return fill_template(
        "launchers",
        "on-node/importer.sh.j2",
        name=site.name,
        store=str(site.store),
        modules=str(site.module_root),
        by_architecture=site.modules.by_architecture,
        check=check,
        signers=[f"{SIGNER} {key}" for key in site.signatures.keys]
        if site.signatures.required
        else [],
        cache=bool(site.image_cache.folder),
        command=command,
        site_file=site_file,
        python=sys.executable,
        ask=read_data_file("launchers", "on-node/ask.py"),
        socket=site.image_cache.socket,
    )


def render_image_service(site: Site, command: str, site_file: str) -> str:
    """The systemd unit of the service that fills SITE's image cache, run by COMMAND on each node."""
    return fill_template(
        "launchers",
        "on-node/hpcstack-images.service.j2",
        account=site.image_cache.account,
        command=command,
        folder=site.image_cache.folder,
        socket=site.image_cache.socket,
        site_file=site_file,
    )
