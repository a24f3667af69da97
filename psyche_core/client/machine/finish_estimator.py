"""How long our training takes and how long a round's turn takes, so that Finished can be said in time for the next round.

Between the last Finished of a round and the news of the next one lie three journeys: ours to the witnesses, theirs to the
coordinator, its to us. A trainer that speaks only once it is done waits for all three with idle hands. Nothing that anybody
attests to depends on it: results of round h are attested to in h + 1 (protocol section 3), and who says Finished(h) must hold
the payloads of h - 1, which it does while it trains. So a trainer says it ahead by what the journeys have taken, when it expects
to be done by the time they are over.

Decided here: the expectation is our last training's time for a sample; the head start is the shortest turn of the last rounds,
never more than half of the training, for a turn also holds our wait for slower members, which ends when they speak. Too early an
announcement costs this: our result comes after the next round's start, and should we stall for as long as a round may last, we
are waited for in one round and not in two. Refuses to guess before one training and one turn were seen.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

TURNS = 8
"""Rounds looked back at."""


@dataclass(slots=True)
class FinishEstimator:
    """Seconds of the machine's clock throughout. Rounds are named by their transport tags, which grow over the run.

    seconds_per_sample: of our last training, None before the first. turns: from our Finished to the next round, of late.
    """

    seconds_per_sample: float | None = None
    turns: deque[float] = field(default_factory=lambda: deque(maxlen=TURNS))
    _training: tuple[int, int, float] | None = None
    _said: tuple[int, float] | None = None

    def begins(self, tag: int, *, samples: int, now: float) -> float | None:
        """Training of a share begins: in how many seconds to say Finished if it still goes on then, None to wait for its end."""
        self._training = tag, samples, now
        if self.seconds_per_sample is None or not self.turns:
            return None

        expected = self.seconds_per_sample * samples
        return expected - min(*self.turns, expected / 2)

    def trained(self, tag: int, *, now: float) -> None:
        """The training that began last has succeeded."""
        if self._training is not None and self._training[0] == tag:
            _, samples, began = self._training
            self.seconds_per_sample = (now - began) / max(samples, 1)

    def said_finished(self, tag: int, *, now: float) -> None:
        """We said Finished of the round."""
        self._said = tag, now

    def round_opened(self, tag: int, *, now: float) -> None:
        """We see a round for the first time."""
        if self._said is not None and self._said[0] == tag - 1:
            self.turns.append(now - self._said[1])
        self._said = None
