"""The seeded shuffle against the reference's vectors and the published ChaCha8 key stream."""

import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from psyche_core.data.ordering.chacha import chacha8_words, uniform_below
from psyche_core.data.ordering.data_shuffle import MAX_SEQUENCES, Shuffle, backward_order, shuffle_seed, shuffled_order
from psyche_core.errors import DataError

SEEDS = {"A": bytes(range(1, 33)), "B": bytes([42] * 32), "Z": bytes(32)}

# n, seed, first items, polynomial hash h <- h * 1000003 + x mod 2**64 of the whole order
VECTORS = [
    (2, "A", [0, 1], 1),
    (2, "B", [0, 1], 1),
    (2, "Z", [1, 0], 1000003),
    (3, "A", [0, 1, 2], 1000005),
    (3, "B", [0, 1, 2], 1000005),
    (3, "Z", [1, 2, 0], 1000008000015),
    (4, "A", [3, 1, 2, 0], 3000028000089000096),
    (4, "B", [3, 1, 2, 0], 3000028000089000096),
    (4, "Z", [3, 2, 0, 1], 3000029000093000100),
    (14, "A", [3, 1, 10, 6, 7, 9, 8, 4, 11, 12, 13, 5, 0, 2], 14843833644932081043),
    (14, "B", [3, 1, 8, 11, 5, 6, 0, 10, 2, 13, 12, 4, 9, 7], 17083926155210039041),
    (14, "Z", [3, 8, 11, 7, 13, 0, 5, 9, 2, 4, 6, 10, 12, 1], 18113807928507111827),
    (20, "A", [18, 1, 17, 6, 15, 9, 8, 14, 16, 12, 19, 5, 0, 2, 4, 7, 11, 10, 3, 13], 14315378964236403996),
    (20, "B", [3, 1, 8, 14, 5, 17, 0, 10, 2, 13, 15, 4, 16, 7, 19, 12, 18, 6, 9, 11], 7465155494283668956),
    (20, "Z", [3, 8, 11, 16, 13, 0, 5, 19, 2, 14, 6, 10, 12, 15, 4, 18, 17, 7, 1, 9], 10091506426543851610),
    (1000, "A", [581, 162, 361, 287, 15, 801], 15063456332357911794),
    (1000, "B", [971, 571, 444, 123, 157, 290], 16495553430837215864),
    (1000, "Z", [948, 861, 300, 310, 914, 923], 18110973058938376014),
]
LARGE = [
    (100_000, "A", [581, 95762, 1993, 96683, 17759, 18272], 8111106824931068632),
    (100_000, "B", [13844, 36467, 22780, 88268, 76908, 59389], 14345765936969537018),
    (100_000, "Z", [48850, 53153, 7339, 76144, 22053, 59274], 1040313778561763800),
]


def polynomial_hash(items: Iterable[int]) -> int:
    value = 0
    for item in items:
        value = (value * 1000003 + item) % 2**64
    return value


def check(count: int, seed: str, first: list[int], expected: int) -> None:
    order = shuffled_order(count, SEEDS[seed])

    assert list(order[: len(first)]) == first
    assert polynomial_hash(order) == expected


@pytest.mark.parametrize(("count", "seed", "first", "expected"), VECTORS)
def test_order_equals_the_reference(count: int, seed: str, first: list[int], expected: int) -> None:
    check(count, seed, first, expected)


@pytest.mark.parametrize(("count", "seed", "first", "expected"), LARGE)
def test_order_of_a_hundred_thousand_equals_the_reference(count: int, seed: str, first: list[int], expected: int) -> None:
    check(count, seed, first, expected)


# Hash of the plain draws x in 0..=i for i = n - 1 down to 1, with a fresh generator.
PLAIN_DRAWS = [
    (2, "A", 1),
    (3, "A", 2000006),
    (3, "Z", 1),
    (4, "B", 1000006000010),
    (14, "A", 15004661963370034871),
    (20, "Z", 7437129549277999344),
    (1000, "A", 7683697958898793627),
    (1000, "B", 11054093411324500024),
    (100_000, "A", 13939202016078998004),
    (100_000, "Z", 3014377482348954804),
]


