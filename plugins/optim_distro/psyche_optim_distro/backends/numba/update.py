"""`Updater` for signs with compiled kernels. Votes are decoded directly from a payload's bits.

A chunk stays in a core's first-level cache from its votes to the weights. The bits are equal to `TorchVoteUpdater`'s, which is
tested with random and hostile payloads: all arithmetic before the sign is of integers below 2**24, see `integer_idct`. For
parameters on a little-endian CPU only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from psyche_core.errors import PayloadRejected
from psyche_core.interfaces.rate_groups import TensorRate
from psyche_core.types import MAX_CLIENTS
from psyche_optim_distro.backends.numba.clip_kernels import update_group_clipped
from psyche_optim_distro.backends.numba.decode_kernels import decode_votes
from psyche_optim_distro.backends.numba.fast_dct import inverse_basis
from psyche_optim_distro.backends.numba.matrix_kernels import Floats
from psyche_optim_distro.backends.numba.threads import run_in_threads
from psyche_optim_distro.backends.numba.update_kernels import update_group
from psyche_optim_distro.chunks.layout import Group, Layout
from psyche_optim_distro.chunks.rates import Rates, cut_by_rate, factors
from psyche_optim_distro.direction.aggregation import mean_of_votes
from psyche_optim_distro.payload import codec
from psyche_optim_distro.payload.bit_packing import padding_is_zero
from psyche_optim_distro.payload.coefficients import Coefficients
from psyche_optim_distro.update import Updater
from psyche_optim_distro.value_format import ValueFormat


@dataclass(frozen=True, slots=True, eq=False)
class ChunkVotes:
    """The votes of one payload, in the order of classes.

    places: uint16 or uint32 [n], 2 * (position in the chunk) + (1 for a vote of -1, else 0). counts: uint16 [chunks], votes of
    each chunk.
    """

    places: NDArray[np.unsignedinteger[Any]]
    counts: NDArray[np.uint16]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.places.nbytes + self.counts.nbytes


class NumbaUpdater(Updater[ChunkVotes]):
    """Updater for parameters on a CPU. Its first use on a machine compiles for some seconds.

    layout: parameter table. rates: of its parameters. clipped: whether there is the second stage `clip`.
    """

    def __init__(self, layout: Layout, rates: Rates = MappingProxyType({}), *, clipped: bool = False) -> None:
        self._layout = layout
        self._update_group = update_group_clipped if clipped else update_group
        self._rated = [cut_by_rate(group, layout, rates) for group in layout.groups]
        self._bases = {size: inverse_basis(size) for size in layout.sides}
        self._bits = min((basis.bits for basis in self._bases.values()), default=1)
        self._means = mean_of_votes(self._bits).float().numpy()
        largest = max((entry.size for entry in layout.classes), default=1)
        self._place_type = np.uint16 if 2 * largest <= 2**16 else np.uint32
        starts = np.cumsum([0, *(entry.chunks.size for entry in layout.classes)])
        firsts = np.array([group.first_chunk for group in layout.groups], np.int64)
        self._positions: list[int] = (starts[layout.chunk_class[firsts]] + layout.chunk_rank[firsts]).tolist()
        self._warm_up()

    def decode(self, payload: bytes) -> ChunkVotes:
        """Return the votes of a payload. May run in any thread. Raises PayloadRejected, never anything else."""
        places, counts = [], []
        for section in codec.sections(self._layout, payload, values=ValueFormat.SIGNS):
            counts.append(section.counts.astype(np.uint16))
            places.append(np.empty(section.total, self._place_type))
            if not _read(section, counts[-1], places[-1]):
                codec.decode(self._layout, payload, values=ValueFormat.SIGNS)  # raises PayloadRejected with the reason
                message = "no encoder writes this payload"
                raise PayloadRejected(message)

        if not places:
            return ChunkVotes(np.empty(0, self._place_type), np.empty(0, np.uint16))

        return ChunkVotes(np.concatenate(places), np.concatenate(counts))

    def take(self, coefficients: Coefficients) -> ChunkVotes:
        """See `Updater.take`."""
        return ChunkVotes(coefficients.places, coefficients.counts)

    def update(self, masters: Tensor, decoded: Sequence[ChunkVotes], *, learning_rate: float, weight_decay: float) -> None:
        """See `Updater.update`."""
        if len(decoded) > MAX_CLIENTS:
            message = f"at most {MAX_CLIENTS} payloads can be aggregated exactly, got {len(decoded)}"
            raise ValueError(message)

        votes = np.concatenate([part.places for part in decoded])
        counts = np.stack([part.counts for part in decoded])
        starts = np.cumsum([0, *(part.places.size for part in decoded[:-1])])
        flat = masters.numpy()
        every = [_by_row(parts, learning_rate=learning_rate, weight_decay=weight_decay) for parts in self._rated]

        def work(part: int, parts: int) -> None:
            for group, position, (decays, steps) in zip(self._layout.groups, self._positions, every, strict=True):
                first, last = (group.chunk_count * edge // parts for edge in (part, part + 1))
                down, across = self._bases[group.height], self._bases[group.width]
                self._update_group(
                    first,
                    last,
                    votes,
                    starts,
                    counts,
                    position,
                    self._means,
                    group.height,
                    group.columns,
                    group.width,
                    down.bits,
                    across.rows,
                    down.levels,
                    down.matrices,
                    flat[group.start : group.stop],
                    decays,
                    steps,
                )

        run_in_threads(work, elements=self._layout.total)

    def _warm_up(self) -> None:
        """Compile the kernels now, not during a round."""
        none, places = np.empty(0, np.uint16), np.empty(0, self._place_type)
        decode_votes(_words(b""), 0, _words(b""), 0, _words(b""), none, 1, places)
        basis, weights = inverse_basis(1), np.empty(0, np.float32)
        starts, counts = np.empty(0, np.int64), none.reshape(0, 0)
        cut = basis.bits, basis.rows, basis.levels, basis.matrices
        self._update_group(0, 0, places, starts, counts, 0, self._means, 1, 1, 1, *cut, weights, weights, weights)


def _by_row(parts: Sequence[tuple[Group, TensorRate]], *, learning_rate: float, weight_decay: float) -> tuple[Floats, Floats]:
    """Return the factor of the masters and the size of the step for each row of a group's blocks, float32 [row_blocks]."""
    pairs = [factors(rate, learning_rate=learning_rate, weight_decay=weight_decay) for _, rate in parts]
    rows = [part.row_blocks for part, _ in parts]
    decays, steps = (np.repeat(np.array(column, np.float32), rows) for column in zip(*pairs, strict=True))
    return decays, steps


def _read(section: codec.Section, counts: NDArray[np.uint16], out: NDArray[Any]) -> bool:
    """Decode a section's votes into `out`. Returns False for bytes that no encoder writes."""
    total, rice, size = section.total, section.rice, section.entry.size
    if not (padding_is_zero(section.low, total * rice) and padding_is_zero(section.values, total)):
        return False

    low, unary, signs = _words(section.low), _words(section.unary), _words(section.values)
    return decode_votes(low, rice, unary, len(section.unary), signs, counts, size, out)


def _words(data: bytes) -> NDArray[np.uint64]:
    """Return the bytes as little-endian words, followed by at least one whole word of zeros."""
    return np.frombuffer(data + bytes(16 - len(data) % 8), dtype="<u8")
