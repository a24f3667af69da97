"""A flat buffer in which each parameter's blocks stand one after the other, looked at by parameter name.

Decided here: the part of a parameter is where it is in every flat buffer, only the order inside differs. Tensors come and go in
their own shapes, as copies. Refuses to be written through what it gave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from psyche_optim_distro.layout import Group, Layout, Parameter
from psyche_optim_distro.transform import blocks_of


class BlockedBuffer(Mapping[str, Tensor]):
    """The parameters in `flat` [layout.total], ascending by name; each is copied when it is looked up."""

    def __init__(self, flat: Tensor, layout: Layout) -> None:
        self._flat = flat
        self._places: dict[str, tuple[Parameter, Group | None]] = {}
        for entry in layout.parameters:
            group = next((group for group in layout.groups if group.start <= entry.start < entry.stop <= group.stop), None)
            self._places[entry.name] = entry, group

    def replace(self, name: str, tensor: Tensor) -> None:
        """Take over a tensor of the parameter's shape."""
        blocks = self._blocks(name)
        if blocks is not None:
            group = self._places[name][1]
            assert group is not None
            natural = tensor.reshape(-1, group.height, group.columns)
            blocks.copy_(blocks_of(natural, group.width))

    def __getitem__(self, name: str) -> Tensor:
        shape = self._places[name][0].shape
        blocks = self._blocks(name)
        return self._flat.new_zeros(shape) if blocks is None else blocks.transpose(1, 2).reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def _blocks(self, name: str) -> Tensor | None:
        """[row_blocks, columns / width, height, width]; None of a parameter without elements."""
        entry, group = self._places[name]
        if group is None:
            return None

        return self._flat[entry.start : entry.stop].view(-1, *group.blocks[1:])


class PrefixedMapping(Mapping[str, Tensor]):
    """Another mapping under longer names."""

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
