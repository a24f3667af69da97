"""Search for optimizer settings by successive halving: which settings to try, how long, and which of them to try longer.

Many candidates train for a few steps; the best of them, one in `eta`, train `eta` times as long, and so on until the last ones
train for all steps. Every training starts from the beginning with a schedule of its own length, so losses are compared only
between trainings of equal length. Source: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
Optimization" (AISTATS 2016).

All of this is pure: `due_trials` computes from the finished trainings what to train next. `tuning_run` trains.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from psyche_core.errors import ConfigError

RATE: Final = "rate"
"""Axis: the base learning rate of the schedule."""

REST: Final = "rest"
"""Axis: the factor of the learning rate of head, embedding and norms; matrices keep 1."""

REST_KINDS: Final = ("head", "embedding", "norm")

EDGE: Final = 1.1
"""A value within this factor of an end of its range is reported as being at the edge."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One setting that is varied.

    Attributes:
        name: `rate`, `rest`, or a key of the optimizer's settings, with dots between the keys of nested tables.
        low: smallest value of a range, 0 where `choices` are given.
        high: largest value of a range; values between are drawn evenly on a logarithmic scale.
        choices: the values to try, in place of a range.
        whole: whether values of a range are rounded to whole numbers.
    """

    name: str
    low: float = 0.0
    high: float = 0.0
    choices: tuple[Any, ...] = ()
    whole: bool = False

    def value(self, position: float) -> Any:
        """Return the value at a position between 0 and 1."""
        if self.choices:
            return self.choices[min(int(position * len(self.choices)), len(self.choices) - 1)]

        value = self.low * (self.high / self.low) ** position
        return round(value) if self.whole else float(f"{value:.3g}")

    def at_edge(self, value: Any) -> bool:
        """Return whether a value is so near an end of its range that the best one may be outside the range."""
        return not self.choices and (value <= self.low * EDGE or value >= self.high / EDGE)


def axis(text: str) -> Axis:
    """Read `KEY=LOW:HIGH` or `KEY=A,B,C`. Raises ConfigError for anything else."""
    name, _, values = text.partition("=")
    low, colon, high = values.partition(":")
    try:
        if name and colon and 0 < float(low) < float(high) < math.inf:
            return Axis(name, float(low), float(high), whole=low.isdecimal() and high.isdecimal())
        if name and values and not colon:
            choices = tuple(_literal(part) for part in values.split(","))
            if name in (RATE, REST) and not all(_is_positive(choice) for choice in choices):
                message = f"--vary {name} takes numbers above 0, got {text!r}"
                raise ConfigError(message)
            return Axis(name, choices=choices)
    except ValueError:
        pass

    message = f"expected KEY=LOW:HIGH, two numbers with 0 < LOW < HIGH, or KEY=A,B,C, got {text!r}"
    raise ConfigError(message)


def check_axes(axes: Sequence[Axis]) -> None:
    """Raise ConfigError for two axes that change the same setting."""
    seen: dict[str, str] = {}
    for each in axes:
        for key in _keys(each.name):
            if key in seen:
                both = "twice" if seen[key] == each.name else f"and {seen[key]}, which both change {key}"
                message = f"--vary names {each.name} {both}; give one of them"
                raise ConfigError(message)
            seen[key] = each.name


def _keys(name: str) -> list[str]:
    """Return the settings that an axis changes."""
    return [f"rates.{kind}" for kind in REST_KINDS] if name == REST else [name]


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _literal(text: str) -> Any:
    """Read a choice as a TOML file would: a boolean, a whole number, a number, or text."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings to try.

    Attributes:
        number: 0 for the run file as it is.
        values: value of each axis by its name; empty for the run file as it is.
    """

    number: int
    values: Mapping[str, Any]

    @property
    def title(self) -> str:
        """A short name of the candidate, for tables."""
        if not self.number:
            return "the run file as it is"
        return ", ".join(
            f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in self.values.items()
        )


def candidates(axes: Sequence[Axis], count: int, *, seed: int) -> tuple[Candidate, ...]:
    """Return the run file as it is, and `count` - 1 candidates spread evenly over all axes (a scrambled Sobol sequence).

    A longer list begins with the same candidates as a shorter one.
    """
    from torch.quasirandom import SobolEngine

    engine = SobolEngine(len(axes), scramble=True, seed=seed)  # type: ignore[no-untyped-call]
    points = engine.draw(max(count - 1, 1)).tolist()
    drawn = [{axis.name: axis.value(place) for axis, place in zip(axes, point, strict=True)} for point in points]
    return (Candidate(0, {}), *(Candidate(number, values) for number, values in enumerate(drawn[: count - 1], start=1)))


def changed(settings: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimizer's settings with a candidate's values. The base learning rate is not one of them."""
    new = copy.deepcopy(dict(settings))
    for name, value in values.items():
        if name == RATE:
            continue
        for key in _keys(name):
            *path, last = key.split(".")
            table = new
            for part in path:
                table = table.setdefault(part, {})
            table[last] = value
    return new


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How many candidates to train, and for how long.

    Attributes:
        lengths: steps of a training in each rung, the shortest first.
        candidates: number of candidates in the first rung.
        eta: one in `eta` candidates of a rung reaches the next rung, at least one.
        seeds: trainings of each candidate in the last rung; in the others it is one.
    """

    lengths: tuple[int, ...]
    candidates: int
    eta: int = 3
    seeds: int = 1

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of candidates in each rung."""
        return tuple(max(1, self.candidates // self.eta**rung) for rung in range(len(self.lengths)))

    @property
    def steps(self) -> int:
        """Steps of all trainings together, including those of the unchanged run file in the last rung."""
        earlier = sum(length * count for length, count in zip(self.lengths[:-1], self.counts[:-1], strict=True))
        last = self.counts[-1] if len(self.lengths) == 1 else self.counts[-1] + 1
        return earlier + self.seeds * self.lengths[-1] * last


def rung_lengths(steps: int, *, shortest: int, eta: int) -> tuple[int, ...]:
    """Return the steps of each rung: `steps`, divided by `eta` again and again, but never fewer than `shortest`."""
    lengths = [steps]
    while lengths[-1] // eta >= shortest:
        lengths.append(lengths[-1] // eta)
    return tuple(reversed(lengths))


def plan_within(total_steps: float, *, lengths: tuple[int, ...], eta: int, seeds: int, most: int = 256) -> Plan:
    """Return the plan with most candidates that trains at most `total_steps` steps; it has at least 2 candidates."""
    best = Plan(lengths=lengths, candidates=2, eta=eta, seeds=seeds)
    for count in range(3, most + 1):
        plan = Plan(lengths=lengths, candidates=count, eta=eta, seeds=seeds)
        if plan.steps > total_steps:
            break
        best = plan
    return best


@dataclass(frozen=True, slots=True)
class Trial:
    """One training: a candidate in a rung with a seed."""

    rung: int
    candidate: int
    seed: int


def due_trials(plan: Plan, losses: Mapping[Trial, float]) -> list[Trial]:
    """Return the trials of the first rung that is not finished; none if all are.

    The unchanged run file always takes part in the last rung, so that the end of the table shows what was gained.

    losses: final validation loss of each finished trial, in nats per token; infinite for one that diverged.
    """
    for rung in range(len(plan.lengths)):
        last = rung == len(plan.lengths) - 1
        chosen = list(range(plan.candidates)) if not rung else best_of(losses, rung - 1)[: plan.counts[rung]]
        if last and 0 not in chosen:
            chosen.append(0)
        seeds = range(plan.seeds if last else 1)
        missing = [trial for seed in seeds for each in chosen if (trial := Trial(rung, each, seed)) not in losses]
        if missing:
            return missing
    return []


def best_of(losses: Mapping[Trial, float], rung: int) -> list[int]:
    """Return the candidates of a rung, those with the lowest mean loss first; if losses are equal, the lower number first."""
    by_candidate: dict[int, list[float]] = {}
    for trial, loss in losses.items():
        if trial.rung == rung:
            by_candidate.setdefault(trial.candidate, []).append(loss)
    means = {number: statistics.fmean(found) for number, found in by_candidate.items()}
    return sorted(means, key=lambda number: (means[number], number))


def winner(losses: Mapping[Trial, float]) -> Trial | None:
    """Return the best trial of the longest rung that has any, with the lowest seed; None before the first trial is finished."""
    if not losses:
        return None
    rung = max(trial.rung for trial in losses)
    number = best_of(losses, rung)[0]
    return min((trial for trial in losses if (trial.rung, trial.candidate) == (rung, number)), key=lambda trial: trial.seed)


def at_edges(axes: Iterable[Axis], best: Candidate) -> list[Axis]:
    """Return the axes on which the best candidate is at an end of the range."""
    return [axis for axis in axes if axis.name in best.values and axis.at_edge(best.values[axis.name])]
