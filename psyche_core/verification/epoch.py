"""The open challenges and the standings of an epoch, as a coordinator keeps them: what a round's begin changes. Pure.

When round h begins, all results of round h - 2 are decided, and those of h - 3 were before anybody knew its seed. Then, in order:

1. the words of the statements of round h - 1 and the seed of round h advance the open challenges; some close with a verdict;
2. verdicts change the standings of those they are about; the second strike ejects;
3. challenges about the accepted shares of round h - 3 are drawn. Watched members are challenged in any case (`drawing`).

At most `MOST_OPEN` challenges are open, so that a state is bounded; where more are drawn, chance decides which are opened. An
epoch begins and ends without any: who cheats in an epoch's last rounds is not challenged for these.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from psyche_core.verification.challenge import Challenge, RoundBegan, Stage, Verdict, advance, without
from psyche_core.verification.drawing import challenges as drawn_challenges
from psyche_core.verification.standing import Standing, after_verdict
from psyche_core.verification.words import Word

DRAWN_AFTER = 3
"""The shares of round h are drawn with the seed of round h + 3. A trainer can withhold its result of h until h + 1 is over, and
the seed of a round may be known during the round before: that of h + 2 would come too early."""

MOST_OPEN = 128
"""Most open challenges of a run: of 256 members at 10 %, some 26 a round are, for three to seven rounds each."""


@dataclass(frozen=True, slots=True)
class Closed:
    """A challenge that has ended. verdict: see `challenge`."""

    challenge: Challenge
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRound:
    """What is known when a round begins.

    height: of that round, from 0. seed: 32 bytes that nobody knew before round `height - 1` began. shares: slots whose share of
    round `height - 3` was accepted and whose delta follows from the one before (`drawing.challenges`). members: healthy slots.
    statements: the words of each statement of the round before, for `due` of that round. elected, quorum: numbers of witnesses
    of the round before. quorate: whether a quorum stated in it. dropped: challenges, by round and trainer, that end without a
    verdict.
    """

    height: int
    seed: bytes
    shares: Collection[int]
    members: frozenset[int]
    statements: tuple[tuple[Word, ...], ...] = ()
    elected: int = 0
    quorum: int = 0
    quorate: bool = True
    dropped: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochVerification:
    """The state of an epoch's verification.

    percent: of the shares that are challenged, 0 to 100. standings: by slot. open: challenges that have not ended, ascending by
    round and trainer.
    """

    percent: int
    standings: tuple[Standing, ...]
    open: tuple[Challenge, ...] = ()

    def due(self, height: int) -> tuple[tuple[Challenge, int], ...]:
        """The words that a statement of this round has: (challenge, judge), in their order."""
        return tuple((one, judge) for one in self.open if one.awaits_words(height) for judge in one.judged)

    def recomputing(self) -> frozenset[int]:
        """The slots that recompute a share in the round that has just begun. They get no samples in it."""
        stages = {Stage.COMMIT, Stage.RECOMMIT, Stage.TIE_COMMIT}
        return frozenset(slot for one in self.open if one.stage in stages for slot in one.expected if not one.committed(slot))

    def find(self, height: int, trainer: int) -> Challenge | None:
        """The open challenge about this share, None if there is none."""
        return next((one for one in self.open if (one.height, one.drawn.trainer) == (height, trainer)), None)

    def replaced(self, changed: Challenge) -> EpochVerification:
        """The state after an event changed this challenge."""
        place = (changed.height, changed.drawn.trainer)
        return replace(
            self, open=tuple(changed if (one.height, one.drawn.trainer) == place else one for one in self.open)
        )  # fmt: skip


def new_epoch(*, percent: int, slots: int) -> EpochVerification:
    """The state with which an epoch of so many slots begins."""
    return EpochVerification(percent=percent, standings=(Standing(),) * slots)


def round_began(state: EpochVerification, begun: NewRound) -> tuple[EpochVerification, tuple[Closed, ...]]:
    """The state once a round has begun, and the challenges that it ended, in order: `advanced`, then `with_drawn`.

    Raises ValueError if a statement has not the words that are due.
    """
    state, closed = advanced(state, begun)
    return with_drawn(state, begun), closed


def advanced(state: EpochVerification, begun: NewRound) -> tuple[EpochVerification, tuple[Closed, ...]]:
    """The state once the round before has ended, and the challenges that this ended, in order.

    Who is ejected by a verdict takes no further part: what it was to judge is undecided, and nothing more is asked of it. Raises
    ValueError if a statement has not the words that are due.
    """
    changed = [
        advance(one, event)
        for one, event in zip(state.open, _events(state, begun), strict=True)
        if (one.height, one.drawn.trainer) not in begun.dropped
    ]
    standings = list(state.standings)
    closed: list[Closed] = []
    for one in changed:
        if one.verdict is not None:
            _judge(standings, one, one.verdict, begun.height)
            closed.append(Closed(one, one.verdict))
    ejected = ejected_slots(standings)
    still_open = []
    for one in changed:
        if one.verdict is None:
            left = without(one, ejected)
            if left.verdict is None:
                still_open.append(left)
            else:
                _judge(standings, left, left.verdict, begun.height)
                closed.append(Closed(left, left.verdict))
    return replace(state, standings=tuple(standings), open=tuple(still_open)), tuple(closed)


def _events(state: EpochVerification, begun: NewRound) -> list[RoundBegan]:
    """What the begin of the round is for each open challenge."""
    due = state.due(begun.height - 1)
    if any(len(words) != len(due) for words in begun.statements):
        message = f"each statement of round {begun.height - 1} has {len(due)} words about challenges"
        raise ValueError(message)

    members = begun.members - ejected_slots(state.standings)
    events, place = [], 0
    for one in state.open:
        count = len(one.judged) if one.awaits_words(begun.height - 1) else 0
        words = tuple(statement[place : place + count] for statement in begun.statements) if count else ()
        place += count
        events.append(
            RoundBegan(
                height=begun.height,
                seed=begun.seed,
                words=words,
                elected=begun.elected,
                quorum=begun.quorum,
                members=members,
                quorate=begun.quorate,
            )
        )
    return events


def ejected_slots(standings: Sequence[Standing]) -> frozenset[int]:
    """The slots whose strikes eject them."""
    return frozenset(slot for slot, standing in enumerate(standings) if standing.ejected)


def _judge(standings: list[Standing], challenge: Challenge, verdict: Verdict, height: int) -> None:
    trainer = challenge.drawn.trainer
    for slot in {trainer, *verdict.strikes}:
        known = standings[slot]
        standings[slot] = after_verdict(known, verdict, height, slot=slot, trainer=trainer, share=challenge.height)


def with_drawn(state: EpochVerification, begun: NewRound) -> EpochVerification:
    """The state with challenges about the shares of round `height - 3`, of which `height` is the round that begins."""
    height = begun.height - DRAWN_AFTER
    ejected = ejected_slots(state.standings)
    shares = frozenset(begun.shares) - ejected
    if height < 0 or state.percent == 0 or not shares:
        return state

    drawn = drawn_challenges(
        begun.seed,
        height=height,
        shares=shares,
        members=begun.members - ejected - state.recomputing(),
        percent=state.percent,
        watched=_watched(state.standings, height),
        most=MOST_OPEN - len(state.open),
    )
    return replace(state, open=(*state.open, *[Challenge(height=height, drawn=one, since=begun.height) for one in drawn]))


def _watched(standings: Sequence[Standing], height: int) -> tuple[int, ...]:
    return tuple(slot for slot, standing in enumerate(standings) if standing.watched(height))
