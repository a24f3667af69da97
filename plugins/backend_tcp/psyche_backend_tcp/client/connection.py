"""A client's connection to a coordinator server; it reconnects after losses.

One background task owns the socket; only it reads and writes. Requests stay in a table until they are answered. After a reconnect
they are sent again under the same number; the server remembers its answers, so nothing is done twice. A join is repeated after a
loss. The client tells the server which state it still has, so that the server sends only what changed. When another client uses
our key, this connection ends and does not compete for the key. `dialing` decides how often and how long a server is tried.

The task is a plain asyncio task, not an anyio task group: a group's scope must be left by the task that entered it and in reverse
order, but `aclose` may be called from anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
from collections import deque
from dataclasses import dataclass, field
from typing import Self

import anyio

from psyche_backend_tcp.client.dialing import FINAL_CODES, SAME_KEY_CODES, RepeatedDialer
from psyche_backend_tcp.client.own_address import until_moved
from psyche_backend_tcp.client.session import ClientSession, Received
from psyche_backend_tcp.connections.addresses import parse_address, reason
from psyche_backend_tcp.connections.dialer import DialedConnection
from psyche_backend_tcp.connections.listener import CONNECTION_LOST
from psyche_backend_tcp.limits import MAX_ADDRESS_BYTES
from psyche_backend_tcp.protocol import Answer, CommandRequest, JoinRequest, LaterState, encode_client
from psyche_core.coordinator.commands import Command, Withdraw
from psyche_core.errors import BackendClosed, BackendError, CommandRefused, KeyUsedElsewhere, WireError
from psyche_core.hookspecs import BackendContext
from psyche_core.interfaces.backend import Backend, KnownPosition, StateUpdate, check_client_command
from psyche_core.interfaces.command_codec import encode_command
from psyche_core.text_safety import printable
from psyche_core.types import NodeIdentity, RunState
from psyche_core.wire.messages import sign_join

logger: logging.Logger = logging.getLogger("psyche.backend.tcp")

SILENT_PINGS = 3.0
"""A server that sent nothing for this many ping intervals counts as lost."""


@dataclass(slots=True)
class _Request:
    payload: bytes
    done: anyio.Event = field(default_factory=anyio.Event)
    answer: Answer | None = None


class _Lost(Exception):
    """This connection ended. final: whether the whole backend ended with it. silent: seconds since something was received on it.

    same_key: whether another client uses our key.
    """

    def __init__(self, sentence: str, *, final: bool = False, silent: float = 0.0, same_key: bool = False) -> None:
        super().__init__(sentence)
        self.final = final
        self.same_key = same_key
        self.silent = silent


class TcpBackend(Backend):
    """The TCP backend of a client. Entering connects and logs in."""

    def __init__(self, context: BackendContext) -> None:
        """Raises UserError for a malformed address, or one elsewhere without the server's key."""
        self._address = parse_address(context.address)
        self._context = context
        self._identity = NodeIdentity(context.key.public, context.key.public)
        self._numbers = itertools.count(secrets.randbits(63))
        self._requests: dict[int, _Request] = {}
        self._wake = anyio.Event()
        self._joined: bytes | None = None
        self._update: StateUpdate | None = None
        self._unread = False
        self._later: bytes | None = None
        self._later_due = False
        self._changed = anyio.Event()
        self._closed: str | None = None
        self._same_key = False
        self._task: asyncio.Task[None] | None = None
        self._connection: DialedConnection | None = None
        self._session = ClientSession()
        self._dialer = RepeatedDialer(self._address, context, known=self._session.begin)
        self.reconnects: int = 0

    @classmethod
    def from_context(cls, context: BackendContext) -> TcpBackend:
        """Return the backend for a context."""
        return cls(context)

    async def __aenter__(self) -> Self:
        """Connect; retry for as long as the context allows.

        Raises BackendError (`cannot connect to host:port: reason`) and CommandRefused (Busy, …) after retrying, but AccessRefused
        (WrongServer, WrongRun, …), KeyUsedElsewhere and UnknownHost at once.
        """
        self._connection = connection = await self._dialer.first()
        self._task = asyncio.create_task(self._run(connection), name=f"tcp backend {self._identity}")
        return self

    @property
    def identity(self) -> NodeIdentity:
        """Our key, as both parts of the identity."""
        return self._identity

    @property
    def bytes_received(self) -> int:
        """Bytes received from the server over the current connection."""
        return self._connection.frames.bytes_received if self._connection is not None else 0

    async def join(self, address: bytes, *, timeout: float) -> None:
        """Ask to be a member of the next epochs. Raises CommandRefused, BackendClosed, TimeoutError, ValueError."""
        if len(address) > MAX_ADDRESS_BYTES:
            message = f"a transport address has at most {MAX_ADDRESS_BYTES} bytes, got {len(address)}"
            raise ValueError(message)

        with anyio.fail_after(timeout):
            instance = await self._instance()
            number = next(self._numbers)
            await self._ask(number, self._join_request(number, address, instance), timeout)
        self._joined = address
        self._repeat_later()

    async def _instance(self) -> bytes:
        """Return the run's instance, known after its first state. Raises BackendClosed."""
        while self._update is None:
            if self._closed is not None:
                raise self._ended()

            await self._changed.wait()
        return self._update.state.instance

    def _join_request(self, number: int, address: bytes, instance: bytes) -> bytes:
        proof = sign_join(self._context.key, instance, self._identity.signer)
        return encode_client(JoinRequest(number, address, proof))

    async def next_state(self) -> StateUpdate:
        """Return the newest state not yet returned. Raises BackendClosed when there will be no more."""
        while not self._unread:
            if self._closed is not None:
                raise self._ended()

            await self._changed.wait()

        assert self._update is not None
        self._unread = False
        return self._update

    async def send(self, command: Command, *, timeout: float) -> None:
        """Send a command. Raises CommandRefused, BackendClosed, TimeoutError; ValueError for Join or another's command."""
        allowed = check_client_command(command, self._identity)
        number = next(self._numbers)
        await self._ask(number, encode_client(CommandRequest(number, encode_command(allowed))), timeout)
        if isinstance(command, Withdraw):
            self._joined = None

    def tell_later(self, known: KnownPosition) -> None:
        """Tell the server how far the run was according to our disk: now, and again after each join, since only members may."""
        self._later = encode_client(LaterState(known.generation, known.epoch, known.step))
        self._repeat_later()

    def _repeat_later(self) -> None:
        self._later_due = self._later is not None
        self._wake.set()

    async def aclose(self) -> None:
        """Close; idempotent."""
        self._close("this backend was closed")
        task = self._task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])
                if self._connection is not None:
                    await self._connection.frames.aclose()  # a task cancelled before it started has not closed it

    # ------------------------------------------------------------ requests

    async def _ask(self, number: int, payload: bytes, timeout: float) -> None:
        if self._closed is not None:
            raise self._ended()

        request = self._requests[number] = _Request(payload)
        self._wake.set()
        try:
            with anyio.fail_after(timeout):
                await request.done.wait()
        finally:
            self._requests.pop(number, None)

        if request.answer is None:
            raise self._ended()
        if request.answer.code:
            raise CommandRefused(printable(request.answer.code), printable(request.answer.sentence))

    def _ended(self) -> BackendClosed:
        return (KeyUsedElsewhere if self._same_key else BackendClosed)(self._closed or "the connection is open")

    def _close(self, sentence: str) -> None:
        if self._closed is None:
            self._closed = sentence
        self._changed.set()
        for request in self._requests.values():
            request.done.set()

    # ------------------------------------------------------------ the background task

    async def _run(self, connection: DialedConnection) -> None:
        server = str(self._address)
        try:
            while True:
                lost = await self._run_connection(connection)
                if lost.final:
                    self._same_key = lost.same_key
                    self._close(str(lost))
                    return

                logger.warning("lost the coordinator at %s: %s; trying to reconnect", server, lost)
                since = anyio.current_time() - lost.silent
                connection = await self._dialer.again(lost)
                self.reconnects += 1
                away = anyio.current_time() - since
                logger.warning("connected to the coordinator at %s again after %.0f s", server, max(away, 1.0))
        except BackendError as error:
            self._same_key = isinstance(error, CommandRefused) and error.code in SAME_KEY_CODES
            self._close(error.message if isinstance(error, CommandRefused) and self._same_key else str(error))
        except Exception as error:  # so that callers get an error instead of waiting forever
            logger.exception("the connection to the coordinator failed")
            self._close(f"the connection to {server} failed: {reason(error)}")
        finally:
            self._close("the backend's task was cancelled")

    async def _run_connection(self, connection: DialedConnection) -> _Lost:
        """Read and write one connection until it ends; return why it ended."""
        self._connection = connection
        replies: deque[bytes] = deque()
        result = _Lost("the connection ended")
        if self._joined is not None and self._update is not None:
            number = next(self._numbers)
            replies.append(self._join_request(number, self._joined, self._update.state.instance))
        self._later_due = self._later is not None

        try:
            async with anyio.create_task_group() as group:

                async def read() -> None:
                    nonlocal result
                    result = await self._read(connection, replies)
                    group.cancel_scope.cancel()

                async def watch() -> None:
                    nonlocal result
                    await until_moved(connection.local_ip)
                    result = _Lost("this machine has moved to another network")
                    group.cancel_scope.cancel()

                group.start_soon(read)
                group.start_soon(watch)
                await self._write(connection, replies)
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await connection.frames.aclose()

        return result

    async def _read(self, connection: DialedConnection, replies: deque[bytes]) -> _Lost:
        while True:
            try:
                with anyio.fail_after(SILENT_PINGS * connection.ping_seconds):
                    received = self._session.receive(await connection.frames.receive())
            except TimeoutError:
                silent = SILENT_PINGS * connection.ping_seconds
                return _Lost(f"nothing was received for {silent:g} s", silent=silent)
            except CONNECTION_LOST:
                if self._update is not None and self._update.state.run_state is RunState.Finished:
                    return _Lost("the run is finished", final=True)

                return _Lost("the connection was closed")
            except WireError as error:
                return _Lost(str(error))

            if received.bye is not None:
                code = received.bye.code
                return _Lost(printable(received.bye.sentence), final=code in FINAL_CODES, same_key=code in SAME_KEY_CODES)

            self._take_in(received, replies)

    def _take_in(self, received: Received, replies: deque[bytes]) -> None:
        if received.reply is not None:
            replies.append(received.reply)
            self._wake.set()

        if received.answer is not None:
            request = self._requests.get(received.answer.number)
            if request is not None:
                request.answer = received.answer
                request.done.set()
            elif received.answer.code:
                sentence = printable(received.answer.sentence)
                logger.debug("the coordinator refused a request that we had given up waiting for: %s", sentence)

        if received.update is not None and received.update != self._update:
            self._update = received.update
            self._unread = True
            self._changed.set()
            self._changed = anyio.Event()

    async def _write(self, connection: DialedConnection, replies: deque[bytes]) -> None:
        sent: set[int] = set()
        while True:
            self._wake = anyio.Event()
            payloads = list(replies)
            replies.clear()
            for number, request in self._requests.items():
                if number not in sent and request.answer is None:
                    payloads.append(request.payload)
            sent = set(self._requests)
            if self._later_due and self._later is not None:
                self._later_due = False
                payloads.append(self._later)
            if not payloads:
                await self._wake.wait()
                continue

            with contextlib.suppress(*CONNECTION_LOST):
                with anyio.move_on_after(SILENT_PINGS * connection.ping_seconds):
                    await connection.frames.send(*payloads)
                continue

            await anyio.sleep_forever()  # the reading task finds out why, maybe from a bye
