"""The front door of both servers: accepts connections, has them log in, and hands over those that did.

Decided here: a login has a deadline; the number of connections that have not logged in is bounded by closing the oldest of them,
so that a flood of idle connections cannot keep members out; frames are small until the login is done. Nothing a peer does ends
the accept loop. Refuses to know what is said after the login.
"""

from __future__ import annotations

import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import cast

import anyio
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream, create_task_group
from anyio.abc import SocketAttribute, SocketListener, SocketStream

from psyche_backend_tcp.addresses import format_address, reason
from psyche_backend_tcp.limits import CLIENT_FRAME, LOGIN_FRAME, SERVER_FRAME, Limits
from psyche_backend_tcp.login import CHALLENGE_BYTES, Hello, LoginRefused, check_login, encode_hello
from psyche_backend_tcp.protocol import Bye, Welcome, encode_server
from psyche_core.errors import UserError, WireError
from psyche_core.wire.frames import FramedStream

logger = logging.getLogger("psyche.backend.tcp")

CONNECTION_LOST = (EndOfStream, BrokenResourceError, ClosedResourceError, OSError)
"""What a stream raises when the other side is gone."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """A connection that has logged in. public: its key, 32 bytes."""

    public: bytes
    frames: FramedStream


class Listener:
    """Listens for one service.

    facts: what the hello tells about the service. Made by `bind`.
    """

    def __init__(self, sockets: list[SocketListener], address: str, *, service: str, run_id: str, limits: Limits) -> None:
        self._sockets = sockets
        self._service = service
        self._run_id = run_id
        self._limits = limits
        self._waiting: OrderedDict[int, anyio.CancelScope] = OrderedDict()
        self._visitors = 0
        self._count = 0
        self.address = address
        self.facts: Mapping[str, int] = {}

    @classmethod
    async def bind(cls, host: str, port: int, *, service: str, run_id: str, limits: Limits) -> Listener:
        """Start listening; port 0 picks a free one. Raises UserError when host or port cannot be used."""
        try:
            listener = await anyio.create_tcp_listener(local_host=host or None, local_port=port)
        except (OSError, BaseExceptionGroup, ValueError, OverflowError) as error:
            message = f"cannot listen on {format_address(host, port)}: {reason(error)}; choose another host or port"
            raise UserError(message) from error

        bound_port = listener.listeners[0].extra(SocketAttribute.local_port)  # noqa: S610  # a socket, not a query
        address = format_address(host or "0.0.0.0", bound_port)  # noqa: S104  # only says what the caller asked for
        sockets = [cast("SocketListener", one) for one in listener.listeners]
        return cls(sockets, address, service=service, run_id=run_id, limits=limits)

    @property
    def waiting(self) -> int:
        """Connections that have not logged in."""
        return len(self._waiting)

    async def serve(self, handle: Callable[[Visitor], Awaitable[None]]) -> None:
        """Accept until cancelled or closed; `handle` runs in a task of its own for each connection, which is closed after it."""
        async with create_task_group() as group:

            async def accept(sock: SocketListener) -> None:
                while True:
                    try:
                        stream = await sock.accept()
                    except (ClosedResourceError, BrokenResourceError):
                        return
                    except OSError as error:
                        logger.warning("cannot accept a connection: %s", reason(error))
                        await anyio.sleep(0.1)  # out of file handles, mostly: others must close first
                        continue

                    group.start_soon(self._attend, stream, handle)

            for sock in self._sockets:
                group.start_soon(accept, sock)

    async def aclose(self) -> None:
        """Stop listening; idempotent."""
        for sock in self._sockets:
            await sock.aclose()

    async def _attend(self, stream: SocketStream, handle: Callable[[Visitor], Awaitable[None]]) -> None:
        frames = FramedStream(stream, receive_limit=LOGIN_FRAME, send_limit=SERVER_FRAME)
        try:
            visitor = await self._admit(frames)
            if visitor is not None:
                self._visitors += 1
                try:
                    await handle(visitor)
                finally:
                    self._visitors -= 1
        except CONNECTION_LOST:
            return
        except Exception:  # one connection must never stop the others
            logger.exception("a connection failed")
        finally:
            with anyio.CancelScope(shield=True):
                await frames.aclose()

    async def _admit(self, frames: FramedStream) -> Visitor | None:
        """The login; None when it failed or its time is over."""
        if len(self._waiting) >= self._limits.max_unauthenticated:
            _, oldest = self._waiting.popitem(last=False)
            oldest.cancel()

        self._count += 1
        number = self._count
        with anyio.move_on_after(self._limits.handshake_seconds) as scope:
            self._waiting[number] = scope
            try:
                return await self._login(frames)
            except (LoginRefused, WireError) as error:
                code = error.code if isinstance(error, LoginRefused) else "BadLogin"
                sentence = error.message if isinstance(error, LoginRefused) else str(error)
                logger.info("refused a login: %s: %s", code, sentence)
                await frames.send(encode_server(Bye(code, sentence)))
            finally:
                self._waiting.pop(number, None)

        return None

    async def _login(self, frames: FramedStream) -> Visitor:
        challenge = secrets.token_bytes(CHALLENGE_BYTES)
        hello = Hello(self._service, self._run_id, self.address, challenge, self.facts)
        await frames.send(encode_hello(hello))
        public = check_login(await frames.receive(), hello)
        if self._visitors >= self._limits.max_connections:
            raise LoginRefused("Busy", f"the server already has {self._visitors} connections; try again later")

        frames.set_receive_limit(CLIENT_FRAME)
        await frames.send(encode_server(Welcome(self._limits.ping_seconds)))
        return Visitor(public, frames)
