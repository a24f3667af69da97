"""What a member says and when: readiness in warmup, Finished, witness statements, health checks (protocol section 3).

Pure functions that mark in the notes what was said, so that it is said once.
"""

from __future__ import annotations

from dataclasses import dataclass

from psyche_core.client.epoch import PLAYING, EpochNotes
from psyche_core.client.events import Action, Broadcast, Send
from psyche_core.client.rounds import RoundRecord, statement_about
from psyche_core.coordinator import witness
from psyche_core.coordinator.commands import HealthCheck, WarmupWitness, Witness
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.types import NodeIdentity, RunState, WitnessMetadata
from psyche_core.wire.messages import Finished, ModelDigest


@dataclass(frozen=True, slots=True)
class Figures:
    """Our last figures, for the metadata of statements. loss: nats per token; bytes_per_second: received from peers."""

    loss: float = 0.0
    tokens_per_second: float = 0.0
    bytes_per_second: float = 0.0


def in_warmup(
    identity: NodeIdentity, state: CoordinatorState, notes: EpochNotes, *, peers: frozenset[bytes], waited_enough: bool
) -> list[Action]:
    """Say that our model is loaded, once all members are connected or we waited long enough for them."""
    if notes.ready_sent or notes.slot is None:
        return []

    others = {state.epoch.clients[slot].id.p2p for slot in state.healthy_slots if slot != notes.slot}
    if not others <= peers and not waited_enough:
        return []

    notes.ready_sent = True
    digest = notes.digests.ours
    notes.digests.note_own(notes.slot, ended=False)
    return [
        Broadcast(ModelDigest(notes.number, False, digest), notes.tag(0)),
        Send(WarmupWitness(identity, notes.number, notes.slot, digest)),
    ]


def in_round(identity: NodeIdentity, state: CoordinatorState, notes: EpochNotes, figures: Figures) -> list[Action]:
    """Everything that is due in the current round."""
    current = state.current_round
    record = notes.records.get(current.height) if current is not None else None
    if record is None or notes.slot is None or state.run_state not in PLAYING:
        return []

    healthy = frozenset(state.healthy_slots)
    before = notes.records.get(record.height - 1)
    said: list[Action] = []
    trained = any(record.digest) and (notes.slot not in record.shares or record.own_done)
    if not record.finished_sent and trained and (before is None or before.holds_all(healthy)):
        record.finished_sent = True
        record.finished.add(notes.slot)
        said.append(Broadcast(Finished(notes.number, record.height), notes.tag(record.height)))

    if notes.slot in record.witnesses and not record.statement_sent:
        complete = record.finished_sent and record.all_finished(healthy)
        if complete or state.run_state is RunState.RoundWitness:
            record.statement_sent = True
            statement = statement_about(before, playing=record, index=notes.slot)
            metadata = WitnessMetadata(record.round.step, figures.tokens_per_second, figures.bytes_per_second, figures.loss)
            said.append(Send(Witness(identity, statement, metadata)))

    return said + _health(identity, state, notes, record)


def _health(identity: NodeIdentity, state: CoordinatorState, notes: EpochNotes, record: RoundRecord) -> list[Action]:
    """As a witness of the last round, report trainers of the round before it whose work no quorum saw."""
    last, judged = notes.records.get(record.height - 1), notes.records.get(record.height - 2)
    if record.health_sent or last is None or judged is None or judged.settled_by is None or notes.slot not in last.witnesses:
        return []

    record.health_sent = True
    stored = judged.settled_by.round_at(last.height)
    if stored is None or len(stored.statements) < witness.quorum(len(last.witnesses)):
        return []  # too few witnesses spoke to judge anybody

    absent = tuple(slot for slot in sorted(judged.shares) if slot in state.healthy_slots and slot not in judged.accepted)
    return [Send(HealthCheck(identity, absent))] if absent else []
