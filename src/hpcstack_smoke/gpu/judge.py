"""Judge a GPU's figures by what others measured, what Azure demands, or what NVIDIA specifies.

RATES and COPIED were measured by others, MEMORY is from data sheets: below a share of these is a
WARN, as nobody demands them. HOST_GATES and PEER_GATES are what Azure demands (check_gpu_bw of each
VM type): below is a FAIL. Where there is no gate, copies are held against what their links let
through (limits.py): far below is a WARN.
"""

from __future__ import annotations

import statistics
from typing import Any

from hpcstack_smoke.gpu import load
from hpcstack_smoke.limits import HEALTHY_SHARE, Term, make_pcie_term
from hpcstack_smoke.node.gpu import AZURE, FULL_LINK, PCIE_REMEDY, SLOT_REMEDY, narrow_links
from hpcstack_smoke.node.nvlink import LINKS
from hpcstack_smoke.result import FAIL, PASS, WARN, Result, judge_result

# Keys of all tables are the GPU's name without NVIDIA before it.

# TFLOP/s in bf16 that stas00/ml-engineering measured (mamf-finder)
RATES = {
    "A100 80GB PCIe": 253.0,
    "A100-SXM4-80GB": 271.0,
    "H100 80GB HBM3": 794.0,
    "H200": 794.0,
    "B200": 1745.0,
    "GH200 480GB": 828.6,
    "GB200": 1822.0,
    "B300": 1769.0,
}
# TB/s of a copy within the GPU, the least that others measured of healthy ones: nccl #1264 and
# cuda-samples #392
COPIED = {"H100 80GB HBM3": 2.47}
# TB/s of NVIDIA's data sheets; B200's 7.67 follows from its memory clock. A GPU with another memory
# has another name.
MEMORY = {
    "A100 80GB PCIe": 1.94,
    "A100-SXM4-80GB": 2.0,
    "H100 PCIe": 2.0,
    "H200": 4.8,
    "B200": 7.67,
    "L40S": 0.86,
}
# The shares that a GPU must reach: of RATES, of COPIED, of MEMORY
SHARE, SEEN_SHARE, SHEET_SHARE = 0.8, 0.95, 0.7
# The names of these sources in a Result
MAMF = "stas00/ml-engineering, measured"
DATASHEET = "NVIDIA's data sheet"
MEASURED = "nccl #1264, cuda-samples #392"

# GB/s each way between pinned host memory and the GPU
HOST_GATES = {
    "A100-SXM4-40GB": 21.0,
    "A100-SXM4-80GB": 21.0,
    "A100 80GB PCIe": 21.0,
    "H100 80GB HBM3": 48.0,
    "H100 NVL": 48.0,
    "H200": 48.0,
}
# GB/s of one GPU to another by NVLink, on boards of eight with NVSwitch: on a board of four, a pair
# has a third of the links
PEER_GATES = {
    "A100-SXM4-40GB": 235.0,
    "A100-SXM4-80GB": 238.0,
    "H100 80GB HBM3": 335.0,
    "H200": 335.0,
}
SWITCHED = 8
# Of the median of the node's pairs: below the first is a WARN, below the second a FAIL
LAGS, BAD = 0.8, 0.5
CLOCKS = "check clocks, power limit and temperature: nvidia-smi -q -d PERFORMANCE"


def find_known_figure(table: dict[str, float], name: str) -> float:
    """Return the figure of the GPU NAME in TABLE, 0 where none is known.

    The whole name must match: neither GH200 nor H200 NVL is an H200.
    """
    return table.get(name.removeprefix("NVIDIA "), 0.0)


def judge_hbm(rate: float, name: str) -> Result:
    """Judge RATE, the TB/s of a copy within the GPU NAME, read and write together.

    Healthy GPUs reach 74 % of the data sheet and more.
    """
    seen = find_known_figure(COPIED, name)
    if seen:
        return _judge_share(rate, seen, SEEN_SHARE, "TB/s", "hbm_TB_s", MEASURED, name)
    sheet = find_known_figure(MEMORY, name)
    return _judge_share(rate, sheet, SHEET_SHARE, "TB/s", "hbm_TB_s", DATASHEET, name)


