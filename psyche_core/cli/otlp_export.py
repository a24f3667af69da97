"""OpenTelemetry of a command: `--otlp-metrics-url` and the related options."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from psyche_core.cli.trackers import abandon
from psyche_core.config.options.shared import OtlpOptions
from psyche_core.telemetry.sinks import Sink


@contextmanager
def otlp_sinks(settings: OtlpOptions) -> Iterator[list[Sink]]:
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
