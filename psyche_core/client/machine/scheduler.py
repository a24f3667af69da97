"""Which piece of trainer work comes next, and what prevents it. Pure functions over what the client knows.

The order: masters from others while ours cannot be used; masters for others that asked for exactly ours; settled results, oldest
first; the digest of the masters; a share that we recompute, or our share of the current round; the end of the epoch.
"""

from __future__ import annotations

from psyche_core.client.machine.actions import CloseEpoch, Digest, FetchModel, TakeSnapshot, Train, Work
from psyche_core.client.machine.epoch import PLAYING, EpochNotes, masters_due
from psyche_core.client.machine.replica.snapshot_offers import SnapshotOffer, SnapshotOffers
from psyche_core.client.machine.rounds.round import RoundRecord
from psyche_core.client.machine.rounds.settled_rounds import decision_of
from psyche_core.client.machine.timeouts import Timeouts
from psyche_core.coordinator.state import NO_DIGEST, CoordinatorState
from psyche_core.types import ClientState, RunState

SNAPSHOT_ROUNDS = 8
"""Rounds a snapshot of our masters is offered for."""

RECOMPUTED_ROUNDS = 4
"""Rounds for which a recomputed gradient is kept: chunks of it are opened within the next two, or three after a complaint."""

_PLURALITY_STATES = (RunState.Warmup, RunState.Finished)
"""States in which a plurality for a model is enough, because no further member can get it."""

_FEW_OFFERS_WAIT = 1 / 2
"""Fraction of warmup_time that we wait for a second opinion on a model that nobody signed and that only few members offer. The
rest of the warmup is for fetching it."""

_FROM_PEERS = ("P2P", "P2PGcs")


def starts_from_members(state: CoordinatorState) -> bool:
    """Whether the run's model is the one its members hold, not a stored one."""
    return state.model.LLM.checkpoint.name in _FROM_PEERS


def blocking_reason(
    state: CoordinatorState, notes: EpochNotes, *, masters_at: int | None, now: float, timeouts: Timeouts
) -> str | None:
    """Why our masters cannot be brought up to date with what we know, None when they can.

    masters_at: the step whose results they include. Source: protocol F11 and section 5.
    """
    record = notes.next_to_apply()
    start = state.epoch.start_step - 1
    due = masters_due(state)
    if masters_at is not None and masters_at > due:
        return f"this client holds the model after step {masters_at}, and the run is at step {due}"
    if masters_at is None:
        return f"this client has to begin with the model after step {start}, which it does not have"
    # Before the epoch's end is closed, the digest is older.
    comparable = notes.done and state.run_state in _PLURALITY_STATES and masters_at == due
    if comparable and differs_from_signed(state, due, notes.digests.ours):
        return f"this client's model after step {due} is not the one that the run's members signed"
    if masters_at < start and (record is None or record.round.step > masters_at + 1):
        return f"this client has to begin with the model after step {start} and holds that after step {masters_at}"
    if record is None:
        return None
    if record.missed:
        return f"what was decided about step {record.round.step} was missed"
    if record.round.step > masters_at + 1:
        return f"the rounds after step {masters_at} were missed"
    if record.waiting_since is not None and now - record.waiting_since > _payload_timeout(state, notes, record, timeouts):
        return f"nobody could give us an accepted result of step {record.round.step}"

    return None


def differs_from_signed(state: CoordinatorState, step: int, digest: bytes) -> bool:
    """Whether the run's members signed another digest for the model after a step."""
    signed = next((end.digest for end in state.ends if end.step == step), None)
    return signed is not None and digest not in (signed, NO_DIGEST)


def _payload_timeout(state: CoordinatorState, notes: EpochNotes, record: RoundRecord, timeouts: Timeouts) -> float:
    """Seconds to wait for a payload.

    Shorter for rounds in progress when we came, because earlier announcements may not be repeated, least of all those of our
    own earlier process. Shorter too after an epoch's rounds: when the run is over, the members that have the payload leave.
    """
    if state.run_state not in (RunState.Cooldown, RunState.Finished):
        return min(timeouts.offers, timeouts.payload) if record.height <= notes.opened_at else timeouts.payload

    return min(timeouts.payload, max(timeouts.leaving / 2, state.config.cooldown_time / 4))


def offers_timeout(state: CoordinatorState, timeouts: Timeouts) -> float:
    """Seconds to wait for more offers of the model; in a warmup, short enough to leave time for fetching it."""
    if state.run_state is not RunState.Warmup:
        return timeouts.offers

    return min(timeouts.offers, state.config.warmup_time / 4)


def waits_for_more_offers(state: CoordinatorState, notes: EpochNotes, *, now: float) -> bool:
    """Whether a model that nobody signed is not taken yet from so few members that all of them could be liars.

    Those that have another one may be cut off for a while. Not before the first step, when there is nothing that could be lost,
    and not once so many members are ready that the warmup may end.
    """
    if state.run_state is not RunState.Warmup or state.epoch.start_step <= 1 or state.epoch.ready_since is not None:
        return False

    return now - notes.since < state.config.warmup_time * _FEW_OFFERS_WAIT


