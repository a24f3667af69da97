"""A challenge and a proof, as they come in the clear. A cookie is accepted only as it was issued."""

from __future__ import annotations

import contextlib

from psyche_backend_tcp.connections.puzzle import (
    MOST_BITS,
    Cookies,
    decode_challenge,
    decode_proof,
    encode_challenge,
    encode_proof,
    prove,
)
from psyche_core.errors import WireError
from psyche_core.wire.signing import SecretKey
from tests.fuzz.mutation import change_bytes as mutate

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (WireError,)
MAX_BYTES = 256
MEMORY = (400, 65_536)

_COOKIES = Cookies()
_COOKIE = _COOKIES.issue(4, 0.0)
_PROOF = prove(_COOKIE, SecretKey(b"k" * 32))


def seeds() -> list[bytes]:
    return [encode_proof(_PROOF), encode_challenge(_COOKIE)]


def TARGET(data: bytes) -> None:
    with contextlib.suppress(WireError):
        cookie = decode_challenge(data)
        assert encode_challenge(cookie) == data
        assert cookie[0] <= MOST_BITS
        return

    proof = decode_proof(data)
    assert encode_proof(proof) == data
    assert proof.cookie == _COOKIE or not _COOKIES.use(proof.cookie, 0.0), "a cookie never issued is accepted"
    assert not proof.signed or (proof.cookie, proof.public) == (_COOKIE, _PROOF.public), "a signature never made is accepted"
