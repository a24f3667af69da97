"""Is our replica equal to the others'? Digests are compared at both ends of an epoch and in every round's statements.

The reference never exchanged a hash of its weights, so replicas could drift unseen (its defect 9.1-1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, KeysView

from psyche_core.client.machine.round import NO_DIGEST, RoundRecord
from psyche_core.coordinator import witness
from psyche_core.wire.messages import ModelDigest

SEEDS_KEPT = 4
"""Digests that are kept of one peer for one end of an epoch, with different seeds."""

MIN_ACCUSERS = 2
"""Fewest witnesses that can say that our replica differs."""


def unlike_witnesses(records: Iterable[RoundRecord]) -> int | None:
    """The step of a settled round in which a quorum of witnesses had one other digest than we; each round is judged once.

    Witnesses without an opinion (a digest of zeros) do not count, nor do those who disagree with each other: then replicas went
    wrong on their own. One witness alone convicts nobody, where a committee has only one: it may be the one whose replica is
    wrong, and everybody else would ask it for its masters. The epoch's end tells.
    """
    for record in records:
        if record.digest_judged or record.settled_by is None or record.digest == NO_DIGEST:
            continue

        record.digest_judged = True
        stored = record.settled_by.round_at(record.height)
        statements = stored.statements if stored is not None else ()
        unlike = Counter(said.model_digest for said in statements if said.model_digest not in (NO_DIGEST, record.digest))
        if max(unlike.values(), default=0) >= max(MIN_ACCUSERS, witness.quorum(len(record.witnesses))):
            return record.round.step

    return None


class DigestBook:
    """Digests by slot for the epoch being played, before its first round and after its last apply.

    Only what was said with the seed that we know for that end is compared (see ModelDigest).
    """

    def __init__(self) -> None:
        self.ours = bytes(32)
        self._own: dict[bool, bytes] = {}
        self._seeds: dict[bool, int] = {}
        self._heard: dict[bool, dict[int, dict[int, bytes]]] = {False: {}, True: {}}
        self._told: set[tuple[bool, int]] = set()

    def add(self, slot: int, message: ModelDigest) -> None:
        """Note a peer's digest; the newest counts, since a repaired replica speaks again."""
        by_seed = self._heard[message.ended].setdefault(slot, {})
        by_seed.pop(message.seed, None)
        by_seed[message.seed] = message.digest
        if len(by_seed) > SEEDS_KEPT:
            del by_seed[next(iter(by_seed))]

    def note_own(self, slot: int | None, *, ended: bool, seed: int) -> None:
        """Fix our own digest at one end of the epoch. seed: as in our ModelDigest."""
        self._own[ended] = self.ours
        self._seeds[ended] = seed
        if slot is not None:
            self._heard[ended].pop(slot, None)

    def forget_own(self) -> None:
        """Our replica is not what our digests said; no judgement until the next `note_own`."""
        self._own.clear()

    def disagreements(self) -> list[tuple[int, bytes]]:
        """Peers whose digest differs from ours at the same moment, each told once."""
        found = []
        for ended, ours in self._own.items():
            for slot, theirs in self._said(ended).items():
                if theirs != ours and (ended, slot) not in self._told:
                    self._told.add((ended, slot))
                    found.append((slot, theirs))
        return found

    def likeminded(self, *, ended: bool) -> int:
        """How many said the same as we at one end of the epoch, ourselves counted; 0 before we have."""
        ours = self._own.get(ended)
        return 0 if ours is None else 1 + sum(theirs == ours for theirs in self._said(ended).values())

    def compared(self, digest: bytes) -> tuple[frozenset[int], frozenset[int]]:
        """Peers that said this digest when we said it, at the newest such end of the epoch, and those that said another.

        Nobody where we said it at neither end: the peers spoke of the masters after another step, which says nothing about these.
        Nor where nobody said the same: ours may have been wrong already.
        """
        for ended in (True, False):
            if self._own.get(ended) == digest:
                said = self._said(ended)
                alike = frozenset(slot for slot, theirs in said.items() if theirs == digest)
                return (alike, frozenset(said) - alike) if alike else (alike, alike)

        return frozenset(), frozenset()

    def heard(self, *, ended: bool) -> KeysView[int]:
        """Slots that told their digest at one end of the epoch."""
        return self._said(ended).keys()

    def outvoted(self, members: int) -> bool:
        """Whether ours cannot be the digest of most of the epoch's members (ours counted): more than half said another one.

        Where exactly half did, one side must give way or nobody would: the one whose digest is larger than the smallest said.
        """
        for ended, ours in self._own.items():
            others = [theirs for theirs in self._said(ended).values() if theirs != ours]
            if len(others) * 2 > members or (others and len(others) * 2 == members and ours > min(others)):
                return True

        return False

    def _said(self, ended: bool) -> dict[int, bytes]:
        """Digests by slot of those who speak of the same history as we; nobody's before we spoke ourselves."""
        seed = self._seeds.get(ended)
        if seed is None:
            return {}

        return {slot: by_seed[seed] for slot, by_seed in self._heard[ended].items() if seed in by_seed}
