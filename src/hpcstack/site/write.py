"""Write a first site.yaml from what a probe found.

Each value has a comment that says where it came from; what is missing is there as an example, in a
comment.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING

from hpcstack.core.characters import CONTROL
from hpcstack.core.errors import format_count
from hpcstack.hardware import facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcstack.site.discover import Nodes, Probe
# NVIDIA's superchips, whose CPU is Grace, of Arm's architecture
OF_GRACE = ("GH200", "GB200", "GB300")


def render_site_text(found: Probe, host: str, name: str = "") -> str:
    """Return the whole file as text; it loads as it is.

    NAME is the site's, by default Slurm's ClusterName, else HOST.
    """
    head = [f"# {_as_line(line)}" for line in _list_found(found)]
    site_name = _make_name(name or found.slurm.get("ClusterName", "") or host)

    parts = [
        "# Written by hpcstack site init. "
        "`hpcstack show --site` says which file each value came from.",
        *head,
        "",
        "apiVersion: hpcstack/site/v1",
        f"name: {site_name}",
        "",
        "# Where images, releases and modules go: every node must see it. "
        "The defaults are in your home.",
        "# store: /shared/hpcstack/store",
        "# lock_dir: /shared/hpcstack/locks",
        "# module_root: /shared/hpcstack/modules",
        "",
        "# A mirror of NVIDIA's registry, if this cluster has one; a file of logins, never a key.",
        "# registries:",
        '#   nvcr.io: {mirror: "harbor.example.org:443", credentials: /etc/hpcstack/nvcr.json}',
        "",
        "# build: {tmpdir: /local/scratch, ca_bundle: /etc/ssl/certs/site.pem}",
        "",
        *_node_types_lines(found),
        *_fabric_lines(found),
        *_runtime_line(found),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _as_line(text: str) -> str:
    """Return TEXT, which a tool printed, as one line of a comment."""
    return CONTROL.sub(" ", text)[:200]


def _make_name(text: str) -> str:
    """Return TEXT as a site's name, with what a name cannot have replaced."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-") or "local"


def _list_found(found: Probe) -> Iterator[str]:
    """Yield what was found, a line each, for the file's first comment."""
    yield "What was found on this machine:"
    for tool in ("srun", "apptainer", "enroot"):
        yield f"  {tool}: {found.versions.get(tool) or 'not here'}"
    pyxis = "yes" if found.pyxis else "srun has no --container-image"
    yield f"  Pyxis: {pyxis}"
    yield f"  Lmod: {found.lmod or 'not here'}"
    yield f"  NVIDIA driver: {found.driver or 'not on this machine'}"
    yield f"  CPU: {found.cpu or 'unknown'}"
    mpi = ", ".join(found.mpi) or "no PMI, or srun could not be asked"
    yield f"  srun --mpi: {mpi} (default {found.slurm.get('MpiDefault', 'unknown')})"


def _node_types_lines(found: Probe) -> Iterator[str]:
    """Yield the lines of `node_types` and `partitions`."""
    if not found.nodes:
        yield "# Slurm was not there to ask. For example:"
        yield "# node_types:"
        yield (
            '#   dgx: {gpus: {model: H100, count: 8, nvlink: true}, driver: "550.54.15", cpus: 112}'
        )
        yield "# partitions:"
        yield "#   gpu: {node_type: dgx, default: true}"
        yield ""
        return

    yield "# One entry for each kind of node that sinfo shows."
    yield "node_types:"
    kinds: dict[str, Nodes] = {}
    for nodes in found.nodes:
        kind = kinds.setdefault(nodes.type_name, nodes)
        if kind.cpus != nodes.cpus:
            yield (
                f"  # {nodes.partition} has {nodes.type_name} with {nodes.cpus} CPUs: "
                "give it a type of its own"
            )
    for kind in kinds.values():
        yield from _node_type_lines(kind, found)
    yield ""

    yield "partitions:"
    for name in dict.fromkeys(nodes.partition for nodes in found.nodes):
        yield _partition_line(name, [nodes for nodes in found.nodes if nodes.partition == name])
    yield ""


