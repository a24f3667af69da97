"""The listener of both servers: accepts connections, does TLS and login, and passes on those that logged in.

The first bytes, TLS and login have a timeout. TLS begins only after the first bytes have come and `Admission` has given a place.
While places are scarce, a place needs a proof (`puzzle`); a client without one is told so in plain text, and its connection is
closed. Frames are small until the login is done; a client that `Admission` refuses then is told why inside TLS. No peer can end
the accept loop. When file handles run out, silent connections are closed. `server.tcp_server` and `data.server` handle what is
sent after the login.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import cast

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio import BrokenResourceError, BusyResourceError, ClosedResourceError, EndOfStream, create_task_group
from anyio.abc import ByteStream, SocketAttribute, SocketListener, SocketStream

from psyche_backend_tcp.connections.addresses import format_address, reason
from psyche_backend_tcp.connections.admission import Admission
from psyche_backend_tcp.connections.login import NONCE_BYTES, Hello, LoginRefused, check_login, encode_hello, sign_welcome
from psyche_backend_tcp.connections.preamble import receive_opening
from psyche_backend_tcp.connections.puzzle import Cookies, Proof, encode_challenge
from psyche_backend_tcp.connections.tls import accept_tls, server_context
from psyche_backend_tcp.limits import CLIENT_FRAME, LOGIN_FRAME, SERVER_FRAME, Limits
from psyche_backend_tcp.protocol import Bye, Welcome, encode_server
from psyche_core.errors import UserError, WireError
from psyche_core.wire.frames import FramedStream
from psyche_core.wire.signing import SecretKey

logger: logging.Logger = logging.getLogger("psyche.backend.tcp")

_BACKLOG = 65_536
"""Connections that may wait to be accepted: as many as the system allows, as in anyio."""

_DRAINED = 4
"""Reads from a challenged connection before it is closed."""

CONNECTION_LOST = (EndOfStream, BrokenResourceError, ClosedResourceError, BusyResourceError, OSError)
"""Exceptions of a stream when the other side has disconnected or broke TLS (ssl.SSLError is an OSError)."""


@dataclass(frozen=True, slots=True)
class AcceptedConnection:
    """A logged-in connection. public: its key, 32 bytes; known: hash of the document that it still has, or empty."""

    public: bytes
    frames: FramedStream
    known: bytes = b""


Welcoming = Callable[[bytes], Awaitable[None]]
"""Raises LoginRefused for a key that is not admitted now."""


class Listener:
    """Listens for one service. Made by `bind`. facts: the description of the service in the hello."""

    def __init__(
        self,
        sockets: list[SocketListener],
        place: tuple[str, int],
        *,
        service: str,
        run_id: str,
        key: SecretKey,
        context: ssl.SSLContext,
        limits: Limits,
        allowed: Callable[[bytes], bool] | None,
        members: Callable[[], Collection[bytes]],
        welcome: Welcoming | None,
    ) -> None:
        self._sockets = sockets
        self._service = service
        self._run_id = run_id
        self._key = key
        self._context = context
        self._limits = limits
        self._admission = Admission(limits, allowed=allowed, members=members)
        self._cookies = Cookies()
        self._welcome = welcome
        self._waiting: dict[int, anyio.CancelScope] = {}
        self._inside: dict[int, tuple[bytes, anyio.CancelScope]] = {}
        self._count = 0
        self.address: str = format_address(*place, key.public)
        self.facts: Mapping[str, int] = {}

    @classmethod
    async def bind(
        cls,
        host: str,
        port: int,
        *,
        service: str,
        run_id: str,
        key: SecretKey,
        limits: Limits,
        allowed: Callable[[bytes], bool] | None = None,
        members: Callable[[], Collection[bytes]] = frozenset,
        welcome: Welcoming | None = None,
    ) -> Listener:
        """Start listening; port 0 picks a free one. Raises UserError when host or port cannot be used.

        key: proves our identity to clients. allowed: returns whether a key may log in, called at each login; None allows all.
        members: returns the keys that always get a place. welcome: awaited for each proved key before its client is welcomed.
        """
        context = await anyio.to_thread.run_sync(server_context, key)
        try:
            sockets = await _listen(host, port)
        except (OSError, BaseExceptionGroup, ValueError, OverflowError) as error:
            message = f"cannot listen on {format_address(host, port)}: {reason(error)}; choose another host or port"
            raise UserError(message) from error

        bound_port = sockets[0].extra(SocketAttribute.local_port)  # noqa: S610  # a socket, not a query
        place = (host or "0.0.0.0", bound_port)  # noqa: S104  # only repeats the address that the caller asked for
        return cls(
            sockets,
            place,
            service=service,
            run_id=run_id,
            key=key,
            context=context,
            limits=limits,
            allowed=allowed,
            members=members,
            welcome=welcome,
        )

    @property
    def waiting(self) -> int:
        """Connections that have not logged in."""
        return self._admission.waiting

    async def serve(self, handle: Callable[[AcceptedConnection], Awaitable[None]]) -> None:
        """Accept until cancelled or closed. `handle` runs in its own task for each connection, which is closed afterwards."""
        async with create_task_group() as group:

            async def accept(sock: SocketListener) -> None:
                while True:
                    try:
                        stream = await sock.accept()
                    except (ClosedResourceError, BrokenResourceError):
                        return
                    except OSError as error:
                        logger.warning("cannot accept a connection: %s", reason(error))
                        if error.errno in (errno.EMFILE, errno.ENFILE):
                            for number in self._admission.silent:
                                self._end(number)
                        await anyio.sleep(0.1)  # wait until others have closed
                        continue

                    group.start_soon(self._attend, stream, handle)

            for sock in self._sockets:
                group.start_soon(accept, sock)

    def expel(self, may: Callable[[bytes], bool]) -> None:
        """Close the connections of keys that are no longer allowed."""
        for public, scope in list(self._inside.values()):
            if not may(public):
                scope.cancel()

    async def aclose(self) -> None:
        """Stop listening; idempotent."""
        for sock in self._sockets:
            await sock.aclose()

    async def _attend(self, stream: SocketStream, handle: Callable[[AcceptedConnection], Awaitable[None]]) -> None:
        self._count += 1
        number = self._count
        try:
            accepted = await self._admit(number, stream)
            if accepted is not None:
                try:
                    with anyio.CancelScope() as scope:
                        self._inside[number] = accepted.public, scope
                        await handle(accepted)
                finally:
                    del self._inside[number]
                    self._admission.leave(accepted.public)
                    with anyio.CancelScope(shield=True):
                        await accepted.frames.aclose()
        except CONNECTION_LOST:
            return
        except Exception:  # one connection must never stop the others
            logger.exception("a connection failed")
        finally:
            with anyio.CancelScope(shield=True):
                await stream.aclose()

    async def _admit(self, number: int, stream: SocketStream) -> AcceptedConnection | None:
        """Receive the first bytes, do TLS and login; return None if it failed or timed out."""
        with anyio.move_on_after(self._limits.handshake_seconds) as scope:
            self._waiting[number] = scope
            try:
                self._end(self._admission.knock(number, _host(stream)))
                await anyio.lowlevel.checkpoint()
                begun = await self._open(number, stream)
                if begun is None:
                    return None

                await anyio.lowlevel.checkpoint()
                secure = await accept_tls(begun, self._context)
                return await self._log_in(FramedStream(secure, receive_limit=LOGIN_FRAME, send_limit=SERVER_FRAME))
            finally:
                self._admission.done(number)
                del self._waiting[number]

        return None

    async def _open(self, number: int, stream: SocketStream) -> ByteStream | None:
        """Wait for the first bytes and take a place; return the stream for TLS, or None without a place."""
        with anyio.move_on_after(self._limits.silent_seconds):
            try:
                proof, begun = await receive_opening(stream)
            except WireError:
                return None

            if self._placed(number, proof):
                return begun

            await stream.send(encode_challenge(self._cookies.issue(self._admission.bits, anyio.current_time())))
            await stream.send_eof()
            for _ in range(_DRAINED):  # closing with unread bytes would discard the challenge
                await stream.receive()

        return None

    def _placed(self, number: int, proof: Proof | None) -> bool:
        """Give a connection a place if its proof is sufficient or none is needed."""
        if proof is not None and self._cookies.use(proof.cookie, anyio.current_time()):
            if self._admission.is_member(proof.public) and proof.signed:
                self._end(self._admission.reserve(number, proof.public))
                return True

            if proof.bits:
                self._end(self._admission.grant(number, proof.bits))
                return True

        if self._admission.scarce(number):
            return False

        self._end(self._admission.grant(number))
        return True

    def _end(self, number: int | None) -> None:
        """End a connection that has not logged in."""
        if number is not None and number in self._waiting:
            self._admission.done(number)
            self._waiting[number].cancel()

    async def _log_in(self, frames: FramedStream) -> AcceptedConnection | None:
        hello = Hello(self._service, self._run_id, secrets.token_bytes(NONCE_BYTES), self.facts)
        await frames.send(encode_hello(hello))
        try:
            login = check_login(await frames.receive(), hello, server_key=self._key.public)
            self._admission.enter(login.public, anyio.current_time())
            if self._welcome is not None:
                try:
                    await self._welcome(login.public)
                except BaseException:
                    self._admission.leave(login.public)
                    raise
        except (LoginRefused, WireError) as error:
            code = error.code if isinstance(error, LoginRefused) else "BadLogin"
            sentence = error.message if isinstance(error, LoginRefused) else str(error)
            logger.info("refused a login: %s: %s", code, sentence)
            await frames.send(encode_server(Bye(code, sentence)))
            return None

        try:
            frames.set_receive_limit(CLIENT_FRAME)
            welcome = Welcome(self._limits.ping_seconds, sign_welcome(hello, login, self._key))
            await frames.send(encode_server(welcome))
        except BaseException:
            self._admission.leave(login.public)
            raise

        return AcceptedConnection(login.public, frames, login.known)


def _host(stream: SocketStream) -> str:
    address = stream.extra(SocketAttribute.remote_address, ("", 0))  # noqa: S610  # a socket, not a query
    return str(address[0]) if isinstance(address, tuple) else ""


async def _listen(host: str, port: int) -> list[SocketListener]:
    """Return sockets for a host name or an address.

    An address is not looked up as a name: that fails for 127.0.0.1 on a machine whose only other address is IPv6.
    """
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        listener = await anyio.create_tcp_listener(local_host=host or None, local_port=port)
        return [cast("SocketListener", one) for one in listener.listeners]

    family = socket.AF_INET if version == 4 else socket.AF_INET6
    return [await SocketListener.from_socket(socket.create_server((host, port), family=family, backlog=_BACKLOG))]
