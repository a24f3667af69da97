"""What verdicts mean for a member within an epoch: strikes, the rounds in which it is watched, ejection, and its last scores.

The first strike sends the samples back and has the member challenged in each of the next ten rounds; the second within an epoch
ejects it, and its points are lost. A member whose score is a little too high for long also gets a strike: who leaves out an
eighth of its samples passes every other challenge, but its median score stays high. The median of five scores is too high where
three of them are, so only that is remembered of a score: replicas have to agree. An epoch begins with `Standing()` for everybody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from psyche_core.verification.challenge import Outcome, Verdict

EJECTED_AT = 2
"""So many strikes within an epoch eject."""

WATCHED_ROUNDS = 10
"""Rounds after a strike in which a member is challenged each time."""

MEDIAN_OF = 5
"""Challenges whose scores are remembered. Odd, so that a majority of them is their median."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A member's record of this epoch.

    strikes: so far. watched_before: its shares of rounds below this height are challenged in any case, 0 for none. high: of its
    last passed challenges as a trainer, whether the score was above the rule's median threshold, oldest first.
    """

    strikes: int = 0
    watched_before: int = 0
    high: tuple[bool, ...] = ()

    @property
    def ejected(self) -> bool:
        """Whether the member is to be ejected and its points of the epoch are lost."""
        return self.strikes >= EJECTED_AT

    def watched(self, height: int) -> bool:
        """Whether its share of this round is challenged in any case."""
        return height < self.watched_before and not self.ejected


def struck(standing: Standing, height: int) -> Standing:
    """The standing after a strike in round `height`. Remembered scores go: they have had their consequence."""
    return Standing(standing.strikes + 1, max(standing.watched_before, height + WATCHED_ROUNDS + 1), ())


def watched_on(standing: Standing, height: int) -> Standing:
    """The standing after a challenge that decided nothing: it is challenged again in the next round whose shares are drawn."""
    return replace(standing, watched_before=max(standing.watched_before, height + 1))


def scored(standing: Standing, height: int, *, high: bool) -> Standing:
    """The standing after a passed challenge: with a strike if the scores of most of the last five are high."""
    last = (*standing.high, high)[-MEDIAN_OF:]
    if sum(last) > MEDIAN_OF // 2 and len(last) == MEDIAN_OF:
        return struck(standing, height)

    return replace(standing, high=last)


def after_verdict(standing: Standing, verdict: Verdict, height: int, *, slot: int, trainer: int, share: int) -> Standing:
    """The standing of a slot after a verdict.

    height: the round that begins. slot: whose it is. trainer: who was checked; share: round of the checked share. A process that
    died cannot show any of the shares that it had trained. So silence about a share of before the last strike is no other strike.
    """
    if slot in verdict.strikes:
        known = verdict.outcome is Outcome.SILENCE and slot == trainer and share < _struck_at(standing)
        return standing if known else struck(standing, height)
    if slot != trainer:
        return standing
    if verdict.watch:
        return watched_on(standing, height)

    return scored(standing, height, high=verdict.high) if verdict.outcome is Outcome.PASSED else standing


def _struck_at(standing: Standing) -> int:
    """The round with which the last strike came, 0 for none; later, if at all, only where that is more than ten rounds ago."""
    return standing.watched_before - WATCHED_ROUNDS - 1 if standing.strikes else 0
