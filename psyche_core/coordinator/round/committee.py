"""Elections: who witnesses in a round, drawn from the round's seed; and who trains in it.

The election is the same as in the reference implementation. Only who verifies is not elected as there: a challenge names its
verifier (`lifecycle.challenges`), and all others train. It runs over the ranks in `Round.slots`, the slots that were healthy
when the round began, so clients that leave later do not change anybody's role (F4). If fewer than `witness_nodes` slots are left,
all of them are witnesses. Elections are pure functions of small values. They are called at every command, so the most recent
results are cached. Numbers with which no election is possible raise CoordinatorError.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

from psyche_core.coordinator.round.shuffle import shuffled_index, shuffled_order, shuffled_positions
from psyche_core.coordinator.state import CoordinatorState, Round
from psyche_core.errors import CoordinatorError
from psyche_core.types import MAX_WITNESSES, Committee

_COMMITTEE_SALT = b"committee"
_WITNESS_SALT = b"witness"
_MAX_U64 = 2**64 - 1

CACHE_SIZE = 256
"""Size of each cache of derived values: enough for the stored rounds of a few runs in one process."""


@dataclass(frozen=True, slots=True)
class WitnessProof:
    """The position of `index` in the drawn order of witnesses. witness: whether this position makes it a witness."""

    position: int
    index: int
    witness: bool


@dataclass(frozen=True, slots=True)
class CommitteeProof:
    """The position of `index` in the drawn order of committees, and the committee it belongs to."""

    committee: Committee
    position: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitteeSelection:
    """One round's elections over `total_nodes` indices.

    witness_nodes: number of witnesses; 0 elects everybody, at most 32. verification_percent: percentage of the nodes that are not
    tie-breakers that verify, 0 to 100. seed: the round's seed, u64. Raises CoordinatorError (InvalidCommitteeSelection).
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
        """Number of verifiers, rounded down."""
        return (self.total_nodes - self.tie_breaker_nodes) * self.verification_percent // 100

    def witness_proof(self, index: int) -> WitnessProof:
        """Return the position of one index among the witnesses. Raises ValueError unless 0 <= index < total_nodes."""
        position = shuffled_index(index, self.total_nodes, self._seed(_WITNESS_SALT))
        return WitnessProof(position=position, index=index, witness=position < self._witness_limit)

    def committee_proof(self, index: int) -> CommitteeProof:
        """Return the committee of one index. Raises ValueError unless 0 <= index < total_nodes."""
        position = shuffled_index(index, self.total_nodes, self._seed(_COMMITTEE_SALT))
        return CommitteeProof(committee=self._committee_at(position), position=position, index=index)

    def witness_order(self) -> tuple[int, ...]:
        """Return all indices, ordered by their position in the drawn order of witnesses."""
        return tuple(shuffled_order(self.total_nodes, self._seed(_WITNESS_SALT)))

    def witnesses(self) -> tuple[int, ...]:
        """Return the indices of all elected witnesses, ordered by their position."""
        return self.witness_order()[: self._witness_limit]

    def members(self, committee: Committee) -> tuple[int, ...]:
        """Return all indices of a committee, ascending."""
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
    """Return the slots elected to witness in a round, ascending."""
    return witnesses(round_.slots, round_.seed, state.config.witness_nodes or MAX_WITNESSES)


def trainer_slots(round_: Round) -> tuple[int, ...]:
    """Return the slots that train in a round, ascending. A drain round also has trainers, although they get no samples."""
    return tuple([slot for slot in round_.slots if slot not in round_.recomputing]) if round_.recomputing else round_.slots


@lru_cache(maxsize=CACHE_SIZE)
def drawn_order(slots: tuple[int, ...], seed: int) -> tuple[int, ...]:
    """Return the slots in the drawn order of witnesses for this seed (u64)."""
    draw = CommitteeSelection(tie_breaker_nodes=0, witness_nodes=0, verification_percent=0, total_nodes=len(slots), seed=seed)
    return tuple(slots[rank] for rank in draw.witness_order())


@lru_cache(maxsize=CACHE_SIZE)
def witnesses(slots: tuple[int, ...], seed: int, at_most: int) -> tuple[int, ...]:
    """Return the slots that witness, ascending. No draw is needed if all slots witness."""
    elected = slots if at_most >= len(slots) else drawn_order(slots, seed)[:at_most]
    return tuple(sorted(elected))


def is_witness(state: CoordinatorState, round_: Round, slot: int) -> bool:
    """Whether a slot is elected to witness in a round."""
    return slot in witness_slots(state, round_)
