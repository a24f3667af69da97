"""Counts rounds in which shares were lost, and says so in one sentence with what helps.

A share is lost if too few witnesses had its result in time. Its samples are assigned again (protocol F14), so the run goes on,
and the sentence is no reason to stop. Whose share it was decides what helps: a member whose own results come late can do
something about it, the others cannot. `run_metrics` says where a lost share is a failure: in a run on one machine that must lose
none.
"""

from __future__ import annotations

from collections import OrderedDict

from psyche_core.telemetry.events import StepApplied

MAX_KNOWN = 256
"""How many of the newest rounds are remembered, to count a round once that several members report."""


class LostShares:
    """The count of one display. rounds: in which shares were assigned. lost: of these, with a share that was not accepted. ours:
    of these, with our own share among them.
    """

    def __init__(self) -> None:
        self.rounds: int = 0
        self.lost: int = 0
        self.ours: int = 0
        self._last: StepApplied | None = None
        self._unknown = 0
        self._known: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._next_told = 1

    def note(self, event: StepApplied) -> None:
        """Count a round; one that another member has reported counts once."""
        place = event.epoch, event.step
        if event.trained <= 0 or place in self._known:
            return

        self._known[place] = None
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        self.rounds += 1
        if event.accepted >= event.trained:
            return

        self.lost += 1
        self.ours += event.ours_lost is True
        self._unknown += event.ours_lost is None
        self._last = event

    def is_due(self) -> bool:
        """Whether a display that keeps its lines should write the sentence: at the first loss, and when the count has doubled."""
        if self.lost < self._next_told:
            return False

        self._next_told = 2 * self.lost
        return True

    def sentence(self, *, members: int = 1) -> str | None:
        """Return how often shares were lost, and what helps; None if none was. members: how many report here."""
        last = self._last
        if last is None:
            return None

        rounds = "round" if self.rounds == 1 else "rounds"
        newest = f"step {last.step} ({last.accepted} of {last.trained} count)"
        return f"{self.lost} of {self.rounds} {rounds} lost shares, last in {newest}: {self._advice(last, members=members)}"

    def _advice(self, last: StepApplied, *, members: int) -> str:
        names = f" ({', '.join(last.lost)})" if last.lost else ""
        if members > 1 or self.lost == self._unknown:
            return (
                f"results{names} reached too few witnesses in time; their samples are trained again. A member with much other "
                "work, or on a slow line, loses most"
            )
        if not self.ours:
            return (
                f"results of other members{names} reached too few witnesses in time; their samples are trained again, and there "
                "is nothing to do here"
            )

        often = f"in {self.ours} of them"
        return (
            f"this client's own result came too late {often}; its samples are trained again. Fewer programs beside it, "
            "--micro-batch-size auto or another --device may help; `psyche doctor network` measures the line"
        )
