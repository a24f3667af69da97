"""The part of DisTrO that a verifier needs, see `psyche_core.interfaces.replay`.

Groups are those of the parameter table, so chunks have the table's numbers. Everything is copied to the CPU. The transform is
computed in float64 with the exact basis, whatever precision `compress` uses to select coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from psyche_core.interfaces.replay import AppliedStep, ChunkGroup, Replay
from psyche_optim_distro.chunks.layout import Group, Layout
from psyche_optim_distro.chunks.transform import as_blocks, dct_basis, decode, encode
from psyche_optim_distro.payload import codec
from psyche_optim_distro.payload.top_k import CoefficientTables
from psyche_optim_distro.preconditioner import EPSILON, Preconditioner
from psyche_optim_distro.settings import DistroSettings

CLIP_EPSILON = 1e-6

Rows = Sequence[NDArray[np.int64]]
LoadWeights = Callable[[Tensor, Sequence[AppliedStep], float], None]
"""See `Replay.load_weights`; the first argument is the direction of the look-ahead, int8 [layout.total], in blocked order."""

LoadWeightsAhead = Callable[[bytes, Sequence[AppliedStep], float], None]
"""See `Replay.load_weights_ahead`."""


def gradient_scale(norm: float, *, learning_rate: float, clip: float | None) -> float:
    """Return the learning rate times the clipping factor. norm: global L2 norm. clip: largest norm; None or 0 for no clipping."""
    limit = clip or math.inf
    return learning_rate * (limit / (norm + CLIP_EPSILON) if norm > limit else 1.0)


class DistroReplay(Replay):
    """The replay of one optimizer.

    delta: its flat buffer, in blocked order. tables: returns those of a step's result that is still in delta. load_weights:
    writes the compute weights. preconditioner: the optimizer's, if any. ahead, load_weights_ahead: those of `Replay`.
    """

    def __init__(
        self,
        settings: DistroSettings,
        layout: Layout,
        delta: Tensor,
        tables: Callable[[int], CoefficientTables | None],
        load_weights: LoadWeights,
        preconditioner: Preconditioner | None = None,
        *,
        ahead: Callable[[], bytes],
        load_weights_ahead: LoadWeightsAhead,
    ) -> None:
        self._settings = settings
        self._layout = layout
        self._delta = delta
        self._tables = tables
        self._load_weights = load_weights
        self._preconditioner = preconditioner
        self._ahead = ahead
        self._load_weights_ahead = load_weights_ahead

    @property
    def groups(self) -> Sequence[ChunkGroup]:
        """The table's groups."""
        return tuple(ChunkGroup(group.chunk_count, group.height * group.width, group.topk) for group in self._layout.groups)

    @property
    def decay(self) -> float:
        """The setting `compression_decay`."""
        return self._settings.compression_decay

    @property
    def verifiable(self) -> bool:
        """True with clipping, and without the second stage `rmsprop`, whose updates cannot be undone."""
        return self._settings.why_unverifiable() is None

    @property
    def taken_fraction(self) -> float:
        """The setting `compression_subtract`."""
        return self._settings.compression_subtract

    @property
    def memory_decay(self) -> float:
        """The setting `gradient_beta2`."""
        assert self._settings.gradient_beta2 is not None
        return self._settings.gradient_beta2

    @property
    def has_memory(self) -> bool:
        """True with the setting `gradient_beta2`."""
        return self._preconditioner is not None

    @property
    def ahead_bytes(self) -> int | None:
        """The longest payload with the setting `lookahead = "payload"`."""
        if self._settings.lookahead == "delta":
            return None
        return codec.max_payload_bytes(self._layout, values=self._settings.values)

    def ahead(self) -> bytes:
        """See `Replay.ahead`."""
        return self._ahead()

    def load_weights_ahead(self, payload: bytes, *, undone: Sequence[AppliedStep], learning_rate: float) -> None:
        """See `Replay.load_weights_ahead`. Needs twice the masters' memory while it runs."""
        self._load_weights_ahead(payload, undone, learning_rate)

    @torch.no_grad()
    def memory(self, rows: Rows) -> tuple[list[Any], int]:
        """Return the running mean squares of gradients, and how many gradients they contain."""
        assert self._preconditioner is not None
        squares = self._preconditioner.state
        found = self._chunks({name: squares[f"mean_square.{name}"] for name in self._names}, rows)
        return found, self._preconditioner.count

    @torch.no_grad()
    def gradient(self, gradients: Mapping[str, Any], rows: Rows) -> list[Any]:
        """Return clipped gradients in chunks."""
        norm = float(torch.nn.utils.get_total_norm(gradients.values()))
        factor = np.float32(gradient_scale(norm, learning_rate=1.0, clip=self._settings.clip_grad_norm))
        return [part * factor for part in self._chunks(gradients, rows)]

    def contribution_of(
        self, gradient: Sequence[Any], *, memory: Sequence[Any] | None, count: int, learning_rate: float
    ) -> tuple[list[Any], list[Any] | None]:
        """Return the learning rate times the gradient, divided by its running root mean square if the settings demand it."""
        beta2 = self._settings.gradient_beta2
        exact = [part.astype(np.float64) for part in gradient]
        if beta2 is None or memory is None:
            return [learning_rate * part for part in exact], None

        after = [beta2 * old + (1 - beta2) * part * part for old, part in zip(memory, exact, strict=True)]
        correction = 1 - beta2 ** (count + 1)
        roots = [np.sqrt(squares / correction) + EPSILON for squares in after]
        return [learning_rate * part / root for part, root in zip(exact, roots, strict=True)], after

    def largest_contribution(self, *, learning_rate: float) -> float:
        """Return the learning rate times `clip_grad_norm`, or the largest norm that divided gradients can have."""
        if self._preconditioner is not None:
            return learning_rate * self._preconditioner.largest_norm
        return learning_rate * (self._settings.clip_grad_norm or math.inf)

    def usual_contribution(self, *, learning_rate: float) -> float:
        """Return the norm of a usual contribution; for divided gradients, that of elements of the size 1."""
        if self._preconditioner is not None:
            return learning_rate * math.sqrt(self._layout.total)
        return self.largest_contribution(learning_rate=learning_rate)

    @torch.no_grad()
    def load_weights(self, signs: Sequence[Any] | None, *, undone: Sequence[AppliedStep], learning_rate: float) -> None:
        """See `Replay.load_weights`. Needs twice the masters' memory while it runs."""
        direction = torch.zeros(self._layout.total, dtype=torch.int8, device=self._delta.device)
        for group, rows in self._with_groups(signs) if signs is not None else ():
            direction[group.start : group.stop] = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int8)).view(-1)
        self._load_weights(direction, undone, learning_rate)

    @torch.no_grad()
    def delta(self, rows: Rows) -> list[Any]:
        """Return chunks of delta, each row by row."""
        found = []
        for group, chosen in zip(self._layout.groups, rows, strict=True):
            blocks = self._delta[group.start : group.stop].view(group.chunk_count, -1)
            found.append(_picked(blocks, chosen))
        return found

    @torch.no_grad()
    def taken(self, step: int, rows: Rows) -> list[Any]:
        """Return coefficients times `compression_subtract`: exact ones if only signs are sent, else those that were sent."""
        tables = self._tables(step)
        if tables is None:
            message = f"the result of step {step} is settled, subtracted or was never made"
            raise ValueError(message)

        found = []
        for group, chosen in zip(self._layout.groups, rows, strict=True):
            indices, values = (_picked(table, chosen) for table in tables.of(group))
            dense = np.zeros((chosen.size, group.height * group.width), dtype=np.float32)
            np.put_along_axis(dense, indices, values, axis=1)
            found.append(dense)
        return found

    @torch.no_grad()
    def contribution(self, gradients: Mapping[str, Any], rows: Rows, *, learning_rate: float) -> list[Any]:
        """Return scaled gradients in chunks, divided by their running root mean square if the settings demand it."""
        norm = float(torch.nn.utils.get_total_norm(gradients.values()))
        scale = gradient_scale(norm, learning_rate=learning_rate, clip=self._settings.clip_grad_norm)
        if self._preconditioner is not None:
            factor = gradient_scale(norm, learning_rate=1.0, clip=self._settings.clip_grad_norm)
            gradients, scale = self._preconditioner.divided(gradients, factor=factor), learning_rate
        return [part * np.float32(scale) for part in self._chunks(gradients, rows)]

    def coefficients(self, chunks: Sequence[Any]) -> list[Any]:
        """Return the orthonormal DCT-II of chunks, along both sides."""
        return [_transformed(encode, group, array) for group, array in self._with_groups(chunks)]

    def elements(self, coefficients: Sequence[Any]) -> list[Any]:
        """Return the inverse of `coefficients`."""
        return [_transformed(decode, group, array) for group, array in self._with_groups(coefficients)]

    def sent(self, payload: bytes, rows: Rows) -> list[Any]:
        """Return signs, or values as sent."""
        selection = codec.decode(self._layout, payload, values=self._settings.values)
        found = []
        for group, chosen in self._with_groups(rows):
            places = np.full(self._layout.chunk_class.size, -1, dtype=np.int64)
            places[group.first_chunk + chosen] = np.arange(chosen.size)
            own = places[selection.chunks]
            dense = np.zeros((chosen.size, group.height * group.width), dtype=np.float32)
            dense[own[own >= 0], selection.indices[own >= 0]] = selection.values[own >= 0]
            found.append(dense)
        return found

    def positions(self, payload: bytes) -> Any:
        """Return chunk number times the largest chunk's size, plus the position in the chunk."""
        selection = codec.decode(self._layout, payload, values=self._settings.values)
        sizes = np.array([entry.size for entry in self._layout.classes], dtype=np.int64)
        chosen = np.array([entry.topk < entry.size for entry in self._layout.classes], dtype=bool)
        if sizes.size == 0:
            return np.zeros(0, dtype=np.int64)

        kept = chosen[self._layout.chunk_class[selection.chunks]]
        found = selection.chunks[kept] * np.int64(sizes.max()) + selection.indices[kept]
        return np.sort(found)

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self._layout.parameters)

    def _chunks(self, tensors: Mapping[str, Any], rows: Rows) -> list[Any]:
        """Return chunks of tensors that are given by parameter name, in their parameters' shapes."""
        return [self._gradient_rows(group, tensors, chosen) for group, chosen in self._with_groups(rows)]

    def _with_groups(self, arrays: Sequence[Any]) -> list[tuple[Group, Any]]:
        return list(zip(self._layout.groups, arrays, strict=True))

    def _gradient_rows(self, group: Group, gradients: Mapping[str, Any], chosen: NDArray[np.int64]) -> NDArray[np.float32]:
        size = group.height * group.width
        found = np.zeros((chosen.size, size), dtype=np.float32)
        for entry in self._layout.parameters:
            gradient = gradients.get(entry.name)
            if gradient is None or not group.start <= entry.start < entry.stop <= group.stop:
                continue

            first, last = (entry.start - group.start) // size, (entry.stop - group.start) // size
            own = np.flatnonzero((chosen >= first) & (chosen < last))
            if own.size:
                blocks = as_blocks(gradient.reshape(-1, group.height, group.columns), group.width).reshape(-1, size)
                found[own] = _picked(blocks, chosen[own] - first)
        return found


def _picked(rows: Tensor, chosen: NDArray[np.int64]) -> Any:
    """Return some rows of a tensor, as a numpy array."""
    picked = rows[torch.from_numpy(chosen).to(rows.device)]
    return (picked.float() if picked.is_floating_point() else picked).cpu().numpy()


def _transformed(transform: Callable[[Tensor, Tensor, Tensor], Tensor], group: Group, array: Any) -> Any:
    blocks = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64)).view(-1, group.height, group.width)
    return transform(blocks, dct_basis(group.height), dct_basis(group.width)).reshape(-1, group.height * group.width).numpy()
