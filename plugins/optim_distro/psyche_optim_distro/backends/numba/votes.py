"""Checked payloads of signs as the kernels read them: the payload's own bytes, and where to begin in them.

A payload is the most compact form of its votes (11 bits each where 8 of 4096 coefficients are sent), so they are read from its
bits when they are counted, and never kept in another form. Kept beside it is where some codes begin, 8 bytes for every
MARK_CHUNKS chunks, so that threads can begin anywhere; and the counts, 2 bytes for every chunk, of a payload that does not send
all it may. An update reads the payloads where they lie. The kernels are in `decode_kernels`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyche_core.errors import PayloadRejected
from psyche_optim_distro.backends.numba.decode_kernels import (
    ALL_CHUNKS,
    CODE,
    COUNTS,
    LANE_FIELDS,
    LANE_ROWS,
    LAST,
    LOW,
    READER_COLUMNS,
    RICE,
    SIGN,
    WINDOW,
    Words,
    index_votes,
    read_votes,
)
from psyche_optim_distro.backends.numba.matrix_kernels import LANES
from psyche_optim_distro.chunks.layout import IntArray, Layout
from psyche_optim_distro.payload import codec
from psyche_optim_distro.payload.bit_packing import padding_is_zero
from psyche_optim_distro.payload.coefficients import Coefficients
from psyche_optim_distro.value_format import ValueFormat

MARK_CHUNKS = 8
"""Threads can begin at each chunk of a group whose number is a multiple of this."""

_MIN_TOGETHER = 3
"""Votes that windows must hold for `read_lanes` to take less time than `read_bits`."""

_ZEROS = bytes(16)
"""What the kernels need after the last payload."""

_LOW, _UNARY, _SIGNS, _RICE = range(4)
"""Columns of `ChunkVotes.fields`: bytes of the payload where these fields begin, and the Rice parameter."""


class VoteTable:
    """What reading a payload needs to know of a parameter table.

    positions: of each group's first chunk in the order of classes. place_type: of decoded places.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        starts = np.cumsum([0, *(entry.chunks.size for entry in layout.classes)])
        firsts = np.array([group.first_chunk for group in layout.groups], np.int64)
        self.class_of: list[int] = layout.chunk_class[firsts].tolist()
        ranks = layout.chunk_rank[firsts]
        self.positions: list[int] = (starts[self.class_of] + ranks).tolist()
        self.class_ends: list[int] = starts.tolist()
        largest = max((entry.size for entry in layout.classes), default=1)
        self.place_type: type[np.unsignedinteger[Any]] = np.uint16 if 2 * largest < 2**16 else np.uint32
        self._marks = [
            rank + np.arange(0, group.chunk_count, MARK_CHUNKS) for rank, group in zip(ranks, layout.groups, strict=True)
        ]
        # Groups are in the order of classes only within a class, see `ChunkClass.chunks`.
        self._first_marks, first = [0] * len(layout.groups), 0
        self.marked: list[IntArray] = []
        for number in range(len(layout.classes)):
            own = [group for group, of in enumerate(self.class_of) if of == number]
            for group in own:
                self._first_marks[group] = first
                first += self._marks[group].size
            self.marked.append(np.concatenate([self._marks[group] for group in own]))

    def span(self, group: int, part: int, parts: int) -> tuple[int, int]:
        """Return the first chunk of a part of a group, and the one after its last. It begins where readers can."""
        count = self.layout.groups[group].chunk_count
        first, last = (count * edge // parts // MARK_CHUNKS * MARK_CHUNKS for edge in (part, part + 1))
        return first, count if part + 1 == parts else last

    def mark(self, group: int, chunk: int) -> int:
        """Return which mark is that of a multiple of MARK_CHUNKS; the group's first one if it has no such chunk."""
        last: int = self._marks[group].size - 1
        return self._first_marks[group] + min(chunk // MARK_CHUNKS, last)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkVotes:
    """The votes of one checked payload.

    marks: uint32 or uint64 [marks, 2], bit of the payload at which a chunk's first code begins, and the number of its class's
    coefficients before that. fields: int64 [classes, 4]. own_counts: uint16 [chunks], votes of each chunk in the order of
    classes; None if all send as many as they may.
    """

    payload: bytes
    marks: NDArray[np.unsignedinteger[Any]]
    fields: IntArray
    own_counts: NDArray[np.uint16] | None
    table: VoteTable

    @property
    def nbytes(self) -> int:
        """Size in bytes, without the payload."""
        return self.marks.nbytes + self.fields.nbytes + (0 if self.own_counts is None else self.own_counts.nbytes)

    @property
    def counts(self) -> NDArray[np.uint16]:
        """Votes of each chunk in the order of classes, uint16 [chunks]."""
        if self.own_counts is not None:
            return self.own_counts
        every = [np.full(entry.chunks.size, entry.topk, np.uint16) for entry in self.table.layout.classes]
        return np.concatenate([np.empty(0, np.uint16), *every])

    @property
    def places(self) -> NDArray[np.unsignedinteger[Any]]:
        """The votes in the order of classes: 2 * (position in the chunk) + (1 for a vote of -1, else 0). They are read anew."""
        counts, words, ends = self.counts, as_words(self.payload), self.table.class_ends
        places = np.empty(int(counts.sum()), self.table.place_type)
        begin = 0
        for number, (low, unary, signs, rice) in enumerate(self.fields.tolist()):
            own = counts[ends[number] : ends[number + 1]]
            end = begin + int(own.sum())
            read_votes(words, 8 * low, rice, 8 * unary, 8 * signs, own, places[begin:end])
            begin = end
        return places

    def as_coefficients(self) -> Coefficients:
        """Return the votes in the form that can be cut and sent."""
        return Coefficients(self.places, self.counts)


@dataclass(frozen=True, slots=True, eq=False)
class Readers:
    """Where to begin reading the payloads. blocks, payloads, together: for `read_lanes`. others: for `read_bits`."""

    blocks: NDArray[np.uint64]
    payloads: int
    together: int
    others: NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class LocatedPayloads:
    """Where the votes of many payloads are in memory. counts: uint16 [payloads that need them, chunks].

    Readers hold addresses, so whoever uses them keeps the payloads until then.
    """

    counts: NDArray[np.uint16]
    _first_bits: IntArray
    _last_words: IntArray
    _rows: NDArray[np.uint64]
    _fields: IntArray
    _decoded: Sequence[ChunkVotes]

    def readers(self, parts: int) -> list[list[Readers]]:
        """Return where to begin reading each part of each group: [groups][parts]."""
        table = self._decoded[0].table
        groups = range(len(table.layout.groups))
        wanted = np.array(
            [[table.mark(group, table.span(group, part, parts)[0]) for part in range(parts)] for group in groups], dtype=np.int64
        ).reshape(-1, parts)  # a model without a parameter has no groups
        marks = np.concatenate([votes.marks for votes in self._decoded]).reshape(len(self._decoded), -1, 2)
        marks = marks[:, wanted].astype(np.int64)  # [payloads, groups, parts, 2]
        return [self._readers(table.class_of[group], marks[:, group]) for group in groups]

    def _readers(self, number: int, marks: IntArray) -> list[Readers]:
        """Return the readers of a group's parts. number: of its class. marks: [payloads, parts, 2], of the first chunks."""
        entry = self._decoded[0].table.layout.classes[number]
        fields, begins, before = self._fields[:, number], marks[:, :, 0], marks[:, :, 1]
        rices = fields[:, _RICE]
        low = 64 // np.maximum(rices, 1)
        every = np.zeros((*begins.shape, READER_COLUMNS), np.uint64)
        every[:, :, CODE] = self._first_bits[:, None] + begins
        every[:, :, LOW] = (self._first_bits + 8 * fields[:, _LOW])[:, None] + before * rices[:, None]
        every[:, :, SIGN] = (self._first_bits + 8 * fields[:, _SIGNS])[:, None] + before
        for column, values in ((RICE, rices), (COUNTS, self._rows), (LAST, self._last_words), (WINDOW, low)):
            every[:, :, column] = values[:, None]
        # Codes of n votes have n ones, and at most as many zeros as their chunk's gaps >> rice. The gaps of a chunk add up to at
        # most its size less its votes, of which there are `topk` for sure, or else one.
        least = np.where(self._rows == ALL_CHUNKS, entry.topk, 1)
        together = np.minimum(low, 64 - ((entry.size - least) >> rices))
        in_lanes = together >= min(_MIN_TOGETHER, entry.topk)
        some, others = every[in_lanes], every[~in_lanes]
        parts, size = begins.shape[1], -(-some.shape[0] // LANES)
        padded = np.zeros((size * LANES, parts, LANE_FIELDS), np.uint64)
        padded[: some.shape[0]] = some[:, :, :LANE_FIELDS]
        blocks = np.zeros((parts, size, LANE_ROWS, LANES), np.uint64)
        blocks[:, :, :LANE_FIELDS] = padded.reshape(size, LANES, parts, LANE_FIELDS).transpose(2, 0, 3, 1)
        least_together = int(together[in_lanes].min(initial=64))
        return [
            Readers(blocks[part].reshape(-1), some.shape[0], least_together, np.ascontiguousarray(others[:, part]))
            for part in range(parts)
        ]


def check_votes(table: VoteTable, payload: bytes) -> ChunkVotes:
    """Check all of a payload, and note where readers can begin. Raises PayloadRejected, never anything else."""
    kind: type[np.unsignedinteger[Any]] = np.uint32 if 8 * len(payload) < 2**32 else np.uint64
    words, sections, marks = as_words(payload), [], []
    for marked, section in zip(table.marked, codec.sections(table.layout, payload, values=ValueFormat.SIGNS), strict=True):
        marks.append(np.empty((marked.size, 2), np.int64))
        if not _index(words, section, marked, marks[-1]):
            codec.decode(table.layout, payload, values=ValueFormat.SIGNS)  # raises PayloadRejected with the reason
            message = "no encoder writes this payload"
            raise PayloadRejected(message)

        sections.append(section)
    counts = None
    if not all(section.full for section in sections):
        counts = np.concatenate([section.counts for section in sections]).astype(np.uint16)
    joined = np.concatenate([np.empty((0, 2), np.int64), *marks]).astype(kind)
    fields = np.array([_fields(section) for section in sections], np.int64).reshape(-1, 4)
    return ChunkVotes(payload, joined, fields, counts, table)


def locate(decoded: Sequence[ChunkVotes]) -> LocatedPayloads:
    """Return where the payloads are. Nothing of them is copied."""
    pointers = (ctypes.c_char_p * len(decoded))(*[votes.payload for votes in decoded])
    addresses = np.frombuffer(bytes(pointers), np.uintp).astype(np.int64)
    lengths = np.array([len(votes.payload) for votes in decoded], np.int64)
    needed = [votes.own_counts for votes in decoded if votes.own_counts is not None]
    chunks = decoded[0].table.class_ends[-1]
    counts = np.stack(needed) if needed else np.empty((0, chunks), np.uint16)
    rows = np.full(len(decoded), ALL_CHUNKS, np.uint64)
    rows[[votes.own_counts is not None for votes in decoded]] = np.arange(len(needed))
    fields = np.concatenate([votes.fields for votes in decoded]).reshape(len(decoded), -1, 4)
    return LocatedPayloads(counts, 8 * addresses, (addresses + lengths - 1) // 8, rows, fields, decoded)


def as_words(data: bytes) -> Words:
    """Return bytes as little-endian words, followed by the zeros that the kernels need."""
    return np.frombuffer(data + _ZEROS[: -len(data) % 8] + _ZEROS, "<u8")


def _index(words: Words, section: codec.Section, marked: IntArray, marks: IntArray) -> bool:
    """Check a section and note where its chunks begin. Returns False for bytes that no encoder writes."""
    if not (padding_is_zero(section.low, section.total * section.rice) and padding_is_zero(section.values, section.total)):
        return False

    low, unary, _, rice = _fields(section)
    return index_votes(words, 8 * low, rice, 8 * unary, len(section.unary), section.counts, section.entry.size, marked, marks)


def _fields(section: codec.Section) -> tuple[int, int, int, int]:
    unary = section.at + len(section.low)
    return section.at, unary, unary + len(section.unary), section.rice
