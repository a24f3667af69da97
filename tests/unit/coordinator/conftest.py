"""A run played in virtual time, with a ledger of every sample, for all tests of the coordinator."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from psyche_core.config.run_config import CoordinatorConfig, ModelConfig
from psyche_core.coordinator import apply, new_state
from psyche_core.coordinator.commands import (
    ChallengeClosed,
    Command,
    EpochDigest,
    Equivocation,
    Event,
    Join,
    RewardsShared,
    RoundSettled,
    ShareVoided,
    SignedResult,
    Tick,
    VerifierCommit,
    WarmupWitness,
    WentBack,
    Withdraw,
    Witness,
)
from psyche_core.coordinator.history import held_digest, signed_digests
from psyche_core.coordinator.lifecycle.challenges import words_due
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.round.bloom_filter import BroadcastBloom
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.round.merkle_root import merkle_root
from psyche_core.coordinator.round.shuffle import Lcg
from psyche_core.coordinator.state import NO_DIGEST, CoordinatorState, EpochEnd
from psyche_core.errors import CoordinatorError
from psyche_core.types import BatchId, NodeIdentity, RunState, WitnessStatement, bitmap
from psyche_core.verification.challenge import Challenge
from psyche_core.verification.words import Word, encode_words
from psyche_core.wire.messages import commitment_hash, sign_commitment, sign_join
from psyche_core.wire.signing import SecretKey
from tests.unit.coordinator.run_checks import check, end_without_digest

CONFIG = {
    "warmup_time": 20,
    "cooldown_time": 5,
    "max_round_train_time": 30,
    "round_witness_time": 10,
    "epoch_time": 100_000,
    "global_batch_size_warmup_tokens": 0,
    "total_steps": 1000,
    "init_min_clients": 1,
    "min_clients": 1,
    "witness_nodes": 0,
    "global_batch_size_start": 8,
    "global_batch_size_end": 8,
    "verification_percent": 0,
    "waiting_for_members_extra_time": 3,
}

MODEL = {
    "LLM": {
        "max_seq_len": 64,
        "cold_start_warmup_steps": 0,
        "architecture": "HfLlama",
        "checkpoint": {"Hub": {"repo_id": "owner/model"}},
        "data_type": "Pretraining",
        "data_location": {"Server": "127.0.0.1:20001"},
        "lr_schedule": {"Constant": {"base_lr": 0.001, "warmup_init_lr": 0.0, "warmup_steps": 2}},
        "optimizer": {
            "Distro": {"compression_decay": 0.99, "compression_topk": 4, "compression_chunk": 64, "quantize_1bit": True}
        },
    }
}


INSTANCE = hashlib.sha256(b"test-run").digest()


@cache
def secret(number: int) -> SecretKey:
    """The key of the n-th member."""
    return SecretKey(hashlib.sha256(f"member {number}".encode()).digest())


def member(number: int) -> NodeIdentity:
    """The identity of the n-th member."""
    return NodeIdentity(signer=secret(number).public, p2p=secret(number).public)


def joining(identity: NodeIdentity) -> Join:
    """A member's request to join, proved with the transport key in its identity."""
    key = next(secret(number) for number in range(1000) if secret(number).public == identity.p2p)
    return Join(identity, sign_join(key, INSTANCE, identity.signer))


def number_of(identity: NodeIdentity) -> int:
    """Which member this is."""
    return next(number for number in range(1000) if member(number) == identity)


def make_state(*, now: int = 1000, model: dict[str, Any] | None = None, **config: Any) -> CoordinatorState:
    """A run waiting for members, with the given keys of [config] changed."""
    table = CoordinatorConfig.model_validate({**CONFIG, **config})
    llm = {**MODEL["LLM"], **(model or {})}
    return new_state("test-run", table, ModelConfig.model_validate({"LLM": llm}), now=now, instance=INSTANCE)


def passed(_witness: int, _challenge: Challenge, _judge: int) -> Word:
    """What a witness says of a challenged share by default."""
    return Word.PASSED


