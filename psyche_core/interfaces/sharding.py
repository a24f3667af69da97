"""Contract of a sharding engine: divides one model among the processes (ranks) of one client. Tensors are opaque here (no torch).

    rank = data_rank * tensor_parallelism + tensor_rank

Ranks with equal data_rank form a tensor group: they work on the same rows, each with its part of the weights. Ranks with equal
tensor_rank form a data group: they work on different rows. Rank 0 belongs to the client, and only it has weights and gradients
as a whole. An engine says how each parameter is divided (`Placement`). Splitting weights and joining gradients follow from that
and are the same for every engine, so that the sent results do not depend on the engine.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Axes = Literal["both", "data", "tensor"]
"""A set of ranks: all of them, or those of our data group or our tensor group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A rank's position in its data group and its tensor group, and the sizes of the groups."""

    data_rank: int
    tensor_rank: int
    data_parallelism: int
    tensor_parallelism: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How a parameter is distributed over the ranks.

    Attributes:
        shape: shape of the whole parameter.
        tensor_dim: dimension that is split over the tensor group; None if each of its ranks holds the whole.
        lengths: lengths of the ranks' parts along tensor_dim; None for equal lengths.
        halves: the whole consists of this many blocks along tensor_dim, and each block is split separately (2 for a gate and an
            up projection in one tensor).
        data_dim: dimension of the tensor group's part that is split over the data group, like torch.chunk does; None if each rank
            of the data group holds that part whole.
    """

    shape: tuple[int, ...]
    tensor_dim: int | None = None
    data_dim: int | None = None
    lengths: tuple[int, ...] | None = None
    halves: int = 1

    @property
    def replicated(self) -> bool:
        """Whether the ranks of a tensor group hold the same values. Their gradients must then be equal bit for bit."""
        return self.tensor_dim is None

    @property
    def axes(self) -> Axes | None:
        """The ranks over which the parameter is split; None if every rank holds all of it."""
        if self.tensor_dim is None:
            return None if self.data_dim is None else "data"
        return "tensor" if self.data_dim is None else "both"

    def __post_init__(self) -> None:
        if self.halves > 1 and self.data_dim == self.tensor_dim:
            message = "a parameter with several halves cannot be split over the data group along tensor_dim"
            raise ValueError(message)
        if self.lengths is not None and (
            self.halves > 1 or self.tensor_dim is None or sum(self.lengths) != self.shape[self.tensor_dim]
        ):
            message = "lengths must add up to the size along tensor_dim of a parameter without halves"
            raise ValueError(message)

    def piece(self, whole: Any, place: Place) -> Any:
        """One rank's part of a whole tensor of `shape`: a view, or a new tensor if there are several halves. May be empty."""
        views = self._views(whole, place)
        if len(views) == 1:
            return views[0]

        piece = whole.new_empty(self.piece_shape(place))
        for half, view in enumerate(views):
            self._half(piece, half).copy_(view)
        return piece

    def put(self, piece: Any, into: Any, place: Place) -> None:
        """Write one rank's piece to its place in `into`, a whole tensor of `shape`."""
        for half, view in enumerate(self._views(into, place)):
            view.copy_(piece if self.halves == 1 else self._half(piece, half))

    def piece_shape(self, place: Place) -> tuple[int, ...]:
        """Shape of one rank's part."""
        shape = list(self.shape)
        if self.tensor_dim is not None:
            shape[self.tensor_dim] = self._part(place)[1] * self.halves
        if self.data_dim is not None:
            shape[self.data_dim] = _chunk(shape[self.data_dim], place.data_rank, place.data_parallelism)[1]
        return tuple(shape)

    def _views(self, whole: Any, place: Place) -> list[Any]:
        """A rank's part of each half."""
        views = [whole]
        if self.tensor_dim is not None:
            start, step = self._part(place)
            length = self.shape[self.tensor_dim] // self.halves
            views = [whole.narrow(self.tensor_dim, half * length + start, step) for half in range(self.halves)]
        if self.data_dim is not None:
            start, count = _chunk(views[0].shape[self.data_dim], place.data_rank, place.data_parallelism)
            views = [view.narrow(self.data_dim, start, count) for view in views]
        return views

    def _part(self, place: Place) -> tuple[int, int]:
        """Start and length of a rank's part of each half."""
        assert self.tensor_dim is not None, "only a split parameter has parts"
        if self.lengths is not None:
            return sum(self.lengths[: place.tensor_rank]), self.lengths[place.tensor_rank]
        step = self.shape[self.tensor_dim] // self.halves // place.tensor_parallelism
        return place.tensor_rank * step, step

    def _half(self, piece: Any, half: int) -> Any:
        assert self.tensor_dim is not None, "only a split parameter has halves"
        step = piece.shape[self.tensor_dim] // self.halves
        return piece.narrow(self.tensor_dim, half * step, step)


