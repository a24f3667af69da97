"""Is our replica equal to the others'? Digests are compared at both ends of an epoch and in every round's statements.

Nothing here tells anybody: what follows from a difference, and what people are told, is in `resync`.
The reference never exchanged a hash of its weights, so replicas could drift unseen (its defect 9.1-1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, KeysView

from psyche_core.client.machine.rounds.round import NO_DIGEST, RoundRecord
from psyche_core.coordinator.round import witness
from psyche_core.wire.messages import ModelDigest

SEEDS_KEPT = 4
"""Digests kept per peer for one end of an epoch, with different seeds."""

MIN_DIFFERING_WITNESSES = 2
"""Fewest witnesses by which our replica counts as diverged."""


def backfill_digests(records: Iterable[RoundRecord], digest: bytes, *, step: int, start: int, newest: int) -> None:
    """Set our digest in earlier rounds that had the masters we hold now, and in which we did not take it.

    A member that comes to an epoch late can so be compared before it applies the first result: its masters may be of a history
    that the coordinator has forgotten. digest: of our masters, which are those after `step`. start: the step before the epoch's
    first, whose masters its first two rounds have. newest: height of the newest round, whose digest is taken anyway.
    """
    for record in records:
        if record.height < newest and record.digest == NO_DIGEST and max(record.round.step - 2, start) == step:
            record.digest = digest


def diverged_step(records: Iterable[RoundRecord]) -> int | None:
    """The step of a settled round in which a quorum of witnesses had one digest that is not ours; each round is compared once.

    Witnesses without an opinion (a digest of zeros) do not count, nor do those who disagree with each other: then replicas
    differ for their own reasons. One witness alone is not enough, even if the committee has only one: its own replica may
    be the wrong one, and all others would ask it for its masters. The comparison at the epoch's end decides.
    """
    for record in records:
        if record.digest_compared or record.settled_by is None or record.digest == NO_DIGEST:
            continue

        record.digest_compared = True
        stored = record.settled_by.round_at(record.height)
        statements = stored.statements if stored is not None else ()
        differing = Counter(
            statement.model_digest for statement in statements if statement.model_digest not in (NO_DIGEST, record.digest)
        )
        if max(differing.values(), default=0) >= max(MIN_DIFFERING_WITNESSES, witness.quorum(len(record.witnesses))):
            return record.round.step

    return None


class DigestTracker:
    """Digests by slot for the current epoch, before its first round and after its last apply.

    Only digests with the seed that we know for that end are compared (see ModelDigest).
    """

    def __init__(self) -> None:
        self.ours: bytes = bytes(32)
        self._own: dict[bool, bytes] = {}
        self._seeds: dict[bool, int] = {}
        self._received: dict[bool, dict[int, dict[int, bytes]]] = {False: {}, True: {}}
        # By slot, of peers with the same history as ours: kept up to date, since each message of each member asks for them.
        self._comparable: dict[bool, dict[int, bytes]] = {False: {}, True: {}}
        self._differing: dict[bool, dict[int, bytes]] = {False: {}, True: {}}
        self._reported: set[tuple[bool, int]] = set()

    def add(self, slot: int, message: ModelDigest) -> None:
        """Record a peer's digest; the newest counts, because a repaired replica sends a new one."""
        by_seed = self._received[message.ended].setdefault(slot, {})
        by_seed.pop(message.seed, None)
        by_seed[message.seed] = message.digest
        if len(by_seed) > SEEDS_KEPT:
            del by_seed[next(iter(by_seed))]
        self._compare(slot, ended=message.ended)

    def record_own(self, slot: int | None, *, ended: bool, seed: int) -> None:
        """Set our own digest at one end of the epoch. seed: as in our ModelDigest."""
        self._own[ended] = self.ours
        self._seeds[ended] = seed
        if slot is not None:
            self._received[ended].pop(slot, None)
        received = self._received[ended].items()
        digests = {peer: by_seed[seed] for peer, by_seed in received if seed in by_seed}
        self._comparable[ended] = digests
        self._differing[ended] = {peer: theirs for peer, theirs in digests.items() if theirs != self.ours}

    def clear_own(self) -> None:
        """Our replica differs from our digests; nothing is compared until the next `record_own`."""
        self._own.clear()

    def disagreements(self) -> list[tuple[int, bytes]]:
        """Peers whose digest differs from ours at the same end, each returned once."""
        found = []
        for ended in self._own:
            for slot, theirs in self._differing[ended].items():
                if (ended, slot) not in self._reported:
                    self._reported.add((ended, slot))
                    found.append((slot, theirs))
        return found

    def matching_count(self, *, ended: bool) -> int:
        """How many sent the same digest as we at one end of the epoch, including us; 0 before we have one."""
        return 1 + len(self._comparable[ended]) - len(self._differing[ended]) if ended in self._own else 0

    def matching_and_differing(self, digest: bytes) -> tuple[frozenset[int], frozenset[int]]:
        """Peers that sent this digest at the newest end of the epoch where we sent it too, and those that sent another.

        Empty if we sent it at neither end: the peers' digests then belong to the masters after another step. Also empty if
        nobody sent the same: ours may have been wrong already.
        """
        for ended in (True, False):
            if self._own.get(ended) == digest:
                digests = self._comparable[ended]
                matching = frozenset(slot for slot, theirs in digests.items() if theirs == digest)
                return (matching, frozenset(digests) - matching) if matching else (matching, matching)

        return frozenset(), frozenset()

    def senders(self, *, ended: bool) -> KeysView[int]:
        """Slots that sent their digest at one end of the epoch."""
        return self._comparable[ended].keys()

    def outvoted(self, members: int) -> bool:
        """Whether ours cannot be the digest of most of the epoch's members (including us): more than half sent another one.

        If exactly half did, one side must give way: the one whose digest is not the smallest.
        """
        for ended, ours in self._own.items():
            others = self._differing[ended]
            if len(others) * 2 > members or (others and len(others) * 2 == members and ours > min(others.values())):
                return True

        return False

    def _compare(self, slot: int, *, ended: bool) -> None:
        """Look at what a peer has sent anew, once we have a digest of our own with which it may be compared."""
        seed = self._seeds.get(ended)
        if seed is None:
            return

        theirs = self._received[ended][slot].get(seed)
        self._comparable[ended].pop(slot, None)
        self._differing[ended].pop(slot, None)
        if theirs is not None:
            self._comparable[ended][slot] = theirs
            if theirs != self._own.get(ended):
                self._differing[ended][slot] = theirs
