"""The same metrics by OTLP, to a receiver over HTTP."""

import gzip
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE, Metric

from millrace.platform_defs.metrics.otlp import send_metrics
from millrace.platform_defs.metrics.serve import serving_metrics
from millrace.resources.errors import MillraceError
from millrace.resources.event_store import EventStore
from tests.support.factories import append_to, register_orders
from tests.support.patience import patience
from tests.support.running.http_servers import Silent, serving
from tests.support.scrapes import scraped

MAIN = "from millrace.platform_defs.cli import main; main()"


class Receiver(HTTPServer):
    """Keeps what it is sent; answers `refusing` requests with 400 first."""

    def __init__(self, refusing: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received = Queue[ExportMetricsServiceRequest]()
        self.refusing = refusing


class _Handler(Silent, BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/metrics"
        self.server.received.put(ExportMetricsServiceRequest.FromString(body))
        self.server.refusing -= 1
        self.send_response(200 if self.server.refusing < 0 else 400)
        self.send_header("Content-Type", "application/x-protobuf")
        self.end_headers()
        self.wfile.write(ExportMetricsServiceResponse().SerializeToString())


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
    with serving(Receiver()) as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield server


def sent(dsn: str, receiver: Receiver, requests: int) -> list[ExportMetricsServiceRequest]:
    """Send until the receiver has so many requests."""
    stop = threading.Event()
    sender = threading.Thread(target=send_metrics, args=(dsn, stop))
    sender.start()
    try:
        return [receiver.received.get(timeout=patience()) for _ in range(requests)]
    finally:
        stop.set()
        sender.join()


def metrics(request: ExportMetricsServiceRequest) -> dict[str, Metric]:
    (resource,) = request.resource_metrics
    assert ("service.name", "millrace") in [
        (each.key, each.value.string_value) for each in resource.resource.attributes
    ]
    return {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}


def test_what_is_scraped_is_sent(store: EventStore, dsn: str, receiver: Receiver) -> None:
    register_orders(store)
    store.register_view("mails", "-infinity")
    append_to(store, "o-1", "o-2", "o-2")
    store.sequence_events()
    found = metrics(sent(dsn, receiver, 1)[0])
    with serving_metrics(dsn, 0) as port:
        names = {name for name, _ in scraped(port)}
    # a metric that has no samples now is sent as well
    assert names <= {f"{name}_total" if metric.HasField("sum") else name for name, metric in found.items()}
    positions = found["millrace_log_positions"].sum
    assert positions.is_monotonic
    assert positions.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    assert sum(point.as_double or point.as_int for point in positions.data_points) == 3
    (lag,) = found["millrace_view_lag_events"].gauge.data_points
    assert (lag.as_double or lag.as_int) == 3
    assert {each.key: each.value.string_value for each in lag.attributes} == {"view": "mails", "mode": "rows"}


def test_a_receiver_that_refuses_is_asked_again(
    store: EventStore, dsn: str, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    register_orders(store)
    receiver.refusing = 1
    assert all(metrics(request) for request in sent(dsn, receiver, 2))
    assert "could not be sent; the next try is in 0.05 s" in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "often"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
    ],
)
def test_a_variable_that_is_not_readable_is_named(
    dsn: str, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(MillraceError, match=name):
        send_metrics(dsn, threading.Event())


def test_the_command_sends_until_it_is_stopped(dsn: str, receiver: Receiver) -> None:
    command = [sys.executable, "-c", MAIN, "run", "metrics", "--otlp", "--dsn", dsn]
    with subprocess.Popen(command, env={**os.environ}) as process:
        receiver.received.get(timeout=patience())
        process.send_signal(signal.SIGTERM)
        assert process.wait(patience()) == 0
