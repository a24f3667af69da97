"""The backend in torch. It runs on every device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from psyche_core.interfaces.rate_groups import TensorRate
from psyche_optim_distro.chunks.layout import Group, Layout
from psyche_optim_distro.chunks.precision import Precision
from psyche_optim_distro.chunks.rates import Rates, cut_by_rate, factors
from psyche_optim_distro.chunks.tiles import Part, Workspace, parts_of, tiles_of
from psyche_optim_distro.chunks.transform import as_blocks, encode
from psyche_optim_distro.compress import Compressor, add_sent, dct_bases, delta_blocks
from psyche_optim_distro.direction.aggregation import Aggregator, TileVotes
from psyche_optim_distro.payload import codec
from psyche_optim_distro.payload.coefficients import Coefficients, as_selection
from psyche_optim_distro.payload.top_k import CoefficientTables, Selection, TopKSelector
from psyche_optim_distro.preconditioner import Preconditioner
from psyche_optim_distro.update import SecondStage, Updater
from psyche_optim_distro.value_format import ValueFormat


class TorchCompressor(Compressor):
    """Processes the model tile by tile, see `tiles`.

    layout: parameter table. device: of the parameters. precision: of the transform. workspace: scratch memory.
    """

    def __init__(self, layout: Layout, device: torch.device, precision: Precision, *, workspace: Workspace) -> None:
        self.precision = precision
        self._layout = layout
        self._device = device
        self._basis = dct_bases(layout, device)
        self._rounded_basis = {size: basis.to(precision.large) for size, basis in self._basis.items()}
        self._tiles = [(tile, parts_of(tile, layout)) for tile in tiles_of(layout, device)]
        self._workspace = workspace

    def compress(
        self,
        delta: Tensor,
        gradients: Mapping[str, Tensor],
        unsubtracted: Sequence[CoefficientTables],
        tables: CoefficientTables,
        *,
        scale: float,
        decay: float,
        factor: float = 1.0,
        preconditioner: Preconditioner | None = None,
    ) -> None:
        """See `Compressor.compress`."""
        if preconditioner is None:
            scale *= factor
        else:
            gradients = preconditioner.take(gradients, factor=factor)
        for group in self._layout.groups:
            selector = TopKSelector(group, self._device, dtype=self.precision.of(group.height * group.width))
            for tile, parts in self._tiles_of(group):
                for sent in unsubtracted:
                    add_sent(delta, tile, sent, self._basis, factor=-1.0)
                _add_gradients(delta, tile, parts, gradients, scale, decay)
                coefficients = self._transformed(tile, delta_blocks(delta, tile))
                selector.add(tile, coefficients, out=self._workspace.lend(2, coefficients.shape, dtype=coefficients.dtype))
            indices, values = tables.of(group)
            selected = selector.result()
            indices.copy_(selected[0])
            values.copy_(selected[1])

    def _tiles_of(self, group: Group) -> Iterator[tuple[Group, tuple[Part, ...]]]:
        """Yield the tiles of a group and their parameters."""
        return ((tile, parts) for tile, parts in self._tiles if group.start <= tile.start < group.stop)

    def _transformed(self, tile: Group, blocks: Tensor) -> Tensor:
        """Return the DCT coefficients of one tile of delta [chunks, height, width], in scratch memory."""
        basis, kind = self._basis, self.precision.of(tile.height * tile.width)
        first, second, rounded = (self._workspace.lend(number, blocks.shape, dtype=kind) for number in range(3))
        if kind != blocks.dtype:
            blocks, basis = rounded.copy_(blocks), self._rounded_basis
        return encode(blocks, basis[tile.height], basis[tile.width], out=(first, second))


class TorchVoteUpdater(Updater[TileVotes]):
    """Updater for payloads of signs. layout: parameter table. aggregator: of the same table. rates: of its parameters.

    second_stage: makes the direction from decoded values; None: their signs are the direction.
    """

    def __init__(self, layout: Layout, aggregator: Aggregator, rates: Rates, *, second_stage: SecondStage | None = None) -> None:
        self._layout = layout
        self._aggregator = aggregator
        self._mover = _Mover(layout, rates, signs=second_stage is None)
        self._second_stage = second_stage

    def decode(self, payload: bytes) -> TileVotes:
        """Return the votes of a payload by tile. Raises PayloadRejected."""
        return self._aggregator.votes(codec.decode(self._layout, payload, values=ValueFormat.SIGNS))

    def take(self, coefficients: Coefficients) -> TileVotes:
        """See `Updater.take`."""
        return self._aggregator.votes(as_selection(self._layout, coefficients))

    def update(self, masters: Tensor, decoded: Sequence[TileVotes], *, learning_rate: float, weight_decay: float) -> None:
        """See `Updater.update`."""
        directions = self._aggregator.vote_directions(decoded, signs=self._second_stage is None)
        if self._second_stage is not None:
            directions = _with(self._second_stage, directions)
        self._mover.move(masters, directions, learning_rate=learning_rate, weight_decay=weight_decay)


class TorchValueUpdater(Updater[Selection]):
    """Updater for payloads of values.

    layout: parameter table. aggregator: of the same table. values: format of the values. rates: of its parameters. second_stage:
    one that does not depend on the scale of its input; None: the signs of decoded values are the direction.
    """

    def __init__(
        self,
        layout: Layout,
        aggregator: Aggregator,
        values: ValueFormat,
        rates: Rates,
        *,
        second_stage: SecondStage | None = None,
    ) -> None:
        self._layout = layout
        self._aggregator = aggregator
        self._values = values
        self._mover = _Mover(layout, rates, signs=second_stage is None)
        self._second_stage = second_stage

    def decode(self, payload: bytes) -> Selection:
        """Return the coefficients of a payload. Raises PayloadRejected."""
        return codec.decode(self._layout, payload, values=self._values)

    def take(self, coefficients: Coefficients) -> Selection:
        """See `Updater.take`."""
        return as_selection(self._layout, coefficients)

    def update(self, masters: Tensor, decoded: Sequence[Selection], *, learning_rate: float, weight_decay: float) -> None:
        """See `Updater.update`."""
        directions = self._aggregator.value_directions(decoded, signs=self._second_stage is None)
        if self._second_stage is not None:
            directions = _with(self._second_stage, directions)
        self._mover.move(masters, directions, learning_rate=learning_rate, weight_decay=weight_decay)


def _with(second_stage: SecondStage, updates: Iterable[tuple[Group, Tensor]]) -> Iterator[tuple[Group, Tensor]]:
    """Yield the directions of all tiles."""
    second_stage.begin()
    for tile, update in updates:
        yield tile, second_stage.direction(update.view(-1), tile)


def _add_gradients(
    delta: Tensor, tile: Group, parts: Sequence[Part], gradients: Mapping[str, Tensor], scale: float, decay: float
) -> None:
    """Update one tile: delta <- decay delta + scale gradient."""
    delta[tile.start : tile.stop].mul_(decay)
    for part in parts:
        gradient = gradients.get(part.name)
        if gradient is not None:
            natural = gradient[part.first : part.last].view(-1, tile.height, tile.columns)
            blocks = as_blocks(natural, tile.width)
            delta[part.start : part.stop].view(blocks.shape).add_(blocks, alpha=scale)


class _Mover:
    """Moves masters along directions. layout: parameter table. rates: of its parameters. signs: directions are -1, 0 or +1."""

    def __init__(self, layout: Layout, rates: Rates, *, signs: bool = True) -> None:
        self._signs = signs
        self._layout = layout
        self._rates = rates
        self._parts: dict[int, tuple[tuple[Group, TensorRate], ...]] = {}

    def move(
        self, masters: Tensor, directions: Iterable[tuple[Group, Tensor]], *, learning_rate: float, weight_decay: float
    ) -> None:
        """Take a step in each tile, as `update` describes. directions: by tile, of whole tables."""
        for tile, direction in directions:
            if tile.start not in self._parts:
                self._parts[tile.start] = cut_by_rate(tile, self._layout, self._rates)
            for part, rate in self._parts[tile.start]:
                decay, step = factors(rate, learning_rate=learning_rate, weight_decay=weight_decay)
                own = direction[part.start - tile.start : part.stop - tile.start]
                _apply_direction(masters[part.start : part.stop], own, float(decay), float(step), signs=self._signs)


def _apply_direction(masters: Tensor, direction: Tensor, decay: float, step: float, *, signs: bool) -> None:
    """Update a part of a tile in place: masters <- masters decay - step direction. A direction that is not signs changes, too."""
    if decay != 1:
        masters.mul_(decay)
    if signs:
        masters.sub_(direction, alpha=step)
    else:
        masters.sub_(direction.mul_(step))  # as one fused operation, some devices would round the product and others would not
