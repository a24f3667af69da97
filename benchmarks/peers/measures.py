"""The figures of a cell, from what members told and what was seen of their hosts. Pure: no clock, no files."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from benchmarks.peers.progress import Step, Weights
from benchmarks.peers.watching import Sample, at

SKIPPED_STEPS = 3
"""Steps at the start that are not counted: connections are made, and PowerSGD sends whole gradients."""

SMOOTHED = 5
"""Steps whose training losses are averaged."""

Told = Mapping[int, Sequence[Step]]
"""Steps by rank."""


def figures(
    told: Told, samples: Mapping[int, Sequence[Sample]], *, began: float, service: Sequence[Sample], batch: int
) -> dict[str, Any]:
    """Speed, bytes, processor time and memory. batch: sequences of all members in a step. Times in seconds, sizes in bytes.

    A step is `batch` sequences, whoever trained them, from the step after SKIPPED_STEPS to the last one of the first member.
    """
    first = told.get(0, ())
    found: dict[str, Any] = {"steps": len(first), "startup_s": None}
    if not first:
        return found

    begun = max(steps[0].time for steps in told.values() if steps)
    found["startup_s"] = round(begun - began, 2)
    started = [at(each, begun) for each in samples.values()]
    origins = [each[0] for each in samples.values()]
    found["startup_bytes"] = round(
        statistics.fmean(
            now.sent + now.received - origin.sent - origin.received for now, origin in zip(started, origins, strict=True)
        )
    )
    found["memory"] = max(sample.memory for each in samples.values() for sample in each)
    if len(first) < SKIPPED_STEPS + 2:
        return found

    since, until = first[SKIPPED_STEPS - 1].time, first[-1].time
    trained = sum(_trained(steps, until) - _trained(steps, since) for steps in told.values() if steps)
    steps = trained / batch
    gaps = [later.time - earlier.time for earlier, later in pairwise(first[SKIPPED_STEPS - 1 :])]
    # A step that a member tells of may be several whole batches, where it exchanges something once in so many.
    whole = [later.sequences * len(told) / batch for later in first[SKIPPED_STEPS:]]
    used = [(at(each, since), at(each, until)) for each in samples.values()]
    sent = [(after.sent - before.sent) / steps for before, after in used]
    received = [(after.received - before.received) / steps for before, after in used]
    found |= {
        "counted_steps": round(steps, 2),
        "step_s": round(statistics.median(gap / each for gap, each in zip(gaps, whole, strict=True)), 4),
        "step_mean_s": round((until - since) / steps, 4),
        "longest_gap_s": round(max(gaps), 2),
        "sent_per_step": round(statistics.fmean(sent)),
        "most_sent_per_step": round(max(sent)),
        "received_per_step": round(statistics.fmean(received)),
        "cpu_per_step": round(statistics.fmean(after.cpu - before.cpu for before, after in used) / steps, 4),
        "service_bytes_per_step": _service_bytes(service, since, until, steps=steps),
    }
    busy = [step.busy for step in first[SKIPPED_STEPS:] if step.busy is not None]
    cpu = [step.cpu for step in first[SKIPPED_STEPS:] if step.cpu is not None]
    found["busy_per_step_s"] = round(statistics.median(busy), 4) if busy else None
    found["busy_cpu_per_step"] = round(statistics.median(cpu), 4) if cpu else None
    return found


def _trained(steps: Sequence[Step], moment: float) -> float:
    """Sequences that a member had trained then, with a part of those of the step in which it was."""
    times, counts = [step.time for step in steps], accumulate(step.sequences for step in steps)
    return float(np.interp(moment, times, list(counts)))


def _service_bytes(service: Sequence[Sample], since: float, until: float, *, steps: float) -> int:
    before, after = at(service, since), at(service, until)
    return round((after.sent + after.received - before.sent - before.received) / steps)


def training_curve(told: Told, *, began: float, sequence_length: int) -> list[list[float]]:
    """`[seconds since the start, tokens of all members, loss]`: mean training loss of all members over the newest steps."""
    every = sorted((step for steps in told.values() for step in steps), key=lambda step: step.time)
    window = SMOOTHED * max(1, len(told))
    curve, tokens = [], 0
    for place, step in enumerate(every):
        tokens += step.sequences * sequence_length
        if (place + 1) % max(1, len(told)) == 0:
            newest = every[max(0, place + 1 - window) : place + 1]
            loss = sum(each.loss * each.sequences for each in newest) / sum(each.sequences for each in newest)
            curve.append([round(step.time - began, 2), tokens, round(loss, 4)])
    return curve


def validation_curve(
    losses: Sequence[tuple[Weights, float]],
    told: Told,
    samples: Mapping[int, Sequence[Sample]],
    *,
    began: float,
    sequence_length: int,
) -> list[list[float]]:
    """`[seconds since the start, tokens of all members, bytes that a member sent, validation loss]` of the first's weights."""
    curve = []
    for weights, loss in losses:
        tokens = sum(step.sequences for steps in told.values() for step in steps if step.time <= weights.time) * sequence_length
        sent = statistics.fmean(at(each, weights.time).sent - each[0].sent for each in samples.values())
        curve.append([round(weights.time - began, 2), tokens, round(sent), round(loss, 4)])
    return curve


