"""Encodes and decodes samples as the bytes that follow their head.

The columns follow each other, little-endian; absent ones are left out: the tokens; labels, 4 bytes a token; position ids, 4
bytes a token; for each sample the number of texts in its row and then their lengths, 4 bytes each. A head's announced sizes are
checked before memory is used for them. Samples with tokens only are copied once, from the frames into the samples. The values
of tokens and labels are not checked here.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

from psyche_backend_tcp.data.protocol import SamplesHead
from psyche_core.data.sample_rows import picked
from psyche_core.errors import WireError
from psyche_core.interfaces.data import LABEL_BYTES, POSITION_BYTES, Samples

_LENGTH_BYTES = 4


def largest_sample(sequence_length: int) -> int:
    """Return the most bytes of a sample with this many tokens and all columns."""
    return sequence_length * (4 + LABEL_BYTES + POSITION_BYTES + _LENGTH_BYTES) + _LENGTH_BYTES


def pack(number: int, samples: Samples) -> tuple[SamplesHead, bytes]:
    """Return head and bytes of the samples, as the answer to request `number`."""
    columns = [samples.tokens]
    if samples.labels is not None:
        columns.append(samples.labels)
    if samples.position_ids is not None:
        columns.append(samples.position_ids)
    lengths_bytes = None
    if samples.sequence_lengths is not None:
        columns.append(_pack_lengths(samples.sequence_lengths))
        lengths_bytes = len(columns[-1])

    head = SamplesHead(
        number,
        samples.count,
        samples.token_size,
        labels=samples.labels is not None,
        position_ids=samples.position_ids is not None,
        lengths_bytes=lengths_bytes,
    )
    return head, columns[0] if len(columns) == 1 else b"".join(columns)


def body_bytes(head: SamplesHead, *, sequence_length: int, count: int) -> int:
    """Return how many bytes follow. count: samples requested. Raises WireError when the head announces another count."""
    if head.count != count:
        message = f"{head.count} samples were announced, expected {count}"
        raise WireError(message)

    lengths = head.lengths_bytes
    most = count * (1 + sequence_length) * _LENGTH_BYTES
    if lengths is not None and (lengths % _LENGTH_BYTES or not 2 * count * _LENGTH_BYTES <= lengths <= most):
        message = f"{lengths} bytes of sequence lengths were announced, expected at most {most} for {count} samples"
        raise WireError(message)

    token = head.token_size + LABEL_BYTES * head.labels + POSITION_BYTES * head.position_ids
    return count * sequence_length * token + (lengths or 0)


def unpack(head: SamplesHead, body: bytes, *, sequence_length: int) -> Samples:
    """Return the samples of a head and the bytes that followed. Raises WireError."""
    view, places, at = memoryview(body), head.count * sequence_length, 0

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        return bytes(view[at - size : at])

    tokens = take(places * head.token_size)
    labels = take(places * LABEL_BYTES) if head.labels else None
    position_ids = take(places * POSITION_BYTES) if head.position_ids else None
    try:
        lengths = None if head.lengths_bytes is None else _unpack_lengths(take(head.lengths_bytes), head.count)
        return Samples(tokens, head.count, sequence_length, head.token_size, labels, position_ids, lengths)
    except ValueError as error:
        message = f"the samples that came are damaged: {error}"
        raise WireError(message) from error


def join(parts: Sequence[tuple[SamplesHead, Sequence[bytes | memoryview]]], *, sequence_length: int) -> Samples:
    """Return the samples of all answers, concatenated; if their columns differ, all columns of any are used. Raises WireError.

    parts: each answer's head and all chunks of its body.
    """
    forms = {(head.token_size, head.labels, head.position_ids, head.lengths_bytes is not None) for head, _ in parts}
    token_size, *columns = next(iter(forms))
    if len(forms) == 1 and not any(columns):
        tokens = b"".join([chunk for _, chunks in parts for chunk in chunks])
        return Samples(tokens, sum(head.count for head, _ in parts), sequence_length, token_size)

    reads = {part: unpack(head, b"".join(chunks), sequence_length=sequence_length) for part, (head, chunks) in enumerate(parts)}
    return picked(reads, [(part, row) for part, read in reads.items() for row in range(read.count)])


def _pack_lengths(rows: Sequence[Sequence[int]]) -> bytes:
    numbers = array("I", [number for row in rows for number in (len(row), *row)])
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _unpack_lengths(column: bytes, count: int) -> tuple[tuple[int, ...], ...]:
    """Read the lengths column. Raises ValueError for a wrong number of rows, or leftover numbers."""
    numbers = array("I", column)
    if sys.byteorder == "big":
        numbers.byteswap()
    rows, at = [], 0
    while at < len(numbers):
        end = at + 1 + numbers[at]
        rows.append(tuple(numbers[at + 1 : end]))
        at = end
    if at != len(numbers) or len(rows) != count:
        message = f"the column of sequence lengths holds {len(rows)} rows up to number {at} of {len(numbers)}, expected {count}"
        raise ValueError(message)

    return tuple(rows)
