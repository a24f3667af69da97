"""Connections to members: which side dials, which peers are accepted, and which of two connections stays.

Published addresses are dialled only if `dial_ranges` permits it and as often as `dial_budget` permits it; a published relay is
used only if it is one of ours. Each pair has one connection. The peer with the smaller key dials at once, the other after a
delay, so that two dials rarely cross; if they do, the connection dialled by the smaller key stays, and both sides decide this in
the same way. A restarted peer (another instance in its hello or address) replaces its old connection at once. A peer that is not
a member is disconnected as soon as it has proved its key, and so is a peer that connects again and again.

Where a run has too many members for connections between all, only neighbours are dialled; the addresses of the others are known,
and dialled when a transfer needs them. `guests` decides who may stay. `session` decides what is sent on a connection.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import anyio
from anyio.abc import TaskGroup

from psyche_core.errors import TransportError, WireError
from psyche_core.telemetry.repeated_problem import RepeatedProblem
from psyche_core.wire.frames import FrameDecoder
from psyche_p2p_quic.connections import session
from psyche_p2p_quic.connections.arrivals import Arrivals
from psyche_p2p_quic.connections.control_frames import Hello
from psyche_p2p_quic.connections.dial_budget import DialBudget
from psyche_p2p_quic.connections.entries import Entries
from psyche_p2p_quic.connections.guests import Guests
from psyche_p2p_quic.connections.hello import hello_frame, read_hello
from psyche_p2p_quic.connections.leaving import Leaving
from psyche_p2p_quic.connections.per_peer import Remembered
from psyche_p2p_quic.connections.published import PublishedAddresses
from psyche_p2p_quic.connections.reputation import Reputation
from psyche_p2p_quic.connections.session import Session
from psyche_p2p_quic.connections.which_stays import another_life, newer_stays
from psyche_p2p_quic.endpoint.endpoint import Endpoint
from psyche_p2p_quic.endpoint.links import Arrival, Link, LinkLost, Stream
from psyche_p2p_quic.settings import QuicSettings

_PATHS_SECONDS = 1.0
"""Most seconds for which known paths are used to choose sources; to refresh them, every connection is asked."""

_IDLE_PASSES = 2
"""Attempts in a row without an address that may be dialled before this is logged: our relays may become known a bit later."""

_NOT_NEEDED = session.SUPERSEDED, "not needed"

logger: logging.Logger = logging.getLogger("psyche.p2p")

Furnish = Callable[[Link, Stream, FrameDecoder, bool, bytes], Session]
"""Makes a session of a link after the hello.

