"""Contract for optimizers whose training can be replayed: what a verifier needs to know of one, chunk by chunk.

It fits optimizers that gather gradients in a buffer of chunks, the *delta*, and send the largest coefficients of an orthonormal
transform of each chunk (the transform may be the identity). Per step:

    delta <- decay (delta - what was taken off it) + contribution of the gradient;  payload = largest coefficients of delta

A contribution may also depend on a memory of earlier gradients, one number of at least 0 for each element, such as their mean
squares. It is committed to and opened like delta, so that others can compute it forth.

psyche_core.verification compares such chunks; docs/explanation/verification.md explains the check. Chunks are numbered through
all groups, group by group; the chunks of a group have one size. `rows` selects chunks: for each group an int64 array of places
in it, and each method returns one array for each group, in the same order: [rows, size]. Arrays are numpy's, float32 unless
said otherwise, and copies. No numpy import here: they are opaque.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ChunkGroup:
    """Chunks of one shape. count: their number. size: elements of each. topk: most coefficients that one sends."""

    count: int
    size: int
    topk: int


@dataclass(frozen=True, slots=True)
class AppliedStep:
    """What `Optimizer.apply` got: payloads of one step, in any order, and the learning rate."""

    payloads: Sequence[bytes]
    learning_rate: float


class Replay(ABC):
    """A view of one optimizer. Like it, it is synchronous and belongs to one thread.

    What depends on nothing but the parameter table and the settings may run in any thread: `groups`, `decay`, `verifiable`,
    `taken_fraction`, `has_memory`, `memory_decay`, `ahead_bytes`, `largest_contribution`, `usual_contribution`,
    `contribution_of`, `coefficients`, `elements`, `sent` and `positions`.

    Where `verifiable` is True, others can check a share from its samples, its payload and opened chunks. Then `gradient`,
    `contribution_of`, `load_weights` and `largest_contribution` must be implemented, and `memory` where there is one. Where
    `ahead_bytes` is a number, `ahead` and `load_weights_ahead` take the place of `load_weights`.
    """

    @property
    def verifiable(self) -> bool:
        """Whether others can compute a contribution, delta has a bound, and `apply` can be undone."""
        return False

    @property
    def taken_fraction(self) -> float:
        """The part of the coefficients sent that is taken off delta. Constant."""
        return 1.0

    @property
    def has_memory(self) -> bool:
        """Whether contributions depend on a memory. Constant."""
        return False

    @property
    def memory_decay(self) -> float:
        """Factor of the memory per step, before something that is made of the gradient alone is added. Constant."""
        raise NotImplementedError

    @property
    def ahead_bytes(self) -> int | None:
        """Longest payload by which a replica looks ahead, in bytes; None if it looks ahead by the signs of its delta. Constant.

        Signs are an eighth of a byte for each parameter, which a trainer must show its verifier; its payload is much shorter.
        """
        return None

    def ahead(self) -> bytes:
        """The own payload by which the last `load_lookahead` looked ahead; empty if there was none in flight."""
        raise NotImplementedError

    def memory(self, rows: Sequence[Any]) -> tuple[list[Any], int]:
        """Chunks of the present memory, zero at first, and the number of gradients that it remembers."""
        raise NotImplementedError

    def gradient(self, gradients: Mapping[str, Any], rows: Sequence[Any]) -> list[Any]:
        """What a contribution is made of, besides memory and learning rate: chunks of the gradients, clipped.

        gradients: as for `contribution`.
        """
        raise NotImplementedError

    def contribution_of(
        self, gradient: Sequence[Any], *, memory: Sequence[Any] | None, count: int, learning_rate: float
    ) -> tuple[list[Any], list[Any] | None]:
        """The contribution of chunks that `gradient` gave, and their memory after it, float64; None where there is none.

        memory: of the same chunks before, None where there is none. count: number of gradients that it remembers.
        """
        raise NotImplementedError

    def largest_contribution(self, *, learning_rate: float) -> float:  # noqa: ARG002 - without a bound
        """Upper bound of the L2 norm of what one `compress` adds to delta. Infinite where there is none."""
        return math.inf

    def usual_contribution(self, *, learning_rate: float) -> float:
        """About that norm in training, where the bound is much larger. It limits what rounding may excuse."""
        return self.largest_contribution(learning_rate=learning_rate)

    def load_weights(self, signs: Sequence[Any] | None, *, undone: Sequence[AppliedStep], learning_rate: float) -> None:
        """Write the compute weights at which another replica trained. Masters, delta and payloads stay as they are.

        signs: of that replica's delta, int8 [count, size] for each group, each -1, 0 or +1; None for a delta of zeros.
        undone: steps that our masters include and its masters did not, the newest first. learning_rate: of its look-ahead. Exact
        up to rounding. Raises PayloadRejected.
        """
        raise NotImplementedError

    def load_weights_ahead(self, payload: bytes, *, undone: Sequence[AppliedStep], learning_rate: float) -> None:
        """As `load_weights`, for a replica that looked ahead by this payload of its own; empty: it did not look ahead.

        Raises PayloadRejected.
        """
        raise NotImplementedError

    @property
    @abstractmethod
    def groups(self) -> Sequence[ChunkGroup]:
        """All groups, in the order of their chunks' numbers. Constant."""

    @property
    @abstractmethod
    def decay(self) -> float:
        """Factor of delta per step. Constant."""

    @abstractmethod
    def delta(self, rows: Sequence[Any]) -> list[Any]:
        """Chunks of the present delta. After `compress` it contains what the payload sends."""

    @abstractmethod
    def taken(self, step: int, rows: Sequence[Any]) -> list[Any]:
        """The coefficients that the next `compress` takes off delta because of the payload of `step`; zero where there is none.

        Raises ValueError if that payload is settled or was never made.
        """

    @abstractmethod
    def contribution(self, gradients: Mapping[str, Any], rows: Sequence[Any], *, learning_rate: float) -> list[Any]:
        """What the next `compress` would add to delta for these gradients, clipping included.

        gradients: tensors by parameter name, in the parameters' shapes, all of them, since clipping looks at the norm of all; a
        missing one is zero. They may be those of another device.
        """

    @abstractmethod
    def coefficients(self, chunks: Sequence[Any]) -> list[Any]:
        """The transform of chunks, float64: orthonormal, so that norms stay. chunks: one array for each group."""

    @abstractmethod
    def elements(self, coefficients: Sequence[Any]) -> list[Any]:
        """The inverse of `coefficients`, float64."""

    @abstractmethod
    def sent(self, payload: bytes, rows: Sequence[Any]) -> list[Any]:
        """A payload's values at their positions, zero elsewhere. Raises PayloadRejected."""

    @abstractmethod
    def positions(self, payload: bytes) -> Any:
        """The positions of a payload's coefficients: int64 [n], ascending, all different, the same numbers on every replica.

        Chunks that always send all of their coefficients say nothing about who computed them; theirs are left out. May be called
        from any thread. Raises PayloadRejected, never anything else.
        """
