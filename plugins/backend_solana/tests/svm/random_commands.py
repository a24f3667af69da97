"""Random commands of honest, late, mistaken and hostile senders, for a coordinator in any state.

Most commands are what somebody in this state would send next, so that runs get through warmups, rounds, endings, pauses and
returns; the rest are anything at all. Trainers sign several results often enough, and witnesses see different ones, for every
verdict about them to be met. Which commands are allowed is decided by the coordinator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from plugins.backend_solana.tests.svm import runs
from plugins.backend_solana.tests.svm.coordinator_svm import NO_PROOF, member, transport_key
from psyche_core.config.run_config import CoordinatorConfig
from psyche_core.coordinator import commands
from psyche_core.coordinator.checkpoints import checkpointer_slot
from psyche_core.coordinator.commands import Command, SignedResult
from psyche_core.coordinator.history import held_digest, signed_digests
from psyche_core.coordinator.lifecycle.challenges import challenge_of, verification_of, words_due
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.round.bloom_filter import BroadcastBloom
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.round.witness import accepted_slots
from psyche_core.coordinator.state import CoordinatorState, Progress, Round
from psyche_core.types import ClientState, NodeIdentity, RunState, WitnessStatement, bitmap
from psyche_core.verification.challenge import Stage
from psyche_core.verification.words import Word, encode_words
from psyche_core.wire.messages import commitment_hash, sign_commitment, sign_join

PLAYING = (RunState.RoundTrain, RunState.RoundWitness)


class RandomCommands:
    """Draws commands. members: how many clients there are, numbered from 0; one more is a stranger. config: keys not drawn."""

    def __init__(self, random: Random, members: int, **config: Any) -> None:
        self.random = random
        self.members = members
        listed = tuple(
            member(number).signer.hex() for number in random.sample(range(members), random.choice([0, 0, 1, 2]) % (members + 1))
        )
        self.config = runs.config(random, members, listed, **config)
        self.model = runs.model(random)
        numbered = [transport_key(number, generation) for number in range(members + 1) for generation in (0, 1)]
        self._keys = {key.public: key for key in numbered}
        self.divided = random.choice([0.0, 0.0, 0.3])
        self.blind = random.choice([0.0, 0.1, 0.4])
        self.forgetful = random.choice([0.0, 0.0, 0.05, 0.8])
        self.silent = random.choice([-1, -1, 0, 1])
        self.diligent = self.config.verification_percent > 0 and random.random() < 0.6
        if self.diligent:  # so that challenges get to their last stages
            self.blind, self.silent = 0.0, -1
        self.doubtful = random.choice([0.0, 0.0, 0.1, 0.5])
        self.complaining = random.choice([0.0, 0.1, 0.5])
        self.restless = random.choice([0.0, 0.0, 0.0, 0.6])

    def chance(self, probability: float) -> bool:
        """True this often."""
        return self.random.random() < probability

    def anybody(self) -> NodeIdentity:
        """Some client, a stranger at times; its transport key is another one now and then."""
        return member(self.random.randint(0, self.members), int(self.chance(0.05)))

    def next(self, state: CoordinatorState) -> Command:
        """A command for this state."""
        return self.anything(state) if self.chance(0.15) else self.sensible(state)

    def seconds(self, state: CoordinatorState, command: Command) -> int:
        """How long after the last one it comes."""
        if not isinstance(command, commands.Tick):
            return self.random.choice([0, 0, 0, 0, 1, 2])

        config = state.config
        waits = {
            RunState.WaitingForMembers: config.waiting_for_members_extra_time,
            RunState.Warmup: config.warmup_time,
            RunState.RoundTrain: config.max_round_train_time,
            RunState.RoundWitness: config.round_witness_time + 1,
            RunState.Cooldown: config.cooldown_time,
        }
        wait = waits.get(state.run_state, 1)
        return self.random.choice([0, 1, max(wait - 1, 0), wait, wait, wait + 1])

    def sensible(self, state: CoordinatorState) -> Command:
        """What somebody would send now."""
        match state.run_state:
            case RunState.Uninitialized | RunState.Paused:
                resume = commands.Resume(from_checkpoint=state.model_lost and self.chance(0.5))
                return self.random.choice([resume, resume, self.join(state), self.digest(state), self.update(state)])
            case RunState.WaitingForMembers:
                enough = state.minimum_since is not None
                if state.current_round is not None and self.chance(0.15):
                    return self.digest(state)
                return commands.Tick() if enough and self.chance(0.6) else self.join(state)
            case RunState.Warmup:
                return self.warming_up(state)
            case RunState.RoundTrain | RunState.RoundWitness:
                return self.playing(state)
            case RunState.Cooldown:
                others = (self.checkpoint(state), self.evidence(state), self.join(state), *[self.digest(state)] * self.members)
                return commands.Tick() if self.chance(0.3) else self.random.choice(others)
        return self.anything(state)

    def warming_up(self, state: CoordinatorState) -> Command:
        """In warmup."""
        late = [slot for slot in state.healthy_slots if slot not in state.epoch.ready]
        if late and self.chance(0.85):
            return self.ready(state, self.random.choice(late))
        if state.epoch.ready and self.chance(0.2):
            return self.give_up(state, self.random.choice(state.epoch.ready))
        return self.random.choice([commands.Tick(), self.come_back(state), self.join(state), self.leave(state)])

    def playing(self, state: CoordinatorState) -> Command:
        """While rounds are played."""
        if self.chance(self.restless):
            return self.leave_and_return(state)
        if state.epoch.challenges and self.chance(0.4):
            return self.commit(state)
        if self.diligent and self.chance(0.85):
            return self.next_duty(state)
        luck = self.random.random()
        if luck < 0.70:
            return self.statement(state)
        if luck < 0.78:
            return commands.Tick()
        if luck < 0.84:
            return self.evidence(state)
        if luck < 0.90:
            return self.health_check(state)
        if luck < 0.92:
            return self.leave(state)
        if luck < 0.925:
            return commands.Pause()
        return self.come_back(state)

    def anything(self, state: CoordinatorState) -> Command:
        """Any command, sensible in this state or not."""
        draws: list[Callable[[], Command]] = [
            lambda: commands.Tick(),
            lambda: self.proved(state, self.anybody()),
            lambda: self.odd_join(state),
            lambda: self.digest(state),
            lambda: self.odd_digest(state),
            lambda: commands.Withdraw(self.anybody()),
            lambda: self.odd_ready(state),
            lambda: self.odd_statement(state),
            lambda: commands.HealthCheck(
                self.anybody(), tuple(self.random.choices([0, 1, 2, 9, 255, 256, 300], k=self.random.randint(0, 3)))
            ),
            lambda: self.health_check(state),
            lambda: self.checkpoint(state),
            lambda: self.odd_checkpoint(),
            lambda: self.evidence(state),
            lambda: self.odd_commit(state),
            lambda: self.come_back(state),
            lambda: self.update(state),
            lambda: self.rates(),
            lambda: self.settle(state),
            lambda: commands.Pause() if self.chance(0.4) else commands.Tick(),
            lambda: commands.Resume(from_checkpoint=self.chance(0.5)),
        ]
        return self.random.choice(draws)()

    def join(self, state: CoordinatorState) -> Command:
        """Somebody who is not waiting yet."""
        waiting = {pending.signer for pending in state.pending}
        absent = [number for number in range(self.members) if member(number).signer not in waiting]
        return self.proved(state, member(self.random.choice(absent), int(self.chance(0.03))) if absent else self.anybody())

    def proved(self, state: CoordinatorState, sender: NodeIdentity) -> Command:
        """A join with its proof; now and then with one that proves nothing."""
        signer = sender.signer if not self.chance(0.02) else bytes(32)
        proof = sign_join(self._keys[sender.p2p], state.instance, signer)
        return commands.Join(sender, NO_PROOF if self.chance(0.02) else proof)

    def odd_join(self, state: CoordinatorState) -> Command:
        """With the transport key of somebody else, who signs for it."""
        sender, other = self.anybody(), self.anybody()
        return self.proved(state, NodeIdentity(sender.signer, other.p2p))

    def leave(self, state: CoordinatorState) -> Command:
        """Somebody of the epoch."""
        return commands.Withdraw(self.random.choice(state.epoch.clients).id if state.epoch.clients else self.anybody())

    def ready(self, state: CoordinatorState, slot: int) -> Command:
        """A slot's warmup witness: of the model that the epoch starts with, of an older one, or of none."""
        wanted = next((end.digest for end in state.ends if end.step == state.epoch.start_step - 1), bytes(31) + b"m")
        ends = sorted(signed_digests(state).values())
        digests = [bytes(32), b"another model " + bytes(18), *ends, *map(held_digest, ends)]
        digest = self.random.choice(digests) if self.chance(self.forgetful) else wanted
        return commands.WarmupWitness(state.epoch.clients[slot].id, state.progress.epoch, slot, digest)

    def give_up(self, state: CoordinatorState, slot: int) -> Command:
        """A slot that said that it is ready says that it lacks the model, and perhaps which older one it holds."""
        held = [bytes(32), *map(held_digest, sorted(signed_digests(state).values()))]
        return commands.WarmupWitness(state.epoch.clients[slot].id, state.progress.epoch, slot, self.random.choice(held))

    def digest(self, state: CoordinatorState) -> Command:
        """Somebody's digest of the epoch that ended."""
        if not state.epoch.clients:
            return self.join(state)
        slot = self.random.randrange(len(state.epoch.clients))
        ended = state.progress.epoch - (state.run_state is not RunState.Cooldown)
        digest = hashlib.sha256(b"%d %d" % (state.progress.step, int(self.chance(0.1)))).digest()
        return commands.EpochDigest(state.epoch.clients[slot].id, max(ended, 0), slot, digest)

    def odd_digest(self, state: CoordinatorState) -> Command:
        """A digest of anybody about any epoch."""
        epoch = max(state.progress.epoch - self.random.choice([0, 1, 2]), 0)
        digest = self.random.choice([bytes(32), b"d" * 32])
        return commands.EpochDigest(self.anybody(), epoch, self.random.randint(0, self.members), digest)

    def odd_ready(self, state: CoordinatorState) -> Command:
        """A warmup witness of anybody about any slot."""
        epoch = state.progress.epoch + self.random.choice([0, 0, 0, 1])
        return commands.WarmupWitness(self.anybody(), epoch, self.random.randint(0, self.members), bytes(32))

    def come_back(self, state: CoordinatorState) -> Command:
        """A client that left joins again, or says that it is ready."""
        left = [slot for slot, client in enumerate(state.epoch.clients) if client.state is not ClientState.Healthy]
        if not left:
            return self.join(state)
        slot = self.random.choice(left)
        client = state.epoch.clients[slot]
        waiting = client.id in state.pending
        return self.ready(state, slot) if waiting or self.chance(0.1) else self.proved(state, client.id)

    def leave_and_return(self, state: CoordinatorState) -> Command:
        """The last slot's client leaves, or comes back, as often as it may and once more."""
        slot = len(state.epoch.clients) - 1
        client = state.epoch.clients[slot]
        if client.state is ClientState.Healthy:
            return commands.Withdraw(client.id)
        return self.ready(state, slot) if client.id in state.pending else self.proved(state, client.id)

    def statement(self, state: CoordinatorState) -> Command:
        """An elected witness's, of one who has not stated yet."""
        current = state.current_round
        if current is None:
            return commands.Tick()
        stated = {statement.index for statement in current.statements}
        awaited = [slot for slot in witness_slots(state, current) if slot not in stated and slot in state.healthy_slots]
        awaited = [slot for slot in awaited if slot != self.silent or self.chance(0.2)]
        if not awaited:
            return commands.Tick() if self.chance(0.7) else self.come_back(state)
        slot = self.random.choice(awaited)
        before = state.round_at(current.height - 1)
        given = shares(state, before) if before is not None else {}
        seen = [other for other in given if not self.chance(self.blind)]
        if self.chance(0.01):
            return commands.Witness(state.epoch.clients[slot].id, self.boastful(state, current, slot))
        return commands.Witness(state.epoch.clients[slot].id, self.stated(state, current, slot, seen=seen, about=before))

    def boastful(self, state: CoordinatorState, current: Round, slot: int) -> WitnessStatement:
        """A statement that claims the results of all slots, also of those that had no share."""
        return replace(self.stated(state, current, slot, seen=[], about=None), participants=b"\xff" * 32)

    def stated(
        self, state: CoordinatorState, current: Round, slot: int, *, seen: list[int], about: Round | None
    ) -> WitnessStatement:
        """A statement with the commitments of those seen in its filter."""
        bloom = BroadcastBloom(current.seed)
        for other in seen if about is not None else ():
            version = 0 if not self.chance(self.divided) else self.random.choice([0, 1, 1, 9])
            assert about is not None
            bloom.add(self.commitment(state, about, other, payload(about, other, version)))
        digest = hashlib.sha256(b"%d" % (slot if self.chance(self.blind) else current.step)).digest()
        return WitnessStatement(
            epoch=state.progress.epoch,
            height=current.height,
            index=slot,
            participants=bitmap(seen),
            broadcast_bloom=bloom.to_bytes(),
            merkle_root=bytes([current.height % 256]) * 32,
            model_digest=digest,
            words=self.words(state),
        )

    def words(self, state: CoordinatorState) -> bytes:
        """Words of the statements of this round: mostly what all witnesses say of a challenge, of chance at times."""
        said = []
        for challenge, judge in words_due(state):
            alike = Random(f"{challenge.height} {challenge.drawn} {challenge.stage} {judge} {self.members}")
            likely = [Word.PASSED, Word.HIGH, Word.FAILED, Word.FAILED, Word.FAILED, Word.TRAINER_MISSING, Word.JUDGE_MISSING]
            word = alike.choice(likely)
            if challenge.stage is Stage.SIGNS:
                word = Word.PASSED if alike.random() < 0.7 else Word.TRAINER_MISSING
            said.append(self.random.choice(list(Word)) if self.chance(self.doubtful) else word)
        words = encode_words(said)
        wrong = (b"", b"\x11", words + b"\0", bytes(192), b"\xff" * len(words))
        return self.random.choice(wrong) if self.chance(0.01) else words

    def next_duty(self, state: CoordinatorState) -> Command:
        """What is still to be committed to, else a statement."""
        current = state.current_round
        for challenge in verification_of(state).open:
            slot = next((slot for slot in challenge.expected if not challenge.committed(slot)), None)
            awaited = challenge.stage in (Stage.COMMIT, Stage.RECOMMIT, Stage.TIE_COMMIT) and not challenge.complained
            if current is not None and awaited and slot in state.healthy_slots and not self.chance(0.05):
                place = (challenge.height, challenge.drawn.trainer)
                root = hashlib.sha256(b"root %d" % slot).digest()
                return commands.VerifierCommit(state.epoch.clients[slot].id, state.progress.epoch, current.seed, *place, root)
        return self.statement(state)

    def commit(self, state: CoordinatorState) -> Command:
        """What a slot that is expected to commit sends, or a complaint."""
        current, challenge = state.current_round, self.random.choice(state.epoch.challenges)
        expected = challenge_of(state, challenge).expected
        if current is None or not expected:
            return commands.Tick()
        slot = self.random.choice(expected)
        if slot == self.silent and self.chance(0.8):
            return commands.Tick()
        root = None if self.chance(self.complaining) else hashlib.sha256(b"root %d" % slot).digest()
        sender = state.epoch.clients[slot].id
        place = (challenge.height, challenge.trainer)
        return commands.VerifierCommit(sender, state.progress.epoch, current.seed, *place, root)

    def odd_commit(self, state: CoordinatorState) -> Command:
        """A commitment about anything."""
        current = state.current_round
        seed = current.seed if current is not None and self.chance(0.8) else self.random.getrandbits(64)
        height = self.random.choice([one.height for one in state.epoch.challenges] or [self.random.randint(0, 9)])
        trainer = self.random.choice([one.trainer for one in state.epoch.challenges] or [self.random.randint(0, self.members)])
        root = self.random.choice([None, b"r" * 32])
        epoch = state.progress.epoch + int(self.chance(0.1))
        return commands.VerifierCommit(self.anybody(), epoch, seed, height, trainer, root)

    def odd_statement(self, state: CoordinatorState) -> Command:
        """A statement that is likely to be wrong."""
        current = state.current_round
        height = (current.height if current else 0) + self.random.choice([0, 0, 0, 1, -1])
        slots = self.random.choices(range(self.members + 2), k=self.random.choice([0, 1]))
        epoch = state.progress.epoch + self.random.choice([0, 0, 0, 1])
        index = self.random.randint(0, self.members)
        sender = state.epoch.clients[index].id if index < len(state.epoch.clients) and self.chance(0.7) else self.anybody()
        statement = WitnessStatement(epoch, max(height, 0), index, bitmap(slots), bytes(320), bytes(32), bytes(32))
        return commands.Witness(sender, statement)

    def health_check(self, state: CoordinatorState) -> Command:
        """A report of who was not seen, by a witness of the last round if there is one."""
        current = state.current_round
        judged = state.round_at(current.height - 2) if current is not None else None
        judging = state.round_at(current.height - 1) if current is not None else None
        if judged is None or judging is None:
            return commands.HealthCheck(self.anybody(), (0,))
        unseen = sorted(shares(state, judged).keys() - accepted_slots(state, judged))
        slots = tuple(slot for slot in unseen if self.chance(0.8)) or tuple(self.random.choices(range(self.members), k=1))
        reporter = self.random.choice(witness_slots(state, judging))
        return commands.HealthCheck(state.epoch.clients[reporter].id, slots)

    def evidence(self, state: CoordinatorState) -> Command:
        """Two results of a slot, true or forged."""
        stored = state.epoch.rounds
        healthy = state.healthy_slots
        sender = state.epoch.clients[self.random.choice(healthy)].id if healthy and self.chance(0.9) else self.anybody()
        if not stored:
            return commands.Equivocation(sender, 0, 0, 0, SignedResult(bytes(32), bytes(64)), SignedResult(b"\1" * 32, bytes(64)))
        judged = self.random.choice(stored)
        given = [slot for slot in shares(state, judged) if slot < len(state.epoch.clients)]
        index = self.random.choice(given) if given and self.chance(0.9) else self.random.randint(0, self.members)
        first, second = self.random.choice([(0, 1), (0, 1), (0, 2), (1, 2), (0, 0), (0, 9), (1, 9)])
        results = [self.signed(state, judged, index, version) for version in (first, second)]
        epoch = state.progress.epoch + int(self.chance(0.05))
        height = judged.height + (5 if self.chance(0.05) else 0)
        return commands.Equivocation(sender, epoch, height, index, *results)

    def signed(self, state: CoordinatorState, judged: Round, slot: int, version: int) -> SignedResult:
        """A result as its trainer signs it; forged at times, and where the slot has no share."""
        digest = payload(judged, slot, version)
        if slot not in shares(state, judged) or slot >= len(state.epoch.clients) or self.chance(0.03):
            return SignedResult(digest, bytes(64))
        key = self._keys[state.epoch.clients[slot].id.p2p]
        return SignedResult(digest, sign_commitment(key, state.instance, self.commitment(state, judged, slot, digest)))

    def commitment(self, state: CoordinatorState, judged: Round, slot: int, digest: bytes) -> bytes:
        """What follows from the state for a payload of this slot's share."""
        return commitment_hash(
            state.instance,
            epoch=state.progress.epoch,
            step=judged.step,
            seed=judged.seed,
            share=shares(state, judged)[slot],
            trainer=state.epoch.clients[slot].id.signer,
            payload_hash=digest,
        )

    def checkpoint(self, state: CoordinatorState) -> Command:
        """The checkpointer stored the model, or cannot."""
        slot = checkpointer_slot(state)
        sender = self.anybody() if slot is None or self.chance(0.1) else state.epoch.clients[slot].id
        listed = [bytes.fromhex(key) for key in state.config.checkpointers]
        if listed and self.chance(0.5):
            sender = NodeIdentity(self.random.choice(listed), sender.p2p)
        return commands.Checkpoint(sender, self.random.choice([None, *runs.CHECKPOINTS[:4]]))

    def odd_checkpoint(self) -> Command:
        """Any location by anybody."""
        return commands.Checkpoint(self.anybody(), self.random.choice([None, *runs.CHECKPOINTS]))

    def rates(self) -> Command:
        """Other rates."""
        drawn = [self.random.choice([None, *runs.POINTS]) for _ in range(2)]
        return commands.SetFutureEpochRates(*drawn)

    def settle(self, state: CoordinatorState) -> Command:
        """The balance of somebody who has one, or of anybody."""
        some = [account.signer for account in state.accounts] if self.chance(0.8) else []
        return commands.Settle(self.random.choice(some) if some else self.anybody().signer)

    def update(self, state: CoordinatorState) -> Command:
        """Another configuration, model or progress; often one that breaks a rule."""
        config = self.wrong_config() if self.chance(0.3) else runs.config(self.random, self.members, state.config.checkpointers)
        model = runs.model(self.random)
        if self.chance(0.2):
            steps = self.random.choice([3, 10**6])
            wrong: list[dict[str, Any]] = [
                {"max_seq_len": 0},
                {"checkpoint": "Ephemeral"},
                {"checkpoint": {"Hub": {"repo_id": ""}}},
                {"cold_start_warmup_steps": steps},
            ]
            model = runs.model(self.random, **self.random.choice(wrong))
        total = config.total_steps
        step = self.random.choice([0, 1, 2, total, total + 1, total + 2])
        progress = Progress(
            self.random.choice([0, 5, 2**31, 2**31 + 1]), min(step, 2**32), self.random.choice([0, 9, 2**62, 2**62 + 1])
        )
        mask = self.random.choice([1, 2, 3, 4, 5, 6, 7])
        return commands.UpdateConfig(config if mask & 1 else None, model if mask & 2 else None, progress if mask & 4 else None)

    def wrong_config(self) -> CoordinatorConfig:
        """A configuration that breaks a rule."""
        key = member(0).signer.hex()
        wrong: list[dict[str, Any]] = [
            {"epoch_time": 0},
            {"warmup_time": 10**6},
            {"max_round_train_time": 0},
            {"max_round_train_time": 10**6},
            {"round_witness_time": 0},
            {"min_clients": 0, "witness_nodes": 0},
            {"init_min_clients": 257},
            {"min_clients": 200, "init_min_clients": 199},
            {"global_batch_size_start": 0},
            {"global_batch_size_end": 0},
            {"total_steps": 0},
            {"witness_nodes": 200},
            {"min_clients": 200, "init_min_clients": 200, "witness_nodes": 33},
            {"cooldown_time": 0},
            {"waiting_for_members_extra_time": 0},
            {"verification_percent": 101},
            {"checkpointers": (key, key)},
        ]
        return runs.config(self.random, self.members, **self.random.choice(wrong))


def payload(judged: Round, slot: int, version: int) -> bytes:
    """The hash of one of the payloads that a slot may have made for a round."""
    return hashlib.sha256(f"{judged.height} {slot} {version}".encode()).digest()
