"""Mixtures: the order of places against an independent model of the reference's, and a provider over real files."""

import random
from array import array
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.builtin.local_data import LocalData
from psyche_core.data.mixture_data import MixtureData
from psyche_core.data.ordering import mixture
from psyche_core.data.ordering.chacha import chacha8_words, uniform_below
from psyche_core.data.ordering.mixture import MixtureIndex, normalised_weights
from psyche_core.errors import DataError
from psyche_core.interfaces.data import DataProvider, Samples
from psyche_core.testing.data import DataConformance
from psyche_core.types import BatchId

SEED = bytes(range(1, 33))


def reference_order(lengths: Sequence[int], weights: Sequence[float], seed: bytes | None = None) -> list[tuple[int, int]]:
    """The mixture as the reference describes it, with its two whole arrays."""
    total = sum(weights)
    shares = [weight / total for weight in weights]
    drawn = [0] * len(lengths)
    order = []
    for place in range(sum(lengths)):
        best, chosen = -float("inf"), -1
        for source, share in enumerate(shares):
            error = share * max(place, 1) - drawn[source]
            if lengths[source] and error > best:
                best, chosen = error, source
        order.append((chosen, drawn[chosen] if drawn[chosen] < lengths[chosen] else drawn[chosen] % lengths[chosen]))
        drawn[chosen] += 1

    if seed is not None:
        words = chacha8_words(seed)
        for place in reversed(range(1, len(order))):
            other = uniform_below(place + 1, words)
            order[place], order[other] = order[other], order[place]
    return order


LENGTHS = st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(any)


@settings(max_examples=200)
@given(st.data(), LENGTHS, st.none() | st.binary(min_size=32, max_size=32), st.integers(1, 40))
def test_order_equals_the_model_of_the_reference(data: st.DataObject, lengths: list[int], seed: bytes | None, block: int) -> None:
    weights = data.draw(
        st.lists(st.floats(0.001, 1000) | st.integers(1, 5).map(float), min_size=len(lengths), max_size=len(lengths))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixture, "BLOCK", block)
        index = MixtureIndex(lengths, weights, shuffle_seed=seed)

        assert [index.locate(place) for place in range(len(index))] == reference_order(lengths, weights, seed)


@given(LENGTHS)
def test_weights_by_length_draw_every_sample_once(lengths: list[int]) -> None:
    index = MixtureIndex(lengths)

    places = [index.locate(place) for place in range(len(index))]

    assert places == reference_order(lengths, lengths)
    assert sorted(places) == [(source, sample) for source, length in enumerate(lengths) for sample in range(length)]


@given(LENGTHS, st.none() | st.binary(min_size=32, max_size=32), st.integers(0, 2**63))
def test_a_place_past_the_last_wraps_around(lengths: list[int], seed: bytes | None, place: int) -> None:
    index = MixtureIndex(lengths, shuffle_seed=seed)

    assert index.locate(place) == index.locate(place % sum(lengths))


def test_a_known_order() -> None:
    index = MixtureIndex([2, 4], [3.0, 1.0])

    # errors 3/4 k - a, 1/4 k - b: (.75, .25) (-.25, .25) (.5, -.5) (.25, -.25) (0, 0 -> first) (-.25, .25)
    assert [index.locate(place) for place in range(6)] == [(0, 0), (1, 0), (0, 1), (0, 0), (0, 1), (1, 1)]


def test_shares_are_kept_over_many_blocks() -> None:
    random_numbers = random.Random(5)
    lengths = [40_000, 3, 20_000, 0, 9_000]
    weights = [0.5, 0.1, 0.25, 0.05, 0.1]
    index = MixtureIndex(lengths, weights, shuffle_seed=SEED)

    places = random_numbers.sample(range(len(index)), 300)
    expected = reference_order(lengths, weights, SEED)

    assert [index.locate(place) for place in places] == [expected[place] for place in places]
    shares = [sum(source == number for source, _ in expected) / len(expected) for number in range(5)]
    assert shares[3] == 0
    assert shares[1] == pytest.approx(0.1 / 0.95, abs=0.06)


def test_more_than_256_sources_are_told_apart() -> None:
    index = MixtureIndex([1] * 300)

    assert sorted(index.locate(place) for place in range(300)) == [(source, 0) for source in range(300)]


def test_order_takes_five_bytes_a_sample() -> None:
    index = MixtureIndex([30_000, 20_000], [1, 3], shuffle_seed=SEED)

    assert isinstance(index._sources, bytearray)
    assert isinstance(index._order, array)
    assert len(index._sources) + len(index._order) * index._order.itemsize + len(index._drawn) * 4 < 5.1 * 50_000


