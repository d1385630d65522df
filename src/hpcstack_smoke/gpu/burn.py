"""Minutes of matrix products, each compared bit for bit with the first: a GPU that computes wrongly
now and then.

The same product on the same device by the same kernel has the same bits. Meanwhile clocks, power,
temperature and what slows a GPU down are sampled. Without a GPU the CPU's cores do the same.
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

GPU_SIZE, CPU_SIZE, SEED = 8192, 384, 20240607
BATCH_S, SAMPLE_S, ALIVE_S, POINTS, WRONG_MOST = 0.5, 5.0, 10.0, 120, 50
BATCH_MOST = 16  # results that lie in the GPU's memory at once
SAGS = 0.9  # of the first third's rate in the last third
REMEDY = (
    "drain the node: a GPU (or CPU) that gives other bits for the same product corrupts every "
    "training on it"
)
HOT = "look at the node's cooling and power supply: nvidia-smi -q -d PERFORMANCE,TEMPERATURE"


@dataclass
class Burnt:
    """What one rank saw.

    `wrong`: what differed and when; `rates`: (seconds since the start, TFLOP/s).
    """

    where: str
    device: str
    products: int = 0
    wrong: list[str] = field(default_factory=list)
    rates: list[tuple[float, float]] = field(default_factory=list)
    samples: list[dict[str, str]] = field(default_factory=list)
    digest: str = ""


def multiply_matrices(a: Any, b: Any) -> Any:
    return a @ b


def burn(context: Context) -> Result:
    """All ranks at once, for as long as was asked."""
    import socket

    mine = Burnt(f"{socket.gethostname()}:{context.rank}", context.gpu_name() or "CPU")
    _work(context, mine, context.request.minutes * 60)
    everyone = context.all((mine.where, mine.device, mine.digest))
    return judge_burn(mine, everyone, context.note())


def _work(context: Context, mine: Burnt, seconds: float) -> None:
    import torch

    size = GPU_SIZE if context.gpu else CPU_SIZE
    generator = torch.Generator().manual_seed(SEED)
    dtype = torch.bfloat16 if context.gpu and torch.cuda.is_bf16_supported() else torch.float32
    a, b = (
        torch.randn(size, size, generator=generator).to(context.device, dtype) for _ in range(2)
    )
    first = multiply_matrices(a, b)
    mine.digest = hashlib.sha256(first.to(torch.float32).cpu().numpy().tobytes()).hexdigest()[:16]
    stop = threading.Event()
    watcher = threading.Thread(target=_watch, args=(context, mine, stop), daemon=True)
    watcher.start()
    began, in_batch = time.monotonic(), 4
    told = began
    while (now := time.monotonic()) - began < seconds:
        results = [multiply_matrices(a, b) for _ in range(in_batch)]
        differ = [int((one != first).sum()) for one in results]  # waits for the device
        took = time.monotonic() - now
        mine.products += in_batch
        for one, count in zip(results, differ):
            if (
                count and len(mine.wrong) < WRONG_MOST
            ):  # and on: who stops early leaves the others waiting
                mine.wrong.append(_difference(one, first, count, now - began))
        mine.rates.append((round(now - began, 1), 2 * size**3 * in_batch / took / 1e12))
        in_batch = max(1, min(BATCH_MOST, int(in_batch * BATCH_S / max(took, 1e-3))))
        if now - told > ALIVE_S:
            told = now
            context.alive()
    stop.set()
    watcher.join(60)


def _difference(one: Any, first: Any, count: int, after: float) -> str:
    import torch

    place = int((one != first).reshape(-1).to(torch.uint8).argmax())
    got, want = float(one.reshape(-1)[place]), float(first.reshape(-1)[place])
    return f"{count} value(s) after {after:.0f} s, first at {place}: {got:g} for {want:g}"


def _watch(context: Context, mine: Burnt, stop: threading.Event) -> None:
    """A sample every few seconds, of this rank's GPU, or of the CPU."""
    while not stop.wait(SAMPLE_S if mine.samples else 1.0):
        row = load.find_own_row(context, load.rows_now()) if context.gpu else cpu_now()
        if row:
            mine.samples.append(row)


