"""What one client knows about one round: who owes which share, which results it has seen, what it did itself.

Announcements are kept per slot and commitment, a bounded number, in any order of arrival. A result has arrived when its payload
was fetched, matched its hash and passed our optimizer's check. Which results are applied is not decided here but by the
coordinator's statements (`psyche_core.coordinator.round.witness`), which all members evaluate alike.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from psyche_core.coordinator.commands import Equivocation
from psyche_core.coordinator.history import histories
from psyche_core.coordinator.round import assignment, committee, witness
from psyche_core.coordinator.round.bloom_filter import BroadcastBloom
from psyche_core.coordinator.round.merkle_root import merkle_root
from psyche_core.coordinator.state import CoordinatorState, Round
from psyche_core.types import MAX_WITNESSES, BatchId, Decision, RunState, WitnessStatement, bitmap
from psyche_core.wire.messages import Result

MAX_CANDIDATES = MAX_WITNESSES + 1
"""Results kept of one slot: a trainer can send each witness a different one, and only with all of them can we see that none is
agreed."""

NO_DIGEST = bytes(32)


@dataclass(slots=True)
class Evidence:
    """A proof against a trainer. sent_at: when we last sent it; answered: the coordinator accepted or refused it.

    checked_in: phase and round when we last checked.
    """

    command: Equivocation
    sent_at: float
    answered: bool = False
    checked_in: tuple[RunState, int] | None = None


@dataclass(slots=True)
class RoundRecord:
    """Mutable notes about one round of the current epoch.

    trainers: slots whose Finished is awaited: those that train, and those that recompute a share, which have work to do, too.
    candidates: results by slot and commitment; announced: commitments by payload hash and slot; verified: commitment by slot of
    the first valid payload that arrived. arrived: when the verified result of each slot did; kept: slots whose verified result
    is in our journal. finished: slots that sent Finished, and when it arrived; own_done_at: when our share was trained;
    opened_at: when we first saw the round. evidence: by slot of the trainer that signed two results. settled_by: the state with
    all statements about the round, and ballots what they say, as counted in the state `counted_in`; missed: we did not see them
    all. all_sent: we have nothing left to send in this round. nearly_done: our training is expected to end before the next round
    can begin, and nearly_done_at when we knew. digest: of our masters during the round, taken once its applies are done.
    height: of the round in its epoch.
    """

    epoch: int
    round: Round
    shares: Mapping[int, tuple[BatchId, ...]]
    trainers: tuple[int, ...]
    witnesses: tuple[int, ...]
    candidates: dict[int, dict[bytes, Result]] = field(default_factory=dict)
    announced: dict[bytes, dict[int, bytes]] = field(default_factory=dict)
    verified: dict[int, bytes] = field(default_factory=dict)
    arrived: dict[int, float] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)
    finished: dict[int, float] = field(default_factory=dict)
    opened_at: float = 0.0
    own_done_at: float | None = None
    own_started: bool = False
    own_done: bool = False
    nearly_done: bool = False
    nearly_done_at: float | None = None
    finished_sent: bool = False
    statement_sent: bool = False
    health_sent: bool = False
    all_sent: bool = False
    applied: bool = False
    digest: bytes = NO_DIGEST
    digest_asked: bool = False
    digest_compared: bool = False
    evidence: dict[int, Evidence] = field(default_factory=dict)
    decided_results: dict[int, Result | Literal["void"]] = field(default_factory=dict)
    settled_by: CoordinatorState | None = None
    ballots: witness.Ballots | None = None
    counted_in: CoordinatorState | None = None
    missed: bool = False
    accepted: frozenset[int] = frozenset()
    waiting_since: float | None = None
    height: int = field(init=False)

    def __post_init__(self) -> None:
        self.height = self.round.height

    @classmethod
    def open(cls, state: CoordinatorState, playing: Round, *, epoch: int) -> RoundRecord:
        """Start a record when a round is first seen. epoch: the number of the epoch it is played in."""
        return cls(
            epoch=epoch,
            round=playing,
            shares=assignment.shares(state, playing) if playing.batches else {},
            trainers=playing.slots,
            witnesses=committee.witness_slots(state, playing),
        )

    @property
    def unattested(self) -> bool:
        """Whether the epoch ended in this round: nobody attested to it, and its step is trained again (protocol F1)."""
        return self.settled_by is not None and not self.round.drain and self.settled_by.round_at(self.height + 1) is None

    def add(self, slot: int, result: Result) -> bool:
        """Keep an announcement; False when it is known or the slot has too many."""
        known = self.candidates.setdefault(slot, {})
        if result.commitment in known or len(known) >= MAX_CANDIDATES:
            return False

        known[result.commitment] = result
        self.announced.setdefault(result.payload_hash, {})[slot] = result.commitment
        return True

    def payload_arrived(self, payload_hash: bytes, valid_hashes: Collection[bytes], *, now: float) -> None:
        """Record a verified payload: a witness attests to the first one of each slot."""
        if payload_hash in valid_hashes:
            for slot, commitment in self.announced.get(payload_hash, {}).items():
                self.verified.setdefault(slot, commitment)
                self.arrived.setdefault(slot, now)

    @property
    def ready_at(self) -> float:
        """When our own work of the round was done or almost done; from then on we may wait for others."""
        if self.own_done_at is not None:
            return self.own_done_at
        if self.nearly_done_at is not None:
            return self.nearly_done_at

        return math.inf if self.own_started and not self.own_done else self.opened_at

    def deliveries(self, healthy: frozenset[int], *, since: float) -> tuple[dict[int, float], tuple[int, ...]]:
        """When results arrived, for a member that needed them from `since` on; and the slots they are expected from."""
        times = {slot: max(arrived, since) for slot, arrived in self.arrived.items()}
        return times, tuple([slot for slot in self.shares if slot in healthy or slot in times])

    def holds_all(self, healthy: frozenset[int]) -> bool:
        """Whether every still healthy trainer with a share delivered a result we verified."""
        verified = self.verified
        for slot in self.shares:  # noqa: SIM110 - plain loops here: this runs at every event of every round
            if slot not in verified and slot in healthy:
                return False

        return True

    def unfinished(self, healthy: frozenset[int]) -> frozenset[int]:
        """Still healthy trainers of the round that have not sent Finished."""
        return healthy.intersection(self.trainers).difference(self.finished)

    def all_finished(self, healthy: frozenset[int]) -> bool:
        """Whether every still healthy trainer of the round sent Finished."""
        return not self.unfinished(healthy)

    def decided_result(self, slot: int) -> Result | Literal["void"] | None:
        """The result of an accepted slot that the statements agree on; None while we have not seen it announced.

        "void" when they cannot have agreed on any.
        """
        if slot in self.decided_results:
            return self.decided_results[slot]
        if self.settled_by is None:
            return None

        if self.counted_in is not self.settled_by:
            self.ballots, self.counted_in = witness.ballots(self.settled_by, self.round), self.settled_by
        if self.ballots is None:
            return None

        known = self.candidates.get(slot, {})
        verdict = self.ballots.judge(slot, known)
        if verdict.chosen is not None:
            self.decided_results[slot] = known[verdict.chosen]
        elif verdict.void:
            self.decided_results[slot] = "void"
        return self.decided_results.get(slot)

    def settle(self, decided: Round, state: CoordinatorState) -> None:
        """`state` has all statements about the round: determine which shares are accepted.

        decided: the round as `state` stores it: shares may have been voided since we first saw it.
        """
        self.settled_by = state
        if state.round_at(self.height + 1) is not None:
            self.accepted = witness.accepted_slots(state, decided) & frozenset(self.shares)

    def decision(self, epoch: int) -> Decision:
        """What decided this round, once it is settled. epoch: number of its epoch."""
        state = self.settled_by
        attesting = None if state is None else state.round_at(self.height + 1)
        return Decision(
            self.round.step,
            epoch,
            self.height,
            witness.statements_digest(() if attesting is None else attesting.statements),
            NO_DIGEST if state is None else histories(state).get(self.round.step, NO_DIGEST),
        )

    def accepted_without(self, slot: int) -> bool:
        """Whether a quorum of other witnesses saw everything that was accepted; False while that is unknown."""
        state = self.settled_by
        stored = None if state is None else state.round_at(self.height)
        if state is None or stored is None or self.unattested:
            return False

        return self.accepted <= witness.accepted_slots(state, stored, without=slot)


def statement_about(record: RoundRecord | None, *, playing: RoundRecord, index: int) -> WitnessStatement:
    """The statement that a witness of `playing` sends about the previous round (None before the first): protocol F6."""
    bloom = BroadcastBloom(playing.round.seed)
    leaves: list[tuple[int, bytes]] = []
    slots: list[int] = []
    if record is not None:
        for slot, commitment in record.verified.items():
            if slot in record.shares:
                bloom.add(commitment)
                leaves.append((record.shares[slot][0].first, commitment))
                slots.append(slot)

    return WitnessStatement(
        epoch=playing.epoch,
        height=playing.height,
        index=index,
        participants=bitmap(slots),
        broadcast_bloom=bloom.to_bytes(),
        merkle_root=merkle_root([commitment for _, commitment in sorted(leaves)]),
        model_digest=playing.digest,
    )
