"""Digests of float32 master weights, to find out whether two replicas hold the same bits.

The same digest, of every bit, is used for epoch ends, every round's statements and the journal, so that these can be compared
with each other. Parameters are hashed in pieces, so that a large model uses several processors. The digest depends on the size of
the pieces but not on the number of threads. It is taken in every round, so it must be quick: a core with AVX-512 and
instructions for SHA-256 hashes 6 GB in a second with BLAKE3, and 1.8 GB with SHA-256.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray

from psyche_core.interfaces.parameters import LazyParameters

PIECE = 1 << 20
"""Number of values of one piece: 4 MiB."""

_TAG = b"psyche/model-digest/2"


def full_digest(masters: Mapping[str, torch.Tensor]) -> bytes:
    """Return the digest of these masters, 32 bytes.

    It is BLAKE3 over a tag and, for each parameter in ascending order of names, its name and shape (see `_label`) and the
    BLAKE3 of each piece of its little-endian float32 bytes. A piece has PIECE values; the last one may be shorter. Uses as many
    threads as torch. Raises TypeError for tensors that are not float32.
    """
    if isinstance(masters, LazyParameters):  # each look-up makes a tensor: one at a time, so that there is never a whole copy
        digest = blake3(_TAG)
        for name in sorted(masters):
            tensor = masters[name]
            digest.update(_label(name, tensor))
            for piece in _pieces(tensor):
                digest.update(_hashed(piece))
        return digest.digest()

    pieces = [piece for name in sorted(masters) for piece in _pieces(masters[name])]
    threads = min(torch.get_num_threads(), len(pieces))
    if threads > 1:
        with ThreadPoolExecutor(threads, thread_name_prefix="digest") as pool:
            hashes = iter(list(pool.map(_hashed, pieces)))
    else:
        hashes = map(_hashed, pieces)
    digest = blake3(_TAG)
    for name in sorted(masters):
        digest.update(_label(name, masters[name]))
        for _ in range(-(-masters[name].numel() // PIECE)):
            digest.update(next(hashes))
    return digest.digest()


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    flat = tensor.detach().flatten()  # (numel,)
    return (flat[begin : begin + PIECE] for begin in range(0, flat.numel(), PIECE))


def _hashed(piece: torch.Tensor) -> bytes:
    return blake3(float32_bytes(piece)).digest()


def _label(name: str, tensor: torch.Tensor) -> bytes:
    """Return the name's length (u32), the name in UTF-8, the number of dimensions (u32) and each size (u64), little-endian."""
    text = name.encode()
    shape = b"".join(size.to_bytes(8, "little") for size in tensor.shape)
    return len(text).to_bytes(4, "little") + text + len(tensor.shape).to_bytes(4, "little") + shape


def float32_bytes(tensor: torch.Tensor) -> memoryview[Any]:
    """Return a float32 tensor's values as little-endian bytes, without a copy if possible. Raises TypeError for other dtypes."""
    if tensor.dtype != torch.float32:
        message = f"digests and pieces are of float32 masters, got {tensor.dtype}"
        raise TypeError(message)
    array: NDArray[Any] = tensor.detach().to("cpu").contiguous().numpy()
    return array.astype("<f4", copy=False).reshape(-1).view(np.uint8).data
