"""Contract of a tracker: it keeps the figures of one member of a run somewhere, for people to compare runs.

`psyche client train --tracker NAME` uses one, or several. Figures have the keys of `psyche_core.telemetry.metrics`, such as
`train/loss`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """What a tracker knows at its start.

    Attributes:
        run_id: name of the run.
        member: id of the program in hex; in a run of several members each has its own tracker.
        config: the run's settings that people compare, by name; plain values.
    """

    run_id: str
    member: str
    config: Mapping[str, str | int | float]

    @property
    def name(self) -> str:
        """A short name of this member in this run."""
        return f"{self.run_id}-{self.member[:8]}" if self.member else self.run_id


class Tracker(ABC):
    """A tracker of one member. Its thread makes it, calls it, one call after the other, and ends with `finish`.

    Each method may block as long as it needs, and may raise anything: training does not wait for it, and goes on. After an
    exception the tracker is called again with the next record; people are told now and then.

    Guaranteed: values are finite, and every record is given once, in the order in which the member told it. Not guaranteed: that
    every record arrives. While the tracker is slower than the run, records wait in a queue, and those that find it full are left
    out. Not guaranteed either: that steps only grow, since a run may go back; and that `finish` is called or may take its time,
    since a process can be killed, and a client that has ended waits for its trackers only for a while.

    A tracker must not ask its user anything, write to the terminal, or change what belongs to the process: signal handlers, the
    root logger, the current folder.
    """

    @abstractmethod
    def log_figures(self, step: int, figures: Mapping[str, float], *, time: float) -> None:
        """Keep figures of a step, by key. time: unix seconds. A key may come again for the same step; the later value counts."""

    @abstractmethod
    def log_text(self, step: int, key: str, text: str, *, time: float) -> None:
        """Keep a text, such as what the model wrote after a prompt. It may contain anything; it is no markup."""

    @abstractmethod
    def finish(self, *, success: bool, reason: str) -> None:
        """Write what is not written yet and release everything. reason: one sentence why the member's part ended.

        No other method is called afterwards. Called even if earlier calls raised.
        """
