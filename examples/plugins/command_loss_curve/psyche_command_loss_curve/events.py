"""Reads the losses of a run from its event files: one JSON object a line, each with `event` and `time`.

A file is a program's: `NAME.jsonl`, or `NAME.PART.jsonl` for each part of it. It may grow while it is read, so a line that is not
whole is no mistake. Only the standard library and the form of the lines are used, not the core's own reader, which is private.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psyche_core.errors import UserError
from psyche_core.text_safety import printable

SUFFIX = ".jsonl"
MAX_COUNT = 2**53
MAX_LOSS = 1e9
"""What a file says may be anything. Up to here sums are numbers, too; no model has such a loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """trained, validated: (step, nats a token), by step. members: how many trained. not_finite: results that were left out."""

    trained: list[tuple[int, float]]
    validated: list[tuple[int, float]]
    members: int
    not_finite: int


def read(place: Path) -> Curve:
    """The losses in a file, or in all files of a run's folder. Raises UserError if there is none."""
    trained: dict[str, dict[int, tuple[float, int]]] = {}  # by member and step: loss, tokens
    validated: dict[int, float] = {}
    for path in _files(place):
        own = trained.setdefault(path.name.partition(".")[0], {})
        for event in _events(path):
            kind = event["event"]
            if kind == "step_trained":
                own[event["step"]] = _number(event.get("loss")), event["tokens"]  # the newest, if it is trained again
            elif kind == "validated":
                validated[event["step"]] = _number(event.get("loss"))
            elif kind == "went_back":  # the run continues after an earlier step
                for gone in [step for step in own if step > event["to_step"]]:
                    del own[gone]

    shares: dict[int, list[tuple[float, int]]] = {}
    for own in trained.values():
        for step, share in own.items():
            shares.setdefault(step, []).append(share)
    finite = {step: [share for share in each if math.isfinite(share[0])] for step, each in shares.items()}
    return Curve(
        trained=[(step, _mean(each)) for step, each in sorted(finite.items()) if each],
        validated=[(step, loss) for step, loss in sorted(validated.items()) if math.isfinite(loss)],
        members=sum(bool(own) for own in trained.values()),
        not_finite=sum(len(each) for each in shares.values()) - sum(len(each) for each in finite.values()),
    )


def _files(place: Path) -> list[Path]:
    """By name, which is the order of a program's parts. Raises UserError."""
    if place.is_file():
        return [place]
    for folder in (place, place / "events"):  # `psyche testnet` has them in its folder's events
        if files := sorted(path for path in folder.glob(f"*{SUFFIX}") if path.is_file()):
            return files

    runs = sorted({path.parent.name for path in place.glob(f"*/*{SUFFIX}")})
    several = f"; it has folders of runs, give one of them: {printable(', '.join(runs[:5]))}" if runs else ""
    message = f"{place} has no event files (*{SUFFIX}){several}"
    raise UserError(message)


def _events(path: Path) -> Iterator[Mapping[str, Any]]:
    """The events that we use, whole ones only. Raises UserError for a file that cannot be read."""
    counts = {"step_trained": ("step", "tokens"), "validated": ("step",), "went_back": ("to_step",)}
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    event = json.loads(line)
                    usable = all(type(event[name]) is int and 0 <= event[name] <= MAX_COUNT for name in counts[event["event"]])
                    usable = usable and event.get("tokens") != 0
                except (ValueError, KeyError, TypeError, RecursionError):
                    continue
                if usable:
                    yield event
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise UserError(message) from error


def _number(loss: Any) -> float:
    """The loss; NaN for null, which stands for a number that JSON does not have, and for what cannot be one."""
    return loss if type(loss) is float and abs(loss) <= MAX_LOSS else math.nan


def _mean(shares: list[tuple[float, int]]) -> float:
    """By tokens, for shares differ in size."""
    return sum(loss * tokens for loss, tokens in shares) / sum(tokens for _, tokens in shares)
