"""The duties of a member in the open challenges: as a trainer, a verifier, a tie-breaker, and a witness (protocol section 7).

Each stage of a challenge asks members for *parts*, which they prepare, serve as blobs and announce with an `Opening`:

    COMMIT, SIGNS           the trainer shows the signs of its delta
    TIE_COMMIT              trainer and verifier both show these signs, so that neither can keep them from tie-breakers
    REVEAL, TIE_REVEAL      trainer and judges open the drawn chunks

Who recomputes fetches the signs, does that as work of its trainer, and commits; a verifier that waits for signs too long
complains. Who is or may be a witness fetches all that it has to attest to, and has it checked. Statements say what is known when
they are sent: nobody waits for parts, because a member that withholds its part would then set everybody's speed.

The number of duties is that of open challenges, and of openings a few for each slot, whatever peers send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from psyche_core.client.machine.actions import Action, CheckParts, FetchPart, Recompute, Send, ShowPart, StagePlace
from psyche_core.coordinator.commands import VerifierCommit
from psyche_core.coordinator.lifecycle.challenges import challenge_of, words_due
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.state import CoordinatorState, OpenChallenge, Round
from psyche_core.types import NodeIdentity
from psyche_core.verification.challenge import Challenge, Stage
from psyche_core.verification.merkle import HASH_BYTES, NO_DELTA, committed_root
from psyche_core.verification.words import Word, encode_words
from psyche_core.wire.messages import Opening, Result

MAX_OPENINGS = 32
"""Most openings kept of one slot."""

MAX_SPARE = 2
"""Other parts kept that a slot announces for one stage. They are fetched, too, and tried if the first one is junk: else
who announced junk to some witnesses first, and its part to the others, would have them say different things for ever."""

KEPT_ROUNDS = 4
"""Rounds for which an opening is of use: a stage that is attested lasts two."""

FETCH_AGAIN = 1.0
"""Seconds until a part that nobody sent is asked for again."""

PATIENCE_PART = 3
"""A verifier waits for signs for one part in this many of the longest training time; then it complains."""

ResultOf = Callable[[int, int], Result | None]
"""(round, slot) -> an accepted result that everybody applied, None where it is not known here."""

COMMITTING = (Stage.COMMIT, Stage.RECOMMIT, Stage.TIE_COMMIT)
_ATTESTED = (Stage.SIGNS, Stage.REVEAL, Stage.TIE_REVEAL)


@dataclass(slots=True)
class Part:
    """An announced part. held: its bytes are here. asked: they are being fetched; again: when they may be asked for again."""

    payload_hash: bytes
    payload_bytes: int
    held: bool = False
    asked: bool = False
    again: float = 0.0


@dataclass(slots=True)
class Duty:
    """What we know and have done about one challenge.

    result: the accepted result that is checked, None if we never saw it. follows: whether the delta that it names as the one
    before is the one that its trainer committed to last, or zero; if not, whatever the trainer shows fits nothing. step: of the
    share. since: round with which the present stage began, and opened_at when we saw that. signs: hash of the trainer's signs
    that are here. unusable: hashes of parts with other signs than the trainer's: as if nobody had shown them. shown: our part of
    the stage was asked for. started, failed: recomputing was, or has failed. root: of our gradient, 32 bytes. sent_in: seed of
    the round in which we last told the coordinator. checking: hashes of the trainer's and the judge's part that are compared, by
    judge; words: what came out.
    """

    result: Result | None
    follows: bool
    step: int
    since: int = -1
    opened_at: float = 0.0
    signs: bytes | None = None
    unusable: set[bytes] = field(default_factory=set)
    shown: bool = False
    started: bool = False
    failed: bool = False
    root: bytes | None = None
    sent_in: int | None = None
    checking: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    words: dict[int, Word] = field(default_factory=dict)

    def enter(self, since: int, now: float) -> None:
        """Another stage begins."""
        self.since, self.opened_at = since, now
        self.shown = self.started = self.failed = False
        self.root, self.sent_in = None, None
        self.checking, self.words = {}, {}


@dataclass(slots=True)
class Duties:
    """Our duties in one epoch.

    open: by round and slot of the share. parts: announced ones, by stage and giver. spare: others that were announced there.
    """

    open: dict[tuple[int, int], Duty] = field(default_factory=dict)
    parts: dict[tuple[StagePlace, int], Part] = field(default_factory=dict)
    spare: dict[tuple[StagePlace, int], list[Part]] = field(default_factory=dict)

    def follow(self, state: CoordinatorState, results: ResultOf, before: ResultOf, *, now: float) -> None:
        """Take in a state's challenges. results: of a share. before: a slot's last result before a round."""
        current = state.current_round
        stored = {(one.height, one.trainer): one for one in state.epoch.challenges}
        self.open = {place: duty for place, duty in self.open.items() if place in stored}
        if current is None:
            return

        for place, one in stored.items():
            duty = self.open.get(place)
            if duty is None:
                step = current.step - (current.height - one.height)  # within an epoch each round has its own
                result = results(*place)
                duty = self.open[place] = Duty(result, _follows(result, before(*place)), step)
            if duty.since != one.since:
                duty.enter(one.since, now)
        self.parts = {key: part for key, part in self.parts.items() if key[0].since > current.height - KEPT_ROUNDS}
        self.spare = {key: others for key, others in self.spare.items() if key in self.parts}

    def announced(self, slot: int, message: Opening) -> None:
        """A slot announces a part. Its first one of a stage counts, unless that is junk."""
        key = (StagePlace(message.about, message.trainer, message.height), slot)
        if key in self.parts:
            others = self.spare.setdefault(key, [])
            known = {part.payload_hash for part in (self.parts[key], *others)}
            if message.payload_hash not in known and len(others) < MAX_SPARE:
                others.append(Part(message.payload_hash, message.payload_bytes, held=self._holds(message.payload_hash)))
            return

        own = [known for known in self.parts if known[1] == slot]
        if len(own) >= MAX_OPENINGS:
            del self.parts[own[0]]
        self.parts[key] = Part(message.payload_hash, message.payload_bytes, held=self._holds(message.payload_hash))

    def _try_another(self, key: tuple[StagePlace, int], part: bytes) -> bool:
        """Take another part of this slot in the place of this one. Returns whether it is another one now."""
        present, others = self.parts.get(key), self.spare.get(key)
        if present is not None and present.payload_hash == part and others:
            self.parts[key] = present = others.pop(0)
        return present is not None and present.payload_hash != part

    def _holds(self, payload_hash: bytes) -> bool:
        return any(part.held for part in self._all_parts() if part.payload_hash == payload_hash)

    def _all_parts(self) -> list[Part]:
        return [*self.parts.values(), *(part for others in self.spare.values() for part in others)]

    def shown(self, place: StagePlace, slot: int, payload_hash: bytes, payload_bytes: int) -> bool:
        """Our own part is ready; False if the stage is over."""
        duty = self.open.get((place.about, place.trainer))
        if duty is None or duty.since != place.since:
            return False

        self.parts[place, slot] = Part(payload_hash, payload_bytes, held=True)
        return True

    def fetched(self, payload_hash: bytes) -> None:
        """The bytes of a part are here."""
        for key, first in list(self.parts.items()):
            others = self.spare.get(key, [])
            for part in (first, *others):
                if part.payload_hash == payload_hash:
                    part.held, part.asked = True, False
                    if part is not first and not first.held:  # which perhaps nobody has
                        self.parts[key] = part
                        self.spare[key] = [first, *(other for other in others if other is not part)]

    def missing(self, payload_hash: bytes, *, now: float) -> None:
        """Nobody sent them."""
        for part in self._all_parts():
            if part.payload_hash == payload_hash:
                part.asked, part.again = False, now + FETCH_AGAIN

    def recomputed(self, place: StagePlace, root: bytes | None) -> None:
        """Recomputing has ended. root: of our gradient, None if it failed."""
        duty = self.open.get((place.about, place.trainer))
        if duty is not None and duty.since == place.since:
            duty.root, duty.failed = root, root is None

    def unusable(self, place: StagePlace, part: bytes) -> None:
        """A part has signs that are not the trainer's."""
        duty = self.open.get((place.about, place.trainer))
        if duty is not None and duty.since == place.since:
            duty.unusable.add(part)
            duty.signs, duty.started = None, False
            for key in [key for key in self.parts if key[0] == place]:
                self._try_another(key, part)

    def checked(self, place: StagePlace, judge: int, word: Word) -> None:
        """Parts were checked."""
        duty = self.open.get((place.about, place.trainer))
        if duty is None or duty.since != place.since or judge not in duty.checking:
            return

        used = zip((place.trainer, judge), duty.checking[judge], strict=True)
        junk = {giver: part for giver, part in used if not (word.trainer_gave if giver == place.trainer else word.judge_gave)}
        replaced = [self._try_another((place, giver), part) for giver, part in junk.items()]
        if word is not Word.NOTHING and any(replaced):
            del duty.checking[judge]  # to be compared again
        else:
            duty.words[judge] = word

    # ------------------------------------------------------------------------------------ what is due

    def actions(
        self,
        state: CoordinatorState,
        slot: int,
        *,
        identity: NodeIdentity,
        clients: tuple[NodeIdentity, ...],
        tag: int,
        now: float,
        healthy: bool = True,
    ) -> list[Action]:
        """Everything that is due now but recomputing. slot: ours. tag: under which blobs are kept.

        healthy: whether we take part now. Who does not still shows what it has trained: else it would get a strike for it.
        """
        current = state.current_round
        if current is None:
            return []

        found: list[Action] = []
        for duty, challenge, _ in self._each(state):
            place = place_of(challenge)
            if slot in givers(challenge) and not duty.shown:
                duty.shown = True
                found.append(ShowPart(place, challenge, duty.step, slot, tag))
            if not healthy:
                continue

            witnessing = challenge.stage in _ATTESTED and _may_witness(state, current, challenge, slot)
            if witnessing or (_must_commit(challenge, slot) and duty.signs is None):
                found += self._fetches(duty, challenge, clients=clients, tag=tag, now=now)
            self._note_signs(duty, challenge, place)
            if witnessing:
                found += self._checks(duty, challenge, place)
            if _must_commit(challenge, slot):
                found += self._commitment(duty, challenge, state, current, identity=identity, now=now)
        return found

    def next_recompute(self, state: CoordinatorState, slot: int, *, tag: int) -> Recompute | None:
        """The share to recompute next, None if there is none for which everything is here."""
        for duty, challenge, stored in self._each(state):
            ready = duty.signs is not None and duty.result is not None and bool(stored.share)
            if _must_commit(challenge, slot) and ready and not duty.started:
                duty.started = True
                assert duty.signs is not None
                assert duty.result is not None
                return Recompute(place_of(challenge), challenge, stored.share, duty.step, duty.result, duty.signs, tag)
        return None

    def busy(self, state: CoordinatorState, slot: int, *, now: float) -> bool:
        """Whether we have something to commit to and may still do so: we are not finished with the round."""
        return any(
            _must_commit(challenge, slot) and not duty.failed and (duty.started or now - duty.opened_at <= _patience(state))
            for duty, challenge, _ in self._each(state)
        )

    def words(self, state: CoordinatorState) -> bytes:
        """What our statement of the current round says."""
        return encode_words([self._word(challenge, judge) for challenge, judge in words_due(state)])

    # ------------------------------------------------------------------------------------ parts of it

    def _each(self, state: CoordinatorState) -> Iterator[tuple[Duty, Challenge, OpenChallenge]]:
        for stored in state.epoch.challenges:
            duty = self.open.get((stored.height, stored.trainer))
            if duty is not None and duty.since == stored.since:
                yield duty, challenge_of(state, stored), stored

    def _fetches(
        self, duty: Duty, challenge: Challenge, *, clients: tuple[NodeIdentity, ...], tag: int, now: float
    ) -> list[Action]:
        found: list[Action] = []
        under_way = {part.payload_hash for part in self._all_parts() if part.asked or part.held}
        for giver in givers(challenge):
            key = (place_of(challenge), giver)
            first = self.parts.get(key)
            for part in () if first is None else (first, *self.spare.get(key, ())):
                known = part.payload_hash in duty.unusable or part.payload_hash in under_way
                if not known and now >= part.again:
                    part.asked = True
                    under_way.add(part.payload_hash)
                    found.append(FetchPart(part.payload_hash, part.payload_bytes, (clients[giver].p2p,), tag))
        return found

    def _note_signs(self, duty: Duty, challenge: Challenge, place: StagePlace) -> None:
        if challenge.stage in (Stage.COMMIT, Stage.SIGNS, Stage.TIE_COMMIT) and duty.signs is None:
            shown = [part for giver in givers(challenge) if (part := self.parts.get((place, giver))) is not None]
            held = [part for part in shown if part.held and part.payload_hash not in duty.unusable]
            duty.signs = held[0].payload_hash if held else None

    def _checks(self, duty: Duty, challenge: Challenge, place: StagePlace) -> list[Action]:
        found: list[Action] = []
        trainers = self.parts.get((place, challenge.drawn.trainer))
        for judge in challenge.judged if duty.result is not None else ():
            judges = self.parts.get((place, judge))
            complete = challenge.stage is Stage.SIGNS or (judges is not None and judges.held)
            if duty.follows and trainers is not None and trainers.held and complete and judge not in duty.checking:
                opened = b"" if judges is None or challenge.stage is Stage.SIGNS else judges.payload_hash
                duty.checking[judge] = (trainers.payload_hash, opened)
                assert duty.result is not None
                found.append(CheckParts(place, challenge, duty.step, judge, duty.result, trainers.payload_hash, opened))
        return found

    def _commitment(
        self,
        duty: Duty,
        challenge: Challenge,
        state: CoordinatorState,
        current: Round,
        *,
        identity: NodeIdentity,
        now: float,
    ) -> list[Action]:
        shown = any(key[0] == place_of(challenge) and part.payload_hash not in duty.unusable for key, part in self.parts.items())
        waited = (bool(duty.unusable) and not shown) or now - duty.opened_at > _patience(state)
        lacks = duty.signs is None and not duty.started and waited
        complains = lacks and challenge.stage is Stage.COMMIT
        if duty.sent_in == current.seed or (duty.root is None and not complains):
            return []

        duty.sent_in = current.seed
        committed = None if duty.root is None else committed_root(duty.root, identity.signer)
        place = (challenge.height, challenge.drawn.trainer)
        return [Send(VerifierCommit(identity, state.progress.epoch, current.seed, *place, committed))]

    def _word(self, challenge: Challenge, judge: int) -> Word:
        duty = self.open.get((challenge.height, challenge.drawn.trainer))
        place = place_of(challenge)
        if duty is None or duty.since != challenge.since:
            return Word.NOTHING
        if judge in duty.words:
            return duty.words[judge]

        trainers, judges = (self.parts.get((place, slot)) for slot in (challenge.drawn.trainer, judge))
        lacks_trainers = trainers is None or not trainers.held or not duty.follows
        lacks_judges = challenge.stage is not Stage.SIGNS and (judges is None or not judges.held)
        if lacks_trainers:
            return Word.BOTH_MISSING if lacks_judges else Word.TRAINER_MISSING
        return Word.JUDGE_MISSING if lacks_judges else Word.NOTHING