def loss_at(curve: Sequence[Sequence[float]], amount: float, *, column: int) -> float | None:
    """The loss of a curve where a column is `amount`, between two points; None before the first and after the last."""
    points = [(point[column], point[-1]) for point in curve]
    for (low, before), (high, after) in pairwise(points):
        if low <= amount <= high:
            return round(before + (after - before) * ((amount - low) / (high - low) if high > low else 1.0), 4)
    return None


def time_to(curve: Sequence[Sequence[float]], loss: float) -> float | None:
    """Seconds until a curve first has a loss, between two points; None if it never has."""
    points = [(point[0], point[-1]) for point in curve]
    if points and points[0][1] <= loss:
        return round(points[0][0], 1)
    for (low, before), (high, after) in pairwise(points):
        if after <= loss:
            return round(low + (high - low) * (before - loss) / (before - after), 1)
    return None


def changes(steps: Sequence[Step]) -> list[float]:
    """When a member's weights changed: at each step, or where it tells that they did."""
    updates = [0, *(step.update or 0 for step in steps)]
    return [step.time for step, before in zip(steps, updates, strict=False) if step.update is None or step.update > before]


def after_kill(
    told: Told, *, moment: float, killed: int, dead: Mapping[int, float], needed: int, given_up: float | None = None
) -> dict[str, Any] | None:
    """What the others did after a member was killed; None while that is open. seconds: until they died, or their longest pause.

    dead: when members ended by themselves, by rank. needed: changes of each of the others' weights after which the run works
    again. given_up: when the waiting ended, None while it goes on.
    """
    others = {rank: [time for time in changes(steps) if time > moment] for rank, steps in told.items() if rank != killed}
    died = [ended for rank, ended in dead.items() if rank != killed]
    if died:
        return {"verdict": "dies", "seconds": round(min(died) - moment, 1)}
    if others and all(len(times) >= needed for times in others.values()):
        gaps = [later - earlier for times in others.values() for earlier, later in pairwise([moment, *times])]
        return {"verdict": "works", "seconds": round(max(gaps), 1)}
    if given_up is None:
        return None
    latest = max((time for times in others.values() for time in times), default=moment)
    return {"verdict": "stalls", "seconds": round(given_up - latest, 1)}


def after_join(told: Told, *, moment: float, joiner: int, own_steps: int) -> dict[str, Any] | None:
    """How long a late member took until it had trained with the others' weights; None while it has not.

    own_steps: steps that it trains before its first exchange. `longest_gap_s` is what the others waited for meanwhile.
    """
    times = [step.time for step in told.get(joiner, ())]
    if len(times) <= own_steps:
        return None
    joined = times[own_steps]
    others = [
        [moment, *(step.time for step in steps if moment < step.time <= joined)] for rank, steps in told.items() if rank != joiner
    ]
    gaps = [later - earlier for each in others for earlier, later in pairwise(each)]
    return {"verdict": "works", "seconds": round(joined - moment, 1), "longest_gap_s": round(max(gaps, default=0.0), 1)}
