"""The client's side of a connection's beginning: connect, TLS, compare the server's key, log in, see the server prove itself."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import anyio
from anyio.abc import ByteStream

from psyche_backend_tcp.addresses import ServerAddress, reason
from psyche_backend_tcp.limits import CLIENT_FRAME, LOGIN_FRAME, SERVER_FRAME
from psyche_backend_tcp.listener import CONNECTION_LOST
from psyche_backend_tcp.login import NONCE_BYTES, Hello, Login, LoginRefused, check_welcome, decode_hello, encode_login
from psyche_backend_tcp.protocol import Bye, Welcome, decode_server
from psyche_backend_tcp.tls import WrongServer, open_tls
from psyche_core.errors import BackendError, CommandRefused, WireError
from psyche_core.sentences import printable
from psyche_core.wire.frames import FramedStream
from psyche_core.wire.signing import SecretKey


@dataclass(frozen=True, slots=True)
class Link:
    """A connection that is logged in. ping_seconds: a silent server is heard of at least this often. server_key: it proved."""

    frames: FramedStream
    hello: Hello
    ping_seconds: float
    server_key: bytes


async def dial(
    address: ServerAddress, *, service: str, key: SecretKey, run_id: str | None, timeout: float, known: bytes = b""
) -> Link:
    """Connect and log in.

    run_id: the run we take part in; None takes the one the server names. known: hash of the document we still have.
    Raises BackendError (`cannot connect to …`), CommandRefused when the server, or we, refuse (WrongServer, WrongRun,
    WrongService, VersionMismatch, NotAllowed, RateLimited, NotPsyche, Busy, …).
    """
    try:
        with anyio.fail_after(timeout):
            stream = await anyio.connect_tcp(address.host, address.port)
            try:
                return await shake_hands(stream, expected=address.key, service=service, key=key, run_id=run_id, known=known)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await stream.aclose()
                raise
    except LoginRefused as error:
        raise CommandRefused(error.code, error.message) from error
    except WrongServer as error:
        raise CommandRefused("WrongServer", str(error)) from error
    except (*CONNECTION_LOST, WireError, TimeoutError, BaseExceptionGroup) as error:
        message = f"cannot connect to {address}: {reason(error)}"
        raise BackendError(message) from error


async def shake_hands(
    stream: ByteStream, *, expected: bytes | None, service: str, key: SecretKey, run_id: str | None, known: bytes = b""
) -> Link:
    """TLS and login over a stream that is connected. Raises WrongServer, LoginRefused, WireError, what a lost stream raises."""
    secure, server_key = await open_tls(stream, expected=expected)
    frames = FramedStream(secure, receive_limit=LOGIN_FRAME, send_limit=CLIENT_FRAME)
    hello = decode_hello(await frames.receive(), service=service)
    login = Login(key.public, secrets.token_bytes(NONCE_BYTES), known)
    ours = run_id if run_id is not None else hello.run_id
    await frames.send(encode_login(hello, login, key, run_id=ours, server_key=server_key))
    match decode_server(await frames.receive()):
        case Welcome(ping_seconds, signature):
            check_welcome(signature, hello, login, server_key=server_key)
            frames.set_receive_limit(SERVER_FRAME)
            return Link(frames, hello, ping_seconds, server_key)
        case Bye(code, sentence):
            raise LoginRefused(printable(code), printable(sentence))
        case _:
            raise LoginRefused("NotPsyche", "the server neither welcomed nor refused us")
