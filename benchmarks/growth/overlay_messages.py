"""How messages spread in an overlay: hops, copies and bytes, in virtual time.

Each member has the real message log, the real control protocol on each connection and the real choice of receivers; only the
links are simulated. Every link takes HOP_SECONDS for a frame of any size, and handling one takes no time, so seconds divided by
HOP_SECONDS are hops. Pings and comparisons of whole lists, the last resort, are left out: what is missing in the end is missing
without them. Signatures are not checked; a message begins with its author's key.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from itertools import count
from statistics import mean
from typing import Any

from psyche_core.interfaces.transport import Opened
from psyche_core.p2p.message_log import LogEntry, MessageLog
from psyche_core.p2p.overlay import DEGREE, KEY_BYTES, Overlay
from psyche_core.p2p.spread import Spread
from psyche_p2p_quic.connections import control_frames
from psyche_p2p_quic.connections.control_frames import IHave, IWant, Message
from psyche_p2p_quic.connections.control_protocol import ControlProtocol
from psyche_p2p_quic.settings import QuicSettings

HOP_SECONDS = 0.05
MESSAGE_BYTES = 400
"""About a commitment with its signature."""

GOAL_HOPS = 3

Receivers = Callable[[Overlay, bytes, LogEntry], tuple[bytes, ...]]
"""Neighbours that get a message at once. Arguments: the graph, our key, the message."""


def keys(members: int) -> list[bytes]:
    """Keys of made-up members."""
    return [hashlib.sha256(b"member %d" % number).digest() for number in range(members)]


def flood(overlay: Overlay, own: bytes, entry: LogEntry) -> tuple[bytes, ...]:
    """All neighbours: what `Spread` is compared with."""
    del entry
    return overlay.neighbours(own)


def announce(overlay: Overlay, own: bytes, entry: LogEntry) -> tuple[bytes, ...]:
    """All neighbours for an own message, none for others: only announced ids carry those."""
    return overlay.neighbours(own) if entry.via is None else ()


def directed(senders: int) -> Receivers:
    """As `Spread` decides with this number of senders."""
    spreads: dict[bytes, Spread] = {}

    def receivers(overlay: Overlay, own: bytes, entry: LogEntry) -> tuple[bytes, ...]:
        if own not in spreads:
            spreads[own] = Spread(overlay, own, senders=senders)
        origin = own if entry.opened is None else entry.opened.origin
        return spreads[own].receivers(origin, entry.id)

    return receivers


class _Member:
    """One member: log, connections, and what it does with frames."""

    def __init__(self, key: bytes, overlay: Overlay, network: _Network, *, drops: bool) -> None:
        self.key = key
        self.drops = drops
        self.neighbours = overlay.neighbours(key)
        self.log = MessageLog(own=key)
        self.log.check_with(lambda message: Opened(message[:KEY_BYTES]))
        self.log.set_members(overlay.members)
        self.connections = {peer: ControlProtocol(peer, self.log, settings=network.settings) for peer in self.neighbours}
        self.got: dict[bytes, float] = {}
        self._overlay = overlay
        self._network = network
        self._unannounced: list[LogEntry] = []

    def write(self) -> bytes:
        """Send a message of our own; returns its id."""
        entry = self.log.add_own(self.key.ljust(MESSAGE_BYTES, b"."), tag=1)
        assert entry is not None
        self.got[entry.id] = self._network.now
        self._pass_on(entry)
        return entry.id

    def receive(self, peer: bytes, data: bytes) -> None:
        """Handle a frame."""
        answers = self.connections[peer].receive(data)
        if not self.drops:
            for answer in answers:
                self._network.send(self.key, peer, answer)
        for entry in self.log.take_received():
            self.got[entry.id] = self._network.now
            if not self.drops:
                self._pass_on(entry)
                if not self._unannounced:
                    self._network.call(self._network.settings.gossip_seconds, self._announce)
                self._unannounced.append(entry)

    def _pass_on(self, entry: LogEntry) -> None:
        for peer in self._network.receivers(self._overlay, self.key, entry):
            for data in self.connections[peer].announce(entry):
                self._network.send(self.key, peer, data)

    def _announce(self) -> None:
        entries, self._unannounced = self._unannounced, []
        chosen = self._network.random.sample(self.neighbours, min(self._network.settings.gossip_peers, len(self.neighbours)))
        for peer in chosen:
            for data in self.connections[peer].announce_known(entries):
                self._network.send(self.key, peer, data)


class _Network:
    """Links of equal delay, and the clock."""

    def __init__(self, overlay: Overlay, receivers: Receivers, droppers: Collection[bytes], *, seed: int) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.settings = QuicSettings()
        self.receivers = receivers
        self.copies: defaultdict[bytes, int] = defaultdict(int)
        self.ids = 0
        self.sent: defaultdict[bytes, int] = defaultdict(int)
        self._order = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self.members = {key: _Member(key, overlay, self, drops=key in droppers) for key in overlay.members}

    def call(self, seconds: float, work: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._due, (self.now + seconds, next(self._order), work))

    def send(self, sender: bytes, receiver: bytes, data: bytes) -> None:
        """Deliver a frame after a hop, and count it."""
        self.sent[sender] += len(data)
        self.call(HOP_SECONDS, lambda: self._deliver(sender, receiver, data))

    def run(self) -> None:
        """Until nothing is on its way."""
        while self._due:
            self.now, _, work = heapq.heappop(self._due)
            work()

    def _deliver(self, sender: bytes, receiver: bytes, data: bytes) -> None:
        match control_frames.decode(data, max_bytes=self.settings.frame_bytes):
            case Message():
                self.copies[receiver] += 1
            case IHave(prefixes) | IWant(prefixes):
                self.ids += len(prefixes)
            case _:
                pass
        self.members[receiver].receive(sender, data)


def spread(
    members: int,
    receivers: Receivers,
    *,
    dropping: float = 0.0,
    authors: int | None = None,
    degree: int = DEGREE,
    seed: int = 0,
) -> dict[str, Any]:
    """Let honest members send a message each, all at once; return the figures of how they spread.

    dropping: share of the members that receive, and pass nothing on; they send no messages of their own. authors: most members
    that send a message, None for all honest ones.

    hops, hops_mean: until the last honest member has a message; of the slowest message, and the mean. in_goal: share of the
    pairs of message and member that were done within GOAL_HOPS. missing: pairs that never were. copies, copies_most: of a
    message at a member, mean and of the member with most. ids: announced and requested ids a message and member. bytes: sent by
    a member for a message, mean; sent_over_mean: the busiest honest member's bytes over those members' mean.
    """
    names = keys(members)
    overlay = Overlay(names, seed, degree=degree)
    droppers = frozenset(random.Random(seed).sample(names, round(dropping * members)))
    network = _Network(overlay, receivers, droppers, seed=seed)
    honest = [member for member in network.members.values() if not member.drops]
    writing = honest if authors is None else random.Random(seed).sample(honest, min(authors, len(honest)))
    written = [member.write() for member in writing]
    network.run()
    times = [[member.got.get(entry) for member in honest] for entry in written]
    came = [[when / HOP_SECONDS for when in row if when is not None] for row in times]
    pairs = len(written) * len(honest)
    copies = [network.copies[member.key] / len(written) for member in honest]
    sent = [network.sent[member.key] / len(written) for member in honest]
    return {
        "connections_most": max(len(overlay.neighbours(key)) for key in names),
        "connections_mean": round(mean(len(overlay.neighbours(key)) for key in names), 2),
        "hops": round(max(map(max, came)), 2),
        "hops_mean": round(mean(map(max, came)), 2),
        "in_goal": round(sum(hops <= GOAL_HOPS + 1e-6 for row in came for hops in row) / pairs, 6),
        "missing": pairs - sum(map(len, came)),
        "copies": round(mean(copies), 3),
        "copies_most": round(max(copies), 3),
        "ids": round(network.ids / len(written) / len(honest), 2),
        "bytes": round(mean(sent), 1),
        "sent_over_mean": round(max(sent) / mean(sent), 3),
    }


def ways() -> dict[str, Receivers]:
    """What is compared: `Spread` with one to three senders, and what it is better than."""
    return {"flood": flood, "ids only": announce, **{f"{senders} senders": directed(senders) for senders in (1, 2, 3)}}


def survival(members: int, shares: Sequence[float], *, trials: int) -> dict[str, dict[str, float]]:
    """By share of dead members: how the graph of those alive looks, over `trials` seeds.

    connected: share of the trials in which all of them are connected. largest: mean share of them that the largest part has.
    """
    names, found = keys(members), {}
    graphs = [Overlay(names, seed) for seed in range(trials)]
    for share in shares:
        parts = []
        for seed, overlay in enumerate(graphs):
            alive = set(random.Random(seed).sample(names, members - round(share * members)))
            parts.append(_largest_part(overlay, alive) / len(alive))
        found[str(share)] = {"connected": mean(part == 1 for part in parts), "largest": round(mean(parts), 4)}
    return found


def _largest_part(overlay: Overlay, alive: Collection[bytes]) -> int:
    left, most = set(alive), 0
    while left:
        part = {left.pop()}
        edge = set(part)
        while edge:
            edge = {peer for key in edge for peer in overlay.neighbours(key) if peer in left}
            left -= edge
            part |= edge
        most = max(most, len(part))
    return most
