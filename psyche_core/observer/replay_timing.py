"""Computes when each event of a finished run is replayed. Pure: it returns times, and the caller waits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from psyche_core.telemetry.event_files import SourcedEvent
from psyche_core.telemetry.events import PhaseChanged, StepTrained


def paced(
    events: Iterable[SourcedEvent], *, speed: float, max_pause: float, from_step: int | None = None
) -> Iterator[tuple[float, SourcedEvent]]:
    """Yield (seconds since the beginning of the replay, event), ascending.

    events: merged by time. speed: how many times faster than the run was; 0 plays without waiting. max_pause: longest time, in
    seconds, between two events. from_step: everything before this step is played at the beginning.
    """
    moment, last = 0.0, -math.inf
    waits = from_step is None
    for told in events:
        if not waits and isinstance(told.event, StepTrained | PhaseChanged) and told.event.step >= (from_step or 0):
            waits = True
        if waits and speed > 0 and last > -math.inf:
            moment += min(max_pause, max(0.0, told.time - last) / speed)
        last = max(last, told.time)
        yield moment, told
