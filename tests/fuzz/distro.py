"""What the targets of DisTrO's payload codec share."""

from __future__ import annotations

from random import Random

import numpy as np

from psyche_core.errors import PayloadRejected
from psyche_optim_distro.backends.numba import numba_available
from psyche_optim_distro.chunks.layout import build_layout
from psyche_optim_distro.direction.normalization import UNIT, normalize_values
from psyche_optim_distro.payload import codec
from psyche_optim_distro.payload.top_k import Selection
from psyche_optim_distro.value_format import ValueFormat
from tests.fuzz.mutation import change_bytes

if numba_available():
    from psyche_optim_distro.backends.numba.update import NumbaUpdater

_HEADER_BYTES = 22
_MOST_OF_A_CHUNK = 5
_SHAPES = {"embed": (20, 12), "norm": (12,), "stack": (2, 4, 6)}

MEMORY = (150, 65_536)  # a byte of the unary table is 8 bits, each an int64 position


class Payloads:
    """Payloads for one small table with chunks of several sizes. seeds: full, sparse and empty ones."""

    def __init__(self, values: ValueFormat) -> None:
        self.layout = build_layout(_SHAPES, chunk=6, topk=_MOST_OF_A_CHUNK)
        self.values = values
        self._updater = NumbaUpdater(self.layout) if values is ValueFormat.SIGNS and numba_available() else None
        self.max_bytes = codec.max_payload_bytes(self.layout, values=values)

        self._seeds = [
            codec.encode(self.layout, self._selection(fill, np.random.default_rng(3)), values=values)
            for fill in (1.0, 0.98, 0.8, 0.1, 0.0)
        ]
        self._bodies = [seed[_HEADER_BYTES:] for seed in self._seeds]

    def seeds(self) -> list[bytes]:
        """Payloads of full, nearly full, half empty and empty selections."""
        return self._seeds

    def changed(self, data: bytes, random: Random) -> bytes:
        """A change behind the header."""
        header, body = data[:_HEADER_BYTES], data[_HEADER_BYTES:]
        return header + change_bytes(body, random, others=self._bodies)

    def check(self, data: bytes) -> None:
        """Decode, and assert what aggregation relies on; of signs, that the compiled reader is of one mind with this one."""
        try:
            selection = codec.decode(self.layout, data, values=self.values)
        except PayloadRejected as refused:
            self._compare(data, str(refused))
            raise

        self._compare(data, (2 * selection.indices + np.signbit(selection.values)).tolist())
        size = selection.chunks.size
        assert selection.indices.shape == selection.values.shape == (size,)
        assert selection.values.dtype == np.float32
        assert bool(np.isfinite(selection.values).all())
        assert bool((selection.values != 0).all())
        assert float(np.abs(selection.values).max(initial=0)) <= (1.0 if self.values is ValueFormat.SIGNS else codec.MAX_VALUE)
        amounts = normalize_values(selection)
        assert bool((amounts * np.sign(selection.values) >= 0).all())
        assert float(np.abs(amounts).max(initial=0)) <= 1.001 * UNIT * _MOST_OF_A_CHUNK**0.5
        slots = self.layout.slots(selection.chunks, selection.indices)
        assert np.unique(slots).size == size
        assert size == 0 or (int(slots.min()) >= 0 and int(slots.max()) < self.layout.total)
        again = codec.decode(self.layout, codec.encode(self.layout, selection, values=self.values), values=self.values)
        np.testing.assert_array_equal(again.indices, selection.indices)
        np.testing.assert_array_equal(again.values, selection.values)

    def _compare(self, data: bytes, plain: str | list[int]) -> None:
        if self._updater is None:
            return

        compiled: str | list[int]
        try:
            compiled = self._updater.decode(data).places.tolist()
        except PayloadRejected as refused:
            compiled = str(refused)
        assert compiled == plain

    def _selection(self, fill: float, generator: np.random.Generator) -> Selection:
        chunks, indices = [], []
        for entry in self.layout.classes:
            for chunk in entry.chunks.tolist():
                count = int(generator.binomial(entry.topk, fill))
                chunks += [chunk] * count
                indices += sorted(generator.permutation(entry.size)[:count].tolist())
        values = codec.as_sent(generator.standard_normal(len(chunks)).astype(np.float32), self.values)
        return Selection(np.array(chunks, np.int64), np.array(indices, np.int64), values)
