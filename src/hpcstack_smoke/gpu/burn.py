"""Run minutes of matrix products, to find a GPU that computes wrongly now and then.

Each product is compared bit for bit with the first: the same product on the same device by the same
kernel has the same bits. Meanwhile clocks, power, temperature and slowdowns are sampled. Without a
GPU the CPU's cores do the same.
"""

from __future__ import annotations

import glob
import hashlib
import statistics
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcstack_smoke.gpu import load
from hpcstack_smoke.node import nvidia
from hpcstack_smoke.result import FAIL, PASS, WARN, Result

if TYPE_CHECKING:
    from hpcstack_smoke.context import Context

# Rows and columns of the matrices
GPU_SIZE, CPU_SIZE, SEED = 8192, 384, 20240607
# Seconds that a batch of products should take, between samples, and between signs of life
BATCH_S, SAMPLE_S, ALIVE_S = 0.5, 5.0, 10.0
# Points of a curve that is drawn; wrong products that are kept
POINTS, WRONG_MOST = 120, 50
# Products of a batch at most: so many results lie in the GPU's memory at once
BATCH_MOST = 16
# Of the first third's rate in the last third: below is a WARN
SAGS = 0.9
REMEDY = (
    "drain the node: a GPU (or CPU) that gives other bits for the same product corrupts every "
    "training on it"
)
HOT = "check the node's cooling and power supply: nvidia-smi -q -d PERFORMANCE,TEMPERATURE"


@dataclass
class Burnt:
    """What one rank saw.

    `wrong`: what differed and when. `rates`: (seconds since the start, TFLOP/s) of each batch.
    `samples`: {field: value} of nvidia-smi, each time it was asked. `digest`: of the first product.
    """

    where: str
    device: str
    products: int = 0
    wrong: list[str] = field(default_factory=list)
    rates: list[tuple[float, float]] = field(default_factory=list)
    samples: list[dict[str, str]] = field(default_factory=list)
    digest: str = ""


def multiply_matrices(a: Any, b: Any) -> Any:
    """Return A @ B. A function of its own, so that a test can plant a wrong bit here."""
    return a @ b


def check_burn_compute(context: Context) -> Result:
    """Run products on all ranks at once, for as many minutes as were asked for."""
    import socket

    mine = Burnt(f"{socket.gethostname()}:{context.rank}", context.gpu_name() or "CPU")
    _run_products(context, mine, context.request.minutes * 60)
    everyone = context.all((mine.where, mine.device, mine.digest))
    return judge_burn(mine, everyone, context.note())


def _run_products(context: Context, mine: Burnt, seconds: float) -> None:
    """Multiply two matrices for SECONDS, compare each product with the first, and fill in MINE."""
    import torch

    size = GPU_SIZE if context.gpu else CPU_SIZE
    generator = torch.Generator().manual_seed(SEED)
    dtype = torch.bfloat16 if context.gpu and torch.cuda.is_bf16_supported() else torch.float32
    # Made on the CPU, so that all ranks have the same matrices
    a, b = (
        torch.randn(size, size, generator=generator).to(context.device, dtype) for _ in range(2)
    )
    first = multiply_matrices(a, b)
    mine.digest = hashlib.sha256(first.to(torch.float32).cpu().numpy().tobytes()).hexdigest()[:16]

    stop = threading.Event()
    watcher = threading.Thread(target=_collect_samples, args=(context, mine, stop), daemon=True)
    watcher.start()
    began = time.monotonic()
    last_alive = began
    in_batch = 4
    while (now := time.monotonic()) - began < seconds:
        results = [multiply_matrices(a, b) for _ in range(in_batch)]
        differ = [int((one != first).sum()) for one in results]  # waits for the device
        took = time.monotonic() - now
        mine.products += in_batch
        for one, count in zip(results, differ):
            # A wrong product is no reason to stop: the other ranks would wait for this one
            if count and len(mine.wrong) < WRONG_MOST:
                mine.wrong.append(_describe_difference(one, first, count, now - began))
        mine.rates.append((round(now - began, 1), 2 * size**3 * in_batch / took / 1e12))

        # As many products next time as take BATCH_S
        in_batch = max(1, min(BATCH_MOST, int(in_batch * BATCH_S / max(took, 1e-3))))
        if now - last_alive > ALIVE_S:
            last_alive = now
            context.alive()
    stop.set()
    watcher.join(60)


def _describe_difference(one: Any, first: Any, count: int, after: float) -> str:
    """Return how ONE product differs from the FIRST, in COUNT values, AFTER seconds of burning."""
    import torch

    place = int((one != first).reshape(-1).to(torch.uint8).argmax())
    got = float(one.reshape(-1)[place])
    want = float(first.reshape(-1)[place])
    return f"{count} value(s) after {after:.0f} s, first at {place}: {got:g} for {want:g}"


def _collect_samples(context: Context, mine: Burnt, stop: threading.Event) -> None:
    """Add a sample of this rank's GPU, or of the CPU, to MINE every SAMPLE_S seconds until STOP."""
    while not stop.wait(SAMPLE_S if mine.samples else 1.0):
        row = load.find_own_row(context, load.query_rows()) if context.gpu else read_cpu_clock()
        if row:
            mine.samples.append(row)


