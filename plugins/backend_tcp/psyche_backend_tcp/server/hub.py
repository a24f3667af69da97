"""The coordinator server's logic, without sockets, clocks or disks: takes frames of connections, returns the frames to send.

Each key has one connection. When the key logs in again, the caller pings the older connection (`ping`, `give_up`) and refuses the
new one if the older answers; otherwise `connect` replaces the older connection, whose end then withdraws no member. A lost member
may return for a while (`attendance`). A slow reader gets fewer, merged changes (`open_connection`). Nothing is sent when nothing
changed.

Write-ahead: neither a changed state nor the answer to the request that changed it is sent before the caller reports with `saved`
that the change is on disk. Changes during a write are collected and written together. The owner's commands are not accepted from
connections; use `submit`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from psyche_backend_tcp import protocol
from psyche_backend_tcp.limits import MAX_ADDRESS_BYTES, Limits
from psyche_backend_tcp.server.attendance import Attendance
from psyche_backend_tcp.server.documents import Documents, Draft
from psyche_backend_tcp.server.hosted_state import ClockTime, HostedState
from psyche_backend_tcp.server.key_records import KeyRecords
from psyche_backend_tcp.server.open_connection import OpenConnection
from psyche_core.config.run_config import CoordinatorConfig
from psyche_core.coordinator.commands import Command, Event, Join, Witness
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import CoordinatorError, WireError
from psyche_core.interfaces.command_codec import decode_command
from psyche_core.rate_limit import TokenBucket
from psyche_core.types import NodeIdentity, RunState, WitnessMetadata

logger: logging.Logger = logging.getLogger("psyche.backend.tcp")

WHOLE_COST = 20.0
"""A request for the whole document counts as this many requests."""


_ONE_KEY_EACH = (
    "each client needs a key of its own: "
    "make one with `openssl rand 32 > another.key && chmod 600 another.key`, and give it with -i"
)
_REPLACED = f"this key has logged in again, from another client, while this one did not answer; {_ONE_KEY_EACH}"
KEY_IN_USE = protocol.Bye("KeyInUse", f"another client takes part with this key now, and answers; {_ONE_KEY_EACH}")
"""The bye for a new connection whose key another client uses."""

NOT_ALLOWED = protocol.Bye("NotAllowed", "the run's owner removed your key from the list of those who may take part")
"""The bye for a client whose key is no longer allowed."""


@dataclass(frozen=True, slots=True)
class PendingSave:
    """A change that must be on disk before anybody is informed of it.

    version: counts changes. draft: None if the changes cancelled each other. opening: the run's own configuration, while the
    state has another one for its first epoch.
    """

    version: int
    draft: Draft | None
    opening: CoordinatorConfig | None


class Hub:
    """The coordinator's state and all connections to it.

    draw_seed: called for each command, returns an unpredictable u64. opening: the configuration that replaces the state's at the
    first round. addresses: of the members of a resumed state; began: when it was resumed. relays: offered to clients. data_key:
    the key with which the state names the run's data server; None if the state names none with a key.

    After any call the caller collects `take_pending_save` (to be written and confirmed with `saved`), then `take_to_flush`
    (connections whose `outgoing` may have frames) and `take_changes`.
    """

    def __init__(
        self,
        state: CoordinatorState,
        limits: Limits,
        *,
        draw_seed: Callable[[], int],
        withdraw_on_disconnect: bool = True,
        opening: CoordinatorConfig | None = None,
        addresses: Mapping[bytes, bytes] | None = None,
        began: ClockTime | None = None,
        relays: Sequence[str] = (),
        data_key: bytes | None = None,
    ) -> None:
        self._limits = limits
        self._hosted = HostedState(state, draw_seed=draw_seed, opening=opening, data_key=data_key)
        self._connections: dict[int, OpenConnection] = {}
        self._key_records = KeyRecords(limits)
        self._attendance = Attendance(self._hosted, self._key_records, limits, withdraw_lost=withdraw_on_disconnect)
        if began is not None:
            self._attendance.reopen(addresses or {}, began)
        self._next_number = 1
        self._to_flush: set[int] = set()
        self._figures: list[tuple[bytes, WitnessMetadata]] = []
        self._resumed = began is not None
        self._later: list[tuple[bytes, protocol.LaterState]] = []
        self._knew_later: set[bytes] = set()
        self._documents = Documents(state, self._key_records.addresses(self._hosted.members()), relays=relays)

    @property
    def state(self) -> CoordinatorState:
        """The current state; members may not have received it yet."""
        return self._hosted.current

    @property
    def versions(self) -> int:
        """Number of documents that were published."""
        return self._documents.versions

    @property
    def digest(self) -> bytes:
        """Hash of the newest published document."""
        return self._documents.newest.digest

    @property
    def connected(self) -> int:
        """Number of connections that are not closed yet."""
        return len(self._connections)

    def members(self) -> set[bytes]:
        """Return the signers of all clients that wait for an epoch or take part in the current one."""
        return self._hosted.members()

    def take_pending_save(self) -> PendingSave | None:
        """Return what changed since the last call, None when nothing did. It is not sent before `saved` is called."""
        version = self._hosted.take_unsaved()
        if version is None:
            return None

        draft = self._documents.draft(self.state, self._key_records.addresses(self._hosted.members()))
        return PendingSave(version, draft, self._hosted.opening)

    def saved(self, pending_save: PendingSave) -> None:
        """Note that a change is on disk: its answers and its document may be sent."""
        self._hosted.saved = pending_save.version
        if pending_save.draft is not None:
            self._documents.publish(pending_save.draft)
            self._to_flush.update(self._connections)
        self._to_flush.update(number for number, connection in self._connections.items() if connection.holds_answers)

    def take_to_flush(self) -> set[int]:
        """Return connections that since the last call have something to send or must be closed."""
        to_flush, self._to_flush = self._to_flush & self._connections.keys(), set()
        return to_flush

    def take_changes(self) -> list[tuple[CoordinatorState, tuple[Event, ...]]]:
        """Return saved states that differ from their predecessor, with their events, since the last call."""
        return self._hosted.take_changes()

    def take_withdrawn(self) -> list[tuple[bytes, str]]:
        """Return healthy members withdrawn since the last call, and why; call it before `take_changes`.

        The reasons: `lost`, `not back` (no connection since this server continued the run), `not allowed`.
        """
        return self._attendance.take_withdrawn()

    def take_figures(self) -> list[tuple[bytes, WitnessMetadata]]:
        """Return witnesses whose statements were accepted since the last call: signers, and unverified figures they sent."""
        taken, self._figures = self._figures, []
        return taken

    def take_later(self) -> list[tuple[bytes, protocol.LaterState]]:
        """Return members that since the last call reported a later state than ours; each member is returned once."""
        taken, self._later = self._later, []
        return taken

    # ------------------------------------------------------------ connections

    def connect(self, identity: NodeIdentity, now: ClockTime, *, known: bytes = b"") -> int:
        """Register the connection of a key that has logged in; return its number. An older connection of the key gets a bye.

        known: hash of the document that the client still has.
        """
        number = self._next_number
        self._next_number += 1
        entry = self._key_records.known(identity.signer)
        if entry.connection is not None:
            self._send_bye(entry.connection, "Replaced", _REPLACED)

        entry.connection = number
        entry.lost_at = None
        entry.restored = False
        limits = self._limits
        bucket = TokenBucket(limits.bytes_per_second, burst=limits.burst_bytes)
        self._connections[number] = OpenConnection(
            identity, bucket, received_at=now.monotonic, pinged_at=now.monotonic, known=self._documents.named(known)
        )
        self._to_flush.add(number)
        return number

    def connection_of(self, signer: bytes) -> int | None:
        """Return the number of a key's present connection, unless it is being closed or was given up; else None."""
        entry = self._key_records.get(signer)
        number = None if entry is None else entry.connection
        return None if number is None or self.is_closing(number) or self._connections[number].given_up else number

    def give_up(self, number: int) -> None:
        """Note that a connection did not answer a ping. Unless it sends something, the next login of its key replaces it."""
        connection = self._connections.get(number)
        if connection is not None:
            connection.given_up = True

    def ping(self, number: int, now: ClockTime) -> int:
        """Ping a connection; return the number of the pong that answers it, for `has_answered`."""
        self._connections[number].ping(now.monotonic)
        self._to_flush.add(number)
        return self._connections[number].pings

    def has_answered(self, number: int, pong: int) -> bool:
        """Return whether that pong has come and the connection is open. A client sends one for each ping, in order."""
        return not self.is_closing(number) and self._connections[number].pongs >= pong

    def is_settled(self, number: int, pong: int) -> bool:
        """Return whether that pong has come, or cannot come any more."""
        return self.is_closing(number) or self.has_answered(number, pong)

    def disconnect(self, number: int, now: ClockTime) -> None:
        """Note that a connection ended. Its member is withdrawn unless it returns in time, or the connection was replaced."""
        connection = self._connections.pop(number, None)
        if connection is None:
            return

        entry = self._key_records[connection.identity.signer]
        if entry.connection != number:
            return

        entry.connection = None
        entry.lost_at = now.monotonic
        self._attendance.settle_lost(now)

    def expel(self, may: Callable[[bytes], bool], now: ClockTime) -> None:
        """Close the connections of keys that are no longer allowed, and withdraw those members."""
        for number, connection in self._connections.items():
            if not may(connection.identity.signer):
                self._send_bye(number, NOT_ALLOWED.code, NOT_ALLOWED.sentence)
        for signer in self._hosted.members():
            if not may(signer):
                self._attendance.withdraw(signer, now, why="not allowed")

    def receive(self, number: int, payload: bytes, now: ClockTime) -> float:
        """Handle a frame; return seconds to wait before reading the next. A bad frame closes only this connection."""
        connection = self._connections.get(number)
        if connection is None or connection.closing:
            return 0.0

        connection.received_at = now.monotonic
        connection.given_up = False
        try:
            message = protocol.decode_client(payload)
            self._handle(number, connection, message, now)
        except WireError as error:
            self._send_bye(number, "BadMessage", str(error))
            return 0.0

        if connection.queued > self._limits.max_outbox:
            connection.forget_queued()
            self._send_bye(number, "TooSlow", "you do not read the answers to your requests")
            return 0.0

        requests = self._key_records[connection.identity.signer].requests
        cost = WHOLE_COST if isinstance(message, protocol.WholeRequest) else 1.0
        return max(requests.take(now.monotonic, cost), connection.sizes.take(now.monotonic, len(payload)))

    def refuse(self, number: int, sentence: str) -> None:
        """Close a connection that sent a malformed frame."""
        if number in self._connections:
            self._send_bye(number, "BadMessage", sentence)

    def outgoing(self, number: int) -> list[bytes]:
        """Remove and return the frames to send now, in order. Call again only after sending them, so that states are merged."""
        connection = self._connections.get(number)
        if connection is None:
            return []

        closing = connection.closing
        frames = connection.next_frames(self._documents, saved=self._hosted.saved)
        if connection.closing and not closing:
            self._to_flush.add(number)
        return frames

    def is_closing(self, number: int) -> bool:
        """Return whether the connection should be closed once its outgoing frames are sent."""
        connection = self._connections.get(number)
        return connection is None or connection.closing

    @property
    def all_sent(self) -> bool:
        """Whether everything is saved and every connection was sent the newest document."""
        newest = self._documents.newest
        return self._hosted.saved == self._hosted.version and all(
            connection.has(newest) for connection in self._connections.values()
        )

    def close_all(self, code: str, sentence: str) -> None:
        """Send every connection a bye."""
        for number in self._connections:
            self._send_bye(number, code, sentence)

    # ------------------------------------------------------------ commands and time

    @property
    def finished(self) -> bool:
        """Whether the run is over."""
        return self.state.run_state is RunState.Finished

    def submit(self, command: Command, now: ClockTime) -> None:
        """Apply a command of the run's owner. Raises CoordinatorError."""
        self._hosted.apply_owners(command, now.unix)
        self._attendance.tick(now)

    def tick(self, now: ClockTime) -> None:
        """Advance time: the coordinator's, and that of the connections' pings and timeouts."""
        self._attendance.settle_lost(now)
        self._attendance.tick(now)
        for number, connection in self._connections.items():
            silent = now.monotonic - connection.received_at
            if silent >= self._limits.silence_seconds:
                self._send_bye(number, "Silent", f"no complete frame came from you for {silent:.0f} s")
            elif min(silent, now.monotonic - connection.pinged_at) >= self._limits.ping_seconds:
                self.ping(number, now)

    # ------------------------------------------------------------ requests

    def _handle(self, number: int, connection: OpenConnection, message: protocol.ClientMessage, now: ClockTime) -> None:
        match message:
            case protocol.Heartbeat():
                connection.pongs += 1
            case protocol.WholeRequest():
                connection.known = None
                self._to_flush.add(number)
            case protocol.LaterState():
                self._note_later(connection.identity.signer, message)
            case protocol.JoinRequest() | protocol.CommandRequest():
                entry = self._key_records[connection.identity.signer]
                answer = entry.answered(message.number)
                if answer is None:
                    answer = self._answer(connection.identity, message, now)
                    entry.remember(answer)
                connection.hold(self._hosted.version, protocol.encode_server(answer))
                self._to_flush.add(number)

    def _note_later(self, signer: bytes, known: protocol.LaterState) -> None:
        """Note that a client reports a later state, which is possible after a restart. It cannot be checked, only reported."""
        if self._resumed and known > protocol.LaterState.of(self.state) and signer in self._hosted.members() - self._knew_later:
            self._knew_later.add(signer)
            self._later.append((signer, known))

    def _answer(
        self, identity: NodeIdentity, request: protocol.JoinRequest | protocol.CommandRequest, now: ClockTime
    ) -> protocol.Answer:
        try:
            match request:
                case protocol.JoinRequest(number, address, proof):
                    self._join(identity, address, now, proof=proof)
                case protocol.CommandRequest(number, plain):
                    command, before = decode_command(plain, identity), self._hosted.version
                    self._hosted.apply(command, now.unix)
                    if isinstance(command, Witness) and command.metadata is not None and self._hosted.version != before:
                        self._figures.append((identity.signer, command.metadata))
            self._attendance.tick(now)
        except CoordinatorError as error:
            return protocol.Answer(number, error.name, error.message)
        except WireError as error:
            return protocol.Answer(number, "BadRequest", str(error))
        except Exception:
            logger.exception("a request of %s failed in the coordinator", identity)
            return protocol.Answer(number, "InternalError", "the server failed to carry out the request; its log says why")

        return protocol.Answer(number, "", "")

    def _join(self, identity: NodeIdentity, address: bytes, now: ClockTime, *, proof: bytes) -> None:
        if len(address) > MAX_ADDRESS_BYTES:
            message = f"a transport address has at most {MAX_ADDRESS_BYTES} bytes, got {len(address)}"
            raise WireError(message)

        self._hosted.apply(Join(identity, proof), now.unix)
        entry = self._key_records[identity.signer]
        if entry.address != address:
            entry.address = address
            self._hosted.version += 1

    # ------------------------------------------------------------ sending

    def _send_bye(self, number: int, code: str, sentence: str) -> None:
        self._connections[number].say_bye(protocol.Bye(code, sentence))
        self._to_flush.add(number)
