"""Strikes, watching, ejection and the median of the last scores; how soon a cheat goes."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.verification.challenge import Outcome, Verdict
from psyche_core.verification.chances import ejected_within, ejection_curve, median_round, upper_bound
from psyche_core.verification.standing import Standing, after_verdict, scored, struck


def test_the_second_strike_ejects_and_the_first_is_watched_for_ten_rounds() -> None:
    one = struck(Standing(), 20)
    assert not one.ejected
    assert [height for height in range(15, 40) if one.watched(height)] == list(range(15, 31))
    two = struck(one, 25)
    assert two.ejected
    assert not two.watched(26)


def test_a_score_that_is_a_little_too_high_for_long_is_a_strike() -> None:
    standing = Standing()
    for height, high in enumerate([True, True, False, False, True]):
        assert standing.strikes == 0
        standing = scored(standing, height, high=high)
    assert (standing.strikes, standing.high, standing.watched_before) == (1, (), 15)


@given(st.lists(st.booleans(), max_size=60))
def test_a_strike_needs_three_high_scores_of_the_last_five(scores: list[bool]) -> None:
    standing, since = Standing(), 0
    for height, high in enumerate(scores):
        before = standing
        standing = scored(before, height, high=high)
        last = scores[max(since, height - 4) : height + 1]
        expected = len(last) == 5 and sum(last) >= 3
        assert (standing.strikes > before.strikes) == expected
        assert standing.high == (() if expected else tuple(last))
        since = height + 1 if expected else since


CHECKED, OTHER = 4, 5


@pytest.mark.parametrize(
    ("verdict", "trainer", "other"),
    [
        (Verdict(outcome=Outcome.PASSED, high=True), Standing(high=(True,)), Standing()),
        (Verdict(outcome=Outcome.PASSED), Standing(high=(False,)), Standing()),
        (Verdict(outcome=Outcome.GUILTY, strikes=frozenset({CHECKED})), Standing(1, 31), Standing()),
        (Verdict(outcome=Outcome.FALSE_ACCUSATION, strikes=frozenset({OTHER})), Standing(), Standing(1, 31)),
        (Verdict(outcome=Outcome.UNDECIDED, watch=True), Standing(0, 21), Standing()),
        (Verdict(outcome=Outcome.SILENCE, strikes=frozenset({OTHER}), watch=True), Standing(0, 21), Standing(1, 31)),
    ],
)
def test_what_a_verdict_means_for_trainer_and_others(verdict: Verdict, trainer: Standing, other: Standing) -> None:
    assert after_verdict(Standing(), verdict, 20, slot=CHECKED, trainer=CHECKED, share=15) == trainer
    assert after_verdict(Standing(), verdict, 20, slot=OTHER, trainer=CHECKED, share=15) == other


@pytest.mark.parametrize(
    ("outcome", "share", "strikes"),
    [(Outcome.SILENCE, 19, 1), (Outcome.SILENCE, 20, 2), (Outcome.GUILTY, 19, 2)],
)
def test_one_death_is_one_strike_however_many_shares_it_leaves_unshown(outcome: Outcome, share: int, strikes: int) -> None:
    once = struck(Standing(), 20)
    again = Verdict(outcome=outcome, strikes=frozenset({CHECKED}), requeue=True)
    assert after_verdict(once, again, 22, slot=CHECKED, trainer=CHECKED, share=share).strikes == strikes
    other = after_verdict(once, replace(again, strikes=frozenset({OTHER})), 22, slot=OTHER, trainer=CHECKED, share=share)
    assert other.strikes == 2, "for who judges it is not about its own share"


@pytest.mark.parametrize(("rate", "strike"), [(0.1, 0.99), (0.3, 0.5), (1.0, 0.2)])
def test_chances_are_those_of_members_that_are_played(rate: float, strike: float) -> None:
    generator = random.Random(1)
    ejected = 0
    for _ in range(4000):
        standing = Standing()
        for height in range(40):
            if (standing.watched(height) or generator.random() < rate) and generator.random() < strike:
                standing = struck(standing, height)
            if standing.ejected:
                ejected += 1
                break
    assert ejected / 4000 == pytest.approx(ejected_within(40, rate=rate, strike=strike), abs=0.025)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 60), st.integers(0, 12))
def test_chances_grow_with_rounds_and_stay_chances(rate: float, strike: float, rounds: int, watched: int) -> None:
    curve = ejection_curve(rounds, rate=rate, strike=strike, watched_rounds=watched)
    assert len(curve) == rounds + 1
    assert all(one <= other + 1e-12 for one, other in itertools.pairwise(curve))
    assert -1e-12 <= curve[-1] <= 1 + 1e-12


def test_a_full_cheat_at_ten_per_cent_is_gone_in_a_hundred_rounds() -> None:
    assert ejected_within(100, rate=0.1, strike=0.99) > 0.9999
    assert median_round(rate=0.1, strike=0.99) == 8
    assert median_round(rate=0.0, strike=1.0, limit=100) is None
    with pytest.raises(ValueError, match="probabilities"):
        ejected_within(10, rate=1.1, strike=0.5)


def test_the_upper_bound_is_that_of_clopper_and_pearson() -> None:
    assert upper_bound(0, 4240) == pytest.approx(1 - 0.05 ** (1 / 4240), abs=1e-8)
    assert upper_bound(2, 50) == pytest.approx(0.12061, abs=1e-4)
    assert upper_bound(0, 0) == upper_bound(3, 3) == 1.0
    assert 0.0105 < upper_bound(1000, 100_000) < 0.0106
