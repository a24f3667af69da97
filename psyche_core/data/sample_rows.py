"""Combines rows of samples from several reads into one, in any order and with repetitions.

Rows keep all their fields. If reads differ in form, the richer form is used: tokens of two bytes are widened to four, and
labels, positions and lengths that only some reads have are written out for the others (every token its own label, positions from
0, one text per row). Each byte is copied once.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from psyche_core.interfaces.data import LABEL_BYTES, POSITION_BYTES, Samples

_Part = TypeVar("_Part", bound=Hashable)

_CODES = {2: "H", 4: "I"}


def picked(parts: Mapping[_Part, Samples], rows: Sequence[tuple[_Part, int]]) -> Samples:
    """The samples at the given (part, row in that part), concatenated in order.

    parts: at least one; all with the same sequence length.
    """
    reads = parts.values()
    sequence_length = next(iter(reads)).sequence_length
    token_size = max(read.token_size for read in reads)

    tokens = {name: widened(read.tokens, read.token_size, token_size) for name, read in parts.items()}
    labels = positions = lengths = None
    if any(read.labels is not None for read in reads):
        spelled = {name: labels_of(read) for name, read in parts.items()}
        labels = _rows(spelled, rows, sequence_length * LABEL_BYTES)
    if any(read.position_ids is not None for read in reads):
        spelled = {name: positions_of(read) for name, read in parts.items()}
        positions = _rows(spelled, rows, sequence_length * POSITION_BYTES)
    if any(read.sequence_lengths is not None for read in reads):
        each = {name: read.sequence_lengths or ((sequence_length,),) * read.count for name, read in parts.items()}
        lengths = tuple(each[name][row] for name, row in rows)

    content = _rows(tokens, rows, sequence_length * token_size)
    return Samples(content, len(rows), sequence_length, token_size, labels, positions, lengths)


def widened(tokens: bytes, token_size: int, wanted: int) -> bytes:
    """Little-endian tokens of `token_size` bytes, converted to `wanted` bytes each (2 or 4, at least `token_size`)."""
    if token_size == wanted:
        return tokens

    numbers = array(_CODES[token_size], tokens)
    if sys.byteorder == "big":
        numbers.byteswap()
    wide = array(_CODES[wanted], numbers)
    if sys.byteorder == "big":
        wide.byteswap()
    return wide.tobytes()


def labels_of(samples: Samples) -> bytes:
    """The labels of samples as little-endian int32. Without labels, every token is its own label."""
    return widened(samples.tokens, samples.token_size, LABEL_BYTES) if samples.labels is None else samples.labels


def positions_of(samples: Samples) -> bytes:
    """The positions of samples as little-endian unsigned 32-bit integers. Without positions, they are 0, 1, 2, … in each row."""
    if samples.position_ids is not None:
        return samples.position_ids

    return b"".join(place.to_bytes(POSITION_BYTES, "little") for place in range(samples.sequence_length)) * samples.count


def _rows(columns: Mapping[_Part, bytes], rows: Sequence[tuple[_Part, int]], size: int) -> bytes:
    views = {name: memoryview(column) for name, column in columns.items()}
    return b"".join([views[name][row * size : (row + 1) * size] for name, row in rows])
