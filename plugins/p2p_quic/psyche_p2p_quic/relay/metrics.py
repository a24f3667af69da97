"""The figures that a relay counts, as the text that Prometheus reads. It contains no id and no address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields


@dataclass(slots=True)
class Counters:
    """Totals since the start. Every field's help text is in `_HELP`."""

    connections: int = 0
    connections_refused: int = 0
    crowded_out: int = 0
    tls_failures: int = 0
    requests_refused: int = 0
    logins: int = 0
    logins_failed: int = 0
    logins_denied: int = 0
    handshake_timeouts: int = 0
    protocol_errors: int = 0
    ping_timeouts: int = 0
    write_timeouts: int = 0
    revoked: int = 0
    replaced: int = 0
    rate_limited: int = 0
    frames_received: int = 0
    bytes_received: int = 0
    frames_forwarded: int = 0
    bytes_forwarded: int = 0
    frames_without_receiver: int = 0
    frames_dropped: int = 0


_HELP: Mapping[str, str] = {
    "connections": "TCP connections accepted",
    "connections_refused": "TCP connections closed at once: too many from their address, or too fast",
    "crowded_out": "connections that had proved nothing, closed because newer ones needed the place",
    "tls_failures": "connections closed because their TLS failed",
    "requests_refused": "HTTP requests answered with an error",
    "logins": "clients that proved their id and were admitted",
    "logins_failed": "clients whose answer to the challenge was wrong",
    "logins_denied": "clients that proved their id and were not admitted",
    "handshake_timeouts": "connections closed because their handshake took too long",
    "protocol_errors": "clients closed because they sent what the protocol forbids",
    "ping_timeouts": "clients closed because they did not answer a ping",
    "write_timeouts": "clients closed because they took nothing of what was sent to them",
    "revoked": "clients closed because they may not use the relay any more",
    "replaced": "clients closed because their id connected too often",
    "rate_limited": "times that reading from a client paused because of a rate limit",
    "frames_received": "frames from clients",
    "bytes_received": "bytes of frames from clients",
    "frames_forwarded": "frames queued for their receiver",
    "bytes_forwarded": "bytes of frames queued for their receiver",
    "frames_without_receiver": "frames dropped because their receiver is not connected",
    "frames_dropped": "frames dropped because a queue was full",
}

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def prometheus_text(counters: Counters, gauges: Iterable[tuple[str, str, float]]) -> str:
    """Return the exposition format, version 0.0.4. gauges: (name, help text, value)."""
    lines = []
    for field in fields(counters):
        name = f"psyche_relay_{field.name}_total"
        lines += [f"# HELP {name} {_HELP[field.name]}", f"# TYPE {name} counter", f"{name} {getattr(counters, field.name)}"]
    for short, text, value in gauges:
        name = f"psyche_relay_{short}"
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {value:g}" if value % 1 else f"{name} {value:.0f}"]
    return "\n".join(lines) + "\n"
