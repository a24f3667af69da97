"""One challenge: every way to its verdict; whatever strangers and a minority of witnesses say, nobody honest gets a strike."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.verification.challenge import (
    Arrived,
    Challenge,
    Checked,
    Committed,
    Event,
    Outcome,
    Stage,
    StageEnded,
    advance,
    refusal,
)
from psyche_core.verification.drawing import Drawn

TRAINER, VERIFIER = 4, 5
WITNESSES = frozenset(range(4))
MEMBERS = frozenset(range(10))
FRESH = Challenge(height=9, drawn=Drawn(TRAINER, VERIFIER), witnesses=WITNESSES, quorum=3, total_chunks=1000)


def ended(number: int, members: frozenset[int] = MEMBERS) -> StageEnded:
    return StageEnded(bytes([number]) * 32, members)


def play(challenge: Challenge, *events: Event) -> Challenge:
    for event in events:
        challenge = advance(challenge, event)
    return challenge


def given_by(*senders: int) -> list[Event]:
    """Three of the four witnesses have what these must give."""
    return [Arrived(witness, sender) for sender in senders for witness in range(3)]


def checked(judge: int, passed: bool, witnesses: int = 3) -> list[Event]:
    return [Checked(witness, judge, passed) for witness in range(witnesses)]


def at_check() -> Challenge:
    found = play(FRESH, *given_by(TRAINER), ended(1), Committed(VERIFIER, bytes(32)), *given_by(VERIFIER), ended(2))
    assert found.stage is Stage.REVEAL
    assert len(found.opened) == 16
    return play(found, *given_by(TRAINER, VERIFIER), ended(3))


def at_tie_check() -> Challenge:
    found = play(at_check(), *checked(VERIFIER, False), ended(4))
    assert found.stage is Stage.TIE_COMMIT
    judges = found.judges
    assert len(judges) == 3
    commitments = [Committed(judge, bytes([judge]) * 32) for judge in judges]
    first = found.opened
    found = play(found, *commitments, *given_by(*judges), ended(5))
    assert found.opened != first
    found = play(found, *given_by(TRAINER, *judges), ended(6))
    assert found.stage is Stage.TIE_CHECK
    return found


def verdict(challenge: Challenge) -> tuple[Outcome, frozenset[int], bool]:
    assert challenge.verdict is not None
    assert challenge.stage is Stage.CLOSED
    return challenge.verdict.outcome, challenge.verdict.strikes, challenge.verdict.requeue


NOBODY: frozenset[int] = frozenset()


def test_who_trained_passes() -> None:
    assert verdict(play(at_check(), *checked(VERIFIER, True), ended(4))) == (Outcome.PASSED, NOBODY, False)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((False, False, False), (Outcome.GUILTY, frozenset({TRAINER}), True)),
        ((False, False, True), (Outcome.GUILTY, frozenset({TRAINER}), True)),
        ((True, True, False), (Outcome.FALSE_ACCUSATION, frozenset({VERIFIER}), False)),
        ((True, False, None), (Outcome.UNDECIDED, NOBODY, False)),
        ((False, None, None), (Outcome.UNDECIDED, NOBODY, False)),
    ],
)
def test_two_tie_breakers_that_agree_decide(
    words: tuple[bool | None, ...], expected: tuple[Outcome, frozenset[int], bool]
) -> None:
    found = at_tie_check()
    said = zip(found.judges, words, strict=True)
    events = [event for judge, word in said if word is not None for event in checked(judge, word)]
    assert verdict(play(found, *events, ended(7))) == expected


def test_silence_is_a_strike_at_each_stage() -> None:
    silent = Outcome.SILENCE
    assert verdict(play(FRESH, ended(1))) == (silent, frozenset({TRAINER}), True)
    commit = play(FRESH, *given_by(TRAINER), ended(1))
    assert verdict(play(commit, ended(2))) == (silent, frozenset({VERIFIER}), False)
    assert verdict(play(commit, Committed(VERIFIER, bytes(32)), ended(2))) == (silent, frozenset({VERIFIER}), False)
    assert verdict(play(commit, *given_by(VERIFIER), ended(2))) == (silent, frozenset({VERIFIER}), False), "without a root"
    reveal = play(commit, Committed(VERIFIER, bytes(32)), *given_by(VERIFIER), ended(2))
    assert verdict(play(reveal, *given_by(VERIFIER), ended(3))) == (silent, frozenset({TRAINER}), True)
    assert verdict(play(reveal, *given_by(TRAINER), ended(3))) == (silent, frozenset({VERIFIER}), False)
    assert verdict(play(reveal, ended(3))) == (silent, frozenset({TRAINER, VERIFIER}), True)


def test_who_gives_to_a_minority_of_witnesses_has_given_nothing() -> None:
    few = [Arrived(witness, TRAINER) for witness in range(2)]
    assert verdict(play(FRESH, *few, *few, ended(1))) == (Outcome.SILENCE, frozenset({TRAINER}), True)


def test_tie_breakers_that_are_silent_get_a_strike_and_the_others_decide() -> None:
    found = play(at_check(), *checked(VERIFIER, False), ended(4))
    first, second, third = found.judges
    roots = [Committed(judge, bytes(32)) for judge in (first, second)]
    found = play(found, *roots, *given_by(first, second), ended(5))
    assert found.judges == (first, second)
    found = play(found, *given_by(TRAINER, first, second), ended(6), *checked(first, False), *checked(second, False), ended(7))
    assert verdict(found) == (Outcome.GUILTY, frozenset({TRAINER, third}), True)


def test_a_trainer_that_is_silent_in_the_tie_break_gets_the_strike() -> None:
    found = play(at_check(), *checked(VERIFIER, False), ended(4))
    found = play(found, *[Committed(judge, bytes(32)) for judge in found.judges], *given_by(*found.judges), ended(5))
    assert verdict(play(found, *given_by(*found.judges), ended(6))) == (Outcome.SILENCE, frozenset({TRAINER}), True)


@pytest.mark.parametrize("members", [frozenset({TRAINER, VERIFIER}), frozenset({0, TRAINER, VERIFIER})])
def test_without_two_others_nobody_is_convicted(members: frozenset[int]) -> None:
    assert verdict(play(at_check(), *checked(VERIFIER, False), ended(4, members))) == (Outcome.UNDECIDED, NOBODY, False)


def test_without_a_quorum_of_witnesses_nothing_is_decided() -> None:
    assert verdict(play(at_check(), *checked(VERIFIER, False, witnesses=2), ended(4))) == (Outcome.UNDECIDED, NOBODY, False)
    assert verdict(play(at_check(), *checked(VERIFIER, True, witnesses=2), ended(4))) == (Outcome.UNDECIDED, NOBODY, False)


def test_events_that_do_not_count_say_why() -> None:
    assert refusal(FRESH, Arrived(7, TRAINER)) == "slot 7 is no witness"
    assert refusal(FRESH, Arrived(0, VERIFIER)) == "nothing is expected of slot 5 in stage SIGNS"
    assert refusal(FRESH, Committed(VERIFIER, bytes(32))) == "slot 5 has nothing to commit to in stage SIGNS"
    commit = play(FRESH, *given_by(TRAINER), ended(1))
    assert refusal(commit, Committed(VERIFIER, bytes(31))) == "a root has 32 bytes, got 31"
    committed = play(commit, Committed(VERIFIER, bytes(32)))
    assert refusal(committed, Committed(VERIFIER, b"\x01" * 32)) == "slot 5 has committed before"
    check = at_check()
    assert refusal(check, Checked(0, TRAINER, True)) == "slot 4 judges nothing in stage CHECK"
    assert refusal(check, Checked(9, VERIFIER, True)) == "slot 9 is no witness"
    once = play(check, Checked(0, VERIFIER, True))
    assert refusal(once, Checked(0, VERIFIER, False)) == "witness 0 has said so or otherwise before"
    assert refusal(check, StageEnded(bytes(31))) == "a seed has 32 bytes, got 31"
    assert refusal(play(FRESH, ended(1)), ended(2)) == "the challenge is closed"


@pytest.mark.parametrize("change", [{"quorum": 2}, {"quorum": 5}, {"total_chunks": 0}, {"witnesses": frozenset()}])
def test_a_challenge_has_a_quorum_of_more_than_half(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="quorum"):
        replace(FRESH, **change)  # type: ignore[arg-type]


SLOT = st.integers(0, 11)
EVENTS = st.one_of(
    st.builds(Committed, SLOT, st.sampled_from([bytes(32), b"\x01" * 32, b""])),
    st.builds(Arrived, SLOT, SLOT),
    st.builds(Checked, SLOT, SLOT, st.booleans()),
    st.builds(StageEnded, st.sampled_from([bytes(32), b"\x07" * 32]), st.just(MEMBERS)),
)


@given(st.lists(EVENTS, max_size=120))
def test_any_events_in_any_order_keep_the_rules(events: list[Event]) -> None:
    """Strikes only in a verdict, only for who was asked; stages only forwards; once closed for ever; events twice count once."""
    challenge = FRESH
    for event in events:
        after = advance(challenge, event)
        assert after.stage - challenge.stage in ((0,) if not isinstance(event, StageEnded) else (0, *range(1, 8)))
        if isinstance(event, Arrived | Committed | Checked):
            assert advance(after, event) == after
        if refusal(challenge, event) is not None:
            assert after == challenge
        assert (after.verdict is not None) == (after.stage is Stage.CLOSED)
        if after.verdict is not None:
            allowed = {TRAINER, VERIFIER, *challenge.judges}
            assert after.verdict.strikes <= allowed
        challenge = after


ONE_LIAR = st.lists(
    st.one_of(st.builds(Arrived, st.just(3), SLOT), st.builds(Checked, st.just(3), SLOT, st.booleans())), max_size=20
)


@given(ONE_LIAR, ONE_LIAR, ONE_LIAR, ONE_LIAR)
def test_one_lying_witness_of_four_changes_no_verdict(
    first: list[Event], second: list[Event], third: list[Event], fourth: list[Event]
) -> None:
    found = play(FRESH, *first, *given_by(TRAINER), ended(1), *second, Committed(VERIFIER, bytes(32)), *given_by(VERIFIER))
    found = play(found, ended(2), *third, *given_by(TRAINER, VERIFIER), ended(3), *fourth, *checked(VERIFIER, True), ended(4))
    assert verdict(found) == (Outcome.PASSED, NOBODY, False)
