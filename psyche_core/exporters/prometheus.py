"""The figures of a `MetricBook` in Prometheus' text format, by Prometheus' own library (extra `metrics`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from psyche_core.telemetry.metrics import METRICS, Sample

CONTENT_TYPE: str = CONTENT_TYPE_PLAIN_0_0_4


class _Figures(Collector):
    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        """Prometheus' word: a family for each metric, also for one without a value."""
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
            name: (CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily)(
                name, metric.help, labels=metric.labels
            )
            for name, metric in METRICS.items()
        }
        for sample in self._samples():
            families[sample.metric.name].add_metric(sample.labels, sample.value)
        yield from families.values()


def exposition(samples: Callable[[], Iterable[Sample]]) -> bytes:
    """The text that Prometheus reads. samples: returns the current values."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(samples))
    return generate_latest(registry)