@pytest.mark.parametrize(
    ("lengths", "weights", "sentence"),
    [
        ([], None, "got 0 in 0 sources"),
        ([0, 0], [1, 2], "got 0 in 2 sources"),
        ([2**32 - 1, 5], None, "needs 1 to 4294967294 samples"),
        ([1, 2], [1], "a weight for each of its 2 sources, got 1"),
        ([1, 2], [1, 0], "must be positive numbers"),
        ([1, 2], [1, -1], "must be positive numbers"),
        ([1, 2], [1, float("nan")], "must be positive numbers"),
        ([1, 2], [1, float("inf")], "must be positive numbers"),
        ([1] * 65_537, None, "at most 65536 sources"),
    ],
)
def test_what_cannot_be_mixed_is_refused(lengths: list[int], weights: list[float], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        MixtureIndex(lengths, weights)


def test_weights_are_added_in_their_order() -> None:
    weights = [0.1] * 10

    assert normalised_weights([1] * 10, weights)[0] == 0.1 / 0.9999999999999999


class Mixture(DataConformance):
    weights: list[float] | None = None
    seed: bytes | None = None

    def provider(self, source: Path) -> DataProvider:
        files = [
            LocalData(path, sequence_length=self.sequence_length, token_size=self.token_size) for path in sorted(source.iterdir())
        ]
        return MixtureData(files, weights=self.weights, seed=self.seed)

    def expected(self) -> list[bytes]:
        size = self.sequence_length * self.token_size
        contents = self.file_tokens()
        order = reference_order(self.file_sequences, self.weights or self.file_sequences, self.seed)
        return [contents[source][sample * size : (sample + 1) * size] for source, sample in order]


class TestByLength(Mixture):
    pass


class TestWeighted(Mixture):
    weights = [0.2, 0.3, 0.5]  # noqa: RUF012  # never changed
    seed = SEED
    token_size = 4


class Fixed(DataProvider):
    """Rows that are given, with whatever columns; notes what it was asked for."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self.asked: list[list[BatchId]] = []
        self.closed = 0

    @property
    def sequence_length(self) -> int:
        return self._samples.sequence_length

    @property
    def num_sequences(self) -> int:
        return self._samples.count

    async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
        from psyche_core.data.sample_rows import picked

        self.asked.append(list(batches))
        return picked({0: self._samples}, [(0, row) for batch in batches for row in range(batch.first, batch.last + 1)])

    async def aclose(self) -> None:
        self.closed += 1


def little(size: int, *values: int) -> bytes:
    return b"".join(value.to_bytes(size, "little", signed=value < 0) for value in values)


async def test_forms_that_differ_become_the_richer_one() -> None:
    plain = Fixed(Samples(little(2, 1, 2, 3, 65535), 2, 2, 2))
    rich = Fixed(
        Samples(
            little(4, 70_000, 5, 6, 7),
            2,
            2,
            4,
            labels=little(4, -100, 5, 6, -100),
            position_ids=little(4, 0, 0, 0, 1),
            sequence_lengths=((1, 1), (2,)),
        )
    )
    async with MixtureData([plain, rich]) as provider:
        samples = await provider.read([BatchId(0, 3)], timeout=5.0)

    assert samples == Samples(  # places: plain 0, rich 0, plain 1, rich 1
        little(4, 1, 2, 70_000, 5, 3, 65535, 6, 7),
        4,
        2,
        4,
        labels=little(4, 1, 2, -100, 5, 3, 65535, 6, -100),
        position_ids=little(4, 0, 1, 0, 0, 0, 1, 0, 1),
        sequence_lengths=((2,), (1, 1), (2,), (2,)),
    )


async def test_a_read_asks_every_source_once_and_for_nothing_twice() -> None:
    one, other = (Fixed(Samples(little(2, *range(4)), 4, 1, 2)) for _ in range(2))
    async with MixtureData([one, other]) as provider:
        await provider.read([BatchId(0, 7), BatchId(0, 7)], timeout=5.0)
        await provider.read([BatchId(2, 2)], timeout=5.0)

    assert one.asked == [[BatchId(0, 3)], [BatchId(1, 1)]]
    assert other.asked == [[BatchId(0, 3)]]


async def test_a_source_that_does_not_open_closes_the_others(tmp_path: Path) -> None:
    good = Fixed(Samples(little(2, 1), 1, 1, 2))
    provider = MixtureData([good, LocalData(tmp_path, sequence_length=1, token_size=2)])

    with pytest.raises(DataError, match="has no token files"):
        async with provider:
            pass

    assert good.closed == 1


async def test_a_source_that_fails_is_not_waited_beyond() -> None:
    class Broken(Fixed):
        async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
            raise DataError("the disk is gone")

    class Stuck(Fixed):
        async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
            await anyio.sleep_forever()
            raise AssertionError

    rows = Samples(little(2, 1, 2), 2, 1, 2)
    async with MixtureData([Stuck(rows), Broken(rows)]) as provider:
        with anyio.fail_after(10), pytest.raises(DataError, match="the disk is gone"):
            await provider.read([BatchId(0, 3)], timeout=60.0)


def test_sources_of_different_lengths_are_refused() -> None:
    sources = [Fixed(Samples(bytes(2 * length), 1, length, 2)) for length in (3, 5)]

    with pytest.raises(DataError, match=r"one sequence length, got \[3, 5\]"):
        MixtureData(sources)
    with pytest.raises(DataError, match="got no sources"):
        MixtureData([])
