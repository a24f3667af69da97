"""The learning rate of each step: the four schedules of a run configuration, and the factor after a cold start.

The formulas are the same as in the reference implementation, with one correction: after `total_steps` the cosine schedule stays
at its final rate instead of rising again. Rates are computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from psyche_core.config.run_config import Choice
from psyche_core.coordinator.state import CoordinatorState


def learning_rate(schedule: Choice | Mapping[str, Any], step: int) -> float:
    """Return the learning rate of `step` under one of the four schedules of the run configuration.

    schedule: the `Choice` of model.LLM.lr_schedule, or the same as a table with one key. Raises ValueError for another kind.
    """
    choice = Choice.parse(schedule)
    settings = choice.settings or {}
    if choice.name not in ("Constant", "Linear", "Cosine", "WarmupStableDecay"):
        message = f"expected the schedule Constant, Linear, Cosine or WarmupStableDecay, got {choice.name}"
        raise ValueError(message)

    base, initial, warmup = settings["base_lr"], settings["warmup_init_lr"], settings["warmup_steps"]
    if step < warmup:
        return float(initial + (base - initial) * (step / warmup))

    since = step - warmup
    match choice.name:
        case "Linear":
            rate = _linear(base, settings["final_lr"], since, settings["total_steps"] - warmup)
        case "Cosine":
            rate = _cosine(base, settings["final_lr"], since, settings["total_steps"] - warmup)
        case "WarmupStableDecay":
            rate = _warmup_stable_decay(settings, since)
        case _:
            rate = base
    return float(rate)


def _linear(base: float, final: float, step: int, steps: int) -> float:
    return final if step >= steps else base + (final - base) * (step / steps)


def _cosine(base: float, final: float, step: int, steps: int) -> float:
    return final if step >= steps else final + (base - final) * 0.5 * (1.0 + math.cos(math.pi * (step / steps)))


def _warmup_stable_decay(settings: Mapping[str, Any], since: int) -> float:
    """Return the rate `since` steps after the warm-up: stable, then cosine decay, then linear decay, then constant."""
    if since < settings["stable_steps"]:
        return float(settings["base_lr"])

    since -= settings["stable_steps"]
    middle = settings["cosine_decay_final_lr"]
    if since < settings["cosine_decay_steps"]:
        return _cosine(settings["base_lr"], middle, since, settings["cosine_decay_steps"])

    since -= settings["cosine_decay_steps"]
    return _linear(middle, settings["linear_decay_final_lr"], since, settings["linear_decay_steps"])


def cold_start_bounds(state: CoordinatorState) -> tuple[int, int] | None:
    """Return the first and last step of the epoch's cold-start window, or None if the epoch did not start cold."""
    steps = state.model.LLM.cold_start_warmup_steps
    if not state.epoch.cold_start or steps == 0:
        return None

    return state.epoch.start_step, state.epoch.start_step + steps


def cold_start_factor(step: int, bounds: tuple[int, int] | None) -> float:
    """Return the factor on the learning rate of `step`: it rises from 0 to 1 inside the bounds (both inclusive), 1 elsewhere."""
    if bounds is None or not bounds[0] <= step <= bounds[1]:
        return 1.0

    return (step - bounds[0]) / (bounds[1] - bounds[0])
