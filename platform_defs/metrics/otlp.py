"""The metrics sent by OTLP: the figures of `GET /metrics`, to whoever collects with OpenTelemetry.

Belongs here: how a metric of Prometheus is one of OTLP, and sending. Not here: which metrics there are; the settings of
a sender, which are OpenTelemetry's own environment variables.
"""

import logging
import os
import threading
import time
from collections.abc import Iterable
from contextlib import closing
from urllib.parse import urlsplit

from prometheus_client.core import Metric as Family

from millrace.platform_defs.metrics.serve import collecting
from millrace.resources.errors import MillraceError

try:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Metric,
        MetricExportResult,
        MetricsData,
        NumberDataPoint,
        ResourceMetrics,
        ScopeMetrics,
        Sum,
    )
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
except ImportError as error:
    raise MillraceError(
        f"Metrics cannot be sent by OTLP: {error}.", hint="Install its client: pip install 'millrace[otlp]'."
    ) from error

ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
INTERVAL_MS = 60_000

logger = logging.getLogger(__name__)


def send_metrics(dsn: str, stop: threading.Event) -> None:
    """Send the metrics of an event store, and of Dagster where DAGSTER_HOME names one, again and again until `stop`.

    Where to, how often, with which headers and certificates is said by OpenTelemetry's variables, as
    OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_METRIC_EXPORT_INTERVAL. What cannot be sent is logged, and the next time comes.

    Raises:
        MillraceError: A variable is not readable.
    """
    every_s = _interval_s()
    _require_endpoint()
    ours = Resource({"service.name": "millrace"}).merge(OTELResourceDetector().detect())
    with collecting(dsn) as registry, closing(_Closable()) as exporter:
        while not stop.is_set():
            if exporter.export(as_otlp(registry.collect(), ours)) is not MetricExportResult.SUCCESS:
                logger.warning("metrics could not be sent; the next try is in %s s", every_s)
            stop.wait(every_s)


class _Closable(OTLPMetricExporter):
    def close(self) -> None:
        self.shutdown()


def as_otlp(families: Iterable[Family], resource: Resource) -> MetricsData:
    """Return metrics of Prometheus as those of OTLP: counters are cumulative sums, all else are gauges."""
    now = time.time_ns()
    metrics = [Metric(family.name, family.documentation, "", _data(family, now)) for family in families]
    scope = ScopeMetrics(InstrumentationScope("millrace"), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _data(family: Family, now: int) -> Sum | Gauge:
    # since when a store has counted is not known: 0 says so
    points = [NumberDataPoint(sample.labels, 0, now, sample.value) for sample in family.samples]
    if family.type == "counter":
        return Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return Gauge(points)


def _interval_s() -> float:
    stated = os.environ.get(INTERVAL, "") or str(INTERVAL_MS)
    if not stated.isdecimal() or not 0 < int(stated) <= 24 * 3600 * 1000:
        raise MillraceError(
            f"{INTERVAL} is {stated!r}.", hint=f"State milliseconds, up to a day; {INTERVAL_MS} is the default."
        )
    return int(stated) / 1000


def _require_endpoint() -> None:
    for name in ENDPOINTS:
        stated = os.environ.get(name, "")
        try:
            readable = not stated or (urlsplit(stated).scheme in {"http", "https"} and bool(urlsplit(stated).hostname))
        except ValueError:
            readable = False
        if not readable:
            raise MillraceError(f"{name} is no URL of http or https.", hint="Such as http://127.0.0.1:4318.")
