"""Writes safetensors files tensor by tensor.

The content of a file is planned from shapes only, so its header can be written first and its tensors made one at a time. Values
are converted in slices, so no second copy of the model is in memory. Format: length of the header (u64), JSON header padded to a
multiple of 8 bytes, then the tensors' little-endian values without gaps.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final

import torch

SLICE_VALUES: Final = 2**22
"""Number of values that are converted and written at once."""

_TORCH: Final[Mapping[str, str]] = MappingProxyType({"format": "pt"})

_CODES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True, slots=True)
class Planned:
    """A tensor to be written. dtype: in the file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def byte_count(self) -> int:
        """Its length in the file, in bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def into_shards(plan: Sequence[Planned], *, max_bytes: int) -> list[list[Planned]]:
    """Divide the plan into parts of at most `max_bytes`, in order. A larger tensor gets a part of its own."""
    shards: list[list[Planned]] = [[]]
    held = 0
    for tensor in plan:
        if shards[-1] and held + tensor.byte_count > max_bytes:
            shards.append([])
            held = 0
        shards[-1].append(tensor)
        held += tensor.byte_count
    return shards


class ShardWriter:
    """Writes the shards of a plan into a folder. Tensors must come in the order of the plan.

    The names are those of the Hub: model.safetensors, or model-00001-of-0000N.safetensors with model.safetensors.index.json.
    """

    def __init__(self, folder: Path, shards: Sequence[Sequence[Planned]]) -> None:
        self._folder = folder
        self._shards = {shard_name(number, len(shards)): shard for number, shard in enumerate(shards, start=1)}

    def write(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Write all shards, taking `tensors` one at a time. Raises OSError, and ValueError for a tensor in the wrong order."""
        for file_name, shard in self._shards.items():
            write_tensors(self._folder / file_name, shard, tensors)
        if len(self._shards) > 1:
            self._write_index()

    def _write_index(self) -> None:
        weight_map = {planned.name: file_name for file_name, shard in self._shards.items() for planned in shard}
        total = sum(planned.byte_count for shard in self._shards.values() for planned in shard)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (self._folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def shard_name(number: int, count: int) -> str:
    """Return the file name of shard `number` (from 1) of `count`."""
    return "model.safetensors" if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"


def write_tensors(
    path: Path, plan: Sequence[Planned], tensors: Iterator[tuple[str, torch.Tensor]], *, metadata: Mapping[str, str] = _TORCH
) -> None:
    """Write one safetensors file, and flush it to disk. tensors: by name, in the order of the plan; one is taken at a time.

    metadata: strings for the header. Raises OSError, and ValueError for a tensor in the wrong order.
    """
    with path.open("wb") as file:
        file.write(_header(plan, metadata))
        for planned in plan:
            name, tensor = next(tensors, ("", torch.empty(0)))
            if (name, tuple(tensor.shape)) != (planned.name, planned.shape):
                message = f"expected tensor {planned.name} {planned.shape}, got {name!r} {tuple(tensor.shape)}"
                raise ValueError(message)
            _write_values(file, tensor, planned.dtype)
        file.flush()
        os.fsync(file.fileno())


def _header(shard: Sequence[Planned], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, Mapping[str, object]] = {"__metadata__": dict(metadata)}
    offset = 0
    for planned in shard:
        end = offset + planned.byte_count
        entries[planned.name] = {"dtype": _CODES[planned.dtype], "shape": planned.shape, "data_offsets": (offset, end)}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write_values(file: BinaryIO, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    flat = tensor.detach().reshape(-1)
    for start in range(0, flat.numel(), SLICE_VALUES):
        part = flat[start : start + SLICE_VALUES].to("cpu", dtype).contiguous()
        file.write(part.view(torch.uint8).numpy().data)
