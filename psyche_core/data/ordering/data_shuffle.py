"""Seeded orders of training sequences: ChaCha8 words drive a Fisher-Yates shuffle.

The permutations equal those of the reference implementation (rand 0.9 over a ChaCha8 stream whose key is the seed), so that data
prepared for one is read in the same order by the other. `shuffled_order` is `SliceRandom::shuffle`: forward, with one draw for
several places. `backward_order` is the plain shuffle that mixtures use. numpy is optional; it makes large orders several times
faster.

More than 2**32 - 2 sequences are rejected: for these the reference implementation draws differently, and no such data set
exists.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from psyche_core.data.ordering.chacha import SEED_BYTES, WORD, chacha8_words, key_words, uniform_below
from psyche_core.errors import DataError

if TYPE_CHECKING:
    from psyche_core.data.ordering.fast_draws import FastWords

MAX_SEQUENCES = WORD - 1
FAST_FROM = 100_000
"""For shorter orders, importing numpy takes longer than it saves."""


class SeededShuffle(BaseModel):
    """`{Seeded = [32 numbers]}` of a run configuration."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    Seeded: Annotated[tuple[Annotated[int, Field(ge=0, le=255)], ...], Field(min_length=SEED_BYTES, max_length=SEED_BYTES)]


Shuffle = Literal["DontShuffle"] | SeededShuffle
"""A run configuration's `shuffle` key."""


def shuffle_seed(shuffle: Shuffle) -> bytes | None:
    """The 32 seed bytes of a `shuffle` setting, None for "DontShuffle"."""
    return bytes(shuffle.Seeded) if isinstance(shuffle, SeededShuffle) else None


def shuffled_order(count: int, seed: bytes, *, fast_from: int = FAST_FROM) -> array[int]:
    """The permutation that puts sequence `order[i]` at place i.

    count: number of sequences. seed: 32 bytes. fast_from: use numpy, if installed, from this count on (speed only). Returns an
    array of `count` unsigned 32-bit numbers. Raises ValueError for a seed of another length, DataError for too many sequences.
    """
    _check(count, seed)
    fast = _fast_words(seed) if count >= fast_from else None
    partners = _partners(count, chacha8_words(seed)) if fast is None else _fast_partners(count, fast)

    order = array("I", range(count))
    for place, other in enumerate(partners):
        order[place], order[other] = order[other], place  # `place` still holds its first value before its turn

    return order


def backward_order(count: int, seed: bytes, *, fast_from: int = FAST_FROM) -> array[int]:
    """The permutation of a mixture: places from the last down to 1 are swapped with one drawn from 0..=place.

    Arguments, result and errors are those of `shuffled_order`.
    """
    _check(count, seed)
    fast = _fast_words(seed) if count >= fast_from else None
    bounds = range(count, 1, -1)
    draws = _single_draws(bounds, chacha8_words(seed)) if fast is None else _fast_draws(bounds, fast)

    order = array("I", range(count))
    for place, other in zip(range(count - 1, 0, -1), draws, strict=True):
        order[place], order[other] = order[other], order[place]

    return order


def _check(count: int, seed: bytes) -> None:
    key_words(seed)
    if count > MAX_SEQUENCES:
        message = f"{count} sequences cannot be shuffled (the limit is {MAX_SEQUENCES}); use DontShuffle or split the data set"
        raise DataError(message)


def _partners(count: int, words: Iterator[int]) -> Iterator[int]:
    """For each place 0..count-1, the place in 0..place that it is swapped with."""
    size = yield from _joint_partners(count, words)
    yield from _single_draws(range(size, count + 1), words)


def _fast_partners(count: int, words: FastWords) -> Iterator[int]:
    size = yield from _joint_partners(count, words)
    yield from _fast_draws(range(size, count + 1), words)


def _joint_partners(count: int, words: Iterator[int]) -> Generator[int, None, int]:
    """Swap partners of the first places, where one draw is used for as many places as fit into 32 bits.

    Returns the number of choices at the first place that has its own draw, at most count + 1.
    """
    if count:
        yield 0

    size = 2  # choices at the next place
    while size <= count and size * (size + 1) <= WORD:
        bound, served = size, 1
        while bound * (size + served) <= WORD:
            bound *= size + served
            served += 1

        chunk = uniform_below(bound, words)
        stop = min(size + served, count + 1)
        while size < stop:
            served -= 1
            if served:
                chunk, partner = divmod(chunk, size)
                yield partner
            else:
                yield chunk
            size += 1

    return size


def _single_draws(bounds: Iterable[int], words: Iterator[int]) -> Iterator[int]:
    return (uniform_below(bound, words) for bound in bounds)


def _fast_words(seed: bytes) -> FastWords | None:
    try:
        from psyche_core.data.ordering.fast_draws import FastWords
    except ModuleNotFoundError:
        return None

    return FastWords(seed)


def _fast_draws(bounds: range, words: FastWords) -> Iterator[int]:
    from psyche_core.data.ordering.fast_draws import uniform_stretches

    return chain.from_iterable(stretch.tolist() for stretch in uniform_stretches(bounds, words))
