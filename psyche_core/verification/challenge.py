"""One challenge, from its draw to its verdict: a pure state machine over frozen values that the rounds drive.

A challenge is drawn when a round begins, and each stage begins with a round:

    COMMIT      the verifier commits to the root of its gradient's chunks, or complains that it lacks the trainer's signs
    SIGNS       after a complaint: the trainer gives its signs to all witnesses
    RECOMMIT    they have them, so the verifier commits now
    REVEAL      chunks are drawn; the trainer opens its two deltas, the verifier its gradient
    TIE_COMMIT  after a failed check: tie-breakers recompute and commit, each by itself
    TIE_REVEAL  other chunks are drawn; trainer and tie-breakers open theirs
    CLOSED      there is a verdict

Roots and complaints are commands to the coordinator, so a stage that waits for them ends when the next round begins; if a root is
still missing then, it is waited for during one round more (`ROOT_ROUNDS`): rounds are as short as the fastest members make them,
and who recomputes has more to do than who trains. What is given to the witnesses in SIGNS, REVEAL and TIE_REVEAL is attested in
the round after, as results are: each statement of that round has a word (`words`) about each judge, and the stage ends when these
statements are complete.

At most f of n elected witnesses lie, see `coordinator.round.witness.tolerated`. Of more than f equal words at least one is an
honest witness's, and honest witnesses agree, because what is opened is bound by roots. So f + 1 words that the check failed
lead to a tie-break. Who must give something and has not given it to half of the elected witnesses is *silent*. A silent
trainer gets a strike: who does not show its work has not done it. A silent verifier or tie-breaker has *missed* a duty: it is
not paid for a round in which it trained nothing, and the trainer is challenged again, by another verifier. So nobody gains by
that silence, and a slow member, or one that has died, is not ejected for it. Only who complained of missing signs, and says
nothing once all witnesses have them, gets a strike: each complaint costs all of them these signs.

Two tie-breakers that agree decide: the trainer is guilty, or the verifier accused it falsely. Where too few witnesses stated, or
their words decide nothing, nobody gets a strike, and the trainer is challenged again. Who leaves while something is expected of
it is silent like anybody else: otherwise a cheat would leave whenever it is challenged. Where too few witnesses stated in the
last round of a stage a missing root counts against nobody: then the coordinator was hard to reach for all.

Nothing here knows a clock, messages or an optimizer. An event that does not count changes nothing; `refusal` says why.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import IntEnum

from psyche_core.verification.drawing import CHUNKS, Drawn, chunks, tie_breakers
from psyche_core.verification.words import Word


class Stage(IntEnum):
    """Where a challenge is."""

    COMMIT = 0
    SIGNS = 1
    RECOMMIT = 2
    REVEAL = 3
    TIE_COMMIT = 4
    TIE_REVEAL = 5
    CLOSED = 6


class Outcome(IntEnum):
    """How a challenge ended."""

    PASSED = 0
    GUILTY = 1
    FALSE_ACCUSATION = 2
    SILENCE = 3
    UNDECIDED = 4


AGREEING = 2
"""So many tie-breakers that agree decide, if none says the opposite: one that lies can spare a cheat, but convict nobody."""

ROOT_ROUNDS = 2
"""Rounds during which a root is waited for. A stage in which all have committed ends after the first."""

NO_SEED = bytes(32)
"""The seed of a challenge whose chunks are not drawn yet."""

_ATTESTED = (Stage.SIGNS, Stage.REVEAL, Stage.TIE_REVEAL)
_BY_COMMAND = (Stage.COMMIT, Stage.RECOMMIT, Stage.TIE_COMMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The end of a challenge.

    strikes: slots that get one. missed: slots that missed a duty. requeue: whether the share's samples are trained again. high:
    whether the trainer passed with a score above the median threshold (`standing`). watch: whether the trainer is challenged
    again, though it got no strike. paid: slots that did what a challenge asks of verifiers and tie-breakers; it counts like an
    accepted share.
    """

    outcome: Outcome
    strikes: frozenset[int] = frozenset()
    missed: frozenset[int] = frozenset()
    requeue: bool = False
    high: bool = False
    watch: bool = False
    paid: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Committed:
    """A member commits to the root (32 bytes) of the gradient that it recomputed, see `merkle`. Its first root counts."""

    sender: int
    root: bytes


