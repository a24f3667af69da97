"""What a member announces: readiness, Finished, witness statements, health checks, coming back (protocol sections 3 and 5).

Each function returns the actions that are due and marks them as sent in the epoch's notes, so that each is sent once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from psyche_core.client.machine.actions import Action, Broadcast, KeepResults, KeptResult, Send
from psyche_core.client.machine.epoch import ENTERABLE, PLAYING, EpochNotes
from psyche_core.client.machine.rounds.round import NO_DIGEST, RoundRecord, statement_about
from psyche_core.client.machine.timeouts import Timeouts
from psyche_core.coordinator.commands import HealthCheck, WarmupWitness, Witness
from psyche_core.coordinator.round import witness
from psyche_core.coordinator.state import MAX_REJOINS, CoordinatorState
from psyche_core.types import ClientState, NodeIdentity, RunState, WitnessMetadata
from psyche_core.wire.messages import Finished, ModelDigest


@dataclass(frozen=True, slots=True)
class Figures:
    """Our latest figures, for the metadata of statements. loss: nats per token; bytes_per_second: received from peers."""

    loss: float = 0.0
    tokens_per_second: float = 0.0
    bytes_per_second: float = 0.0


def in_warmup(
    identity: NodeIdentity,
    state: CoordinatorState,
    notes: EpochNotes,
    *,
    peers: frozenset[bytes],
    neighbours: frozenset[bytes] | None = None,
    now: float,
    timeouts: Timeouts,
) -> list[Action]:
    """Announce that our model is loaded, once the members are connected or we have waited long enough for them.

    neighbours: the members that the transport connects to; only they are waited for. None for all.

    The coordinator waits for the last ones as long again as the first ones needed (F17). So a stranger with an address where
    nobody answers would cost a warmup twice what we wait for it.
    """
    if notes.ready_sent or notes.slot is None:
        return []

    others = {state.epoch.clients[slot].id.p2p for slot in state.healthy_slots if slot != notes.slot}
    everybody = len(others) + 1
    if neighbours is not None:
        others &= neighbours
    # of neighbours the same part as init_min_clients is of all members
    enough = (len(others & peers) + 1) * everybody >= state.config.init_min_clients * (len(others) + 1)
    longest = min(timeouts.last_peers, timeouts.peers) if enough else timeouts.peers
    waited = now - notes.since > longest
    if not others <= peers and not waited:
        return []

    return _ready(identity, notes, notes.slot)


def repeat_if_unheard(state: CoordinatorState, notes: EpochNotes, *, now: float, timeouts: Timeouts) -> None:
    """Have `in_warmup` announce once more that we are ready if the coordinator believes that we lack the model.

    Our report that we lack it may have reached it after the one that we are ready, and the newest one counts.
    """
    if notes.ready_sent and notes.slot in state.epoch.lacking and now - notes.ready_sent_at > timeouts.answer:
        notes.ready_sent = False


def _ready(identity: NodeIdentity, notes: EpochNotes, slot: int) -> list[Action]:
    notes.ready_sent = True
    digest = notes.digests.ours
    seed = notes.seed
    notes.digests.record_own(slot, ended=False, seed=seed)
    return [
        Broadcast(ModelDigest(notes.number, False, digest, seed), notes.tag(0)),
        Send(WarmupWitness(identity, notes.number, slot, digest)),
    ]


def coming_back(
    identity: NodeIdentity, state: CoordinatorState, notes: EpochNotes, *, now: float, timeouts: Timeouts
) -> list[Action]:
    """Ask to be healthy again in an epoch that continued without us: we have joined again and our masters are up to date."""
    if notes.slot is None or notes.rejoin_refused or state.run_state not in ENTERABLE:
        return []

    ours = state.epoch.clients[notes.slot]
    pending = any(member.signer == identity.signer for member in state.pending)
    asked_lately = notes.rejoin_asked is not None and now - notes.rejoin_asked <= timeouts.answer
    if not pending or asked_lately or ours.rejoins >= MAX_REJOINS or ours.state is ClientState.Ejected:
        return []

    notes.rejoin_asked = now
    return [Send(WarmupWitness(identity, notes.number, notes.slot, notes.digests.ours))]


def in_round(
    identity: NodeIdentity,
    state: CoordinatorState,
    notes: EpochNotes,
    figures: Figures,
    *,
    healthy: frozenset[int],
    now: float,
) -> list[Action]:
    """Everything that is due in the current round. healthy: the slots healthy in `state`."""
    current = state.current_round
    record = notes.records.get(current.height) if current is not None else None
    if record is None or record.all_sent or notes.slot is None or state.run_state not in PLAYING:
        return []

    actions: list[Action] = []
    before = notes.records.get(record.height - 1)
    trained = record.own_done or record.nearly_done or notes.slot not in record.shares
    recomputing = notes.slot in record.round.recomputing and notes.duties.busy(state, notes.slot, now=now)
    ready = trained and not recomputing and record.digest != NO_DIGEST
    if not record.finished_sent and ready and _holds_results(before, record, notes, healthy=healthy, now=now):
        record.finished_sent = True
        record.finished.setdefault(notes.slot, now)
        actions += keep_verified(before, notes)
        actions.append(Broadcast(Finished(notes.number, record.height, record.round.seed), notes.tag(record.height)))

    if not record.statement_sent and notes.slot in record.witnesses and _due(state, notes, record, healthy=healthy, now=now):
        record.statement_sent = True
        actions += keep_verified(before, notes)
        statement = statement_about(before, playing=record, index=notes.slot)
        if state.epoch.challenges:
            statement = replace(statement, words=notes.duties.words(state))
        metadata = WitnessMetadata(record.round.step, figures.tokens_per_second, figures.bytes_per_second, figures.loss)
        actions.append(Send(Witness(identity, statement, metadata)))

    if not record.health_sent:
        actions += _health(identity, notes, record, healthy=healthy)
    record.all_sent = (
        record.finished_sent and record.health_sent and (record.statement_sent or notes.slot not in record.witnesses)
    )
    return actions


def keep_verified(record: RoundRecord | None, notes: EpochNotes) -> list[Action]:
    """Write newly verified results of a round to the journal: before we attest to them, and before we apply them."""
    if record is None:
        return []

    fresh = [slot for slot in record.verified if slot not in record.kept and slot in record.shares]
    record.kept.update(fresh)
    results = tuple(
        KeptResult(
            record.candidates[slot][record.verified[slot]],
            slot,
            record.round.seed,
            notes.clients[slot].p2p,
            notes.clients[slot].signer,
        )
        for slot in fresh
    )
    return [KeepResults(results)] if results else []


def _holds_results(
    before: RoundRecord | None, record: RoundRecord, notes: EpochNotes, *, healthy: frozenset[int], now: float
) -> bool:
    """Whether we hold every result of the round before that is worth waiting for."""
    if before is None or before.holds_all(healthy):
        return True

    return before.holds_all(notes.delivering(record, healthy, now=now)) or notes.should_stop_waiting(record, healthy, now=now)


def _due(state: CoordinatorState, notes: EpochNotes, record: RoundRecord, *, healthy: frozenset[int], now: float) -> bool:
    """Whether a witness sends its statement now: everybody it waits for is done, or time is up."""
    if state.run_state is RunState.RoundWitness:
        return True
    if not record.finished_sent:
        return False

    unfinished = record.unfinished(healthy)
    return not unfinished or not unfinished & notes.waited_for(record, healthy, now=now)


def _health(identity: NodeIdentity, notes: EpochNotes, record: RoundRecord, *, healthy: frozenset[int]) -> list[Action]:
    """As a witness of the last round, report trainers of the round before it whose work no quorum saw."""
    last, attested = notes.records.get(record.height - 1), notes.records.get(record.height - 2)
    if last is None or attested is None or notes.slot not in last.witnesses:
        record.health_sent = True  # not for us to send: rounds are seen in order of height
        return []
    if attested.settled_by is None:
        return []

    record.health_sent = True
    stored = attested.settled_by.round_at(last.height)
    if stored is None or len(stored.statements) < witness.quorum(len(last.witnesses)):
        return []  # too few statements to decide about anybody

    absent = tuple(slot for slot in sorted(attested.shares) if slot in healthy and slot not in attested.accepted)
    return [Send(HealthCheck(identity, absent))] if absent else []
