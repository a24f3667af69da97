"""`psyche_core.p2p.description`: what a joiner gets of a model before it has any of it."""

from __future__ import annotations

from random import Random

from psyche_core.errors import WireError
from psyche_core.p2p.description import decode, encode, is_name
from tests.fuzz import mutation

DOCUMENTED = (WireError,)
MAX_BYTES = 4096
MEMORY = (40, 100_000)


def TARGET(data: bytes) -> None:
    files = decode(data)
    assert all(map(is_name, files))
    assert encode(files) == data


def seeds() -> list[bytes]:
    return [
        encode({}),
        encode({"config.json": b'{"model_type": "llama"}'}),
        encode({"config.json": b"{}", "tokenizer.json": b"x" * 300, "merges.txt": b"", "tokenizer.model": bytes(40)}),
    ]


def mutate(data: bytes, random: Random) -> bytes:
    return mutation.change_cbor(data, random)