@pytest.mark.parametrize(("count", "seed", "expected"), PLAIN_DRAWS)
def test_plain_draws_equal_the_reference(count: int, seed: str, expected: int) -> None:
    words = chacha8_words(SEEDS[seed])

    assert polynomial_hash(uniform_below(bound, words) for bound in range(count, 1, -1)) == expected


@pytest.mark.parametrize("fast_from", [0, 1_000_000])
def test_backward_order_swaps_by_plain_draws(fast_from: int) -> None:
    words = chacha8_words(SEEDS["B"])
    expected = list(range(3000))
    for place in reversed(range(1, 3000)):
        other = uniform_below(place + 1, words)
        expected[place], expected[other] = expected[other], expected[place]

    assert list(backward_order(3000, SEEDS["B"], fast_from=fast_from)) == expected


@pytest.mark.parametrize("order", [shuffled_order, backward_order])
@pytest.mark.parametrize("count", [0, 1, 2, 13, 65_534, 65_535, 65_536, 65_537, 65_538, 65_539, 300_000])
def test_numpy_changes_no_order(order: Callable[..., Sequence[int]], count: int) -> None:
    assert order(count, SEEDS["A"], fast_from=0) == order(count, SEEDS["A"], fast_from=1_000_000)


@settings(deadline=None)
@given(st.integers(0, 3000), st.binary(min_size=32, max_size=32))
def test_numpy_changes_no_order_of_any_seed(count: int, seed: bytes) -> None:
    assert backward_order(count, seed, fast_from=0) == backward_order(count, seed, fast_from=1_000_000)


def test_draws_that_need_their_correction_word_are_the_same_with_numpy() -> None:
    fast_draws = pytest.importorskip("psyche_core.data.ordering.fast_draws")
    bounds = range(2**31 + 7, 2**31 + 7 + 2000)  # every second draw needs it
    words = chacha8_words(SEEDS["A"])

    stretches = list(fast_draws.uniform_stretches(bounds, fast_draws.FastWords(SEEDS["A"])))

    assert [draw for stretch in stretches for draw in stretch.tolist()] == [uniform_below(bound, words) for bound in bounds]
    assert len(stretches) > 500


def test_without_numpy_large_orders_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = shuffled_order(5000, SEEDS["A"])
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.delitem(sys.modules, "psyche_core.data.ordering.fast_draws", raising=False)

    assert shuffled_order(5000, SEEDS["A"], fast_from=0) == expected


def test_key_stream_equals_the_published_chacha8_vector() -> None:
    stream = b"".join(word.to_bytes(4, "little") for word in islice(chacha8_words(bytes(32)), 4))

    assert stream == bytes.fromhex("3e00ef2f895f40d67f5bb8e81f09a5a1")


def test_number_of_lanes_changes_no_word() -> None:
    seed = SEEDS["A"]

    wide, narrow = (list(islice(chacha8_words(seed, lanes=lanes), 1000)) for lanes in (1024, 3))

    assert wide == narrow
    assert len(set(wide)) > 990


@given(st.integers(0, 500), st.binary(min_size=32, max_size=32))
def test_every_order_is_a_permutation(count: int, seed: bytes) -> None:
    assert sorted(shuffled_order(count, seed)) == list(range(count))


def test_a_short_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes, got 5"):
        shuffled_order(3, b"short")


def test_too_many_sequences_are_refused() -> None:
    with pytest.raises(DataError, match="cannot be shuffled"):
        shuffled_order(MAX_SEQUENCES + 1, bytes(32))


def test_setting_spells_the_reference_way() -> None:
    adapter = TypeAdapter(Shuffle)

    assert shuffle_seed(adapter.validate_python("DontShuffle")) is None
    assert shuffle_seed(adapter.validate_python({"Seeded": [7] * 32})) == bytes([7] * 32)
    for wrong in ({"Seeded": [7] * 31}, {"Seeded": [256] * 32}, {"seeded": [7] * 32}, "Shuffle"):
        with pytest.raises(ValidationError):
            adapter.validate_python(wrong)
