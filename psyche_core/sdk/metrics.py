"""A client's figures, collected from its events."""

from __future__ import annotations

from dataclasses import dataclass, replace

from psyche_core.telemetry import events


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """A client's figures at one moment.

    Attributes:
        step: last step we trained, 0 before the first.
        applied: last step whose results are in our weights.
        loss: loss of our share of `step`, in nats per predicted token; None before the first.
        tokens_per_second: speed of training that share, without waiting time.
        bytes_sent: since the client connected, counted on our side of the wire.
        bytes_received: since the client connected, counted on our side of the wire.
        peers: members connected now.
    """

    step: int = 0
    applied: int = 0
    loss: float | None = None
    tokens_per_second: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    peers: int = 0

    def after(self, event: events.Event) -> Metrics:
        """The figures after this event."""
        match event:
            case events.StepTrained():
                speed = event.tokens / event.seconds if event.seconds > 0 else 0.0
                return replace(self, step=event.step, loss=event.loss, tokens_per_second=speed)
            case events.StepApplied():
                return replace(self, applied=event.step)
            case events.NetworkTotals():
                return replace(self, bytes_sent=event.bytes_sent, bytes_received=event.bytes_received, peers=event.peers)
            case _:
                return self