def _judge_share(
    value: float, want: float, share: float, unit: str, figure: str, source: str, name: str
) -> Result:
    """Judge VALUE by SHARE of WANT, both in UNIT: below is a WARN.

    A WANT of 0 means that no figure is known for the GPU NAME: then it is a PASS. FIGURE is the
    name of VALUE in the Result, SOURCE where WANT is from.
    """
    figures = {figure: round(value, 4)}
    measured = f"{value:.3g} {unit}"
    if not want:
        return Result(PASS, measured, f"no figure is known for {name}", figures=figures)
    expected = f">= {share:.0%} of {want:g} {unit}"
    if value >= share * want:
        return Result(PASS, measured, expected, source, figures=figures)
    return Result(WARN, measured, expected, source, remedy=CLOCKS, figures=figures)


def judge_matmul(
    rates: dict[str, float], rows: list[dict[str, str]], name: str, *, right: bool
) -> Result:
    """Judge RATES, {kind: TFLOP/s} of matrix products on the GPU NAME.

    ROWS: what nvidia-smi said of it while it worked; a slowdown counts before any rate. RIGHT: the
    values of a small product were right.
    """
    if not right:
        measured = "a product of ones is not 512"
        remedy = "drain the node: the GPU computes wrongly"
        return Result(FAIL, measured, "512", remedy=remedy)

    measured = ", ".join(f"{kind} {rate:g}" for kind, rate in rates.items()) + " TFLOP/s"
    figures = {f"{kind}_TFLOP_s": rate for kind, rate in rates.items()}
    figures.update(load.summarise_samples(rows))
    hard, soft = load.judge_slowdown(rows)
    if hard or soft:
        return Result(
            FAIL if hard else WARN,
            f"slowed down under load: {', '.join([*hard, *soft])}; {measured}",
            "no slowdown by hardware or heat",
            "nvidia-smi under load",
            remedy="drain the node; check its cooling and power supply",
            figures=figures,
        )

    bf16 = rates.get("bf16", 0.0)
    known = find_known_figure(RATES, name)
    result = _judge_share(bf16, known, SHARE, "TFLOP/s in bf16", "bf16", MAMF, name)
    evidence = ""
    if not rows:
        evidence = "nvidia-smi did not report on this GPU under load"
    return Result(
        result.status, measured, result.expected, result.source, evidence, result.remedy, figures
    )


def judge_host(there: float, back: float, rows: list[dict[str, str]], name: str) -> Result:
    """Judge the GB/s of copies from host memory to the GPU NAME (THERE) and BACK.

    ROWS: what nvidia-smi said of the GPU's PCIe link meanwhile; the last one counts.
    """
    figures = {"h2d_GB_s": round(there, 2), "d2h_GB_s": round(back, 2)}
    measured = f"to the GPU {there:.1f} GB/s, back {back:.1f} GB/s"
    narrow, slow = narrow_links([{**row, "index": row.get("index", "?")} for row in rows[-1:]])
    if narrow and not slow and all(one.fills_slot for one in narrow):
        # No gate is of such a slot.
        return Result(
            WARN,
            f"{'; '.join(map(str, narrow))}; {measured}",
            FULL_LINK,
            "nvidia-smi under load, sysfs",
            remedy=SLOT_REMEDY,
            figures=figures,
        )
    if narrow or slow:
        link = "; ".join([*map(str, narrow), *slow])
        return Result(
            FAIL,
            f"{link} while it copies; {measured}",
            FULL_LINK,
            "nvidia-smi under load",
            remedy=PCIE_REMEDY,
            figures=figures,
        )
    want = find_known_figure(HOST_GATES, name)
    if not want:
        term = _find_pcie_term(rows[-1] if rows else {})
        return _judge_by_term(min(there, back), term, measured, PCIE_REMEDY, {"figures": figures})
    return judge_result(
        min(there, back) >= want,
        measured,
        f">= {want:g} GB/s each way",
        AZURE,
        remedy=PCIE_REMEDY,
        figures=figures,
    )


def _find_pcie_term(row: dict[str, str]) -> Term | None:
    """Return what a GPU's PCIe link carries, as nvidia-smi's ROW of it tells; None if unknown."""
    generation = row.get("pcie.link.gen.current", "")
    width = row.get("pcie.link.width.current", "")
    if not (generation.isdigit() and width.isdigit()):
        return None
    return make_pcie_term(int(generation), int(width))


