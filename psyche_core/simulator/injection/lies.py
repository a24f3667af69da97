"""What liars do: they change a real machine's messages and commands on their way out, and invent others.

Liars do only what an outsider can do: they use their own keys and send well-typed messages (the envelope's decoder rejects
others before a machine sees them), and their commands carry the identity the backend authenticated. Everything else may be
false. The name of each lie is also in `simulator.script: LIES`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from psyche_core.client.machine.epoch import masters_due
from psyche_core.client.machine.events import MessageSeen
from psyche_core.coordinator.commands import (
    Checkpoint,
    Command,
    EpochDigest,
    Equivocation,
    HealthCheck,
    SignedResult,
    VerifierCommit,
    WarmupWitness,
    Withdraw,
    Witness,
)
from psyche_core.coordinator.history import held_digest, signed_digests
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.round.bloom_filter import BLOOM_BYTES
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.round.witness import quorum
from psyche_core.simulator.clock import Clock
from psyche_core.simulator.injection.forgeries import Forgeries, with_payload
from psyche_core.simulator.injection.slowing import Slowing, is_slowing
from psyche_core.simulator.members.node import Node
from psyche_core.simulator.network import Network
from psyche_core.simulator.server import Server
from psyche_core.types import BatchId, RunState, WitnessStatement, bitmap
from psyche_core.wire.messages import Finished, Message, ModelDigest, ModelOffer, ModelWanted, Opening, Result

INVENT_EVERY = {"garbage": 0.7, "flood": 0.6, "model-requests": 0.5}
"""Mean seconds between two invented messages of one liar."""

LOOK_EVERY = 0.05
"""Seconds between two looks of a liar at the coordinator's state."""

FLOOD = 25
"""Messages in one burst."""

UNKNOWN_KEYS = 600
"""Made-up keys whose messages a flooding member relays once."""

FAR_AHEAD = Finished(2**32 - 1, 0, 0)


