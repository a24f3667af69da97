"""Which snapshots of our masters others want, and which are offered at a time.

A snapshot is a copy of the whole model on our disk, so few are offered at a time, and a member gets few in an epoch. Asking for
one is free, so nobody may keep these places from others: a member that asks again makes room for itself first, and where all
places are taken, who has had most offers gives one up. Which masters a client needs is decided in `resync_state`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

MAX_OFFERED = 4
"""Snapshots offered at a time."""

MAX_OFFERED_TO_ONE = 3
"""Snapshots offered at a time to a member for which alone they were taken."""

MAX_REQUESTED = 4
"""Steps kept of one slot's requests, the newest ones: the run goes on, and nobody has the masters of an earlier step any more."""

FIRST_OFFERS = 8
"""Offers that a slot gets at once in an epoch."""

ROUNDS_PER_OFFER = 8
"""Rounds after which a slot may have one more."""


@dataclass(slots=True)
class SnapshotRequests:
    """What others requested from us and what we offered, in one epoch.

    requested: slot -> steps whose masters it wants, oldest request first, and when it asked. offered_at: step -> when we began to
    offer them. offers: number of offers made at each slot's request.
    """

    requested: dict[int, dict[int, float]] = field(default_factory=dict)
    offered_at: dict[int, float] = field(default_factory=dict)
    offers: Counter[int] = field(default_factory=Counter)

    def add(self, slot: int, step: int, *, now: float) -> None:
        """Record a request; of each slot the newest few count."""
        steps = self.requested.setdefault(slot, {})
        if step not in steps:
            steps[step] = now
            if len(steps) > MAX_REQUESTED:
                del steps[next(iter(steps))]

    def awaited_by(self, slots: Collection[int], step: int, *, since: float = 0.0) -> bool:
        """Whether any of these slots requested the masters after `step`, and did not have request and offer before `since`."""
        return any(
            slot in slots and step in steps and max(steps[step], self.offered_at.get(step, since)) >= since
            for slot, steps in self.requested.items()
        )

    def entitled(self, step: int, *, rounds: int) -> frozenset[int]:
        """The slots that want the masters after `step`, if these are not offered yet and a slot has offers left.

        rounds: number of rounds of the epoch so far.
        """
        if step in self.offered_at:
            return frozenset()

        most = FIRST_OFFERS + rounds // ROUNDS_PER_OFFER
        return frozenset(slot for slot, steps in self.requested.items() if step in steps and self.offers[slot] < most)


@dataclass(frozen=True, slots=True)
class SnapshotOffer:
    """A snapshot that is offered. tag: until it expires. epoch: key of the epoch in which `slots` asked for it."""

    step: int
    tag: int
    epoch: tuple[int, int]
    slots: frozenset[int]


@dataclass(slots=True)
class SnapshotOffers:
    """The snapshots that are offered now. They outlive the epoch in which they were taken."""

    offered: list[SnapshotOffer] = field(default_factory=list)

    def expire(self, before: int) -> None:
        """Forget offers with older tags."""
        self.offered = [offer for offer in self.offered if offer.tag >= before]

    def failed(self, step: int) -> None:
        """A snapshot could not be taken, or must not be offered."""
        self.offered = [offer for offer in self.offered if offer.step != step]

    def add(self, offer: SnapshotOffer, made: Counter[int]) -> tuple[int, ...] | None:
        """Take a place for a snapshot; returns the tags of those to withdraw for it, or None if there is no place.

        made: number of offers made at each slot's request in this epoch.
        """
        given_up = [known for known in self.offered if known.step == offer.step or known.tag == offer.tag]
        entitled = set(offer.slots)
        for slot in sorted(offer.slots):
            own = [known for known in self._kept(given_up) if known.epoch == offer.epoch and slot in known.slots]
            if len(own) < MAX_OFFERED_TO_ONE:
                continue

            alone = [known for known in own if known.slots <= offer.slots]
            if alone:
                given_up.append(alone[0])
            else:
                entitled.discard(slot)
        if not entitled:
            return None

        had = min(made[slot] for slot in entitled)
        while len(kept := self._kept(given_up)) >= MAX_OFFERED:
            past = [known for known in kept if known.epoch != offer.epoch]
            worst = past[0] if past else max(kept, key=lambda known: min(made[slot] for slot in known.slots))
            if not past and min(made[slot] for slot in worst.slots) <= had:
                return None

            given_up.append(worst)
        self.offered = [*self._kept(given_up), offer]
        return tuple(sorted({known.tag for known in given_up} - {offer.tag}))

    def _kept(self, given_up: list[SnapshotOffer]) -> list[SnapshotOffer]:
        return [known for known in self.offered if known not in given_up]
