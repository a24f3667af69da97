"""Commands at the largest run there can be: 256 clients, 32 witnesses, lists full and in as many pieces as there can be.

States are written into the account instead of being played to. Each command is compared with `apply` like any other, so that what
is measured is also right. There are two kinds of run. In `usual` everything goes well. In `worst` every queue is full of small
intervals that lie between those of the rounds, and every other share is unseen; this does not happen by chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from plugins.backend_solana.tests.svm import runs
from plugins.backend_solana.tests.svm.coordinator_svm import (
    MEMORY_BYTES,
    PROGRAM_FILE,
    Answer,
    CoordinatorSvm,
    member,
    nothing_due,
    proved,
    transport_key,
    wallet,
)
from plugins.backend_solana.tests.svm.random_commands import payload
from psyche_backend_solana.layouts import coordinator as layout
from psyche_backend_solana.layouts.beacon import Beacon
from psyche_backend_solana.layouts.coordinator_accounts import ACCOUNT_BYTES, OLD_ACCOUNT_BYTES
from psyche_core.coordinator import apply, commands
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator.checkpoints import checkpointer_slot
from psyche_core.coordinator.commands import Command, SignedResult
from psyche_core.coordinator.history import held_digest
from psyche_core.coordinator.lifecycle.challenges import words_due
from psyche_core.coordinator.membership.missed_duties import MAX_MISSED
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.round.bloom_filter import BroadcastBloom
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.state import (
    MAX_CHALLENGED_INTERVALS,
    MAX_END_INTERVALS,
    Account,
    Client,
    CoordinatorState,
    Epoch,
    EpochEnd,
    EpochRates,
    OpenChallenge,
    Progress,
    Root,
    Round,
    Unready,
)
from psyche_core.errors import CoordinatorError
from psyche_core.types import MAX_CLIENTS, MAX_WITNESSES, BatchId, ClientState, RunState, WitnessStatement, bitmap
from psyche_core.verification.challenge import Stage
from psyche_core.verification.standing import Standing
from psyche_core.verification.words import Word, encode_words
from psyche_core.wire.messages import commitment_hash, sign_commitment

NOW = 1_800_000_000
SLOT = 100_000
LONG_AGO = Beacon(SLOT - 480)
"""To find its hash takes most compute units."""
_SINCE = NOW - 5
_EVERYBODY = tuple(range(MAX_CLIENTS))


PERCENTS = (0, 10)
"""Values of verification_percent that are compared."""


@dataclass(frozen=True, slots=True)
class Case:
    """A command in a state. name: of the instruction and what is special about it."""

    name: str
    state: CoordinatorState
    command: Command


def _torn(first: int, count: int) -> tuple[BatchId, ...]:
    """So many intervals of one and two samples in turn, with gaps between them in which others have room."""
    return tuple(BatchId(first + 6 * place, first + 6 * place + place % 2) for place in range(count))


class Largest:
    """States of a run of 256. torn: lists are full of small intervals. percent: share of verifiers. instance: the run's."""

    def __init__(self, run_id: str = "test-run", *, torn: bool, percent: int, instance: bytes) -> None:
        self.torn = torn
        keys: dict[str, Any] = {
            "init_min_clients": MAX_CLIENTS,
            "min_clients": 1 if torn else 200,
            "witness_nodes": 0,
            "verification_percent": percent,
            "global_batch_size_start": 2000,
            "global_batch_size_end": 2000,
            "global_batch_size_warmup_tokens": 2**63,
            "warmup_time": 5,
            "cooldown_time": 1,
            "max_round_train_time": 5,
            "round_witness_time": 4,
            "epoch_time": 100_000,
            "total_steps": 2**31,
            "rounds_per_epoch": 0,
            "waiting_for_members_extra_time": 1,
        }
        config = runs.config(Random(0), MAX_CLIENTS, **keys)
        clients = tuple(Client(id=member(slot), accepted_rounds=slot + 1) for slot in _EVERYBODY)
        strangers = [bytes([7, slot]) + bytes(30) for slot in _EVERYBODY]
        self.state = CoordinatorState(
            run_id=run_id,
            instance=instance,
            config=config,
            model=runs.model(Random(0), max_seq_len=2048, checkpoint={"Hub": {"repo_id": "owner/model"}}),
            since=_SINCE,
            progress=Progress(epoch=3, step=100, data_index=10**9),
            epoch=Epoch(clients=clients, start_time=NOW - 50, seed=99, rates=EpochRates(10**15, 10)),
            pending=tuple(member(slot) for slot in _EVERYBODY),
            minimum_since=_SINCE,
            requeue=_torn(60_003, 512) if torn else (),
            future_rates=EpochRates(10**15, 10),
            accounts=tuple(Account(signer) for signer in strangers),
            from_checkpoint=False,
            ends=tuple(self.end(step) for step in (60, 70, 80, 90)),
            stored=self.end(80),
            unready=tuple(Unready(member(slot).signer, 1) for slot in reversed(_EVERYBODY)) if torn else (),
        )

    def end(self, step: int) -> EpochEnd:
        """A signed end, with a queue that is full."""
        return EpochEnd(step=step, data_index=10**8, digest=bytes([step]) * 32, queue=_torn(50_000, MAX_END_INTERVALS))

    def join(self, number: int, generation: int = 0) -> Command:
        """A member's join with its proof."""
        return proved(number, self.state.instance, generation)

    def rounds(self, *, statements: int, drain: bool = False) -> tuple[Round, ...]:
        """Four rounds; the last has so many statements, the others all of them."""
        made: list[Round] = []
        for height in range(4, 8):
            fresh = (BatchId(height * 10_000, height * 10_000 + 1999),)
            batches = _torn(height * 10_000, 513) if self.torn else fresh
            last = height == 7
            current = Round(
                height, 93 + height, 1234 + height, _EVERYBODY, () if drain and last else batches, drain=drain and last
            )
            witnesses = witness_slots(self.state, current)
            stated = witnesses[: statements if last else MAX_WITNESSES]
            seen = self.seen(made[-1]) if made else []
            made.append(replace(current, statements=tuple(self.statement(slot, current, seen=seen) for slot in stated)))
        return tuple(made)

    def seen(self, judged: Round) -> list[int]:
        """The slots whose result of a round everybody saw: of shares side by side every other one, where lists are torn."""
        given = list(shares(self.state, judged))
        return given[::2] if self.torn else given

    def statement(self, slot: int, current: Round, *, seen: list[int], bloom: bytes = bytes(320)) -> WitnessStatement:
        """Of a witness about the round before."""
        return WitnessStatement(self.state.progress.epoch, current.height, slot, bitmap(seen), bloom, bytes(32), bytes(32))

    def playing(self, statements: int, run_state: RunState = RunState.RoundTrain, *, drain: bool = False) -> CoordinatorState:
        """In the eighth round."""
        rounds = self.rounds(statements=statements, drain=drain)
        return replace(self.state, run_state=run_state, epoch=replace(self.state.epoch, rounds=rounds))

    def next_witness(self, state: CoordinatorState) -> Command:
        """The statement of the first who has not stated."""
        current = state.epoch.rounds[-1]
        stated = {statement.index for statement in current.statements}
        slot = next(slot for slot in witness_slots(state, current) if slot not in stated)
        words = current.statements[0].words if current.statements else encode_words([Word.PASSED] * len(words_due(state)))
        said = self.statement(slot, current, seen=self.seen(state.epoch.rounds[-2]))
        return commands.Witness(member(slot), replace(said, words=words))

    def cases(self) -> Iterator[Case]:
        """One after the other."""
        yield from self._gathering()
        yield from self._playing()
        yield from self._after()
        if self.state.config.verification_percent:
            yield from self._challenged()

    def _gathering(self) -> Iterator[Case]:
        waiting = replace(
            self.state, run_state=RunState.WaitingForMembers, epoch=replace(self.state.epoch, rounds=self.rounds(statements=32))
        )
        yield Case("join: the last", replace(waiting, pending=waiting.pending[1:], minimum_since=None), self.join(0))
        yield Case("join: again", waiting, self.join(MAX_CLIENTS - 1, 1))
        gone = replace(waiting.epoch, clients=tuple(Client(id=member(0, 1)) for _ in range(1)))
        strangers = tuple(Client(id=replace(member(0), signer=bytes([9, slot]) + bytes(30))) for slot in _EVERYBODY)
        yield Case("tick: an epoch", replace(waiting, epoch=replace(gone, clients=strangers)), commands.Tick())
        warmup = replace(self.state, run_state=RunState.Warmup, epoch=replace(waiting.epoch, unplayed=True))
        yield Case(
            "tick: warmup's time-out", replace(warmup, epoch=replace(warmup.epoch, ready=_EVERYBODY[:200])), commands.Tick()
        )
        ready = replace(warmup, epoch=replace(warmup.epoch, ready=_EVERYBODY[:-1]))
        yield Case(
            "warmup_witness: the last", ready, commands.WarmupWitness(member(MAX_CLIENTS - 1), 3, MAX_CLIENTS - 1, bytes(32))
        )
        yield from self._speaking(warmup)
        yield Case("withdraw", warmup, commands.Withdraw(member(MAX_CLIENTS - 1)))

    def _speaking(self, warmup: CoordinatorState) -> Iterator[Case]:
        """In a warmup in which many lack the model, or are not waited for."""
        some = warmup.epoch.ready or _EVERYBODY[:215]
        late = tuple(Unready(member(slot).signer, 3) for slot in reversed(_EVERYBODY))
        alone = replace(warmup, unready=late, epoch=replace(warmup.epoch, ready=some))
        ready = commands.WarmupWitness(member(MAX_CLIENTS - 2), 3, MAX_CLIENTS - 2, bytes(32 * [8]))
        yield Case("warmup_witness: the others left alone", alone, ready)
        lacking = replace(warmup, epoch=replace(warmup.epoch, lacking=_EVERYBODY[:-1], held_step=60, start_step=100))
        newest = commands.WarmupWitness(member(MAX_CLIENTS - 1), 3, MAX_CLIENTS - 1, held_digest(self.end(90).digest))
        yield Case("warmup_witness: back to an earlier end", lacking, newest)

    def _playing(self) -> Iterator[Case]:
        quorum = -(-2 * MAX_WITNESSES // 3)
        for name, stated, phase in (
            ("the first", 0, RunState.RoundTrain),
            ("the quorum's last", quorum - 1, RunState.RoundTrain),
            ("the last", MAX_WITNESSES - 1, RunState.RoundWitness),
        ):
            state = self.playing(stated, phase)
            yield Case(f"witness: {name}", state, self.next_witness(state))
        timed_out = self.playing(quorum, RunState.RoundWitness)
        yield Case("tick: a round's time-out", timed_out, commands.Tick())
        clients = tuple(replace(client, missed=MAX_MISSED - 1) for client in timed_out.epoch.clients)
        silent = replace(timed_out, epoch=replace(timed_out.epoch, clients=clients))
        yield Case("tick: who missed too much is dropped", silent, commands.Tick())
        last = self.playing(MAX_WITNESSES - 2, RunState.RoundWitness)
        witness = self.next_witness(last)
        assert isinstance(witness, commands.Witness)
        index = witness.statement.index
        clients = tuple(replace(client, missed=0 if slot == index else MAX_MISSED - 1) for slot, client in enumerate(clients))
        others_silent = replace(last, epoch=replace(last.epoch, clients=clients))
        yield Case("witness: the last but one who is dropped", others_silent, witness)
        last = self.playing(MAX_WITNESSES - 1, RunState.RoundWitness)
        witness = self.next_witness(last)
        assert isinstance(witness, commands.Witness)
        boastful = replace(witness, statement=replace(witness.statement, participants=b"\xff" * 32))
        yield Case("witness: void, the last", last, boastful)
        yield Case("tick: no statement at all", self.playing(0, RunState.RoundWitness), commands.Tick())
        state = self.playing(0)
        client = replace(state.epoch.clients[255], state=ClientState.Dropped)
        back = replace(state, epoch=replace(state.epoch, clients=(*state.epoch.clients[:255], client)))
        yield Case("warmup_witness: a return", back, commands.WarmupWitness(member(255), 3, 255, bytes(32)))
        judged, judging = state.epoch.rounds[1], state.epoch.rounds[2]
        seen = self.seen(judged)
        unseen = tuple(slot for slot in shares(state, judged) if slot not in seen)
        reporter = member(witness_slots(state, judging)[-1])
        if self.torn:
            yield Case("health_check: of half the clients", state, commands.HealthCheck(reporter, unseen))
        else:
            yield Case("health_check: refused", state, commands.HealthCheck(reporter, (0,)))
        yield Case("equivocation: undecided", state, self.evidence(state, 3, MAX_CLIENTS - 1))
        yield Case("equivocation: of an older share", state, self.evidence(state, 1, MAX_CLIENTS - 1))
        yield Case("pause", state, commands.Pause())

    def _challenged(self) -> Iterator[Case]:
        """Rounds end with as many challenges as there can be, all in one stage."""
        for stage, word, name in (
            (Stage.COMMIT, None, "128 verifiers are silent"),
            (Stage.REVEAL, Word.PASSED, "128 checks passed"),
            (Stage.REVEAL, Word.FAILED, "128 checks failed"),
            (Stage.TIE_REVEAL, Word.PASSED, "128 false accusations"),
            (Stage.TIE_REVEAL, Word.FAILED, "128 are guilty"),
        ):
            state = self.challenged(stage, word, statements=MAX_WITNESSES - 1)
            yield Case(f"tick: {name}", state, commands.Tick())
            yield Case(f"witness: the last, {name}", state, self.next_witness(state))
        second = Standing(strikes=1, watched_before=7, high=(True, False, True, False))
        for stage, word, name in (
            (Stage.TIE_REVEAL, Word.FAILED, "128 are guilty again and ejected"),
            (Stage.REVEAL, Word.HIGH, "128 are ejected for their scores"),
        ):
            state = self.challenged(stage, word, statements=MAX_WITNESSES - 1)
            clients = tuple(replace(client, standing=second) for client in state.epoch.clients)
            state = replace(state, epoch=replace(state.epoch, clients=clients))
            after, _ = apply(state, commands.Tick(), NOW, 0)
            assert sum(client.state is ClientState.Ejected for client in after.epoch.clients) == MAX_CLIENTS // 2
            yield Case(f"tick: {name}", state, commands.Tick())
            yield Case(f"witness: the last, {name}", state, self.next_witness(state))
        state = self.challenged(Stage.COMMIT, None, statements=0, since=7)
        last = state.epoch.challenges[-1]
        seed = state.epoch.rounds[-1].seed
        commit = commands.VerifierCommit(member(last.verifier), 3, seed, last.height, last.trainer, b"r" * 32)
        yield Case("verifier_commit: the last", state, commit)

    def challenged(self, stage: Stage, word: Word | None, *, statements: int, since: int = 6) -> CoordinatorState:
        """A round in which all say the same of 128 challenges, about every other slot's share; the other slots recompute."""
        state = self.playing(0, RunState.RoundWitness)
        judged = state.epoch.rounds[0]
        challenges = []
        for trainer in _EVERYBODY[::2]:
            verifier = trainer + 1
            judges = tuple(sorted((trainer + more) % MAX_CLIENTS for more in (2, 3, 4))) if stage is Stage.TIE_REVEAL else ()
            committed = () if stage is Stage.COMMIT else sorted((verifier, *judges))
            challenges.append(
                OpenChallenge(
                    height=judged.height,
                    trainer=trainer,
                    verifier=verifier,
                    since=since,
                    share=shares(state, judged)[trainer][:MAX_CHALLENGED_INTERVALS],
                    stage=stage,
                    roots=tuple(Root(slot, b"r" * 32) for slot in committed),
                    judges=judges,
                )
            )
        state = replace(state, epoch=replace(state.epoch, challenges=tuple(challenges)))
        words = encode_words([word] * len(words_due(state))) if word is not None else b""
        *earlier, last = self.rounds(statements=statements)
        stated = tuple(replace(statement, words=words) for statement in last.statements)
        rounds = (*earlier, replace(last, statements=stated))
        return replace(state, epoch=replace(state.epoch, rounds=rounds))

    def _after(self) -> Iterator[Case]:
        cooldown = self.playing(32, RunState.Cooldown, drain=True)
        yield Case("tick: rewards", cooldown, commands.Tick())
        checkpointer = checkpointer_slot(cooldown)
        assert checkpointer is not None
        yield Case(
            "checkpoint: elected", cooldown, commands.Checkpoint(member(checkpointer), {"Hub": {"repo_id": "owner/model"}})
        )
        divided = self._divided(cooldown)
        yield Case("equivocation: of a decided share", divided, self.evidence(divided, 2, MAX_CLIENTS))
        paused = replace(cooldown, run_state=RunState.Paused)
        yield Case("update", paused, commands.UpdateConfig(self.state.config, self.state.model, self.state.progress))
        yield Case("resume", paused, commands.Resume())
        yield Case("resume: from the stored checkpoint", replace(paused, model_lost=True), commands.Resume(from_checkpoint=True))
        signed = tuple(replace(client, end_digest=b"d" * 32) for client in cooldown.epoch.clients[:-1])
        ending = replace(cooldown, epoch=replace(cooldown.epoch, clients=(*signed, cooldown.epoch.clients[-1])))
        yield Case("epoch_digest: the last", ending, commands.EpochDigest(member(255), 3, 255, b"d" * 32))
        alone = replace(paused, pending=(), epoch=Epoch())
        yield Case("settle", alone, commands.Settle(self.state.accounts[0].signer))
        yield Case("set_future_epoch_rates", paused, commands.SetFutureEpochRates(1, 2))

    def _divided(self, state: CoordinatorState) -> CoordinatorState:
        """The witnesses of the last round saw one of two results each, so that nobody's was agreed on."""
        rounds = state.epoch.rounds
        slot = max(self.seen(rounds[2]))
        blooms = []
        for version in (0, 1):
            bloom = BroadcastBloom(rounds[3].seed)
            bloom.add(self.commitment(state, 2, slot, payload(rounds[2], slot, version)))
            blooms.append(bloom.to_bytes())
        statements = tuple(
            replace(statement, broadcast_bloom=blooms[place % 2]) for place, statement in enumerate(rounds[3].statements)
        )
        return replace(state, epoch=replace(state.epoch, rounds=(*rounds[:3], replace(rounds[3], statements=statements))))

    def commitment(self, state: CoordinatorState, place: int, slot: int, digest: bytes) -> bytes:
        """To a payload of a slot's share in the stored round at a place."""
        judged = state.epoch.rounds[place]
        share = shares(state, judged)[slot]
        epoch, signer = state.progress.epoch, state.epoch.clients[slot].id.signer
        return commitment_hash(
            state.instance, epoch=epoch, step=judged.step, seed=judged.seed, share=share, trainer=signer, payload_hash=digest
        )

    def evidence(self, state: CoordinatorState, place: int, slot: int, *, any_share: bool = False) -> commands.Equivocation:
        """Two signed results; unless any share will do, of the last slot whose share was seen when this one's was not."""
        judged = state.epoch.rounds[place]
        given = self.seen(judged)
        slot = slot if any_share or slot in given else max(given)
        results = []
        for version in (0, 1):
            digest = payload(judged, slot, version)
            signature = sign_commitment(transport_key(slot), state.instance, self.commitment(state, place, slot, digest))
            results.append(SignedResult(digest, signature))
        return commands.Equivocation(member(0), state.progress.epoch, judged.height, slot, results[0], results[1])


def measured(chain: CoordinatorSvm, case: Case, *, memory: bytes = bytes(MEMORY_BYTES), beacon: Beacon | None = None) -> Answer:
    """Send a case, and compare what became of it. Raises AssertionError where the two coordinators differ."""
    chain.begin(case.state, memory=memory, beacon=beacon)
    seed = chain.at(NOW, SLOT)
    refusal, after = None, case.state
    try:
        after, _ = apply(case.state, case.command, NOW, seed)
    except CoordinatorError as error:
        refusal = error.name
    refusal = refusal or nothing_due(case.command, case.state, after)
    answer = chain.do(case.command, case.state)
    if answer.refusal != refusal or chain.image != image.encode(after):
        message = f"{case.name}: expected {refusal}, got {answer.refusal} {answer.logs[-3:]}; or the images differ"
        raise AssertionError(message)

    return answer


def compute_units(program: Path = PROGRAM_FILE) -> dict[str, dict[str, int]]:
    """Compute units of each case, by kind of run. `drawn`: with elections that an earlier instruction had to draw anyway."""
    chain = CoordinatorSvm(members=MAX_CLIENTS + 1, program=program)
    found: dict[str, dict[str, int]] = {}
    for percent in PERCENTS:
        for name, torn in (("usual", False), ("worst", True)):
            label = f"{name}, {percent} % verify"
            found[label], found[f"{label}, drawn"] = {}, {}
            for case in Largest(torn=torn, percent=percent, instance=chain.instance).cases():
                found[label][case.name] = measured(chain, case, beacon=LONG_AGO).units
                found[f"{label}, drawn"][case.name] = measured(chain, case, memory=chain.memory, beacon=LONG_AGO).units
    found["accounts"] = {**_account_units(program), "expel": _expel_units(chain)}
    return found


def _expel_units(chain: CoordinatorSvm) -> int:
    """Compute units of sending the last of 256 away, whom the owner may send away as well as the join authority."""
    largest = Largest(torn=False, percent=0, instance=chain.instance)
    state = replace(largest.state, run_state=RunState.Warmup, epoch=replace(largest.state.epoch, unplayed=True))
    last = MAX_CLIENTS - 1
    chain.begin(state)
    after, _ = apply(state, commands.Withdraw(member(last)), NOW, chain.at(NOW, SLOT))
    answer = chain.send([layout.expel(chain.run, authority=chain.owner.pubkey(), user=wallet(last).pubkey())], chain.owner)
    if answer.refusal is not None or chain.image != image.encode(after):
        message = f"expel: {answer.refusal} {answer.logs[-3:]}; or the images differ"
        raise AssertionError(message)

    return answer.units


def _account_units(program: Path) -> dict[str, int]:
    """Compute units of the instructions that make and move accounts."""
    chain = CoordinatorSvm("another-run", members=1, program=program)
    run, owner = chain.run, chain.owner.pubkey()
    chain.svm.airdrop(owner, 10**10)
    full = chain.data()
    old = (full[:8] + (2).to_bytes(4, "little") + full[12:])[: OLD_ACCOUNT_BYTES[2]]
    units = {}
    for name, before, instruction in (
        ("stage", full, layout.stage(run, authority=owner, offset=0, content=bytes(800))),
        ("back", full, layout.back(run, authority=owner, units=1)),
        ("free", full, layout.free(run, authority=owner, spill=wallet(0).pubkey())),
        ("init", bytes(ACCOUNT_BYTES), chain.init()),
        ("free: an older version", old, layout.free(run, authority=owner, spill=wallet(0).pubkey())),
    ):
        chain.put(run.account, before)
        signers = (chain.owner, chain.account_key) if name == "init" else (chain.owner,)
        answer = chain.send([instruction], *signers)
        if answer.refusal is not None:
            message = f"{name}: {answer.refusal} {answer.logs}"
            raise AssertionError(message)
        units[name] = answer.units
    return units
