"""Turns a figure into a metric of Prometheus: its name, its help text, its labels."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

Samples = Iterable[tuple[Sequence[str], float]]


def gauge(name: str, help_text: str, labels: Sequence[str], samples: Samples) -> GaugeMetricFamily:
    """Make the metric `millrace_<name>` of a figure that rises and falls."""
    family = GaugeMetricFamily(f"millrace_{name}", help_text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def counter(name: str, help_text: str, labels: Sequence[str], samples: Samples) -> CounterMetricFamily:
    """Make the metric `millrace_<name>_total` of a figure that only rises."""
    family = CounterMetricFamily(f"millrace_{name}", help_text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def seconds_since(time: datetime | None) -> float:
    """Return how long ago a time was, in seconds; 0 for a future time and for none."""
    if time is None:
        return 0.0
    return max((datetime.now(UTC) - time.astimezone(UTC)).total_seconds(), 0.0)
