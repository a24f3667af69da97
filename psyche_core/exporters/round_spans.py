"""Rounds as spans: what a member did in a round, and when. Pure.

Events say how long something took when it is over, so a round is complete only at its end. `train` and `apply` last as long as
their events say; `compress` is the end of `train`; `fetch` lasts from the first download of another member's result to the last
one's end; `witness` lasts from the round's second phase until the coordinator accepted the statement. Results that are
applied in a round are those of the step two before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.events import Event

MAX_PARTS = 64
"""Parts of one round; further ones are left out."""

Attributes = dict[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Part:
    """Something that was done in a round. start, end: unix seconds."""

    name: str
    start: float
    end: float
    attributes: Attributes = field(default_factory=dict)


@dataclass(slots=True)
class RoundSpan:
    """A round of an epoch, or what is left of it when the program ends. start, end: unix seconds."""

    epoch: int
    height: int
    step: int
    clients: int
    start: float
    end: float = 0.0
    parts: list[Part] = field(default_factory=list)


class RoundSpans:
    """Collects the round that is played now. local: there is no coordinator, and each trained step is a round of its own."""

    def __init__(self, *, local: bool = False) -> None:
        self._local = local
        self._round = _unplaced() if local else None
        self._second_phase: float | None = None

    def handle(self, event: Event, *, now: float) -> RoundSpan | None:
        """Enter an event of this program; returns the round that it ended. now: unix seconds."""
        match event:
            case telemetry.PhaseChanged():
                return self._turn(event, now)
            case telemetry.Ended():
                return None if self._local else self._end(now)
            case telemetry.StepTrained():
                self._add("train", now - _seconds(event.seconds), now, step=event.step, loss=event.loss, tokens=event.tokens)
                if self._local:
                    return self._local_round(event.step, now)
            case telemetry.StepFigures():
                if event.compress_seconds is not None:
                    self._add("compress", now - _seconds(event.compress_seconds), now, step=event.step)
            case telemetry.ResultsFetched():
                end = now - _seconds(event.idle_seconds)
                start = end - _seconds(event.seconds)
                self._add("fetch", start, end, results=event.results, failed=event.failed, bytes=event.bytes)
            case telemetry.StepApplied():
                start = now - _seconds(event.seconds)
                self._add("apply", start, now, step=event.step, accepted=event.accepted, trained=event.trained)
            case telemetry.WitnessSent():
                start = now if self._second_phase is None else self._second_phase
                self._add("witness", start, now, height=event.height, early=int(event.opportunistic))
        return None

    def _turn(self, event: telemetry.PhaseChanged, now: float) -> RoundSpan | None:
        current = self._round
        if event.phase == "RoundWitness":
            self._second_phase = now
        if current is not None and event.height is not None and (event.epoch, event.height) == (current.epoch, current.height):
            return None

        ended = self._end(now)
        if event.height is not None and event.phase in ("RoundTrain", "RoundWitness"):
            self._round = RoundSpan(event.epoch, event.height, event.step, event.clients, now)
            self._second_phase = now if event.phase == "RoundWitness" else None
        return ended

    def _local_round(self, step: int, now: float) -> RoundSpan:
        """The step that was trained, as a round. Its parts came before its number."""
        assert self._round is not None
        ended, self._round = self._round, _unplaced()
        ended.height, ended.step, ended.end = step - 1, step, now
        ended.start = min(part.start for part in ended.parts)
        return ended

    def _end(self, now: float) -> RoundSpan | None:
        ended, self._round = self._round, None
        if ended is not None:
            ended.end = now
        return ended

    def _add(self, name: str, start: float, end: float, **attributes: float) -> None:
        if self._round is not None and len(self._round.parts) < MAX_PARTS:
            finite: Attributes = {key: value for key, value in attributes.items() if math.isfinite(value)}
            self._round.parts.append(Part(name, start, end, finite))


def _unplaced() -> RoundSpan:
    """A round of one client whose place in the run is not known yet."""
    return RoundSpan(epoch=0, height=0, step=0, clients=1, start=0.0)


def _seconds(value: float) -> float:
    return value if math.isfinite(value) and value > 0 else 0.0
