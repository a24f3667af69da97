"""Lies that cost the others time: members that work but withhold what the round waits for, and keys that join without working.

Liars do only what an outsider can do: they drop, change or delay what their own machine sends.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace

from psyche_core.coordinator.commands import Command, HealthCheck, WarmupWitness, Withdraw, Witness
from psyche_core.coordinator.round.bloom_filter import BLOOM_BYTES
from psyche_core.coordinator.state import MAX_REJOINS, NO_DIGEST
from psyche_core.simulator.clock import Clock
from psyche_core.simulator.members.keys import join_of
from psyche_core.simulator.members.node import Node
from psyche_core.simulator.network import Network
from psyche_core.simulator.script import SLOWING_LIES
from psyche_core.simulator.server import START_TIME, Server
from psyche_core.types import RunState
from psyche_core.wire.messages import Finished, Message, Result

JUST_IN_TIME = 0.85
"""Fraction of `max_round_train_time` after which a just-in-time member announces its result."""

LATE = 0.95
"""The same for a late Finished."""

LAST_MOMENT = 0.2
"""Seconds before the end of RoundWitness in which a late statement is sent."""

POLL_EVERY = 0.2
"""Seconds after which a member with a late statement looks again whether RoundWitness has begun."""

RETURN_EVERY = 0.7
"""Seconds between two attempts to leave and come back within a round."""

IDLE_EVERY = 1.5
"""Seconds between two joins of an idle key."""

FIRST_IDLE = 1_000
"""Number of the first idle key; members have smaller numbers."""


class Slowing:
    """The slowing lies of one run. network: carries the liars' messages. members: number of members."""

    def __init__(self, clock: Clock, server: Server, *, network: Network, members: int, counts: Counter[str]) -> None:
        self._clock = clock
        self._server = server
        self._network = network
        self._members = members
        self._counts = counts

    def begin(self, node: Node, kind: str) -> None:
        """A member begins to lie in this way."""
        if kind == "idle-joiners":
            self._join_idly(node)
        if kind == "leaves-and-returns":
            self._leave_and_return(node)

    def intercepts(self, node: Node, kind: str, message: Message, tag: int) -> bool:
        """Whether a message is dropped, or delayed and sent later."""
        match kind, message:
            case "silent-witness", Finished() if node.lying_rng.random() < 0.5:
                pass
            case "never-finished", Finished():
                pass
            case "selective-finished", Finished():
                self._send_to_few(node, message, tag)
            case "late-finished", Finished():
                self._delay(node, message, tag, share=LATE)
            case "just-in-time", Result():
                node.withhold(message.payload_hash, frozenset())
                self._delay(node, message, tag, share=JUST_IN_TIME)
            case "just-in-time", Finished():
                self._delay(node, message, tag, share=LATE)
            case _:
                return False
        self._counts[kind] += 1
        return True

    def changed(self, node: Node, kind: str, command: Command) -> Command | None:
        """The command to send instead; None sends nothing, at least not now."""
        match kind, command:
            case "late-statement", Witness():
                self._counts[kind] += 1
                self._state_late(node, node.incarnation, command)
                return None
            case "lacks-model", WarmupWitness() if self._server.state.run_state is RunState.Warmup:
                self._counts[kind] += 1
                return replace(command, model_digest=NO_DIGEST)
            case "unready-every-other", WarmupWitness() if self._is_quiet_warmup():
                self._counts[kind] += 1
                return None
            case "leaves-and-returns", Witness() if self._came_back(node):
                self._counts[kind] += 1
                return None
            case "silent-witness" | "never-states" | "selective-finished", Witness() | HealthCheck():
                self._counts[kind] += 1
                return None
            case "all-ones", Witness():
                self._counts[kind] += 1
                return replace(command, statement=replace(command.statement, participants=b"\xff" * 32))
            case "empty-statements", Witness():
                self._counts[kind] += 1
                empty = replace(
                    command.statement, participants=bytes(32), broadcast_bloom=bytes(BLOOM_BYTES), merkle_root=bytes(32)
                )
                return replace(command, statement=empty)
        return command

    def _delay(self, node: Node, message: Message, tag: int, *, share: float) -> None:
        """Send a message when this fraction of the round's longest time is over."""
        state = self._server.state
        waited = self._clock.now - (state.since - START_TIME) if state.run_state is RunState.RoundTrain else 0.0
        wait = share * state.config.max_round_train_time - waited
        self._clock.after(max(wait, 0.0), self._send_delayed, node, node.incarnation, message, tag)

    def _state_late(self, node: Node, incarnation: int, command: Witness) -> None:
        """Send a statement in the last moment of its round's RoundWitness."""
        state, statement = self._server.state, command.statement
        current = state.current_round
        if node.incarnation != incarnation or not node.running or self._server.finished or current is None:
            return
        if (state.progress.epoch, current.height) != (statement.epoch, statement.height):
            return

        if state.run_state is RunState.RoundWitness:
            began = state.since - START_TIME
            end = began + state.config.round_witness_time + 1 - LAST_MOMENT
            self._clock.after(max(end - self._clock.now, 0.0), self._server.submit, node, command)
        else:
            self._clock.after(POLL_EVERY, self._state_late, node, incarnation, command)

    def _send_to_few(self, node: Node, message: Message, tag: int) -> None:
        """Send a message to two or three members, different ones each time; the rest get it from them."""
        rng = node.lying_rng
        others = [index for index in range(self._members) if index != node.index]
        few = rng.sample(others, min(rng.choice((2, 3)), len(others)))
        node.broadcast(message, tag, held_back={index: self._network.gossip_delay() for index in others if index not in few})

    def _send_delayed(self, node: Node, incarnation: int, message: Message, tag: int) -> None:
        if node.incarnation == incarnation and node.running:
            if isinstance(message, Result):
                node.serve_again(message.payload_hash)
            node.broadcast(message, tag)

    def _is_quiet_warmup(self) -> bool:
        state = self._server.state
        return state.run_state is RunState.Warmup and state.progress.epoch % 2 == 1

    def _came_back(self, node: Node) -> bool:
        """Whether the member came back in the present round."""
        state = self._server.state
        slot, current = state.slot_of(node.identity), state.current_round
        if slot is None or current is None:
            return False

        client = state.epoch.clients[slot]
        return client.rejoins > 0 and client.exited_height >= current.height

    def _leave_and_return(self, node: Node) -> None:
        """Leave, join and come back at once while a round is trained; then say nothing in it."""
        if "leaves-and-returns" not in node.lies or self._server.finished:
            return

        state = self._server.state
        slot = state.slot_of(node.identity)
        if self._server.up and node.running and slot in state.healthy_slots and state.run_state is RunState.RoundTrain:
            assert slot is not None
            if state.epoch.clients[slot].rejoins < MAX_REJOINS:
                self._counts["leaves-and-returns"] += 1
                self._server.apply(Withdraw(node.identity))
                self._server.apply(join_of(node.index))
                digest = hashlib.sha256(b"some model").digest()
                self._server.apply(WarmupWitness(node.identity, epoch=state.progress.epoch, index=slot, model_digest=digest))
        self._clock.after(RETURN_EVERY, self._leave_and_return, node)

    def _join_idly(self, node: Node) -> None:
        """Extra keys of a liar join again and again and do nothing else: they never report that they are ready."""
        if "idle-joiners" not in node.lies or self._server.finished:
            return

        if self._server.up:
            count = max(1, self._members // 4)
            pending = {member.signer for member in self._server.state.pending}
            for number in range(count):
                join = join_of(FIRST_IDLE + 64 * node.index + number)
                if join.sender.signer not in pending:
                    self._counts["idle-joiners"] += 1
                    self._server.apply(join)
        self._clock.after(IDLE_EVERY * (0.5 + node.lying_rng.random()), self._join_idly, node)


def is_slowing(kind: str) -> bool:
    """Whether a lie costs time."""
    return kind in SLOWING_LIES
