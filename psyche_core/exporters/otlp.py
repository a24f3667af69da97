"""Sends figures, rounds and log lines to an OpenTelemetry collector, by OTLP over HTTP (extra `otlp`).

Metrics have the names of `telemetry.metrics`; traces are rounds (`round_spans`); logs are events as sentences, and log lines. The
library sends from threads of its own, with bounded queues, so the sink returns at once whatever the collector does. Failures are
said on the logger `psyche.otlp`, once and then now and then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import set_span_in_context

from psyche_core.exporters.round_spans import RoundSpan, RoundSpans
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.events import Event
from psyche_core.telemetry.metrics import METRICS, Metric, MetricBook
from psyche_core.telemetry.repeated_problem import RepeatedProblem
from psyche_core.ui.event_text import describe

logger: logging.Logger = logging.getLogger("psyche.otlp")

SCOPE = "psyche"
REQUEST_SECONDS = 10.0
CLOSE_SECONDS = 10.0
"""How long a program that has ended waits until the rest is sent."""

_FREQUENT = (
    telemetry.NetworkTotals,
    telemetry.StepFigures,
    telemetry.OptimizerStatistics,
    telemetry.ResultsFetched,
    telemetry.ResultOverlaps,
    telemetry.WitnessReported,
    telemetry.PeerPaths,
)
"""Events that are figures and no sentences."""

_SEVERITIES = {
    "warning": SeverityNumber.WARN,
    "error": SeverityNumber.ERROR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpTargets:
    """Where to send what; None sends nothing of that kind.

    auth_header: value of `Authorization`. interval: seconds between two reports of metrics.
    """

    metrics_url: str | None = None
    tracing_url: str | None = None
    logs_url: str | None = None
    auth_header: str | None = None
    interval: float = 60.0


class OtlpSink:
    """A sink that sends. It begins once the program has said who it is. Call `close` at the end."""

    def __init__(self, targets: OtlpTargets) -> None:
        self._targets = targets
        self._lock = threading.Lock()
        self._book = MetricBook()
        self._rounds = RoundSpans()
        self._providers: list[Any] = []
        self._tracer: Any = None
        self._log: Any = None

    def __call__(self, event: Event) -> None:
        """Enter an event."""
        now = time.time()
        with self._lock:
            self._book.handle(event)
        if not self._providers and isinstance(event, telemetry.Started | telemetry.RunDescribed):
            self._rounds = RoundSpans(local=isinstance(event, telemetry.RunDescribed))  # no client is without an identity
            self._begin(event)
        ended = self._rounds.handle(event, now=now)
        if ended is not None and self._tracer is not None:
            self._trace(ended)
        if not isinstance(event, _FREQUENT):
            level = event.level if isinstance(event, telemetry.Problem) else "info"
            self.log(describe(event), level=level, name=type(event).__name__, now=now)

    def log(self, text: str, *, level: str, name: str, now: float) -> None:
        """Send a log line. level: `info`, `warning` or `error`. name: of the event or the logger. now: unix seconds."""
        if self._log is not None:
            record = LogRecord(
                timestamp=_nanoseconds(now),
                observed_timestamp=_nanoseconds(now),
                severity_text=level,
                severity_number=_SEVERITIES.get(level, SeverityNumber.INFO),
                body=text,
                attributes={"name": name},
            )
            self._log.emit(record)

    def close(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Send the rest; returns whether that ended in time. Threads of the library do not outlive the process."""
        thread = threading.Thread(target=self._shut_down, name="otlp end", daemon=True)
        thread.start()
        thread.join(seconds)
        if thread.is_alive():
            logger.warning("telemetry was not all sent within %.0f s", seconds)
        return not thread.is_alive()

    def _shut_down(self) -> None:
        for provider in self._providers:
            try:
                provider.shutdown()
            except Exception as error:  # a library's end must not be the program's
                logger.debug("the end of telemetry failed", exc_info=error)

    def _begin(self, event: telemetry.Started | telemetry.RunDescribed) -> None:
        role, program = (event.role, event.id) if isinstance(event, telemetry.Started) else ("client", "")
        resource = Resource.create(
            {
                "service.name": f"psyche-{role}",
                "service.namespace": "psyche",
                "service.instance.id": program,
                "run.id": event.run_id,
            }
        )
        targets = self._targets
        if targets.metrics_url is not None:
            exporter = _telling(OTLPMetricExporter)(**_common(targets.metrics_url, targets))
            reader = PeriodicExportingMetricReader(exporter, export_interval_millis=1000 * targets.interval)
            provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
            self._providers.append(provider)
            meter = provider.get_meter(SCOPE)
            for metric in METRICS.values():
                make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
                make(exported_name(metric), [self._observer(metric)], description=metric.help)
        if targets.tracing_url is not None:
            tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
            tracers.add_span_processor(BatchSpanProcessor(_telling(OTLPSpanExporter)(**_common(targets.tracing_url, targets))))
            self._providers.append(tracers)
            self._tracer = tracers.get_tracer(SCOPE)
        if targets.logs_url is not None:
            loggers = LoggerProvider(resource=resource, shutdown_on_exit=False)
            loggers.add_log_record_processor(
                BatchLogRecordProcessor(_telling(OTLPLogExporter)(**_common(targets.logs_url, targets)))
            )
            self._providers.append(loggers)
            self._log = loggers.get_logger(SCOPE)

    def _observer(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            with self._lock:
                values = self._book.series(metric.name)
            for labels, value in values.items():
                yield Observation(value, dict(zip(metric.labels, labels, strict=True)))

        return observe

    def _trace(self, ended: RoundSpan) -> None:
        attributes = {"epoch": ended.epoch, "height": ended.height, "step": ended.step, "clients": ended.clients}
        span = self._tracer.start_span("round", start_time=_nanoseconds(ended.start), attributes=attributes)
        inside = set_span_in_context(span)
        for part in ended.parts:
            child = self._tracer.start_span(
                part.name, context=inside, start_time=_nanoseconds(part.start), attributes=part.attributes
            )
            child.end(_nanoseconds(part.end))
        span.end(_nanoseconds(ended.end))


def exported_name(metric: Metric) -> str:
    """The name of a metric at a collector, the same as Prometheus'."""
    return f"{metric.name}_total" if metric.kind == "counter" else metric.name


@contextmanager
def quiet_library() -> Iterator[None]:
    """Keep the library's own complaints, one for each try, from the terminal; ours say it once. A level set before stays."""
    library = logging.getLogger("opentelemetry")
    before = library.level
    if before == logging.NOTSET:
        library.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        library.setLevel(before)


class LinesHandler(logging.Handler):
    """Hands log lines to a sink, but those about sending."""

    def __init__(self, sink: OtlpSink) -> None:
        super().__init__(logging.INFO)
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a line over."""
        if record.name.partition(".")[0] in ("opentelemetry", "urllib3", "requests") or record.name == logger.name:
            return

        level = "error" if record.levelno >= logging.ERROR else "warning" if record.levelno >= logging.WARNING else "info"
        self._sink.log(record.getMessage(), level=level, name=record.name, now=record.created)


def _common(url: str, targets: OtlpTargets) -> dict[str, Any]:
    headers = {} if targets.auth_header is None else {"authorization": targets.auth_header}
    return {"endpoint": url, "headers": headers, "timeout": REQUEST_SECONDS}


def _telling(exporter: type[Any]) -> type[Any]:
    """The same exporter, which tells people that sending fails, and when it works again."""

    class Telling(exporter):  # type: ignore[misc]  # one of three classes of a library without types
        def __init__(self, *, endpoint: str, headers: dict[str, str], timeout: float) -> None:
            super().__init__(endpoint=endpoint, headers=headers, timeout=timeout)
            self._url = endpoint
            self._failing = RepeatedProblem()

        def export(self, *arguments: Any, **named: Any) -> Any:
            """Send."""
            result = super().export(*arguments, **named)
            if result.name == "SUCCESS":
                if self._failing.went_well():
                    logger.warning("telemetry can be sent to %s again", self._url)
            elif self._failing.failed():
                logger.warning("telemetry could not be sent to %s; it is tried again, and the run goes on", self._url)
            return result

    return Telling


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
