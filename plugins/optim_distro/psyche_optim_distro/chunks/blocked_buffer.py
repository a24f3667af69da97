"""Access by parameter name to a flat buffer in blocked order: each block of a parameter is contiguous.

A parameter takes the same range as in every other flat buffer; only the order of elements inside that range differs. Tensors are
copied in and out in the parameter's own shape, so a tensor that was read is not a view of the buffer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from torch import Tensor

from psyche_optim_distro.chunks.layout import Group, Layout, Parameter
from psyche_optim_distro.chunks.transform import as_blocks


class BlockedBuffer(Mapping[str, Tensor]):
    """Maps parameter names, ascending, to copies of their tensors.

    flat: [layout.total], in blocked order. layout: parameter table.
    """

    def __init__(self, flat: Tensor, layout: Layout) -> None:
        self._flat = flat
        self._places: dict[str, tuple[Parameter, Group | None]] = {}
        for entry in layout.parameters:
            group = next((group for group in layout.groups if group.start <= entry.start < entry.stop <= group.stop), None)
            self._places[entry.name] = entry, group

    def replace(self, name: str, tensor: Tensor) -> None:
        """Copy a tensor of the parameter's shape into the buffer."""
        blocks = self._blocks(name)
        if blocks is not None:
            group = self._places[name][1]
            assert group is not None
            natural = tensor.reshape(-1, group.height, group.columns)
            blocks.copy_(as_blocks(natural, group.width))

    def __getitem__(self, name: str) -> Tensor:
        shape = self._places[name][0].shape
        blocks = self._blocks(name)
        return self._flat.new_zeros(shape) if blocks is None else blocks.transpose(1, 2).reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def _blocks(self, name: str) -> Tensor | None:
        """Return a view [row_blocks, columns / width, height, width]; None for a parameter without elements."""
        entry, group = self._places[name]
        if group is None:
            return None

        return self._flat[entry.start : entry.stop].view(-1, *group.blocks[1:])


class PrefixedMapping(Mapping[str, Tensor]):
    """A view of another mapping whose names all get a prefix."""

    def __init__(self, prefix: str, tensors: Mapping[str, Tensor]) -> None:
        self._prefix = prefix
        self._tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        if not name.startswith(self._prefix):
            raise KeyError(name)

        return self._tensors[name[len(self._prefix) :]]

    def __iter__(self) -> Iterator[str]:
        return (self._prefix + name for name in self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class JoinedMapping(Mapping[str, Tensor]):
    """A view of two mappings with different names."""

    def __init__(self, first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
        self._first = first
        self._second = second

    def __getitem__(self, name: str) -> Tensor:
        return self._first[name] if name in self._first else self._second[name]

    def __iter__(self) -> Iterator[str]:
        return itertools.chain(self._first, self._second)

    def __len__(self) -> int:
        return len(self._first) + len(self._second)
