"""One challenge, from its draw to its verdict: a pure state machine over frozen values.

Each stage lasts until the coordinator ends it, with the seed of the round that begins then:

    SIGNS       the trainer gives all signs of its earlier delta, and the hashes that bind them to its root
    COMMIT      the verifier commits to the root of its gradient's chunks
    REVEAL      chunks are drawn; the trainer opens its two deltas, the verifier its gradient
    CHECK       witnesses say whether the opened chunks pass
    TIE_COMMIT  after a failure: tie-breakers recompute and commit, each by itself
    TIE_REVEAL  other chunks are drawn; trainer and tie-breakers open theirs
    TIE_CHECK   witnesses say for each tie-breaker whether the trainer passes
    CLOSED      there is a verdict

A message counts as given once a quorum of the witnesses says that it arrived and fits its root: who gives it to some only has not
given it. Who must give something and has not when the stage ends is *silent*, which is a strike, and nobody else is blamed for
what it could not do then. Two tie-breakers that agree decide: the trainer is guilty, or the verifier accused it falsely. If no
two agree, or there are no two, nobody is. A claim by one member alone, whoever it is, changes nothing.

`advance` takes one event. An event that does not count (of a stranger, too late, said before) leaves the challenge as it is;
`refusal` says why. So events may come twice and in any order within a stage.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import IntEnum

from psyche_core.verification.drawing import CHUNKS, Drawn, chunks, tie_breakers


class Stage(IntEnum):
    """Where a challenge is."""

    SIGNS = 0
    COMMIT = 1
    REVEAL = 2
    CHECK = 3
    TIE_COMMIT = 4
    TIE_REVEAL = 5
    TIE_CHECK = 6
    CLOSED = 7


class Outcome(IntEnum):
    """How a challenge ended."""

    PASSED = 0
    GUILTY = 1
    FALSE_ACCUSATION = 2
    SILENCE = 3
    UNDECIDED = 4


AGREEING = 2
"""So many tie-breakers that agree decide."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a challenge. strikes: slots that get one. requeue: whether the share's samples are trained again."""

    outcome: Outcome
    strikes: frozenset[int] = frozenset()
    requeue: bool = False


@dataclass(frozen=True, slots=True)
class Committed:
    """A member commits to the root of the gradient it recomputed. root: 32 bytes, see `merkle`. The first one counts."""

    sender: int
    root: bytes


@dataclass(frozen=True, slots=True)
class Arrived:
    """A witness says that it has what a member must give in this stage, whole and fitting its root."""

    witness: int
    sender: int


@dataclass(frozen=True, slots=True)
class Checked:
    """A witness says whether the trainer's opened chunks pass against those of `judge`: the verifier, or a tie-breaker."""

    witness: int
    judge: int
    passed: bool


@dataclass(frozen=True, slots=True)
class StageEnded:
    """The coordinator ends the stage. seed: 32 bytes that nobody knew before. members: slots that may break a tie."""

    seed: bytes
    members: frozenset[int] = frozenset()


Event = Committed | Arrived | Checked | StageEnded


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """One challenge. The first fields never change.

    height: round of the share. drawn: trainer and verifier. witnesses: slots whose word counts. quorum: so many of them decide.
    total_chunks: of the model. stage: of `Stage`. commitments: (slot, root). arrived: (witness, sender) of this stage. checks:
    (witness, judge, passed) of this stage. opened: numbers of the drawn chunks. judges: tie-breakers that still count. strikes:
    given so far, for silence. verdict: None until CLOSED.
    """

    height: int
    drawn: Drawn
    witnesses: frozenset[int]
    quorum: int
    total_chunks: int
    stage: Stage = Stage.SIGNS
    commitments: tuple[tuple[int, bytes], ...] = ()
    arrived: frozenset[tuple[int, int]] = frozenset()
    checks: frozenset[tuple[int, int, bool]] = frozenset()
    opened: tuple[int, ...] = ()
    judges: tuple[int, ...] = ()
    strikes: frozenset[int] = frozenset()
    verdict: Verdict | None = None

    def __post_init__(self) -> None:
        if self.total_chunks < 1 or not len(self.witnesses) // 2 < self.quorum <= len(self.witnesses):
            message = f"a quorum is more than half of the {len(self.witnesses)} witnesses and a model has a chunk, got {self}"
            raise ValueError(message)

    @property
    def expected(self) -> tuple[int, ...]:
        """The slots that must give something in this stage, ascending. Who committed alone owes what it committed to."""
        trainer, verifier = self.drawn.trainer, self.drawn.verifier
        by_stage: dict[Stage, Collection[int]] = {
            Stage.SIGNS: (trainer,),
            Stage.COMMIT: (verifier,),
            Stage.REVEAL: (trainer, verifier),
            Stage.TIE_COMMIT: self.judges,
            Stage.TIE_REVEAL: (trainer, *self.judges),
        }
        return tuple(sorted(by_stage.get(self.stage, ())))

    @property
    def silent(self) -> frozenset[int]:
        """The slots that have not given what they must in this stage, as far as a quorum of witnesses says."""
        committed = {slot for slot, _ in self.commitments}
        need_root = self.stage in (Stage.COMMIT, Stage.TIE_COMMIT)
        return frozenset(slot for slot in self.expected if not self._has_given(slot) or (need_root and slot not in committed))

    def said(self, judge: int) -> bool | None:
        """What a quorum of witnesses says of the check against a judge's gradient; None where there is no quorum."""
        for passed in (True, False):
            if sum(about == judge and word is passed for _, about, word in self.checks) >= self.quorum:
                return passed
        return None

    def _has_given(self, slot: int) -> bool:
        return sum(sender == slot for _, sender in self.arrived) >= self.quorum


