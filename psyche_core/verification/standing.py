"""What verdicts mean for a member within an epoch: strikes, the rounds in which it is watched, ejection, and its last scores.

The first strike sends the samples back and has the member challenged in each of the next ten rounds; the second within an epoch
ejects it, and its points are lost. A member whose score is a little too high for long also gets a strike: who leaves out an
eighth of its samples passes every other challenge, but its median score stays high. Scores are whole millionths, because
replicas must agree on them. An epoch begins with `Standing()` for everybody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MILLION = 1_000_000
EJECTED_AT = 2
"""So many strikes within an epoch eject."""

WATCHED_ROUNDS = 10
"""Rounds after a strike in which a member is challenged each time."""

MEDIAN_OF = 5
"""Challenges whose scores are remembered."""

MEDIAN_THRESHOLD = 5_000
"""Median score in millionths above which the last `MEDIAN_OF` challenges are a strike: 0.005."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A member's record of this epoch.

    strikes: so far. watched_until: last round (height) in which it is challenged in any case, -1 for none. scores: of its last
    challenges as a trainer, in millionths, oldest first.
    """

    strikes: int = 0
    watched_until: int = -1
    scores: tuple[int, ...] = ()

    @property
    def ejected(self) -> bool:
        """Whether the member is to be ejected and its points of the epoch are lost."""
        return self.strikes >= EJECTED_AT

    def watched(self, height: int) -> bool:
        """Whether its share of this round is challenged in any case."""
        return height <= self.watched_until and not self.ejected


def struck(standing: Standing, height: int) -> Standing:
    """The standing after a strike in round `height`. Remembered scores go: they have had their consequence."""
    return Standing(standing.strikes + 1, max(standing.watched_until, height + WATCHED_ROUNDS), ())


def scored(
    standing: Standing, height: int, millionths: int, *, median_of: int = MEDIAN_OF, threshold: int = MEDIAN_THRESHOLD
) -> Standing:
    """The standing after a passed challenge with a score: with a strike if the median of the last ones is too high.

    millionths: T times a million, rounded down, 0 to 2,000,000. Raises ValueError for other numbers.
    """
    if not 0 <= millionths <= 2 * MILLION:
        message = f"a score is 0 to {2 * MILLION} millionths, got {millionths}"
        raise ValueError(message)

    scores = (*standing.scores, millionths)[-median_of:]
    if len(scores) == median_of and sorted(scores)[median_of // 2] > threshold:
        return struck(standing, height)

    return replace(standing, scores=scores)


def in_millionths(score: float) -> int:
    """A score as whole millionths, rounded down. Raises ValueError outside 0 to 2 and for NaN."""
    if not 0 <= score <= 2:
        message = f"a score is 0 to 2, got {score}"
        raise ValueError(message)

    return int(score * MILLION)
