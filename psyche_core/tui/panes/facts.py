"""Sentences and figures of a run for a screen: phase and its time, step, speed, rates. Pure."""

from __future__ import annotations

import math
import time

from rich.text import Text

from psyche_core.coordinator.learning_rate import learning_rate
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.observer.buckets import BucketSeries
from psyche_core.observer.member_view import MemberView
from psyche_core.text_safety import printable
from psyche_core.tui.watched import Watched
from psyche_core.types import RunState
from psyche_core.ui.formatting import bytes_text

PHASES = {
    "Uninitialized": "not started yet",
    "WaitingForMembers": "waiting for members",
    "Warmup": "members load the model",
    "RoundTrain": "training",
    "RoundWitness": "witnesses state what they saw",
    "Cooldown": "the epoch's model is stored",
    "Finished": "the run is finished",
    "Paused": "paused by the owner",
}
STATE_STYLES = {
    "healthy": "green",
    "finished": "green",
    "dropped": "yellow",
    "ejected": "bold red",
    "failed": "bold red",
    "leaving": "yellow",
    "left": "dim",
}
NAME_CHARACTERS = 64
RATE_ROWS = 10
"""Number of points of the traffic curve from which a rate is computed."""


def phase_name(watched: Watched) -> str:
    """Return the phase's name, safe to show; empty before the first phase."""
    phase = watched.view.phase
    return "" if phase is None else printable(phase.phase, at_most=NAME_CHARACTERS)


def phase_clock(watched: Watched, now: float) -> tuple[float, float | None]:
    """Return the seconds since the phase began and the most it can last; None if that is unknown or has no limit."""
    since = watched.view.phase_since
    passed = 0.0 if since is None else max(0.0, now - since)
    state = watched.state
    return passed, None if state is None else _longest(state)


def _longest(state: CoordinatorState) -> float | None:
    config = state.config
    match state.run_state:
        case RunState.Warmup:
            return float(config.warmup_time)
        case RunState.RoundTrain:
            return float(config.max_round_train_time)
        case RunState.RoundWitness:
            return float(config.round_witness_time)
        case RunState.Cooldown:
            return float(config.cooldown_time)
        case _:
            return None


def rate_now(watched: Watched) -> float | None:
    """Return the learning rate of the present step, or the newest that a member reported; None if neither is known."""
    state = watched.state
    if state is None:
        return None if watched.figures is None else watched.figures.learning_rate
    try:
        return learning_rate(state.model.LLM.lr_schedule, state.progress.step)
    except (ValueError, KeyError):
        return None


def steps_text(watched: Watched) -> str:
    """Return the newest step and the number of steps, such as `140 of 200`."""
    total = watched.view.total_steps
    return f"{watched.view.last_step} of {total}" if total else str(watched.view.last_step)


def remaining(watched: Watched, now: float) -> float | None:
    """Return the seconds until the last step, at the speed since this screen began to see steps; None if unknown."""
    curve, total, first = watched.curve, watched.view.total_steps, watched.view.first
    if not total or first is None or len(curve) < 3:
        return None

    began = next((bucket.time for bucket in (watched.view.loss if watched.view.trained else watched.view.reported).rows()), now)
    done = watched.view.last_step - curve[0][0]
    if done < 1 or now <= began or watched.view.ended is not None:
        return None
    return (now - began) / done * max(0, total - watched.view.last_step)


def bar(part: float, width: int) -> Text:
    """Return a bar of which `part` (0 to 1) is filled; readable without colour."""
    filled = round(max(0.0, min(1.0, part)) * width)
    return Text.assemble(("━" * filled, "green"), ("╌" * (width - filled), "dim"))


def number(value: float | None, form: str = ".3f") -> str:
    """Return a figure as text, or a dash if it is unknown."""
    return "–" if value is None or not math.isfinite(value) else format(value, form)


def rate_text(bytes_per_second: float) -> str:
    """Return a rate as text, such as `1.2 MB/s`."""
    return f"{bytes_text(bytes_per_second)}/s"


def label(member: MemberView) -> str:
    """Return a member's name, or the first digits of its id, safe to show."""
    return printable(member.name, at_most=NAME_CHARACTERS) or printable(member.id[:8], at_most=8)


def traffic_rates(watched: Watched) -> tuple[float | None, float | None]:
    """Return bytes per second sent and received over about the last ten seconds, for all members seen here; None if unknown."""
    return _slope(watched.view.sent), _slope(watched.view.received)


def _slope(series: BucketSeries) -> float | None:
    rows = list(series.rows())[-RATE_ROWS:]
    if len(rows) < 2 or rows[-1].start <= rows[0].start or rows[-1].high is None or rows[0].high is None:
        return None

    return max(0.0, (rows[-1].high - rows[0].high) / (rows[-1].start - rows[0].start))


def clock(moment: float) -> str:
    """Return a time as `HH:MM:SS` in the local time zone."""
    return time.strftime("%H:%M:%S", time.localtime(moment))


def state_text(state: str) -> Text:
    """Return a member's state as text. The word alone is enough; colour only helps."""
    return Text(printable(state, at_most=NAME_CHARACTERS), style=STATE_STYLES.get(state, ""))
