"""Digests of float32 master weights: do two replicas hold the same bits?

Decided here: the sample is stratified. All parameters, ascending by name and flattened, are cut into blocks of 4096 values
(a parameter's last block may be shorter); of every so many consecutive blocks one is hashed, picked by the seed: of every 100 in
a large model, fewer in a smaller one, so that at least LEAST blocks are read, all of them where there are no more. So about 1 %
of a large model is read wherever it lies, and over a few hundred rounds nothing stays unread; of a small one all is, every time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

BLOCK = 4096
STRIDE = 100
LEAST = 256
"""Blocks that are read at least, where there are so many: 4 MiB, a few milliseconds."""

_SAMPLE_TAG = b"psyche/model-sample/1"


def full_digest(masters: Mapping[str, torch.Tensor]) -> bytes:
    """SHA-256 over, per parameter ascending by name: name and shape (see `_label`), then its little-endian float32 bytes."""
    digest = hashlib.sha256()
    for name in sorted(masters):
        digest.update(_label(name, masters[name]))
        digest.update(float32_bytes(masters[name]))
    return digest.digest()


def sampled_digest(masters: Mapping[str, torch.Tensor], seed: int) -> bytes:
    """SHA-256 over tag, seed (u64), all names and shapes, then the picked blocks' float32 bytes, ascending."""
    key = _SAMPLE_TAG + seed.to_bytes(8, "little")
    names = sorted(masters)
    digest = hashlib.sha256(key)
    for name in names:
        digest.update(_label(name, masters[name]))

    counts = [-(-masters[name].numel() // BLOCK) for name in names]  # blocks per parameter
    total = sum(counts)
    stride = max(1, min(STRIDE, total // LEAST))
    picked = [_pick(key, start, min(stride, total - start)) for start in range(0, total, stride)]
    first = 0  # number of this parameter's first block
    for name, count in zip(names, counts, strict=True):
        flat = masters[name].detach().flatten()  # (numel,)
        for block in picked[first // stride : (first + count - 1) // stride + 1]:
            if first <= block < first + count:
                begin = (block - first) * BLOCK
                digest.update(float32_bytes(flat[begin : begin + BLOCK]))
        first += count
    return digest.digest()


def _pick(key: bytes, start: int, count: int) -> int:
    """One of the blocks start .. start + count - 1."""
    drawn = hashlib.sha256(key + start.to_bytes(8, "little")).digest()
    return start + int.from_bytes(drawn[:8], "little") % count


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
