"""The client's side of connecting: TCP, TLS, the check of the server's key, login, and the check of the server's welcome.

A server with few free places answers with a challenge instead of TLS. The client then computes the proof in a thread and
connects again with it, a few times at most. It also retries when a connection ends before the login.
"""

from __future__ import annotations

import random
import secrets
import socket
import ssl
from dataclasses import dataclass

import anyio
import anyio.to_thread
from anyio.abc import ByteStream, SocketAttribute

from psyche_backend_tcp.connections.addresses import ServerAddress, reason
from psyche_backend_tcp.connections.listener import CONNECTION_LOST
from psyche_backend_tcp.connections.login import (
    NONCE_BYTES,
    Hello,
    Login,
    LoginRefused,
    check_welcome,
    decode_hello,
    encode_login,
)
from psyche_backend_tcp.connections.preamble import Challenged, ChallengeStream
from psyche_backend_tcp.connections.puzzle import encode_proof, prove
from psyche_backend_tcp.connections.tls import WrongServer, open_tls
from psyche_backend_tcp.limits import CLIENT_FRAME, LOGIN_FRAME, SERVER_FRAME
from psyche_backend_tcp.protocol import Bye, Welcome, decode_server
from psyche_core.errors import BackendError, CommandRefused, UnknownHost, WireError
from psyche_core.text_safety import printable
from psyche_core.wire.frames import FramedStream
from psyche_core.wire.signing import SecretKey

MOST_TRIES = 4
"""Most connections per dial. A server whose puzzles have become harder may send another challenge, or give our place to another
client."""

PAUSE_SECONDS = 0.2
"""Longest pause after a connection that ended before its login."""

_NO_SUCH_HOST = frozenset(
    getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA", "EAI_ADDRFAMILY") if hasattr(socket, name)
)
"""Look-up errors for a name that does not exist. EAI_AGAIN is not included: it means that the name server was not reachable."""


@dataclass(frozen=True, slots=True)
class DialedConnection:
    """A logged-in connection. ping_seconds: the server sends something at least this often. server_key: the key it proved.

    local_ip: our own IP address on it, "" if that is unknown.
    """

    frames: FramedStream
    hello: Hello
    ping_seconds: float
    server_key: bytes
    local_ip: str = ""


async def dial(
    address: ServerAddress, *, service: str, key: SecretKey, run_id: str | None, timeout: float, known: bytes = b""
) -> DialedConnection:
    """Connect and log in.

    run_id: the run we take part in; None takes the one that the server names. known: hash of the document we still have. Raises
    BackendError (`cannot connect to …`; UnknownHost if there is no such host), and CommandRefused when the server or this
    client refuses (WrongServer, WrongRun, WrongService, VersionMismatch, NotAllowed, RateLimited, NotPsyche, Busy, …).
    """
    jitter = random.SystemRandom()
    proof, lost = b"", Exception()
    try:
        with anyio.fail_after(timeout):
            for _ in range(MOST_TRIES):
                stream, connection = await anyio.connect_tcp(address.host, address.port), None
                try:
                    connection = await shake_hands(
                        stream, expected=address.key, service=service, key=key, run_id=run_id, known=known, proof=proof
                    )
                    return connection
                except Challenged as challenged:
                    cookie, lost = challenged.cookie, challenged
                except ssl.SSLError:
                    raise
                except CONNECTION_LOST as error:  # the server may have ended it in favour of another client
                    cookie, lost = None, error
                finally:
                    if connection is None:
                        with anyio.CancelScope(shield=True):
                            await stream.aclose()
                if cookie is None:
                    proof = b""
                    await anyio.sleep(jitter.uniform(0.5, 1.0) * PAUSE_SECONDS)
                else:
                    proof = encode_proof(await anyio.to_thread.run_sync(prove, cookie, key, abandon_on_cancel=True))
            raise lost
    except Challenged as error:
        message = "too many clients try to connect to the server, and our proofs of work got no place; try again later"
        raise CommandRefused("Busy", message) from error
    except LoginRefused as error:
        raise CommandRefused(error.code, error.message) from error
    except WrongServer as error:
        raise CommandRefused("WrongServer", str(error)) from error
    except (*CONNECTION_LOST, WireError, TimeoutError, BaseExceptionGroup) as error:
        message = f"cannot connect to {address}: {reason(error)}"
        if isinstance(error, socket.gaierror) and error.errno in _NO_SUCH_HOST:
            message = f"{message}; check the host in the server's address"
            raise UnknownHost(message) from error
        raise BackendError(message) from error


async def shake_hands(
    stream: ByteStream,
    *,
    expected: bytes | None,
    service: str,
    key: SecretKey,
    run_id: str | None,
    known: bytes = b"",
    proof: bytes = b"",
) -> DialedConnection:
    """Do TLS and login over a connected stream. proof: an encoded proof to send first, see `puzzle`.

    Raises WrongServer, Challenged, LoginRefused, WireError, and the errors of a lost stream.
    """
    if proof:
        await stream.send(proof)
    secure, server_key = await open_tls(ChallengeStream(stream), expected=expected)
    frames = FramedStream(secure, receive_limit=LOGIN_FRAME, send_limit=CLIENT_FRAME)
    hello = decode_hello(await frames.receive(), service=service)
    login = Login(key.public, secrets.token_bytes(NONCE_BYTES), known)
    ours = run_id if run_id is not None else hello.run_id
    await frames.send(encode_login(hello, login, key, run_id=ours, server_key=server_key))
    match decode_server(await frames.receive()):
        case Welcome(ping_seconds, signature):
            check_welcome(signature, hello, login, server_key=server_key)
            frames.set_receive_limit(SERVER_FRAME)
            local = stream.extra(SocketAttribute.local_address, ("", 0))  # noqa: S610 - anyio's, not Django's
            return DialedConnection(frames, hello, ping_seconds, server_key, str(local[0]))
        case Bye(code, sentence):
            raise LoginRefused(printable(code), printable(sentence))
        case _:
            raise LoginRefused("NotPsyche", "the server answered the login with neither a welcome nor a refusal")
