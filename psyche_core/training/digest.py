"""Digests of float32 master weights: do two replicas hold the same bits?

One digest, of every bit, serves epoch ends, every round's statements and the journal, so that each can be compared with the
others. Parameters are hashed in pieces, so that a large model uses several processors. The pieces are part of the digest, the
number of threads is not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

PIECE = 1 << 20
"""Values hashed at once: 4 MiB."""

_TAG = b"psyche/model-digest/1"


def full_digest(masters: Mapping[str, torch.Tensor]) -> bytes:
    """32 bytes that name these masters.

    SHA-256 over a tag and, per parameter ascending by name: name and shape (see `_label`), then the SHA-256 of every piece of its
    little-endian float32 bytes; a piece has PIECE values, the last one the rest. As many threads as torch uses.
    """
    pieces = [piece for name in sorted(masters) for piece in _pieces(masters[name])]
    threads = min(torch.get_num_threads(), len(pieces))
    if threads > 1:
        with ThreadPoolExecutor(threads, thread_name_prefix="digest") as pool:
            hashes = iter(list(pool.map(_hashed, pieces)))
    else:
        hashes = map(_hashed, pieces)
    digest = hashlib.sha256(_TAG)
    for name in sorted(masters):
        digest.update(_label(name, masters[name]))
        for _ in range(-(-masters[name].numel() // PIECE)):
            digest.update(next(hashes))
    return digest.digest()


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    flat = tensor.detach().flatten()  # (numel,)
    return (flat[begin : begin + PIECE] for begin in range(0, flat.numel(), PIECE))


def _hashed(piece: torch.Tensor) -> bytes:
    return hashlib.sha256(float32_bytes(piece)).digest()


def _label(name: str, tensor: torch.Tensor) -> bytes:
    """u32 length and UTF-8 of the name, u32 number of dimensions, u64 each; little-endian."""
    text = name.encode()
    shape = b"".join(size.to_bytes(8, "little") for size in tensor.shape)
    return len(text).to_bytes(4, "little") + text + len(tensor.shape).to_bytes(4, "little") + shape


def float32_bytes(tensor: torch.Tensor) -> memoryview[Any]:
    """A tensor's values as little-endian float32 bytes, without a copy where it is that already. Raises TypeError for others."""
    if tensor.dtype != torch.float32:
        message = f"digests and pieces are of float32 masters, got {tensor.dtype}"
        raise TypeError(message)
    array: NDArray[Any] = tensor.detach().to("cpu").contiguous().numpy()
    return array.astype("<f4", copy=False).reshape(-1).view(np.uint8).data
