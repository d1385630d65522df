"""What a GPU's figures are worth: held against what others measured, demand, or NVIDIA specifies.
Pure.

RATES, COPIED: measured by others; MEMORY: of data sheets; below a share of them is a WARN, as
nobody demands them. HOST_GATES, PEER_GATES: what Azure demands (check_gpu_bw of each VM type);
below is a FAIL.
"""

from __future__ import annotations

import statistics
from typing import Any

from hpcstack_smoke.gpu import load
from hpcstack_smoke.node.gpu import AZURE, FULL_LINK, PCIE_REMEDY, narrow_links
from hpcstack_smoke.node.nvlink import LINKS
from hpcstack_smoke.result import FAIL, PASS, WARN, Result, judge_result

# bf16 TFLOP/s that stas00/ml-engineering (mamf-finder) measured, by the GPU's name without NVIDIA
# before it
RATES = {"A100 80GB PCIe": 253.0, "A100-SXM4-80GB": 271.0, "H100 80GB HBM3": 794.0, "H200": 794.0, "B200": 1745.0,
         "GH200 480GB": 828.6, "GB200": 1822.0, "B300": 1769.0}  # fmt: skip
# TB/s of a copy within the GPU, the least that others measured of healthy ones: nccl #1264 and
# cuda-samples #392
COPIED = {"H100 80GB HBM3": 2.47}
# TB/s of NVIDIA's data sheets; B200's 7.67 is its memory clock's. A GPU with another memory has
# another name
MEMORY = {
    "A100 80GB PCIe": 1.94,
    "A100-SXM4-80GB": 2.0,
    "H100 PCIe": 2.0,
    "H200": 4.8,
    "B200": 7.67,
    "L40S": 0.86,
}
SHARE, SEEN_SHARE, SHEET_SHARE = 0.8, 0.95, 0.7
MAMF, DATASHEET, MEASURED = (
    "stas00/ml-engineering, measured",
    "NVIDIA's data sheet",
    "nccl #1264, cuda-samples #392",
)

# GB/s each way between pinned host memory and the GPU
HOST_GATES = {"A100-SXM4-40GB": 21.0, "A100-SXM4-80GB": 21.0, "A100 80GB PCIe": 21.0, "H100 80GB HBM3": 48.0,
              "H100 NVL": 48.0, "H200": 48.0}  # fmt: skip
# GB/s of one GPU to another by NVLink
PEER_GATES = {  # on boards of eight, by NVSwitch: a pair of four has a third of the links
    "A100-SXM4-40GB": 235.0,
    "A100-SXM4-80GB": 238.0,
    "H100 80GB HBM3": 335.0,
    "H200": 335.0,
}
SWITCHED = 8
LAGS, BAD = 0.8, 0.5  # of the median of the node's pairs
CLOCKS = "look at clocks, power limit and temperature: nvidia-smi -q -d PERFORMANCE"


def find_known_figure(table: dict[str, float], name: str) -> float:
    """The figure of the GPU NAME; 0 where none is known: neither GH200 nor H200 NVL is an H200."""
    return table.get(name.removeprefix("NVIDIA "), 0.0)


def judge_hbm(rate: float, name: str) -> Result:
    """TB/s of a copy, read and write together: healthy GPUs reach 74 % of the data sheet and more."""
    if seen := find_known_figure(COPIED, name):
        return _against(rate, seen, SEEN_SHARE, "TB/s", "hbm_TB_s", MEASURED, name)
    return _against(
        rate, find_known_figure(MEMORY, name), SHEET_SHARE, "TB/s", "hbm_TB_s", DATASHEET, name
    )


def _against(
    value: float, want: float, share: float, unit: str, figure: str, source: str, name: str
) -> Result:
    figures = {figure: round(value, 4)}
    if not want:
        return Result(PASS, f"{value:.3g} {unit}", f"nothing is known of {name}", figures=figures)
    status = PASS if value >= share * want else WARN
    remedy = "" if status == PASS else CLOCKS
    return Result(
        status,
        f"{value:.3g} {unit}",
        f">= {share:.0%} of {want:g} {unit}",
        source,
        "",
        remedy,
        figures,
    )


