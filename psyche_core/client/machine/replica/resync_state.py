"""State of a resync: which masters we need, who offered them, and what was tried.

Protocol section 5. A client that needs masters says after which step (ModelWanted). Members that hold exactly those offer them
(ModelOffer). What most of them offer is fetched piece by piece, and every piece is checked against the agreed manifest.

- An offer counts once per slot and step. It is believed when more than half of the other members made it, healthy or not (in a
  cut network few are healthy, and those may be the wrong ones); after a while, when more than half of the healthy members and of
  those who offered made it.
- Before the first round of an epoch it is enough that no other offer has as many votes: only members that took part before can
  offer anything.
- A member whose masters changed by themselves knows who had the right ones. It asks those, and nobody who had others.
- A manifest that led to wrong masters is never used again. One that could not be fetched is tried again after a pause, or at
  once when another member offers it: whoever offered it before may serve nothing, or tell falsely how the model is built.
- The number of attempts per epoch is bounded.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from psyche_core.coordinator.round.witness import tolerated
from psyche_core.wire.messages import ModelOffer

MAX_ATTEMPTS = 6
MAX_EAGER_ATTEMPTS = MAX_ATTEMPTS // 2
"""Attempts of an epoch after which a new offer no longer ends a manifest's pause, so that liars cannot use up all of them."""

MAX_OFFERS_PER_SLOT = 8


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """Masters that can be fetched. slots: members that serve them. descriptions: hash and length, most frequent first."""

    step: int
    manifest_hash: bytes
    manifest_bytes: int
    slots: tuple[int, ...]
    descriptions: tuple[tuple[bytes, int], ...] = ()


