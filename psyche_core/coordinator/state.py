"""The coordinator's state: frozen values, nothing else.

A client keeps its slot (its index in `Epoch.clients`) for the whole epoch (F4). The last four rounds are kept, oldest first, the
current one last. A round's unit of work is a *share*: all intervals that one trainer got, for which it sends one result (see
docs/explanation/protocol.md, "Shares"). The state holds nothing that can be computed from it: shares, elections and acceptance
are functions in `assignment`, `committee` and `witness`. The limits of its lists are here too, such as MAX_ENDS.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from psyche_core.config.run_config import CoordinatorConfig, ModelConfig
from psyche_core.types import BatchId, ClientState, NodeIdentity, RunState, WitnessStatement
from psyche_core.verification.challenge import Stage
from psyche_core.verification.standing import Standing

STORED_ROUNDS = 4

LOST_ROUND_BITS = 8
"""Size of `Client.lost_rounds`. At least STORED_ROUNDS, so that each round that can be judged has its own bit."""

MAX_ACCOUNTS = 512
"""Maximum number of signers with a balance over the whole run."""

MAX_REJOINS = 3
"""How often one slot may return within an epoch after it was dropped or had withdrawn."""

MAX_UNREADY = 256
"""Maximum number of stored signers that were not ready when a warmup ended."""

UNREADY_LIMIT = 3
"""From this score on, warmup does not wait for a signer. A warmup in which it is not ready adds 2, another one takes 1 off."""

MAX_REPEATED_WARMUPS = 2
"""So often in a row a warmup begins again, before the run goes back, because members joined that took no part in it (F18)."""

MAX_ENDS = 4
"""Maximum number of signed epoch ends that are kept, the newest ones. `history` adds them."""

MAX_END_INTERVALS = 64
"""Maximum number of queued intervals that are kept with an epoch end."""

MAX_CHALLENGED_INTERVALS = 8
"""Most intervals of a share that can be challenged: the state keeps them, because who recomputes the share needs them."""

NO_DIGEST = bytes(32)
"""Stands for an unknown digest."""


class EndReason(IntEnum):
    """Why an epoch is ending (F1). If several reasons apply, `rounds` keeps the first one in its list."""

    EpochTime = 1
    TotalSteps = 2
    TooFewClients = 3
    MissedQuorum = 4
    Pause = 5
    Rounds = 6


@dataclass(frozen=True, slots=True)
class Client:
    """One slot of the epoch.

    exited_height: round in which it last stopped being healthy, 0 if it never did; kept when it returns. accepted_rounds: number
    of rounds of this epoch in which its result was accepted (F12). rejoins: how often it returned in this epoch, at most
    MAX_REJOINS. missed: score of the duties that it missed (F16), at most MOST_MISSED. lost_rounds: bit h % LOST_ROUND_BITS is
    set if its share of round h is counted as lost (F7). end_digest: full digest (32 bytes) of its master weights at this epoch's
    end (F18), NO_DIGEST until it reported one. standing: strikes and scores of its checked shares (protocol section 7).
    """

    id: NodeIdentity
    state: ClientState = ClientState.Healthy
    exited_height: int = 0
    accepted_rounds: int = 0
    rejoins: int = 0
    missed: int = 0
    lost_rounds: int = 0
    end_digest: bytes = NO_DIGEST
    standing: Standing = Standing()  # noqa: RUF009  # frozen


@dataclass(frozen=True, slots=True)
class EpochRates:
    """What an epoch pays, in points (u64).

    earning_total_shared: shared among its clients in proportion to their accepted rounds (F12). slashing_per_client: recorded
    against each ejected client.
    """

    earning_total_shared: int = 0
    slashing_per_client: int = 0


@dataclass(frozen=True, slots=True)
class Account:
    """What a signer (32 bytes) earned and was slashed over the run, in points (u64, saturating). Kept when the signer leaves."""

    signer: bytes
    earned: int = 0
    slashed: int = 0


@dataclass(frozen=True, slots=True)
class Unready:
    """A signer (32 bytes) that was not ready when a warmup ended. score: see UNREADY_LIMIT, 1 to 255."""

    signer: bytes
    score: int


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """A point in the run's history to which the run can go back (F18).

    step: the last one applied. data_index: first sample not assigned until then. digest: full digest (32 bytes) of the masters,
    signed by a quorum; NO_DIGEST if no quorum signed one. queue: the newest MAX_END_INTERVALS intervals that were waiting to be
    assigned again. lost: number of samples lost until then, including those of intervals for which `queue` has no room.
    history: see CoordinatorState, up to this step.
    """

    step: int = 0
    data_index: int = 0
    digest: bytes = NO_DIGEST
    queue: tuple[BatchId, ...] = ()
    lost: int = 0
    history: bytes = NO_DIGEST


@dataclass(frozen=True, slots=True)
class Round:
    """One round of the epoch.

    height: number of the round in its epoch, from 0. step: the optimizer step to which its training belongs; for a drain round,
    the next step that will be trained. seed: u64 drawn when it started. slots: healthy slots when it started, ascending;
    assignment and elections use them. batches: the intervals to train, requeued ones first; empty in the drain round.
    statements: those sent in this round; they are about round `height - 1`. drain: whether this is the drain round. voided:
    slots, ascending, whose share of this round is void because they signed several results for it (F7), or were ejected before it
    was decided. history: see CoordinatorState, up to the step whose results are in everybody's masters during this round.
    recomputing: slots, ascending, that recompute a challenged share in this round and get no samples (protocol section 7).
    """

    height: int
    step: int
    seed: int
    slots: tuple[int, ...]
    batches: tuple[BatchId, ...]
    statements: tuple[WitnessStatement, ...] = ()
    drain: bool = False
    voided: tuple[int, ...] = ()
    history: bytes = NO_DIGEST
    recomputing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Root:
    """A slot's commitment (32 bytes) to the gradient that it recomputed, see `psyche_core.verification.merkle.committed_root`."""

    slot: int
    commitment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenChallenge:
    """A challenge about the accepted share of a slot that has no verdict yet (protocol section 7).

    The fields are those of `psyche_core.verification.challenge.Challenge`. height: round of the share. trainer, verifier: slots.
    share: its intervals; none once a proof against the trainer has decided about them: then it ends without a verdict. since:
    round with which the stage began. roots: ascending by slot. judges: slots of the tie-breakers, ascending. missed: slots of
    others that were to break the tie and were silent, ascending.
    """

    height: int
    trainer: int
    verifier: int
    since: int
    share: tuple[BatchId, ...]
    stage: Stage = Stage.COMMIT
    complained: bool = False
    roots: tuple[Root, ...] = ()
    judges: tuple[int, ...] = ()
    missed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Epoch:
    """The running (or last) epoch.

    clients: one for each slot. rounds: the last ones, oldest first. start_step: the first step it can train. start_time: unix
    seconds. ending: why it is ending, None while it is not. cold_start: whether it, or after a pause the next epoch, starts cold.
    ready: slots that reported in warmup that they are ready. ready_since: unix second at which init_min_clients of them were
    ready, None before. lacking: slots that reported that they cannot get the model the epoch starts with. held_step: the newest
    signed step that one of these holds, 0 for none (F18). ceded: slots that were responsible for storing the model and reported
    that they cannot. seed: u64 drawn at its start, used to elect the checkpointers (F9). rates: what it pays, fixed at its start.
    repeats: number of warmups in a row that began again for members that had not reported, at most MAX_REPEATED_WARMUPS.
    unplayed: True while no round of it has begun. Until then `rounds` are those of the last epoch that had rounds, so that a
    client that missed the end of that epoch can still read it. challenges: open ones, ascending by round, then by trainer.
    """

    clients: tuple[Client, ...] = ()
    rounds: tuple[Round, ...] = ()
    start_step: int = 0
    start_time: int = 0
    ending: EndReason | None = None
    cold_start: bool = False
    ready: tuple[int, ...] = ()
    ceded: tuple[int, ...] = ()
    lacking: tuple[int, ...] = ()
    held_step: int = 0
    ready_since: int | None = None
    seed: int = 0
    rates: EpochRates = field(default_factory=EpochRates)
    unplayed: bool = False
    repeats: int = 0
    challenges: tuple[OpenChallenge, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the run is.

    epoch: number of ended epochs. step: the next step to train, from 1. data_index: first sample that was never assigned.
    """

    epoch: int = 0
    step: int = 1
    data_index: int = 0


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """Everything the coordinator knows.

    instance: 32 bytes, new for every run, even if a run is created again under the same name; every signature covers it.
    since: unix second at which `run_state` was entered. pending: members that joined, in order of arrival, kept across epochs.
    minimum_since: unix second at which pending last reached init_min_clients (F13), None below it. pending_pause: whether the run
    pauses after this epoch. requeue: samples to be assigned again before fresh data (F14), oldest first. lost_samples: number of
    samples that will not be assigned again, over the whole run. future_rates: what the next epoch will pay. accounts: balances
    ascending by signer, at most MAX_ACCOUNTS; a signer gets one when it first earns or is slashed. unready: signers that were not
    ready when a warmup ended, oldest first (F17).

    The run's history (F18): history: digest (32 bytes) of all statements so far, and of each decided round's step and accepted
    slots (`history.history_with_decision`). Two states with equal histories have equal masters after the last decided round;
    where a restored coordinator decides a round again, the histories differ from there on. ends: the last signed epoch ends,
    ascending by step. stored: position of the stored checkpoint. generation: how often the run went back. from_checkpoint: the
    present or next epoch begins with the stored checkpoint's model. model_lost: no member holds a model with which the run can
    continue, so it is paused until its owner decides.
    """

    run_id: str
    config: CoordinatorConfig
    model: ModelConfig
    instance: bytes = bytes(32)
    run_state: RunState = RunState.Uninitialized
    progress: Progress = field(default_factory=Progress)
    epoch: Epoch = field(default_factory=Epoch)
    since: int = 0
    pending: tuple[NodeIdentity, ...] = ()
    minimum_since: int | None = None
    pending_pause: bool = False
    requeue: tuple[BatchId, ...] = ()
    lost_samples: int = 0
    future_rates: EpochRates = field(default_factory=EpochRates)
    accounts: tuple[Account, ...] = ()
    from_checkpoint: bool = True
    model_lost: bool = False
    generation: int = 0
    history: bytes = NO_DIGEST
    stored: EpochEnd = field(default_factory=EpochEnd)
    ends: tuple[EpochEnd, ...] = ()
    unready: tuple[Unready, ...] = ()

    @property
    def current_round(self) -> Round | None:
        """The newest round of the epoch, None before the first round."""
        epoch = self.epoch
        return epoch.rounds[-1] if epoch.rounds and not epoch.unplayed else None

    def round_at(self, height: int) -> Round | None:
        """Return a stored round by its height, or None if it was never played or is no longer stored."""
        for stored in self.epoch.rounds:
            if stored.height == height:
                return stored

        return None

    def slot_of(self, identity: NodeIdentity) -> int | None:
        """Return the slot of a client in this epoch by its signer, healthy or not; None if it has no slot."""
        for slot, client in enumerate(self.epoch.clients):
            if client.id.signer == identity.signer:
                return slot

        return None

    @property
    def healthy_slots(self) -> tuple[int, ...]:
        """The slots that are healthy now, ascending."""
        return tuple([slot for slot, client in enumerate(self.epoch.clients) if client.state is ClientState.Healthy])
