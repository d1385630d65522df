"""Find the HCAs that are nearest to each GPU in what `nvidia-smi topo -m` prints."""

from __future__ import annotations

import re

# Newer drivers underline the table's head, and name HCAs NIC0, NIC1, ... with a legend below
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
LEGEND = re.compile(r"^\s+(NIC\d+): (\S+)\s*$", re.MULTILINE)
# From near to far: one PCIe bridge, several, the host bridge, within a NUMA node, between two
NEARER = ("PIX", "PXB", "PHB", "NODE", "SYS")


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