def refusal(challenge: Challenge, event: Event) -> str | None:
    """Why an event does not count, in one sentence; None if it does."""
    if challenge.stage is Stage.CLOSED:
        return "the challenge is closed"

    match event:
        case Committed(sender, root):
            if challenge.stage not in (Stage.COMMIT, Stage.TIE_COMMIT) or sender not in challenge.expected:
                return f"slot {sender} has nothing to commit to in stage {challenge.stage.name}"
            if len(root) != 32:
                return f"a root has 32 bytes, got {len(root)}"
            if any(slot == sender for slot, _ in challenge.commitments):
                return f"slot {sender} has committed before"
        case Arrived(witness, sender):
            if witness not in challenge.witnesses:
                return f"slot {witness} is no witness"
            if sender not in challenge.expected:
                return f"nothing is expected of slot {sender} in stage {challenge.stage.name}"
        case Checked(witness, judge, _):
            if witness not in challenge.witnesses:
                return f"slot {witness} is no witness"
            if judge not in _judges(challenge):
                return f"slot {judge} judges nothing in stage {challenge.stage.name}"
            if any(one == witness and about == judge for one, about, _ in challenge.checks):
                return f"witness {witness} has said so or otherwise before"
        case StageEnded(seed, _):
            if len(seed) != 32:
                return f"a seed has 32 bytes, got {len(seed)}"
    return None


def advance(challenge: Challenge, event: Event) -> Challenge:
    """The challenge after an event. One that does not count changes nothing, see `refusal`."""
    if refusal(challenge, event) is not None:
        return challenge

    match event:
        case Committed(sender, root):
            return replace(challenge, commitments=tuple(sorted((*challenge.commitments, (sender, root)))))
        case Arrived(witness, sender):
            return replace(challenge, arrived=challenge.arrived | {(witness, sender)})
        case Checked(witness, judge, passed):
            return replace(challenge, checks=challenge.checks | {(witness, judge, passed)})
        case StageEnded():
            return _end_stage(challenge, event)


def _judges(challenge: Challenge) -> tuple[int, ...]:
    if challenge.stage is Stage.CHECK:
        return (challenge.drawn.verifier,)

    return challenge.judges if challenge.stage is Stage.TIE_CHECK else ()


def _end_stage(challenge: Challenge, event: StageEnded) -> Challenge:
    match challenge.stage:
        case Stage.SIGNS | Stage.COMMIT | Stage.REVEAL:
            if challenge.silent:
                return _close_silent(challenge, challenge.silent)
            if challenge.stage is Stage.COMMIT:
                return _next(challenge, opened=_draw(challenge, event.seed, attempt=0))
            return _next(challenge)
        case Stage.CHECK:
            return _after_check(challenge, event)
        case Stage.TIE_COMMIT:
            challenge = _without_silent_judges(challenge)
            if len(challenge.judges) < AGREEING:
                return _close(challenge, Outcome.UNDECIDED)
            return _next(challenge, opened=_draw(challenge, event.seed, attempt=1))
        case Stage.TIE_REVEAL:
            if challenge.drawn.trainer in challenge.silent:  # judges' silence is a strike all the same
                return _close_silent(challenge, challenge.silent)
            return _next(_without_silent_judges(challenge))
        case _:
            return _after_tie(challenge)


def _after_check(challenge: Challenge, event: StageEnded) -> Challenge:
    said = challenge.said(challenge.drawn.verifier)
    if said is None:
        return _close(challenge, Outcome.UNDECIDED)
    if said:
        return _close(challenge, Outcome.PASSED)

    judges = tie_breakers(event.seed, challenge=challenge.drawn, height=challenge.height, members=event.members)
    if len(judges) < AGREEING:
        return _close(challenge, Outcome.UNDECIDED)
    return _next(challenge, judges=judges)


def _after_tie(challenge: Challenge) -> Challenge:
    words = [challenge.said(judge) for judge in challenge.judges]
    if words.count(False) >= AGREEING:
        return _close(challenge, Outcome.GUILTY, frozenset({challenge.drawn.trainer}), requeue=True)
    if words.count(True) >= AGREEING:
        return _close(challenge, Outcome.FALSE_ACCUSATION, frozenset({challenge.drawn.verifier}))

    return _close(challenge, Outcome.UNDECIDED)


def _without_silent_judges(challenge: Challenge) -> Challenge:
    silent = challenge.silent
    judges = tuple(slot for slot in challenge.judges if slot not in silent)
    return replace(challenge, judges=judges, strikes=challenge.strikes | silent)


def _draw(challenge: Challenge, seed: bytes, *, attempt: int) -> tuple[int, ...]:
    return chunks(
        seed,
        height=challenge.height,
        trainer=challenge.drawn.trainer,
        total=challenge.total_chunks,
        attempt=attempt,
        count=CHUNKS,
    )


def _next(challenge: Challenge, *, opened: tuple[int, ...] | None = None, judges: tuple[int, ...] | None = None) -> Challenge:
    return replace(
        challenge,
        stage=Stage(challenge.stage + 1),
        arrived=frozenset(),
        checks=frozenset(),
        opened=challenge.opened if opened is None else opened,
        judges=challenge.judges if judges is None else judges,
    )


def _close_silent(challenge: Challenge, silent: frozenset[int]) -> Challenge:
    return _close(challenge, Outcome.SILENCE, silent, requeue=challenge.drawn.trainer in silent)


def _close(challenge: Challenge, outcome: Outcome, strikes: frozenset[int] = frozenset(), *, requeue: bool = False) -> Challenge:
    verdict = Verdict(outcome, challenge.strikes | strikes, requeue)
    return replace(challenge, stage=Stage.CLOSED, arrived=frozenset(), checks=frozenset(), verdict=verdict)
