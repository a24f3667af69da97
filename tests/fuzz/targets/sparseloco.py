"""SparseLoCo payloads: what passes the check has one encoding, and moves no weight further than honest inner steps could."""

from __future__ import annotations

from random import Random

import numpy as np

from psyche_core.errors import PayloadRejected
from psyche_optim_sparseloco import codec
from psyche_optim_sparseloco.layout import build_layout
from psyche_optim_sparseloco.quantizer import LARGEST_CODE, UNIT, Quantized
from psyche_optim_sparseloco.settings import SparseLoCoSettings
from tests.fuzz.mutation import change_bytes

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (PayloadRejected,)
MEMORY = (64, 65_536)

_LAYOUT = build_layout({"bias": (5,), "norm": (1,), "weight": (7, 30)}, SparseLoCoSettings(topk=6, chunk_size=64))
_HEADER_BYTES = 21
MAX_BYTES = codec.max_payload_bytes(_LAYOUT) + 8


def seeds() -> list[bytes]:
    rng, payloads = np.random.default_rng(1), []
    for counts in (_LAYOUT.quotas, _LAYOUT.quotas // 2, 0 * _LAYOUT.quotas):
        chunks = zip(_LAYOUT.starts, _LAYOUT.sizes, counts, strict=True)
        rows = [start + np.sort(rng.choice(size, count, replace=False)) for start, size, count in chunks]
        positions = np.concatenate(rows).astype(np.int64)
        codes = np.sort(rng.integers(0, LARGEST_CODE + 1, (int((counts > 0).sum()), 2)), axis=1).astype(np.uint8)
        flags = rng.integers(0, 2, (2, positions.size)).astype(np.bool_)
        payloads.append(codec.encode(_LAYOUT, positions, counts, Quantized(codes, flags[0], flags[1])))
    return payloads


def mutate(data: bytes, random: Random) -> bytes:
    """Mostly other bytes behind the fingerprint."""
    if random.random() < 0.1:
        return change_bytes(data, random)
    return data[:_HEADER_BYTES] + change_bytes(data[_HEADER_BYTES:], random)


def TARGET(data: bytes) -> None:
    update = codec.decode(_LAYOUT, data)
    assert update.positions.size == update.amounts.size <= int(_LAYOUT.quotas.sum())
    assert bool((np.diff(update.positions) > 0).all())
    assert not update.positions.size or 0 <= int(update.positions[0]) <= int(update.positions[-1]) < _LAYOUT.total
    assert not update.positions.size or 0 < int(np.abs(update.amounts).min()) <= int(np.abs(update.amounts).max()) <= UNIT
