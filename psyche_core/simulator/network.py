"""The simulated network: which nodes can reach each other, when messages arrive, and who serves a payload.

It keeps only the promises of psyche_core.interfaces.transport: a live message eventually reaches every reachable member at
least once, directly or through others, also a member that connects late. Order, latency and everything about unreachable
members are random. A loss is therefore a delay by some retransmissions, and messages wait while a link is cut.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from psyche_core.client.machine.actions import FetchPayload
from psyche_core.client.machine.events import MessageSeen, PayloadChecked, PayloadMissing, PeersSeen
from psyche_core.simulator.clock import Clock
from psyche_core.simulator.replicas.replica import Payload
from psyche_core.simulator.script import SERVER, Fault
from psyche_core.wire.messages import Message

if TYPE_CHECKING:
    from psyche_core.simulator.members.node import Node
    from psyche_core.simulator.members.process import Process

RETRANSMIT_SECONDS = 0.4
"""Seconds until a lost message is sent again."""

CONNECT_SECONDS = 0.1
"""Seconds to make a connection."""

FETCH_TIMEOUT = 10.0
"""Seconds until a fetch gives up on members that accept the request and send nothing."""

ASK_AGAIN_AFTER = 1.0
"""Seconds until members that did not have the blob are asked again, while others send nothing."""

HEDGE_DELAY = 0.5
"""Seconds until the next source is asked beside one that sends nothing, as the QUIC transport does."""


GOSSIP_SECONDS = 0.1
"""Most seconds until members tell others the ids of received messages: the QUIC transport's 0.05 and some load."""


@dataclass(slots=True)
class Packet:
    """A message on its way to many receivers.

    number: the same for equal messages of one author. Transports know a message by its bytes: a process that has had one is not
    given an equal one later. held_back: extra seconds for some receivers (a liar's choice).
    """

    number: int
    origin: int
    event: MessageSeen
    tag: int
    held_back: dict[int, float] = field(default_factory=dict)


