"""The client's side of a connection's beginning: connect, read the hello, log in."""

from __future__ import annotations

from dataclasses import dataclass

import anyio

from psyche_backend_tcp.addresses import format_address, reason
from psyche_backend_tcp.limits import CLIENT_FRAME, LOGIN_FRAME, SERVER_FRAME
from psyche_backend_tcp.listener import CONNECTION_LOST
from psyche_backend_tcp.login import Hello, LoginRefused, decode_hello, encode_login
from psyche_backend_tcp.protocol import Bye, Welcome, decode_server
from psyche_core.errors import BackendError, CommandRefused, WireError
from psyche_core.wire.frames import FramedStream
from psyche_core.wire.signing import SecretKey


@dataclass(frozen=True, slots=True)
class Link:
    """A connection that is logged in. ping_seconds: a silent server is heard of at least this often."""

    frames: FramedStream
    hello: Hello
    ping_seconds: float


async def dial(host: str, port: int, *, service: str, key: SecretKey, run_id: str | None, timeout: float) -> Link:
    """Connect and log in.

    run_id: the run we take part in; None takes the one the server names. Raises BackendError (`cannot connect to …`),
    CommandRefused when the server, or we, refuse (WrongRun, WrongService, WrongVersion, NotPsyche, Busy, …).
    """
    try:
        with anyio.fail_after(timeout):
            stream = await anyio.connect_tcp(host, port)
            frames = FramedStream(stream, receive_limit=LOGIN_FRAME, send_limit=CLIENT_FRAME)
            try:
                return await _log_in(frames, service=service, key=key, run_id=run_id)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await frames.aclose()
                raise
    except LoginRefused as error:
        raise CommandRefused(error.code, error.message) from error
    except (*CONNECTION_LOST, WireError, TimeoutError, BaseExceptionGroup) as error:
        message = f"cannot connect to {format_address(host, port)}: {reason(error)}"
        raise BackendError(message) from error


async def _log_in(frames: FramedStream, *, service: str, key: SecretKey, run_id: str | None) -> Link:
    hello = decode_hello(await frames.receive(), service=service)
    await frames.send(encode_login(hello, key, run_id=run_id if run_id is not None else hello.run_id))
    match decode_server(await frames.receive()):
        case Welcome(ping_seconds):
            frames.set_receive_limit(SERVER_FRAME)
            return Link(frames, hello, ping_seconds)
        case Bye(code, sentence):
            raise LoginRefused(code, sentence)
        case _:
            raise LoginRefused("NotPsyche", "the server neither welcomed nor refused us")