class Play:
    """A run in virtual time. Every accepted command is followed by a check of what must always hold.

    say: what a witness says about a judge of an opened challenge.
    """

    def __init__(self, state: CoordinatorState) -> None:
        self.state = state
        self.now = state.since
        self.events: list[Event] = []
        self.applied: list[BatchId] = []
        self.accepted: list[tuple[int, BatchId]] = []
        self.paid: dict[bytes, tuple[int, int]] = {}
        self.lost: set[tuple[int, int, int]] = set()
        self.applied_by: dict[EpochEnd, list[BatchId]] = {end_without_digest(state.stored): []}
        self._seeds = Lcg(2026)
        self.say: Callable[[int, Challenge, int], Word] = passed

    def do(self, command: Command, *, after: int = 0) -> list[Event]:
        """Apply a command `after` seconds later; the events it caused."""
        self.now += after
        before = self.state
        self.state, events = apply(before, command, self.now, self._seeds.next_u64())
        for event in events:
            if isinstance(event, RoundSettled):
                decided = self.state.round_at(event.height)
                assert decided is not None
                given = shares(self.state, decided)
                assert set(given) == {*event.accepted, *event.refused}
                taken = [batch for slot in event.accepted for batch in given[slot]]
                self.applied += taken
                self.accepted += [(event.step, batch) for batch in taken]
            if isinstance(event, ShareVoided):
                judged = self.state.round_at(event.height)
                assert judged is not None
                key = (self.state.progress.epoch, event.height, event.slot)
                if key not in self.lost:  # what is lost already was taken from the applied ones then
                    for batch in shares(self.state, judged)[event.slot]:
                        self.applied.remove(batch)
                assert event.requeued or key not in self.lost, "a share is lost twice"
                (self.lost.discard if event.requeued else self.lost.add)(key)
            if isinstance(event, ChallengeClosed) and event.requeued:
                place = (event.height, event.trainer)
                (share,) = [one.share for one in before.epoch.challenges if (one.height, one.trainer) == place]
                for batch in share:
                    self.applied.remove(batch)
            if isinstance(event, RewardsShared):
                self.note_paid(before, event)
            if isinstance(event, WentBack):
                held = next((end for end in before.ends if end.step == event.to_step), None)
                target = before.stored if event.from_checkpoint else held
                if target is not None:
                    self.applied = list(self.applied_by[end_without_digest(target)])
                else:  # within the last rounds, whose statements sign their steps
                    assert event.to_step in signed_digests(before)
                    self.applied = self.applied_until(event.to_step)
                self.accepted = [(step, batch) for step, batch in self.accepted if step <= event.to_step]
        self.note_ends(before)
        self.events += events
        check(self, before)
        return list(events)

    def note_ends(self, before: CoordinatorState) -> None:
        """Remember what was applied by the places in the history to which the run can go back."""
        known = {end_without_digest(end) for end in (before.stored, *before.ends)}
        for end in (self.state.stored, *self.state.ends):
            if end_without_digest(end) not in known:
                self.applied_by[end_without_digest(end)] = self.applied_until(end.step)

    def applied_until(self, step: int) -> list[BatchId]:
        """What is applied by now, without what was accepted of later steps."""
        later = {batch for at, batch in self.accepted if at > step}
        return [batch for batch in self.applied if batch not in later]

    def note_paid(self, before: CoordinatorState, event: RewardsShared) -> None:
        """Keep our own books of what was paid."""
        assert before.run_state is RunState.Cooldown
        assert sum(points for _, points in event.earned) <= before.epoch.rates.earning_total_shared
        earned, slashed = dict(event.earned), dict(event.slashed)
        assert not earned.keys() & slashed.keys()
        for slot, client in enumerate(before.epoch.clients):
            old = self.paid.get(client.id.signer, (0, 0))
            if slot in earned or slot in slashed:
                new = (old[0] + earned.get(slot, 0), old[1] + slashed.get(slot, 0))
                self.paid[client.id.signer] = (min(new[0], 2**64 - 1), min(new[1], 2**64 - 1))

    def refused(self, command: Command, name: str) -> None:
        """Apply a command that must be refused with this name and change nothing."""
        before = self.state
        with pytest.raises(CoordinatorError) as caught:
            apply(before, command, self.now, 1)
        assert caught.value.name == name, caught.value
        assert self.state is before

    def tick(self, *, after: int = 0) -> list[Event]:
        return self.do(Tick(), after=after)

    def joining(self, identity: NodeIdentity) -> Join:
        """A member's request to join."""
        return joining(identity)

    def join(self, *numbers: int) -> None:
        for number in numbers:
            self.do(joining(member(number)))

    def start(self, clients: int) -> Play:
        """Join members 0..clients-1 and play up to round 0."""
        self.join(*range(clients))
        return self.warm_up()

    def warm_up(self) -> Play:
        """From WaitingForMembers to round 0, everybody ready."""
        self.tick(after=self.state.config.waiting_for_members_extra_time)
        assert self.phase == "Warmup"
        for slot in self.state.healthy_slots:
            self.do(self.ready(slot))
        assert self.phase == "RoundTrain"
        return self

    def ready(self, slot: int, *, digest: bytes | None = None) -> WarmupWitness:
        """Slot `slot` has loaded a model, by default the one that a quorum signed where one did."""
        sender = self.state.epoch.clients[slot].id
        start = self.state.epoch.start_step - 1
        signed = next((end.digest for end in self.state.ends if end.step == start), b"\1" * 32)
        digest = signed if digest is None else digest
        return WarmupWitness(sender=sender, epoch=self.state.progress.epoch, index=slot, model_digest=digest)

    def lacking(self, slot: int, *, held: bytes = NO_DIGEST) -> WarmupWitness:
        """Slot `slot` cannot get the model, and holds another one or none."""
        return self.ready(slot, digest=held if held == NO_DIGEST else held_digest(held))

    def end_digest(self, slot: int, digest: bytes) -> EpochDigest:
        """Slot `slot` says how the epoch that ended, or ends now, left its masters."""
        epoch = self.state.progress.epoch - (0 if self.phase == "Cooldown" else 1)
        return EpochDigest(self.state.epoch.clients[slot].id, epoch=epoch, index=slot, digest=digest)

    def sign_end(self, digest: bytes) -> list[Event]:
        """Every healthy slot says so."""
        return [event for slot in self.state.healthy_slots for event in self.do(self.end_digest(slot, digest))]

    def play_signed_epoch(self, digest: bytes) -> None:
        """From round 0 to WaitingForMembers, the end signed by everybody."""
        self.play_epoch()
        self.sign_end(digest)
        self.cool_down()

    @property
    def phase(self) -> str:
        return self.state.run_state.name

    @property
    def round(self) -> Any:
        assert self.state.current_round is not None
        return self.state.current_round

    @property
    def elected(self) -> tuple[int, ...]:
        return witness_slots(self.state, self.round)

    def shares(self, height: int) -> dict[int, tuple[BatchId, ...]]:
        found = self.state.round_at(height)
        return dict(shares(self.state, found)) if found is not None else {}

    def statement(self, slot: int, *, seen: Iterable[int] | None = None, **changes: Any) -> Witness:
        """The statement of a witness that saw these slots (default: all that had a share in the round before)."""
        slots = tuple(self.shares(self.round.height - 1)) if seen is None else tuple(seen)
        bloom = BroadcastBloom(self.round.seed)
        for seen_slot in slots:
            bloom.add(commitment(seen_slot, self.round.height - 1))
        fields = WitnessStatement(
            epoch=self.state.progress.epoch,
            height=self.round.height,
            index=slot,
            participants=bitmap(slots),
            broadcast_bloom=bloom.to_bytes(),
            merkle_root=merkle_root(sorted(commitment(seen_slot, self.round.height - 1) for seen_slot in slots)),
            model_digest=bytes(32),
            words=encode_words([self.say(slot, *due) for due in words_due(self.state)]),
        )
        return Witness(sender=self.state.epoch.clients[slot].id, statement=replace(fields, **changes))

    def play_round(self, *, seen: Iterable[int] | None = None, digest: bytes = bytes(32)) -> list[Event]:
        """All healthy elected witnesses of the current round state, a second later and all at once; the events of that."""
        height, events = self.round.height, []
        self.now += 1
        stated = {statement.index for statement in self.round.statements}
        for slot in sorted(set(self.elected) & set(self.state.healthy_slots) - stated):
            if self.state.run_state not in (RunState.RoundTrain, RunState.RoundWitness) or self.round.height != height:
                break
            events += self.do(self.statement(slot, seen=seen, model_digest=digest))
        return events

    def commit(self, slot: int, height: int, trainer: int, commitment: bytes | None = b"r" * 32) -> VerifierCommit:
        """What this slot commits to about the share of a trainer; None is a complaint."""
        sender = self.state.epoch.clients[slot].id
        return VerifierCommit(sender, self.state.progress.epoch, self.round.seed, height, trainer, commitment)

    def signed(self, slot: int, height: int, payload: str, **changes: Any) -> SignedResult:
        """What this slot signs when it announces a payload for its share of a round."""
        judged = self.state.round_at(height)
        client = self.state.epoch.clients[slot].id
        payload_hash = hashlib.sha256(payload.encode()).digest()
        covered = {
            "epoch": self.state.progress.epoch,
            "step": judged.step if judged is not None else 0,
            "seed": judged.seed if judged is not None else 0,
            "share": self.shares(height).get(slot, ()),
            "trainer": client.signer,
            "payload_hash": payload_hash,
        }
        run = changes.pop("run", self.state.instance)
        key = secret(changes.pop("key", number_of(client)))
        commitment = commitment_hash(run, **{**covered, **changes})
        return SignedResult(payload_hash, sign_commitment(key, run, commitment))

    def evidence(self, slot: int, height: int, *, by: int) -> Equivocation:
        """Proof of slot `by` that another one signed two results for its share of a round."""
        return Equivocation(
            sender=self.state.epoch.clients[by].id,
            epoch=self.state.progress.epoch,
            height=height,
            index=slot,
            first=self.signed(slot, height, "one"),
            second=self.signed(slot, height, "another"),
        )

    def come_back(self, slot: int) -> list[Event]:
        """Join again and say ready, as a client that left or was dropped does."""
        self.do(joining(self.state.epoch.clients[slot].id))
        return self.do(self.ready(slot))

    def play_epoch(self) -> list[Event]:
        """From a round to the cooldown, with time passing where witnesses are missing."""
        events: list[Event] = []
        while self.phase != "Cooldown":
            events += self.play_round()
            if self.phase == "RoundTrain":
                events += self.tick(after=self.state.config.max_round_train_time)
            elif self.phase == "RoundWitness":
                events += self.tick(after=self.state.config.round_witness_time + 1)
        return events

    def withdraw(self, slot: int) -> list[Event]:
        return self.do(Withdraw(self.state.epoch.clients[slot].id))

    def cool_down(self) -> list[Event]:
        assert self.phase == "Cooldown"
        return self.tick(after=self.state.config.cooldown_time)

    def seen_events(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def commitment(slot: int, height: int) -> bytes:
    """What a slot committed to in a round."""
    return hashlib.sha256(f"{slot} {height}".encode()).digest()


@pytest.fixture(scope="session")
def started() -> Callable[..., Play]:
    """`play` for fixtures that outlive a test."""
    return lambda clients, **config: Play(make_state(**config)).start(clients)


@pytest.fixture(scope="session")
def unstarted() -> Callable[..., Play]:
    """A run that waits for members, for fixtures that outlive a test."""
    return lambda **config: Play(make_state(**config))


@pytest.fixture
def play() -> Callable[..., Play]:
    """Make a run: `play(clients, **config)`; with clients it is in round 0, with 0 it waits for members."""

    def make(clients: int = 0, **config: Any) -> Play:
        made = Play(make_state(**config))
        return made.start(clients) if clients else made

    return make


@pytest.fixture
def members() -> Callable[[int], NodeIdentity]:
    """The identity of the n-th member."""
    return member


@pytest.fixture
def secrets() -> Callable[[int], SecretKey]:
    """The key of the n-th member."""
    return secret


@pytest.fixture
def joins() -> Callable[[NodeIdentity], Join]:
    """A member's request to join."""
    return joining


@pytest.fixture
def commitments() -> Callable[[int, int], bytes]:
    """The commitment of a slot in a round, as the statements of `Play` carry it."""
    return commitment


@pytest.fixture(scope="session")
def bare_state() -> CoordinatorState:
    """A run nobody has joined, for property tests (which take no function-scoped fixture)."""
    return make_state()