def cpu_now() -> dict[str, str]:
    """Temperature and clock of this machine's CPU, as far as the kernel says."""
    out = {}
    temperatures = [
        int(text)
        for path in glob.glob("/sys/class/thermal/thermal_zone*/temp")
        if (text := _read(path)).isdigit()
    ]
    clocks = [
        int(text)
        for path in glob.glob("/sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq")
        if (text := _read(path)).isdigit()
    ]
    if temperatures:
        out["temperature.gpu"] = f"{max(temperatures) / 1000:.0f}"
    if clocks:
        out["clocks.sm"] = f"{min(clocks) / 1000:.0f}"
    return out


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def judge_burn(mine: Burnt, everyone: list[tuple[str, str, str]], note: str) -> Result:
    """EVERYONE: (host:rank, device, digest of the first product); who differs from its like is
    wrong throughout.
    """
    figures, series = _figures(mine), _series(mine)
    alike = Counter(digest for _, device, digest in everyone if device == mine.device)
    usual = alike.most_common(1)[0][0] if alike else mine.digest
    measured = f"{mine.products:,} products in {mine.rates[-1][0] if mine.rates else 0:.0f} s, "
    measured += f"{figures.get('mean_TFLOP_s', 0):.3g} TFLOP/s"
    more: dict[str, Any] = {"figures": figures, "series": series, "informational": bool(note)}
    wrong = list(mine.wrong)
    if mine.digest != usual and alike[usual] > alike[mine.digest]:
        wrong.insert(0, f"its first product is not that of {alike[usual]} others")
    expected = "every product has the same bits"
    if wrong:
        said = f"{mine.device}: {len(wrong)} wrong: {wrong[0]}; {measured}"
        return Result(
            FAIL, said, expected, "the first product", "; ".join(wrong[1:6]), REMEDY, **more
        )
    hard, soft = load.judge_slowdown(mine.samples)
    if hard:
        said = f"slowed down by {', '.join(hard)}; {measured}"
        return Result(FAIL, said, "no slowdown by hardware", "nvidia-smi", remedy=HOT, **more)
    share = figures.get("last_third_share", 1.0)
    if soft or (share < SAGS and not note):
        said = (
            f"slowed down by {', '.join(soft)}"
            if soft
            else f"{share:.0%} of its first rate in the last third"
        )
        return Result(
            WARN,
            f"{said}; {measured}",
            f">= {SAGS:.0%} of its first rate",
            "itself",
            remedy=HOT,
            **more,
        )
    return Result(
        PASS, f"{measured}{'; ' + note if note else ''}", expected, "the first product", **more
    )


def _figures(mine: Burnt) -> dict[str, float]:
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


def _series(mine: Burnt) -> list[dict[str, Any]]:
    """Rate, temperature, power and clock over time, thinned."""
    step = max(1, len(mine.rates) // POINTS)
    kept = mine.rates[::step]
    out = [
        {
            "name": "TFLOP/s over time",
            "x": [at for at, _ in kept],
            "y": [round(rate, 4) for _, rate in kept],
            "x_unit": "s",
            "y_unit": "TFLOP/s",
        }
    ]
    for name, unit in (("temperature.gpu", "C"), ("power.draw", "W"), ("clocks.sm", "MHz")):
        values = [
            (SAMPLE_S * n, value)
            for n, row in enumerate(mine.samples)
            if (value := nvidia.parse_number(row.get(name, ""))) is not None
        ]
        if len(values) > 1:
            kept = values[:: max(1, len(values) // POINTS)]
            out.append(
                {
                    "name": f"{name} over time",
                    "x": [at for at, _ in kept],
                    "y": [value for _, value in kept],
                    "x_unit": "s",
                    "y_unit": unit,
                }
            )
    return out
