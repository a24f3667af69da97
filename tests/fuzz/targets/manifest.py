"""Manifests of a model against our own table: one model has one manifest, byte for byte."""

from __future__ import annotations

from psyche_core.errors import WireError
from psyche_core.p2p.manifest import HASH_BYTES, Manifest, decode, encode, max_manifest_bytes, parameter_table, piece_count
from tests.fuzz.mutation import change_cbor as mutate

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (WireError,)
MEMORY = (160, 65_536)

_TABLE = parameter_table({"embed": (2000, 1000), "norm": (3,), "none": (0, 4), "scalar": (), "head": (2, 3, 4)})
MAX_BYTES = max_manifest_bytes(_TABLE) + 64


def seeds() -> list[bytes]:
    hashes = tuple(bytes((number,)) * HASH_BYTES for number in range(piece_count(_TABLE)))
    return [encode(Manifest(run_id, step, _TABLE, hashes)) for run_id, step in (("run", 0), ("é" * 16, 2**32 - 1))]


def TARGET(data: bytes) -> None:
    assert encode(decode(data, expected=_TABLE)) == data