def next_work(
    state: CoordinatorState,
    notes: EpochNotes,
    *,
    masters_at: int | None,
    healthy: frozenset[int],
    offers: SnapshotOffers,
    now: float,
    timeouts: Timeouts,
) -> Work | RoundRecord | None:
    """The next piece of work; a RoundRecord means that it should be applied; None to wait.

    healthy: slots healthy in `state`. offers: of snapshots of our masters; a new one takes its place in them.
    """
    if notes.resync.reason is not None:
        return fetch(state, notes, healthy=healthy, now=now, timeouts=timeouts)

    snapshot = _snapshot(notes, offers, masters_at=masters_at, now=now)
    if snapshot is not None:
        return snapshot

    record = notes.next_to_apply()
    if masters_at is None or (record is not None and record.round.step > masters_at + 1):
        return None  # results do not fit these masters; where the state describes another epoch nobody has looked yet
    if record is not None and record.settled_by is not None:
        return record

    newest = notes.records.get(notes.newest)
    if newest is None:
        return None
    if notes.describes(state) and state.run_state in PLAYING:
        return _round_work(newest, notes, state)
    if record is None and not notes.closed:
        step = notes.last_step(state)
        return CloseEpoch(notes.number, step, state.progress.data_index, state.generation, decision_of(state, step))

    return None


def fetch(
    state: CoordinatorState,
    notes: EpochNotes,
    *,
    healthy: frozenset[int],
    now: float,
    timeouts: Timeouts,
    build: bool = False,
) -> FetchModel | None:
    """The masters to fetch from others, None while there is no choice. build: whether the model itself must be built first."""
    repair = notes.resync
    members = frozenset(slot for slot, client in enumerate(state.epoch.clients) if client.state is not ClientState.Ejected)
    waited = repair.waited(now, seconds=offers_timeout(state, timeouts))
    asked_long_ago = now - repair.asked_at > offers_timeout(state, timeouts) or state.run_state is RunState.Warmup
    choice = repair.choose(
        healthy - {notes.slot},
        members - {notes.slot},
        now=now,
        waited=waited,
        plurality_suffices=waited and asked_long_ago and state.run_state in _PLURALITY_STATES,
        signed=frozenset(end.step for end in state.ends),
        unchecked=state.run_state not in _PLURALITY_STATES or waits_for_more_offers(state, notes, now=now),
    )
    if choice is None:
        return None

    repair.begin_attempt(choice)
    sources = tuple(notes.clients[slot].p2p for slot in choice.slots)
    tag = notes.tag(max(notes.newest, 0) + SNAPSHOT_ROUNDS)
    return FetchModel(
        choice.step,
        choice.manifest_hash,
        choice.manifest_bytes,
        sources,
        tag,
        build=state if build else None,
        descriptions=choice.descriptions if build else (),
        epoch=state.progress.epoch,
        data_index=state.progress.data_index,
        generation=state.generation,
        epoch_end=choice.step in {end.step for end in state.ends},
        decision=decision_of(state, choice.step),
    )


def _snapshot(notes: EpochNotes, offers: SnapshotOffers, *, masters_at: int | None, now: float) -> TakeSnapshot | None:
    """The snapshot to take because others want exactly our masters."""
    requests = notes.snapshot_requests
    if masters_at is None or not requests.requested:
        return None

    slots = requests.entitled(masters_at, rounds=notes.newest + 1)
    if not slots:
        return None

    tag = notes.tag(max(notes.newest, 0) + SNAPSHOT_ROUNDS)
    withdrawn = offers.add(SnapshotOffer(masters_at, tag, notes.key, slots), requests.offers)
    if withdrawn is None:
        return None

    requests.offered_at[masters_at] = now
    requests.offers.update(slots)
    return TakeSnapshot(masters_at, tag, withdrawn)


def _round_work(record: RoundRecord, notes: EpochNotes, state: CoordinatorState) -> Work | None:
    share = record.shares.get(notes.slot) if notes.slot is not None else None
    if not record.digest_asked:
        record.digest_asked = True
        return Digest(record.height)

    if notes.slot in record.round.recomputing and notes.healthy(state):
        assert notes.slot is not None
        recompute = notes.duties.next_recompute(state, notes.slot, tag=notes.tag(record.height + RECOMPUTED_ROUNDS))
        if recompute is not None:
            return recompute

    fresh = record.height > notes.opened_at and not record.own_started and not _signed_earlier(record, notes)
    if share is not None and fresh and notes.healthy(state):
        record.own_started = True
        return Train(record.height, record.round.step, share, notes.tag(record.height), state.generation)

    return None


def _signed_earlier(record: RoundRecord, notes: EpochNotes) -> bool:
    """Whether others handed us a result that an earlier process of ours signed: the state that we began with was old."""
    return notes.slot in record.candidates