def read_cpu_clock() -> dict[str, str]:
    """Return temperature and clock of this machine's CPU, as far as the kernel says.

    They have the names that nvidia-smi has for a GPU's: the highest temperature of any zone in C,
    the lowest clock of any core in MHz.
    """
    out = {}
    temperatures = _read_numbers("/sys/class/thermal/thermal_zone*/temp")
    if temperatures:
        out["temperature.gpu"] = f"{max(temperatures) / 1000:.0f}"
    clocks = _read_numbers("/sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq")
    if clocks:
        out["clocks.sm"] = f"{min(clocks) / 1000:.0f}"
    return out


def _read_numbers(pattern: str) -> list[int]:
    """Return the numbers in the files that match PATTERN.

    Files that cannot be read, or hold no number, are left out.
    """
    out = []
    for path in glob.glob(pattern):
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            out.append(int(text))
    return out


def judge_burn(mine: Burnt, everyone: list[tuple[str, str, str]], note: str) -> Result:
    """Judge what one rank saw: a wrong product or a slowdown by hardware is a FAIL.

    EVERYONE: (host:rank, device, digest of the first product) of each rank. A rank whose first
    product differs from that of most ranks with the same device is wrong throughout. A slowdown by
    software for heat, or a rate that sags, is a WARN. NOTE, if any, says why the figures tell
    nothing about the hardware: then a rate that sags does not count.
    """
    figures = _make_figures(mine)
    more: dict[str, Any] = {
        "figures": figures,
        "series": _make_series(mine),
        "informational": bool(note),
    }
    seconds = mine.rates[-1][0] if mine.rates else 0
    measured = f"{mine.products:,} products in {seconds:.0f} s, "
    measured += f"{figures.get('mean_TFLOP_s', 0):.3g} TFLOP/s"

    alike = Counter(digest for _, device, digest in everyone if device == mine.device)
    usual = alike.most_common(1)[0][0] if alike else mine.digest
    wrong = list(mine.wrong)
    if mine.digest != usual and alike[usual] > alike[mine.digest]:
        wrong.insert(0, f"its first product differs from that of {alike[usual]} others")
    expected = "every product has the same bits"
    source = "the first product"
    if wrong:
        said = f"{mine.device}: {len(wrong)} wrong: {wrong[0]}; {measured}"
        return Result(FAIL, said, expected, source, "; ".join(wrong[1:6]), REMEDY, **more)

    hard, soft = load.judge_slowdown(mine.samples)
    if hard:
        said = f"slowed down by {', '.join(hard)}; {measured}"
        return Result(FAIL, said, "no slowdown by hardware", "nvidia-smi", remedy=HOT, **more)
    share = figures.get("last_third_share", 1.0)
    if soft or (share < SAGS and not note):
        said = f"{share:.0%} of its first rate in the last third"
        if soft:
            said = f"slowed down by {', '.join(soft)}"
        wanted = f">= {SAGS:.0%} of its first rate"
        return Result(WARN, f"{said}; {measured}", wanted, "itself", remedy=HOT, **more)
    if note:
        measured += f"; {note}"
    return Result(PASS, measured, expected, source, **more)


def _make_figures(mine: Burnt) -> dict[str, float]:
    """Return the figures of a burn, none where it has no rate.

    `last_third_share` is the median rate of the last third of batches by that of the first third.
    """
    values = [rate for _, rate in mine.rates]
    if not values:
        return {}
    third = max(1, len(values) // 3)
    share = statistics.median(values[-third:]) / max(statistics.median(values[:third]), 1e-12)
    return {
        "products": float(mine.products),
        "mean_TFLOP_s": round(statistics.fmean(values), 4),
        "slowest_TFLOP_s": round(min(values), 4),
        "last_third_share": round(share, 3),
        **load.summarise_samples(mine.samples),
    }


def _make_series(mine: Burnt) -> list[dict[str, Any]]:
    """Return the curves of rate, temperature, power and clock over time.

    They are thinned to about POINTS points.
    """
    kept = mine.rates[:: max(1, len(mine.rates) // POINTS)]
    rounded = [(at, round(rate, 4)) for at, rate in kept]
    out = [_make_curve("TFLOP/s", rounded, "TFLOP/s")]
    for name, unit in (("temperature.gpu", "C"), ("power.draw", "W"), ("clocks.sm", "MHz")):
        values = []
        for number, row in enumerate(mine.samples):
            value = nvidia.parse_number(row.get(name, ""))
            if value is not None:
                values.append((SAMPLE_S * number, value))
        if len(values) > 1:
            out.append(_make_curve(name, values[:: max(1, len(values) // POINTS)], unit))
    return out


def _make_curve(name: str, points: list[tuple[float, float]], unit: str) -> dict[str, Any]:
    """Return the series of NAME over time; POINTS are (seconds, value in UNIT)."""
    return {
        "name": f"{name} over time",
        "x": [at for at, _ in points],
        "y": [value for _, value in points],
        "x_unit": "s",
        "y_unit": unit,
    }