class Network:
    """Links between the nodes, and between each node and the server. rng: the network's own random stream."""

    def __init__(self, clock: Clock, rng: random.Random, *, seconds: float, counts: Counter[str]) -> None:
        self.nodes: list[Node] = []
        self.counts = counts
        self._clock = clock
        self._draw = rng.random
        self._seconds = seconds
        self._effects: list[Fault] = []
        self._cuts: list[Fault] = []
        self._past_cuts: list[tuple[float, Fault]] = []
        self._numbers: dict[tuple[int, Message], int] = {}
        self._version = 0
        self._by_key: dict[bytes, int] = {}
        self._content_of: dict[bytes, tuple[bool, int, bytes]] = {}

    def add(self, node: Node) -> None:
        """Register a node."""
        self.nodes.append(node)
        self._by_key[node.identity.p2p] = node.index

    # ------------------------------------------------------------------------------------ faults

    def begin(self, fault: Fault) -> None:
        """A network fault begins."""
        if fault.kind in ("partition", "asymmetric"):
            self._cuts.append(fault)
            self.changed()
        else:
            self._effects.append(fault)

    def end(self, fault: Fault) -> None:
        """A network fault ends."""
        if fault in self._cuts:
            self._cuts.remove(fault)
            self._past_cuts.append((self._clock.now, fault))
            self.changed()
        else:
            self._effects.remove(fault)

    def is_cut(self, source: int, target: int) -> bool:
        """Whether nothing gets from source to target now. A partition cuts both ways, an asymmetric cut only out of its side."""
        for cut in self._cuts:
            if _cuts(cut, source, target):
                self.counts[cut.kind] += 1
                return True

        return False

    def was_cut(self, source: int, target: int, *, since: float) -> bool:
        """Whether nothing got from source to target at some time after `since`, in virtual seconds, or does not now."""
        cuts = [*self._cuts, *(cut for end, cut in self._past_cuts if end > since)]
        return any(_cuts(cut, source, target) for cut in cuts)

    def gossip_delay(self) -> float:
        """Seconds until a member that an author left out has its message from others: announced, requested, sent."""
        return GOSSIP_SECONDS * self._draw() + 3 * self._seconds

    def delay(self, source: int, target: int) -> float:
        """Seconds that one message takes, with retransmissions."""
        draw = self._draw
        seconds = self._seconds * (0.5 + draw())
        for fault in self._effects:
            if fault.nodes and source not in fault.nodes and target not in fault.nodes:
                continue

            match fault.kind:
                case "delay":
                    self.counts["delay"] += 1
                    seconds += fault.amount * (0.5 + draw())
                case "reorder" if draw() < fault.amount:
                    self.counts["reorder"] += 1
                    seconds += 10 * self._seconds * draw()
                case "drop":
                    while draw() < fault.amount and seconds < 30.0:
                        self.counts["drop"] += 1
                        seconds += RETRANSMIT_SECONDS
        return seconds

    def hits(self, kind: str, source: int, target: int) -> bool:
        """Whether a fault of this kind randomly hits one message."""
        for fault in self._effects:
            on_path = not fault.nodes or source in fault.nodes or target in fault.nodes
            if fault.kind == kind and on_path and self._draw() < fault.amount:
                self.counts[kind] += 1
                return True

        return False

    # ------------------------------------------------------------------------------------ connections

    def changed(self) -> None:
        """The set of possible links has changed: broken links end at once, new ones take a moment."""
        self._version += 1
        for node in self.nodes:
            if node.links:
                wanted = self._wanted(node)
                if not node.links <= wanted:
                    node.links &= wanted
                    self._notify_peers(node)
        self._clock.after(CONNECT_SECONDS * (0.5 + self._draw()), self._connect, self._version)

    def _wanted(self, node: Node) -> set[int]:
        if not node.running:
            return set()

        return {
            other.index
            for other in self.nodes
            if other.index in node.peers
            and other.running
            and node.index in other.peers
            and (not self._cuts or not self.is_cut(node.index, other.index))
        }

    def _connect(self, version: int) -> None:
        if version != self._version:
            return

        for node in self.nodes:
            wanted = self._wanted(node)
            fresh = wanted - node.links
            node.links |= fresh
            for other in sorted(fresh):
                self._exchange_missing(node, self.nodes[other])
        for node in self.nodes:
            self._notify_peers(node)

    def _notify_peers(self, node: Node) -> None:
        peers = frozenset(self.nodes[other].identity.p2p for other in node.links if node.index in self.nodes[other].links)
        if peers != node.notified_peers and node.running:
            node.notified_peers = peers
            self._clock.after(0.05, node.receive, node.incarnation, PeersSeen(peers))

    def _exchange_missing(self, source: Node, target: Node) -> None:
        """Two members exchange what the other lacks when they connect."""
        for packet in list(source.packets.values()):
            if packet.number not in target.seen:
                self._transmit(packet, source, target)

    # ------------------------------------------------------------------------------------ messages

    def broadcast(self, node: Node, message: Message, tag: int, *, held_back: dict[int, float] | None = None) -> None:
        """Send a message to all members."""
        number = self._numbers.setdefault((node.index, message), len(self._numbers))
        packet = Packet(number, node.index, MessageSeen(node.identity.p2p, message), tag, held_back or {})
        node.seen.add(packet.number)
        node.packets[packet.number] = packet
        for other in node.links:
            self._transmit(packet, node, self.nodes[other])

    def _transmit(self, packet: Packet, source: Node, target: Node) -> None:
        if packet.number in target.seen:
            return

        seconds = self.delay(source.index, target.index) if self._effects else self._seconds * (0.5 + self._draw())
        if packet.held_back:
            seconds += packet.held_back.get(target.index, 0.0)
        self._clock.after(seconds, self._arrive, packet, source, target, target.incarnation)
        if self._effects and self.hits("duplicate", source.index, target.index):
            self._clock.after(2 * seconds, self._deliver_duplicate, packet, target, target.incarnation)

    def _arrive(self, packet: Packet, source: Node, target: Node, incarnation: int) -> None:
        if target.incarnation != incarnation or packet.number in target.seen:
            return
        if target.index not in source.links:
            self._relay(packet, target)
            return

        if packet.tag < target.expired_before:
            return

        target.seen.add(packet.number)
        target.packets[packet.number] = packet
        target.receive(incarnation, packet.event)
        if self._cuts:
            for other in target.links:
                self._transmit(packet, target, self.nodes[other])

    def _relay(self, packet: Packet, target: Node) -> None:
        """The sender is out of reach: another member that has the packet relays it, or it is sent at their next connection."""
        for other in sorted(target.links):
            holder = self.nodes[other]
            if packet.number in holder.packets and target.index in holder.links:
                seconds = self.delay(holder.index, target.index)
                self._clock.after(seconds, self._arrive, packet, holder, target, target.incarnation)
                return

    def _deliver_duplicate(self, packet: Packet, target: Node, incarnation: int) -> None:
        """Worse than the contract allows: a process gets the same message twice, as if its list of old ones was full."""
        if target.incarnation == incarnation and packet.number in target.seen:
            target.receive(incarnation, packet.event)

    # ------------------------------------------------------------------------------------ blobs

    def peers_in_order(self, node: Process, first: Iterable[bytes]) -> Iterator[Node]:
        """Connected members, those in `first` first."""
        named = [self._by_key[key] for key in first if key in self._by_key]
        for index in chain(named, (other for other in sorted(node.links) if other not in named)):
            if index in node.links and node.index in self.nodes[index].links:
                yield self.nodes[index]

    def find(self, node: Process, first: Iterable[bytes], has: Callable[[Node], bool | None]) -> tuple[Node | None, float]:
        """The connected member that answers with a blob, and how long the answer takes.

        has: False means an immediate no, None means no answer at all.
        """
        seconds = 0.0
        for other in self.peers_in_order(node, first):
            seconds += self.delay(node.index, other.index) + self.delay(other.index, node.index)
            answer = None if other.paused else has(other)
            if answer:
                return other, seconds

            if answer is None:
                seconds += HEDGE_DELAY
        return None, seconds + self._seconds

    def fetch(self, node: Node, action: FetchPayload) -> None:
        """Fetch a payload for a node."""
        payload_hash = action.payload_hash
        if payload_hash in node.payloads:
            self._clock.after(0.0, self._check, node, node.incarnation, action, node.payloads[payload_hash][1])
            return

        self._ask_in_turn(node, node.incarnation, action, set(), set(), self._clock.now + FETCH_TIMEOUT)

    def _ask_in_turn(
        self, node: Node, incarnation: int, action: FetchPayload, asked: set[int], unresponsive: set[int], until: float
    ) -> None:
        """Ask one member after the other, as a transport does.

        asked: members asked in this pass. unresponsive: members that do not answer; after HEDGE_DELAY the next one is asked. In
        the end, while one may still answer, members that had nothing are asked again. until: virtual seconds.
        """
        if node.incarnation != incarnation:
            return

        payload_hash, seconds = action.payload_hash, 0.0
        for other in self.peers_in_order(node, action.sources):
            if other.index in asked:
                continue
            asked.add(other.index)
            seconds += self.delay(node.index, other.index) + self.delay(other.index, node.index)
            answer = None if other.paused else other.serves(payload_hash, node.index)
            if answer:
                seconds += node.seconds_to_receive()
                self._clock.after(seconds, self._check, node, incarnation, action, other.payloads[payload_hash][1])
                return
            if answer is None:
                unresponsive.add(other.index)
                self._clock.after(seconds + HEDGE_DELAY, self._ask_in_turn, node, incarnation, action, asked, unresponsive, until)
                return

        if unresponsive and self._clock.now + ASK_AGAIN_AFTER < until:
            self._clock.after(
                seconds + ASK_AGAIN_AFTER, self._ask_in_turn, node, incarnation, action, set(unresponsive), unresponsive, until
            )
        else:
            self.counts["payload missing"] += 1
            self._clock.after(seconds + self._seconds + 0.1, node.receive, incarnation, PayloadMissing(payload_hash))

    def _check(self, node: Node, incarnation: int, action: FetchPayload, payload: Payload) -> None:
        if node.incarnation != incarnation:
            return

        content = payload.valid, payload.size, payload.content
        assert self._content_of.setdefault(payload.hash, content) == content, "a hash has one content, whoever lies"
        valid = node.replica.check(payload)
        if valid and action.tag >= node.expired_before:
            known, _ = node.payloads.get(payload.hash, (action.tag, payload))
            node.payloads[payload.hash] = (max(known, action.tag), payload)  # as stores do: an older fetch shortens nothing
        node.receive(incarnation, PayloadChecked(payload.hash, valid, action.tag))

    # ------------------------------------------------------------------------------------ the server's links

    def to_server(self, node: Process) -> float | None:
        """Seconds until a node's command arrives, None when it does not."""
        return self._one_way(node.index, SERVER)

    def from_server(self, node: Process) -> float | None:
        """Seconds until something from the server arrives at a node, None when it does not."""
        return self._one_way(SERVER, node.index)

    def _one_way(self, source: int, target: int) -> float | None:
        if self._cuts and self.is_cut(source, target):
            return None

        return self.delay(source, target) if self._effects else self._seconds * (0.5 + self._draw())


def _cuts(cut: Fault, source: int, target: int) -> bool:
    """Whether a cut lets nothing get from source to target."""
    if cut.amount and SERVER in (source, target):
        return False

    inside, outside = source in cut.nodes, target not in cut.nodes
    return inside == outside and (inside or cut.kind == "partition")