@dataclass(slots=True)
class Resync:
    """The resync of one epoch. Times are those of the machine's clock, in seconds.

    Attributes:
        reason: why our masters cannot be used; None while they can.
        diverged: our masters differ from the others', so nothing may be built on them.
        contested: members offer different masters of a step that nobody signed, and so few offer each that all could be liars.
        contested_notified: people were told that the model is contested.
        wanted: the step last requested, which is where the run is; None before a request.
        asked_at: when `wanted` was requested.
        floor: the step requested first, from which on we know all rounds; None before a request.
        since: when `floor` was requested.
        first_offer_at: when we first noticed an offer of masters that we can use; None before.
        attempts: how often a fetch was begun.
        offers: the offers received, by slot, ascending by step.
        refused: hashes of manifests that led to wrong masters.
        retry_at: by hash, manifests that could not be fetched, and until when they are not tried again.
        failed_at: when a fetch last failed; failure: why, a sentence.
        last_tried: hash of the last manifest tried; None if there is none, or if its failure was dealt with.
        last_tried_slots: the members that offered it then.
        matching: slots that had the same masters as we, when ours were still right. Their offers count.
        differing: slots that had others at that time. Their offers do not count.
    """

    reason: str | None = None
    diverged: bool = False
    contested: bool = False
    contested_notified: bool = False
    wanted: int | None = None
    asked_at: float = 0.0
    floor: int | None = None
    since: float = 0.0
    first_offer_at: float | None = None
    attempts: int = 0
    offers: dict[int, list[ModelOffer]] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)
    retry_at: dict[bytes, float] = field(default_factory=dict)
    failed_at: float = 0.0
    failure: str | None = None
    last_tried: bytes | None = None
    last_tried_slots: frozenset[int] = frozenset()
    matching: frozenset[int] = frozenset()
    differing: frozenset[int] = frozenset()

    def begin(self, reason: str, *, diverged: bool) -> bool:
        """Our masters cannot be used; True if that is new. A manifest that led to wrong masters is not used again."""
        if diverged and self.last_tried is not None:
            self.refused.add(self.last_tried)
            self.last_tried = None
        news = self.reason is None or (diverged and not self.diverged)
        self.reason = reason
        self.diverged = self.diverged or diverged
        if news:
            self.wanted = self.floor = None
        return news

    def reject_last(self) -> None:
        """The masters of the last manifest are not the signed ones: it is not used again."""
        if self.last_tried is not None:
            self.refused.add(self.last_tried)
            self.last_tried = None

    def end(self) -> None:
        """Our masters can be used (again)."""
        self.reason = None
        self.diverged = self.contested = False
        self.wanted = self.floor = None
        self.matching = self.differing = frozenset()

    def register_request(self, step: int, now: float) -> bool:
        """Whether `step` was not requested yet; records that it is now."""
        if self.wanted == step:
            return False

        if self.floor is None:
            self.floor, self.since, self.first_offer_at = step, now, None
        self.wanted, self.asked_at = step, now
        return True

    def add_offer(self, slot: int, offer: ModelOffer) -> None:
        """Record an offer: the first of each slot for each step counts; the newest steps are kept."""
        known = self.offers.setdefault(slot, [])
        if all(kept.step != offer.step for kept in known):
            known.append(offer)
            known.sort(key=lambda kept: kept.step)
            del known[:-MAX_OFFERS_PER_SLOT]
            if self.attempts < MAX_EAGER_ATTEMPTS:
                self.retry_at.pop(offer.manifest_hash, None)

    def begin_attempt(self, choice: OfferedModel) -> None:
        """An attempt to fetch this begins."""
        self.attempts += 1
        self.last_tried, self.last_tried_slots = choice.manifest_hash, frozenset(choice.slots)

    def waited(self, now: float, *, seconds: float) -> bool:
        """Whether all had that long to answer, since our request and since the first answer."""
        if self.floor is None:
            return False

        if self.first_offer_at is None and any(self._is_relevant(offer) for known in self.offers.values() for offer in known):
            self.first_offer_at = now
        return self.first_offer_at is not None and now - max(self.since, self.first_offer_at) > seconds

    def fetch_failed(self, now: float, *, pause: float) -> None:
        """The last manifest could not be fetched; it may be tried again after `pause` seconds. Fetched pieces are kept.

        At once if another member has offered it meanwhile.
        """
        self.failed_at = now
        if self.last_tried is None:
            return

        offering = {slot for slot, offers in self.offers.items() if any(one.manifest_hash == self.last_tried for one in offers)}
        if offering <= self.last_tried_slots or self.attempts >= MAX_EAGER_ATTEMPTS:
            self.retry_at[self.last_tried] = now + pause

    def choose(
        self,
        healthy: frozenset[int],
        members: frozenset[int],
        *,
        now: float,
        waited: bool,
        plurality_suffices: bool,
        signed: frozenset[int] = frozenset(),
        unchecked: bool = False,
    ) -> OfferedModel | None:
        """What to fetch, None to keep waiting.

        healthy, members: the other healthy slots, and all others that were not ejected. waited: whether all have had time to
        answer. plurality_suffices: a plurality is enough. signed: steps whose masters have a signed digest, which tells at once
        whether what was fetched is right. unchecked: nothing will show it soon, as in the middle of an epoch, or others may still
        say otherwise. Where nothing was signed, more members must offer the same then than there may be liars.
        """
        if self.floor is None:
            return None

        known = [(slot, offer) for slot, offers in self.offers.items() for offer in offers if self._is_relevant(offer)]
        voters = (healthy | members.intersection(slot for slot, _ in known)) if waited else members
        voters = (voters | self.matching) - self.differing
        votes: dict[tuple[int, bytes], list[ModelOffer]] = {}
        slots: dict[tuple[int, bytes], list[int]] = {}
        for slot, offer in known:
            if slot in voters and offer.manifest_hash not in self.refused:
                votes.setdefault((offer.step, offer.manifest_hash), []).append(offer)
                slots.setdefault((offer.step, offer.manifest_hash), []).append(slot)
        ranked = sorted(votes, key=lambda key: (len(votes[key]), key[0], key[1]), reverse=True)
        if plurality_suffices:
            ranked = [key for key in ranked if now >= self.retry_at.get(key[1], now)]
        if not ranked:
            return None

        best = ranked[0]
        self.contested = False
        if now < self.retry_at.get(best[1], now):
            return None

        agreed = len(votes[best]) * 2 > len(voters)
        tied = len(ranked) > 1 and len(votes[ranked[1]]) == len(votes[best]) and ranked[1][0] == best[0]
        tied = tied and best[0] not in signed
        others = any(key != best and key[0] == best[0] for key in ranked)
        few = best[0] not in signed and len(votes[best]) <= tolerated(len(members) + 1)
        self.contested = waited and others and few
        if not agreed and (tied or not plurality_suffices):
            return None
        if few and (others or unchecked):
            return None  # as many liars as an epoch may have could offer it, and nothing would show that

        # Honest offers of one manifest have one length; the largest is a limit only.
        length = max(offer.manifest_bytes for offer in votes[best])
        counts = Counter((offer.description_hash, offer.description_bytes) for offer in votes[best] if offer.description_bytes)
        descriptions = tuple(sorted(counts, key=lambda one: (-counts[one], one)))
        return OfferedModel(best[0], best[1], length, tuple(sorted(slots[best])), descriptions)

    def votes(self, step: int, members: frozenset[int], *, ours: bytes | None) -> Counter[bytes]:
        """How many members offer each manifest of the masters after `step`. ours: the one that we offer, None without one."""
        found = Counter(
            offer.manifest_hash
            for slot in members
            for offer in self.offers.get(slot, ())
            if offer.step == step and offer.manifest_hash not in self.refused
        )
        if ours is not None:
            found[ours] += 1
        return found

    def has_untried_offers(self, now: float) -> bool:
        """Whether there are offers now that may still help."""
        known = (offer for offers in self.offers.values() for offer in offers if self._is_relevant(offer))
        return any(
            offer.manifest_hash not in self.refused and now >= self.retry_at.get(offer.manifest_hash, now) for offer in known
        )

    def _is_relevant(self, offer: ModelOffer) -> bool:
        """Whether an offer is of masters from which we can continue, and which are available: the run has not gone further."""
        return self.floor is not None and self.wanted is not None and self.floor <= offer.step <= self.wanted

    @property
    def exhausted(self) -> bool:
        """Whether this epoch's attempts are used up."""
        return self.attempts >= MAX_ATTEMPTS