@dataclass(frozen=True, slots=True)
class Complained:
    """The verifier says that the trainer has not given it the signs that it needs."""

    sender: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundBegan:
    """A round begins.

    height: of that round. seed: 32 bytes that nobody knew before round `height - 1` began. words: of each statement of the
    round before, one word for each of the challenge's `judged`; empty unless these were due in that round (`awaits_words`).
    elected: number of witnesses elected in it. quorum: number of statements needed among them (F5), so that elected - quorum of
    them may lie. members: slots that may break a tie. quorate: whether so many stated in the round before, about whatever; if
    not, who is silent may be innocent.
    """

    height: int
    seed: bytes
    words: tuple[tuple[Word, ...], ...] = ()
    elected: int = 0
    quorum: int = 0
    members: frozenset[int] = frozenset()
    quorate: bool = True


Event = Committed | Complained | RoundBegan


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """One challenge. The first two fields never change.

    height: round of the share. drawn: trainer and verifier. since: height of the round with which the stage began. stage: of
    `Stage`. roots: (slot, root), ascending. complained: whether the verifier complained. seed: of 32 bytes, from which the opened
    chunks are drawn. judges: tie-breakers that still count, ascending. missed: others that were silent. verdict: None until
    CLOSED.
    """

    height: int
    drawn: Drawn
    since: int
    stage: Stage = Stage.COMMIT
    roots: tuple[tuple[int, bytes], ...] = ()
    complained: bool = False
    seed: bytes = NO_SEED
    judges: tuple[int, ...] = ()
    missed: frozenset[int] = frozenset()
    verdict: Verdict | None = None

    def __post_init__(self) -> None:
        if self.since <= self.height:
            message = f"a share is challenged in a later round, got {self}"
            raise ValueError(message)

    def opened(self, total: int) -> tuple[int, ...]:
        """The numbers of the drawn chunks, ascending; () until they are drawn. total: chunks of the model."""
        if self.seed == NO_SEED:
            return ()

        attempt = int(self.stage is Stage.TIE_REVEAL)
        trainer = self.drawn.trainer
        return chunks(self.seed, height=self.height, trainer=trainer, total=total, attempt=attempt, count=CHUNKS)

    @property
    def expected(self) -> tuple[int, ...]:
        """The slots that must give something in this stage, ascending."""
        trainer, verifier = self.drawn.trainer, self.drawn.verifier
        by_stage: dict[Stage, Collection[int]] = {
            Stage.COMMIT: (verifier,),
            Stage.SIGNS: (trainer,),
            Stage.RECOMMIT: (verifier,),
            Stage.REVEAL: (trainer, verifier),
            Stage.TIE_COMMIT: self.judges,
            Stage.TIE_REVEAL: (trainer, *self.judges),
        }
        return tuple(sorted(by_stage.get(self.stage, ())))

    @property
    def judged(self) -> tuple[int, ...]:
        """The slots about whose gradients a witness says a word each, ascending; of SIGNS there is one word, too."""
        if self.stage in (Stage.SIGNS, Stage.REVEAL):
            return (self.drawn.verifier,)

        return self.judges if self.stage is Stage.TIE_REVEAL else ()

    def awaits_words(self, height: int) -> bool:
        """Whether the statements of this round have words about the challenge."""
        return self.stage in _ATTESTED and height == self.since + 1

    def committed(self, slot: int) -> bool:
        """Whether this slot has committed to a root."""
        return any(one == slot for one, _ in self.roots)


def refusal(challenge: Challenge, event: Event) -> str | None:
    """Why an event does not count, in one sentence; None if it does."""
    if challenge.stage is Stage.CLOSED:
        return "the challenge is closed"

    match event:
        case Committed(sender, root):
            if challenge.stage not in _BY_COMMAND or sender not in challenge.expected:
                return f"slot {sender} has nothing to commit to in stage {challenge.stage.name}"
            if len(root) != 32:
                return f"a root has 32 bytes, got {len(root)}"
            if challenge.committed(sender):
                return f"slot {sender} has committed before"
        case Complained(sender):
            if challenge.stage is not Stage.COMMIT or sender != challenge.drawn.verifier:
                return f"slot {sender} has nothing to complain of in stage {challenge.stage.name}"
            if challenge.complained or challenge.committed(sender):
                return f"slot {sender} has complained or committed before"
        case RoundBegan():
            return _wrong_round(challenge, event)
    return None


