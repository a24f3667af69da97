"""Epochs of challenges: cheats go, honest members stay, whatever liars say; and how soon, against the exact chances."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.verification.challenge import Challenge, Committed, Complained, Outcome, Stage, advance
from psyche_core.verification.chances import ejected_within
from psyche_core.verification.epoch import MOST_OPEN, Closed, EpochVerification, NewRound, new_epoch, round_began
from psyche_core.verification.standing import Standing
from psyche_core.verification.words import Word

SLOTS = 8
Lie = Callable[[random.Random, Challenge, int], Word]


@dataclass
class Run:
    """An epoch of eight members that all witness.

    faking: members, and the part of their rounds in which they fake. liars: witnesses and what they say. silent: members that
    give nothing. approving: members that recompute nothing when they verify, so that what they open never fits.
    """

    seed: int
    percent: int = 10
    faking: dict[int, float] = field(default_factory=dict)
    liars: dict[int, Lie] = field(default_factory=dict)
    silent: frozenset[int] = frozenset()
    approving: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.state = new_epoch(percent=self.percent, slots=SLOTS)
        self.faked: set[tuple[int, int]] = set()
        self.closed: list[Closed] = []
        self.height = 0

    @property
    def members(self) -> frozenset[int]:
        return frozenset(slot for slot in range(SLOTS) if not self.state.standings[slot].ejected)

    def round(self) -> None:
        """One more round begins; then verifiers and tie-breakers give their roots."""
        for slot, part in self.faking.items():
            if self.random.random() < part:
                self.faked.add((self.height, slot))
        due = self.state.due(self.height - 1)
        members = self.members
        statements = tuple(tuple(self._word(witness, *one) for one in due) for witness in sorted(members))
        seed = hashlib.sha256(f"{self.seed} {self.height}".encode()).digest()
        elected = len(members)
        begun = NewRound(
            height=self.height,
            seed=seed,
            shares=members,
            members=members,
            statements=statements,
            elected=elected,
            quorum=-(-2 * elected // 3),
        )
        self.state, closed = round_began(self.state, begun)
        self.closed += closed
        for one in self.state.open:
            changed = one
            for slot in one.expected:
                if slot not in self.silent and one.stage in (Stage.COMMIT, Stage.RECOMMIT, Stage.TIE_COMMIT):
                    complains = one.stage is Stage.COMMIT and one.drawn.trainer in self.silent
                    changed = advance(changed, Complained(slot) if complains else Committed(slot, bytes(32)))
            self.state = self.state.replaced(changed)
        self.height += 1

    def _word(self, witness: int, challenge: Challenge, judge: int) -> Word:
        lie = self.liars.get(witness)
        if lie is not None:
            return lie(self.random, challenge, judge)
        if challenge.drawn.trainer in self.silent:
            return Word.TRAINER_MISSING
        if judge in self.silent:
            return Word.JUDGE_MISSING

        trained = (challenge.height, challenge.drawn.trainer) not in self.faked
        return Word.PASSED if trained and judge not in self.approving else Word.FAILED


def played(run: Run, rounds: int) -> Run:
    for _ in range(rounds):
        run.round()
    return run


def any_word(rng: random.Random, _challenge: Challenge, _judge: int) -> Word:
    return rng.choice(list(Word))


@pytest.mark.parametrize("percent", [0, 10, 100])
def test_honest_members_are_challenged_as_often_as_asked_and_none_gets_a_strike(percent: int) -> None:
    run = played(Run(1, percent=percent), 200)
    assert run.state.standings.count(Standing()) + sum(bool(one.high) for one in run.state.standings) == SLOTS
    assert len(run.closed) == pytest.approx(200 * SLOTS * percent / 100, rel=0.25, abs=1)
    assert {one.verdict.outcome for one in run.closed} <= {Outcome.PASSED}
    assert all(one.verdict.paid == {one.challenge.drawn.verifier} for one in run.closed)


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.sampled_from([10, 50, 100]))
def test_two_lying_witnesses_of_eight_accuse_nobody_and_save_nobody(seed: int, percent: int) -> None:
    run = played(Run(seed, percent=percent, faking={3: 1.0}, liars={3: any_word, 4: any_word}), 40)
    honest = set(range(SLOTS)) - {3}
    assert all(run.state.standings[slot].strikes == 0 for slot in honest), "verifier 4 lies with words only"
    judged = [one for one in run.closed if one.challenge.drawn.trainer == 3]
    assert all(one.verdict.outcome is not Outcome.PASSED for one in judged)
    assert run.state.standings[3].ejected == (sum(3 in one.verdict.strikes for one in judged) >= 2)


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_who_gives_nothing_is_ejected_and_so_is_who_verifies_blindly(seed: int) -> None:
    run = played(Run(seed, percent=100, silent=frozenset({1}), approving=frozenset({2})), 30)
    assert [slot for slot, one in enumerate(run.state.standings) if one.ejected] == [1, 2]
    assert all(one.strikes == 0 for slot, one in enumerate(run.state.standings) if slot not in (1, 2))


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_requeued_are_exactly_the_shares_of_the_guilty_and_the_silent(seed: int) -> None:
    run = played(Run(seed, percent=50, faking={0: 0.5}, silent=frozenset({1})), 40)
    for one in run.closed:
        fault = (one.challenge.height, 0) in run.faked and one.challenge.drawn.trainer == 0
        if one.verdict.requeue:
            assert fault or one.challenge.drawn.trainer == 1


@pytest.mark.parametrize(("part", "rounds"), [(1.0, 30), (0.5, 60)])
def test_cheats_go_as_soon_as_the_exact_chances_say(part: float, rounds: int) -> None:
    """Within four standard deviations of 80 epochs, and a little later: a verdict comes some rounds after its share."""
    epochs = 80
    gone = sum(played(Run(seed, faking={5: part}), rounds + 8).state.standings[5].ejected for seed in range(epochs))
    chance = ejected_within(rounds, rate=0.1, strike=part)
    assert gone / epochs == pytest.approx(chance, abs=4 * (chance * (1 - chance) / epochs) ** 0.5 + 0.03)


def test_a_state_is_bounded_and_words_have_one_order() -> None:
    state = new_epoch(percent=100, slots=200)
    everybody = frozenset(range(200))
    begun = NewRound(height=3, seed=bytes(32), shares=everybody, members=everybody, elected=32, quorum=22)
    state, _ = round_began(state, begun)
    assert len(state.open) == MOST_OPEN
    assert list(state.open) == sorted(state.open, key=lambda one: (one.height, one.drawn.trainer))
    assert state.recomputing() == {one.drawn.verifier for one in state.open}
    committed: EpochVerification = state
    for one in state.open:
        committed = committed.replaced(advance(one, Committed(one.drawn.verifier, bytes(32))))
    reveal, _ = round_began(committed, NewRound(height=4, seed=b"\x01" * 32, shares=(), members=everybody))
    assert [judge for _, judge in reveal.due(5)] == [one.drawn.verifier for one in state.open]
    with pytest.raises(ValueError, match=f"{MOST_OPEN} words"):
        round_began(reveal, NewRound(height=6, seed=bytes(32), shares=(), members=everybody, statements=((Word.PASSED,),)))


def test_a_challenge_is_found_by_its_share() -> None:
    run = played(Run(1, percent=100), 5)
    one = run.state.open[0]
    assert run.state.find(one.height, one.drawn.trainer) is one
    assert run.state.find(99, 0) is None
