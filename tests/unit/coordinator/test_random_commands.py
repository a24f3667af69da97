"""Random commands from honest, late, mistaken and hostile senders; after each, everything `run_checks.check` lists holds.

Among it: every sample is applied, queued, undecided or counted as lost, exactly once; past rounds never change; slots never move;
who is ejected stays so; the books of what was paid agree with the accounts, and no epoch pays more than its pool. Where the run
goes back, the books of samples are those of the end that it goes back to.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck as HypothesisCheck
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from psyche_core.config.run_config import Choice
from psyche_core.coordinator import apply, commands
from psyche_core.coordinator.checkpoints import checkpointer_slot
from psyche_core.coordinator.errors import NAMES
from psyche_core.coordinator.lifecycle.challenges import challenge_of, words_due
from psyche_core.coordinator.lifecycle.round_timing import everybody_stated
from psyche_core.coordinator.round.witness import accepted_slots, split_vote_slots
from psyche_core.coordinator.serialization import from_plain, to_plain
from psyche_core.errors import CoordinatorError
from psyche_core.types import ClientState, RunState, bitmap
from psyche_core.verification.challenge import Challenge, Stage
from psyche_core.verification.words import Word
from psyche_core.wire.messages import sign_join
from tests.unit.coordinator.conftest import member

PLAYING = (RunState.RoundTrain, RunState.RoundWitness)
LIMITS = {
    "init_min_clients": 2,
    "min_clients": 2,
    "total_steps": 24,
    "rounds_per_epoch": 5,
    "epoch_time": 400,
    "global_batch_size_start": 3,
    "global_batch_size_end": 7,
    "global_batch_size_warmup_tokens": 64 * 30,
}


def machine(play: Any, members: Any, joins: Any, secrets: Any, happened: set[str], **config: Any) -> type[RuleBasedStateMachine]:
    """The machine, over a run of at most 24 steps with every limit small. Seven members, numbered 0 to 6.

    happened: collects the names of the events and refusals of all runs.
    """

    class Commands(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.run = play(0, **{**LIMITS, **config})
            self.run.do(commands.SetFutureEpochRates(100, 7))

        @property
        def playing(self) -> bool:
            return self.run.state.run_state in PLAYING

        @property
        def slots(self) -> range:
            return range(len(self.run.state.epoch.clients))

        def send(self, command: commands.Command) -> str | None:
            """Send; the name of the refusal."""
            before = self.run.state
            refusal = None
            try:
                self.run.do(command)
            except CoordinatorError as error:
                refusal = error.name
            assert refusal is None or (refusal in NAMES and self.run.state is before)
            happened.add(refusal or "accepted")
            return refusal

        @rule(steps=st.integers(1, 4), crowd=st.integers(2, 6), blind=st.sets(st.integers(0, 5), max_size=1))
        def go_on(self, steps: int, crowd: int, blind: set[int]) -> None:
            """What honest members and the backend do next, so that random runs get far."""
            for _ in range(steps):
                match self.run.state.run_state:
                    case RunState.WaitingForMembers:
                        self.sign(set(), lie=False)
                        self.join(set(range(crowd)))
                        self.tick(3)
                    case RunState.Warmup:
                        self.ready(set())
                        self.tick(1)
                    case RunState.RoundTrain | RunState.RoundWitness:
                        self.witnesses_state(blind, 6)
                        self.tick(10)
                    case RunState.Cooldown:
                        self.tick(5)
                    case RunState.Paused:
                        self.send(commands.Resume(from_checkpoint=self.run.state.model_lost))

        @rule(crowd=st.integers(2, 6), blind=st.sets(st.integers(0, 5), max_size=2))
        def go_on_far(self, crowd: int, blind: set[int]) -> None:
            self.go_on(7, crowd, blind)

        @rule(seconds=st.sampled_from([0, 1, 2, 3, 5, 10, 30, 40]))
        def tick(self, seconds: int) -> None:
            self.run.now += seconds
            self.send(commands.Tick())

        @rule(numbers=st.sets(st.integers(0, 6), min_size=1, max_size=4))
        def join(self, numbers: set[int]) -> None:
            for number in sorted(numbers):
                self.send(joins(members(number)))

        @rule(number=st.integers(0, 6))
        def withdraw(self, number: int) -> None:
            self.send(commands.Withdraw(members(number)))

        @rule(late=st.sets(st.integers(0, 5), max_size=1))
        def ready(self, late: set[int]) -> None:
            for slot in self.slots:
                if slot not in late:
                    self.send(self.run.ready(slot))

        @rule(slots=st.sets(st.integers(0, 5), min_size=1, max_size=2), held=st.integers(-1, 4))
        def some_lack(self, slots: set[int], held: int) -> None:
            """Slots that say they lack the model, truly or not, and hold some signed end, none, or something unheard of."""
            for slot in sorted(slots & set(self.slots)):
                self.lack(slot, held)

        @precondition(lambda self: self.run.state.run_state is RunState.Warmup)
        @rule(held=st.lists(st.integers(-1, 3), min_size=6, max_size=6))
        def all_lack(self, held: list[int]) -> None:
            before = self.run.state
            for slot in before.healthy_slots:
                if self.run.state.run_state is RunState.Warmup:
                    self.lack(slot, held[slot % len(held)])
            state = self.run.state
            if state.generation > before.generation:
                steps = {end.step for end in before.ends}
                assert state.from_checkpoint or state.progress.step - 1 in steps
                assert state.pending == before.pending

        @initialize(ends=st.integers(0, 2), held=st.sampled_from([-1, 0]))
        def begin(self, ends: int, held: int) -> None:
            """Many runs begin where they have just gone back, or lost their model: they rarely get there by chance."""
            self.lose_the_model(5, ends, [held] * 6)

        @rule(
            crowd=st.integers(3, 6),
            ends=st.integers(1, 3),
            held=st.lists(st.integers(-1, 1), min_size=6, max_size=6) | st.just([-1] * 6),
        )
        def lose_the_model(self, crowd: int, ends: int, held: list[int]) -> None:
            """On to a warmup that begins with the members' model, after so many signed ends; by then nobody has it."""
            if ends == 0:
                return
            for _ in range(60):
                state = self.run.state
                if state.run_state is RunState.Warmup and not state.from_checkpoint and len(state.ends) >= ends:
                    self.all_lack(held)
                    return
                self.go_on(1, crowd, set())

        def lack(self, slot: int, held: int) -> None:
            """held: which end, from the oldest; -1 for none."""
            ends = self.run.state.ends
            digest = bytes(32) if held < 0 else ends[held].digest if held < len(ends) else b"\xee" * 32
            self.send(self.run.lacking(slot, held=digest))

        @rule(silent=st.sets(st.integers(0, 5), max_size=2), lie=st.booleans())
        def sign(self, silent: set[int], lie: bool) -> None:
            """What members say of an epoch's end; a quorum of honest ones signs it. lie: the last of them says otherwise."""
            progress, healthy = self.run.state.progress, self.run.state.healthy_slots
            true = hashlib.sha256(f"{progress.step} {self.run.state.generation}".encode()).digest()
            for slot in sorted(set(healthy) - silent):
                self.send(self.run.end_digest(slot, b"\xdd" * 32 if lie and slot == healthy[-1] else true))

        @rule(owner=st.integers(0, 6), thief=st.integers(0, 6))
        def stolen_key(self, owner: int, thief: int) -> None:
            """Nobody takes another member's transport key, heard of or even held."""
            if owner == thief:
                return
            identity = replace(members(thief), p2p=members(owner).p2p)
            instance = self.run.state.instance
            finished = self.run.state.run_state is RunState.Finished
            forged = commands.Join(identity, sign_join(secrets(thief), instance, identity.signer))
            assert self.send(forged) == ("Halted" if finished else "InvalidProof")
            known = {*self.run.state.pending, *(client.id for client in self.run.state.epoch.clients)}
            if members(owner) in known:
                copied = commands.Join(identity, sign_join(secrets(owner), instance, identity.signer))
                assert self.send(copied) == ("Halted" if finished else "TransportKeyTaken")

        @precondition(lambda self: self.run.state.run_state is RunState.Paused)
        @rule()
        def back_to_the_checkpoint(self) -> None:
            """The owner's word counts only where no member holds the model."""
            before = self.run.state
            refusal = self.send(commands.Resume(from_checkpoint=True))
            assert refusal == (None if before.model_lost else "CannotResume")
            if refusal is None and self.run.state.run_state is not RunState.Finished:
                assert self.run.state.progress.step == before.stored.step + 1

        @precondition(lambda self: self.run.state.run_state in (RunState.Cooldown, RunState.WaitingForMembers))
        @rule()
        def store(self) -> None:
            """Whoever is to store the model does."""
            slot = checkpointer_slot(self.run.state)
            if slot is not None:
                sender = self.run.state.epoch.clients[slot].id
                self.send(commands.Checkpoint(sender=sender, location=Choice("Hub", {"repo_id": "r"})))

        @precondition(lambda self: len(self.run.state.healthy_slots) < len(self.slots))
        @rule(choice=st.integers(0, 6), first=st.sampled_from([True, True, False]))
        def come_back(self, choice: int, first: bool) -> None:
            """A client that left joins again (or forgets to) and says that it is ready."""
            left = sorted(set(self.slots) - set(self.run.state.healthy_slots))
            slot = left[choice % len(left)]
            client = self.run.state.epoch.clients[slot]
            pending = client.id in self.run.state.pending
            if first:
                pending = self.send(joins(client.id)) is None or pending
            refusal = self.send(self.run.ready(slot))
            if self.playing and client.state in (ClientState.Dropped, ClientState.Withdrawn):
                exhausted = client.rejoins == 3
                assert refusal == ("InvalidWitness" if not pending else "RejoinsExhausted" if exhausted else None)

        @precondition(lambda self: self.playing)
        @rule(blind=st.sets(st.integers(0, 5), max_size=2), count=st.integers(1, 6))
        def witnesses_state(self, blind: set[int], count: int) -> None:
            height = self.run.round.height
            for slot in self.run.elected[:count]:
                if self.playing and self.run.round.height == height:
                    seen = set(self.run.shares(height - 1)) - blind
                    self.send(self.run.statement(slot, seen=seen))

        @precondition(lambda self: self.playing)
        @rule(
            slot=st.integers(0, 5),
            bits=st.sets(st.integers(0, 8)),
            later=st.sampled_from([0, 0, 0, 1, -1]),
            epoch=st.sampled_from([0, 0, 0, 1]),
        )
        def odd_statement(self, slot: int, bits: set[int], later: int, epoch: int) -> None:
            if slot in self.slots:
                good = self.run.statement(slot, seen=[]).statement
                changes = {"participants": bitmap(bits), "height": max(good.height + later, 0), "epoch": good.epoch + epoch}
                self.send(self.run.statement(slot, seen=[], **changes))

        @rule(sender=st.integers(0, 6), slots=st.sets(st.integers(0, 6), max_size=2))
        def health(self, sender: int, slots: set[int]) -> None:
            self.send(commands.HealthCheck(sender=members(sender), slots=tuple(slots)))

        @precondition(lambda self: self.playing and self.run.round.height >= 2)
        @rule()
        def honest_reports(self) -> None:
            """All witnesses of the last round report whoever they may; who came back since stays, all others leave."""
            state, height = self.run.state, self.run.round.height
            judged = state.round_at(height - 2)
            unseen = sorted(set(self.run.shares(height - 2)) - accepted_slots(state, judged))
            refusals = {self.send(commands.HealthCheck(client.id, tuple(unseen))) for client in state.epoch.clients}
            if unseen and None in refusals:
                for slot in sorted(set(unseen) - split_vote_slots(state, judged)):  # these only miss a duty (F16)
                    client = self.run.state.epoch.clients[slot]
                    assert client.state is not ClientState.Healthy or client.rejoins > 0

        @precondition(lambda self: self.run.state.run_state.active)
        @rule(slot=st.integers(0, 5), by=st.integers(0, 5), back=st.sampled_from([0, 1, 1, 2, 3, 4]), forged=st.booleans())
        def evidence(self, slot: int, by: int, back: int, forged: bool) -> None:
            """True proof ejects, whatever the accused's health; a forged one never does."""
            if slot not in self.slots or by not in self.slots:
                return
            height = self.run.round.height - back
            proof = self.run.evidence(slot, max(height, 0), by=by)
            if forged:
                proof = replace(proof, second=replace(proof.second, signature=proof.first.signature))
            healthy, before = self.run.state.healthy_slots, self.run.state.epoch.clients[slot].state
            share = self.run.shares(max(height, 0)).get(slot)
            refusal = self.send(proof)
            proves = by in healthy and share is not None and before is not ClientState.Ejected and not forged
            assert refusal == (None if proves else "InvalidEvidence")
            after = self.run.state.epoch.clients[slot].state
            assert after is (ClientState.Ejected if proves else before)

        @rule(sender=st.integers(0, 6), name=st.sampled_from(["Hub", "Gcs", "P2P"]))
        def checkpoint(self, sender: int, name: str) -> None:
            settings_ = {"bucket": "b"} if name == "Gcs" else {"repo_id": "r"}
            self.send(commands.Checkpoint(sender=members(sender), location=Choice(name, settings_)))

        @rule(earn=st.sampled_from([None, 0, 1, 100, 2**64 - 1]), slash=st.sampled_from([None, 0, 7, 2**64 - 1, 2**64]))
        def rates(self, earn: int | None, slash: int | None) -> None:
            refusal = self.send(commands.SetFutureEpochRates(earn, slash))
            assert refusal == ("ConfigSanityCheckFailed" if slash == 2**64 else None)

        @rule(luck=st.integers(0, 9))
        def pause_or_resume(self, luck: int) -> None:
            if self.run.state.run_state in (RunState.Paused, RunState.Finished):
                self.send(commands.Resume())
            elif luck == 0:
                self.send(commands.Pause())

        def teardown(self) -> None:
            happened.update(type(event).__name__ for event in self.run.events)
            happened.update(event.outcome for event in self.run.seen_events(commands.ChallengeClosed))
            happened.update(
                "back to the checkpoint" for event in self.run.seen_events(commands.WentBack) if event.from_checkpoint
            )
            happened.update("back to an end" for event in self.run.seen_events(commands.WentBack) if not event.from_checkpoint)

        @invariant()
        def travels(self) -> None:
            assert from_plain(to_plain(self.run.state)) == self.run.state

        @invariant()
        def a_complete_witness_phase_never_lasts(self) -> None:
            """Unless somebody left since the last command: then the next tick ends it."""
            state = self.run.state
            if state.run_state is RunState.RoundWitness and everybody_stated(state):
                assert len(state.healthy_slots) < len(self.run.elected) or len(state.healthy_slots) < len(self.slots)

        @invariant()
        def warmup_is_not_endless(self) -> None:
            """With enough members ready and a grace that is over, the next tick starts the rounds."""
            state, now = self.run.state, self.run.now
            since = state.epoch.ready_since
            ready = set(state.epoch.ready) & set(state.healthy_slots)
            if state.run_state is RunState.Warmup and since is not None and len(ready) >= state.config.min_clients:
                grace = max(since - state.since, state.config.warmup_time // 4)
                after, _ = apply(state, commands.Tick(), max(now, since + grace), 1)
                assert after.run_state is not RunState.Warmup

    return Commands


def checking_machine(base: Any) -> Any:
    """The same run with challenged shares: commitments of anybody, in any round; one slot of six lies with its words."""

    class Checked(base):  # type: ignore[misc]  # made at run time
        def __init__(self) -> None:
            super().__init__()
            self.liar, self.lie, self.cheats, self.blind = 0, Word.FAILED, {1}, 2
            self.run.say = self.word

        def word(self, witness: int, challenge: Challenge, judge: int) -> Word:
            if witness == self.liar:
                return self.lie
            return Word.FAILED if challenge.drawn.trainer in self.cheats or judge == self.blind else Word.PASSED

        @initialize(rounds=st.integers(8, 16), cheat=st.integers(0, 5), blind=st.integers(0, 5))
        def begin_checked(self, rounds: int, cheat: int, blind: int) -> None:
            """Many runs begin with members that have been convicted, or accused others falsely."""
            self.cheats, self.blind = {cheat}, blind
            self.verify(rounds, set(), complain=False)

        @rule(liar=st.integers(0, 5), lie=st.sampled_from(Word), cheats=st.sets(st.integers(0, 5), max_size=2))
        def lie_so(self, liar: int, lie: Word, cheats: set[int]) -> None:
            self.liar, self.lie, self.cheats, self.blind = liar, lie, cheats, 5 - liar

        @rule(rounds=st.integers(4, 16), silent=st.sets(st.integers(0, 5), max_size=1), complain=st.booleans())
        def verify(self, rounds: int, silent: set[int], complain: bool) -> None:
            """Who is asked commits, or complains first; then the witnesses state."""
            for _ in range(rounds):
                for one in self.run.state.epoch.challenges:
                    for slot in sorted(set(challenge_of(self.run.state, one).expected) - silent):
                        complaint = complain and one.stage is Stage.COMMIT
                        refusal = self.send(self.run.commit(slot, one.height, one.trainer, None if complaint else bytes(32)))
                        assert refusal in (None, "InvalidCommit")
                self.go_on(1, 6, set())

        @precondition(lambda self: self.playing)
        @rule(
            sender=st.integers(0, 6),
            height=st.integers(0, 5),
            trainer=st.integers(0, 6),
            commitment=st.sampled_from([None, b"", bytes(32)]),
            late=st.booleans(),
        )
        def commit_anything(self, sender: int, height: int, trainer: int, commitment: bytes | None, late: bool) -> None:
            state = self.run.state
            seed = self.run.round.seed - late
            told = commands.VerifierCommit(member(sender), state.progress.epoch, seed % 2**64, height, trainer, commitment)
            if self.send(told) is None:
                assert any((one.height, one.trainer) == (height, trainer) for one in state.epoch.challenges)

        @precondition(lambda self: self.playing)
        @rule(slot=st.integers(0, 5), words=st.sampled_from([b"", b"\1", b"\x33", bytes(2)]))
        def odd_words(self, slot: int, words: bytes) -> None:
            if slot in self.slots:
                due = (len(words_due(self.run.state)) + 1) // 2
                refusal = self.send(self.run.statement(slot, words=words))
                assert refusal is not None or len(words) == due

    return Checked


def test_random_commands_with_challenged_shares(play: Any, members: Any, joins: Any, secrets: Any) -> None:
    happened: set[str] = set()
    config = {"verification_percent": 40, "total_steps": 60, "rounds_per_epoch": 16, "global_batch_size_end": 24}
    base = machine(play, members, joins, secrets, happened, **{**config, "restart_from_checkpoint": True})
    run_state_machine_as_test(
        checking_machine(base),
        settings=settings(
            max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HypothesisCheck), derandomize=True
        ),
    )
    assert {"ChallengesDrawn", "ChallengeClosed", "InvalidCommit"} <= happened
    assert {"PASSED", "GUILTY", "FALSE_ACCUSATION", "SILENCE", "UNDECIDED"} <= happened


@pytest.mark.parametrize("restart", [False, True], ids=["the owner decides", "back to the checkpoint by itself"])
def test_random_commands(play: Any, members: Any, joins: Any, secrets: Any, restart: bool) -> None:
    happened: set[str] = set()
    run_state_machine_as_test(
        machine(play, members, joins, secrets, happened, restart_from_checkpoint=restart),
        settings=settings(
            max_examples=20, stateful_step_count=60, deadline=None, suppress_health_check=list(HypothesisCheck), derandomize=True
        ),
    )
    wanted = {"EpochSigned", "StatementVoided", "back to an end", "back to the checkpoint", "InvalidProof", "TransportKeyTaken"}
    assert wanted - happened == set()
    assert ("ModelLost" in happened) == (not restart)
