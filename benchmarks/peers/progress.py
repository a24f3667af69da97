"""What members tell while they train, read from their files: the workers' own lines, or the events of our clients."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from psyche_core.telemetry.events import StepApplied, StepFigures, StepTrained
from psyche_core.telemetry.sinks import from_json


@dataclass(frozen=True, slots=True)
class Step:
    """A step that a member has trained.

    time: unix seconds, at its end. loss: nats a token, of its own sequences. busy: seconds in forward and backward; None if the
    system does not tell. cpu: processor seconds in them, None likewise. update: how often the weights had changed; None where
    each step changes them.
    """

    step: int
    time: float
    loss: float
    sequences: int
    busy: float | None
    cpu: float | None = None
    update: int | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights that the first member had at a moment. step: the last one in them. file: None where they are recomputed."""

    step: int
    time: float
    file: Path | None


class LineReader:
    """Whole lines of a file that somebody else writes, each once."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._position = 0

    def new(self) -> list[str]:
        """Lines that were finished since the last call."""
        if not self._file.exists():
            return []
        with self._file.open("rb") as stream:
            stream.seek(self._position)
            text = stream.read()
        whole = text[: text.rfind(b"\n") + 1]  # the last line may be half written
        self._position += len(whole)
        return whole.decode().splitlines()


class Progress(Protocol):
    """What a member has told so far."""

    def steps(self) -> list[Step]:
        """In the order in which it trained them."""

    def weights(self) -> list[Weights]:
        """Snapshots, in the order of steps."""


class WorkerProgress:
    """Of a worker program (task.py)."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lines = LineReader(file)
        self._steps: list[Step] = []
        self._weights: list[Weights] = []

    def steps(self) -> list[Step]:
        """See Progress."""
        self._read()
        return self._steps

    def weights(self) -> list[Weights]:
        """See Progress."""
        self._read()
        return self._weights

    def _read(self) -> None:
        for line in self._lines.new():
            told: dict[str, Any] = json.loads(line)
            if told["what"] == "step":
                self._steps.append(
                    Step(told["step"], told["time"], told["loss"], told["sequences"], told["busy"], told["cpu"], told["update"])
                )
            else:
                self._weights.append(Weights(told["step"], told["time"], self._file.with_name(told["file"])))


class ClientProgress:
    """Of one of our clients, from its events. every: steps between weights that count."""

    def __init__(self, file: Path, *, sequence_length: int, every: int) -> None:
        self._lines = LineReader(file)
        self._sequence_length = sequence_length
        self._every = every
        self._steps: dict[int, Step] = {}
        self._applied: dict[int, float] = {}

    def steps(self) -> list[Step]:
        """See Progress."""
        self._read()
        return list(self._steps.values())

    def weights(self) -> list[Weights]:
        """See Progress. The last applied step counts, too."""
        self._read()
        last = max(self._applied, default=0)
        return [Weights(step, moment, None) for step, moment in self._applied.items() if step % self._every == 0 or step == last]

    def _read(self) -> None:
        for line in self._lines.new():
            match from_json(line):
                case (float() as moment, StepTrained() as event):
                    sequences = round(event.tokens / self._sequence_length)
                    self._steps[event.step] = Step(event.step, moment, event.loss, sequences, event.seconds)
                case (_, StepFigures(compress_seconds=float() as seconds) as figures) if figures.step in self._steps:
                    step = self._steps[figures.step]
                    self._steps[figures.step] = replace(step, busy=(step.busy or 0.0) - seconds)
                case (float() as moment, StepApplied() as event):
                    self._applied[event.step] = moment
                case _:
                    pass
