"""Numbers in Prometheus' text format, for node_exporter's textfile collector.

prometheus_client writes the format: https://github.com/prometheus/node_exporter#textfile-collector.

Tested in tests/unit/report/test_report_forms.py and tests/unit/publish/test_metrics.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric as Family

# Control characters, other ends of lines, and halves of surrogate pairs: no reader wants them, and
# the last are no UTF-8.
NOT_SHOWN = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True)
class Metric:
    """One metric: its NAME behind `hpcstack_`, and VALUES, each by the values of its LABELS."""

    name: str
    about: str
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]
    kind: Literal["gauge", "counter"] = "gauge"


def render_metrics_text(metrics: Iterable[Metric]) -> str:
    """Return METRICS in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    families = [_make_family(one) for one in metrics]

    class Given(Collector):
        def collect(self) -> Iterator[Family]:
            yield from families

    registry = CollectorRegistry()
    registry.register(Given())
    return generate_latest(registry).decode()


def _make_family(metric: Metric) -> Family:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    name = f"hpcstack_{metric.name}"
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = make(name, metric.about, labels=metric.labels)
    for key, value in metric.values.items():
        family.add_metric([NOT_SHOWN.sub(" ", part) for part in key], value)
    return family
