"""Which HCAs are nearest to each GPU, by `nvidia-smi topo -m`. Pure."""

from __future__ import annotations

import re

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
LEGEND = re.compile(r"^\s+(NIC\d+): (\S+)\s*$", re.MULTILINE)
NEARER = (
    "PIX",
    "PXB",
    "PHB",
    "NODE",
    "SYS",
)  # one bridge, several, the host bridge, its NUMA node, between nodes


def nearest_hcas(text: str) -> str:
    """`GPU0 PIX mlx5_0; GPU1 PXB mlx5_3 mlx5_4; ...`: each GPU's nearest HCAs and how near; empty
    without HCAs.
    """
    plain = COLOURS.sub("", text)
    names = dict(LEGEND.findall(plain))
    lines = plain.splitlines()
    head = next((line.split("\t") for line in lines if "GPU0" in line.split("\t")[1:2]), [])
    columns = {
        place: names.get(word.strip(), word.strip())
        for place, word in enumerate(head)
        if word.strip().startswith(("NIC", "mlx"))
    }
    out = []
    for line in lines:
        words = [word.strip() for word in line.split("\t")]
        if not re.fullmatch(r"GPU\d+", words[0]) or len(words) < 2:
            continue
        near = {
            name: words[place]
            for place, name in columns.items()
            if place < len(words) and words[place] in NEARER
        }
        if near:
            best = min(near.values(), key=NEARER.index)
            out.append(
                f"{words[0]} {best} {' '.join(name for name, path in near.items() if path == best)}"
            )
    return "; ".join(out)