def _judge_by_term(
    rate: float, term: Term | None, measured: str, remedy: str, more: dict[str, Any]
) -> Result:
    """Judge RATE, the GB/s of the slowest copy, by what TERM lets through: far below is a WARN.

    MORE are further fields of the Result. Without a TERM nothing is known: then it is a PASS, which
    says so.
    """
    if term is None:
        return Result(PASS, measured, "UNKNOWN: no gate, and no figure of its link", **more)
    want = HEALTHY_SHARE * term.rate
    expected = f">= {want:.3g} GB/s, {HEALTHY_SHARE:.0%} of {term.rate:.3g} ({term.name})"
    status = PASS if rate >= want else WARN
    said = remedy if status == WARN else ""
    return Result(status, measured, expected, term.source, remedy=said, **more)


def judge_peers(
    table: list[list[float]],
    wrong: list[str],
    name: str,
    *,
    board: int = 0,
    nvlink: Term | None = None,
) -> Result:
    """Judge copies between the GPUs of a node, which are of the model NAME.

    TABLE: GB/s from GPU to GPU. WRONG: copies whose values were wrong. BOARD: how many GPUs the
    node has in all, 0 for as many as TABLE has. NVLINK: what joins each two of them, at least; None
    where it does not, or where that is not known.
    """
    values = [value for row in table for value in row if value] or [0.0]
    heat = [
        {
            "kind": "matrix",
            "name": "GPU to GPU",
            "labels": [str(n) for n in range(len(table))],
            "values": table,
            "y_unit": "GB/s",
        }
    ]
    measured = f"{min(values):.0f} to {max(values):.0f} GB/s"
    more: dict[str, Any] = {"series": heat, "figures": {"slowest_GB_s": round(min(values), 1)}}
    remedy = "check nvidia-smi topo -p2p r, nvidia-smi nvlink -s, ACS and the IOMMU"
    if wrong:
        said = f"wrong: {', '.join(wrong)}; {measured}"
        return Result(FAIL, said, "each copy right", remedy=remedy, **more)

    gate = find_known_figure(PEER_GATES, name)
    want = gate if (board or len(table)) >= SWITCHED else 0.0
    bad = _list_below(table, want)
    if bad:
        said = f"{', '.join(bad[:8])}; {measured}"
        return Result(FAIL, said, f">= {want:g} GB/s", AZURE, remedy=remedy, **more)

    # These GPUs have NVLink, alike between each two of a node: pairs can be compared
    is_joined = bool(gate or nvlink) or name.removeprefix("NVIDIA ") in LINKS
    median = statistics.median(values)
    lagging = _list_below(table, LAGS * median) if is_joined else []
    if lagging:
        status = FAIL if _list_below(table, BAD * median) else WARN
        said = f"{', '.join(lagging[:8])}; {measured}"
        expected = f">= {LAGS:.0%} of the median, {median:.0f} GB/s"
        source = "the node's other pairs"
        return Result(status, said, expected, source, remedy=remedy, **more)
    if want:
        return Result(PASS, measured, f">= {want:g} GB/s", AZURE, **more)
    if nvlink is not None:
        return _judge_by_term(min(values), nvlink, measured, remedy, more)
    return Result(PASS, measured, "each copy right", **more)


def _list_below(table: list[list[float]], limit: float) -> list[str]:
    """Return `A->B RATE GB/s` of the copies in TABLE below LIMIT."""
    out = []
    for a, row in enumerate(table):
        for b, value in enumerate(row):
            if a != b and value < limit:
                out.append(f"{a}->{b} {value:.0f} GB/s")
    return out


def runs_on(target: str, major: int, minor: int) -> bool:
    """Return whether what was compiled for TARGET runs on a GPU of the capability MAJOR.MINOR.

    TARGET is one of torch.cuda.get_arch_list(): sm_90, sm_90a, compute_120, ...
    """
    kind, _, number = target.partition("_")
    digits = number.rstrip("af")  # the last digit is the minor number
    own = (int(digits[:-1]), int(digits[-1]))
    if number.endswith("a"):
        return own == (major, minor)
    if kind == "compute" and not number.endswith("f"):
        return own <= (major, minor)
    return own[0] == major and own[1] <= minor
