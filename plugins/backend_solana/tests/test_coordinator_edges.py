"""Limits that random commands meet rarely: each on both sides, compared with `apply` byte for byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from plugins.backend_solana.tests.svm.coordinator_svm import CoordinatorSvm, member
from plugins.backend_solana.tests.svm.largest import NOW, Case, Largest, measured
from plugins.backend_solana.tests.svm.random_commands import payload
from psyche_core.config.run_config import Choice
from psyche_core.coordinator import commands
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.round.bloom_filter import BroadcastBloom
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.state import Account, CoordinatorState, EpochRates, Progress
from psyche_core.types import BatchId, ClientState, RunState


@pytest.fixture(scope="module")
def chain() -> CoordinatorSvm:
    return CoordinatorSvm(members=257)


@pytest.fixture
def largest(chain: CoordinatorSvm) -> Largest:
    return Largest(torn=True, percent=0, instance=chain.instance)


def check(chain: CoordinatorSvm, state: CoordinatorState, command: commands.Command) -> str | None:
    return measured(chain, Case("edge", state, command)).refusal


def with_client(state: CoordinatorState, slot: int, /, **fields: Any) -> CoordinatorState:
    clients = list(state.epoch.clients)
    clients[slot] = replace(clients[slot], **fields)
    return replace(state, epoch=replace(state.epoch, clients=tuple(clients)))


@pytest.mark.parametrize("since", [-1, 0, 1])
@pytest.mark.parametrize("rejoins", [0, 1])
def test_who_came_back_since_is_forgiven(chain: CoordinatorSvm, largest: Largest, since: int, rejoins: int) -> None:
    state = largest.playing(0)
    judged, judging = state.epoch.rounds[1], state.epoch.rounds[2]
    unseen = [slot for slot in shares(state, judged) if not slot % 2]
    state = with_client(state, unseen[0], exited_height=judged.height + since, rejoins=rejoins)
    reporter = member(witness_slots(state, judging)[0])
    assert check(chain, state, commands.HealthCheck(reporter, tuple(unseen[:2]))) is None


@pytest.mark.parametrize(("rejoins", "refusal"), [(2, None), (3, "RejoinsExhausted")])
@pytest.mark.parametrize("phase", [RunState.Warmup, RunState.RoundTrain])
def test_who_may_come_back(chain: CoordinatorSvm, largest: Largest, rejoins: int, refusal: str | None, phase: RunState) -> None:
    state = with_client(replace(largest.playing(0), run_state=phase), 9, state=ClientState.Withdrawn, rejoins=rejoins)
    signed = next((end.digest for end in state.ends if end.step == state.epoch.start_step - 1), b"m" * 32)
    assert check(chain, state, commands.WarmupWitness(member(9), 3, 9, signed)) == refusal
    if phase is RunState.Warmup:  # without the model nobody comes back
        assert check(chain, state, commands.WarmupWitness(member(9), 3, 9, bytes(32))) == "InvalidWitness"


def test_who_may_not_come_back(chain: CoordinatorSvm, largest: Largest) -> None:
    state = largest.playing(0)
    ready = commands.WarmupWitness(member(9), 3, 9, bytes(32))
    assert check(chain, with_client(state, 9, state=ClientState.Ejected), ready) == "InvalidWitness"
    dropped = with_client(state, 9, state=ClientState.Dropped)
    others = tuple(waiting for waiting in state.pending if waiting != member(9))
    assert check(chain, replace(dropped, pending=others), ready) == "InvalidWitness"
    assert check(chain, replace(dropped, pending=(*others, member(9, 1))), ready) == "InvalidWitness"


@pytest.mark.parametrize("health", list(ClientState))
@pytest.mark.parametrize("place", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("phase", "statements"),
    [(RunState.RoundTrain, 20), (RunState.RoundWitness, 20), (RunState.RoundWitness, 30), (RunState.Cooldown, 30)],
)
def test_evidence_about_every_stored_round(
    chain: CoordinatorSvm, largest: Largest, health: ClientState, place: int, phase: RunState, statements: int
) -> None:
    state = largest.playing(statements, phase)
    slot = [slot for slot in shares(state, state.epoch.rounds[place]) if slot % 2 and slot != 0][-1]
    state = with_client(state, slot, state=health, exited_height=2)
    refusal = check(chain, state, largest.evidence(state, place, slot))
    assert refusal in (None, "InvalidEvidence")
    assert refusal is None or health is ClientState.Ejected


def divided(largest: Largest, state: CoordinatorState, place: int, slot: int, /, *seen: int) -> CoordinatorState:
    """A state whose witnesses saw different results of a slot in the round at this place. seen: versions, in turn."""
    attesting = state.epoch.rounds[place + 1]
    stated = []
    for statement, version in zip(attesting.statements, seen, strict=True):
        bloom = BroadcastBloom(attesting.seed)
        bloom.add(largest.commitment(state, place, slot, payload(state.epoch.rounds[place], slot, version)))
        stated.append(replace(statement, broadcast_bloom=bloom.to_bytes()))
    rounds = list(state.epoch.rounds)
    rounds[place + 1] = replace(attesting, statements=tuple(stated))
    return replace(state, epoch=replace(state.epoch, rounds=tuple(rounds)))


@pytest.mark.parametrize("lost_rounds", [0, 0xFF, 1 << 4, 0xFF ^ 1 << 4])
@pytest.mark.parametrize("health", [ClientState.Healthy, ClientState.Ejected])
@pytest.mark.parametrize("lost_samples", [0, 10**6])
@pytest.mark.parametrize(
    "seen",
    [
        (0,) * 12 + (1,) * 12 + (2,) * 8,  # nobody applied the share, and a proof about 0 and 1 shows it
        (0,) * 4 + (1,) * 8 + (2,) * 20,  # it does not show it
        (0,) * 22 + (1,) * 10,  # 0 was applied
    ],
)
def test_evidence_about_lost_samples(
    chain: CoordinatorSvm,
    largest: Largest,
    *,
    lost_rounds: int,
    health: ClientState,
    lost_samples: int,
    seen: tuple[int, ...],
) -> None:
    state = largest.playing(20)
    slot = max(largest.seen(state.epoch.rounds[0]))
    assert state.epoch.rounds[0].height == 4
    state = with_client(
        replace(state, lost_samples=lost_samples), slot, state=health, lost_rounds=lost_rounds, accepted_rounds=3, exited_height=2
    )
    state = divided(largest, state, 0, slot, *seen)
    known, void, applied = bool(lost_rounds & 1 << 4), seen.count(2) == 8, seen.count(0) == 22
    changes = health is ClientState.Healthy or (not applied and (void or not known))
    assert (check(chain, state, largest.evidence(state, 0, slot)) is None) is changes


@pytest.mark.parametrize("earned", [0, 2**64 - 2, 2**64 - 1])
@pytest.mark.parametrize("pool", [1, 10**15, 2**64 - 1])
def test_balances_end_at_64_bits(chain: CoordinatorSvm, largest: Largest, earned: int, pool: int) -> None:
    state = largest.playing(32, RunState.Cooldown, drain=True)
    accounts = {member(slot).signer: Account(member(slot).signer, earned, earned) for slot in (0, 5, 250)}
    state = replace(
        state,
        accounts=tuple(accounts[signer] for signer in sorted(accounts)),
        epoch=replace(state.epoch, rates=EpochRates(pool, pool)),
    )
    state = with_client(with_client(state, 5, state=ClientState.Ejected), 250, accepted_rounds=2**32 - 1)
    assert check(chain, state, commands.Tick()) is None


@pytest.mark.parametrize("rounds", [1, 2**32 - 1])
def test_portions_of_many_rounds(chain: CoordinatorSvm, largest: Largest, rounds: int) -> None:
    """Where the sum of all rounds needs more than 32 bits."""
    state = largest.playing(32, RunState.Cooldown, drain=True)
    clients = tuple(replace(client, accepted_rounds=rounds) for client in state.epoch.clients)
    state = replace(state, epoch=replace(state.epoch, clients=clients, rates=EpochRates(2**64 - 1, 0)))
    assert check(chain, state, commands.Tick()) is None


@pytest.mark.parametrize("first", [0, 1, 2, 3, 49, 50, 51, 99, 100, 2**62])
@pytest.mark.parametrize("ramp", [0, 1, 4, 100, 2**64 - 1])
@pytest.mark.parametrize(("start", "end"), [(1, 3), (1, 65535), (65535, 65535)])
def test_batch_sizes(chain: CoordinatorSvm, first: int, ramp: int, start: int, end: int) -> None:
    largest = Largest(torn=False, percent=0, instance=chain.instance)
    keys = {"global_batch_size_start": start, "global_batch_size_end": end, "global_batch_size_warmup_tokens": ramp}
    llm = largest.state.model.LLM.model_copy(update={"max_seq_len": 1 if first < 2**32 else 2**32 - 1})
    state = replace(
        largest.state,
        run_state=RunState.Warmup,
        config=largest.state.config.model_copy(update=keys),
        model=largest.state.model.model_copy(update={"LLM": llm}),
        progress=Progress(3, 100, first),
        epoch=replace(largest.state.epoch, ready=tuple(range(256)), unplayed=True),
    )
    assert check(chain, state, commands.Tick()) is None


@pytest.mark.parametrize("intervals", [0, 1, 2, 510, 511, 512])
@pytest.mark.parametrize("size", [1, 3])
def test_a_round_takes_from_the_queue(chain: CoordinatorSvm, intervals: int, size: int) -> None:
    """More, as much as, and less than a round wants; and joined with fresh samples where they meet."""
    largest = Largest(torn=False, percent=0, instance=chain.instance)
    queue = tuple(BatchId(10 * place, 10 * place + size - 1) for place in range(intervals))
    for wanted in (1, 2, 510 * size, 511 * size, 512 * size, 512 * size + 1):
        for gap in (0, 1):
            config = largest.state.config.model_copy(update={"global_batch_size_start": wanted, "global_batch_size_end": wanted})
            data_index = (queue[-1].last + 1 if queue else 0) + gap
            state = replace(
                largest.state,
                run_state=RunState.Warmup,
                config=config,
                requeue=queue,
                progress=Progress(3, 100, data_index),
                epoch=replace(largest.state.epoch, ready=tuple(range(256)), unplayed=True),
            )
            assert check(chain, state, commands.Tick()) is None


@pytest.mark.parametrize("spare", [0, 1, 300, 512])
@pytest.mark.parametrize("first", [0, 45_000, 50_001, 10**6])
@pytest.mark.parametrize("step", [2, 3])
def test_samples_return_to_a_queue(chain: CoordinatorSvm, largest: Largest, spare: int, first: int, step: int) -> None:
    """Before, between, beside and behind those in it; the lowest are lost when there are too many."""
    state = largest.playing(0, RunState.RoundWitness)
    queue = tuple(BatchId(first + step * place, first + step * place) for place in range(512 - spare))
    taken = {
        sample for stored in state.epoch.rounds[-2:] for batch in stored.batches for sample in range(batch.first, batch.last + 1)
    }
    state = replace(state, requeue=tuple(batch for batch in queue if batch.first not in taken))
    assert check(chain, state, commands.Tick()) is None


@pytest.mark.parametrize(
    ("keys", "refusal"),
    [
        ({"init_min_clients": 256}, None),
        ({"init_min_clients": 257}, "ConfigSanityCheckFailed"),
        ({"witness_nodes": 32}, None),
        ({"witness_nodes": 33}, "ConfigSanityCheckFailed"),
        ({"verification_percent": 100}, None),
        ({"verification_percent": 101}, "ConfigSanityCheckFailed"),
        ({"warmup_time": 99_999}, None),
        ({"warmup_time": 100_000}, "ConfigSanityCheckFailed"),
        ({"max_round_train_time": 99_999}, None),
        ({"max_round_train_time": 100_000}, "ConfigSanityCheckFailed"),
        ({"global_batch_size_end": 2000}, None),
        ({"global_batch_size_end": 1999}, "ConfigSanityCheckFailed"),
        ({"checkpointers": tuple(f"{number:064x}" for number in range(16))}, None),
        ({"checkpointers": (*(f"{number:064x}" for number in range(15)), f"{0:064x}")}, "ConfigSanityCheckFailed"),
    ],
)
def test_configuration(chain: CoordinatorSvm, keys: dict[str, Any], refusal: str | None) -> None:
    largest = Largest(torn=False, percent=0, instance=chain.instance)
    config = largest.state.config.model_copy(update=keys)
    paused = replace(largest.state, run_state=RunState.Paused)
    assert check(chain, paused, commands.UpdateConfig(config=config)) == refusal


@pytest.mark.parametrize(("steps", "refusal"), [(19_999, None), (20_000, "ConfigSanityCheckFailed")])
def test_a_cold_start_fits_an_epoch(chain: CoordinatorSvm, steps: int, refusal: str | None) -> None:
    largest = Largest(torn=False, percent=0, instance=chain.instance)
    llm = largest.state.model.LLM.model_copy(update={"cold_start_warmup_steps": steps})
    command = commands.UpdateConfig(model=largest.state.model.model_copy(update={"LLM": llm}))
    assert check(chain, replace(largest.state, run_state=RunState.Paused), command) == refusal


@pytest.mark.parametrize(
    ("progress", "refusal"),
    [
        (Progress(2**31, 2**31 + 1, 2**62), None),
        (Progress(2**31 + 1, 1, 0), "ProgressSanityCheckFailed"),
        (Progress(0, 2**31 + 2, 0), "ProgressSanityCheckFailed"),
        (Progress(0, 1, 2**62 + 1), "ProgressSanityCheckFailed"),
        (Progress(0, 0, 0), "ProgressSanityCheckFailed"),
    ],
)
def test_progress(chain: CoordinatorSvm, progress: Progress, refusal: str | None) -> None:
    paused = replace(Largest(torn=True, percent=0, instance=chain.instance).state, run_state=RunState.Paused)
    assert check(chain, paused, commands.UpdateConfig(progress=progress)) == refusal


@pytest.mark.parametrize("late", [0, 1, 2])
@pytest.mark.parametrize("phase", [RunState.WaitingForMembers, RunState.RoundTrain, RunState.RoundWitness, RunState.Cooldown])
def test_what_is_due(chain: CoordinatorSvm, phase: RunState, late: int) -> None:
    """One second early, in time, one late; and at no time at once."""
    largest = Largest(torn=False, percent=0, instance=chain.instance)
    state = largest.playing(3, phase)
    config = state.config
    waits = {
        RunState.WaitingForMembers: config.waiting_for_members_extra_time,
        RunState.RoundTrain: config.max_round_train_time,
        RunState.RoundWitness: config.round_witness_time + 1,
        RunState.Cooldown: config.cooldown_time,
    }
    since = NOW - waits[phase] + 1 - late
    refusal = check(chain, replace(state, since=since, minimum_since=since), commands.Tick())
    assert refusal == (None if late else "NothingDue")


@pytest.mark.parametrize("seconds", [2**64 - 1, 2**63])
def test_what_is_never_due(chain: CoordinatorSvm, seconds: int) -> None:
    largest = Largest(torn=False, percent=0, instance=chain.instance)
    state = largest.playing(3)
    config = state.config.model_copy(update={"max_round_train_time": seconds, "epoch_time": seconds})
    assert check(chain, replace(state, config=config), commands.Tick()) == "NothingDue"


@pytest.mark.parametrize("health", list(ClientState))
@pytest.mark.parametrize("kind", ["Hub", "P2P", "Gcs", "P2PGcs", "Dummy"])
@pytest.mark.parametrize("stays", [True, False])
def test_where_the_next_members_load_from(chain: CoordinatorSvm, health: ClientState, kind: str, stays: bool) -> None:
    """From peers only where somebody who was healthy to the end is still there."""
    largest = Largest(torn=False, percent=0, instance=chain.instance)
    settings = {"bucket": "b"} if kind.endswith("Gcs") else {"repo_id": "r"}
    llm = largest.state.model.LLM.model_copy(update={"checkpoint": Choice(kind, settings)})
    old = tuple(replace(client, state=ClientState.Dropped) for client in largest.state.epoch.clients[:20])
    last = replace(old[7], state=health, id=member(7) if stays else member(256))
    state = replace(
        largest.state,
        run_state=RunState.WaitingForMembers,
        model=largest.state.model.model_copy(update={"LLM": llm}),
        epoch=replace(largest.state.epoch, clients=(*old[:7], last, *old[8:])),
    )
    assert check(chain, state, commands.Tick()) is None


@pytest.mark.parametrize("kind", ["Hub", "P2P", "Gcs", "P2PGcs", "Dummy"])
@pytest.mark.parametrize("location", [Choice("Hub", {"repo_id": "owner/model"}), Choice("Gcs", {"bucket": "b"})])
def test_which_location_follows_which(chain: CoordinatorSvm, kind: str, location: Choice) -> None:
    largest = Largest(torn=False, percent=0, instance=chain.instance)
    settings = {"bucket": "a"} if kind.endswith("Gcs") else {"repo_id": "r"}
    llm = largest.state.model.LLM.model_copy(update={"checkpoint": Choice(kind, settings)})
    state = replace(
        largest.state,
        run_state=RunState.Paused,
        config=largest.state.config.model_copy(update={"checkpointers": (member(3).signer.hex(),)}),
        model=largest.state.model.model_copy(update={"LLM": llm}),
    )
    refusal = check(chain, state, commands.Checkpoint(member(3), location))
    assert refusal == ("InvalidCheckpoint" if kind == "Dummy" else None)


@pytest.mark.parametrize("pending", [199, 200, 201])
@pytest.mark.parametrize("repeats", [0, 1, 2])
@pytest.mark.parametrize("held", [True, False])
def test_a_warmup_begins_again_for_who_joined(
    chain: CoordinatorSvm, largest: Largest, pending: int, repeats: int, held: bool
) -> None:
    """Without the model: whoever is pending and takes no part may hold it."""
    state = largest.state
    clients = state.epoch.clients[:200]
    state = replace(
        state,
        run_state=RunState.Warmup,
        from_checkpoint=False,
        since=NOW - 100_000,
        pending=tuple(member(number) for number in range(pending)),
        epoch=replace(
            state.epoch,
            clients=tuple(replace(client, state=ClientState.Healthy) for client in clients),
            ready=(),
            ceded=(),
            lacking=tuple(range(200)),
            held_step=state.ends[0].step if held else 0,
            unplayed=True,
            repeats=repeats,
        ),
    )
    assert check(chain, state, commands.Tick()) is None


@pytest.mark.parametrize("late", [0, 1])
def test_no_time_is_due_at_once(chain: CoordinatorSvm, late: int) -> None:
    largest = Largest(torn=False, percent=0, instance=chain.instance)
    config = largest.state.config.model_copy(update={"warmup_time": 0})
    epoch = replace(largest.state.epoch, ready=tuple(range(200)), unplayed=True)
    state = replace(largest.state, run_state=RunState.Warmup, config=config, epoch=epoch, since=NOW - late)
    assert check(chain, state, commands.Tick()) == (None if late else "NothingDue")


@pytest.mark.parametrize("mean", [0, 4, 5, 20])
@pytest.mark.parametrize("seconds", [-1, 0, 1, 2, 4, 5, 10, 11])
def test_what_is_late(chain: CoordinatorSvm, largest: Largest, mean: int, seconds: int) -> None:
    """The witness phase began so many seconds ago, in a round that is the eighth of its epoch."""
    state = largest.playing(10, RunState.RoundWitness)
    state = replace(state, since=NOW - seconds, epoch=replace(state.epoch, start_time=NOW - 8 * mean))
    said = largest.next_witness(state)
    assert isinstance(said, commands.Witness)
    assert check(chain, with_client(state, said.statement.index, missed=20), said) is None


@pytest.mark.parametrize("missed", [0, 47, 48, 61, 62, 63, 64, 80, 255])
@pytest.mark.parametrize("seconds", [0, 1, 4])
@pytest.mark.parametrize("rejoins", [0, 1])
def test_what_lateness_adds(chain: CoordinatorSvm, largest: Largest, missed: int, seconds: int, rejoins: int) -> None:
    state = replace(largest.playing(10, RunState.RoundWitness), since=NOW - seconds)
    said = largest.next_witness(state)
    assert isinstance(said, commands.Witness)
    height = state.epoch.rounds[-1].height
    state = with_client(state, said.statement.index, missed=missed, rejoins=rejoins, exited_height=height)
    assert check(chain, state, said) is None


def seen_by_all_numbers(largest: Largest, state: CoordinatorState, place: int) -> CoordinatorState:
    """Of the round at this place, of each 33 results nobody saw the first, one witness the second, and all 32 the last."""
    judged, judging = state.epoch.rounds[place], state.epoch.rounds[place + 1]
    given = sorted(shares(state, judged))
    said = tuple(
        largest.statement(statement.index, judging, seen=[slot for order, slot in enumerate(given) if number < order % 33])
        for number, statement in enumerate(judging.statements)
    )
    rounds = list(state.epoch.rounds)
    rounds[place + 1] = replace(judging, statements=said)
    return replace(state, epoch=replace(state.epoch, rounds=tuple(rounds)))


@pytest.mark.parametrize("statements", [32, 31, 22, 21, 16])
@pytest.mark.parametrize("missed", [0, 63, 64, 127])
def test_results_that_divide_the_witnesses(chain: CoordinatorSvm, largest: Largest, statements: int, missed: int) -> None:
    """Half of the witnesses, 16, saw some, but not the quorum of 22. Some trainers left, were absent or sent two results."""
    state = seen_by_all_numbers(largest, largest.playing(statements, RunState.RoundWitness), 2)
    judged = state.epoch.rounds[2]
    height = judged.height
    divided = [slot for order, slot in enumerate(sorted(shares(state, judged))) if order % 33 in range(16, 22)]
    state = with_client(state, divided[0], state=ClientState.Withdrawn)
    for slot in divided[1:]:
        state = with_client(state, slot, missed=missed)
    for slot, exited in zip(divided[1:4], (height - 1, height, height + 1), strict=True):
        state = with_client(state, slot, rejoins=1, exited_height=exited)
    rounds = state.epoch.rounds
    rounds = (*rounds[:2], replace(judged, voided=(divided[4],)), rounds[3])
    assert check(chain, replace(state, epoch=replace(state.epoch, rounds=rounds)), commands.Tick()) is None


@pytest.mark.parametrize("statements", [32, 22])
def test_who_is_reported_though_half_saw_its_result(chain: CoordinatorSvm, largest: Largest, statements: int) -> None:
    """Those that half of the witnesses saw stay, the others go."""
    state = largest.playing(0)
    judging = state.epoch.rounds[2]
    rounds = (*state.epoch.rounds[:2], replace(judging, statements=judging.statements[:statements]), state.epoch.rounds[3])
    state = seen_by_all_numbers(largest, replace(state, epoch=replace(state.epoch, rounds=rounds)), 1)
    unseen = [slot for order, slot in enumerate(sorted(shares(state, state.epoch.rounds[1]))) if order % 33 < 22]
    report = commands.HealthCheck(member(witness_slots(state, judging)[0]), tuple(unseen))
    assert check(chain, state, report) is None
