"""Estimate when our training ends, so that Finished can be sent ahead of time.

From the last Finished of a round to the news of the next round, three messages travel: ours to the witnesses, theirs to the
coordinator, its state to us. A trainer that sends Finished only when it is done is idle for all three. Sending it earlier is
safe: results of round h are attested to in h + 1 (protocol section 3), and Finished(h) says that the sender holds the payloads of
h - 1, which it does while it trains. So a trainer sends it as early as the three messages have taken, if it expects to be done
when they have arrived.

The expected duration is our last training's time per sample. The head start is the shortest time of the last rounds from Finished
to the next round, and at most half of the training time: that time also contains our wait for slower members, which ends when
they send it. If Finished is sent too early, our result comes after the next round's start; if we then stall for as long as a
round may last, others wait for us in one round instead of two. Without one observed training and one observed round nothing is
estimated.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

RECENT = 8
"""Number of recent rounds considered."""


@dataclass(slots=True)
class FinishEstimator:
    """Times are seconds of the machine's clock. Rounds are identified by their transport tags, which grow over the run.

    seconds_per_sample: of our last training, None before the first. gaps: recent times from our Finished to the next round.
    """

    seconds_per_sample: float | None = None
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    _training: tuple[int, int, float] | None = None
    _sent: tuple[int, float] | None = None

    def training_started(self, tag: int, *, samples: int, now: float) -> float | None:
        """Training of a share starts: seconds until Finished should be sent if it still runs then, None to wait for its end."""
        self._training = tag, samples, now
        if self.seconds_per_sample is None or not self.gaps:
            return None

        expected = self.seconds_per_sample * samples
        return expected - min(*self.gaps, expected / 2)

    def training_finished(self, tag: int, *, now: float) -> None:
        """The last training has succeeded."""
        if self._training is not None and self._training[0] == tag:
            _, samples, began = self._training
            self.seconds_per_sample = (now - began) / max(samples, 1)

    def finished_sent(self, tag: int, *, now: float) -> None:
        """We sent Finished of the round."""
        self._sent = tag, now

    def round_opened(self, tag: int, *, now: float) -> None:
        """We see a round for the first time."""
        if self._sent is not None and self._sent[0] == tag - 1:
            self.gaps.append(now - self._sent[1])
        self._sent = None
