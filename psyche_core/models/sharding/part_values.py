"""Sends what a part of an optimizer is given or gives back from one rank to another.

First the length of a header (int64), then the header, canonical CBOR: `{"numbers": {name: number}, "tensors": [[name, dtype,
shape], …]}`, then the bytes of each tensor. The header is limited in size and checked before memory is taken for any tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from psyche_core.errors import WireError
from psyche_core.interfaces.optimizer_parts import PartValues
from psyche_core.models.sharding.commands import MAX_SIZE
from psyche_core.models.sharding.group.collectives import TorchGroup
from psyche_core.wire.codec import decode as decode_cbor
from psyche_core.wire.codec import encode as encode_cbor

MAX_HEADER_BYTES: Final = 2**24
_MAX_ITEMS: Final = 2**20
_KINDS: Final = ("bfloat16", "bool", "float32", "float64", "int32", "int64", "uint16", "uint32", "uint8")
_DTYPES: Final[Mapping[str, torch.dtype]] = {name: getattr(torch, name) for name in _KINDS}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}
_NOWHERE: Final[Mapping[str, torch.Tensor]] = MappingProxyType({})


def header_of(values: PartValues) -> bytes:
    """Return the header. Raises ValueError for numbers or dtypes that cannot be sent, and for a header that is too long."""
    tensors = [[name, _NAMES.get(tensor.dtype, ""), list(tensor.shape)] for name, tensor in values.tensors.items()]
    if unknown := [name for name, kind, _ in tensors if not kind]:
        message = f"tensor {unknown[0]} has a dtype that ranks do not send; use one of {', '.join(_KINDS)}"
        raise ValueError(message)
    header = encode_cbor({"numbers": dict(values.numbers), "tensors": tensors})
    if len(header) > MAX_HEADER_BYTES:
        message = f"a header between ranks has at most {MAX_HEADER_BYTES} bytes, got {len(header)}"
        raise ValueError(message)
    return header


def read_header(data: bytes) -> tuple[dict[str, Any], list[tuple[str, torch.dtype, tuple[int, ...]]]]:
    """Return the numbers by name, and name, dtype and shape of each tensor. Raises only WireError."""
    match decode_cbor(data, max_bytes=MAX_HEADER_BYTES, max_depth=4, max_items=_MAX_ITEMS):
        case {"numbers": dict(numbers), "tensors": list(given), **others} if not others:
            pass
        case _:
            message = "a header between ranks has numbers and tensors"
            raise WireError(message)

    if not all(isinstance(name, str) and isinstance(value, int | float | bool | str) for name, value in numbers.items()):
        message = "numbers between ranks have names, and are integers, floats, bools or texts"
        raise WireError(message)

    tensors = []
    for entry in given:
        match entry:
            case [str(name), str(kind), list(shape)] if kind in _DTYPES and all(type(size) is int for size in shape):
                pass
            case _:
                message = f"a tensor between ranks has a name, a dtype and a shape, got {entry!r:.80}"
                raise WireError(message)
        if min(shape, default=0) < 0 or math.prod(shape) >= MAX_SIZE:
            message = f"tensor {name!r:.40} between ranks has the shape {shape!r:.40}, which is not possible"
            raise WireError(message)
        tensors.append((name, _DTYPES[kind], tuple(shape)))
    return numbers, tensors


def send_values(group: TorchGroup, rank: int, values: PartValues) -> None:
    """Send values to a rank, which calls `receive_values`."""
    header = header_of(values)
    group.send_to(rank, torch.tensor([len(header)], dtype=torch.int64, device=group.device))
    group.send_to(rank, torch.frombuffer(bytearray(header), dtype=torch.uint8).to(group.device))
    for tensor in values.tensors.values():
        if tensor.numel():
            group.send_to(rank, _bytes_of(tensor.to(group.device).contiguous()))


def receive_values(group: TorchGroup, rank: int, *, into: Mapping[str, torch.Tensor] = _NOWHERE) -> PartValues:
    """Receive the values that a rank sends. into: as for `OptimizerParts.call`. Raises WireError."""
    length = torch.zeros(1, dtype=torch.int64, device=group.device)
    group.receive_from(rank, length)
    if not 0 < int(length) <= MAX_HEADER_BYTES:
        message = f"a header between ranks has at most {MAX_HEADER_BYTES} bytes, got {int(length)}"
        raise WireError(message)

    data = torch.empty(int(length), dtype=torch.uint8, device=group.device)
    group.receive_from(rank, data)
    numbers, expected = read_header(bytes(data.cpu().numpy()))
    tensors: dict[str, torch.Tensor] = {}
    for name, dtype, shape in expected:
        place = into.get(name)
        if place is not None and (place.dtype != dtype or place.numel() != math.prod(shape)):
            message = f"{name!r:.60} must come with {place.numel()} elements of {place.dtype}, got {math.prod(shape)} of {dtype}"
            raise WireError(message)

        there = place is not None and place.device == group.device
        target = place if place is not None and there else torch.empty(shape, dtype=dtype, device=group.device)
        if target.numel():
            group.receive_from(rank, _bytes_of(target))
        if place is None:
            tensors[name] = target
        elif not there:
            place.view(-1).copy_(target.view(-1))
    return PartValues(numbers, tensors)


def put(values: PartValues, into: Mapping[str, torch.Tensor]) -> PartValues:
    """Copy tensors to where they belong, and return the others. into: as for `OptimizerParts.call`."""
    for name, place in into.items():
        if name in values.tensors:
            place.view(-1).copy_(values.tensors[name].view(-1))
    return PartValues(values.numbers, {name: tensor for name, tensor in values.tensors.items() if name not in into})


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a contiguous tensor's bytes."""
    return tensor.view(-1).view(torch.uint8)
