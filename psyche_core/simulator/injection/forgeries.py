"""Lies with what belongs to others: repeated payloads, stolen transport keys, and signatures from an earlier run.

Forgers do only what an outsider can do: receive everything, repeat what they received, and sign with their own keys.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace

from psyche_core.coordinator.commands import Equivocation, SignedResult
from psyche_core.coordinator.round.assignment import shares
from psyche_core.simulator.clock import Clock
from psyche_core.simulator.members.keys import (
    commitment_of,
    join_with_stolen_key,
    member_with,
    signed_by,
    signed_earlier,
    with_real_signatures,
)
from psyche_core.simulator.members.node import Node
from psyche_core.simulator.replicas.replica import EMPTY_RESULT, empty_payload
from psyche_core.simulator.server import Server
from psyche_core.wire.messages import Result, result_hash

REPLAY_EVERY = 1.0
"""Mean seconds between two pieces of evidence from earlier runs, per liar."""


class Forgeries:
    """The forgeries of one run. members: number of members."""

    def __init__(self, clock: Clock, server: Server, *, members: int, counts: Counter[str]) -> None:
        self._clock = clock
        self._server = server
        self._members = members
        self._counts = counts
        self._received: dict[tuple[int, int, bytes], dict[bytes, Result]] = {}

    def begin(self, node: Node, kind: str) -> None:
        """A member begins to lie in this way."""
        if kind == "stolen-key":
            victim = (node.index + 1 + node.lying_rng.randrange(max(self._members - 1, 1))) % self._members
            node.forged_join = join_with_stolen_key(node.index, victim)
            self._counts[kind] += 1
            if node.joined:
                self._server.submit(node, node.join_command())
        elif kind == "old-signatures":
            self._clock.after(node.lying_rng.random() * REPLAY_EVERY, self._replay, node)

    def end(self, node: Node, kind: str) -> None:
        """It stops lying in this way."""
        if kind == "stolen-key":
            node.forged_join = None

    # ------------------------------------------------------------------------------------ payloads

    def repeated(self, node: Node, result: Result, tag: int) -> Result:
        """Its announcement of a payload used before: its own of an earlier round, another member's, or the empty one."""
        known = node.payloads.get(result.payload_hash)
        if known is None:
            return result

        self._counts["repeated-payload"] += 1
        rng = node.lying_rng
        received = sorted({packet.event.message.payload_hash for packet in node.packets.values()
                        if isinstance(packet.event.message, Result) and packet.origin != node.index})  # fmt: skip
        choice = rng.random()
        if choice < 0.15:
            payload_hash = EMPTY_RESULT
            node.payloads[payload_hash] = (tag, empty_payload(node.index, known[1].samples))
        elif choice < 0.4 and received:
            payload_hash = rng.choice(received)
            held = node.payloads.get(payload_hash)
            if held is not None:  # otherwise it has no bytes of that hash to give
                node.payloads[payload_hash] = (tag, held[1])
        else:
            payload = node.repeated_payload = node.repeated_payload or known[1]
            payload_hash = payload.hash
            node.payloads[payload_hash] = (tag, payload)
        return with_payload(node, self._server, result, payload_hash)

    # ------------------------------------------------------------------------------------ evidence

    def _replay(self, node: Node) -> None:
        """Send what another member signed in an earlier run, or in forgotten rounds, as evidence against it."""
        if "old-signatures" not in node.lies or self._server.finished:
            return

        self._collect_results(node)
        if node.running and not node.paused:
            evidence = self._evidence(node)
            if evidence is not None:
                self._counts["old-signatures"] += 1
                self._server.submit(node, with_real_signatures(evidence))
        self._clock.after(REPLAY_EVERY * (0.5 + node.lying_rng.random()), self._replay, node)

    def _collect_results(self, node: Node) -> None:
        for packet in node.packets.values():
            result = packet.event.message
            if isinstance(result, Result) and packet.origin != node.index:
                key = (result.epoch, result.height, packet.event.origin)
                self._received.setdefault(key, {})[result.payload_hash] = result

    def _evidence(self, node: Node) -> Equivocation | None:
        state, rng = self._server.state, node.lying_rng
        rounds = [played for played in state.epoch.rounds if played.batches]
        if not rounds or state.epoch.unplayed:
            return None

        played = rng.choice(rounds)
        assigned = shares(state, played)
        slot = rng.choice(sorted(assigned))
        victim = state.epoch.clients[slot].id
        index = member_with(victim.signer, self._members)
        if index is None or index == node.index:
            return None

        epoch = state.progress.epoch
        received = self._received.get((epoch, played.height, victim.p2p), {})
        halves = [SignedResult(result.committed_hash, result.signature) for result in received.values()][:2]
        earlier = 0
        while len(halves) < 2:
            earlier += 1
            payload_hash = hashlib.sha256(b"%d/%d/%d/%d" % (earlier, index, epoch, played.step)).digest()
            halves.append(signed_earlier(index, epoch=epoch, played=played, share=assigned[slot], payload_hash=payload_hash))
        return Equivocation(node.identity, epoch, played.height, slot, halves[0], halves[1])


def with_payload(node: Node, server: Server, result: Result, payload_hash: bytes, *, honest_commitment: bool = True) -> Result:
    """The same announcement of another payload, signed."""
    covered = result_hash(payload_hash, result.roots) if honest_commitment else bytes(32)
    commitment = commitment_of(server.state, result, trainer=node.identity.signer, payload_hash=covered)
    return replace(result, payload_hash=payload_hash, commitment=commitment, signature=signed_by(node.index, commitment))
