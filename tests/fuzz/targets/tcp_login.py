"""Both sides' words in a login. The client's is accepted only as its key signed it for this very connection."""

from __future__ import annotations

import contextlib

from psyche_backend_tcp.connections.login import (
    COORDINATOR,
    Hello,
    Login,
    LoginRefused,
    check_login,
    check_welcome,
    decode_hello,
    encode_hello,
    encode_login,
    sign_welcome,
)
from psyche_backend_tcp.protocol import Bye, encode_server
from psyche_core.wire.codec import decode
from psyche_core.wire.signing import SecretKey
from tests.fuzz.mutation import change_cbor as mutate

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (LoginRefused,)
MAX_BYTES = 1024
MEMORY = (400, 65_536)

_KEY, _SERVER = SecretKey(b"k" * 32), SecretKey(b"s" * 32)
_HELLO = Hello(COORDINATOR, "run", b"n" * 32, {"token_size": 2})
_LOGIN = Login(_KEY.public, b"m" * 32)
_FRAME = encode_login(_HELLO, _LOGIN, _KEY, run_id="run", server_key=_SERVER.public)
_ALWAYS_ALLOWED = sign_welcome(_HELLO, _LOGIN, _SERVER)


def seeds() -> list[bytes]:
    other_run = encode_login(_HELLO, _LOGIN, _KEY, run_id="other", server_key=_SERVER.public)
    return [_FRAME, encode_hello(_HELLO), other_run, encode_server(Bye("Full", "later")), _ALWAYS_ALLOWED]


def TARGET(data: bytes) -> None:
    with contextlib.suppress(LoginRefused):
        hello = decode_hello(data, service=COORDINATOR)
        encode_login(hello, _LOGIN, _KEY, run_id="run", server_key=_SERVER.public)

    with contextlib.suppress(LoginRefused):
        check_welcome(data, _HELLO, _LOGIN, server_key=_SERVER.public)
        assert data == _ALWAYS_ALLOWED, "a welcome that was never signed is accepted"

    assert check_login(data, _HELLO, server_key=_SERVER.public) == _LOGIN
    # from the third field on: `true` or `2.0` as version is let by, which changes nothing that is used
    assert decode(data, max_bytes=MAX_BYTES)[2:] == decode(_FRAME, max_bytes=MAX_BYTES)[2:], "a login never signed is accepted"
