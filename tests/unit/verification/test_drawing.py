"""Draws: the same for everybody, without bias, nobody judges itself, and the share is exact in the mean."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import combinations, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.verification.drawing import MOST_WATCHED, Drawn, challenges, chunks, distinct, numbers, tie_breakers

SEEDS = st.binary(min_size=32, max_size=32)
SLOTS = st.sets(st.integers(0, 255), max_size=40)


def seed(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(4, "little")).digest()


@given(SEEDS, st.integers(0, 60), st.integers(1, 2**40))
def test_distinct_numbers_are_distinct_and_in_range(value: bytes, count: int, below: int) -> None:
    drawn = distinct(value, b"x", count=count, below=below)
    assert len(drawn) == len(set(drawn)) == min(count, below)
    assert list(drawn) == sorted(drawn)
    assert all(0 <= number < below for number in drawn)
    assert drawn == distinct(value, b"x", count=count, below=below)


def test_each_set_is_equally_likely() -> None:
    counted = Counter(distinct(seed(number), b"sets", count=2, below=5) for number in range(5000))
    assert set(counted) == set(combinations(range(5), 2))
    assert max(abs(times - 500) for times in counted.values()) < 100  # 4.7 standard deviations; the seeds are fixed


def test_numbers_are_without_bias_where_a_remainder_would_have_one() -> None:
    below = 3 * 2**62  # of u64, a remainder would draw the lowest third twice as often
    low = sum(number < 2**62 for number in islice(numbers(seed(0), b"", below=below), 6000))
    assert 1800 < low < 2200


@pytest.mark.parametrize(("value", "below"), [(bytes(31), 5), (bytes(32), 0), (bytes(32), 2**64 + 1)])
def test_numbers_need_a_seed_and_a_bound(value: bytes, below: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        numbers(value, b"", below=below)


@given(SEEDS, SLOTS, SLOTS, st.integers(0, 100), SLOTS)
def test_nobody_verifies_itself_or_twice(
    value: bytes, shares: set[int], members: set[int], percent: int, watched: set[int]
) -> None:
    drawn = challenges(value, height=7, shares=shares, members=members, percent=percent, watched=watched)
    assert list(drawn) == sorted(drawn)
    assert len({one.trainer for one in drawn}) == len({one.verifier for one in drawn}) == len(drawn)
    assert all(one.trainer in shares and one.verifier in members and one.trainer != one.verifier for one in drawn)
    assert len(drawn) <= -(-len(shares) * percent // 100) + MOST_WATCHED
    if percent == 0:
        assert drawn == ()
    elif len(members) > len(shares):
        assert len(drawn) >= len(shares) * percent // 100
        assert len(watched & shares) > MOST_WATCHED or watched & shares <= {one.trainer for one in drawn}
    assert drawn == challenges(value, height=7, shares=sorted(shares), members=sorted(members), percent=percent, watched=watched)


def test_the_share_is_exact_in_the_mean_and_alike_for_all() -> None:
    drawn = [
        one for number in range(4000) for one in challenges(seed(number), height=1, shares=range(8), members=range(8), percent=10)
    ]
    assert 0.095 < len(drawn) / 32_000 < 0.105
    for role in ("trainer", "verifier"):
        counted = Counter(getattr(one, role) for one in drawn)
        assert max(counted.values()) < 1.25 * min(counted.values())


def test_where_there_is_room_for_few_each_share_is_as_likely() -> None:
    drawn = [challenges(seed(number), height=1, shares=range(8), members=range(8), percent=100, most=3) for number in range(2000)]
    assert {len(one) for one in drawn} == {3}
    counted = Counter(one.trainer for round_ in drawn for one in round_)
    assert max(counted.values()) < 1.25 * min(counted.values())


def test_with_all_shares_challenged_each_of_two_verifies_the_other() -> None:
    assert challenges(bytes(32), height=1, shares={3, 9}, members={3, 9}, percent=100) in (
        (Drawn(3, 9), Drawn(9, 3)),
        (Drawn(3, 9),),
        (Drawn(9, 3),),
    )
    assert challenges(bytes(32), height=1, shares={3}, members={3}, percent=100) == ()
    with pytest.raises(ValueError, match="0 to 100"):
        challenges(bytes(32), height=1, shares={3}, members={3}, percent=101)


@given(SEEDS, st.integers(1, 10**7))
def test_the_second_attempt_opens_other_chunks(value: bytes, total: int) -> None:
    first, second = (chunks(value, height=3, trainer=1, total=total, attempt=attempt) for attempt in (0, 1))
    assert len(first) == len(second) == min(16, total)
    assert first != second or total < 100
    assert first != chunks(value, height=3, trainer=2, total=total) or total < 100


@given(SEEDS, SLOTS)
def test_tie_breakers_are_others(value: bytes, members: set[int]) -> None:
    drawn = tie_breakers(value, challenge=Drawn(1, 2), height=9, members=members)
    others = members - {1, 2}
    assert len(drawn) == len(set(drawn)) == min(3, len(others))
    assert set(drawn) <= others


def test_the_draw_is_what_it_was() -> None:
    """A change of these numbers is a change of the protocol."""
    assert chunks(bytes(range(32)), height=5, trainer=2, total=1000)[:4] == (48, 96, 161, 219)
    assert challenges(bytes(range(32)), height=5, shares=range(10), members=range(10), percent=30) == (
        Drawn(1, 6),
        Drawn(4, 1),
        Drawn(8, 4),
    )
