"""The control protocol of one connection, without I/O: takes received frames, returns the frames to send.

After the hellos both sides send lists of the messages they have, and each sends what the other lacks. Later, a peer that receives
a message soon sends its id to a few others, and they request it if its author did not send it to them (`IHave`, `IWant`, as in
gossipsub). As a last resort, pings contain digests, and lists are sent when the digests differ. Nothing is sent twice on one
connection: it is reliable, so what was sent arrives or the connection ends, and the record of what was sent ends with it.

A peer counts as dead after some heartbeats without any data from it. Beats are counted instead of seconds, so that a process that
was itself suspended does not treat all others as dead. `mesh` decides which peers are connected, and `transport` which of them
get which ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from psyche_core.errors import TransportError, WireError
from psyche_core.p2p.message_log import PREFIX_BYTES, LogEntry, MessageLog, Verdict
from psyche_p2p_quic.connections import control_frames
from psyche_p2p_quic.connections.control_frames import Have, Hello, IHave, Inventory, IWant, Message, Ping, Pong
from psyche_p2p_quic.settings import QuicSettings

_GIVEN_BYTES = 4 * 2**20
"""Most bytes of messages sent in answer to one list of the peer, and to all its requests within one beat. The rest is sent when
the peer compares again. Normally live messages have far fewer bytes; in a flood, a peer must not make us copy all of them at
once."""

_INVENTORIES_KEPT = 2
"""Number of lists from the peer that are answered in quick succession; later ones are ignored until further beats have passed."""

_WANTS_KEPT = 2048
"""Most messages requested from one peer within one beat. Otherwise ids of messages that do not exist would make us send as much
as we receive."""


class PeerSilent(TransportError):
    """A peer sent nothing for too long."""


class HeldBlobs(Protocol):
    """What both sides have; names are the first PREFIX_BYTES of hashes."""

    def held(self) -> Sequence[bytes]:
        """Return what to tell a new peer that we have."""

    def heard(self, peer: bytes, prefixes: Sequence[bytes]) -> None:
        """Note what a peer says that it has."""


class ControlProtocol:
    """The state of one connection. peer: its p2p key. log, blobs: shared by all connections of the endpoint."""

    def __init__(self, peer: bytes, log: MessageLog, *, settings: QuicSettings, blobs: HeldBlobs | None = None) -> None:
        self.peer = peer
        self._log = log
        self._settings = settings
        self._blobs = blobs
        self._known: set[bytes] = set()
        self._generation = log.generation
        self._silent_beats = 0
        self._received = False
        self._pings = 0
        self._inventory_credit = float(_INVENTORIES_KEPT)
        self._beats_since_inventory = 0
        self._want_credit = _WANTS_KEPT
        self._asked_bytes = 0

    def greeting(self) -> list[bytes]:
        """Return the frames to send first: those of `opening`, and which results we have."""
        return [*self.opening(), *self.announce_blobs([] if self._blobs is None else self._blobs.held())]

    def opening(self) -> list[bytes]:
        """Return frames with the ids of the messages we have, so that the peer sends the others."""
        return [control_frames.encode(Inventory(tuple(self._log.prefixes(control_frames.MAX_INVENTORY))))]

    def announce(self, entry: LogEntry) -> list[bytes]:
        """Return frames that send the peer a message, none when it has it."""
        if entry.id in self._known:
            return []

        self._known.add(entry.id)
        relayed = entry.via is not None
        return [control_frames.encode(Message(entry.tag, entry.message, relayed))]

    def announce_known(self, entries: Iterable[LogEntry]) -> list[bytes]:
        """Return frames that give the peer the ids of messages that it may lack."""
        prefixes = [entry.id[:PREFIX_BYTES] for entry in entries if entry.id not in self._known]
        most = control_frames.MAX_IDS
        return [control_frames.encode(IHave(tuple(prefixes[at : at + most]))) for at in range(0, len(prefixes), most)]

    def announce_blobs(self, prefixes: Sequence[bytes]) -> list[bytes]:
        """Return frames that tell the peer that we have these results."""
        most = control_frames.MAX_IDS
        return [control_frames.encode(Have(tuple(prefixes[at : at + most]))) for at in range(0, len(prefixes), most)]

    def note_received(self) -> None:
        """Note that bytes arrived from the peer."""
        self._received = True

    def receive(self, data: bytes) -> list[bytes]:
        """Handle a frame; return the frames to answer with. Raises WireError when the peer broke the protocol."""
        match control_frames.decode(data, max_bytes=self._settings.frame_bytes):
            case Message() as frame:
                self._take(frame)
                return []
            case Inventory(prefixes):
                return self._give(prefixes)
            case IHave(prefixes):
                return self._want(prefixes)
            case IWant(prefixes):
                return self._answer(prefixes)
            case Have(prefixes):
                if self._blobs is not None:
                    self._blobs.heard(self.peer, prefixes)
                return []
            case Ping(number, digest):
                return [control_frames.encode(Pong(number)), *self._compare(digest)]
            case Pong():
                return []
            case Hello():
                message = "the peer sent hello twice"
                raise WireError(message)

    def beat(self) -> list[bytes]:
        """Return the frames of the next heartbeat. Raises PeerSilent when the peer sent nothing during too many of them."""
        self._silent_beats = 0 if self._received else self._silent_beats + 1
        self._received = False
        if self._silent_beats >= self._settings.silent_beats:
            message = f"nothing was received for {self._silent_beats} heartbeats"
            raise PeerSilent(message)

        if self._generation != self._log.generation:
            self._generation = self._log.generation
            self._known = {message_id for message_id in self._known if message_id in self._log}
        self._inventory_credit = min(self._inventory_credit + 1 / self._settings.inventory_beats, _INVENTORIES_KEPT)
        self._beats_since_inventory += 1
        self._want_credit = _WANTS_KEPT
        self._asked_bytes = 0
        self._pings += 1
        return [control_frames.encode(Ping(self._pings, self._log.digest() if len(self._log) else None))]

    def _take(self, frame: Message) -> None:
        verdict, message_id = self._log.add_from(self.peer, frame.message, tag=frame.tag, relayed=frame.relayed)
        if verdict is Verdict.OFFENCE:
            raise WireError(self._log.offence)

        if verdict in (Verdict.NEW, Verdict.KNOWN):
            self._known.add(message_id)

    def _give(self, prefixes: tuple[bytes, ...]) -> list[bytes]:
        if self._inventory_credit < 1:
            return []

        self._inventory_credit -= 1
        return self._limited(self._log.lacking(prefixes), _GIVEN_BYTES)

    def _answer(self, prefixes: tuple[bytes, ...]) -> list[bytes]:
        entries = [entry for prefix in prefixes if (entry := self._log.find(prefix)) is not None and entry.passable]
        given = self._limited(entries, _GIVEN_BYTES - self._asked_bytes)
        self._asked_bytes += sum(map(len, given))
        return given

    def _want(self, prefixes: tuple[bytes, ...]) -> list[bytes]:
        wanted: list[bytes] = []
        for prefix in prefixes:
            entry = self._log.find(prefix)
            if entry is not None:
                self._known.add(entry.id)
            elif len(wanted) < self._want_credit and self._log.claim_request(prefix, self.peer):
                wanted.append(prefix)
        self._want_credit -= len(wanted)
        return [control_frames.encode(IWant(tuple(wanted)))] if wanted else []

    def _limited(self, entries: Iterable[LogEntry], left: int) -> list[bytes]:
        """Return frames that send the peer these messages, until about `left` bytes are sent."""
        given: list[bytes] = []
        for entry in entries:
            if left <= 0:
                break
            frames = self.announce(entry)
            left -= sum(map(len, frames))
            given += frames
        return given

    def _compare(self, digest: bytes | None) -> list[bytes]:
        """Return a list of what we have, if the peer has something else and we did not send a list recently."""
        if digest is None or digest == self._log.digest() or self._beats_since_inventory < self._settings.inventory_beats:
            return []

        self._beats_since_inventory = 0
        return self.opening()
