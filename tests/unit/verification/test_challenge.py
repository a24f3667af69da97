"""One challenge: every way to its verdict; whatever strangers and a minority of witnesses say, nobody honest gets a strike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.verification.challenge import (
    Challenge,
    Committed,
    Complained,
    Event,
    Outcome,
    RoundBegan,
    Stage,
    advance,
    refusal,
    without,
)
from psyche_core.verification.drawing import Drawn
from psyche_core.verification.words import Word

TRAINER, VERIFIER = 4, 5
MEMBERS = frozenset(range(10))
DRAWN_IN = 11
TOTAL = 1000
FRESH = Challenge(height=9, drawn=Drawn(TRAINER, VERIFIER), since=DRAWN_IN)
ROOT = Committed(VERIFIER, bytes(32))
NOBODY: frozenset[int] = frozenset()
PASSED, HIGH, FAILED = Word.PASSED, Word.HIGH, Word.FAILED
NO_TRAINER, NO_JUDGE, NEITHER = Word.TRAINER_MISSING, Word.JUDGE_MISSING, Word.BOTH_MISSING


def began(challenge: Challenge, words: Sequence[Sequence[Word]] = (), members: frozenset[int] = MEMBERS) -> RoundBegan:
    """The next round that ends the stage, of four elected witnesses, one of whom may lie."""
    height = challenge.since + 1 + challenge.awaits_words(challenge.since + 1)
    given = tuple(tuple(one) for one in words)
    return RoundBegan(height=height, seed=bytes([height]) * 32, words=given, elected=4, quorum=3, members=members)


def later(challenge: Challenge) -> RoundBegan:
    """The round after the next: the last that waits for a root has ended."""
    return replace(began(challenge), height=challenge.since + 2)


def play(challenge: Challenge, *events: Event) -> Challenge:
    for event in events:
        assert refusal(challenge, event) is None
        challenge = advance(challenge, event)
    return challenge


def after(challenge: Challenge, *words: Word) -> Challenge:
    """The challenge after statements with one word each."""
    return play(challenge, began(challenge, [(word,) for word in words]))


def at_reveal() -> Challenge:
    committed = play(FRESH, ROOT)
    found = play(committed, began(committed))
    assert found.stage is Stage.REVEAL
    assert len(found.opened(TOTAL)) == 16
    return found


def at_tie_reveal() -> Challenge:
    first = at_reveal()
    found = after(first, FAILED, FAILED, FAILED)
    assert found.stage is Stage.TIE_COMMIT
    assert found.opened(TOTAL) == ()
    assert len(found.judges) == 3
    found = play(found, *[Committed(judge, bytes([judge]) * 32) for judge in found.judges])
    found = play(found, began(found))
    assert found.stage is Stage.TIE_REVEAL
    assert len(found.opened(TOTAL)) == 16
    assert found.opened(TOTAL) != first.opened(TOTAL)
    return found


def verdict(challenge: Challenge) -> tuple[Outcome, frozenset[int], bool, bool]:
    found = challenge.verdict
    assert found is not None
    assert challenge.stage is Stage.CLOSED
    return found.outcome, found.strikes, found.requeue, found.watch


UNDECIDED = (Outcome.UNDECIDED, NOBODY, False, True)
TRAINER_SILENT = (Outcome.SILENCE, frozenset({TRAINER}), True, False)
VERIFIER_SILENT = (Outcome.SILENCE, NOBODY, False, True)


def test_who_trained_passes_and_its_verifier_is_paid() -> None:
    found = after(at_reveal(), PASSED, PASSED, PASSED, PASSED)
    assert verdict(found) == (Outcome.PASSED, NOBODY, False, False)
    assert found.verdict is not None
    assert found.verdict.paid == {VERIFIER}
    assert not found.verdict.high


@pytest.mark.parametrize(("words", "high"), [((HIGH, HIGH, PASSED), True), ((HIGH, PASSED, PASSED), False)])
def test_most_witnesses_say_whether_the_score_is_high(words: tuple[Word, ...], high: bool) -> None:
    found = after(at_reveal(), *words).verdict
    assert found is not None
    assert (found.outcome, found.high) == (Outcome.PASSED, high)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((FAILED, FAILED, FAILED), (Outcome.GUILTY, frozenset({TRAINER}), True, False)),
        ((FAILED, FAILED, NO_JUDGE), (Outcome.GUILTY, frozenset({TRAINER}), True, False)),
        ((PASSED, PASSED, Word.NOTHING), (Outcome.FALSE_ACCUSATION, frozenset({VERIFIER}), False, False)),
        ((FAILED, FAILED, PASSED), UNDECIDED),
        ((PASSED, PASSED, FAILED), UNDECIDED),
        ((PASSED, FAILED, Word.NOTHING), UNDECIDED),
        ((FAILED, NO_JUDGE, NO_JUDGE), UNDECIDED),
    ],
)
def test_two_tie_breakers_that_agree_decide_unless_the_third_says_the_opposite(
    words: tuple[Word, ...], expected: tuple[Outcome, frozenset[int], bool, bool]
) -> None:
    found = at_tie_reveal()
    judges = found.judges
    missing = frozenset(judge for judge, word in zip(judges, words, strict=True) if not word.judge_gave)
    found = play(found, began(found, [words] * 3))
    outcome, strikes, requeue, watch = expected
    assert verdict(found) == (outcome, strikes, requeue, watch)
    assert found.verdict is not None
    assert found.verdict.missed == missing
    assert found.verdict.paid == {VERIFIER, *judges} - missing - strikes


def missed(challenge: Challenge) -> frozenset[int]:
    assert challenge.verdict is not None
    return challenge.verdict.missed


def test_silence_is_a_strike_for_trainers_and_a_missed_duty_for_verifiers() -> None:
    silent = play(FRESH, began(FRESH), later(FRESH))
    assert verdict(silent) == VERIFIER_SILENT
    assert missed(silent) == {VERIFIER}
    reveal = at_reveal()
    assert verdict(after(reveal, NO_TRAINER, NO_TRAINER, NO_TRAINER)) == TRAINER_SILENT
    assert verdict(after(reveal, NO_JUDGE, NO_JUDGE, NO_JUDGE)) == VERIFIER_SILENT
    both = after(reveal, NEITHER, NEITHER, NEITHER)
    assert verdict(both) == TRAINER_SILENT
    assert missed(both) == {VERIFIER}


def test_a_root_may_come_in_the_second_round_and_a_complaint_too() -> None:
    waiting = play(FRESH, began(FRESH))
    assert waiting == FRESH
    assert play(waiting, ROOT, later(FRESH)).stage is Stage.REVEAL
    assert play(waiting, Complained(VERIFIER), later(FRESH)).stage is Stage.SIGNS


def test_where_too_few_witnesses_stated_a_missing_root_is_no_strike() -> None:
    assert verdict(play(FRESH, replace(later(FRESH), quorate=False))) == UNDECIDED
    tie = after(at_reveal(), FAILED, FAILED, FAILED)
    assert verdict(play(tie, replace(later(tie), quorate=False))) == UNDECIDED
    assert missed(play(tie, replace(later(tie), quorate=False))) == NOBODY
    late = play(tie, later(tie))
    assert (verdict(late), missed(late)) == (UNDECIDED, frozenset(tie.judges))


def test_an_ejected_trainer_is_not_judged_and_its_verifier_is_paid() -> None:
    found = without(at_reveal(), frozenset({TRAINER}))
    assert verdict(found) == (Outcome.UNDECIDED, NOBODY, False, False)
    assert found.verdict is not None
    assert found.verdict.paid == {VERIFIER}
    assert verdict(without(at_reveal(), frozenset({VERIFIER}))) == UNDECIDED
    tie = at_tie_reveal()
    left = without(tie, frozenset({VERIFIER, tie.judges[0]}))
    assert (left.stage, left.judges) == (Stage.TIE_REVEAL, tie.judges[1:])


def test_a_verifier_without_signs_complains_and_the_witnesses_settle_it() -> None:
    complained = play(FRESH, Complained(VERIFIER))
    signs = play(complained, began(complained))
    assert (signs.stage, signs.expected) == (Stage.SIGNS, (TRAINER,))
    assert verdict(after(signs, NO_TRAINER, NO_TRAINER, NO_TRAINER, PASSED)) == TRAINER_SILENT
    again = after(signs, PASSED, PASSED, NO_TRAINER)
    assert (again.stage, again.expected) == (Stage.RECOMMIT, (VERIFIER,))
    assert refusal(again, Complained(VERIFIER)) == "slot 5 has nothing to complain of in stage RECOMMIT"
    assert verdict(play(again, began(again), later(again))) == (Outcome.SILENCE, frozenset({VERIFIER}), False, True)
    found = play(again, ROOT)
    assert play(found, began(found)).stage is Stage.REVEAL


def test_a_root_counts_though_the_verifier_complained_first() -> None:
    found = play(FRESH, Complained(VERIFIER), ROOT)
    assert play(found, began(found)).stage is Stage.REVEAL


def test_who_gives_to_a_minority_of_witnesses_has_given_nothing() -> None:
    assert verdict(after(at_reveal(), FAILED, NO_TRAINER, NO_TRAINER)) == TRAINER_SILENT


def test_tie_breakers_that_are_silent_miss_a_duty_and_the_others_decide() -> None:
    found = after(at_reveal(), FAILED, FAILED, FAILED)
    first, second, third = found.judges
    found = play(found, *[Committed(judge, bytes(32)) for judge in (first, second)])
    assert play(found, began(found)) == found, "it has a second round"
    found = play(found, later(found))
    assert found.judges == (first, second)
    found = play(found, began(found, [(FAILED, FAILED)] * 3))
    assert verdict(found) == (Outcome.GUILTY, frozenset({TRAINER}), True, False)
    assert missed(found) == {third}


def test_a_trainer_that_is_silent_in_the_tie_break_gets_the_strike() -> None:
    found = at_tie_reveal()
    assert verdict(play(found, began(found, [(NO_TRAINER, NO_TRAINER, NO_TRAINER)] * 4))) == TRAINER_SILENT


@pytest.mark.parametrize("members", [frozenset({TRAINER, VERIFIER}), frozenset({0, TRAINER, VERIFIER})])
def test_without_two_others_nobody_is_convicted(members: frozenset[int]) -> None:
    reveal = at_reveal()
    found = play(reveal, began(reveal, [(FAILED,)] * 4, members))
    assert verdict(found) == UNDECIDED


def test_without_a_quorum_of_statements_nothing_is_decided() -> None:
    for word in (PASSED, FAILED, NO_TRAINER):
        assert verdict(after(at_reveal(), word, word)) == UNDECIDED


def test_words_that_contradict_each_other_decide_nothing() -> None:
    assert verdict(after(at_reveal(), PASSED, PASSED, FAILED, FAILED)) == UNDECIDED


def test_words_wait_for_the_statements_of_the_round_after() -> None:
    reveal = at_reveal()
    assert not reveal.awaits_words(reveal.since)
    assert reveal.awaits_words(reveal.since + 1)
    early = RoundBegan(height=reveal.since + 1, seed=bytes(32), elected=4, quorum=3)
    assert play(reveal, early) == reveal
    said = replace(early, words=((PASSED,),) * 3)
    assert refusal(reveal, said) == f"no words about the challenge are due in round {reveal.since}"


def test_events_that_do_not_count_say_why() -> None:
    assert refusal(FRESH, Committed(TRAINER, bytes(32))) == "slot 4 has nothing to commit to in stage COMMIT"
    assert refusal(FRESH, Committed(VERIFIER, bytes(31))) == "a root has 32 bytes, got 31"
    assert refusal(FRESH, Complained(TRAINER)) == "slot 4 has nothing to complain of in stage COMMIT"
    committed = play(FRESH, ROOT)
    assert refusal(committed, Committed(VERIFIER, b"\x01" * 32)) == "slot 5 has committed before"
    assert refusal(committed, Complained(VERIFIER)) == "slot 5 has complained or committed before"
    reveal = at_reveal()
    assert refusal(reveal, ROOT) == "slot 5 has nothing to commit to in stage REVEAL"
    late = began(reveal, [(PASSED,)] * 3)
    assert refusal(reveal, replace(late, seed=bytes(31))) == "a seed has 32 bytes, got 31"
    assert refusal(reveal, replace(late, height=reveal.since)) == "the stage began with round 12, so round 12 does not end it"
    assert refusal(reveal, replace(late, words=((PASSED, PASSED),))) == "a statement has 1 words about the challenge"
    assert refusal(reveal, replace(late, elected=2)) == "expected a quorum of at least half of the elected, got 3 of 2 and 3"
    closed = play(FRESH, later(FRESH))
    assert refusal(closed, began(closed)) == "the challenge is closed"


def test_a_challenge_is_about_an_earlier_round() -> None:
    with pytest.raises(ValueError, match="later round"):
        replace(FRESH, since=9)


SLOT = st.integers(0, 11)
WORD = st.sampled_from(Word)


@st.composite
def some_events(draw: st.DrawFn) -> list[Event]:
    """Commands of anybody and rounds with any words, three columns wide or one."""
    commands = st.one_of(st.builds(Committed, SLOT, st.sampled_from([bytes(32), b"\x01" * 32, b""])), st.builds(Complained, SLOT))
    rounds = st.builds(
        RoundBegan,
        height=st.integers(8, 24),
        seed=st.sampled_from([bytes(32), b"\x07" * 32]),
        words=st.lists(st.tuples(WORD), max_size=4).map(tuple) | st.lists(st.tuples(WORD, WORD, WORD), max_size=4).map(tuple),
        elected=st.just(4),
        quorum=st.just(3),
        members=st.just(MEMBERS),
    )
    return draw(st.lists(commands | rounds, max_size=60))


@given(some_events())
def test_any_events_in_any_order_keep_the_rules(events: list[Event]) -> None:
    """Strikes only in a verdict, only for who was asked; stages only forwards; closed for ever; commands twice count once."""
    challenge = FRESH
    for event in events:
        following = advance(challenge, event)
        assert following.stage >= challenge.stage
        if not isinstance(event, RoundBegan):
            assert following.stage is challenge.stage
            assert advance(following, event) == following
        if refusal(challenge, event) is not None:
            assert following == challenge
        assert (following.verdict is not None) == (following.stage is Stage.CLOSED)
        if following.verdict is not None:
            asked = {TRAINER, VERIFIER, *challenge.judges}
            assert following.verdict.strikes | following.verdict.paid <= asked
            assert not (following.verdict.strikes | following.verdict.missed) & following.verdict.paid
        challenge = following


@given(st.lists(st.tuples(WORD, st.booleans()), min_size=4, max_size=4), st.sampled_from([PASSED, HIGH]))
def test_one_lying_witness_of_four_accuses_nobody(lies: list[tuple[Word, bool]], truth: Word) -> None:
    """Trainer and verifier are honest; whatever one witness says, and whether it states at all, no strike follows."""
    for word, states in lies:
        words = [truth, truth, truth, *([word] if states else [])]
        assert verdict(after(at_reveal(), *words)) == (Outcome.PASSED, NOBODY, False, False)


@given(st.lists(WORD, min_size=3, max_size=3))
def test_one_lying_witness_of_four_saves_no_cheat(lies: list[Word]) -> None:
    found = at_tie_reveal()
    found = play(found, began(found, [*[(FAILED, FAILED, FAILED)] * 3, tuple(lies)]))
    assert verdict(found) == (Outcome.GUILTY, frozenset({TRAINER}), True, False)


@given(st.lists(st.sampled_from([FAILED, NO_TRAINER]), min_size=3, max_size=4))
def test_a_cheat_that_opens_late_is_silent_or_goes_on_to_the_tie_break(words: list[Word]) -> None:
    """It may choose which honest witnesses have its part in time; passing is not among what it gets."""
    found = after(at_reveal(), *words)
    assert found.stage is Stage.TIE_COMMIT or verdict(found) in (TRAINER_SILENT, UNDECIDED)


def test_stages_follow_each_other() -> None:
    assert all(one < other for one, other in pairwise(Stage))
