"""A collector: takes OTLP over HTTP and decodes it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

KINDS: dict[str, Any] = {
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}


@dataclass
class Collector:
    """requests: decoded, by path. headers: of every request. status: of every answer. hangs: until it is set, none is given."""

    url: str = ""
    requests: dict[str, list[Any]] = field(default_factory=lambda: {path: [] for path in KINDS})
    headers: list[dict[str, str]] = field(default_factory=list)
    status: int = 200
    hangs: threading.Event | None = None
    came: threading.Event = field(default_factory=threading.Event)

    def values(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """The newest report of metrics: attributes and value of each point, by name."""
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for resource in self.requests["/v1/metrics"][-1].resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    points = (metric.gauge if metric.HasField("gauge") else metric.sum).data_points
                    found[metric.name] = [
                        (plain(point.attributes), point.as_double if point.HasField("as_double") else point.as_int)
                        for point in points
                    ]
        return found

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests["/v1/traces"]
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def logs(self) -> list[Any]:
        return [
            record
            for request in self.requests["/v1/logs"]
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]


def plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextmanager
def collector() -> Iterator[Collector]:
    """A running collector."""
    state = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.headers.append({name.lower(): value for name, value in self.headers.items()})
            state.came.set()
            if state.hangs is not None:
                state.hangs.wait()
            if state.status == 200:
                request = KINDS[self.path]()
                request.ParseFromString(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
                state.requests[self.path].append(request)
            self.send_response(state.status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Clients that went."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        if state.hangs is not None:
            state.hangs.set()
        server.shutdown()
        server.server_close()
        thread.join()