Arguments: link, control stream, decoder, whether we dialled, the peer's instance.
"""


@dataclass(frozen=True, slots=True)
class _Member:
    """sought: whether we keep a connection to it."""

    address: bytes
    sought: bool
    scope: anyio.CancelScope


class Mesh:
    """All connections to members.

    sessions: by peer. changed: set and replaced when a session begins or ends, or the members change. guests: who may stay.
    gone: is told of a peer whose connection has ended without another one. endpoint: bound. own: our key. hello: our first frame.
    furnish: makes sessions. tasks: runs all of the mesh's tasks.
    """

    def __init__(
        self, endpoint: Endpoint, *, own: bytes, hello: Hello, furnish: Furnish, settings: QuicSettings, tasks: TaskGroup
    ) -> None:
        self.sessions: dict[bytes, Session] = {}
        self.changed: anyio.Event = anyio.Event()
        self.reputation: Reputation = Reputation(penalty_seconds=settings.penalty_seconds, false_blobs=settings.false_blobs)
        self._endpoint = endpoint
        self._own = own
        self._hello = hello
        self._furnish = furnish
        self._settings = settings
        self._tasks = tasks
        self.gone: Callable[[bytes], object] = bytes
        self.guests: Guests = Guests(
            most=settings.guests,
            most_visits=settings.visits,
            turn_seconds=settings.guest_turn_seconds,
            idle_seconds=settings.guest_idle_seconds,
        )
        self._leaving = Leaving(self.guests, self.sessions)
        self._dials = DialBudget(per_peer=settings.dials_per_peer, per_host=settings.dials_per_host)
        self._entries = Entries(settings)
        self._members: dict[bytes, _Member] = {}
        self._arrivals = Arrivals(most=settings.arrivals, per_peer=settings.handshakes_per_peer)
        self._offences = Remembered(RepeatedProblem)
        self._published = PublishedAddresses(endpoint)
        self._hasty = Remembered(RepeatedProblem)
        self._handshakes = 0
        self._relayed: frozenset[bytes] = frozenset()
        self._relayed_at = -math.inf

    @property
    def relayed(self) -> frozenset[bytes]:
        """Peers that are reached through a relay now. Without relays there are none, and connections are not asked."""
        if not self._endpoint.relays:
            return frozenset()

        now = _now()
        if now - self._relayed_at >= _PATHS_SECONDS:
            self._relayed_at = now
            paths = {peer: made.path for peer, made in self.sessions.items()}
            self._relayed = frozenset(peer for peer, path in paths.items() if path is not None and path.relayed)
        return self._relayed

    @property
    def members(self) -> tuple[bytes, ...]:
        """The keys of the current members, without ours."""
        return tuple(self._members)

    def set_members(self, addresses: Mapping[bytes, bytes], *, neighbours: Collection[bytes] | None = None) -> None:
        """Replace the members: dial new ones, disconnect removed ones, and dial those with a new address again.

        neighbours: those of them to keep connections with; None for all.
        """
        wanted = {peer: address for peer, address in addresses.items() if peer != self._own}
        self.guests.neighbours = None if neighbours is None else frozenset(neighbours)
        for peer in [peer for peer, member in self._members.items() if wanted.get(peer) != member.address]:
            old = self._members.pop(peer)
            old.scope.cancel()
            if peer not in self.sessions:
                continue

            if peer not in wanted:
                self.sessions[peer].close(session.NOT_A_MEMBER, "you are not a member of this epoch")
            elif old.address and wanted[peer] and another_life(self.sessions[peer].instance, wanted[peer]):
                # the library refuses the new connection while the old one is open
                self.sessions[peer].close(session.SUPERSEDED, "your address has changed; connect again")

        for peer, address in wanted.items():
            self._seek(peer, address)

        self.reputation.keep_only(frozenset(wanted))
        self._notify()

    def _seek(self, peer: bytes, address: bytes) -> None:
        """Keep a connection to a member from now on, or not any more, as `guests` says."""
        sought, known = self.guests.seeks(peer), self._members.get(peer)
        if known is not None and known.sought == sought:
            return

        if known is not None:
            known.scope.cancel()
        self._members[peer] = _Member(address, sought, anyio.CancelScope())
        if sought:
            self._tasks.start_soon(self._keep, peer, self._members[peer])

    @asynccontextmanager
    async def reach(self, peer: bytes) -> AsyncIterator[None]:
        """Dial a member that is no neighbour while this is entered. Its session may come at any time, or never.

        The connection ends when nothing has been transferred on it for a while. Nothing happens if we visit too many already.
        """
        known = self._members.get(peer)
        near = self.guests.neighbours is None or peer in self.guests.neighbours
        begun, leaves = (False, None) if known is None or near else self.guests.begin_visit(peer)
        if known is None or not begun:
            yield
            return

        self._leaving.make_room(leaves)
        self._seek(peer, known.address)
        try:
            yield
        finally:
            self.guests.end_visit(peer)
            known = self._members.get(peer)
            if known is not None:
                self._seek(peer, known.address)

    async def hang_up(self) -> None:
        """End the connections of guests when nothing is transferred any more."""
        await self._leaving.hang_up(every=self._settings.guest_idle_seconds / 4)

    def start_over(self, hello: Hello) -> None:
        """Continue like a restarted member after our endpoint was bound elsewhere and all links ended: others accept that at
        once.
        """
        self._hello = hello
        for made in tuple(self.sessions.values()):
            made.close(session.CLOSED, "our address has changed")

    async def listen(self) -> None:
        """Accept connections of members until the endpoint is closed."""
        most = self._settings.handshakes
        while (arrival := await self._endpoint.arrival()) is not None:
            if self._handshakes >= most:
                self._tasks.start_soon(self._reject, arrival)
                continue

            self._handshakes += 1
            self._tasks.start_soon(self._welcome, arrival, self._handshakes > most // 2)

    def offended(self, peer: bytes, reason: str) -> None:
        """Refuse a peer that broke the rules for a while. It may do so repeatedly, so it is not logged each time."""
        self.reputation.offended(peer, now=_now())
        offences = self._offences.of(peer)
        if offences.failed():
            often = "" if offences.times == 1 else f" ({offences.times} times since this was last logged)"
            logger.warning("peer %s broke the rules and is refused for a while%s: %s", peer[:4].hex(), often, reason)

    # ---------------------------------------------------------------------------------------------------- outwards

    async def _keep(self, peer: bytes, member: _Member) -> None:
        """Keep a connection to a member for as long as it is a member."""
        with member.scope:
            published = self._published.read(peer, member.address)
            pause = 0.0 if self._own < peer or self.guests.visits(peer) else self._settings.dial_grace_seconds
            idle = 0
            while True:
                refused, hasty = self.reputation.refused_for(peer, now=_now()), self._entries.wait_to_dial(peer, _now())
                await self._until_connected(peer, max(pause, refused, hasty))
                current = self.sessions.get(peer)
                if current is not None:
                    await current.ended.wait()
                    settings = self._settings
                    pause = settings.dial_grace_seconds if current.peer_left else settings.retry_seconds
                    pause *= random.uniform(0.5, 1.5)
                    continue

                wait = 0.0
                if published is not None and peer not in self._arrivals:
                    dialable, relay = self._published.dialable(published)
                    idle = idle + 1 if published.sockets and not dialable and relay is None else 0
                    if idle == _IDLE_PASSES:
                        self._published.tell_undialable(peer, published)
                    allowed, wait = self._dials.take(peer, dialable, now=_now()) if dialable else ([], 0.0)
                    if not allowed and (relay is not None or self._endpoint.discovery):
                        due = self._dials.is_quiet(peer, now=_now())
                        wait = 0.0 if due else wait
                    else:
                        due = bool(allowed)
                    if due and await self._dial(peer, allowed, relay):
                        continue

                pause = min(max(2 * pause, self._settings.retry_seconds), self._settings.retry_most_seconds)
                pause *= random.uniform(0.75, 1.25)
                if wait > pause:
                    logger.debug("peer %s is not dialled for %.0f s: its addresses were tried too often", peer[:4].hex(), wait)
                    await self._until_connected(peer, wait)

    async def _until_connected(self, peer: bytes, timeout: float) -> None:
        with anyio.move_on_after(timeout):
            while peer not in self.sessions:
                await self.changed.wait()

    async def _dial(self, peer: bytes, dialable: list[str], relay: str | None) -> bool:
        link: Link | None = None
        settled, end = False, _NOT_NEEDED
        try:
            with anyio.fail_after(self._settings.handshake_seconds):
                link = await self._endpoint.dial(peer, dialable, relay=relay)
                self._proved(link)
                stream = await link.open()
                await stream.write(hello_frame(self._hello))
                await stream.prefer()
                made = await self._greeted(link, stream, dialled=True)
            self._entries.take(peer, _now())
            settled = self._settle(made)
        except (TransportError, TimeoutError) as error:
            logger.debug("dialling %s: %s", peer[:4].hex(), error)
            if link is not None and link.peer_code == session.NO_NEIGHBOUR and self.guests.visits(peer):
                self._entries.was_refused(peer, _now())
        except WireError as error:
            end = session.BROKE_RULES, str(error)
            self.offended(peer, str(error))
        finally:
            if link is not None:
                self._proved(link)  # again, because the library may have chosen the path only now
                if not settled:
                    link.close(*end)

        return settled

    # ----------------------------------------------------------------------------------------------------- inwards

    async def _reject(self, arrival: Arrival) -> None:
        with anyio.move_on_after(self._settings.handshake_seconds), suppress(LinkLost):
            await arrival.refuse()

    async def _welcome(self, arrival: Arrival, crowded: bool) -> None:
        try:
            with anyio.move_on_after(self._settings.handshake_seconds):
                if crowded and await arrival.prove_source():
                    return

                await self._let_in(await arrival.complete())
        except (TransportError, OSError) as error:
            logger.debug("an incoming connection failed: %s", error)
        finally:
            self._handshakes -= 1

    async def _let_in(self, link: Link) -> None:
        peer = link.peer
        if peer not in self._members or self.reputation.refused_for(peer, now=_now()):
            link.close(session.NOT_A_MEMBER, "you are not a member of this epoch, or you broke its rules")
            return

        beside = not self.guests.seeks(peer)
        if self._arrivals.are_enough(peer, beside=beside):
            link.close(session.BROKE_RULES, "you have too many connections")
            return

        if self._entries.wait(peer, _now()) > 0:
            link.close(session.BROKE_RULES, "you connect too often; try again in a minute")
            if self._hasty.of(peer).failed():
                logger.warning("peer %s connects again and again and is let in a few times a minute only", peer[:4].hex())
            return

        self._entries.take(peer, _now())
        self._proved(link)
        settled, end = False, _NOT_NEEDED
        try:
            with self._arrivals.coming(link, beside=beside):
                with anyio.fail_after(self._settings.hello_seconds if beside else None):
                    stream = await link.accept()
                    made = await self._greeted(link, stream, dialled=False)
                self._arrivals.greeted(link)
                admitted, leaves = self.guests.admit(peer, _now())
                if not admitted:
                    self._entries.had_no_place(peer, _now())
                    end = session.NO_NEIGHBOUR, "we are no neighbours, and all places for others are taken"
                    return

                self._leaving.make_room(leaves)
                await stream.write(hello_frame(self._hello))
                await stream.prefer()
                settled = peer in self._members and self._settle(made)
        except WireError as error:
            end = session.BROKE_RULES, str(error)
            self.offended(peer, str(error))
        finally:
            self.guests.has_come(peer)
            if not settled:
                link.close(*end)

    # -------------------------------------------------------------------------------------------------------- both

    def _proved(self, link: Link) -> None:
        for address in link.addresses:
            self._dials.proved(link.peer, address, now=_now())

    async def _greeted(self, link: Link, stream: Stream, *, dialled: bool) -> Session:
        """Read the peer's hello. Raises WireError when it is not a hello of our run."""
        hello, decoder = await read_hello(stream, run_id=self._hello.run_id, frame_bytes=self._settings.frame_bytes)
        return self._furnish(link, stream, decoder, dialled, hello.instance)

    def _settle(self, made: Session) -> bool:
        """Keep the new connection or the existing one; return whether the new one was kept."""
        old = self.sessions.get(made.peer)
        if old is not None and not old.ended.is_set():
            restarted = old.instance != made.instance
            if not restarted and not newer_stays(self._own, made.peer, old_dialled=old.dialled, new_dialled=made.dialled):
                return False

            old.close(session.SUPERSEDED, "there is a newer connection")

        self.sessions[made.peer] = made
        self._notify()
        self._tasks.start_soon(self._run, made)
        return True

    async def _run(self, made: Session) -> None:
        try:
            await made.run()
        except Exception:  # a bug triggered by one peer must not affect the others
            logger.exception("the connection with %s failed", made.peer[:4].hex())
        finally:
            self._dials.ended(made.peer, now=_now())
            if self.sessions.get(made.peer) is made:
                del self.sessions[made.peer]
                self.gone(made.peer)
            self._notify()

    def _notify(self) -> None:
        self._leaving.look()
        self.changed.set()
        self.changed = anyio.Event()


def _now() -> float:
    return asyncio.get_running_loop().time()
