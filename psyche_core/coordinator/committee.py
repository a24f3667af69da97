"""Elections: who trains, verifies and witnesses in a round, drawn from the round's seed.

The draw is the reference's (3.2). It runs over ranks in `Round.slots`, the slots healthy when the round began, so later exits do
not change anybody's role (F4). If fewer than `witness_nodes` are left, all of them witness. Draws are pure functions of small
values and called at every command, so the last few results are cached. Impossible numbers are refused.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

from psyche_core.coordinator.shuffle import shuffled_index, shuffled_order, shuffled_positions
from psyche_core.coordinator.state import CoordinatorState, Round
from psyche_core.errors import CoordinatorError
from psyche_core.types import MAX_WITNESSES, Committee

_COMMITTEE_SALT = b"committee"
_WITNESS_SALT = b"witness"
_MAX_U64 = 2**64 - 1

REMEMBERED = 256
"""Derivations of each kind that are remembered: more than the stored rounds of a few runs in one process."""


@dataclass(frozen=True, slots=True)
class WitnessProof:
    """Where `index` stands in the draw of witnesses, and whether that makes it one."""

    position: int
    index: int
    witness: bool


@dataclass(frozen=True, slots=True)
class CommitteeProof:
    """Where `index` stands in the draw of committees, and the committee that gives."""

    committee: Committee
    position: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitteeSelection:
    """One round's draw over `total_nodes` indices.

    witness_nodes: 0 elects everybody, at most 32. verification_percent: share of those who break no ties that verify.
    seed: the round's u64. Raises CoordinatorError (InvalidCommitteeSelection).
    """

    tie_breaker_nodes: int
    witness_nodes: int
    verification_percent: int
    total_nodes: int
    seed: int

    def __post_init__(self) -> None:
        problem = None
        if self.total_nodes < self.tie_breaker_nodes:
            problem = f"{self.tie_breaker_nodes} tie-breakers cannot be drawn from {self.total_nodes} nodes"
        elif self.witness_nodes != 0 and self.total_nodes < self.witness_nodes:
            problem = f"{self.witness_nodes} witnesses cannot be drawn from {self.total_nodes} nodes"
        elif not 0 <= self.verification_percent <= 100:
            problem = f"verification_percent must be 0 to 100, got {self.verification_percent}"
        elif self.total_nodes >= _MAX_U64:
            problem = f"the number of nodes must be below {_MAX_U64}, got {self.total_nodes}"
        if problem is not None:
            raise CoordinatorError("InvalidCommitteeSelection", problem)

    @property
    def verifier_nodes(self) -> int:
        """How many verify."""
        return (self.total_nodes - self.tie_breaker_nodes) * self.verification_percent // 100

    def witness_proof(self, index: int) -> WitnessProof:
        """The draw of one index. Raises ValueError for an index not below total_nodes."""
        position = shuffled_index(index, self.total_nodes, self._seed(_WITNESS_SALT))
        return WitnessProof(position=position, index=index, witness=position < self._witness_limit)

    def committee_proof(self, index: int) -> CommitteeProof:
        """The committee of one index. Raises ValueError for an index not below total_nodes."""
        position = shuffled_index(index, self.total_nodes, self._seed(_COMMITTEE_SALT))
        return CommitteeProof(committee=self._committee_at(position), position=position, index=index)

    def witness_order(self) -> tuple[int, ...]:
        """All indices in order of their position in the draw of witnesses."""
        return tuple(shuffled_order(self.total_nodes, self._seed(_WITNESS_SALT)))

    def witnesses(self) -> tuple[int, ...]:
        """All elected witnesses by index, in order of their position."""
        return self.witness_order()[: self._witness_limit]

    def members(self, committee: Committee) -> tuple[int, ...]:
        """All indices of a committee, ascending."""
        if self.tie_breaker_nodes == 0 and self.verifier_nodes == 0:
            return tuple(range(self.total_nodes)) if committee is Committee.Trainer else ()

        positions = shuffled_positions(self.total_nodes, self._seed(_COMMITTEE_SALT))
        return tuple(index for index, position in enumerate(positions) if self._committee_at(position) is committee)

    @property
    def _witness_limit(self) -> int:
        return self.witness_nodes or MAX_WITNESSES

    def _committee_at(self, position: int) -> Committee:
        if position < self.tie_breaker_nodes:
            return Committee.TieBreaker
        if position < self.tie_breaker_nodes + self.verifier_nodes:
            return Committee.Verifier

        return Committee.Trainer

    def _seed(self, salt: bytes) -> bytes:
        return hashlib.sha256(hashlib.sha256(self.seed.to_bytes(8, "little")).digest() + salt).digest()


def witness_slots(state: CoordinatorState, round_: Round) -> tuple[int, ...]:
    """Slots elected to witness in a round, ascending."""
    return witnesses(round_.slots, round_.seed, state.config.witness_nodes or MAX_WITNESSES)


def trainer_slots(state: CoordinatorState, round_: Round) -> tuple[int, ...]:
    """Slots that train in a round, ascending; also of a drain round, where there is nothing to train."""
    return trainers(round_.slots, round_.seed, state.config.verification_percent)


@lru_cache(maxsize=REMEMBERED)
def drawn_order(slots: tuple[int, ...], seed: int) -> tuple[int, ...]:
    """The slots in order of the draw of witnesses with this seed (u64)."""
    draw = CommitteeSelection(tie_breaker_nodes=0, witness_nodes=0, verification_percent=0, total_nodes=len(slots), seed=seed)
    return tuple(slots[rank] for rank in draw.witness_order())


@lru_cache(maxsize=REMEMBERED)
def witnesses(slots: tuple[int, ...], seed: int, at_most: int) -> tuple[int, ...]:
    """The slots that witness, ascending. Where all of them do nothing is drawn."""
    elected = slots if at_most >= len(slots) else drawn_order(slots, seed)[:at_most]
    return tuple(sorted(elected))


@lru_cache(maxsize=REMEMBERED)
def trainers(slots: tuple[int, ...], seed: int, verification_percent: int) -> tuple[int, ...]:
    """The slots that train, ascending. Raises CoordinatorError (InvalidCommitteeSelection)."""
    draw = CommitteeSelection(
        tie_breaker_nodes=0,
        witness_nodes=0,
        verification_percent=verification_percent,
        total_nodes=len(slots),
        seed=seed,
    )
    return tuple(slots[rank] for rank in draw.members(Committee.Trainer))


def is_witness(state: CoordinatorState, round_: Round, slot: int) -> bool:
    """Whether a slot is elected to witness in a round."""
    return slot in witness_slots(state, round_)
