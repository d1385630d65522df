"""What a burn's figures are worth.

That the products are compared is shown on the testbed, by a planted bit.
"""

from __future__ import annotations

import pytest

from hpcstack_smoke.gpu.burn import Burnt, judge_burn
from hpcstack_smoke.node import nvidia
from hpcstack_smoke.result import FAIL, PASS, WARN

H100 = "NVIDIA H100 80GB HBM3"
HOT = {nvidia.THROTTLE[1]: "Active", "temperature.gpu": "92", "clocks.sm": "900"}


def burnt(
    rates: list[float], *, wrong: tuple[str, ...] = (), samples: tuple[dict[str, str], ...] = ()
) -> Burnt:
    timed = [(10.0 * number, rate) for number, rate in enumerate(rates)]
    return Burnt("n1:0", H100, 1000, list(wrong), timed, list(samples), "same")


def others(*digests: str) -> list[tuple[str, str, str]]:
    return [(f"n1:{rank}", H100, digest) for rank, digest in enumerate(digests)]


STEADY = [700.0] * 60


@pytest.mark.parametrize(("mine", "everyone", "status", "said"), [
    (burnt(STEADY), others("same", "same"), PASS, "700 TFLOP/s"),
    (burnt(STEADY, wrong=(("3 value(s) after 7 " "s"),)), others("same"), FAIL, ("1 wrong: 3 value(s) after 7 " "s")),
    (burnt(STEADY), others("same", "usual", "usual"), FAIL, "its first product differs from that of 2 others"),
    (burnt(STEADY), [*others("same"), ("n2:1", "NVIDIA A100", "other"), ("n2:2", "NVIDIA A100", "other")], PASS, ""),
    (burnt(STEADY, samples=(HOT,)), others("same"), FAIL, "slowed down by hw_thermal_slowdown"),
    (burnt([700.0] * 30 + [500.0] * 30), others("same"), WARN, "71% of its first rate"),
    (burnt([]), others("same"), PASS, "0 TFLOP/s"),
])  # fmt: skip
def test_verdicts(
    mine: Burnt, everyone: list[tuple[str, str, str]], status: str, said: str
) -> None:
    result = judge_burn(mine, everyone, "")
    assert result.status == status
    assert said in result.measured


def test_what_is_drawn_is_thin_and_on_cpus_informational() -> None:
    mine = burnt(
        [1.0] * 5000,
        samples=tuple({"temperature.gpu": str(n), "clocks.sm": "1980"} for n in range(500)),
    )
    result = judge_burn(mine, others("same"), "informational (CPU)")
    assert result.informational
    assert result.figures["temperature_C"] == 499
    assert {one["name"] for one in result.series} == {
        "TFLOP/s over time",
        "temperature.gpu over time",
        "clocks.sm over time",
    }
    assert all(len(one["x"]) == len(one["y"]) <= 130 for one in result.series)