class Lies:
    """The liars of one run. network: carries their messages. members: number of members."""

    def __init__(self, clock: Clock, server: Server, *, network: Network, members: int, counts: Counter[str]) -> None:
        self._clock = clock
        self._server = server
        self._network = network
        self._members = members
        self._counts = counts
        self._slowing = Slowing(clock, server, network=network, members=members, counts=counts)
        self._forgeries = Forgeries(clock, server, members=members, counts=counts)

    def begin(self, node: Node, kind: str) -> None:
        """A member begins to lie in this way."""
        node.lies.append(kind)
        self._slowing.begin(node, kind)
        self._forgeries.begin(node, kind)
        if kind in INVENT_EVERY:
            self._clock.after(node.lying_rng.random() * INVENT_EVERY[kind], self._send_invented, node, kind)
        if kind == "flood":
            self._flood_from_unknown_keys(node)

    def end(self, node: Node, kind: str) -> None:
        """It stops lying in this way."""
        node.lies.remove(kind)
        self._forgeries.end(node, kind)

    # ------------------------------------------------------------------------------------ changed on the way out

    def broadcast(self, node: Node, message: Message, tag: int) -> None:
        """Broadcast something instead of this message."""
        rng = node.lying_rng
        for kind in node.lies:
            match kind, message:
                case "wrong-hash", Result():
                    self._count(kind)
                    honest = rng.random() < 0.7
                    message = with_payload(node, self._server, message, rng.randbytes(32), honest_commitment=honest)
                case "repeated-payload", Result() if rng.random() < 0.8:
                    message = self._forgeries.repeated(node, message, tag)
                case "two-results", Result() if message.payload_hash in node.payloads:
                    self._two_results(node, message, tag)
                    return
                case "three-results", Result() if message.payload_hash in node.payloads:
                    self._three_results(node, message, tag)
                    return
                case "late-second-result", Result() if message.payload_hash in node.payloads:
                    self._late_second_result(node, message, tag)
                    return
                case "withhold", Result():
                    few = frozenset(rng.sample(range(self._members), rng.randrange(self._members)))
                    node.withhold(message.payload_hash, few if rng.random() < 0.5 else frozenset())
                case "false-digests", ModelDigest():
                    self._count(kind)
                    message = replace(message, digest=rng.randbytes(32))
                case "false-digests", ModelOffer():
                    self._count(kind)
                    if rng.random() < 0.6:
                        message = replace(message, manifest_hash=rng.randbytes(32))
                    else:
                        message = replace(message, description_hash=rng.randbytes(32))
                case "false-models", ModelWanted() | ModelOffer():
                    self._count(kind)
                    message = node.offers_made_up_model(message.epoch, message.step, seed=message.seed, tag=tag)
                case _ if is_slowing(kind) and self._slowing.intercepts(node, kind, message, tag):
                    return
        node.broadcast(message, tag)

    def send(self, node: Node, command: Command) -> None:
        """Send something instead of this command."""
        rng = node.lying_rng
        for kind in node.lies:
            match kind, command:
                case "false-statements", Witness():
                    self._count(kind)
                    command = replace(command, statement=self._false_statement(rng, command.statement))
                case "false-digests", Witness():
                    self._count(kind)
                    command = replace(command, statement=replace(command.statement, model_digest=rng.randbytes(32)))
                case "false-digests", WarmupWitness():
                    self._count(kind)
                    command = replace(command, model_digest=self._false_digest(rng))
                case "false-models", WarmupWitness():
                    self._count(kind)
                    command = replace(command, model_digest=node.made_up_digest(max(self._server.state.epoch.start_step, 1) - 1))
                case "false-digests", EpochDigest():
                    self._count(kind)
                    command = replace(command, digest=self._false_digest(rng))
                case _ if is_slowing(kind):
                    changed = self._slowing.changed(node, kind, command)
                    if changed is None:
                        return
                    command = changed
        self._server.submit(node, command)

    def _false_digest(self, rng: random.Random) -> bytes:
        """A digest of a model nobody has, of none at all, or of an earlier step that members signed."""
        signed = signed_digests(self._server.state).values()
        ends = [digest_ for digest in signed for digest_ in (digest, held_digest(digest))]
        return rng.choice((rng.randbytes(32), bytes(32), *ends))

    def _false_statement(self, rng: random.Random, statement: WitnessStatement) -> WitnessStatement:
        """All ones (where they are not rejected outright), none, or random."""
        state = self._server.state
        before = state.round_at(statement.height - 1)
        assigned = sorted(shares(state, before)) if before is not None else []
        match rng.randrange(4):
            case 0:
                return replace(statement, participants=bitmap(assigned), broadcast_bloom=b"\xff" * BLOOM_BYTES)
            case 1:
                return replace(statement, participants=bytes(32), broadcast_bloom=bytes(BLOOM_BYTES))
            case 2:
                some = [slot for slot in assigned if rng.random() < 0.5]
                return replace(statement, participants=bitmap(some), broadcast_bloom=rng.randbytes(BLOOM_BYTES))
        return replace(statement, participants=b"\xff" * 32, merkle_root=rng.randbytes(32))

    def _two_results(self, node: Node, first: Result, tag: int) -> None:
        """Two valid results for one share; each half of the members receives a different one first."""
        self._count("two-results")
        rng = node.lying_rng
        second = self._another(node, first, tag)
        wait = rng.choice((0.0, 0.2, 1.5))
        half = frozenset(rng.sample(range(self._members), self._members // 2))
        node.broadcast(first, tag, held_back={index: wait for index in range(self._members) if index in half})
        node.broadcast(second, tag, held_back={index: wait for index in range(self._members) if index not in half})

    def _three_results(self, node: Node, first: Result, tag: int) -> None:
        """Three valid results for one share; each member receives them in an order of its own, perhaps rounds apart."""
        self._count("three-results")
        rng = node.lying_rng
        results = (first, self._another(node, first, tag), self._another(node, first, tag))
        waits = (0.0, *sorted(rng.choices((0.2, 0.7, 1.5), k=2)))
        orders = [rng.sample(waits, len(waits)) for _ in range(self._members)]
        for number, result in enumerate(results):
            node.broadcast(result, tag, held_back={index: order[number] for index, order in enumerate(orders)})

    def _late_second_result(self, node: Node, first: Result, tag: int) -> None:
        """A second valid result for one share, which is sent once a quorum of witnesses has stated that it saw the first.

        The proof then voids a share of which the statements say that it is accepted.
        """
        second = self._another(node, first, tag)
        node.broadcast(first, tag)
        self._clock.after(LOOK_EVERY, self._send_once_stated, node, second, tag)

    def _send_once_stated(self, node: Node, second: Result, tag: int) -> None:
        state = self._server.state
        current = state.current_round
        if current is None or current.height > second.height + 1 or not node.running:
            return

        stated = len(current.statements) >= quorum(len(witness_slots(state, current)))
        if current.height == second.height + 1 and state.run_state is RunState.RoundWitness and stated:
            self._count("late-second-result")
            node.broadcast(second, tag)
            return
        self._clock.after(LOOK_EVERY, self._send_once_stated, node, second, tag)

    def _another(self, node: Node, first: Result, tag: int) -> Result:
        """Another valid result for the same share; its payload can be fetched."""
        known = node.payloads[first.payload_hash][1]
        other_hash = node.lying_rng.randbytes(32)
        node.payloads[other_hash] = (tag, replace(known, hash=other_hash))
        return with_payload(node, self._server, first, other_hash)

    # ------------------------------------------------------------------------------------ invented

    def _send_invented(self, node: Node, kind: str) -> None:
        if kind not in node.lies:
            return

        if node.running and not node.paused:
            self._count(kind)
            if kind == "flood":
                self._flood(node)
            elif kind == "model-requests":
                self._ask_for_models(node)
            else:
                self._invent(node)
        self._clock.after(INVENT_EVERY[kind] * (0.5 + node.lying_rng.random()), self._send_invented, node, kind)

    def _invent(self, node: Node) -> None:
        """One message, and sometimes one command, with false values in every field."""
        rng = node.lying_rng
        number, tag, height = self._place(node)
        epoch = rng.choice((number, number, number + 1, max(number - 1, 0), rng.getrandbits(32)))
        height = rng.choice((height, height, height + 1, max(height - 1, 0), rng.getrandbits(32)))
        step = rng.choice((0, 1, self._server.state.progress.step, rng.getrandbits(32)))
        blob = rng.randbytes(32)
        opened, current = self._server.state.epoch.seed, self._server.state.current_round
        seed = rng.choice((opened, opened if current is None else current.seed, rng.getrandbits(64)))
        invented: tuple[Callable[[], Message], ...] = (
            lambda: Result(epoch, height, step, seed, (_batch(rng),), blob, rng.getrandbits(20), rng.randbytes(32), bytes(64)),
            lambda: Finished(epoch, height, seed),
            lambda: ModelDigest(epoch, rng.random() < 0.5, blob, seed),
            lambda: ModelWanted(epoch, step, seed),
            lambda: ModelOffer(epoch, step, seed, blob, rng.getrandbits(20), rng.randbytes(32), rng.getrandbits(20)),
        )
        node.broadcast(rng.choice(invented)(), tag + rng.choice((0, 0, 1, 60)))
        if rng.random() < 0.5:
            self._server.submit(node, self._invented_command(node, epoch, height))
        if self._server.state.config.verification_percent:
            self._invent_about_challenges(node, epoch, seed, tag)

    def _invent_about_challenges(self, node: Node, epoch: int, seed: int, tag: int) -> None:
        """A commitment or complaint that nobody asked for, and a part that does not exist: about open challenges, or none."""
        rng, state = node.lying_rng, self._server.state
        about = [(one.height, one.trainer, one.since) for one in state.epoch.challenges]
        height, trainer, since = rng.choice(about or [(rng.randrange(9), rng.randrange(self._members), rng.randrange(9))])
        root = rng.choice((None, rng.randbytes(32)))
        self._server.submit(node, VerifierCommit(node.identity, epoch, seed, height, trainer, root))
        opened = state.round_at(since)
        of_stage = seed if opened is None else opened.seed
        node.broadcast(Opening(epoch, since, of_stage, height, trainer, rng.randbytes(32), rng.getrandbits(20)), tag)

    def _invented_command(self, node: Node, epoch: int, height: int) -> Command:
        rng, identity = node.lying_rng, node.identity
        slot = rng.randrange(self._members)
        signed = SignedResult(rng.randbytes(32), rng.randbytes(64))
        statement = WitnessStatement(
            epoch, height, slot, rng.randbytes(32), rng.randbytes(BLOOM_BYTES), rng.randbytes(32), rng.randbytes(32)
        )
        slots = tuple(rng.sample(range(self._members), rng.randrange(1, self._members + 1)))
        invented: tuple[Command, ...] = (
            Witness(identity, statement),
            WarmupWitness(identity, epoch, slot, rng.randbytes(32)),
            HealthCheck(identity, slots),
            EpochDigest(identity, epoch, slot, self._false_digest(rng)),
            Equivocation(identity, epoch, height, slot, signed, SignedResult(rng.randbytes(32), rng.randbytes(64))),
            Checkpoint(identity, {"Hub": {"repo_id": "a lie"}}),
            Withdraw(identity),
        )
        # A liar that has withdrawn is harmless, so it withdraws rarely.
        return rng.choices(invented, weights=(6, 6, 6, 3, 6, 3, 1))[0]

    def _ask_for_models(self, node: Node) -> None:
        """Requests for the models of the next steps, so that members offer these and have no place left for other ones."""
        number, tag, _ = self._place(node)
        state = self._server.state
        due = masters_due(state)
        for step in range(due, due + node.lying_rng.randrange(1, 6)):
            node.broadcast(ModelWanted(number, step, state.epoch.seed), tag)

    def _flood(self, node: Node) -> None:
        """Many candidates for our share, and many other messages."""
        rng = node.lying_rng
        number, tag, height = self._place(node)
        state = self._server.state
        current, slot = state.current_round, state.slot_of(node.identity)
        share = shares(state, current).get(slot) if current is not None and slot is not None else None
        seed = state.epoch.seed if current is None else current.seed
        for count in range(FLOOD):
            match count % 4:
                case 0 if share is not None and current is not None:
                    blank = Result(number, current.height, current.step, current.seed, share, bytes(32), 32, bytes(32), bytes(64))
                    node.broadcast(with_payload(node, self._server, blank, rng.randbytes(32)), tag)
                case 1:
                    node.broadcast(Finished(number + rng.randrange(3), height + rng.randrange(40), seed), tag)
                case 2:
                    node.broadcast(ModelWanted(number, rng.randrange(state.progress.step + 2), state.epoch.seed), tag)
                case _:
                    node.broadcast(ModelOffer(number, rng.randrange(64), state.epoch.seed, rng.randbytes(32), 100), tag)

    def _flood_from_unknown_keys(self, node: Node) -> None:
        """Relay messages of many made-up keys about rounds far ahead: each one is signed, so any member passes it on."""
        seed = node.lying_rng.getrandbits(64)
        events = [MessageSeen(b"".join((n.to_bytes(8, "big"), seed.to_bytes(24, "big"))), FAR_AHEAD) for n in range(UNKNOWN_KEYS)]
        for index in sorted(node.links):
            other = self._network.nodes[index]
            for event in events:
                other.receive(other.incarnation, event)

    def _place(self, node: Node) -> tuple[int, int, int]:
        """Epoch, tag and height of a message sent now."""
        state = self._server.state
        height = state.current_round.height if state.current_round is not None else 0
        return state.progress.epoch, max((state.progress.epoch << 20) + height, node.expired_before), height

    def _count(self, kind: str) -> None:
        self._counts[kind] += 1


def _batch(rng: random.Random) -> BatchId:
    first = rng.randrange(1000)
    return BatchId(first, first + rng.randrange(40))