def judge_matmul(
    rates: dict[str, float], rows: list[dict[str, str]], name: str, *, right: bool
) -> Result:
    """{kind: TFLOP/s}, held against what others have measured; ROWS: what nvidia-smi said while the
    GPU worked.
    """
    if not right:
        return Result(
            FAIL,
            "a product of ones is not 512",
            "512",
            remedy="drain the node: the GPU computes wrongly",
        )
    said = ", ".join(f"{kind} {rate:g}" for kind, rate in rates.items()) + " TFLOP/s"
    figures = {f"{kind}_TFLOP_s": rate for kind, rate in rates.items()} | load.summarise_samples(
        rows
    )
    hard, soft = load.judge_slowdown(rows)
    if hard or soft:
        slowed = f"slowed down under load: {', '.join([*hard, *soft])}; {said}"
        remedy = "look at the node's cooling and power supply; drain it"
        return Result(
            FAIL if hard else WARN,
            slowed,
            "no slowdown by hardware or heat",
            "nvidia-smi under load",
            remedy=remedy,
            figures=figures,
        )
    unseen = "" if rows else "nvidia-smi did not say how this GPU was under load"
    result = _against(
        rates.get("bf16", 0.0),
        find_known_figure(RATES, name),
        SHARE,
        "TFLOP/s in bf16",
        "bf16",
        MAMF,
        name,
    )
    return Result(
        result.status, said, result.expected, result.source, unseen, result.remedy, figures
    )


def judge_host(there: float, back: float, rows: list[dict[str, str]], name: str) -> Result:
    """ROWS: what nvidia-smi said of the GPU's link while it was in use."""
    figures = {"h2d_GB_s": round(there, 2), "d2h_GB_s": round(back, 2)}
    measured = f"to the GPU {there:.1f} GB/s, back {back:.1f} GB/s"
    narrow, slow = narrow_links([{**row, "index": row.get("index", "?")} for row in rows[-1:]])
    if narrow or slow:
        said = f"{'; '.join([*map(str, narrow), *slow])} while it copies; {measured}"
        return Result(
            FAIL, said, FULL_LINK, "nvidia-smi under load", remedy=PCIE_REMEDY, figures=figures
        )
    want = find_known_figure(HOST_GATES, name)
    if not want:
        expected = "no gate; PCIe 4 x16 gives 31, 5 x16 63 at most"
        return Result(PASS, measured, expected, "the PCIe specification", figures=figures)
    return judge_result(
        min(there, back) >= want,
        measured,
        f">= {want:g} GB/s each way",
        AZURE,
        remedy=PCIE_REMEDY,
        figures=figures,
    )


def judge_peers(table: list[list[float]], wrong: list[str], name: str, *, board: int = 0) -> Result:
    """TABLE: GB/s of GPU to GPU, of a node with BOARD GPUs in all (0: as many as TABLE has)."""
    values = [value for row in table for value in row if value] or [0.0]
    labels = [str(n) for n in range(len(table))]
    heat = [
        {
            "kind": "matrix",
            "name": "GPU to GPU",
            "labels": labels,
            "values": table,
            "y_unit": "GB/s",
        }
    ]
    measured = f"{min(values):.0f} to {max(values):.0f} GB/s"
    more: dict[str, Any] = {"series": heat, "figures": {"slowest_GB_s": round(min(values), 1)}}
    remedy = "look at nvidia-smi topo -p2p r, nvidia-smi nvlink -s, ACS and the IOMMU"
    if wrong:
        return Result(
            FAIL, f"wrong: {', '.join(wrong)}; {measured}", "each copy right", remedy=remedy, **more
        )
    want = find_known_figure(PEER_GATES, name) if (board or len(table)) >= SWITCHED else 0.0
    middle = statistics.median(values)
    joined = (
        bool(find_known_figure(PEER_GATES, name)) or name.removeprefix("NVIDIA ") in LINKS
    )  # alike between each two
    bad = _below(table, want) if want else []
    if bad:
        return Result(
            FAIL,
            f"{', '.join(bad[:8])}; {measured}",
            f">= {want:g} GB/s",
            AZURE,
            remedy=remedy,
            **more,
        )
    lagging = _below(table, LAGS * middle) if joined else []
    if lagging:
        status = FAIL if _below(table, BAD * middle) else WARN
        expected = f">= {LAGS:.0%} of the median, {middle:.0f} GB/s"
        return Result(
            status,
            f"{', '.join(lagging[:8])}; {measured}",
            expected,
            "the node's other pairs",
            remedy=remedy,
            **more,
        )
    expected = f">= {want:g} GB/s" if want else "each copy right"
    return Result(PASS, measured, expected, AZURE if want else "", **more)


def _below(table: list[list[float]], limit: float) -> list[str]:
    return [
        f"{a}->{b} {value:.0f} GB/s"
        for a, row in enumerate(table)
        for b, value in enumerate(row)
        if a != b and value < limit
    ]