def place_of(challenge: Challenge) -> StagePlace:
    """The present stage of a challenge."""
    return StagePlace(challenge.height, challenge.drawn.trainer, challenge.since)


def givers(challenge: Challenge) -> tuple[int, ...]:
    """The slots that show a part in the present stage."""
    trainer, verifier = challenge.drawn.trainer, challenge.drawn.verifier
    match challenge.stage:
        case Stage.COMMIT | Stage.SIGNS:
            return (trainer,)
        case Stage.REVEAL | Stage.TIE_COMMIT:
            return (trainer, verifier)
        case Stage.TIE_REVEAL:
            return (trainer, *challenge.judges)
        case _:
            return ()


def _follows(result: Result | None, before: Result | None) -> bool:
    """Whether a result goes on from the delta that its trainer committed to last, as far as we know that one."""
    if result is None or before is None:
        return True

    return result.roots[HASH_BYTES:] in (before.roots[:HASH_BYTES], NO_DELTA)


def _must_commit(challenge: Challenge, slot: int) -> bool:
    complained = challenge.complained and challenge.stage is Stage.COMMIT
    asked = challenge.stage in COMMITTING and slot in challenge.expected
    return asked and not complained and not challenge.committed(slot)


def _may_witness(state: CoordinatorState, current: Round, challenge: Challenge, slot: int) -> bool:
    """Whether we attest to the stage, as far as that is known: its witnesses are elected when the next round begins.

    Until then everybody may be one, and fetches the parts. Who began only then would state before it has them, against an honest
    trainer.
    """
    if current.height == challenge.since + 1:
        return slot in witness_slots(state, current)

    return current.height == challenge.since


def _patience(state: CoordinatorState) -> float:
    """Seconds for which a verifier waits for signs, and others for it."""
    return state.config.max_round_train_time / PATIENCE_PART
