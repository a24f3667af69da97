"""Single records in the view of a run: news, epochs, phases, checkpoints and payments, answers to prompts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class News:
    """One line about the run. version: of the change that it reports. level: `info`, `warning` or `error`."""

    version: int
    time: float
    source: str
    level: str
    text: str


@dataclass(slots=True)
class EpochView:
    """An epoch. last_step: None until it ended. digests: how many members reported each digest of its end.

    signed: by a quorum.
    """

    number: int
    first_step: int
    began: float
    last_step: int | None = None
    ended: float | None = None
    clients: int = 0
    signed: bool = False
    digests: dict[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A phase of the run, from `since` (unix seconds) on; the two phases of a round count as `Training`."""

    since: float
    name: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A checkpoint or a payment. kind: `saved`, `stored` or `paid`; text: where, or to whom; number: step, or units."""

    time: float
    kind: str
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The text that a model generated after a prompt. step: the last one in its weights."""

    time: float
    step: int
    text: str
