"""OpenTelemetry of a command: `--otlp-metrics-url` and the related options."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from psyche_core.cli.trackers import abandon
from psyche_core.telemetry.sinks import Sink


class OtlpSettings(Protocol):
    """The options. Without any URL nothing is sent."""

    @property
    def otlp_metrics_url(self) -> str | None:
        """Where figures go."""

    @property
    def otlp_tracing_url(self) -> str | None:
        """Where rounds go."""

    @property
    def otlp_logs_url(self) -> str | None:
        """Where log lines go."""

    @property
    def otlp_auth_header(self) -> str | None:
        """Value of the header `Authorization`."""

    @property
    def otlp_report_interval(self) -> float:
        """Seconds between two reports of figures."""


@contextmanager
def otlp_sinks(settings: OtlpSettings) -> Iterator[list[Sink]]:
    """Send telemetry while inside, if a URL says where; gives the sinks. The end waits for the rest, but not for long."""
    if not (settings.otlp_metrics_url or settings.otlp_tracing_url or settings.otlp_logs_url):
        yield []
        return

    from psyche_core.exporters.otlp import LinesHandler, OtlpSink, OtlpTargets, quiet_library

    sink = OtlpSink(
        OtlpTargets(
            metrics_url=settings.otlp_metrics_url,
            tracing_url=settings.otlp_tracing_url,
            logs_url=settings.otlp_logs_url,
            auth_header=settings.otlp_auth_header,
            interval=settings.otlp_report_interval,
        )
    )
    handler = LinesHandler(sink)
    with quiet_library():
        logging.getLogger().addHandler(handler)
        try:
            yield [sink]
        finally:
            logging.getLogger().removeHandler(handler)
            if not sink.close():
                abandon()