def _partition_line(name: str, every: list[Nodes]) -> str:
    """Return the line of the partition NAME, whose nodes are EVERY one of these."""
    counts: Counter[str] = Counter()
    for nodes in every:
        counts[nodes.type_name] += nodes.count
    kinds = f"node_type: {next(iter(counts))}"
    said = format_count(sum(counts.values()), "node")
    if len(counts) > 1:
        kinds = f"node_types: [{', '.join(counts)}]"
        said = ", ".join(f"{count} like {kind}" for kind, count in counts.items())
    default = ", default: true" if any(nodes.default for nodes in every) else ""
    return f"  {_quote_key(name)}: {{{kinds}{default}}} # {said}"


def _node_type_lines(nodes: Nodes, found: Probe) -> Iterator[str]:
    """Yield the lines of one node type; this machine stands in for what Slurm does not say."""
    yield f"  {nodes.type_name}:"
    yield f"    cpus: {nodes.cpus} # sinfo"
    if nodes.unread:
        said = _as_line(nodes.unread)
        yield f"    # sinfo says {said!r}, which is not understood, or of several models:"
        yield "    # write gpus"
    if not nodes.gpus and not nodes.slices:
        return

    # Slurm's own word for the model first; where it has none, that of this machine's GPU.
    word = nodes.model or (nodes.slices[0].type if nodes.slices else "")
    known = facts.find_gpu(word)
    if not word and found.gpu:
        known = known or facts.find_gpu(found.gpu)
    model = nodes.model or "unknown"
    if known:
        model = known.model
    why = "Slurm names no model: write it"
    if word:
        why = "sinfo"
    elif known:
        why = "nvidia-smi on this machine"

    more = ", nvlink: true" if found.nvlink else ""
    slices: Counter[str] = Counter()
    for one in nodes.slices:
        slices[one.type] += one.count
    if slices:
        written = ", ".join(f"{_quote_key(name)}: {count}" for name, count in slices.items())
        more += f", mig: {{{written}}}"
        why += ", with MIG slices"
    why += "; `virtual` if no device is behind it"
    if model in OF_GRACE:
        yield "    architecture: aarch64 # Grace"
    yield f"    gpus: {{model: {_quote_value(model)}, count: {nodes.gpus}{more}}} # {why}"

    if found.driver:
        yield f"    driver: {_quote_value(found.driver)} # of this machine: check it on a node"
    else:
        yield (
            '    # driver: "550.54.15" # cat /proc/driver/nvidia/version on a node; '
            "lint and launchers need it"
        )

    if found.hcas:
        names = ", ".join(dict.fromkeys(hca.name for hca in found.hcas))
        yield f"    hcas: [{names}] # of this machine: check it on a node"


def _fabric_lines(found: Probe) -> Iterator[str]:
    """Yield the lines of `fabric`, as this machine's devices show it."""
    links = {hca.link for hca in found.hcas}
    if not links:
        yield (
            "# No InfiniBand or RoCE device on this machine. "
            "On a cluster that has them, for example:"
        )
        yield "# fabric:"
        yield "#   kind: infiniband"
        yield "#   settings:"
        yield (
            '#     NCCL_IB_HCA: {value: "mlx5_0,mlx5_1", reason: the storage network is on mlx5_2}'
        )
        yield ""
        return

    kind = "infiniband" if "InfiniBand" in links else "roce"
    yield "fabric:"
    yield f"  kind: {kind} # /sys/class/infiniband/*/ports/*/link_layer"
    if len(links) > 1:  # InfiniBand for the jobs, and Ethernet for all else
        fast = dict.fromkeys(hca.name for hca in found.hcas if hca.link == "InfiniBand")
        value = _quote_value(",".join(fast))
        yield "  settings:"
        yield f"    NCCL_IB_HCA: {{value: {value}, reason: the other devices are Ethernet}}"
    yield ""


def _runtime_line(found: Probe) -> Iterator[str]:
    """Yield the line of `runtime`."""
    if found.pyxis:
        yield "runtime: pyxis # srun knows --container-image"
    elif found.versions.get("srun") and found.versions.get("apptainer"):
        yield "runtime: apptainer # srun has no Pyxis"
    else:
        yield "runtime: auto"


# Plain words that other readers of YAML take for null or a truth value.
WORDS = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")


def _quote_key(text: str) -> str:
    """Return TEXT as a key of YAML, in quotes where it needs them."""
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", text) and text.lower() not in WORDS
    return text if plain else json.dumps(text)


def _quote_value(text: str) -> str:
    """Return TEXT as a value of YAML, in quotes where it needs them."""
    plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_ -]*[A-Za-z0-9]", text) and text.lower() not in WORDS
    return text if plain else json.dumps(text)
