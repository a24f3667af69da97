"""The server's decisions, without sockets or clocks: logged-in connections and their frames in, frames for each of them out.

Decided here: one connection for each key, the newer one wins and the end of the older withdraws nobody; a lost member may come
back for a while; states are not queued: what a connection is missing is computed when it can be sent, so a slow reader gets
fewer, merged changes and nothing is kept for it; nothing is sent when nothing changed. An answer is remembered for a while, so
that a request repeated after a lost connection is not carried out twice. Refuses the owner's
commands from connections: those are `submit`ted.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from psyche_backend_tcp.limits import MAX_ADDRESS_BYTES, SERVER_FRAME, Limits, TokenBucket
from psyche_backend_tcp.protocol import (
    Answer,
    Bye,
    ClientMessage,
    CommandRequest,
    Heartbeat,
    JoinRequest,
    Patch,
    Whole,
    WholeRequest,
    decode_client,
    decode_command,
    document_digest,
    encode_server,
    make_document,
)
from psyche_core.coordinator.commands import Command, Event, Join, Tick, Withdraw
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.coordinator.transitions import apply
from psyche_core.errors import CoordinatorError, WireError
from psyche_core.types import NodeIdentity, RunState
from psyche_core.wire.diff import diff

logger = logging.getLogger("psyche.backend.tcp")

WHOLE_COST = 20.0
"""Requests that one request for the whole document counts as."""

REMEMBERED_ANSWERS = 32


@dataclass(frozen=True, slots=True)
class Moment:
    """monotonic: seconds for time-outs; unix: whole seconds since 1970 for the coordinator."""

    monotonic: float
    unix: int


@dataclass(frozen=True, slots=True)
class _Document:
    revision: int
    tree: dict[str, Any]
    digest: bytes


@dataclass(slots=True)
class _Connection:
    identity: NodeIdentity
    bucket: TokenBucket
    heard: float
    pinged: float
    outbox: list[bytes] = field(default_factory=list)
    known: _Document | None = None
    closing: bool = False


@dataclass(slots=True)
class _Member:
    """What is kept for a key beyond its connection."""

    connection: int | None = None
    address: bytes | None = None
    lost_at: float | None = None
    answers: OrderedDict[int, Answer] = field(default_factory=OrderedDict)


class Hub:
    """The coordinator's state and everybody connected to it.

    draw_seed: called for each command, a u64 from a source nobody can predict. After any call the shell collects `take_stirred`
    (connections whose `outgoing` is worth asking) and `take_changes`.
    """

    def __init__(
        self, state: CoordinatorState, limits: Limits, *, draw_seed: Callable[[], int], withdraw_on_disconnect: bool = True
    ) -> None:
        self._state = state
        self._limits = limits
        self._draw_seed = draw_seed
        self._withdraw = withdraw_on_disconnect
        self._connections: dict[int, _Connection] = {}
        self._members: dict[bytes, _Member] = {}
        self._next_number = 1
        self._stirred: set[int] = set()
        self._changes: list[tuple[CoordinatorState, tuple[Event, ...]]] = []
        self._document = self._new_document(1)
        self._stale = False
        self._frames: dict[int, bytes] = {}

    @property
    def state(self) -> CoordinatorState:
        """The state now."""
        return self._state

    @property
    def revision(self) -> int:
        """Counts documents from 1; a document is counted when it is first wanted by a connection."""
        return self._document.revision

    @property
    def connected(self) -> int:
        """Connections that are not closed yet."""
        return len(self._connections)

    def take_stirred(self) -> set[int]:
        """Connections with something to send or to be closed since the last call."""
        stirred, self._stirred = self._stirred & self._connections.keys(), set()
        return stirred

    def take_changes(self) -> list[tuple[CoordinatorState, tuple[Event, ...]]]:
        """States that differ from the one before, with their events, since the last call."""
        changes, self._changes = self._changes, []
        return changes

    # ------------------------------------------------------------ connections

    def connect(self, identity: NodeIdentity, moment: Moment) -> int:
        """A key has logged in; the number of its connection. An older connection of the key is told and closed."""
        number = self._next_number
        self._next_number += 1
        member = self._members.setdefault(identity.signer, _Member())
        if member.connection is not None:
            self._say_bye(member.connection, "Replaced", "the same key has logged in again, on another connection")

        member.connection = number
        member.lost_at = None
        bucket = TokenBucket(rate=self._limits.requests_per_second, burst=self._limits.burst, now=moment.monotonic)
        self._connections[number] = _Connection(identity, bucket, heard=moment.monotonic, pinged=moment.monotonic)
        self._stirred.add(number)
        return number

    def disconnect(self, number: int, moment: Moment) -> None:
        """A connection is gone. Its member is withdrawn when it does not come back in time; a replaced one is no loss."""
        connection = self._connections.pop(number, None)
        if connection is None:
            return

        signer = connection.identity.signer
        member = self._members[signer]
        if member.connection != number:
            return

        member.connection = None
        member.lost_at = moment.monotonic
        self._settle_lost(moment)

    def receive(self, number: int, payload: bytes, moment: Moment) -> float:
        """A frame of a connection; returns seconds to wait before reading the next. A bad one closes only this connection."""
        connection = self._connections.get(number)
        if connection is None or connection.closing:
            return 0.0

        connection.heard = moment.monotonic
        try:
            message = decode_client(payload)
            self._handle(number, connection, message, moment)
        except WireError as error:
            self._say_bye(number, "BadMessage", str(error))
            return 0.0

        if len(connection.outbox) > self._limits.max_outbox:
            connection.outbox.clear()
            self._say_bye(number, "TooSlow", "the answers to your requests are not read")
        return connection.bucket.take(moment.monotonic, WHOLE_COST if isinstance(message, WholeRequest) else 1.0)

    def refuse(self, number: int, sentence: str) -> None:
        """A connection broke the rules below the messages."""
        if number in self._connections:
            self._say_bye(number, "BadMessage", sentence)

    def outgoing(self, number: int) -> list[bytes]:
        """Frames to send now, in order; asking hands them over. Ask again only when they are sent: that is what merges states."""
        connection = self._connections.get(number)
        if connection is None:
            return []

        frames, connection.outbox = connection.outbox, []
        if connection.closing:
            return frames

        self._refresh()
        if connection.known is not self._document:
            frame = self._document_frame(connection.known)
            connection.known = self._document
            if len(frame) > SERVER_FRAME:
                logger.error("the state encodes to %d bytes, over the limit of %d", len(frame), SERVER_FRAME)
                self._say_bye(number, "StateTooLarge", f"the run's state is over {SERVER_FRAME} bytes")
                return connection.outbox

            frames.append(frame)
        return frames

    def is_closing(self, number: int) -> bool:
        """Whether the connection is to be closed once its outgoing frames are sent."""
        connection = self._connections.get(number)
        return connection is None or connection.closing

    @property
    def told(self) -> bool:
        """Whether every connection was given the newest document."""
        self._refresh()
        return all(connection.known is self._document for connection in self._connections.values())

    def close_all(self, code: str, sentence: str) -> None:
        """Say good-bye to every connection."""
        for number in self._connections:
            self._say_bye(number, code, sentence)

    # ------------------------------------------------------------ commands and time

    def submit(self, command: Command, moment: Moment) -> None:
        """Apply a command of the run's owner. Raises CoordinatorError."""
        self._apply(command, moment)
        self._tick(moment)

    def tick(self, moment: Moment) -> None:
        """Let time pass: the coordinator's, and the connections' pings and time-outs."""
        self._settle_lost(moment)
        self._tick(moment)
        for number, connection in self._connections.items():
            silent = moment.monotonic - connection.heard
            if silent >= self._limits.silence_seconds:
                self._say_bye(number, "Silent", f"nothing was heard from you for {silent:.0f} s")
            elif min(silent, moment.monotonic - connection.pinged) >= self._limits.ping_seconds:
                connection.pinged = moment.monotonic
                self._send(number, encode_server(Heartbeat()))

    def _tick(self, moment: Moment) -> None:
        if not self._state.run_state.halted:
            self._apply(Tick(), moment)

    def _apply(self, command: Command, moment: Moment) -> None:
        state, events = apply(self._state, command, moment.unix, self._draw_seed())
        if state == self._state and not events:
            return

        self._state = state
        self._changes.append((state, events))
        self._mark_stale()

    def _settle_lost(self, moment: Moment) -> None:
        """Withdraw members that did not come back in time, forget keys that are no members."""
        current = {identity.signer for identity in self._current_members()}
        for signer, member in list(self._members.items()):
            if member.connection is not None or member.lost_at is None:
                continue

            if signer in current and not self._withdraw:
                continue

            if signer in current and moment.monotonic - member.lost_at < self._limits.reconnect_seconds:
                continue

            del self._members[signer]
            if signer in current:
                self._withdraw_lost(NodeIdentity(signer, signer), moment)

    def _withdraw_lost(self, identity: NodeIdentity, moment: Moment) -> None:
        self._mark_stale()  # its address goes, too
        try:
            self._apply(Withdraw(identity), moment)
        except CoordinatorError as error:
            logger.debug("no withdrawal of the lost %s: %s", identity, error)
        else:
            logger.info("%s did not come back and was withdrawn", identity)

        self._tick(moment)

    # ------------------------------------------------------------ requests

    def _handle(self, number: int, connection: _Connection, message: ClientMessage, moment: Moment) -> None:
        match message:
            case Heartbeat():
                return
            case WholeRequest():
                connection.known = None
                self._stirred.add(number)
            case JoinRequest() | CommandRequest():
                answers = self._members[connection.identity.signer].answers
                answer = answers.get(message.number)
                if answer is None:
                    answer = self._answer(connection.identity, message, moment)
                    answers[message.number] = answer
                    if len(answers) > REMEMBERED_ANSWERS:
                        answers.popitem(last=False)

                self._send(number, encode_server(answer))

    def _answer(self, identity: NodeIdentity, request: JoinRequest | CommandRequest, moment: Moment) -> Answer:
        try:
            match request:
                case JoinRequest(number, address):
                    self._join(identity, address, moment)
                case CommandRequest(number, plain):
                    self._apply(decode_command(plain, identity), moment)
            self._tick(moment)
        except CoordinatorError as error:
            return Answer(number, error.name, error.message)
        except WireError as error:
            return Answer(number, "BadRequest", str(error))
        except Exception:
            logger.exception("a request of %s failed in the coordinator", identity)
            return Answer(number, "InternalError", "the server failed to carry out the request; its log says why")

        return Answer(number, "", "")

    def _join(self, identity: NodeIdentity, address: bytes, moment: Moment) -> None:
        if len(address) > MAX_ADDRESS_BYTES:
            message = f"a transport address has at most {MAX_ADDRESS_BYTES} bytes, got {len(address)}"
            raise WireError(message)

        if len(self._state.pending) >= self._limits.max_members and identity not in self._state.pending:
            raise CoordinatorError("ClientsFull", f"{len(self._state.pending)} members are already waiting; try again later")

        self._apply(Join(identity), moment)
        member = self._members[identity.signer]
        if member.address != address:
            member.address = address
            self._mark_stale()

    # ------------------------------------------------------------ documents

    def _current_members(self) -> set[NodeIdentity]:
        return {*self._state.pending, *(client.id for client in self._state.epoch.clients)}

    def _new_document(self, revision: int) -> _Document:
        addresses = {}
        for identity in self._current_members():
            member = self._members.get(identity.signer)
            if member is not None and member.address is not None:
                addresses[identity.signer] = member.address

        tree = make_document(self._state, addresses)
        return _Document(revision, tree, document_digest(tree))

    def _mark_stale(self) -> None:
        self._stale = True
        self._stirred.update(self._connections)

    def _refresh(self) -> None:
        if not self._stale:
            return

        self._stale = False
        document = self._new_document(self._document.revision + 1)
        if document.digest != self._document.digest:
            self._document = document
            self._frames.clear()

    def _document_frame(self, known: _Document | None) -> bytes:
        """What leads from the document a connection knows to the newest; made once for all that know the same."""
        now = self._document
        key = 0 if known is None else known.revision
        frame = self._frames.get(key)
        if frame is not None:
            return frame

        if known is None:
            frame = encode_server(Whole(now.revision, now.digest, now.tree))
        else:
            frame = encode_server(Patch(known.revision, now.revision, now.digest, diff(known.tree, now.tree) or [0, now.tree]))
        self._frames[key] = frame
        return frame

    # ------------------------------------------------------------ sending

    def _send(self, number: int, payload: bytes) -> None:
        connection = self._connections[number]
        if not connection.closing:
            connection.outbox.append(payload)
            self._stirred.add(number)

    def _say_bye(self, number: int, code: str, sentence: str) -> None:
        self._send(number, encode_server(Bye(code, sentence)))
        self._connections[number].closing = True
        self._stirred.add(number)

    @property
    def finished(self) -> bool:
        """Whether the run is over."""
        return self._state.run_state is RunState.Finished