def _wrong_round(challenge: Challenge, event: RoundBegan) -> str | None:
    if len(event.seed) != 32:
        return f"a seed has 32 bytes, got {len(event.seed)}"
    if event.height <= challenge.since:
        return f"the stage began with round {challenge.since}, so round {event.height} does not end it"
    if event.words and not challenge.awaits_words(event.height - 1):
        return f"no words about the challenge are due in round {event.height - 1}"
    if any(len(words) != len(challenge.judged) for words in event.words):
        return f"a statement has {len(challenge.judged)} words about the challenge"
    if not len(event.words) <= event.elected <= 2 * event.quorum:
        return f"expected a quorum of at least half of the elected, got {len(event.words)} of {event.elected} and {event.quorum}"
    return None


def advance(challenge: Challenge, event: Event) -> Challenge:
    """The challenge after an event. One that does not count changes nothing, see `refusal`."""
    if refusal(challenge, event) is not None:
        return challenge

    match event:
        case Committed(sender, root):
            return replace(challenge, roots=tuple(sorted((*challenge.roots, (sender, root)))))
        case Complained():
            return replace(challenge, complained=True)
        case RoundBegan():
            return _round_began(challenge, event)


def _round_began(challenge: Challenge, event: RoundBegan) -> Challenge:
    if challenge.stage in _ATTESTED:
        return challenge if event.height < challenge.since + 2 else _after_words(challenge, event)

    complained = challenge.complained and challenge.stage is Stage.COMMIT
    missing = not complained and not all(challenge.committed(slot) for slot in challenge.expected)
    if missing and event.height < challenge.since + ROOT_ROUNDS:
        return challenge
    if challenge.stage is Stage.TIE_COMMIT:
        return _after_tie_commit(challenge, event)
    if challenge.committed(challenge.drawn.verifier):
        return _entered(challenge, Stage.REVEAL, event, seed=event.seed)
    if complained:
        return _entered(challenge, Stage.SIGNS, event)
    if not event.quorate:
        return _closed(challenge, Outcome.UNDECIDED, watch=True)
    if challenge.stage is Stage.RECOMMIT:
        return _closed(challenge, Outcome.SILENCE, {challenge.drawn.verifier}, watch=True)
    return _closed(challenge, Outcome.SILENCE, missed={challenge.drawn.verifier}, watch=True)


def _after_words(challenge: Challenge, event: RoundBegan) -> Challenge:
    if len(event.words) < max(event.quorum, 1):
        return _closed(challenge, Outcome.UNDECIDED, watch=True)

    silent = _silent(challenge, event)
    match challenge.stage:
        case Stage.SIGNS:
            if silent:
                return _closed(challenge, Outcome.SILENCE, silent, requeue=True)
            return _entered(challenge, Stage.RECOMMIT, event)
        case Stage.REVEAL:
            if silent:
                return _after_silence(challenge, silent)
            return _after_check(challenge, event)
        case _:
            if challenge.drawn.trainer in silent:
                return _after_silence(challenge, silent)
            return _after_tie(challenge, event, silent=silent)


def _after_silence(challenge: Challenge, silent: frozenset[int]) -> Challenge:
    strikes = silent & {challenge.drawn.trainer}
    requeue = bool(strikes)
    return _closed(challenge, Outcome.SILENCE, strikes, missed=silent - strikes, requeue=requeue, watch=not requeue)


def _silent(challenge: Challenge, event: RoundBegan) -> frozenset[int]:
    """The slots whose part fewer than half of the elected witnesses have."""
    trainer = challenge.drawn.trainer
    having = {trainer: sum(any(word.trainer_gave for word in words) for words in event.words)}
    if challenge.stage is not Stage.SIGNS:
        for place, judge in enumerate(challenge.judged):
            having[judge] = sum(words[place].judge_gave for words in event.words)
    return frozenset(slot for slot, count in having.items() if 2 * count < event.elected)


