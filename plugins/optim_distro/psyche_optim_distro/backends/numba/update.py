"""`Updater` for signs with compiled kernels. Votes are read from the payloads' bits while they are counted, see `votes`.

A chunk stays in a core's first-level cache from its votes to the weights. The bits are equal to `TorchVoteUpdater`'s, which is
tested with random and hostile payloads: all arithmetic before the sign is of integers below 2**24, see `integer_idct`. For
parameters on a little-endian CPU only.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np
from torch import Tensor

from psyche_core.interfaces.rate_groups import TensorRate
from psyche_core.types import MAX_CLIENTS
from psyche_optim_distro.backends.numba.clip_kernels import update_group_clipped
from psyche_optim_distro.backends.numba.decode_kernels import READER_COLUMNS, index_votes, read_votes
from psyche_optim_distro.backends.numba.fast_dct import inverse_basis
from psyche_optim_distro.backends.numba.matrix_kernels import Floats
from psyche_optim_distro.backends.numba.threads import run_in_threads, thread_parts
from psyche_optim_distro.backends.numba.update_kernels import VoteArrays, update_group
from psyche_optim_distro.backends.numba.votes import ChunkVotes, Readers, VoteTable, as_words, check_votes, locate
from psyche_optim_distro.chunks.layout import Group, Layout
from psyche_optim_distro.chunks.rates import Rates, cut_by_rate, factors
from psyche_optim_distro.direction.aggregation import COUNT_SHIFT, mean_of_votes
from psyche_optim_distro.payload.coefficients import Coefficients
from psyche_optim_distro.update import Updater

Votes = ChunkVotes | Coefficients
"""What was decoded here, or by another process."""


class NumbaUpdater(Updater[Votes]):
    """Updater for parameters on a CPU. Its first use on a machine compiles for some seconds.

    layout: parameter table. rates: of its parameters. clipped: whether there is the second stage `clip`.
    """

    def __init__(self, layout: Layout, rates: Rates = MappingProxyType({}), *, clipped: bool = False) -> None:
        self._layout = layout
        self._table = VoteTable(layout)
        self._update_group = update_group_clipped if clipped else update_group
        self._rated = [cut_by_rate(group, layout, rates) for group in layout.groups]
        self._bases = {size: inverse_basis(size) for size in layout.sides}
        self._bits = min((basis.bits for basis in self._bases.values()), default=1)
        self._means = means_of_counts(self._bits)
        self._warm_up()

    def decode(self, payload: bytes) -> ChunkVotes:
        """Check a payload, and note where its votes begin. May run in any thread. Raises PayloadRejected, never anything else."""
        return check_votes(self._table, payload)

    def take(self, coefficients: Coefficients) -> Coefficients:
        """See `Updater.take`."""
        return coefficients

    def update(self, masters: Tensor, decoded: Sequence[Votes], *, learning_rate: float, weight_decay: float) -> None:
        """See `Updater.update`."""
        if len(decoded) > MAX_CLIENTS:
            message = f"at most {MAX_CLIENTS} payloads can be aggregated exactly, got {len(decoded)}"
            raise ValueError(message)

        parts = thread_parts(self._layout.total)
        payloads = [votes for votes in decoded if isinstance(votes, ChunkVotes)]
        if len(payloads) == len(decoded):
            given = self._as_bits(payloads, parts)
        else:
            given = self._as_places(
                [votes if isinstance(votes, Coefficients) else votes.as_coefficients() for votes in decoded], parts
            )
        flat = masters.numpy()
        every = [_by_row(rated, learning_rate=learning_rate, weight_decay=weight_decay) for rated in self._rated]

        def work(part: int, parts: int) -> None:
            for number, (group, (decays, steps)) in enumerate(zip(self._layout.groups, every, strict=True)):
                first, last = self._table.span(number, part, parts)
                down, across = self._bases[group.height], self._bases[group.width]
                self._update_group(
                    first,
                    last,
                    given[number][part],
                    self._table.positions[number],
                    group.topk,
                    self._means,
                    group.height,
                    group.columns,
                    group.width,
                    down.bits,
                    down.arrays,
                    across.arrays,
                    flat[group.start : group.stop],
                    decays,
                    steps,
                )

        run_in_threads(work, elements=self._layout.total)

    def _as_bits(self, decoded: Sequence[ChunkVotes], parts: int) -> list[list[VoteArrays]]:
        """Return what the kernel reads for each group and part. It reads the payloads, too, so the caller keeps `decoded`."""
        located = locate(decoded)
        none, no_cursors = np.empty(0, self._table.place_type), np.empty(0, np.int64)

        def given(of: Readers) -> VoteArrays:
            return True, of.blocks, of.payloads, of.together, of.others, located.counts, none, no_cursors

        return [[given(readers) for readers in of_group] for of_group in located.readers(parts)]

    def _as_places(self, decoded: Sequence[Coefficients], parts: int) -> list[list[VoteArrays]]:
        """Return the same for votes that were decoded elsewhere."""
        every = np.concatenate([votes.places for votes in decoded])
        counts = np.stack([votes.counts for votes in decoded])
        starts = np.cumsum([0, *(votes.places.size for votes in decoded[:-1])])
        no_blocks, no_readers = np.empty(0, np.uint64), np.empty((0, READER_COLUMNS), np.uint64)

        def given(group: int, part: int) -> VoteArrays:
            begin = self._table.positions[group] + self._table.span(group, part, parts)[0]
            cursors = starts + counts[:, :begin].sum(axis=1, dtype=np.int64)
            return False, no_blocks, 0, 1, no_readers, counts, every, cursors

        return [[given(group, part) for part in range(parts)] for group in range(len(self._layout.groups))]

    def _warm_up(self) -> None:
        """Compile the kernels now, not during a round."""
        none, counts, places = np.empty(0, np.int64), np.empty(0, np.uint16), np.empty(0, self._table.place_type)
        index_votes(as_words(b""), 0, 0, 0, 0, none, 1, none, none.reshape(0, 2))
        read_votes(as_words(b""), 0, 0, 0, 0, counts, places)
        basis, weights = inverse_basis(1), np.empty(0, np.float32)
        blocks, readers = np.empty(0, np.uint64), np.empty((0, READER_COLUMNS), np.uint64)
        votes = True, blocks, 0, 1, readers, counts.reshape(0, 0), places, none
        self._update_group(
            0, 0, votes, 0, 1, self._means, 1, 1, 1, basis.bits, basis.arrays, basis.arrays, weights, weights, weights
        )


def means_of_counts(bits: int) -> Floats:
    """Return `mean_of_votes`, float32, at the index votes for + 256 * votes against, each at most 255 and both at most 256."""
    against, votes_for = np.divmod(np.arange(2**16), 2**8)
    count, total = votes_for + against, votes_for - against
    by_count_and_sum = mean_of_votes(bits).float().numpy()
    means: Floats = by_count_and_sum[np.where(count <= MAX_CLIENTS, (count << COUNT_SHIFT) + total, 0)]
    return means


def _by_row(parts: Sequence[tuple[Group, TensorRate]], *, learning_rate: float, weight_decay: float) -> tuple[Floats, Floats]:
    """Return the factor of the masters and the size of the step for each row of a group's blocks, float32 [row_blocks]."""
    pairs = [factors(rate, learning_rate=learning_rate, weight_decay=weight_decay) for _, rate in parts]
    rows = [part.row_blocks for part, _ in parts]
    decays, steps = (np.repeat(np.array(column, np.float32), rows) for column in zip(*pairs, strict=True))
    return decays, steps
