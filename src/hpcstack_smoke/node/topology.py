"""Read `nvidia-smi topo -m`: the HCAs that are nearest to each GPU, and the NVLinks between GPUs."""

from __future__ import annotations

import re
from typing import NamedTuple

# Newer drivers underline the table's head, and name HCAs NIC0, NIC1, ... with a legend below
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
LEGEND = re.compile(r"^\s+(NIC\d+): (\S+)\s*$", re.MULTILINE)
# From near to far: one PCIe bridge, several, the host bridge, within a NUMA node, between two
NEARER = ("PIX", "PXB", "PHB", "NODE", "SYS")
# What stands between two GPUs that as many NVLinks join
NVLINKS = re.compile(r"NV(\d+)")


class Mesh(NamedTuple):
    """How NVLink joins the GPUs of a step on one node.

    `links` is how many NVLinks of a GPU lead to the others, 0 where NVLink does not join all of
    them. SWITCHED: all of a GPU's links lead to each of the others.
    """

    links: int
    switched: bool


NO_MESH = Mesh(0, switched=False)


def find_mesh(text: str, active: int) -> Mesh:
    """Return how NVLink joins the GPUs that `nvidia-smi topo -m` prints as TEXT.

    ACTIVE is how many active NVLinks each GPU has. With 0 nothing is known: four links to each of
    four GPUs are all that a GPU has on one board, and a third of them on another.
    """
    table = parse_gpu_paths(text)
    gpus = sorted({gpu for pair in table for gpu in pair})
    joined: dict[str, dict[str, int]] = {gpu: {} for gpu in gpus}
    for (gpu, other), count in table.items():
        if count:
            joined[gpu][other] = count
    if not active or len(gpus) < 2 or not _are_connected(joined):
        return NO_MESH

    # A ring enters a GPU from one other and leaves it to the next
    neighbours = [len(others) for others in joined.values()]
    if len(gpus) > 2 and min(neighbours) < 2:
        return NO_MESH

    is_switched = len(gpus) > 2 and all(
        table.get((gpu, other)) == active for gpu in gpus for other in gpus if gpu != other
    )
    leading = max(sum(others.values()) for others in joined.values())
    return Mesh(min(active, leading), is_switched)


def parse_gpu_paths(text: str) -> dict[tuple[str, str], int]:
    """Return {(GPU, GPU): NVLinks between them} of `nvidia-smi topo -m`; 0 for other paths."""
    lines = [line.split("\t") for line in COLOURS.sub("", text).splitlines()]
    rows = [[word.strip() for word in words] for words in lines]
    head = next((words for words in rows if "GPU0" in words[1:2]), [])
    out = {}
    for words in rows:
        if not re.fullmatch(r"GPU\d+", words[0]) or words is head:
            continue
        for name, path in zip(head[1:], words[1:]):
            if re.fullmatch(r"GPU\d+", name) and name != words[0]:
                found = NVLINKS.fullmatch(path)
                out[words[0], name] = int(found[1]) if found else 0
    return out


def _are_connected(joined: dict[str, dict[str, int]]) -> bool:
    """Return whether each GPU of JOINED reaches every other by NVLink, if over others."""
    reached: set[str] = set()
    waiting = list(joined)[:1]
    while waiting:
        gpu = waiting.pop()
        if gpu not in reached:
            reached.add(gpu)
            waiting += joined[gpu]
    return len(reached) == len(joined)


def find_nearest_hcas(text: str) -> str:
    """Return `GPU0 PIX mlx5_0; GPU1 PXB mlx5_3 mlx5_4; ...`, empty without HCAs.

    Each GPU is followed by how near its nearest HCAs are, and by their names.
    """
    plain = COLOURS.sub("", text)
    lines = plain.splitlines()
    columns = _hca_columns(lines, dict(LEGEND.findall(plain)))
    out = []
    for line in lines:
        words = [word.strip() for word in line.split("\t")]
        if not re.fullmatch(r"GPU\d+", words[0]) or len(words) < 2:
            continue
        paths = {}
        for place, name in columns.items():
            if place < len(words) and words[place] in NEARER:
                paths[name] = words[place]
        if paths:
            best = min(paths.values(), key=NEARER.index)
            nearest = [name for name, path in paths.items() if path == best]
            out.append(f"{words[0]} {best} {' '.join(nearest)}")
    return "; ".join(out)


def _hca_columns(lines: list[str], names: dict[str, str]) -> dict[int, str]:
    """Return {column: HCA} of the table's head in LINES; NAMES is the legend, {NIC0: HCA, ...}."""
    head = next((line.split("\t") for line in lines if "GPU0" in line.split("\t")[1:2]), [])
    out = {}
    for place, word in enumerate(head):
        name = word.strip()
        if name.startswith(("NIC", "mlx")):
            out[place] = names.get(name, name)
    return out
