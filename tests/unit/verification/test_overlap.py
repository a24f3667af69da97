"""Score D: what it is, that copies and old payloads stand out, and that it is fast enough to be free."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.verification.overlap import RECENT_ROUNDS, SUSPICIOUS, Positions, RecentPositions, jaccard, sampled

SETS = st.sets(st.integers(-(2**62), 2**62) | st.integers(0, 30), max_size=40)
PLACES = st.sets(st.integers(0, 2**45) | st.integers(0, 30), max_size=30)


def positions(numbers: set[int] | range) -> Positions:
    return np.array(sorted(numbers), dtype=np.int64)


def nothing() -> RecentPositions[int]:
    return RecentPositions()


def drawn(generator: np.random.Generator) -> Positions:
    return np.sort(generator.choice(100_000, 500, replace=False)).astype(np.int64)


@given(SETS, SETS)
def test_jaccard_is_that_of_sets(one: set[int], other: set[int]) -> None:
    expected = len(one & other) / len(one | other) if one | other else 0.0
    assert jaccard(positions(one), positions(other)) == jaccard(positions(other), positions(one)) == expected


@given(st.lists(st.dictionaries(st.integers(0, 4), PLACES, max_size=4), max_size=4), st.dictionaries(st.integers(0, 4), PLACES))
def test_scores_are_the_largest_jaccard_indices_of_all_others(
    rounds: list[dict[int, set[int]]], payloads: dict[int, set[int]]
) -> None:
    recent = nothing()
    for height, each in enumerate(rounds):
        recent = recent.with_round(height, {member: positions(numbers) for member, numbers in each.items()})
    found = recent.scores(9, {member: positions(numbers) for member, numbers in payloads.items()})
    assert list(found) == list(payloads)
    for member, numbers in payloads.items():
        others = [(height, other, seen) for height, each in enumerate(rounds) for other, seen in each.items()]
        others += [(9, other, seen) for other, seen in payloads.items() if other != member]
        indices = [jaccard(positions(numbers), positions(seen)) for _, _, seen in others]
        best = max(indices, default=0.0)
        assert found[member].score == best
        first = others[indices.index(best)] if best else (None, None)
        assert (found[member].height, found[member].member) == first[:2]


@pytest.mark.parametrize("place", [-1, 2**60])
def test_positions_that_are_no_places_of_a_model_are_refused(place: int) -> None:
    with pytest.raises(ValueError, match="positions must be from 0"):
        nothing().scores(0, {1: positions({place})})


def test_a_copy_and_its_original_stand_out_and_name_each_other() -> None:
    generator = np.random.default_rng(1)
    payloads = {slot: drawn(generator) for slot in range(4)} | {4: drawn(generator)}
    payloads[5] = payloads[4].copy()
    scores = nothing().scores(10, payloads)
    assert [slot for slot, found in scores.items() if found.suspicious] == [4, 5]
    assert (scores[4].member, scores[4].height, scores[4].score) == (5, 10, 1.0)
    assert (scores[5].member, scores[5].height) == (4, 10)
    assert all(scores[slot].score < 0.05 < SUSPICIOUS for slot in range(4))


def test_an_old_payload_of_its_own_or_another_s_is_found_while_it_is_remembered() -> None:
    generator = np.random.default_rng(2)
    recent = nothing()
    old = drawn(generator)
    recent = recent.with_round(0, {2: old})
    for height in range(1, RECENT_ROUNDS):
        recent = recent.with_round(height, {2: drawn(generator)})
    found = recent.scores(RECENT_ROUNDS, {2: old, 3: drawn(generator)})
    assert (found[2].score, found[2].member, found[2].height) == (1.0, 2, 0)
    assert not found[3].suspicious
    recent = recent.with_round(RECENT_ROUNDS, {2: drawn(generator)})
    assert sorted(recent.rounds) == list(range(1, RECENT_ROUNDS + 1))
    assert not recent.scores(RECENT_ROUNDS + 1, {2: old})[2].suspicious


def test_a_round_that_is_there_is_not_compared_with_itself() -> None:
    generator = np.random.default_rng(3)
    payloads = {0: drawn(generator)}
    recent = nothing().with_round(5, payloads)
    assert recent.scores(5, payloads)[0].score == 0.0
    assert recent.scores(6, payloads)[0].score == 1.0


def test_nothing_overlaps_with_nothing() -> None:
    found = nothing().scores(1, {0: positions(set()), 1: positions(set())})
    assert [(one.score, one.member) for one in found.values()] == [(0.0, None), (0.0, None)]


def test_a_sample_of_positions_keeps_the_score() -> None:
    generator = np.random.default_rng(4)
    for kept in (0, 10_000, 30_000):
        numbers = generator.permutation(10_000_000)[:70_000].astype(np.int64)
        one, other = np.sort(numbers[:40_000]), np.sort(np.concatenate([numbers[:kept], numbers[40_000 : 80_000 - kept]]))
        parts = [sampled(positions, part=0.1, salt=12345) for positions in (one, other)]
        assert all(3700 < part.size < 4300 for part in parts[:1])
        assert all((np.diff(part) > 0).all() for part in parts)
        assert abs(jaccard(*parts) - jaccard(one, other)) < 0.02
        assert set(parts[0]) != set(sampled(one, part=0.1, salt=54321))
    assert sampled(one, part=1.0, salt=0) is one
