"""Score T: its bounds and values, rounding, numbers that are none, the payload's check, and the rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.verification.replay import (
    NOTHING_OPENED,
    Rule,
    chunk_scores,
    claimed,
    largest_delta,
    mean_score,
    payload_agreement,
    within,
)

ANY = st.floats(width=32, allow_nan=True, allow_infinity=True)
FINITE = st.floats(-1e3, 1e3, width=32)


def rows(kind: st.SearchStrategy[float]) -> st.SearchStrategy[np.ndarray]:
    return st.lists(kind, min_size=12, max_size=12).map(lambda numbers: np.array(numbers, dtype=np.float32).reshape(3, 4))


@given(rows(ANY), rows(ANY), rows(ANY))
def test_whatever_a_stranger_opens_scores_from_0_to_2(one: np.ndarray, other: np.ndarray, before: np.ndarray) -> None:
    scores = chunk_scores(one, other, before=before)
    assert scores.shape == (3,)
    assert ((scores >= 0) & (scores <= 2)).all()
    bad = ~(np.isfinite(one) & np.isfinite(other) & np.isfinite(before)).all(axis=1)
    assert (scores[bad] == 2).all()


@given(rows(FINITE), rows(FINITE), st.floats(-10, 10))
def test_the_score_is_symmetric_and_keeps_its_value_at_any_scale(one: np.ndarray, other: np.ndarray, power: float) -> None:
    none = np.zeros((3, 4))
    scores = chunk_scores(one, other, before=none)
    assert np.allclose(scores, chunk_scores(other, one, before=none))
    scale = 2.0**power
    assert np.allclose(scores, chunk_scores(one * scale, other * scale, before=none), atol=1e-6)
    assert (chunk_scores(one, one, before=none) == 0).all()


def test_unrelated_is_1_opposite_is_2_nothing_is_1() -> None:
    one, other, zero = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]), np.zeros((1, 2))
    assert chunk_scores(one, other, before=zero) == pytest.approx([1.0])
    assert chunk_scores(one, -one, before=zero) == pytest.approx([2.0])
    assert chunk_scores(one, zero, before=zero) == pytest.approx([1.0])
    assert chunk_scores(zero, zero, before=zero) == pytest.approx([0.0])


def test_rounding_of_delta_where_there_is_no_gradient_does_not_count() -> None:
    """float32 keeps delta to 6e-8 of itself: without the third term a chunk without gradient would score 1."""
    before = np.full((1, 8), 3.0, dtype=np.float32)
    rounding = np.full((1, 8), 1e-7)
    assert chunk_scores(rounding, np.zeros((1, 8)), before=before) < 1e-5
    assert chunk_scores(rounding, np.zeros((1, 8)), before=before, floor=0.0) == pytest.approx([1.0])
    lie = np.full((1, 8), 3e-3)  # a thousandth of delta
    assert chunk_scores(lie, np.zeros((1, 8)), before=before) > 0.9


def test_rounding_counts_up_to_a_limit_however_large_delta_is() -> None:
    gradient = np.full((1, 4), 1e-3)
    for size in (1.0, 1e6, 1e30):
        huge = np.full((1, 4), size)
        assert chunk_scores(np.zeros((1, 4)), gradient, before=huge, most=1.0) > 0.9
    assert chunk_scores(np.zeros((1, 4)), gradient, before=huge) < 1e-9, "without the limit anything passes"


@given(rows(FINITE), rows(FINITE), rows(FINITE))
@settings(max_examples=50)
def test_what_was_added_is_found_again(before: np.ndarray, taken: np.ndarray, added: np.ndarray) -> None:
    after = (0.999 * (before.astype(np.float64) - taken) + added).astype(np.float32)
    assert np.allclose(claimed(after, before, taken, decay=0.999), added, atol=1e-3)


@given(st.integers(1, 40), st.floats(0.0, 1.0), st.integers(0, 1000))
def test_no_honest_delta_is_above_the_bound(rounds: int, decay: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    delta, back = np.zeros(16), np.zeros(16)
    for _ in range(rounds):
        gradient = generator.normal(size=16)
        taken = np.where(generator.random(16) < 0.3, delta, 0.0)  # a projection
        delta = decay * (delta - taken) + 0.01 * gradient / max(1.0, float(np.linalg.norm(gradient)))
        back = decay * taken
    bound = largest_delta(rounds, rate=0.01, clip=1.0, decay=decay)
    assert within(delta[None], bound)
    assert within((delta + back)[None], bound), "also when the newest result is not accepted"


def test_what_is_above_the_bound_or_no_number_is_not_within() -> None:
    assert largest_delta(3, rate=0.5, clip=2.0, decay=0.5) == pytest.approx(1.75)
    assert largest_delta(3, rate=0.5, clip=2.0, decay=1.0) == 3.0
    assert within(np.array([[3.0, 4.0]]), 5.0)
    for wrong in ([[3.0, 4.2]], [[math.nan, 0.0]], [[math.inf, 0.0]]):
        assert not within(np.array(wrong), 5.0)


def test_the_mean_is_over_chunks_of_all_sizes() -> None:
    assert mean_score([np.array([0.0, 1.0]), np.array([2.0])]) == 1.0
    with pytest.raises(ValueError, match="at least one"):
        mean_score([])


def payload(coefficients: np.ndarray, topk: int) -> np.ndarray:
    sent = np.zeros_like(coefficients)
    best = np.argsort(-np.abs(coefficients), axis=1)[:, :topk]
    np.put_along_axis(sent, best, np.sign(np.take_along_axis(coefficients, best, axis=1)), axis=1)
    return sent


@given(st.integers(0, 2**32 - 1), st.integers(1, 16))
def test_the_payload_of_a_delta_agrees_with_it_and_others_do_not(seed: int, topk: int) -> None:
    generator = np.random.default_rng(seed)
    own, other = generator.normal(size=(2, 5, 64))
    rule = Rule()
    found = payload_agreement(own, payload(own, topk), topk=topk)
    assert (found.jaccard, found.wrong_signs, found.passes(rule)) == (1.0, 0, True)
    assert not payload_agreement(own, payload(other, topk), topk=topk).passes(rule)
    assert payload_agreement(own, -payload(own, topk), topk=topk).wrong_signs == 5 * topk
    assert not payload_agreement(own, np.zeros_like(own), topk=topk).passes(rule), "who sends nothing keeps what it has"
    assert not payload_agreement(own, payload(own, topk + 1), topk=topk).passes(rule), "more than one may send"


@given(st.integers(0, 1000))
def test_the_agreement_of_several_sizes_is_that_of_all_chunks(seed: int) -> None:
    generator = np.random.default_rng(seed)
    own, other = generator.normal(size=(2, 6, 16))
    parts = [payload_agreement(own[rows], payload(other, 4)[rows], topk=4) for rows in (slice(0, 2), slice(2, 6))]
    assert sum(parts, NOTHING_OPENED) == payload_agreement(own, payload(other, 4), topk=4)
    assert payload_agreement(own, payload(own, 4)[:3], topk=4).jaccard == 0.0, "not of these chunks"


def test_noise_may_be_sent_or_not_and_zeros_are_nothing() -> None:
    own = np.array([[1.0, 1e-7, 0.0, 0.0]])
    for sent in ([[1.0, 1.0, 0.0, 0.0]], [[1.0, 0.0, 0.0, 0.0]], [[1.0, -1.0, 0.0, 0.0]]):
        assert payload_agreement(own, np.array(sent), topk=2).passes(Rule())
    zeros = np.zeros((2, 4))
    assert payload_agreement(zeros, zeros, topk=2).jaccard == 1.0
    assert not payload_agreement(np.full((1, 4), math.nan), np.ones((1, 4)), topk=4).passes(Rule())


def test_the_rules_at_their_edges() -> None:
    rule = Rule()
    assert rule.passes(0.05)
    assert not rule.passes(0.0501)
    assert not rule.passes(math.nan)
    assert not rule.too_high_for_long([0.9, 0.9, 0.9, 0.9])
    assert rule.too_high_for_long([0.0, 0.0, 0.006, 0.006, 0.006])
    assert not rule.too_high_for_long([0.006, 0.006, 0.006, 0.004, 0.004, 0.004])