def _after_check(challenge: Challenge, event: RoundBegan) -> Challenge:
    said = _said(event, 0)
    if said is None:
        return _closed(challenge, Outcome.UNDECIDED, watch=True)
    if said:
        return _closed(challenge, Outcome.PASSED, high=_is_high(event))

    judges = tie_breakers(event.seed, challenge=challenge.drawn, height=challenge.height, members=event.members)
    if len(judges) < AGREEING:
        return _closed(challenge, Outcome.UNDECIDED, watch=True)
    return replace(_entered(challenge, Stage.TIE_COMMIT, event), judges=judges)


def _said(event: RoundBegan, place: int) -> bool | None:
    """Whether the check against one judge passed; None if not even one honest witness is sure to say so, or both are said."""
    tolerated = event.elected - event.quorum
    column = [words[place] for words in event.words]
    passed = sum(word in (Word.PASSED, Word.HIGH) for word in column) > tolerated
    failed = column.count(Word.FAILED) > tolerated
    return None if passed == failed else passed


def _is_high(event: RoundBegan) -> bool:
    column = [words[0] for words in event.words]
    return column.count(Word.HIGH) > column.count(Word.PASSED)


def _after_tie_commit(challenge: Challenge, event: RoundBegan) -> Challenge:
    silent = frozenset(judge for judge in challenge.judges if not challenge.committed(judge))
    challenge = _without_judges(challenge, silent, counts=event.quorate)
    if len(challenge.judges) < AGREEING:
        return _closed(challenge, Outcome.UNDECIDED, watch=True)
    return _entered(challenge, Stage.TIE_REVEAL, event, seed=event.seed)


def _after_tie(challenge: Challenge, event: RoundBegan, *, silent: frozenset[int]) -> Challenge:
    said = [_said(event, place) for place, judge in enumerate(challenge.judges) if judge not in silent]
    challenge = _without_judges(challenge, silent)
    passed, failed = said.count(True), said.count(False)
    if failed >= AGREEING and not passed:
        return _closed(challenge, Outcome.GUILTY, {challenge.drawn.trainer}, requeue=True)
    if passed >= AGREEING and not failed:
        return _closed(challenge, Outcome.FALSE_ACCUSATION, {challenge.drawn.verifier})

    return _closed(challenge, Outcome.UNDECIDED, watch=True)


def _without_judges(challenge: Challenge, silent: frozenset[int], *, counts: bool = True) -> Challenge:
    judges = tuple(slot for slot in challenge.judges if slot not in silent)
    return replace(challenge, judges=judges, missed=challenge.missed | silent if counts else challenge.missed)


def without(challenge: Challenge, ejected: frozenset[int]) -> Challenge:
    """The challenge once these slots are ejected: about an ejected trainer there is nothing left to decide.

    An ejected verifier has nothing to commit to any more; in a tie-break it is not needed. Who did its part is paid.
    """
    judging = challenge.stage in (Stage.TIE_COMMIT, Stage.TIE_REVEAL)
    trainer, verifier = challenge.drawn.trainer, challenge.drawn.verifier
    left = replace(
        challenge,
        judges=tuple(judge for judge in challenge.judges if judge not in ejected),
        missed=challenge.missed - ejected,
    )
    if trainer in ejected or (verifier in ejected and not judging):
        return _closed(left, Outcome.UNDECIDED, watch=trainer not in ejected, unpaid=ejected)
    return left


def _entered(challenge: Challenge, stage: Stage, event: RoundBegan, *, seed: bytes = NO_SEED) -> Challenge:
    return replace(challenge, stage=stage, since=event.height, seed=seed)


def _closed(
    challenge: Challenge,
    outcome: Outcome,
    strikes: Collection[int] = (),
    *,
    missed: Collection[int] = (),
    requeue: bool = False,
    high: bool = False,
    watch: bool = False,
    unpaid: frozenset[int] = frozenset(),
) -> Challenge:
    struck, silent = frozenset(strikes), challenge.missed.union(missed)
    did = {challenge.drawn.verifier, *challenge.judges} - struck - silent - unpaid
    paid = frozenset(slot for slot in did if challenge.committed(slot))
    verdict = Verdict(outcome=outcome, strikes=struck, missed=silent, requeue=requeue, high=high, watch=watch, paid=paid)
    return replace(challenge, stage=Stage.CLOSED, verdict=verdict)