def _chunk(length: int, number: int, count: int) -> tuple[int, int]:
    """Start and length of chunk `number` of `count`, split as torch.chunk does: the last chunks may be shorter or empty."""
    size = -(-length // count)
    start = min(number * size, length)
    return start, min(size, length - start)


class RankGroup(ABC):
    """All ranks, as one of them sees them.

    `broadcast`, `scatter`, `gather` and `add_up` are collectives: all ranks involved call them, in the same order.

    If a rank ends or does not answer for too long, they raise an exception on all other ranks. Not guaranteed: which exception.
    """

    @property
    @abstractmethod
    def rank(self) -> int:
        """Our rank, from 0."""

    @property
    @abstractmethod
    def data_parallelism(self) -> int:
        """Number of ranks in a data group."""

    @property
    @abstractmethod
    def tensor_parallelism(self) -> int:
        """Number of ranks in a tensor group."""

    @property
    @abstractmethod
    def mesh(self) -> Any:
        """The torch DeviceMesh of all ranks, dimensions `data` and `tensor`."""

    @property
    def size(self) -> int:
        """Number of all ranks."""
        return self.data_parallelism * self.tensor_parallelism

    @property
    def data_rank(self) -> int:
        """Our rank within our data group."""
        return self.rank // self.tensor_parallelism

    @property
    def tensor_rank(self) -> int:
        """Our rank within our tensor group."""
        return self.rank % self.tensor_parallelism

    def place(self, rank: int) -> Place:
        """The position of a rank in its groups."""
        return Place(
            data_rank=rank // self.tensor_parallelism,
            tensor_rank=rank % self.tensor_parallelism,
            data_parallelism=self.data_parallelism,
            tensor_parallelism=self.tensor_parallelism,
        )

    @abstractmethod
    def broadcast(self, tensor: Any) -> None:
        """Overwrite the tensor on all ranks with the values of rank 0."""

    @abstractmethod
    def scatter(self, pieces: Sequence[Any] | None, into: Any) -> None:
        """Write each rank's piece into `into`. pieces: on rank 0, one per rank, all of one shape; None on the other ranks."""

    @abstractmethod
    def gather(self, piece: Any, *, over: Axes = "both") -> list[Any] | None:
        """Return to rank 0 the tensors of all ranks, or of its own data or tensor group, in order of rank.

        Other ranks get None.
        """

    @abstractmethod
    def add_up(self, tensor: Any, *, over: Literal["data", "tensor"]) -> None:
        """Replace the tensor by its sum over our data or tensor group, with the same bits on all ranks of the group."""


class ShardingEngine(ABC):
    """A model divided among ranks; every rank has one engine. It is synchronous, and one thread calls it.

    Guaranteed: after backward passes and `finish`, gathered gradients are those of the undivided model up to rounding, summed
    over all ranks' rows, and those of replicated parameters are equal, bit for bit, on the ranks of a tensor group. Weights are
    float32. Not guaranteed: the same bits as the undivided model, or an order in which ranks compute. The constructor must raise
    ModelError for every model that the engine does not divide correctly.
    """

    def __init__(self, group: RankGroup) -> None:
        self._group = group

    @property
    @abstractmethod
    def module(self) -> Any:
        """The divided module. It is called like the whole module, and returns the whole module's logits for the given rows."""

    @property
    @abstractmethod
    def placements(self) -> Mapping[str, Placement]:
        """The placement of each trainable parameter, by its name in the undivided module, ascending. Tied ones appear once."""

    @abstractmethod
    def weight(self, name: str) -> Any:
        """This rank's piece of a parameter; the caller writes to it."""

    @abstractmethod
    def local_grad(self, name: str) -> Any | None:
        """This rank's piece of a gradient; None if there is none. Complete only after `finish`."""

    @abstractmethod
    def drop_gradients(self) -> None:
        """Forget all gradients."""

    def finish(self) -> None:  # noqa: B027 - some engines have done this already
        """Collective, called after the last backward pass: complete the gradients.

        Sums them over the data group, and completes those of replicated parameters.
        """

    def close(self) -> None:  # noqa: B027 - some engines hold nothing
        """Release all resources. Idempotent."""

    @property
    def replicated(self) -> tuple[str, ...]:
        """Names of the parameters whose gradients must be equal, bit for bit, on the ranks of a tensor group."""
        return tuple(name for name, placement in self.placements.items() if placement.replicated)

    def scatter(self, weights: Mapping[str, Any] | None) -> None:
        """Collective: write rank 0's whole weights to all ranks' pieces. weights: float32, by name; None on the other ranks."""
        group = self._group
        for name, placement in self.placements.items():
            sizes = [math.prod(placement.piece_shape(group.place(rank))) for rank in range(group.size)]
            own = self.weight(name)
            into = own.new_empty(max(sizes))
            pieces = None
            if weights is not None:
                pieces = [into.new_zeros(max(sizes)) for _ in range(group.size)]
                for rank, padded in enumerate(pieces):
                    padded[: sizes[rank]].copy_(placement.piece(weights[name], group.place(rank)).reshape(-1))
            group.scatter(pieces, into)
            own.copy_(into[: sizes[group.rank]].view(own.shape))

    def gather_full(self, name: str) -> Any | None:
        """Collective, called after `finish`: the whole gradient on rank 0, zero if no rank has one; None on the other ranks."""
        placement, group = self.placements[name], self._group
        own = self.local_grad(name)
        if own is None:
            own = self.weight(name).new_zeros(placement.piece_shape(group.place(group.rank)))
        axes = placement.axes
        if axes is None:
            return own if group.rank == 0 else None

        members = {
            "both": list(range(group.size)),
            "tensor": list(range(group.tensor_parallelism)),
            "data": list(range(0, group.size, group.tensor_parallelism)),
        }[axes]
        if group.rank not in members:
            return None

        sizes = {rank: math.prod(placement.piece_shape(group.place(rank))) for rank in members}
        padded = own.new_zeros(max(sizes.values()))
        padded[: own.numel()].copy_(own.reshape(-1))
        pieces = group.gather(padded, over=axes)
        if pieces is None:
            return None

        whole = own.new_empty(placement.shape)
        for rank, piece in zip(members, pieces, strict=True):
            place = group.place(rank)
            placement.put(piece[: sizes[rank]].view(placement.piece_shape(place)), whole, place)
        return whole
